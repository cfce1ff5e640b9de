package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
)

// socketName is the control socket of an instance, in its folder.
const socketName = "control.sock"

// inFolder calls f with a short path of the control socket in dir: those of sockets
// are limited to some 100 bytes.
func inFolder(dir string, f func(path string) error) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(filepath.Join("/proc/self/fd", strconv.Itoa(fd), socketName))
}

// controlSocket makes the socket at which an instance's kernel will listen.
func controlSocket(dir string) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := inFolder(dir, func(path string) error { return unix.Bind(fd, &unix.SockaddrUnix{Name: path}) }); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return os.NewFile(uintptr(fd), socketName), nil
}

// connect opens the control connection of an instance.
func connect(dir string) (*urpc.Client, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := inFolder(dir, func(path string) error { return unix.Connect(fd, &unix.SockaddrUnix{Name: path}) }); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%w: control socket: %w", errGone, err)
	}
	// gVisor's socket has an event descriptor beside fd that a process started
	// meanwhile would inherit, and that process is another instance's.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	s, err := unet.NewSocket(fd)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	unix.CloseOnExec(int(reflect.ValueOf(s).Elem().FieldByName("efd").FieldByName("fd").Int()))
	return urpc.NewClient(s), nil
}
