// Package proto holds the guest's wire contract: process.proto and
// filesystem.proto, and the Go code generated from them in its sub-folders.
// `go generate ./guest/proto` makes that code anew; it needs only Go.
package proto

//go:generate go run ./gen
