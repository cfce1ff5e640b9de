//go:build !race

package gateway_test

const largeBody = 1 << 30
