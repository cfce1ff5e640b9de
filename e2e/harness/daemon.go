// Package harness starts real daemons for the end-to-end tests: each on a data
// folder and a port of its own, with a template ready, and removed at the end
// without anything left on the machine.
package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/sandbox"
)

// patience bounds every wait for something that must happen. It is long: the
// machine may be busy, and a test that waits for it has failed anyhow.
const patience = 2 * time.Minute

// Options describe a daemon. The zero value is one on a folder of its own,
// without templates.
type Options struct {
	Data     string    // "" for a fresh folder
	Config   string    // content of holdfast.yaml
	Env      []string  // added to the environment
	Wrap     []string  // command that the daemon is started through, e.g. unshare
	Template *Template // imported once it is up
}

// Daemon is a running (or stopped) one.
type Daemon struct {
	t      testing.TB
	o      Options
	Data   string
	Listen string
	URL    string
	Client *client.Client

	shared bool

	mu   sync.Mutex
	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

// Start starts a daemon and waits until it answers. At the test's end its
// sandboxes are deleted, it is stopped, and the test fails if it left anything.
func Start(t testing.TB, o Options) *Daemon {
	t.Helper()
	requireRoot(t)
	if o.Data == "" {
		o.Data = ShortDir(t)
	}
	d := connect(t, o, freeAddress(t))
	if err := os.MkdirAll(d.Data, 0o700); err != nil {
		t.Fatal(err)
	}
	if o.Config != "" {
		if err := os.WriteFile(filepath.Join(d.Data, "holdfast.yaml"), []byte(o.Config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(d.remove)
	d.Up()
	if o.Template != nil {
		o.Template.Import(t, d)
	}
	return d
}

// connect describes the daemon on a folder for one test.
func connect(t testing.TB, o Options, listen string) *Daemon {
	t.Helper()
	c, err := client.New(client.Options{Socket: filepath.Join(o.Data, "holdfast.sock")})
	if err != nil {
		t.Fatal(err)
	}
	return &Daemon{t: t, o: o, Data: o.Data, Listen: listen, URL: "http://" + listen, Client: c}
}

// Up starts the daemon again after Stop or Kill and waits until it answers.
func (d *Daemon) Up() {
	d.t.Helper()
	if err := d.Launch(); err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := d.Client.Healthy(ctx)
		if err == nil {
			return
		}
		select {
		case <-d.Ended():
			d.t.Fatalf("daemon on %s ended while starting; its log:\n%s", d.Data, d.Log())
		case <-ctx.Done():
			d.t.Fatalf("daemon on %s does not answer (%v); its log:\n%s", d.Data, err, d.Log())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Launch starts the process and does not wait.
func (d *Daemon) Launch() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	args := append([]string{}, d.o.Wrap...)
	args = append(args, Binary(), "daemon", "--data", d.Data, "--listen", d.Listen)
	cmd := exec.Command(args[0], args[1:]...) //nolint:gosec // the binary under test
	cmd.Env = environment(d.o.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a ^C of the test run must not look like a stop
	log, err := os.OpenFile(d.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	d.cmd, d.done = cmd, done
	go func() {
		_ = cmd.Wait() // how it ended shows in ProcessState
		close(done)
	}()
	return nil
}

// Ended is closed once the daemon process is gone.
func (d *Daemon) Ended() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.done
}

// PID is the daemon's process.
func (d *Daemon) PID() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cmd.Process.Pid
}

// ExitCode is that of the ended daemon.
func (d *Daemon) ExitCode() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.cmd.ProcessState.ExitCode()
}

// Kill ends the daemon as a power cut would: no signal handler runs.
func (d *Daemon) Kill() {
	d.t.Helper()
	d.signal(syscall.SIGKILL)
}

// Stop asks the daemon to end and waits; sandboxes go on.
func (d *Daemon) Stop() {
	d.t.Helper()
	d.signal(syscall.SIGTERM)
	if code := d.ExitCode(); code != 0 {
		d.t.Errorf("daemon on %s ended with code %d on SIGTERM; its log:\n%s", d.Data, code, d.Log())
	}
}

func (d *Daemon) signal(s syscall.Signal) {
	d.t.Helper()
	if err := syscall.Kill(d.PID(), s); err != nil && !errors.Is(err, syscall.ESRCH) {
		d.t.Fatal(err)
	}
	select {
	case <-d.Ended():
	case <-time.After(patience):
		d.t.Fatalf("daemon on %s does not end on %v; its log:\n%s", d.Data, s, d.Log())
	}
}

// Log is everything the daemon said, its latest part if that is long.
func (d *Daemon) Log() string {
	b, err := os.ReadFile(d.logFile())
	if err != nil {
		return err.Error()
	}
	const most = 16 << 10
	return string(b[max(0, len(b)-most):])
}

func (d *Daemon) logFile() string { return filepath.Join(d.Data, "daemon.log") }

// remove is the end of a test: everything deleted, the daemon stopped, nothing left.
func (d *Daemon) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	select {
	case <-d.Ended():
		if _, err := os.Stat(filepath.Join(d.Data, "node.db")); err == nil {
			d.Up() // it was killed by the test; only a daemon can clear what it left
		}
	default:
	}
	select {
	case <-d.Ended():
	default:
		d.deleteAll(ctx)
		d.Stop()
	}
	d.Client.Close()
	if d.t.Failed() {
		d.t.Logf("log of the daemon on %s:\n%s", d.Data, d.Log())
	}
	if left := Withdraw(ctx, d.Data); len(left) > 0 {
		d.t.Errorf("the daemon on %s left behind:\n%s", d.Data, strings.Join(left, "\n"))
	}
}

// deleteAll deletes every sandbox; a namespace or process that stays is a leak.
func (d *Daemon) deleteAll(ctx context.Context) {
	states := []string{"creating", "running", "pausing", "paused", "resuming", "failed", "deleting"}
	for s, err := range d.Client.List(ctx, client.ListOptions{States: states}) {
		if err == nil {
			err = d.Client.Delete(ctx, s.ID)
		}
		if err != nil {
			d.t.Errorf("clear the daemon on %s: %v", d.Data, err)
			return
		}
	}
}

// Withdraw takes a daemon and what it keeps alive off the machine, as `holdfast
// down --sandboxes` does for people, and gives what is left of it after all.
func Withdraw(ctx context.Context, data string) []string {
	var left []string
	down := exec.CommandContext(ctx, Binary(), "down", "--data", data, "--sandboxes") //nolint:gosec // the binary under test
	down.Env = environment()
	if out, err := down.CombinedOutput(); err != nil {
		left = append(left, fmt.Sprintf("down --sandboxes: %v: %s", err, out))
	}
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		found := Leftovers(data)
		if len(found) == 0 || time.Now().After(deadline) {
			return append(left, found...)
		}
	}
}

// Get asks the daemon's listener for a path, with its local key.
func (d *Daemon) Get(path string) *http.Response {
	d.t.Helper()
	return d.Do(http.MethodGet, path, nil, nil)
}

// Do makes one request to the listener, with the local key. The body of the
// answer is read whole and may be read again from it.
func (d *Daemon) Do(method, path string, body io.Reader, header http.Header) *http.Response {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, d.URL+path, body)
	if err != nil {
		d.t.Fatal(err)
	}
	req.Header.Set("X-API-Key", d.Key())
	for k, v := range header {
		req.Header[k] = v
	}
	if host := header.Get("Host"); host != "" {
		req.Host = host
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		d.t.Fatalf("%s %s: %v", method, path, err)
	}
	res.Body = io.NopCloser(bytes.NewReader(b))
	return res
}

// Key is the machine's own API key.
func (d *Daemon) Key() string {
	d.t.Helper()
	st, err := d.Client.Status(context.Background())
	if err != nil {
		d.t.Fatal(err)
	}
	if st.LocalKey == "" {
		d.t.Fatal("status over the socket gives no local key")
	}
	return st.LocalKey
}

// Create makes a sandbox of the daemon's template that lives for an hour, or
// until the end of the test.
func (d *Daemon) Create(r v1.CreateRequest) *client.Sandbox {
	d.t.Helper()
	if r.Template == "" && d.o.Template != nil {
		r.Template = d.o.Template.Name
	}
	if r.TimeoutSeconds == 0 {
		r.TimeoutSeconds = 3600
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	sb, err := d.Client.Create(ctx, r)
	if err != nil {
		d.t.Fatal(err)
	}
	if d.shared {
		d.t.Cleanup(func() {
			if err := d.Client.Delete(context.Background(), sb.ID); err != nil && !sandbox.IsKind(err, sandbox.NotFound) {
				d.t.Errorf("delete %s: %v", sb.ID, err)
			}
		})
	}
	return sb
}

// Sh runs a shell command in a sandbox and gives what it printed.
func (d *Daemon) Sh(sb *client.Sandbox, script string) string {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := sb.Command(ctx, "/bin/sh", "-c", script).CombinedOutput()
	if err != nil {
		d.t.Fatalf("%s in %s: %v: %s", script, sb.ID, err, out)
	}
	return string(out)
}

// Healthy fails the test when doctor finds anything wrong.
func (d *Daemon) Healthy() {
	d.t.Helper()
	found, err := d.Client.Doctor(context.Background(), false)
	if err != nil {
		d.t.Fatal(err)
	}
	for _, f := range found {
		if f.Severity == "problem" {
			d.t.Errorf("doctor found a problem: %s %s %s", f.Check, f.Thing, f.Reason)
		}
	}
}

// environment is that of the test run without what would steer Holdfast or an SDK.
func environment(more ...string) []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "HOLDFAST_") && !strings.HasPrefix(e, "E2B_") && !strings.HasPrefix(e, "CUBE_") {
			env = append(env, e)
		}
	}
	return append(env, more...)
}

func freeAddress(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func requireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the end-to-end tests make namespaces, mounts and control groups: run them as root")
	}
}

// ShortDir is t.TempDir with a path short enough for the socket in it.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the test's folder: %v", err)
		}
	})
	return dir
}

var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			break
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("not inside the repository")
		}
		dir = filepath.Dir(dir)
	}
	path := filepath.Join(dir, "bin", "holdfast")
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%w; build it first: make build", err)
	}
	return path, nil
})

// Binary is the path of the program under test.
func Binary() string {
	path, err := binary()
	if err != nil {
		panic(err)
	}
	return path
}

// Repository is the root of the source tree.
func Repository() string { return filepath.Dir(filepath.Dir(Binary())) }
