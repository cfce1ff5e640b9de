package gateway_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-run/holdfast/gateway"
	"github.com/holdfast-run/holdfast/sandbox"
)

const (
	boxID   = "iabcdefghij0123456789"
	otherID = "izzzzzzzzzzzzzzzzzzzz"
)

// node is a Router whose sandboxes are servers on this machine's loopback, and
// that counts what it is asked.
type node struct {
	mu      sync.Mutex
	boxes   map[string]*sandbox.Sandbox
	gen     map[string]int64
	err     error           // given by Route instead of an answer
	onWake  func(id string) // while waking, without the lock
	wakes   int             // resumes done
	waking  map[string]chan struct{}
	traffic map[string]int
}

func newNode() *node {
	n := &node{boxes: map[string]*sandbox.Sandbox{}, gen: map[string]int64{}, waking: map[string]chan struct{}{}, traffic: map[string]int{}}
	n.add(boxID)
	return n
}

func (n *node) add(id string) *sandbox.Sandbox {
	sb := &sandbox.Sandbox{ID: id, State: sandbox.Running, TrafficToken: "traffic-" + id, Network: sandbox.Network{AllowPublicTraffic: true}}
	n.boxes[id], n.gen[id] = sb, 1
	return sb
}

// set changes a sandbox.
func (n *node) set(id string, f func(sb *sandbox.Sandbox)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(n.boxes[id])
}

func (n *node) count(f func() int) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return f()
}

func (n *node) wakeCount() int { return n.count(func() int { return n.wakes }) }

func (n *node) sawTraffic(id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.traffic[id]++
}

func (n *node) Get(_ context.Context, id string) (*sandbox.Sandbox, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	sb, ok := n.boxes[id]
	if !ok {
		return nil, sandbox.Errorf(sandbox.NotFound, "sandbox "+id, "does not exist")
	}
	c := *sb
	return &c, nil
}

func (n *node) Route(ctx context.Context, id string, wake bool) (sandbox.Route, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return sandbox.Route{}, n.err
	}
	for {
		sb, ok := n.boxes[id]
		if !ok {
			return sandbox.Route{}, sandbox.Errorf(sandbox.NotFound, "sandbox "+id, "does not exist")
		}
		if sb.State == sandbox.Running {
			return sandbox.Route{
				SandboxID: id, Addr: netip.MustParseAddr("127.0.0.1"), Network: sb.Network,
				TrafficToken: sb.TrafficToken, Generation: n.gen[id],
			}, nil
		}
		if !wake || !sb.Lifecycle.AutoResume {
			return sandbox.Route{}, sandbox.Errorf(sandbox.NotFound, "sandbox "+id, "is paused")
		}
		if done, busy := n.waking[id]; busy { // the backend's promise: one wake
			n.mu.Unlock()
			<-done
			n.mu.Lock()
			continue
		}
		done := make(chan struct{})
		n.waking[id] = done
		n.mu.Unlock()
		if n.onWake != nil {
			n.onWake(id)
		}
		n.mu.Lock()
		n.wakes++
		n.gen[id]++
		sb.State = sandbox.Running
		delete(n.waking, id)
		close(done)
	}
}

// rig is a gateway in front of one server that is "inside" boxID.
type rig struct {
	testing.TB
	node  *node
	gw    *gateway.Gateway
	front *httptest.Server
	port  int // of the server inside
}

// newRig starts inside as a server in the sandbox, and the gateway.
func newRig(t testing.TB, inside http.HandlerFunc, adjust ...func(*gateway.Options)) *rig {
	t.Helper()
	n := newNode()
	s := httptest.NewServer(inside)
	t.Cleanup(s.Close)
	return newRigAt(t, n, portOf(t, s.Listener.Addr()), adjust...)
}

func newRigAt(t testing.TB, n *node, port int, adjust ...func(*gateway.Options)) *rig {
	t.Helper()
	o := gateway.Options{Router: n, OnTraffic: n.sawTraffic}
	for _, f := range adjust {
		f(&o)
	}
	gw := gateway.New(o)
	front := httptest.NewServer(gw.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "this is the api")
	})))
	t.Cleanup(func() { _ = gw.Close(); front.CloseClientConnections(); front.Close() })
	return &rig{TB: t, node: n, gw: gw, front: front, port: port}
}

func portOf(t testing.TB, a net.Addr) int {
	t.Helper()
	_, p, err := net.SplitHostPort(a.String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// request makes one to the server inside, addressed by host name.
func (r *rig) request(method, path string, body io.Reader) *http.Request {
	r.Helper()
	return r.requestTo(boxID, r.port, method, path, body)
}

func (r *rig) requestTo(id string, port int, method, path string, body io.Reader) *http.Request {
	r.Helper()
	q, err := http.NewRequestWithContext(r.Context(), method, r.front.URL+path, body)
	if err != nil {
		r.Fatal(err)
	}
	q.Host = strconv.Itoa(port) + "-" + id + ".boxes.test"
	return q
}

type answer struct {
	status int
	header http.Header
	body   string
}

func (r *rig) do(q *http.Request) answer {
	r.Helper()
	resp, err := r.front.Client().Do(q)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(raw)}
}

func (r *rig) get(path string) answer { r.Helper(); return r.do(r.request("GET", path, nil)) }

func (a answer) is(t *testing.T, status int, body string) {
	t.Helper()
	if a.status != status || strings.TrimSpace(a.body) != body {
		t.Fatalf("got %d %s\nwant %d %s", a.status, a.body, status, body)
	}
}

// closedPort is one where nothing listens.
func closedPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return portOf(t, l.Addr())
}

func echoHost(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) }
