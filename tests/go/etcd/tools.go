//go:build tools

// Package etcd pins the server that the testbed builds.
package etcd

import _ "go.etcd.io/etcd/server/v3"
