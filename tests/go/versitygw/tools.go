//go:build tools

// Package versitygw pins the S3 server of the tests.
package versitygw

import _ "github.com/versity/versitygw/cmd/versitygw"
