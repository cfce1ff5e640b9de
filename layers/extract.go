package layers

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/layers/tree"
)

// ExtractOptions say how to read an archive.
type ExtractOptions struct {
	// Digest is the key of the layer; see Store.Build. "" makes a layer of its own.
	Digest string
	// DiffID, when not "", is what the uncompressed archive must hash to:
	// "sha256:" and hex. Anything else is an error.
	DiffID string
	// Plain takes names that begin with .wh. as they are: the archive is a root
	// file system, not an OCI layer.
	Plain bool
	// Below are the layers this one will lie on, bottom first. A folder that the
	// archive uses without describing it gets the attributes it has there.
	Below []string
}

// Extract makes a layer of a tar archive, compressed or not (see Decompress).
// Owner, mode, times, extended attributes, devices and hard links are kept.
// Whatever the archive holds, nothing outside the layer is touched.
func (s *Store) Extract(ctx context.Context, r io.Reader, o ExtractOptions) (Layer, error) {
	return s.Build(ctx, o.Digest, func(root *tree.Root) error {
		var below []*tree.Root
		for _, id := range o.Below {
			if _, err := s.Get(id); err != nil {
				return err
			}
			b, err := tree.Open(s.Path(id))
			if err != nil {
				return err
			}
			defer b.Close()
			below = append(below, b)
		}
		return unpack(ctx, root, r, o, below)
	})
}

// unpack fills root from an archive.
func unpack(ctx context.Context, root *tree.Root, r io.Reader, o ExtractOptions, below []*tree.Root) error {
	plain, err := Decompress(until(ctx, r))
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	defer plain.Close()
	sum := sha256.New()
	var end zeros
	hashed := io.TeeReader(plain, io.MultiWriter(sum, &end))
	x := extractor{root: root, plain: o.Plain, below: below}
	if err := x.all(tar.NewReader(hashed)); err != nil {
		return fmt.Errorf("extract archive: %w", err)
	}
	// Padding after the end belongs to the hash, and a damaged end must be noticed.
	if _, err := io.Copy(io.Discard, hashed); err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	if o.Plain && end < 2*512 {
		return errors.New("archive has no end mark; it was cut off")
	}
	if got := "sha256:" + hex.EncodeToString(sum.Sum(nil)); o.DiffID != "" && got != o.DiffID {
		return fmt.Errorf("archive hashes to %s, its image says %s; it is damaged: fetch it again", got, o.DiffID)
	}
	return nil
}

// zeros counts the zero bytes at the end of what is written to it. An archive
// ends in two blocks of them; a reader of tar takes one cut between two entries
// for complete.
type zeros int64

func (z *zeros) Write(p []byte) (int, error) {
	i := len(p)
	for i > 0 && p[i-1] == 0 {
		i--
	}
	if i > 0 {
		*z = 0
	}
	*z += zeros(len(p) - i)
	return len(p), nil
}

// readerFunc is a function as a reader.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// until ends a long read when ctx does.
func until(ctx context.Context, r io.Reader) io.Reader {
	return readerFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(p)
	})
}

type extractor struct {
	root  *tree.Root
	plain bool
	below []*tree.Root
	dirs  []dirTime // applied last: filling a folder changes its time
}

type dirTime struct {
	name string
	attr tree.Attr
}

const (
	whiteoutPrefix = ".wh."
	opaqueMarker   = ".wh..wh..opq"
	opaqueXattr    = "trusted.overlay.opaque"
	paxXattr       = "SCHILY.xattr."
)

func (x *extractor) all(t *tar.Reader) error {
	entries := 0
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		entries++
		if err := x.entry(h, t); err != nil {
			return fmt.Errorf("entry %q: %w", h.Name, err)
		}
	}
	if entries == 0 && x.plain {
		return errors.New("it holds no files; is it a tar archive?")
	}
	for _, d := range x.dirs {
		// A later entry may have replaced the folder; then its time is no longer ours.
		st, err := x.root.Lstat(d.name)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue
		}
		if err := x.root.SetAttr(d.name, d.attr); err != nil {
			return err
		}
	}
	return nil
}

func (x *extractor) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	name := tree.Clean(h.Name)
	a, err := attrOf(h)
	if err != nil {
		return err
	}
	if name == "." {
		if h.Typeflag != tar.TypeDir {
			return errors.New("the root of an archive must be a folder")
		}
		x.dirs = append(x.dirs, dirTime{name, a})
		return x.xattrs(name, h)
	}
	if err := x.parents(path.Dir(name), 0); err != nil {
		return err
	}
	if base := path.Base(name); !x.plain && strings.HasPrefix(base, whiteoutPrefix) {
		return x.whiteout(path.Dir(name), base)
	}
	hides, err := x.makeRoom(name, h)
	if err != nil {
		return err
	}
	if err := x.create(name, h, a, content); err != nil {
		return err
	}
	if hides && h.Typeflag == tar.TypeDir {
		if err := x.root.SetXattr(name, opaqueXattr, []byte("y")); err != nil {
			return err
		}
	}
	if h.Typeflag == tar.TypeLink {
		return nil // the attributes are those of the first name
	}
	return x.xattrs(name, h)
}

func attrOf(h *tar.Header) (tree.Attr, error) {
	const maxID = 1<<32 - 2 // the last one means "do not change" to chown(2)
	if h.Uid < 0 || h.Uid > maxID || h.Gid < 0 || h.Gid > maxID {
		return tree.Attr{}, fmt.Errorf("owner %d:%d is out of range", h.Uid, h.Gid)
	}
	a := tree.Attr{Mode: uint32(h.Mode & 0o7777), UID: h.Uid, GID: h.Gid, ModTime: h.ModTime}
	if s := a.ModTime.Unix(); s < 0 || s > 1<<34-1 { // what ext4 can hold
		a.ModTime = time.Unix(0, 0)
	}
	return a, nil
}

// makeRoom removes what an earlier entry left under the name, unless both are
// folders. hides tells that it was a whiteout: a folder in its place must go on
// hiding the one below.
func (x *extractor) makeRoom(name string, h *tar.Header) (hides bool, err error) {
	st, err := x.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR && h.Typeflag == tar.TypeDir {
		return false, nil
	}
	if h.Typeflag == tar.TypeLink && tree.Clean(h.Linkname) == name {
		return false, nil
	}
	return isWhiteout(st), x.root.RemoveAll(name)
}

func isWhiteout(st unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0
}

func (x *extractor) create(name string, h *tar.Header, a tree.Attr, content io.Reader) error {
	dev := unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor))
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse, tar.TypeCont:
		return x.root.Create(name, a, content)
	case tar.TypeDir:
		x.dirs = append(x.dirs, dirTime{name, a})
		if err := x.root.Mkdir(name, a); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case tar.TypeSymlink:
		return x.root.Symlink(h.Linkname, name, a)
	case tar.TypeLink:
		if tree.Clean(h.Linkname) == name {
			return nil
		}
		return x.root.Link(h.Linkname, name)
	case tar.TypeChar:
		return x.root.Mknod(name, unix.S_IFCHR, dev, a)
	case tar.TypeBlock:
		return x.root.Mknod(name, unix.S_IFBLK, dev, a)
	case tar.TypeFifo:
		return x.root.Mknod(name, unix.S_IFIFO, 0, a)
	}
	return fmt.Errorf("entries of type %q are not known", h.Typeflag)
}

// whiteout records that dir/base[len(".wh."):], or all that is in dir, is
// removed from the layers below. What this archive itself puts there stays,
// whichever comes first.
func (x *extractor) whiteout(dir, base string) error {
	if base == opaqueMarker {
		return x.root.SetXattr(dir, opaqueXattr, []byte("y"))
	}
	if strings.HasPrefix(base, whiteoutPrefix+whiteoutPrefix) {
		return nil // bookkeeping of an older union file system
	}
	gone := strings.TrimPrefix(base, whiteoutPrefix)
	if gone == "" || gone == "." || gone == ".." {
		return errors.New("a whiteout must name a file")
	}
	name := path.Join(dir, gone)
	st, err := x.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return x.root.Mknod(name, unix.S_IFCHR, 0, tree.Attr{})
	case err != nil:
		return err
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return x.root.SetXattr(name, opaqueXattr, []byte("y"))
	}
	return nil
}

// parents makes the folders of a name that the archive has not described, with
// the attributes they have in the layers below. hops counts links followed.
func (x *extractor) parents(dir string, hops int) error {
	st, err := x.root.Stat(dir)
	switch {
	case err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR:
		return nil
	case err == nil && isWhiteout(st):
		// What it hides stays hidden below the folder that takes its place.
		if err := x.root.RemoveAll(dir); err != nil {
			return err
		}
		if err := x.root.Mkdir(dir, tree.Attr{Mode: 0o755}); err != nil {
			return err
		}
		return x.root.SetXattr(dir, opaqueXattr, []byte("y"))
	case err == nil:
		return fmt.Errorf("%s is not a folder", dir)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if err := x.parents(path.Dir(dir), hops); err != nil {
		return err
	}
	if _, err := x.root.Lstat(dir); err == nil {
		return x.linkTarget(dir, hops) // there, but Stat found nothing: a link
	}
	a := tree.Attr{Mode: 0o755}
	for i := len(x.below) - 1; i >= 0; i-- {
		if st, err := x.below[i].Lstat(dir); err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
			a = tree.Attr{Mode: st.Mode & 0o7777, UID: int(st.Uid), GID: int(st.Gid), ModTime: time.Unix(st.Mtim.Unix())}
			break
		}
	}
	return x.root.Mkdir(dir, a)
}

// linkTarget makes the folder that a link leads to when only a layer below has it.
func (x *extractor) linkTarget(link string, hops int) error {
	text, err := x.root.Readlink(link)
	if err != nil {
		return err
	}
	if !path.IsAbs(text) {
		text = path.Join(path.Dir(link), text)
	}
	if hops < 16 {
		if err := x.parents(tree.Clean(text), hops+1); err != nil {
			return err
		}
	}
	if _, err := x.root.Stat(link); err != nil {
		return fmt.Errorf("the link %s leads nowhere: %w", link, err)
	}
	return nil
}

// xattrs sets the extended attributes of an entry. Those that steer overlayfs
// are dropped: an archive must not be able to redirect a name.
func (x *extractor) xattrs(name string, h *tar.Header) error {
	for record, value := range h.PAXRecords {
		attr, ok := strings.CutPrefix(record, paxXattr)
		if !ok || strings.HasPrefix(attr, "trusted.overlay.") || strings.HasPrefix(attr, "user.overlay.") {
			continue
		}
		if err := x.root.SetXattr(name, attr, []byte(value)); err != nil {
			if errors.Is(err, unix.EOPNOTSUPP) {
				continue // this file system or kind of entry has none of that namespace
			}
			return err
		}
	}
	return nil
}
