package keys

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"encoding/hex"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// Prefix begins every API key; E2B clients before 2.46 insist on it.
const Prefix = "e2b_"

// LocalID is the id of the machine's own key. It is in no table and cannot be
// deleted.
const LocalID = "local"

const (
	secretBytes = 20
	maskPrefix  = 2 // characters of the value shown in front
	maskSuffix  = 4 // and at the end
	// usedEvery bounds how often a key's last use is written down: a request
	// must not cost a write to the journal.
	usedEvery = time.Minute
)

// Key is what is known of an API key; the key itself is not.
type Key struct {
	ID         string
	Space      string
	Name       string
	MaskPrefix string // first characters after Prefix
	MaskSuffix string // last characters
	CreatedAt  time.Time
	LastUsedAt time.Time // zero: never; exact to a minute
}

type entry struct {
	Key
	hash     [sha256.Size]byte
	recorded time.Time // last use as written to the table
}

// Store keeps API keys in the node's database, and all of them in memory: a
// request is verified without touching the database. One process per folder.
type Store struct {
	db    *sql.DB
	local string
	now   func() time.Time

	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*entry
}

// Open reads the keys in db, creating its table and <dir>/local if need be.
func Open(ctx context.Context, dir string, db *sql.DB) (*Store, error) {
	s := &Store{db: db, now: time.Now, byHash: map[[sha256.Size]byte]*entry{}}
	if err := migrate(ctx, db); err != nil {
		return nil, fmt.Errorf("open api keys: %w", err)
	}
	if err := s.load(ctx); err != nil {
		return nil, fmt.Errorf("open api keys: %w", err)
	}
	local, err := readOrCreate(filepath.Join(dir, "local"), wellFormed, newSecret)
	if err != nil {
		return nil, fmt.Errorf("open local api key: %w", err)
	}
	s.local = local
	e := newEntry(LocalID, sandbox.DefaultSpace, "this machine", local, time.Time{})
	s.byHash[e.hash] = e
	return s, nil
}

// Local is the machine's own API key, for `holdfast env`. It opens
// sandbox.DefaultSpace.
func (s *Store) Local() string { return s.local }

// Create makes a key for the space. secret is shown here once and kept nowhere.
func (s *Store) Create(ctx context.Context, space, name string) (key Key, secret string, err error) {
	if space == "" {
		return Key{}, "", sandbox.Errorf(sandbox.InvalidRequest, "api key", "needs a space")
	}
	secret = newSecret()
	e := newEntry("k"+randomHex(10), space, name, secret, s.now().UTC())
	_, err = s.db.ExecContext(ctx, `INSERT INTO keys (id, space, name, sha256, mask_prefix, mask_suffix, created_at, last_used_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, 0)`,
		e.ID, e.Space, e.Name, hex.EncodeToString(e.hash[:]), e.MaskPrefix, e.MaskSuffix, e.CreatedAt.UnixMicro())
	if err != nil {
		return Key{}, "", fmt.Errorf("create api key in space %q: %w", space, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byHash[e.hash] = e
	return e.Key, secret, nil
}

// Verify tells whose key secret is. Anything else is an Authentication error
// that does not repeat the secret.
func (s *Store) Verify(ctx context.Context, secret string) (Key, error) {
	if secret == "" {
		return Key{}, sandbox.Errorf(sandbox.Authentication, "api key", "is missing").
			WithNext("send it in the X-API-Key header; `holdfast env` prints the one of this machine")
	}
	hash := sha256.Sum256([]byte(secret))
	now := s.now().UTC()
	s.mu.Lock()
	e, found := s.byHash[hash]
	// The lookup is by hash, which a caller cannot steer towards another's; the
	// comparison that decides takes the same time whatever differs.
	if !found || subtle.ConstantTimeCompare(e.hash[:], hash[:]) != 1 {
		s.mu.Unlock()
		return Key{}, sandbox.Errorf(sandbox.Authentication, "api key", "is not known here").
			WithNext("`holdfast env` prints the one of this machine")
	}
	e.LastUsedAt = now
	record := e.ID != LocalID && now.Sub(e.recorded) >= usedEvery
	if record {
		e.recorded = now
	}
	key := e.Key
	s.mu.Unlock()
	if record {
		// Losing this write only makes the date older; the request goes on.
		_, _ = s.db.ExecContext(ctx, `UPDATE keys SET last_used_at = ? WHERE id = ?`, now.UnixMicro(), key.ID)
	}
	return key, nil
}

// List gives the keys of a space, oldest first; space "" gives all. The
// machine's own is among them.
func (s *Store) List(_ context.Context, space string) ([]Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Key{}
	for _, e := range s.byHash {
		if space == "" || e.Space == space {
			list = append(list, e.Key)
		}
	}
	slices.SortFunc(list, func(a, b Key) int {
		if c := a.CreatedAt.Compare(b.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list, nil
}

// Delete ends a key of the space. It opens nothing from then on.
func (s *Store) Delete(ctx context.Context, space, id string) error {
	if id == LocalID {
		return sandbox.Errorf(sandbox.Conflict, "the machine's own api key", "cannot be deleted").
			WithNext("stop the daemon, remove the file keys/local in its data folder and start it to have a new one")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for hash, e := range s.byHash {
		if e.ID != id || e.Space != space {
			continue
		}
		if _, err := s.db.ExecContext(ctx, `DELETE FROM keys WHERE id = ?`, id); err != nil {
			return fmt.Errorf("delete api key %s: %w", id, err)
		}
		delete(s.byHash, hash)
		return nil
	}
	return sandbox.Errorf(sandbox.NotFound, fmt.Sprintf("api key %q", id), "does not exist in space %q", space)
}

// FromRequest gives the API key that r carries in X-API-Key or as a bearer
// token, or "".
func FromRequest(r *http.Request) string {
	if k := r.Header.Get("X-API-Key"); k != "" {
		return k
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(token)
	}
	return ""
}

type contextKey struct{}

// NewContext marks a request as authenticated by other means than a key it
// carries, such as the permission to open a Unix socket.
func NewContext(ctx context.Context, k Key) context.Context {
	return context.WithValue(ctx, contextKey{}, k)
}

// FromContext gives what NewContext put there.
func FromContext(ctx context.Context) (Key, bool) {
	k, ok := ctx.Value(contextKey{}).(Key)
	return k, ok
}

func newSecret() string { return Prefix + randomHex(secretBytes) }

func wellFormed(s string) bool {
	v, ok := strings.CutPrefix(s, Prefix)
	return ok && len(v) == 2*secretBytes && isHex(v)
}

func newEntry(id, space, name, secret string, created time.Time) *entry {
	v := strings.TrimPrefix(secret, Prefix)
	return &entry{
		Key: Key{
			ID: id, Space: space, Name: name, CreatedAt: created,
			MaskPrefix: v[:maskPrefix], MaskSuffix: v[len(v)-maskSuffix:],
		},
		hash: sha256.Sum256([]byte(secret)),
	}
}
