package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/api/v1/v1test"
	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/gateway"
	"github.com/holdfast-run/holdfast/sandbox"
)

// guestBinary is the guest program, built once.
var guestBinary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "client-test-")
	if err == nil {
		guestBinary = filepath.Join(dir, "guest")
		var out []byte
		if out, err = exec.Command("go", "build", "-o", guestBinary, "../cmd/guest").CombinedOutput(); err != nil {
			err = fmt.Errorf("build guest: %w: %s", err, out)
		}
	}
	code := 1
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, err)
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// world is a daemon's surface (api/v1 and gateway) before a real guest that runs
// as an ordinary process and plays the inside of one sandbox.
type world struct {
	backend *v1test.Backend
	server  *httptest.Server
	client  *client.Client
	sb      *client.Sandbox
	home    string
}

// router leads to the guest of this test.
type router struct {
	port   int // of the guest
	closed string
}

func (r router) Route(_ context.Context, id string, _ bool) (sandbox.Route, error) {
	if id == r.closed {
		return sandbox.Route{}, sandbox.Errorf(sandbox.NotFound, "sandbox "+id, "is paused")
	}
	return sandbox.Route{SandboxID: id, Addr: netip.MustParseAddr("127.0.0.1"), Network: sandbox.Network{AllowPublicTraffic: true}, Generation: 1}, nil
}

func (r router) DialPort(ctx context.Context, _ sandbox.Route, port int) (net.Conn, error) {
	if port == client.GuestPort {
		port = r.port
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{backend: &v1test.Backend{}, home: t.TempDir()}
	port := startGuest(t, w.home)
	known := w.backend.Add(sandbox.Sandbox{Template: "base"})
	away := w.backend.Add(sandbox.Sandbox{Template: "base", State: sandbox.Paused})
	r := router{port: port, closed: away.ID}
	gw := gateway.New(gateway.Options{Router: r, Dialer: r})
	api := v1.New(v1.Options{Backend: w.backend, Keys: &v1test.Keys{}, Status: func(context.Context) v1.Status { return v1.Status{} }})
	w.server = httptest.NewServer(gw.Wrap(api))
	t.Cleanup(func() {
		w.client.Close()
		_ = gw.Close()
		w.server.Close()
	})
	var err error
	if w.client, err = client.New(client.Options{URL: w.server.URL, APIKey: v1test.Secret}); err != nil {
		t.Fatal(err)
	}
	if w.sb, err = w.client.Get(t.Context(), known.ID); err != nil {
		t.Fatal(err)
	}
	return w
}

// startGuest runs the guest on a free port with one user, root, whose home is home.
func startGuest(t *testing.T, home string) int {
	t.Helper()
	etc := t.TempDir()
	for name, content := range map[string]string{
		"passwd": "root:x:0:0:root:" + home + ":/bin/sh\n", "group": "root:x:0:\n", "hostname": "x\n", "hosts": "127.0.0.1 localhost\n",
	} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	guest := exec.Command(guestBinary, "-listen", address, "-init-from", "127.0.0.1", "-etc", etc)
	var log bytes.Buffer
	guest.Stdout, guest.Stderr = &log, &log
	if err := guest.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = guest.Process.Signal(os.Interrupt)
		_ = guest.Wait()
		if t.Failed() {
			t.Logf("guest: %s", &log)
		}
	})
	body := fmt.Sprintf(`{"defaultUser":"root","defaultWorkdir":%q}`, home)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/init", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode != http.StatusNoContent {
				t.Fatalf("guest takes no identity: %s", res.Status)
			}
			break
		}
		if time.Now().After(end) {
			t.Fatalf("guest does not answer: %v: %s", err, &log)
		}
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func wantKind(t *testing.T, err error, kind sandbox.Kind, text string) {
	t.Helper()
	if sandbox.KindOf(err) != kind || err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v (kind %q), want kind %s with %q", err, sandbox.KindOf(err), kind, text)
	}
}

func TestUnreachable(t *testing.T) {
	dir := t.TempDir()
	absent := filepath.Join(dir, "absent.sock")
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = closed.Close()
	for _, tt := range []struct {
		name string
		o    client.Options
		text string
	}{
		{"no socket", client.Options{Socket: absent}, "is not running; `holdfast up` starts it"},
		{"socket without a daemon", client.Options{Socket: dead}, "is not running; `holdfast up` starts it"},
		{"closed port", client.Options{URL: "http://" + closed.Addr().String()}, "cannot be reached"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := client.New(tt.o)
			if err != nil {
				t.Fatal(err)
			}
			wantKind(t, c.Healthy(t.Context()), sandbox.Unavailable, tt.text)
		})
	}
	for _, url := range []string{"node:7070", "ftp://x", "http://", "://"} {
		_, err := client.New(client.Options{URL: url})
		wantKind(t, err, sandbox.InvalidRequest, "is not an http or https URL")
	}
}

func TestForeignServer(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/status") {
			_, _ = w.Write([]byte("<html>"))
			return
		}
		http.Error(w, "no such page", http.StatusNotFound)
	}))
	defer srv.Close()
	c, err := client.New(client.Options{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Status(t.Context())
	wantKind(t, err, sandbox.Unavailable, "cannot be read")
	_, err = c.Get(t.Context(), "x")
	wantKind(t, err, sandbox.Unavailable, "answered 404 Not Found: no such page")
}

func TestErrorsKeepTheirKind(t *testing.T) {
	w := newWorld(t)
	_, err := w.client.Get(t.Context(), "nope")
	wantKind(t, err, sandbox.NotFound, `sandbox "nope" does not exist; `)
	stranger, err := client.New(client.Options{URL: w.server.URL})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stranger.Status(t.Context())
	wantKind(t, err, sandbox.Authentication, "API key is missing")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.client.Status(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled call gives %v", err)
	}
}

func TestListGoesThroughAllPages(t *testing.T) {
	w := newWorld(t)
	for n := range 230 {
		w.backend.Add(sandbox.Sandbox{ID: v1test.ID(1000 + n), Metadata: map[string]string{"kind": "many"}})
	}
	count := 0
	for sb, err := range w.client.List(t.Context(), client.ListOptions{Metadata: map[string]string{"kind": "many"}, States: []string{"running"}}) {
		if err != nil || sb.Metadata["kind"] != "many" {
			t.Fatal(sb, err)
		}
		count++
	}
	if count != 230 {
		t.Errorf("%d sandboxes, want 230", count)
	}
}

func TestLifeOfASandbox(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	sb, err := w.client.Create(ctx, v1.CreateRequest{Name: "dev"})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Pause(ctx, false); err != nil || sb.State != "paused" {
		t.Fatal(sb.State, err)
	}
	if again, resumed, err := w.client.Connect(ctx, "dev", time.Minute); err != nil || !resumed || again.State != "running" {
		t.Fatal(resumed, err)
	}
	snap, err := sb.Snapshot(ctx, v1.SnapshotRequest{Name: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Rollback(ctx, snap.ID); err != nil {
		t.Fatal(err)
	}
	forks, err := sb.Fork(ctx, v1.ForkRequest{Count: 3})
	if len(forks) != 2 || sandbox.KindOf(err) != sandbox.Capacity {
		t.Errorf("%d forks, error %v; want 2 and the reason of the third", len(forks), err)
	}
	if err := sb.SetTimeout(ctx, time.Hour); err != nil {
		t.Error(err)
	}
	var kinds []string
	for e, err := range sb.Follow(ctx, 0) {
		if err != nil {
			t.Fatal(err)
		}
		kinds = append(kinds, e.Kind)
		if e.Kind == "rolled_back" {
			if err := sb.Delete(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := strings.Join(kinds, " "); got != "created paused resumed rolled_back deleted" {
		t.Errorf("history %q", got)
	}
	if err := w.client.DeleteSnapshot(ctx, "s"); err != nil {
		t.Error(err)
	}
}

func TestImportThatBreaksOff(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"step":{"name":"pull"}}` + "\n"))
	}))
	defer srv.Close()
	c, err := client.New(client.Options{URL: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	steps := 0
	_, err = c.Import(t.Context(), v1.ImportRequest{Name: "x"}, nil, func(v1.Step) { steps++ })
	wantKind(t, err, sandbox.Unavailable, "broke off before its result")
	if steps != 1 {
		t.Errorf("%d steps", steps)
	}
}
