package gateway_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-run/holdfast/gateway"
	"github.com/holdfast-run/holdfast/sandbox"
)

func TestWrapLeavesTheRestToTheAPI(t *testing.T) {
	r := newRig(t, echoHost)
	for host, want := range map[string]string{
		"localhost":                           "this is the api",
		"api.boxes.test":                      "this is the api",
		fmt.Sprintf("%d-%s.a", r.port, boxID): fmt.Sprintf("%d-%s.a", r.port, boxID),
	} {
		q := r.request("GET", "/", nil)
		q.Host = host
		r.do(q).is(t, 200, want)
	}
	q := r.request("GET", "/", nil)
	q.Host = "x-" + boxID + ".boxes.test"
	r.do(q).is(t, 400, "Invalid host")
}

func TestHeadersAddressASandbox(t *testing.T) {
	r := newRig(t, echoHost)
	q := r.request("GET", "/", nil)
	q.Host = "127.0.0.1:7070"
	q.Header.Set("E2b-Sandbox-Id", boxID)
	q.Header.Set("E2b-Sandbox-Port", fmt.Sprint(r.port))
	r.do(q).is(t, 200, "127.0.0.1:7070")
}

// What arrives inside is what was sent, less what is the gateway's business.
func TestWhatTheServerInsideSees(t *testing.T) {
	type seen struct {
		Method, URI, Host, Body string
		Header                  http.Header
	}
	inside := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_ = json.NewEncoder(w).Encode(seen{r.Method, r.RequestURI, r.Host, string(body), r.Header})
	}
	r := newRig(t, inside, func(o *gateway.Options) { o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} })
	send := func(q *http.Request) (s seen) {
		t.Helper()
		if err := json.Unmarshal([]byte(r.do(q).body), &s); err != nil {
			t.Fatal(err)
		}
		return s
	}

	q := r.request("PATCH", "/a%2Fb/..;x?q=1;2&%zz", strings.NewReader("hello"))
	for name, v := range map[string]string{
		"X-API-Key": "e2b_0", "Authorization": "Bearer e2b_0123", "E2b-Sandbox-Id": boxID, "E2b-Sandbox-Port": "1",
		"E2b-Traffic-Access-Token": "t", "X-Admin-Token": "a", "X-Team-ID": "t", "Connection": "X-Hop", "X-Hop": "1",
		"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "https", "X-Kept": "yes", "User-Agent": "ua/1",
	} {
		q.Header.Set(name, v)
	}
	s := send(q)
	if s.Method != "PATCH" || s.URI != "/a%2Fb/..;x?q=1;2&%zz" || s.Body != "hello" || s.Host != q.Host {
		t.Fatalf("changed on the way: %+v", s)
	}
	for _, h := range []string{
		"X-Api-Key", "Authorization", "E2b-Sandbox-Id", "E2b-Sandbox-Port", "E2b-Traffic-Access-Token",
		"X-Admin-Token", "X-Team-Id", "X-Hop", "Connection",
	} {
		if v, ok := s.Header[h]; ok {
			t.Errorf("%s leaks into the sandbox: %q", h, v)
		}
	}
	for h, want := range map[string]string{
		"X-Kept": "yes", "User-Agent": "ua/1", "X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": q.Host,
	} {
		if got := s.Header.Get(h); got != want {
			t.Errorf("%s: %q, want %q", h, got, want)
		}
	}

	q = r.request("GET", "/", nil)
	q.Header.Set("Authorization", "Bearer users-own")
	if got := send(q).Header.Get("Authorization"); got != "Bearer users-own" {
		t.Errorf("the user's own authorization arrives as %q", got)
	}

	r.node.set(boxID, func(sb *sandbox.Sandbox) { sb.Network.MaskRequestHost = "app.local:${PORT}" })
	if got, want := send(r.request("GET", "/", nil)).Host, fmt.Sprintf("app.local:%d", r.port); got != want {
		t.Errorf("masked host %q, want %q", got, want)
	}
}

func TestForwardedIsKeptFromATrustedProxy(t *testing.T) {
	inside := func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("X-Forwarded-For"), " ", r.Header.Get("X-Forwarded-Proto"), " ", r.Header.Get("X-Forwarded-Host"))
	}
	r := newRig(t, inside, func(o *gateway.Options) { o.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	q := r.request("GET", "/", nil)
	q.Header.Set("X-Forwarded-For", "9.9.9.9")
	q.Header.Set("X-Forwarded-Proto", "https")
	q.Header.Set("X-Forwarded-Host", "public.example")
	r.do(q).is(t, 200, "9.9.9.9, 127.0.0.1 https public.example")
}

func TestRefusals(t *testing.T) {
	r := newRig(t, echoHost)
	closed := closedPort(t)
	paused := r.node.add(otherID)
	paused.State = sandbox.Paused
	body := func(id, message, port string, code int) string {
		return fmt.Sprintf(`{"sandboxId":%q,"message":%q,%s"code":%d}`, id, message, port, code)
	}
	const gone = "imissingmissingmissin"
	for _, c := range []struct {
		name   string
		id     string
		port   int
		err    error
		status int
		body   string
	}{
		{"port closed", boxID, closed, nil, 502, body(boxID, "The sandbox is running but port is not open", fmt.Sprintf(`"port":%d,`, closed), 502)},
		{"no such sandbox", gone, 80, nil, 502, body(gone, "The sandbox was not found", "", 502)},
		{"paused, not to be woken", otherID, 80, nil, 502, body(otherID, "The sandbox was not found", "", 502)},
		{"in transition", boxID, 80, sandbox.Errorf(sandbox.Conflict, "sandbox", "is being rolled back"), 409, body(boxID, "sandbox is being rolled back", "", 409)},
		{"no room to wake", boxID, 80, sandbox.Errorf(sandbox.Capacity, "node", "is full"), 503, body(boxID, "node is full", "", 503)},
		{"wake took too long", boxID, 80, sandbox.Errorf(sandbox.Timeout, "wake", "took too long"), 504, body(boxID, "wake took too long", "", 504)},
		{"wake failed", boxID, 80, sandbox.Errorf(sandbox.Internal, "wake", "failed"), 502, body(boxID, "wake failed", "", 502)},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.node.mu.Lock()
			r.node.err = c.err
			r.node.mu.Unlock()
			a := r.do(r.requestTo(c.id, c.port, "GET", "/", nil))
			a.is(t, c.status, c.body)
			if ct := a.header.Get("Content-Type"); !strings.HasPrefix(ct, "application/json") {
				t.Errorf("content type %q", ct)
			}
		})
	}
}

func TestBrowsersGetAPage(t *testing.T) {
	r := newRig(t, echoHost)
	port := closedPort(t)
	q := r.requestTo(boxID, port, "GET", "/", nil)
	q.Header.Set("Accept", "text/html,application/xhtml+xml,*/*;q=0.8")
	a := r.do(q)
	if a.status != 502 || !strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
		t.Fatalf("got %d %v", a.status, a.header)
	}
	for _, want := range []string{"The sandbox is running but port is not open", fmt.Sprintf("Start a server on port %d", port), boxID} {
		if !strings.Contains(a.body, want) {
			t.Errorf("the page lacks %q:\n%s", want, a.body)
		}
	}
}

func TestTrafficToken(t *testing.T) {
	r := newRig(t, echoHost)
	r.node.set(boxID, func(sb *sandbox.Sandbox) { sb.Network.AllowPublicTraffic = false })
	for token, want := range map[string]int{"": 403, "wrong": 403, "traffic-" + boxID: 200} {
		q := r.request("GET", "/", nil)
		q.Header.Set("E2b-Traffic-Access-Token", token)
		a := r.do(q)
		if a.status != want {
			t.Errorf("token %q: %d, want %d", token, a.status, want)
		}
		var b struct {
			Code      int
			Message   string
			SandboxID string `json:"sandboxId"`
		}
		if want == 403 {
			if err := json.Unmarshal([]byte(a.body), &b); err != nil || b.Code != 403 || b.SandboxID != boxID || b.Message == "" {
				t.Errorf("token %q: body %s", token, a.body)
			}
		}
	}
	r.node.set(boxID, func(sb *sandbox.Sandbox) { sb.TrafficToken = "" })
	q := r.request("GET", "/", nil)
	q.Header.Set("E2b-Traffic-Access-Token", "")
	if a := r.do(q); a.status != 403 {
		t.Errorf("a sandbox without a token opens to the empty one: %d", a.status)
	}
}

// guestRig plays the guest: its port is fixed, so the way there is a Dialer.
func guestRig(t *testing.T, inside http.HandlerFunc) *rig {
	t.Helper()
	r := newRig(t, inside)
	g := newRigAt(t, r.node, gateway.GuestPort, func(o *gateway.Options) { o.Dialer = fixedDialer(r.port) })
	return g
}

func TestGuestRoutes(t *testing.T) {
	r := guestRig(t, func(w http.ResponseWriter, q *http.Request) { fmt.Fprint(w, "guest ", q.URL.Path) })
	// The guest's port asks for no traffic token: it has a token of its own.
	r.node.set(boxID, func(sb *sandbox.Sandbox) { sb.Network.AllowPublicTraffic = false })
	for path, pass := range map[string]bool{
		"/health": true, "/metrics": true, "/envs": true, "/files": true, "/files/compose": true,
		"/process.Process/Start": true, "/filesystem.Filesystem/WatchDir": true,
		"/init": false, "/prepare": false, "/forward": false, "/freeze": false, "/unfreeze": false, "/upgrade": false, "/": false,
		"//init": false, "/init/": false, "/./init": false, "/files/../init": false, "/%69nit": false, "/files/%2e%2e/init": false,
		"/filesX": false, "/INIT": false, "/files//x": false,
	} {
		a := r.get(path)
		if got := a.status == 200 && strings.HasPrefix(a.body, "guest "); got != pass {
			t.Errorf("%s passes: %v, want %v (%d %s)", path, got, pass, a.status, a.body)
		}
		if !pass && a.status != 404 {
			t.Errorf("%s: %d, want 404", path, a.status)
		}
	}
}

func TestBrowsersMayCallTheGuest(t *testing.T) {
	r := guestRig(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	r.node.set(boxID, func(sb *sandbox.Sandbox) { sb.State = sandbox.Paused; sb.Lifecycle.AutoResume = true })

	q := r.request("OPTIONS", "/process.Process/Start", nil)
	q.Header.Set("Origin", "https://app.example")
	q.Header.Set("Access-Control-Request-Method", "POST")
	q.Header.Set("Access-Control-Request-Headers", "x-access-token,e2b-sandbox-id,connect-timeout-ms")
	a := r.do(q)
	if a.status != 204 || a.header.Get("Access-Control-Allow-Origin") != "*" ||
		a.header.Get("Access-Control-Allow-Headers") != "x-access-token,e2b-sandbox-id,connect-timeout-ms" {
		t.Fatalf("preflight: %d %v", a.status, a.header)
	}
	if n := r.node.wakeCount(); n != 0 {
		t.Fatalf("a preflight woke the sandbox %d times", n)
	}

	q = r.request("GET", "/envs", nil)
	q.Header.Set("Origin", "https://app.example")
	if a := r.do(q); a.status != 200 || a.header.Get("Access-Control-Allow-Origin") != "*" {
		t.Fatalf("call: %d %v", a.status, a.header)
	}

	// A user's own server answers for itself.
	u := newRig(t, echoHost)
	q = u.request("GET", "/", nil)
	q.Header.Set("Origin", "https://app.example")
	if a := u.do(q); a.header.Get("Access-Control-Allow-Origin") != "" {
		t.Fatalf("the gateway opens a user's server: %v", a.header)
	}
}

func TestOpenRequestsAreLimited(t *testing.T) {
	entered, release := make(chan struct{}, 2), make(chan struct{})
	r := newRig(t, func(http.ResponseWriter, *http.Request) { entered <- struct{}{}; <-release }, func(o *gateway.Options) { o.MaxConns = 2 })
	done := make(chan int, 2)
	for range 2 {
		q := r.request("GET", "/", nil)
		go func() {
			resp, err := r.front.Client().Do(q)
			if err != nil {
				done <- 0
				return
			}
			_ = resp.Body.Close()
			done <- resp.StatusCode
		}()
		<-entered
	}
	a := r.get("/")
	if a.status != 429 || !strings.Contains(a.body, `"code":429`) {
		t.Errorf("third: %d %s", a.status, a.body)
	}
	close(release)
	if got := []int{<-done, <-done}; !slices.Equal(got, []int{200, 200}) {
		t.Fatalf("first two: %v", got)
	}
	for range 4 { // room is given back, also by refused ones
		if a := r.get("/"); a.status != 200 {
			t.Fatalf("afterwards: %d %s", a.status, a.body)
		}
		<-entered
	}
}

func TestTrafficIsReported(t *testing.T) {
	r := guestRig(t, func(http.ResponseWriter, *http.Request) {})
	count := func() int { return r.node.count(func() int { return r.node.traffic[boxID] }) }
	r.get("/envs")
	r.get("/health") // a health check extends nothing
	r.get("/init")
	if n := count(); n != 1 {
		t.Fatalf("reported %d times, want once", n)
	}
}
