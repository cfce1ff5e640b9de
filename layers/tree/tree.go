// Package tree edits a folder as if it were the root of a file system.
//
// Names are paths inside that root. They are resolved the way a process that is
// chrooted there would resolve them: ".." stops at the root and absolute
// symbolic links start from it. The kernel does this (openat2 with
// RESOLVE_IN_ROOT), so a hostile tree cannot make an operation leave the folder,
// not even by changing a link while it runs. The last component is never
// followed unless a method says so.
package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Root is an open folder. It is safe for concurrent use.
type Root struct {
	dir  string
	file *os.File
}

// Open opens an existing folder.
func Open(dir string) (*Root, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return &Root{dir: dir, file: os.NewFile(uintptr(fd), dir)}, nil
}

// Close releases the folder.
func (r *Root) Close() error { return r.file.Close() }

// Dir is the folder on the host that Open was given.
func (r *Root) Dir() string { return r.dir }

// Clean gives the one form of a name: relative to the root, without "..", "."
// for the root itself.
func Clean(name string) string {
	c := path.Clean("/" + name)[1:]
	if c == "" {
		return "."
	}
	return c
}

// Attr is what every kind of entry has besides its content.
type Attr struct {
	Mode    uint32 // permission bits with setuid, setgid and sticky, as in chmod(2)
	UID     int
	GID     int
	ModTime time.Time // zero leaves what the kernel set
}

// openIn resolves a whole name inside the root, following links.
func (r *Root) openIn(name string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags) | unix.O_CLOEXEC,
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(int(r.file.Fd()), name, &how)
		// EAGAIN: a concurrent rename made a ".." unsafe to resolve; the kernel asks for another try.
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		return fd, err
	}
}

// at opens the folder that holds name and passes it on with the last component.
// For the root itself that is the root and ".".
func (r *Root) at(op, name string, do func(dir int, base string) error) error {
	name = Clean(name)
	if name == "." {
		return wrap(op, name, do(int(r.file.Fd()), "."))
	}
	dir, base := path.Split(name)
	if dir == "" {
		return wrap(op, name, do(int(r.file.Fd()), base))
	}
	fd, err := r.openIn(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return wrap(op, name, err)
	}
	defer unix.Close(fd)
	return wrap(op, name, do(fd, base))
}

func wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// Lstat describes name itself. fs.ErrNotExist when it, or a folder on its way, is absent.
func (r *Root) Lstat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := r.at("stat", name, func(dir int, base string) error {
		return unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	return st, err
}

// Stat describes what name leads to, following links inside the root.
func (r *Root) Stat(name string) (unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := r.openIn(Clean(name), unix.O_PATH, 0)
	if err != nil {
		return st, wrap("stat", name, err)
	}
	defer unix.Close(fd)
	return st, wrap("stat", name, unix.Fstat(fd, &st))
}

// Readlink gives the text of a symbolic link.
func (r *Root) Readlink(name string) (string, error) {
	var text string
	err := r.at("readlink", name, func(dir int, base string) error {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, base, buf)
		if err == nil {
			text = string(buf[:n])
		}
		return err
	})
	return text, err
}

// Open opens a regular file for reading, following links inside the root.
func (r *Root) Open(name string) (*os.File, error) {
	name = Clean(name)
	// O_NONBLOCK: a fifo of that name must not hang us; it is refused below.
	fd, err := r.openIn(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, wrap("open", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, wrap("open", name, errors.Join(err, errors.New("not a regular file")))
	}
	return os.NewFile(uintptr(fd), name), nil
}

// ReadFile reads at most limit bytes of a regular file; more is an error.
func (r *Root) ReadFile(name string, limit int64) ([]byte, error) {
	f, err := r.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = wrap("read", name, fmt.Errorf("file is larger than %d bytes", limit))
	}
	return data, err
}

// ReadDir gives the names in a folder, following links to it.
func (r *Root) ReadDir(name string) ([]string, error) {
	name = Clean(name)
	fd, err := r.openIn(name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, wrap("open", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return f.Readdirnames(-1)
}

// Mkdir makes a folder with the attributes. fs.ErrExist when name is taken.
func (r *Root) Mkdir(name string, a Attr) error {
	return r.at("mkdir", name, func(dir int, base string) error {
		if err := unix.Mkdirat(dir, base, 0o700); err != nil {
			return err
		}
		return setAttr(dir, base, a, false)
	})
}

// MkdirAll makes a folder and those above it; existing ones stay as they are.
func (r *Root) MkdirAll(name string, a Attr) error {
	name = Clean(name)
	if st, err := r.Stat(name); err == nil {
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return wrap("mkdir", name, unix.ENOTDIR)
		}
		return nil
	}
	if err := r.MkdirAll(path.Dir(name), a); err != nil {
		return err
	}
	return r.Mkdir(name, a)
}

// Create makes a regular file with what content gives. fs.ErrExist when name is taken.
func (r *Root) Create(name string, a Attr, content io.Reader) error {
	return r.at("create", name, func(dir int, base string) error {
		fd, err := unix.Openat(dir, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), base)
		// Hide WriteTo and ReadFrom: the plain loop with one large buffer is the fast path here.
		_, err = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{content}, make([]byte, 256<<10))
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		return setAttr(dir, base, a, false)
	})
}

// Replace is Create that first removes what has the name, a symbolic link
// itself rather than what it leads to.
func (r *Root) Replace(name string, a Attr, content io.Reader) error {
	if err := r.RemoveAll(name); err != nil {
		return err
	}
	return r.Create(name, a, content)
}

// Symlink makes a symbolic link with that text.
func (r *Root) Symlink(text, name string, a Attr) error {
	return r.at("symlink", name, func(dir int, base string) error {
		if err := unix.Symlinkat(text, dir, base); err != nil {
			return err
		}
		return setAttr(dir, base, a, true)
	})
}

// Link gives old, which is not followed, a second name.
func (r *Root) Link(old, name string) error {
	return r.at("link", name, func(dir int, base string) error {
		return r.at("link", old, func(oldDir int, oldBase string) error {
			return unix.Linkat(oldDir, oldBase, dir, base, 0)
		})
	})
}

// Mknod makes a device, fifo or socket; kind is one of unix.S_IFCHR, S_IFBLK,
// S_IFIFO and S_IFSOCK.
func (r *Root) Mknod(name string, kind uint32, dev uint64, a Attr) error {
	return r.at("mknod", name, func(dir int, base string) error {
		if err := unix.Mknodat(dir, base, kind|0o600, int(dev)); err != nil {
			return err
		}
		return setAttr(dir, base, a, false)
	})
}

// SetAttr changes the attributes of name itself.
func (r *Root) SetAttr(name string, a Attr) error {
	return r.at("chmod", name, func(dir int, base string) error {
		var st unix.Stat_t
		if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		return setAttr(dir, base, a, st.Mode&unix.S_IFMT == unix.S_IFLNK)
	})
}

// setAttr changes owner before mode, because chown clears setuid, and the time
// last. The caller knows whether base is a link, whose mode cannot be changed.
func setAttr(dir int, base string, a Attr, link bool) error {
	if err := unix.Fchownat(dir, base, a.UID, a.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("owner %d:%d: %w", a.UID, a.GID, err)
	}
	if !link {
		// fchmodat(2) follows links (it has no flags before Linux 6.6). The caller made
		// or looked at the entry just now: it is none.
		if err := unix.Fchmodat(dir, base, a.Mode&0o7777, 0); err != nil {
			return fmt.Errorf("mode %o: %w", a.Mode, err)
		}
	}
	return setTime(dir, base, a.ModTime)
}

func setTime(dir int, base string, t time.Time) error {
	if t.IsZero() {
		return nil
	}
	ts := unix.NsecToTimespec(0)
	ts.Sec, ts.Nsec = t.Unix(), int64(t.Nanosecond())
	err := unix.UtimesNanoAt(dir, base, []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("time %s: %w", t, err)
	}
	return nil
}

// SetXattr sets an extended attribute of name itself.
func (r *Root) SetXattr(name, attr string, value []byte) error {
	return r.at("setxattr "+attr, name, func(dir int, base string) error {
		return unix.Lsetxattr(procPath(dir, base), attr, value, 0)
	})
}

// Xattr gives an extended attribute of name itself; unix.ENODATA when not set.
func (r *Root) Xattr(name, attr string) ([]byte, error) {
	var value []byte
	err := r.at("getxattr "+attr, name, func(dir int, base string) error {
		buf := make([]byte, 64<<10) // the kernel's own limit for a value
		n, err := unix.Lgetxattr(procPath(dir, base), attr, buf)
		if err == nil {
			value = buf[:n]
		}
		return err
	})
	return value, err
}

// procPath names an entry through its folder's descriptor, for the calls that
// have no *at form. The l…xattr calls do not follow the last component.
func procPath(dir int, base string) string {
	return "/proc/self/fd/" + strconv.Itoa(dir) + "/" + base
}

// RemoveAll removes name and what is below it; absent is no error.
func (r *Root) RemoveAll(name string) error {
	err := r.at("remove", name, removeAt)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func removeAt(dir int, base string) error {
	err := unix.Unlinkat(dir, base, 0)
	if !errors.Is(err, unix.EISDIR) {
		return err
	}
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := removeAt(fd, n); err != nil {
			return fmt.Errorf("%s: %w", n, err)
		}
	}
	return unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
}
