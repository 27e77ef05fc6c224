//go:build tools

// Package helm pins the program that the testbed builds.
package helm

import _ "helm.sh/helm/v3/cmd/helm"
