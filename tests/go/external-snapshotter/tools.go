//go:build tools

// Package externalsnapshotter pins the snapshot-controller that the testbed builds. The CRDs are those of the client
// module of the same release.
package externalsnapshotter

import _ "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"
