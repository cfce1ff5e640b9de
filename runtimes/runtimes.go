// Package runtimes keeps the programs that sandboxes run on, each in a folder
// named by its SHA-256: the gVisor runtime and the guest. A memory image names
// the runtime that made it, so an old one stays until nothing refers to it and
// the caller removes it.
package runtimes

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"github.com/holdfast-run/holdfast/embedded"
)

// ErrNotFound: the store has no program of that hash.
var ErrNotFound = errors.New("no such runtime")

// Runtime is one program on disk.
type Runtime struct {
	Name    string `json:"name"` // "runsc" or "guest"
	Path    string `json:"-"`    // absolute
	SHA256  string `json:"sha256"`
	Version string `json:"version"`
	Size    int64  `json:"size"` // bytes
}

// Store is a folder of programs: <dir>/<sha256>/{runsc|guest} and, beside it,
// runtime.json, which is written last: a folder without it is an interrupted
// unpack.
type Store struct {
	dir string
	mu  sync.Mutex // one unpack at a time
}

const (
	description = "runtime.json"
	unpacking   = ".unpack-" // begins the name of a folder that is not whole yet
)

var hashPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Open gives the store in dir, making the folder when needed. One process at a time
// may unpack into it.
func Open(dir string) (*Store, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("runtime store %s: %w", dir, err)
	}
	if err := os.MkdirAll(abs, 0o755); err != nil {
		return nil, fmt.Errorf("runtime store: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(abs, unpacking+"*"))
	if err != nil {
		return nil, fmt.Errorf("runtime store: %w", err)
	}
	for _, dir := range left { // of a process that was killed
		if err := os.RemoveAll(dir); err != nil {
			return nil, fmt.Errorf("runtime store: %w", err)
		}
	}
	return &Store{dir: abs}, nil
}

// Ensure gives the embedded gVisor runtime, unpacking it when it is not there
// yet (about 0.3 s). embedded.ErrMissing when the binary carries none.
func (s *Store) Ensure(ctx context.Context) (Runtime, error) { return s.ensure(ctx, embedded.Runsc) }

// Guest is Ensure for the guest program.
func (s *Store) Guest(ctx context.Context) (Runtime, error) { return s.ensure(ctx, embedded.Guest) }

// Get gives a program by its hash, ErrNotFound if it is not in the store.
func (s *Store) Get(sha string) (Runtime, error) {
	var r Runtime
	if !hashPattern.MatchString(sha) {
		return r, fmt.Errorf("runtime %q: %w: not a sha256", sha, ErrNotFound)
	}
	b, err := os.ReadFile(filepath.Join(s.dir, sha, description))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("runtime %s: %w", sha, ErrNotFound)
	}
	if err != nil {
		return r, fmt.Errorf("runtime %s: %w", sha, err)
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("runtime %s: %w", sha, err)
	}
	r.Path = filepath.Join(s.dir, sha, r.Name)
	fi, err := os.Stat(r.Path)
	if err != nil || fi.Size() != r.Size {
		return r, fmt.Errorf("runtime %s: %w: its file is damaged", sha, ErrNotFound)
	}
	return r, nil
}

// List gives all whole programs of the store.
func (s *Store) List() ([]Runtime, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("list runtimes: %w", err)
	}
	var out []Runtime
	for _, e := range entries {
		if r, err := s.Get(e.Name()); err == nil {
			out = append(out, r)
		}
	}
	return out, nil
}

// Remove deletes a program. The caller makes sure that no memory image and no
// running instance needs it. Gone already: nil.
func (s *Store) Remove(sha string) error {
	if !hashPattern.MatchString(sha) {
		return fmt.Errorf("remove runtime %q: not a sha256", sha)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The description goes first, so that a half-removed one is no runtime.
	if err := os.Remove(filepath.Join(s.dir, sha, description)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove runtime %s: %w", sha, err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, sha)); err != nil {
		return fmt.Errorf("remove runtime %s: %w", sha, err)
	}
	return nil
}

func (s *Store) ensure(ctx context.Context, name string) (Runtime, error) {
	a, err := embedded.Describe(name)
	if err != nil {
		return Runtime{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, err := s.Get(a.SHA256); err == nil {
		return r, nil
	}
	src, err := embedded.Open(name)
	if err != nil {
		return Runtime{}, err
	}
	defer src.Close()
	if err := s.unpack(ctx, src, Runtime{Name: name, SHA256: a.SHA256, Version: a.Version, Size: a.Size}); err != nil {
		return Runtime{}, fmt.Errorf("unpack %s: %w", name, err)
	}
	return s.Get(a.SHA256)
}

// unpack writes src into a temporary folder, verifies it and renames it into
// place, so that a folder named by a hash holds exactly that.
func (s *Store) unpack(ctx context.Context, src io.Reader, r Runtime) (err error) {
	tmp, err := os.MkdirTemp(s.dir, unpacking)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	sum := sha256.New()
	if err := writeFile(filepath.Join(tmp, r.Name), 0o755, io.TeeReader(contextReader{ctx, src}, sum)); err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != r.SHA256 {
		return fmt.Errorf("content has sha256 %s, want %s; build again with make build", got, r.SHA256)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := writeFile(filepath.Join(tmp, description), 0o644, bytes.NewReader(b)); err != nil {
		return err
	}
	final := filepath.Join(s.dir, r.SHA256)
	if err := os.RemoveAll(final); err != nil { // damaged, or Get would have found it
		return err
	}
	if err := os.Rename(tmp, final); err != nil {
		return err
	}
	return syncDir(s.dir)
}

func writeFile(path string, mode fs.FileMode, src io.Reader) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(f, src); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

type contextReader struct {
	ctx context.Context
	io.Reader
}

func (r contextReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}
