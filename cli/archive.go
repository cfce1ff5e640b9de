package cli

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// packFolder writes what is in dir as a tar archive. Sockets and devices are
// left out.
func packFolder(w io.Writer, dir string) error {
	t := tar.NewWriter(w)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		return packEntry(t, root, name, d)
	})
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return t.Close()
}

func packEntry(t *tar.Writer, root *os.Root, name string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if link, err = root.Readlink(name); err != nil {
			return err
		}
	case !info.IsDir() && !info.Mode().IsRegular():
		return nil
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	h.Name = name
	if info.IsDir() {
		h.Name += "/"
	}
	// Owners here mean nothing inside.
	h.Uid, h.Gid, h.Uname, h.Gname = 0, 0, "", ""
	if err := t.WriteHeader(h); err != nil || !info.Mode().IsRegular() {
		return err
	}
	f, err := root.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(t, f)
	return err
}

// unpackFolder unpacks an archive into dir. It comes from inside a sandbox, so
// nothing in it may reach out of dir: os.Root refuses that, links included.
func unpackFolder(r io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer root.Close()
	for t := tar.NewReader(r); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			// tar pads its output; what follows the end must be read, or it complains.
			_, err := io.Copy(io.Discard, r)
			return err
		}
		if err != nil {
			return fmt.Errorf("copy: archive from the sandbox: %w", err)
		}
		if err := unpackEntry(root, h, t); err != nil {
			return fmt.Errorf("copy: %w", err)
		}
	}
}

func unpackEntry(root *os.Root, h *tar.Header, content io.Reader) error {
	name := filepath.Clean(filepath.FromSlash(h.Name))
	mode := h.FileInfo().Mode().Perm()
	if name != "." {
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
	}
	switch h.Typeflag {
	case tar.TypeDir:
		if name == "." {
			return nil
		}
		if err := root.Mkdir(name, mode|0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case tar.TypeReg:
		// What was there goes first: writing through a link would change its target.
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			return err
		}
		if _, err = io.Copy(f, content); err != nil {
			return errors.Join(err, f.Close())
		}
		return f.Close()
	case tar.TypeSymlink, tar.TypeLink:
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if h.Typeflag == tar.TypeSymlink {
			return root.Symlink(h.Linkname, name)
		}
		return root.Link(filepath.Clean(h.Linkname), name)
	}
	return nil // devices and pipes are not copied
}
