package node

import (
	"crypto/rand"
	"encoding/hex"
)

const idAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789"

// newID gives prefix and 20 random characters of [a-z0-9].
func newID(prefix string) string {
	// 252 is the largest multiple of 36 below 256; rejecting above keeps it even.
	out := make([]byte, 0, 20)
	var b [32]byte
	for len(out) < 20 {
		rand.Read(b[:])
		for _, c := range b {
			if c < 252 && len(out) < 20 {
				out = append(out, idAlphabet[c%36])
			}
		}
	}
	return prefix + string(out)
}

func newMachineID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
