package layers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/layers/tree"
)

// Where the guest layer puts what every sandbox needs.
const (
	GuestPath  = "/.holdfast/guest" // the guest program, pid 1
	GuestShare = "/.holdfast/host"  // empty folder: mount point of the host's share
)

// epoch dates what we make ourselves, so that equal content gives equal layers.
var epoch = time.Unix(0, 0)

// Guest makes the layer that is put on top of every template: the guest program
// from the host's file guest, the mount point of the share, and a folder in /tmp,
// because the runtime covers an empty /tmp with a memory file system that would
// then be part of every memory image. One program makes one layer, however often
// it is called.
func (s *Store) Guest(ctx context.Context, guest string) (Layer, error) {
	f, err := os.Open(guest)
	if err != nil {
		return Layer{}, fmt.Errorf("make guest layer: %w", err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return Layer{}, fmt.Errorf("make guest layer: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return Layer{}, fmt.Errorf("make guest layer: %w", err)
	}
	key := "guest:1:sha256:" + hex.EncodeToString(sum.Sum(nil))
	return s.Build(ctx, key, func(root *tree.Root) error {
		folder := tree.Attr{Mode: 0o755, ModTime: epoch}
		sticky := tree.Attr{Mode: 0o1777, ModTime: epoch}
		for _, d := range []struct {
			name string
			attr tree.Attr
		}{{".holdfast", folder}, {GuestShare, folder}, {"tmp", sticky}, {"tmp/.X11-unix", sticky}} {
			if err := root.Mkdir(d.name, d.attr); err != nil {
				return err
			}
		}
		return root.Create(GuestPath, folder, f)
	})
}

// FromDir makes a layer with a copy of a folder of the host: kinds, owners,
// modes, times and hard links are kept, sockets left out.
func (s *Store) FromDir(ctx context.Context, dir, digest string) (Layer, error) {
	return s.Build(ctx, digest, func(root *tree.Root) error {
		c := copier{root: root, from: dir, names: map[fileKey]string{}}
		if err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
			if err = firstError(err, ctx.Err()); err != nil {
				return err
			}
			return c.entry(p)
		}); err != nil {
			return fmt.Errorf("copy %s: %w", dir, err)
		}
		for _, d := range c.dirs { // last: filling a folder changes its time
			if err := root.SetAttr(d.name, d.attr); err != nil {
				return err
			}
		}
		return nil
	})
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

type fileKey struct{ dev, ino uint64 }

type copier struct {
	root  *tree.Root
	from  string
	names map[fileKey]string // first name of each file with several
	dirs  []dirTime
}

func (c *copier) entry(p string) error {
	name, err := filepath.Rel(c.from, p)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: p, Err: err}
	}
	a := tree.Attr{Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), ModTime: time.Unix(st.Mtim.Unix())}
	kind := st.Mode & unix.S_IFMT
	if kind != unix.S_IFDIR && st.Nlink > 1 {
		key := fileKey{st.Dev, st.Ino}
		if first, ok := c.names[key]; ok {
			return c.root.Link(first, name)
		}
		c.names[key] = name
	}
	switch kind {
	case unix.S_IFDIR:
		c.dirs = append(c.dirs, dirTime{name, a})
		if name == "." {
			return nil
		}
		return c.root.Mkdir(name, a)
	case unix.S_IFREG:
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		return c.root.Create(name, a, f)
	case unix.S_IFLNK:
		text, err := os.Readlink(p)
		if err != nil {
			return err
		}
		return c.root.Symlink(text, name, a)
	case unix.S_IFCHR, unix.S_IFBLK, unix.S_IFIFO:
		return c.root.Mknod(name, kind, st.Rdev, a)
	}
	return nil
}
