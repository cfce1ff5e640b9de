package guest_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/client"
	pb "github.com/holdfast-run/holdfast/guest/proto/filesystempb"
	"github.com/holdfast-run/holdfast/guest/proto/processpb"
)

func TestBeforeInitOnlyHealth(t *testing.T) {
	s := start(t, func(o *options) { o.noInit = true })
	must(t, s.WaitReady(t.Context()))
	equal(t, "health", s.request(t, "GET", "/health", nil, "X-Access-Token", "").status, 204)
	for _, path := range []string{"/files?path=/etc/hostname", "/metrics", "/envs", "/x"} {
		s.request(t, "GET", path, nil).wantError(t, path, 503)
	}
	_, err := s.Process.List(t.Context(), &processpb.ListRequest{})
	wantCode(t, err, connect.CodeUnavailable)
	stream, err := s.Process.Start(t.Context(), &processpb.StartRequest{Process: bash("true")})
	must(t, err)
	equal(t, "a process starts", stream.Receive(), false)
	wantCode(t, stream.Err(), connect.CodeUnavailable)
}

func TestHostRoutesAreForTheHost(t *testing.T) {
	s := start(t, func(o *options) { o.initFrom, o.noInit = "192.0.0.1", true })
	for _, path := range []string{"/init", "/prepare", "/forward?port=1"} {
		s.request(t, "POST", path, strings.NewReader("{}")).wantError(t, path, 403)
		s.request(t, "GET", path, nil).wantError(t, path, 403)
		bare, _, _ := strings.Cut(path, "?")
		equal(t, "gateway passes on "+path, client.HostOnly(bare), true)
	}
	equal(t, "gateway keeps back /health", client.HostOnly("/health"), false)
	h := start(t)
	h.request(t, "GET", "/init", nil).wantError(t, "GET by the host", 405)
}

func TestInitSetsIdentity(t *testing.T) {
	s := start(t, func(o *options) { o.init.Hostname = "ione" })
	write(t, filepath.Join(s.etc, "hosts"), "127.0.0.1 localhost me\n# comment\n127.0.1.1\tbefore\n10.0.0.1 kept")
	first := read(t, filepath.Join(s.etc, "machine-id"))
	again := client.InitRequest{AccessToken: "second", DefaultUser: "root", Hostname: "itwo", EnvVars: map[string]string{"K": "V"}, DefaultWorkdir: "/tmp"}
	for range 3 {
		must(t, s.Init(t.Context(), again))
	}
	_, err := s.Process.List(t.Context(), &processpb.ListRequest{})
	wantCode(t, err, connect.CodeUnauthenticated)
	two := client.New(s.addr, "second", nil)
	equal(t, "the rest follows", sh(t, two, "echo $(hostname) $(id -u) $K $PWD"), "itwo 0 V /tmp")
	equal(t, "hostname file", read(t, filepath.Join(s.etc, "hostname")), "itwo\n")
	equal(t, "hosts file", read(t, filepath.Join(s.etc, "hosts")), "127.0.0.1 localhost me\n# comment\n10.0.0.1 kept\n127.0.1.1\titwo\n")
	second := read(t, filepath.Join(s.etc, "machine-id"))
	if first == second || !regexp.MustCompile(`^[0-9a-f]{32}\n$`).MatchString(second) {
		t.Errorf("machine ids are %q and %q", first, second)
	}
	again.Hostname = "ione"
	must(t, s.Init(t.Context(), again))
	equal(t, "machine id of the same sandbox", read(t, filepath.Join(s.etc, "machine-id")), first)
	again.MachineID = strings.Repeat("0a", 16)
	must(t, s.Init(t.Context(), again))
	equal(t, "machine id that was given", read(t, filepath.Join(s.etc, "machine-id")), again.MachineID+"\n")
	env, err := two.Envs(t.Context())
	must(t, err)
	equal(t, "envs", fmt.Sprint(env), "map[K:V]")
}

func TestInitRefused(t *testing.T) {
	s := start(t)
	for name, body := range map[string]string{
		"not JSON":      `{`,
		"misspelt":      `{"acessToken":"x"}`,
		"wrong type":    `{"accessToken":1}`,
		"bad host name": `{"hostname":"a b"}`,
		"long name":     `{"hostname":"` + strings.Repeat("a", 65) + `"}`,
		"new line":      `{"hostname":"a\n1.2.3.4 evil"}`,
		"machine id":    `{"machineId":"xyz"}`,
		"too large":     `{"accessToken":"` + strings.Repeat("x", 5<<20) + `"}`,
	} {
		s.request(t, "POST", "/init", strings.NewReader(body)).wantError(t, name, 400)
	}
	equal(t, "the identity is as it was", s.sh(t, "echo ok"), "ok")
	equal(t, "volume mounts are taken", s.request(t, "POST", "/init", strings.NewReader(`{"volumeMounts":[{"nfs_target":"x","path":"/v"}]}`)).status, 204)
}

func TestReadOnlyEtcDoesNotStopInit(t *testing.T) {
	s := start(t)
	must(t, os.RemoveAll(s.etc))
	must(t, s.Init(t.Context(), client.InitRequest{AccessToken: token, Hostname: "elsewhere"}))
	equal(t, "kernel's name", s.sh(t, "hostname; id -u"), "elsewhere\n0")
}

func TestPrepareForgets(t *testing.T) {
	secret := strings.Repeat("tOkEn0123456789+", 4)
	identity := client.InitRequest{AccessToken: secret, DefaultUser: "user", EnvVars: map[string]string{"A": "secret-" + secret}}
	s := start(t, func(o *options) { o.init = identity })
	c := services{s.Process, s.Filesystem}
	r := launch(t, c, &processpb.StartRequest{Process: &processpb.ProcessConfig{
		Cmd: "/usr/bin/env", Args: []string{"-i", "/bin/sh", "-c", "echo up; read -r x; echo $x"}}})
	r.until(t, "up")
	_, err := s.Metrics(t.Context())
	must(t, err)
	must(t, s.Prepare(t.Context()))
	_, err = s.Metrics(t.Context())
	var refused *client.Error
	if !errors.As(err, &refused) || refused.Status != 503 {
		t.Errorf("after prepare: %v", err)
	}
	equal(t, "health", s.request(t, "GET", "/health", nil, "X-Access-Token", "").status, 204)
	must(t, s.WaitInit(t.Context(), identity))
	_, err = c.SendInput(t.Context(), &processpb.SendInputRequest{Process: pid(r.pid), Input: stdin("went on\n")})
	must(t, err)
	r.until(t, "went on")
}

func TestPrepareLeavesNoToken(t *testing.T) {
	secret := strings.Repeat("tOkEn0123456789+", 4)
	s := start(t, func(o *options) { o.init = client.InitRequest{AccessToken: secret, DefaultUser: "user"} })
	for range 20 {
		s.sh(t, "true")
		must(t, s.WriteFile(t.Context(), "f", strings.NewReader("x")))
	}
	equal(t, "token in memory before", memoryHolds(t, s.cmd.Process.Pid, secret), true)
	s.CloseIdle()
	// A connection that has just been closed may still be on its way out.
	eventually(t, "no token in memory", func() bool {
		must(t, s.Prepare(t.Context()))
		return !memoryHolds(t, s.cmd.Process.Pid, secret)
	})
}

// memoryHolds looks for text in all of a process's own memory.
func memoryHolds(t *testing.T, pid int, text string) bool {
	t.Helper()
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	must(t, err)
	defer mem.Close()
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/maps", pid))) {
		var from, to uint64
		var perms string
		_, err := fmt.Sscanf(line, "%x-%x %s", &from, &to, &perms)
		must(t, err)
		if !strings.HasPrefix(perms, "rw") || to-from > 1<<30 || from > 1<<62 {
			continue
		}
		b := make([]byte, to-from)
		n, _ := mem.ReadAt(b, int64(from))
		if strings.Contains(string(b[:n]), text) {
			return true
		}
	}
	return false
}

func TestToken(t *testing.T) {
	s := start(t)
	for _, tc := range []struct {
		name, path, token string
		status            int
	}{
		{"right", "/envs", token, 200},
		{"wrong", "/envs", token + "x", 401},
		{"none", "/envs", "", 401},
		{"metrics without", "/metrics", "", 401},
		{"health without", "/health", "", 204},
	} {
		equal(t, tc.name, s.request(t, "GET", tc.path, nil, "X-Access-Token", tc.token).status, tc.status)
	}
	_, err := client.New(s.addr, "wrong", nil).Process.List(t.Context(), &processpb.ListRequest{})
	wantCode(t, err, connect.CodeUnauthenticated)
	must(t, s.Init(t.Context(), client.InitRequest{}))
	equal(t, "no token set is open", s.request(t, "GET", "/envs", nil, "X-Access-Token", "").status, 200)
}

func TestBasicAuthorisationNamesTheUser(t *testing.T) {
	s := start(t)
	path := "/files?path=who&username="
	s.sh(t, "true")
	a := s.request(t, "POST", "/files?path=who", strings.NewReader("x"), "Content-Type", octets, "Authorization", "Basic b3RoZXI6") // other:
	equal(t, "REST with a user whose home is closed to them", a.status, 200)
	must(t, os.Remove("/who"))
	s.request(t, "GET", path, nil, "Authorization", "Basic Z2hvc3Q6").wantError(t, "REST with an unknown user", 401)
	_, err := s.WithUser("ghost").Filesystem.Stat(t.Context(), &pb.StatRequest{Path: "/"})
	wantCode(t, err, connect.CodeUnauthenticated)
	if !strings.Contains(err.Error(), "invalid username: 'ghost'") {
		t.Errorf("error is %v", err)
	}
}

func TestCrossOrigin(t *testing.T) {
	s := start(t)
	a := s.request(t, "OPTIONS", "/process.Process/Start", nil, "X-Access-Token", "", "Origin", "http://page.example")
	equal(t, "preflight", a.status, 204)
	equal(t, "origin", a.header.Get("Access-Control-Allow-Origin"), "*")
	a = s.request(t, "GET", "/envs", nil, "X-Access-Token", "", "Origin", "http://page.example")
	equal(t, "still needs the token", a.status, 401)
}

func TestMetrics(t *testing.T) {
	s := start(t)
	_, err := s.Metrics(t.Context())
	must(t, err)
	s.sh(t, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
	m, err := s.Metrics(t.Context())
	must(t, err)
	if m.CPUCount < 1 || m.MemTotal == 0 || m.MemUsed == 0 || m.MemUsed > m.MemTotal || m.DiskTotal < m.DiskUsed || m.DiskUsed == 0 || m.CPUUsedPct <= 0 || m.TS < 1e9 {
		t.Errorf("metrics are %+v", m)
	}
}

func TestHTTP2WithoutTLS(t *testing.T) {
	s := start(t)
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	c := client.New(s.addr, token, &http.Client{Transport: &http.Transport{Protocols: p}})
	defer c.CloseIdle()
	equal(t, "over HTTP/2", sh(t, c, "echo two"), "two")
}

func TestForward(t *testing.T) {
	s := start(t)
	// The guest listens on all addresses, so 127.0.0.2 reaches it and a server on
	// 127.0.0.1 only plays the one on a sandbox's own loopback.
	_, port, err := net.SplitHostPort(s.addr)
	must(t, err)
	outside := client.New("127.0.0.2:"+port, token, nil)
	for name, network := range map[string][2]string{"IPv4": {"tcp4", "127.0.0.1:0"}, "IPv6": {"tcp6", "[::1]:0"}} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen(network[0], network[1])
			must(t, err)
			defer l.Close()
			go echoUpper(l)
			conn, err := outside.DialPort(t.Context(), uint16(l.Addr().(*net.TCPAddr).Port))
			must(t, err)
			defer conn.Close()
			_, err = io.WriteString(conn, "hello\nworld\n")
			must(t, err)
			must(t, conn.(interface{ CloseWrite() error }).CloseWrite())
			b, err := io.ReadAll(conn) // the half-closed way back still works
			must(t, err)
			equal(t, "echo", string(b), "banner\nHELLO\nWORLD\nbye\n")
		})
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	free := uint16(l.Addr().(*net.TCPAddr).Port)
	must(t, l.Close())
	if _, err := outside.DialPort(t.Context(), free); !errors.Is(err, client.ErrPortClosed) {
		t.Errorf("closed port: %v", err)
	}
	for _, query := range []string{"", "?port=0", "?port=65536", "?port=x"} {
		s.request(t, "POST", "/forward"+query, nil).wantError(t, "forward"+query, 400)
	}
	s.request(t, "POST", fmt.Sprintf("/forward?port=%d", free), nil).wantError(t, "forward to a closed port", 502)
	if _, err := client.New("http://gateway.invalid", "", nil).WithSandbox("i1").DialPort(t.Context(), 1); err == nil {
		t.Error("a port behind a gateway was dialled directly")
	}
}

// echoUpper speaks first, answers each line in capitals, and says bye at the end of input.
func echoUpper(l net.Listener) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "banner\n")
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		_, _ = io.WriteString(conn, strings.ToUpper(lines.Text())+"\n")
	}
	_, _ = io.WriteString(conn, "bye\n")
}

func TestWaitReadyGivesUpWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	addr := l.Addr().String()
	must(t, l.Close())
	ctx, cancel := contextWithTimeout(t, 50*time.Millisecond)
	defer cancel()
	if err := client.New(addr, "", nil).WaitReady(ctx); !errors.Is(err, ctx.Err()) || ctx.Err() == nil {
		t.Errorf("error is %v", err)
	}
}

func TestWaitInitReportsARefusal(t *testing.T) {
	s := start(t, func(o *options) { o.initFrom, o.noInit = "192.0.0.1", true })
	var refused *client.Error
	if err := s.WaitInit(t.Context(), client.InitRequest{}); !errors.As(err, &refused) || refused.Status != 403 {
		t.Errorf("error is %v", err)
	}
}

func TestThroughAGateway(t *testing.T) {
	s := start(t)
	var seen http.Header
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	gateway := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		out, err := http.NewRequestWithContext(r.Context(), r.Method, "http://"+s.addr+r.URL.RequestURI(), r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		out.Header = r.Header.Clone()
		resp, err := http.DefaultTransport.RoundTrip(out)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer resp.Body.Close()
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	})}
	go func() { _ = gateway.Serve(l) }()
	defer gateway.Close()
	c := client.New("http://"+l.Addr().String()+"/", token, nil).WithSandbox("iabc").WithHeader("X-Extra", "1").WithUser("root")
	must(t, c.WaitReady(t.Context()))
	equal(t, "command", sh(t, c, "id -u"), "0")
	equal(t, "headers", fmt.Sprint(seen["E2b-Sandbox-Id"], seen["E2b-Sandbox-Port"], seen["X-Extra"]), "[iabc] [49983] [1]")
}
