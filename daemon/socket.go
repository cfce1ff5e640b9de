package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// listenUnix opens the daemon's socket for root, and for group unless it is "".
// A socket that an earlier daemon left is replaced: the data folder's lock says
// that no other daemon lives.
func listenUnix(ctx context.Context, path, group string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("socket of an earlier daemon: %w", err)
	}
	gid, mode := -1, os.FileMode(0o600)
	if group != "" {
		g, err := user.LookupGroup(group)
		if err != nil {
			return nil, fmt.Errorf("socket_group %q: %w; create it with groupadd", group, err)
		}
		if gid, err = strconv.Atoi(g.Gid); err != nil {
			return nil, fmt.Errorf("socket_group %q has the gid %q: %w", group, g.Gid, err)
		}
		mode = 0o660
	}
	// Nobody may get in between bind and chmod. The mask is the process's, but no
	// other file is made while a daemon starts.
	old := unix.Umask(0o177)
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	err = os.Chown(path, -1, gid)
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err == nil {
		err = guard(filepath.Dir(path), gid)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket %s: %w", path, err), l.Close())
	}
	return l, nil
}

// guard closes the data folder, whose layers hold set-uid programs, to everyone
// but root; members of the socket's group may pass through it.
func guard(dir string, gid int) error {
	mode := os.FileMode(0o700)
	if gid >= 0 {
		mode = 0o710
	}
	if err := os.Chown(dir, -1, gid); err != nil {
		return err
	}
	return os.Chmod(dir, mode)
}
