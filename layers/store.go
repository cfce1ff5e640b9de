// Package layers keeps the files of templates, snapshots and sandboxes.
//
// A layer is a read-only folder of files that never changes once it has an id.
// A sandbox's root is an overlay of layers with a writable folder, its upper, on
// top; freezing the upper turns it into one more layer by a rename, whatever its
// size. Layers hold what overlayfs reads: a removed file is a character device
// 0/0, a folder that hides those below has the attribute trusted.overlay.opaque.
//
// On disk a layer is <store>/<id>/fs and <store>/<id>/layer.json. A name that
// begins with a dot is something unfinished and is swept by Open.
package layers

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/layers/tree"
)

// Errors, wrapped with what they are about.
var (
	ErrNotFound = errors.New("no such layer")
	ErrInUse    = errors.New("layer is in use")
)

// Layer describes one layer.
type Layer struct {
	ID string `json:"id"` // 12 of [a-z2-7]
	// Digest is the key that a caller gave its content, e.g. an OCI chain id; "" for
	// a frozen upper.
	Digest  string    `json:"digest,omitempty"`
	Created time.Time `json:"created"`
	// Bytes on disk and number of inodes; -1 until Measure was called on a frozen upper.
	Bytes  int64 `json:"bytes"`
	Inodes int64 `json:"inodes"`
}

// Store is a folder of layers. One process uses it at a time, from any number
// of goroutines.
type Store struct {
	dir string

	mu       sync.Mutex
	layers   map[string]Layer
	building map[string]chan struct{} // digest → closed when that build is over
}

const (
	tmpPrefix   = ".tmp-"   // being built: holds a lock while its builder lives
	trashPrefix = ".trash-" // being removed
	metaName    = "layer.json"
	filesName   = "fs"
)

var idPattern = regexp.MustCompile(`^[a-z2-7]{12}$`)

// ValidID tells whether s has the form of a layer id.
func ValidID(s string) bool { return idPattern.MatchString(s) }

// NewID gives a fresh layer id. Ids are short because the mount options that
// list all layers of a sandbox must fit in one page.
func NewID() string {
	var b [8]byte
	rand.Read(b[:])
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))[:12]
}

// Open opens the store in dir, making the folder if need be. It sweeps what an
// interrupted Build or Remove left, and finishes an interrupted Freeze.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open layer store: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("open layer store: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("open layer store: %w", err)
	}
	s := &Store{dir: dir, layers: map[string]Layer{}, building: map[string]chan struct{}{}}
	for _, e := range entries {
		if err := s.load(e.Name()); err != nil {
			return nil, fmt.Errorf("open layer store %s: %s: %w", dir, e.Name(), err)
		}
	}
	return s, nil
}

// load takes one entry of the folder into the store, or clears it away.
func (s *Store) load(name string) error {
	p := filepath.Join(s.dir, name)
	switch {
	case strings.HasPrefix(name, trashPrefix):
		return os.RemoveAll(p)
	case strings.HasPrefix(name, tmpPrefix):
		lock, err := lockDir(p)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil // its builder lives
		} else if err != nil {
			return err
		}
		defer lock.Close()
		return removeBuild(p)
	case !ValidID(name):
		return nil // not ours: leave it alone
	}
	l, err := readMeta(p)
	if err == nil && l.ID == name {
		s.layers[name] = l
		return nil
	}
	// Build renames a complete folder into place, so a layer without a readable
	// layer.json is a Freeze that was cut off: before its rename there is no fs and
	// the upper is still where it was, after it the layer is whole.
	if _, err := os.Lstat(filepath.Join(p, filesName)); errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(p)
	} else if err != nil {
		return err
	}
	return s.add(Layer{ID: name, Created: time.Now().UTC(), Bytes: -1, Inodes: -1})
}

func readMeta(dir string) (l Layer, err error) {
	data, err := os.ReadFile(filepath.Join(dir, metaName))
	if err == nil {
		err = json.Unmarshal(data, &l)
	}
	return l, err
}

// add writes layer.json durably and takes the layer into the index.
func (s *Store) add(l Layer) error {
	if err := writeMeta(filepath.Join(s.dir, l.ID), l); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.layers[l.ID] = l
	return nil
}

func writeMeta(dir string, l Layer) error {
	data, err := json.Marshal(l)
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, metaName+".tmp")
	f, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(data, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, metaName)); err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// lockDir locks a folder for as long as the returned file is open.
func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Dir is the store's folder.
func (s *Store) Dir() string { return s.dir }

// Path is the folder with a layer's files. It must not be changed.
func (s *Store) Path(id string) string { return filepath.Join(s.dir, id, filesName) }

// Get gives one layer, or ErrNotFound.
func (s *Store) Get(id string) (Layer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.layers[id]
	if !ok {
		return Layer{}, fmt.Errorf("layer %q: %w", id, ErrNotFound)
	}
	return l, nil
}

// Find gives the layer whose content has the digest.
func (s *Store) Find(digest string) (Layer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.find(digest)
}

func (s *Store) find(digest string) (Layer, bool) {
	if digest == "" {
		return Layer{}, false
	}
	for _, l := range s.layers {
		if l.Digest == digest {
			return l, true
		}
	}
	return Layer{}, false
}

// List gives all layers, oldest first.
func (s *Store) List() []Layer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.layers), func(a, b Layer) int {
		if c := a.Created.Compare(b.Created); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
}

// Remove deletes a layer; one that is gone already is no error. A layer that a
// mount shows is ErrInUse. Whether a snapshot or paused sandbox still needs it is
// for the caller to know.
func (s *Store) Remove(id string) error {
	s.mu.Lock()
	_, ok := s.layers[id]
	s.mu.Unlock()
	if !ok {
		return nil
	}
	used, err := s.mounted(id)
	if err != nil {
		return fmt.Errorf("remove layer %s: %w", id, err)
	}
	if used != "" {
		return fmt.Errorf("remove layer %s: %w by the mount at %s", id, ErrInUse, used)
	}
	s.mu.Lock()
	delete(s.layers, id)
	s.mu.Unlock()
	// Renamed first, so that a crash leaves trash and never half a layer.
	trash := filepath.Join(s.dir, trashPrefix+id)
	if err := os.Rename(filepath.Join(s.dir, id), trash); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove layer: %w", err)
	}
	if err := os.RemoveAll(trash); err != nil {
		return fmt.Errorf("remove layer: %w", err)
	}
	return nil
}

// Build makes a layer from what fill puts into an empty folder. With a digest
// (may be "") an existing layer of that digest is returned instead, and two
// concurrent builds of one digest are one. An error or a crash leaves nothing.
// The layer is on stable storage when Build returns.
func (s *Store) Build(ctx context.Context, digest string, fill func(*tree.Root) error) (Layer, error) {
	done, l, found, err := s.claim(ctx, digest)
	if err != nil || found {
		return l, err
	}
	defer done()
	l, err = s.build(digest, fill)
	if err != nil {
		return Layer{}, fmt.Errorf("build layer: %w", err)
	}
	return l, nil
}

// Derive makes a layer of what change does to the file system that the lower
// layers (bottom first) make up together. Otherwise it is like Build.
func (s *Store) Derive(ctx context.Context, digest string, lower []string, change func(*tree.Root) error) (Layer, error) {
	return s.Build(ctx, digest, func(files *tree.Root) (err error) {
		dir := filepath.Dir(files.Dir())
		r := Root{Lower: lower, Upper: files.Dir(), Work: filepath.Join(dir, "work"), Target: filepath.Join(dir, "root")}
		if err := s.Mount(ctx, r); err != nil {
			return err
		}
		defer func() {
			// Not ctx: it may be what ended us, and the mount must go in any case.
			err = errors.Join(err, Unmount(context.WithoutCancel(ctx), r.Target), os.RemoveAll(r.Work), os.Remove(r.Target))
		}()
		root, err := tree.Open(r.Target)
		if err != nil {
			return err
		}
		defer root.Close()
		return change(root)
	})
}

// removeBuild removes a build's folder, and first what a Derive mounted in it.
func removeBuild(tmp string) error {
	mounts, err := Mounts(tmp)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if err := Unmount(context.Background(), m); err != nil {
			return err
		}
	}
	return os.RemoveAll(tmp)
}

// claim waits for a running build of the digest, then gives its layer or the
// right to build it until done is called.
func (s *Store) claim(ctx context.Context, digest string) (done func(), l Layer, found bool, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, Layer{}, false, err
		}
		if digest == "" {
			return func() {}, Layer{}, false, nil
		}
		s.mu.Lock()
		if l, found = s.find(digest); found {
			s.mu.Unlock()
			return nil, l, true, nil
		}
		running, busy := s.building[digest]
		if !busy {
			ours := make(chan struct{})
			s.building[digest] = ours
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.building, digest)
				s.mu.Unlock()
				close(ours)
			}, Layer{}, false, nil
		}
		s.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
		}
	}
}

func (s *Store) build(digest string, fill func(*tree.Root) error) (_ Layer, err error) {
	l := Layer{ID: NewID(), Digest: digest, Created: time.Now().UTC()}
	tmp := filepath.Join(s.dir, tmpPrefix+l.ID)
	files := filepath.Join(tmp, filesName)
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return Layer{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, removeBuild(tmp))
		}
	}()
	lock, err := lockDir(tmp)
	if err != nil {
		return Layer{}, err
	}
	defer lock.Close()
	if err := os.Mkdir(files, 0o755); err != nil {
		return Layer{}, err
	}
	if err := os.Chmod(files, 0o755); err != nil { // whatever the umask
		return Layer{}, err
	}
	root, err := tree.Open(files)
	if err != nil {
		return Layer{}, err
	}
	err = fill(root)
	root.Close()
	if err != nil {
		return Layer{}, err
	}
	if l.Bytes, l.Inodes, err = Usage(files); err != nil {
		return Layer{}, err
	}
	if err := writeMeta(tmp, l); err != nil {
		return Layer{}, err
	}
	if err := Sync(files); err != nil {
		return Layer{}, err
	}
	if err := os.Rename(tmp, filepath.Join(s.dir, l.ID)); err != nil {
		return Layer{}, err
	}
	if err := syncDir(s.dir); err != nil {
		return Layer{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.layers[l.ID] = l
	return l, nil
}
