//go:build tools

// Package localpath pins the provisioner that the bench compares with.
package localpath

import _ "github.com/rancher/local-path-provisioner"
