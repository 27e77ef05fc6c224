//go:build tools

// Package conformance pins Kubernetes' own tests and the program in their images.
package conformance

import (
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
