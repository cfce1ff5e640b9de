package guest_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/client"
	"github.com/holdfast-run/holdfast/guest/proto/filesystempb/filesystempbconnect"
	"github.com/holdfast-run/holdfast/guest/proto/processpb/processpbconnect"
)

// The tests run the real program as pid 1 of a namespace of its own, on loopback.

var guestBinary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "guest")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	guestBinary = filepath.Join(dir, "guest")
	args := []string{"build", "-o", guestBinary}
	if raceEnabled {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "../cmd/guest")...)
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build guest: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

const (
	token = "0tQG31xiMp0IOQfaz9dcwi72L1CPo8e0"
	uid   = 1000
)

// sandbox is a running guest.
type sandbox struct {
	*client.Client
	addr string // host:port
	etc  string
	home string // of user
	cmd  *exec.Cmd
	logs chan string // everything it logged, once it has ended
}

type options struct {
	initFrom string
	noInit   bool
	init     client.InitRequest
}

// start runs a guest that has user (1000, also in group extra) and root, and gives
// it an identity.
func start(t *testing.T, change ...func(*options)) *sandbox {
	t.Helper()
	o := options{initFrom: "127.0.0.1", init: client.InitRequest{AccessToken: token, DefaultUser: "user"}}
	for _, c := range change {
		c(&o)
	}
	s := &sandbox{logs: make(chan string, 1)}
	root := openDir(t)
	s.etc, s.home = filepath.Join(root, "etc"), filepath.Join(root, "home")
	must(t, os.Mkdir(s.etc, 0o755))
	must(t, os.Mkdir(s.home, 0o755))
	must(t, os.Chown(s.home, uid, uid))
	write(t, filepath.Join(s.etc, "passwd"), "root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::"+s.home+":/bin/bash\nother:x:1001:1001::/:/bin/sh\n")
	write(t, filepath.Join(s.etc, "group"), "root:x:0:\nuser:x:1000:\nextra:x:2000:other,user\n")

	s.cmd = exec.Command(guestBinary, "-listen", "0.0.0.0:0", "-init-from", o.initFrom, "-etc", s.etc)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS}
	s.cmd.Env = []string{"GODEBUG=clobberfree=1", "LEAKED=from pid 1"}
	stderr, err := s.cmd.StderrPipe()
	must(t, err)
	must(t, s.cmd.Start())
	address := make(chan string, 1)
	go s.readLog(stderr, address)
	t.Cleanup(func() { s.stop(t) })
	port, ok := <-address
	if !ok {
		t.Fatal("guest did not start")
	}
	s.addr = "127.0.0.1:" + port
	s.Client = client.New(s.addr, o.init.AccessToken, nil)
	if !o.noInit {
		must(t, s.WaitInit(t.Context(), o.init))
	}
	return s
}

// readLog finds the port in the log, then keeps the rest.
func (s *sandbox) readLog(r io.Reader, address chan<- string) {
	var all strings.Builder
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if i := strings.LastIndex(lines.Text(), ":"); strings.Contains(lines.Text(), "guest serves") {
			address <- strings.Trim(lines.Text()[i+1:], "\"")
		}
		all.WriteString(lines.Text() + "\n")
	}
	close(address)
	s.logs <- all.String()
}

func (s *sandbox) stop(t *testing.T) {
	s.CloseIdle()
	_ = s.cmd.Process.Kill() // pid 1 of its namespace: everything in it goes too
	logs := <-s.logs
	_ = s.cmd.Wait()
	if strings.Contains(logs, "DATA RACE") || strings.Contains(logs, "panic") {
		t.Errorf("guest's log:\n%s", logs)
	}
}

// sh runs a shell command as the client's user and gives its output.
func (s *sandbox) sh(t *testing.T, script string) string {
	t.Helper()
	return sh(t, s.Client, script)
}

func sh(t *testing.T, c *client.Client, script string) string {
	t.Helper()
	var out strings.Builder
	res, err := c.Exec(t.Context(), client.ExecOptions{Cmd: "/bin/bash", Args: []string{"-c", script}, Stdout: &out, Stderr: &out})
	must(t, err)
	if res.ExitCode != 0 {
		t.Fatalf("%s: %s\n%s", script, res.Status, out.String())
	}
	return strings.TrimRight(out.String(), "\n")
}

// services are the RPC clients of one protocol and codec.
type services struct {
	processpbconnect.ProcessClient
	filesystempbconnect.FilesystemClient
}

// protocols runs f with every wire form that clients use.
func protocols(t *testing.T, s *sandbox, f func(t *testing.T, c services)) {
	for name, opts := range map[string][]connect.ClientOption{
		"connect binary": nil,
		"connect json":   {connect.WithProtoJSON()},
		"grpc-web":       {connect.WithGRPCWeb()},
	} {
		t.Run(name, func(t *testing.T) {
			hc := &http.Client{Transport: &http.Transport{}}
			defer hc.CloseIdleConnections()
			withToken := connect.WithInterceptors(header("X-Access-Token", token))
			f(t, services{
				processpbconnect.NewProcessClient(hc, "http://"+s.addr, append(opts, withToken)...),
				filesystempbconnect.NewFilesystemClient(hc, "http://"+s.addr, append(opts, withToken)...),
			})
		})
	}
}

// header is an interceptor that sends one header.
func header(name, value string) connect.Interceptor { return headerInterceptor{name, value} }

type headerInterceptor struct{ name, value string }

func (h headerInterceptor) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set(h.name, h.value)
		return next(ctx, req)
	}
}

func (h headerInterceptor) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set(h.name, h.value)
		return conn
	}
}

func (h headerInterceptor) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// openDir is a temporary folder that other users may enter.
func openDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "guest")
	must(t, err)
	must(t, os.Chmod(dir, 0o755))
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	return dir
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o644))
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return string(b)
}

func contextWithTimeout(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

func wantCode(t *testing.T, err error, code connect.Code) {
	t.Helper()
	if got := client.CodeOf(err); got != code {
		t.Errorf("error is %v (%v), want code %v", err, got, code)
	}
}

// eventually waits for a condition that must come true; the test's own time limit is the bound.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		select {
		case <-t.Context().Done():
			t.Fatalf("never: %s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}
