// Package identity keeps what the host tells the guest about itself after each
// start or restore: token, environment, default user and folder, name.
package identity

import (
	"crypto/subtle"
	"sync/atomic"
)

// Identity is immutable once stored.
type Identity struct {
	Token   string            // "" leaves the services open
	Env     map[string]string // of every process
	User    string            // for requests that name none
	Workdir string            // where relative paths start; "" is the user's home
}

// Allows tells whether token opens the services, in constant time.
func (i *Identity) Allows(token string) bool {
	return i.Token == "" || subtle.ConstantTimeCompare([]byte(i.Token), []byte(token)) == 1
}

// Store holds the current identity. The zero Store has none.
type Store struct {
	current atomic.Pointer[Identity]
}

// Get gives the current identity, or nil before the first Set and after Clear.
func (s *Store) Get() *Identity { return s.current.Load() }

// Set replaces the identity.
func (s *Store) Set(i Identity) { s.current.Store(&i) }

// Clear forgets the identity, so that it does not enter a memory image.
func (s *Store) Clear() { s.current.Store(nil) }

// Env is the environment of every process; callers must not change it.
func (s *Store) Env() map[string]string {
	if i := s.Get(); i != nil {
		return i.Env
	}
	return nil
}

// Workdir is where relative paths start; "" is the user's home.
func (s *Store) Workdir() string {
	if i := s.Get(); i != nil {
		return i.Workdir
	}
	return ""
}
