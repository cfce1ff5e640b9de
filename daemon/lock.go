package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/sandbox"
)

// LockName is the file in a data folder that its daemon holds locked. It says
// the daemon's pid.
const LockName = "lock"

// acquire takes the lock of a data folder for as long as the file stays open.
// The kernel gives it back when the process ends in any way.
func acquire(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data folder lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil { //nolint:gosec // a file descriptor fits
		pid := readPID(f)
		_ = f.Close() // it was only looked at
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, sandbox.Errorf(sandbox.Conflict, "data folder "+filepath.Dir(path), "is used by another daemon (pid %d)", pid).
				WithNext("`holdfast down` stops it; or choose another folder with --data or HOLDFAST_DATA")
		}
		return nil, fmt.Errorf("data folder lock: %w", err)
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		if err == nil {
			return f, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("data folder lock %s cannot be written: %w", path, err), f.Close())
}

// Holder gives the pid of the daemon that holds a data folder, 0 if none does.
func Holder(data string) (int, error) {
	f, err := os.Open(filepath.Join(data, LockName))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("data folder lock: %w", err)
	}
	defer f.Close()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); { //nolint:gosec // a file descriptor fits
	case errors.Is(err, unix.EWOULDBLOCK):
		return readPID(f), nil
	case err != nil:
		return 0, fmt.Errorf("data folder lock: %w", err)
	}
	return 0, nil
}

func readPID(f *os.File) int {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 32))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(b))) // a daemon that starts this moment has not written it yet: 0
	return pid
}
