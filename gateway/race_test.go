//go:build race

package gateway_test

// The race detector makes copying twenty times slower.
const largeBody = 64 << 20
