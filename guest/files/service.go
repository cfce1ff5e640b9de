// Package files is the sandbox's file system for clients: E2B's
// filesystem.Filesystem service and the /files routes.
//
// All work is done with the credentials of the request's user, so the kernel
// decides. One thing is done for the user that they could not do themselves, as
// E2B does: a file or folder that does not exist yet may be created in a folder
// the user can enter but not write (e.g. /app/main.py); it then belongs to them.
// Existing files, and folders closed to the user, are never touched that way.
package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/account"
	"github.com/holdfast-run/holdfast/guest/identity"
	"github.com/holdfast-run/holdfast/guest/proto/filesystempb/filesystempbconnect"
)

// Service serves files.
type Service struct {
	accounts *account.Database
	identity *identity.Store

	mu       sync.Mutex
	watchers map[string]*watcher
}

// NewService makes the service.
func NewService(accounts *account.Database, id *identity.Store) *Service {
	return &Service{accounts: accounts, identity: id, watchers: map[string]*watcher{}}
}

// resolve makes a client's path absolute.
func (s *Service) resolve(u account.User, path string) (string, error) {
	abs, err := u.Resolve(path, s.identity.Workdir())
	if err != nil {
		return "", connect.NewError(connect.CodeInvalidArgument, err)
	}
	return abs, nil
}

// classify gives err, met while doing something with path, its code.
func classify(path string, err error) *connect.Error {
	if ce := new(connect.Error); errors.As(err, &ce) {
		return ce
	}
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	var le *os.LinkError
	if errors.As(err, &le) {
		err = le.Err
	}
	wrap := func(code connect.Code, text string) *connect.Error {
		return connect.NewError(code, fmt.Errorf("path '%s' %s: %w", path, text, err))
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return wrap(connect.CodeNotFound, "does not exist")
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EISDIR):
		return wrap(connect.CodeInvalidArgument, "is a directory that is in the way")
	case errors.Is(err, fs.ErrExist):
		return wrap(connect.CodeAlreadyExists, "already exists")
	case errors.Is(err, fs.ErrPermission):
		return wrap(connect.CodePermissionDenied, "is not open to this user; name another user, e.g. root")
	case errors.Is(err, syscall.ENOTDIR):
		return wrap(connect.CodeInvalidArgument, "goes through a file that is not a directory")
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return wrap(connect.CodeResourceExhausted, "cannot be written: the disk is full; remove files or ask for a larger disk")
	case errors.Is(err, syscall.ENXIO):
		return wrap(connect.CodeInvalidArgument, "is not a regular file")
	case errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP), errors.Is(err, syscall.EINVAL):
		return wrap(connect.CodeInvalidArgument, "cannot be used")
	}
	return wrap(connect.CodeInternal, "failed")
}

// makeDirs creates path and its missing parents, owned by u.
func makeDirs(u account.User, path string) error {
	err := u.Do(func() error { return os.MkdirAll(path, 0o755) })
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	if closed := u.Do(func() error { return reachable(path) }); closed != nil {
		return closed
	}
	return makeDirsAsRoot(u, path)
}

// reachable tells whether the nearest existing parent of path is a folder that
// the calling thread's user can enter.
func reachable(path string) error {
	for dir := path; ; dir = filepath.Dir(dir) {
		fi, err := os.Stat(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist) && dir != "/":
			continue
		case err != nil:
			return err
		case !fi.IsDir():
			return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
		}
		_, err = os.Lstat(dir + "/.") // looking inside takes the right to enter
		return err
	}
}

func makeDirsAsRoot(u account.User, path string) error {
	if fi, err := os.Stat(path); err == nil && fi.IsDir() {
		return nil
	}
	if err := makeDirsAsRoot(u, filepath.Dir(path)); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	return os.Lchown(path, int(u.UID), int(u.GID))
}

// create opens path for writing, emptied, with its parents made. existed tells
// whether there was a file before.
func create(u account.User, path string) (f *os.File, existed bool, err error) {
	// O_NONBLOCK: a FIFO without a reader must not hold the request.
	const flags = os.O_WRONLY | os.O_TRUNC | syscall.O_NONBLOCK
	open := func(extra int) error {
		return u.Do(func() (err error) {
			f, err = os.OpenFile(path, flags|extra, 0o666)
			return err
		})
	}
	if err := open(0); !errors.Is(err, fs.ErrNotExist) {
		return f, true, err
	}
	if err := makeDirs(u, filepath.Dir(path)); err != nil {
		return nil, false, err
	}
	err = open(os.O_CREATE)
	if !errors.Is(err, fs.ErrPermission) {
		return f, false, err
	}
	if closed := u.Do(func() error { return reachable(filepath.Dir(path)) }); closed != nil {
		return nil, false, closed
	}
	f, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL|syscall.O_NOFOLLOW, 0o644)
	if err != nil {
		return nil, false, err
	}
	if err := f.Chown(int(u.UID), int(u.GID)); err != nil {
		_ = f.Close()
		return nil, false, err
	}
	return f, false, nil
}

var _ filesystempbconnect.FilesystemHandler = (*Service)(nil)
