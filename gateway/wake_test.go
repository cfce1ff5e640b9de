package gateway_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-run/holdfast/gateway"
	"github.com/holdfast-run/holdfast/sandbox"
)

// fixedDialer leads to one port of this machine, whatever port is asked for.
type fixedDialer int

func (d fixedDialer) DialPort(ctx context.Context, rt sandbox.Route, _ int) (net.Conn, error) {
	var nd net.Dialer
	return nd.DialContext(ctx, "tcp", net.JoinHostPort(rt.Addr.String(), strconv.Itoa(int(d))))
}

func pause(autoResume bool) func(*sandbox.Sandbox) {
	return func(sb *sandbox.Sandbox) { sb.State, sb.Lifecycle.AutoResume = sandbox.Paused, autoResume }
}

func TestManyCallersCauseOneWake(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) { _, _ = io.Copy(w, q.Body) })
	r.node.set(boxID, pause(true))
	release := make(chan struct{})
	r.node.onWake = func(string) { <-release }
	var wg sync.WaitGroup
	for i := range 20 {
		q := r.request("POST", "/", strings.NewReader(fmt.Sprint("body ", i)))
		wg.Go(func() {
			resp, err := r.front.Client().Do(q)
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if raw, _ := io.ReadAll(resp.Body); resp.StatusCode != 200 || string(raw) != fmt.Sprint("body ", i) {
				t.Errorf("%d: %d %s", i, resp.StatusCode, raw)
			}
		})
	}
	close(release)
	wg.Wait()
	if n := r.node.wakeCount(); n != 1 {
		t.Fatalf("woken %d times", n)
	}
}

func TestWhatMayWake(t *testing.T) {
	const token = "access"
	sign := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "v1_" + base64.RawStdEncoding.EncodeToString(sum[:])
	}
	for _, c := range []struct {
		name   string
		guest  bool
		method string
		path   string
		header map[string]string
		status int
		wakes  int
	}{
		{"health check", true, "GET", "/health", nil, 502, 0},
		{"health check with token", true, "GET", "/health", map[string]string{"X-Access-Token": token}, 502, 0},
		{"guest without token", true, "GET", "/envs", nil, 401, 0},
		{"guest with another token", true, "GET", "/envs", map[string]string{"X-Access-Token": "x"}, 401, 0},
		{"guest with token", true, "GET", "/envs", map[string]string{"X-Access-Token": token}, 200, 1},
		{"signed download", true, "GET", "/files?path=/a+b&signature=" + url.QueryEscape(sign("/a b:read::"+token)), nil, 200, 1},
		{"signed upload", true, "POST", "/files?path=x&username=u&signature_expiration=9&signature=" + url.QueryEscape(sign("x:write:u:"+token+":9")), nil, 200, 1},
		{"signed for another file", true, "GET", "/files?path=/other&signature=" + url.QueryEscape(sign("/a b:read::"+token)), nil, 401, 0},
		{"signed for reading", true, "POST", "/files?path=x&signature=" + url.QueryEscape(sign("x:read::"+token)), nil, 401, 0},
		{"host's own route", true, "POST", "/init", map[string]string{"X-Access-Token": token}, 404, 0},
		{"port without traffic token", false, "GET", "/", nil, 403, 0},
		{"port with traffic token", false, "GET", "/", map[string]string{"E2b-Traffic-Access-Token": "traffic-" + boxID}, 200, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, func(http.ResponseWriter, *http.Request) {})
			port := 8000
			if c.guest {
				port = gateway.GuestPort
			}
			r = newRigAt(t, r.node, port, func(o *gateway.Options) { o.Dialer = fixedDialer(r.port) })
			r.node.set(boxID, pause(true))
			r.node.set(boxID, func(sb *sandbox.Sandbox) { sb.AccessToken = token; sb.Network.AllowPublicTraffic = false })
			q := r.request(c.method, c.path, nil)
			for k, v := range c.header {
				q.Header.Set(k, v)
			}
			if a := r.do(q); a.status != c.status {
				t.Errorf("status %d %s, want %d", a.status, a.body, c.status)
			}
			if n := r.node.wakeCount(); n != c.wakes {
				t.Errorf("woken %d times, want %d", n, c.wakes)
			}
		})
	}
}

// replacing is a Dialer that fails the first time, because the sandbox is
// replaced right then, and whose second connection leads to the new process.
type replacing struct {
	n     *node
	port  int
	after func(n *node) // what became of the sandbox
	dials atomic.Int64
}

func (d *replacing) DialPort(ctx context.Context, rt sandbox.Route, port int) (net.Conn, error) {
	if d.dials.Add(1) == 1 {
		d.n.mu.Lock()
		d.after(d.n)
		d.n.mu.Unlock()
		return nil, errors.New("connection refused")
	}
	return fixedDialer(d.port).DialPort(ctx, rt, port)
}

func TestPausedBetweenRouteAndDial(t *testing.T) {
	for _, c := range []struct {
		name   string
		after  func(n *node)
		status int
		body   string
		wakes  int
	}{
		{"paused, wakes on traffic", func(n *node) { n.boxes[boxID].State = sandbox.Paused; n.boxes[boxID].Lifecycle.AutoResume = true }, 200, "hello", 1},
		{"resumed already", func(n *node) { n.gen[boxID]++ }, 200, "hello", 0},
		{"paused for good", func(n *node) { n.boxes[boxID].State = sandbox.Paused }, 502, `{"sandboxId":"` + boxID + `","message":"The sandbox was not found","code":502}`, 0},
		{"deleted", func(n *node) { delete(n.boxes, boxID) }, 502, `{"sandboxId":"` + boxID + `","message":"The sandbox was not found","code":502}`, 0},
		{"still there", func(*node) {}, 502, `{"sandboxId":"` + boxID + `","message":"The sandbox is running but port is not open","port":7000,"code":502}`, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inside := newRig(t, func(w http.ResponseWriter, q *http.Request) { _, _ = io.Copy(w, q.Body) })
			d := &replacing{n: inside.node, port: inside.port, after: c.after}
			r := newRigAt(t, inside.node, 7000, func(o *gateway.Options) { o.Dialer = d })
			// Nothing of the request was sent, so even one with a body is repeated.
			r.do(r.request("POST", "/", strings.NewReader("hello"))).is(t, c.status, c.body)
			if n := r.node.wakeCount(); n != c.wakes {
				t.Errorf("woken %d times, want %d", n, c.wakes)
			}
		})
	}
}

// A request under way when the process behind it ends.
func TestDisconnectDuringARequest(t *testing.T) {
	for _, c := range []struct {
		name   string
		method string
		after  func(n *node)
		status int
		calls  int64
		wakes  int
	}{
		{"rolled back, GET is repeated", "GET", func(n *node) { n.gen[boxID]++ }, 200, 2, 0},
		{"rolled back, POST is not", "POST", func(n *node) { n.gen[boxID]++ }, 502, 1, 0},
		{"paused: a request under way must not undo it", "GET", func(n *node) {
			n.boxes[boxID].State = sandbox.Paused
			n.boxes[boxID].Lifecycle.AutoResume = true
		}, 502, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var calls atomic.Int64
			arrived := make(chan struct{})
			r := newRig(t, func(_ http.ResponseWriter, q *http.Request) {
				if calls.Add(1) == 1 {
					close(arrived)
					<-q.Context().Done()
				}
			})
			go func() {
				<-arrived
				r.node.mu.Lock()
				c.after(r.node)
				r.node.mu.Unlock()
				r.gw.Disconnect(boxID)
			}()
			a := r.do(r.request(c.method, "/", nil))
			if a.status != c.status || calls.Load() != c.calls || r.node.wakeCount() != c.wakes {
				t.Fatalf("status %d %s, %d calls, %d wakes; want %d, %d, %d",
					a.status, a.body, calls.Load(), r.node.wakeCount(), c.status, c.calls, c.wakes)
			}
		})
	}
}

func TestDisconnectBreaksStreams(t *testing.T) {
	r := newRig(t, func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-q.Context().Done()
	})
	resp, err := r.front.Client().Do(r.request("GET", "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	r.gw.Disconnect(boxID)
	if _, err := resp.Body.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Fatalf("the broken stream ends as if complete: %v", err)
	}
}

// Connections of an older generation must not be used again.
func TestANewGenerationGetsNewConnections(t *testing.T) {
	var conns atomic.Int64
	s := httptest.NewUnstartedServer(http.HandlerFunc(echoHost))
	s.Config.ConnState = func(_ net.Conn, st http.ConnState) {
		if st == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	r := newRigAt(t, newNode(), portOf(t, s.Listener.Addr()))
	for range 5 {
		r.get("/")
	}
	if n := conns.Load(); n != 1 {
		t.Fatalf("5 requests made %d connections, want 1", n)
	}
	r.node.mu.Lock()
	r.node.gen[boxID]++
	r.node.mu.Unlock()
	for range 5 {
		r.get("/")
	}
	if n := conns.Load(); n != 2 {
		t.Fatalf("after a resume there were %d connections, want 2", n)
	}
}
