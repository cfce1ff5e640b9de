package daemon

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// The test program is its own second daemon: with this variable set it takes a
// lock, says so and waits to be killed.
const holdLock = "DAEMON_TEST_HOLD_LOCK"

func TestMain(m *testing.M) {
	if path := os.Getenv(holdLock); path != "" {
		if _, err := acquire(path); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		select {}
	}
	os.Exit(m.Run())
}

func TestOneDaemonForADataFolder(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, LockName)
	if pid, err := Holder(dir); pid != 0 || err != nil {
		t.Errorf("nobody holds it: %d, %v", pid, err)
	}
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), holdLock+"="+path)
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer other.Process.Kill() //nolint:errcheck // ended below, unless the test failed before
	said := make([]byte, 5)
	if _, err := out.Read(said); err != nil || !strings.HasPrefix(string(said), "held") {
		t.Fatalf("the other says %q, %v", said, err)
	}
	_, err = acquire(path)
	want := "is used by another daemon (pid " + strconv.Itoa(other.Process.Pid) + ")"
	if sandbox.KindOf(err) != sandbox.Conflict || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want conflict with %q", err, want)
	}
	if pid, err := Holder(dir); pid != other.Process.Pid || err != nil {
		t.Errorf("holder %d, %v; want %d", pid, err, other.Process.Pid)
	}
	// However it ends, the folder is free again.
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	if pid, err := Holder(dir); pid != 0 || err != nil {
		t.Errorf("after its end: %d, %v", pid, err)
	}
	f, err := acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if pid := readPID(f); pid != os.Getpid() {
		t.Errorf("the lock names pid %d, want %d", pid, os.Getpid())
	}
}

func TestSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test needs root, as the daemon does")
	}
	for _, tt := range []struct {
		group        string
		socket, data os.FileMode
	}{
		{"", 0o600, 0o700},
		{"nogroup", 0o660, 0o710},
	} {
		dir, err := os.MkdirTemp("", "hf")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		path := filepath.Join(dir, "s")
		for range 2 { // the second time there is one of an earlier daemon
			l, err := listenUnix(t.Context(), path, tt.group)
			if err != nil {
				t.Fatal(err)
			}
			l.(*net.UnixListener).SetUnlinkOnClose(false)
			info, err := os.Stat(path)
			if err != nil || info.Mode().Perm() != tt.socket {
				t.Errorf("group %q: socket %v, %v", tt.group, info.Mode(), err)
			}
			_ = l.Close()
		}
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != tt.data {
			t.Errorf("group %q: data folder %v, %v", tt.group, info.Mode(), err)
		}
	}
	if _, err := listenUnix(t.Context(), filepath.Join(t.TempDir(), "s"), "no-such-group"); err == nil || !strings.Contains(err.Error(), `socket_group "no-such-group"`) {
		t.Errorf("unknown group: %v", err)
	}
}

func TestListenAddressInUse(t *testing.T) {
	l, err := listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = listen(t.Context(), l.Addr().String())
	if sandbox.KindOf(err) != sandbox.Conflict || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("error %v", err)
	}
}

func TestStreamsEndWhenTheDaemonStops(t *testing.T) {
	stopping, stop := context.WithCancel(context.Background())
	began := make(chan struct{})
	ended := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		r, cancel := endWith(stopping, r)
		defer cancel()
		close(began)
		<-r.Context().Done()
		close(ended)
	}))
	defer srv.Close()
	go func() {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, srv.URL, nil)
		if err != nil {
			return
		}
		if res, err := http.DefaultClient.Do(req); err == nil {
			_ = res.Body.Close()
		}
	}()
	<-began
	select {
	case <-ended:
		t.Fatal("it ended by itself")
	default:
	}
	stop()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		t.Fatal("it goes on")
	}
}
