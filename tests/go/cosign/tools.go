//go:build tools

// Package cosign pins the program that signs releases.
package cosign

import _ "github.com/sigstore/cosign/v3/cmd/cosign"
