package driver

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDescriptorsCloseOnExec: whatever the driver opens for one instance must not be
// inherited by a process of another.
func TestDescriptorsCloseOnExec(t *testing.T) {
	inheritNothing() // this test has parents, too
	dir := t.TempDir()
	socket, err := controlSocket(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := unix.Listen(int(socket.Fd()), 1); err != nil {
		t.Fatal(err)
	}
	ctl, err := connect(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	l, err := net.ListenPacket("udp", "127.0.0.1:0") // the poller's own are fine too
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= 2 {
			continue
		}
		target, _ := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("descriptor %d, %s, would be inherited", fd, target)
		}
	}
}

func TestConnectNobody(t *testing.T) {
	for _, dir := range []string{t.TempDir(), filepath.Join(t.TempDir(), "missing")} {
		if c, err := connect(dir); err == nil {
			c.Close()
			t.Errorf("connected to nobody in %s", dir)
		}
	}
}

// TestLongPath: a control socket works however deep its folder is.
func TestLongPath(t *testing.T) {
	dir := t.TempDir()
	for range 6 {
		dir = filepath.Join(dir, "a-folder-with-a-rather-long-name-so-that-paths-grow")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	socket, err := controlSocket(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if err := unix.Listen(int(socket.Fd()), 1); err != nil {
		t.Fatal(err)
	}
	ctl, err := connect(dir)
	if err != nil {
		t.Fatal(err)
	}
	ctl.Close()
}
