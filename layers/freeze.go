package layers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Freeze turns the folder upper, which no mount may be writing to, into the
// layer id by renaming it: the cost does not depend on its size. The caller makes
// the id with NewID and records it before the call, so that after a crash at any
// point the same call again gives the same layer: when upper is gone and the
// layer exists, that is the answer. Both must be on one file system.
//
// The new layer is meant to lie directly above the layers that upper was mounted
// over: it names their files where folders were renamed.
func (s *Store) Freeze(ctx context.Context, id, upper string) (Layer, error) {
	if !ValidID(id) {
		return Layer{}, fmt.Errorf("freeze %s: %q is not a layer id", upper, id)
	}
	if err := ctx.Err(); err != nil {
		return Layer{}, fmt.Errorf("freeze %s: %w", upper, err)
	}
	if l, err := s.Get(id); err == nil {
		if _, err := os.Lstat(upper); errors.Is(err, fs.ErrNotExist) {
			return l, nil
		}
		return Layer{}, fmt.Errorf("freeze %s: layer %s exists already", upper, id)
	}
	l := Layer{ID: id, Created: time.Now().UTC(), Bytes: -1, Inodes: -1}
	dir := filepath.Join(s.dir, id)
	// A folder without fs is one that an earlier try left before its rename.
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return Layer{}, fmt.Errorf("freeze %s: %w", upper, err)
	}
	if err := os.Rename(upper, filepath.Join(dir, filesName)); err != nil {
		os.Remove(dir)
		if errors.Is(err, unix.EXDEV) {
			return Layer{}, fmt.Errorf("freeze: %s and the layer store %s are on different file systems; keep the data folder on one: %w", upper, s.dir, err)
		}
		return Layer{}, fmt.Errorf("freeze: %w", err)
	}
	err := errors.Join(syncDir(filepath.Dir(upper)), s.add(l), syncDir(s.dir))
	if err != nil {
		return Layer{}, fmt.Errorf("freeze %s: %w", upper, err)
	}
	return l, nil
}

// Measure fills in the size of a frozen layer, which takes time in proportion to
// its number of files, and remembers it. A layer with a size is returned as it is.
func (s *Store) Measure(ctx context.Context, id string) (Layer, error) {
	l, err := s.Get(id)
	if err != nil || l.Bytes >= 0 {
		return l, err
	}
	if err := ctx.Err(); err != nil {
		return Layer{}, fmt.Errorf("measure layer %s: %w", id, err)
	}
	if l.Bytes, l.Inodes, err = Usage(s.Path(id)); err != nil {
		return Layer{}, fmt.Errorf("measure layer %s: %w", id, err)
	}
	if err := s.add(l); err != nil {
		return Layer{}, fmt.Errorf("measure layer %s: %w", id, err)
	}
	return l, nil
}
