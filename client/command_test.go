package client_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/sandbox"
)

func TestCommandOutput(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	out, err := w.sb.Command(ctx, "echo", "a  b", "$HOME").Output()
	if err != nil || string(out) != "a  b $HOME\n" {
		t.Errorf("%q, %v", out, err)
	}
	out, err = w.sb.Command(ctx, "sh", "-c", "echo out; echo err >&2").CombinedOutput()
	if err != nil || len(out) != len("out\nerr\n") {
		t.Errorf("%q, %v", out, err)
	}
	_, err = w.sb.Command(ctx, "sh", "-c", "echo why >&2; exit 3").Output()
	var exit *client.ExitError
	if !errors.As(err, &exit) || exit.Code != 3 || exit.Status != "exit status 3" || string(exit.Stderr) != "why\n" {
		t.Errorf("exit %+v, %v", exit, err)
	}
	err = w.sb.Command(ctx, "sh", "-c", "kill -9 $$").Run()
	if !errors.As(err, &exit) || exit.Code != -1 || exit.Status != "signal: killed" {
		t.Errorf("killed: %v", err)
	}
}

func TestCommandSurroundings(t *testing.T) {
	w := newWorld(t)
	c := w.sb.Command(t.Context(), "sh", "-c", "pwd; echo $A")
	c.Dir, c.Env = "/usr", map[string]string{"A": "b"}
	if out, err := c.Output(); err != nil || string(out) != "/usr\nb\n" {
		t.Errorf("%q, %v", out, err)
	}
	wantKind(t, w.sb.Command(t.Context(), "no-such-program").Run(), sandbox.InvalidRequest, `command "no-such-program"`)
	c = w.sb.Command(t.Context(), "true")
	c.User = "nobody-here"
	wantKind(t, c.Run(), sandbox.Authentication, "nobody-here")
	c = w.sb.Command(t.Context(), "true")
	if err := c.Run(); err != nil {
		t.Fatal(err)
	}
	if c.PID <= 0 || c.Start() == nil {
		t.Errorf("pid %d; a command starts twice", c.PID)
	}
	if w.sb.Command(t.Context(), "true").Wait() == nil {
		t.Error("a command that was not started can be waited for")
	}
}

func TestCommandStdin(t *testing.T) {
	w := newWorld(t)
	content := make([]byte, 3<<20+17)
	_, _ = rand.Read(content)
	c := w.sb.Command(t.Context(), "cat")
	c.Stdin = bytes.NewReader(content)
	out, err := c.Output()
	if err != nil || !bytes.Equal(out, content) {
		t.Errorf("%d bytes came back of %d, equal %v, %v", len(out), len(content), bytes.Equal(out, content), err)
	}
	// One that ends without reading must not wait for an input that goes on.
	r, open := io.Pipe()
	defer open.Close()
	c = w.sb.Command(t.Context(), "true")
	c.Stdin = r
	if err := c.Run(); err != nil {
		t.Error(err)
	}
	// No stdin is an empty one.
	if out, err := w.sb.Command(t.Context(), "cat").Output(); err != nil || len(out) != 0 {
		t.Errorf("%q, %v", out, err)
	}
}

// watched is output that a test can wait for.
type watched struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *watched) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *watched) until(t *testing.T, part string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		w.mu.Lock()
		text := w.text.String()
		w.mu.Unlock()
		if strings.Contains(text, part) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("output has no %q: %q", part, text)
		}
	}
}

func TestCommandTerminal(t *testing.T) {
	w := newWorld(t)
	var out watched
	c := w.sb.Command(t.Context(), "sh")
	c.TTY, c.Stdout = &client.Size{Cols: 91, Rows: 31}, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if err := c.Input([]byte("stty size\n")); err != nil {
		t.Fatal(err)
	}
	out.until(t, "31 91")
	if err := c.Resize(client.Size{Cols: 120, Rows: 40}); err != nil {
		t.Fatal(err)
	}
	if err := c.Input([]byte("stty size; exit 5\n")); err != nil {
		t.Fatal(err)
	}
	var exit *client.ExitError
	if err := c.Wait(); !errors.As(err, &exit) || exit.Code != 5 {
		t.Errorf("end: %v", err)
	}
	out.until(t, "40 120")
}

func TestCommandEndsWithItsContext(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	var out watched
	c := w.sb.Command(ctx, "sh", "-c", "echo started; exec sleep 1000")
	c.Stdout = &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	out.until(t, "started")
	cancel()
	if err := c.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("end: %v", err)
	}
	// The inside is this machine here: its pids are ours.
	for end := time.Now().Add(30 * time.Second); syscall.Kill(c.PID, 0) == nil; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d lives on", c.PID)
		}
	}
}

func TestCommandSignals(t *testing.T) {
	w := newWorld(t)
	var out watched
	c := w.sb.Command(t.Context(), "sh", "-c", "trap 'exit 9' TERM; echo ready; while :; do sleep 0.05; done")
	c.Stdout = &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	out.until(t, "ready")
	if err := c.Terminate(); err != nil {
		t.Fatal(err)
	}
	var exit *client.ExitError
	if err := c.Wait(); !errors.As(err, &exit) || exit.Code != 9 {
		t.Errorf("end: %v", err)
	}
	wantKind(t, c.Kill(), sandbox.NotFound, "signal to command")
}

func TestPorts(t *testing.T) {
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/broken" { // a 502 that is not the gateway's is handed on
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusBadGateway)
		}
		_, _ = io.WriteString(rw, r.URL.String())
	}), ReadHeaderTimeout: time.Minute}
	go srv.Serve(l) //nolint:errcheck // it ends with Close
	port := l.Addr().(*net.TCPAddr).Port
	get := func(sb *client.Sandbox, path string) (int, string, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://whatever"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := sb.HTTP(port).Do(req)
		if err != nil {
			return 0, "", err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return res.StatusCode, string(b), err
	}
	if code, body, err := get(w.sb, "/a?b=c"); err != nil || code != 200 || body != "/a?b=c" {
		t.Errorf("%d %q, %v", code, body, err)
	}
	if code, body, err := get(w.sb, "/broken"); err != nil || code != 502 || body != "/broken" {
		t.Errorf("%d %q, %v", code, body, err)
	}
	_ = srv.Close()
	_, _, err = get(w.sb, "/")
	wantKind(t, err, sandbox.Unavailable, "is not open")
	var away *client.Sandbox
	for sb, err := range w.client.List(t.Context(), client.ListOptions{States: []string{"paused"}}) {
		if err != nil {
			t.Fatal(err)
		}
		away = sb
	}
	_, _, err = get(away, "/")
	wantKind(t, err, sandbox.NotFound, "is not running or does not exist")
	wantKind(t, away.Command(t.Context(), "true").Run(), sandbox.NotFound, "is not running")
}

func TestFiles(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	files := w.sb.Files("")
	content := make([]byte, 2<<20+5)
	_, _ = rand.Read(content)
	if err := files.Write(ctx, "deep/er/data.bin", bytes.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	if onDisk, err := os.ReadFile(filepath.Join(w.home, "deep/er/data.bin")); err != nil || !bytes.Equal(onDisk, content) {
		t.Errorf("on disk: %d bytes, %v", len(onDisk), err)
	}
	r, err := files.Open(ctx, "deep/er/data.bin")
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	_ = r.Close()
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("read back: %d bytes, %v", len(got), err)
	}
	e, err := files.Stat(ctx, "deep/er/data.bin")
	if err != nil || e.Name != "data.bin" || e.Dir || e.Size != int64(len(content)) {
		t.Errorf("stat %+v, %v", e, err)
	}
	list, err := files.ReadDir(ctx, "deep", 2)
	if err != nil || len(list) != 2 || !list[0].Dir {
		t.Errorf("list %+v, %v", list, err)
	}
	if err := files.Mkdir(ctx, "new"); err != nil {
		t.Error(err)
	}
	wantKind(t, files.Mkdir(ctx, "new"), sandbox.Conflict, `path "new"`)
	if err := files.Rename(ctx, "deep/er/data.bin", "moved/d"); err != nil {
		t.Error(err)
	}
	if ok, err := files.Exists(ctx, "moved/d"); !ok || err != nil {
		t.Error(ok, err)
	}
	if err := files.Remove(ctx, "moved"); err != nil {
		t.Error(err)
	}
	if ok, err := files.Exists(ctx, "moved/d"); ok || err != nil {
		t.Error(ok, err)
	}
	_, err = files.Open(ctx, "absent")
	wantKind(t, err, sandbox.NotFound, `path "absent"`)
	wantKind(t, w.sb.Files("nobody-here").Write(ctx, "x", strings.NewReader("")), sandbox.Authentication, "nobody-here")
	_, err = files.Stat(ctx, "a\x00b")
	wantKind(t, err, sandbox.InvalidRequest, "NUL")
}
