package keys

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
)

const seedBytes = 32

// Seed derives the tokens of sandboxes. A token depends on nothing but the seed
// and the sandbox's id, so it is the same after every resume and needs no store.
type Seed struct{ key []byte }

// OpenSeed reads <dir>/seed, creating it the first time.
func OpenSeed(dir string) (Seed, error) {
	s, err := readOrCreate(filepath.Join(dir, "seed"),
		func(s string) bool { return len(s) == 2*seedBytes && isHex(s) },
		func() string { return randomHex(seedBytes) })
	if err != nil {
		return Seed{}, fmt.Errorf("open token seed: %w", err)
	}
	key, err := hex.DecodeString(s)
	if err != nil {
		return Seed{}, fmt.Errorf("open token seed: %w", err)
	}
	return Seed{key: key}, nil
}

// AccessToken opens the guest's services of the sandbox (header X-Access-Token).
func (s Seed) AccessToken(sandboxID string) string { return s.token(sandboxID) }

// TrafficToken opens the ports of a sandbox whose public traffic is off (header
// e2b-traffic-access-token).
func (s Seed) TrafficToken(sandboxID string) string { return s.token("sandbox-traffic-" + sandboxID) }

func (s Seed) token(message string) string {
	m := hmac.New(sha256.New, s.key)
	m.Write([]byte(message))
	return hex.EncodeToString(m.Sum(nil))
}

// String hides the seed from logs.
func (s Seed) String() string { return "seed(hidden)" }

// GoString hides the seed from %#v.
func (s Seed) GoString() string { return s.String() }

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: it ends the process where there is no randomness
	return hex.EncodeToString(b)
}

func isHex(s string) bool {
	for _, c := range s {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return s != ""
}
