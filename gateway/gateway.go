package gateway

import (
	"context"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// DefaultMaxConns is how many requests one sandbox may have open at once.
const DefaultMaxConns = 2000

// Dialer opens a connection to a port of a running sandbox. An error means that
// nothing listens there.
type Dialer interface {
	DialPort(ctx context.Context, rt sandbox.Route, port int) (net.Conn, error)
}

// Peeker tells of a sandbox without waking it. A Router that is one too lets
// the gateway check a caller's token before it wakes a paused sandbox; with one
// that is not, whoever knows a sandbox's id can wake it.
type Peeker interface {
	Get(ctx context.Context, id string) (*sandbox.Sandbox, error)
}

// Options configures a Gateway.
type Options struct {
	Router sandbox.Router
	// Domains are hosts on which the E2b-Sandbox headers are honoured, in
	// addition to localhost, addresses and sandbox.<anything>.
	Domains []string
	Dialer  Dialer // nil: TCP to the route's address
	// OnTraffic is told of every request that reaches a sandbox, health checks
	// excepted. It must not block. May be nil.
	OnTraffic func(id string)
	// MaxConns bounds the open requests of one sandbox. 0: DefaultMaxConns.
	MaxConns int
	// TrustedProxies are addresses whose X-Forwarded headers are believed.
	TrustedProxies []netip.Prefix
	Log            *slog.Logger // nil: slog.Default()
}

// Gateway is the http.Handler of the data plane. Close it to drop its
// connections.
type Gateway struct {
	router    sandbox.Router
	peeker    Peeker // nil when the router cannot
	domains   []string
	dialer    Dialer
	onTraffic func(id string)
	maxConns  int
	trusted   []netip.Prefix
	log       *slog.Logger
	proxy     *httputil.ReverseProxy

	mu        sync.Mutex
	upstreams map[string]*upstream // by sandbox id
	nextSweep time.Time
}

// New makes a Gateway. Options.Router is needed.
func New(o Options) *Gateway {
	g := &Gateway{
		router: o.Router, dialer: o.Dialer, onTraffic: o.OnTraffic, maxConns: o.MaxConns,
		trusted: o.TrustedProxies, log: o.Log, upstreams: map[string]*upstream{},
	}
	g.peeker, _ = o.Router.(Peeker)
	for _, d := range o.Domains {
		g.domains = append(g.domains, hostname(d))
	}
	if g.dialer == nil {
		g.dialer = directDialer{}
	}
	if g.onTraffic == nil {
		g.onTraffic = func(string) {}
	}
	if g.maxConns == 0 {
		g.maxConns = DefaultMaxConns
	}
	if g.log == nil {
		g.log = slog.Default()
	}
	g.proxy = &httputil.ReverseProxy{
		Rewrite:        g.rewrite,
		Transport:      transport{g},
		ModifyResponse: modifyResponse,
		ErrorHandler:   g.proxyError,
		FlushInterval:  -1,
		BufferPool:     &buffers,
		ErrorLog:       log.New(debugWriter{g.log}, "", 0),
	}
	return g
}

// Wrap gives a handler that takes the requests for sandboxes and leaves all
// others to next.
func (g *Gateway) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, port, ok, err := g.Match(r)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		case ok:
			g.serve(w, r, id, port)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ServeHTTP answers requests that Match says are for a sandbox.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, errInvalidHost.Error(), http.StatusBadRequest)
	})).ServeHTTP(w, r)
}

// request is what the steps of one proxied request share.
type request struct {
	id    string
	port  int
	route sandbox.Route
	up    *upstream
	body  *watchedBody // nil when the request has none
	w     http.ResponseWriter
}

type requestKey struct{}

func requestOf(ctx context.Context) *request { return ctx.Value(requestKey{}).(*request) }

func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, id string, port int) {
	if port == GuestPort {
		if answerPreflight(w, r) {
			return
		}
		if !guestServes(r.URL.Path) {
			g.refuse(w, r, refusal{status: http.StatusNotFound, id: id, message: "no route " + r.URL.Path})
			return
		}
	}
	rt, no := g.find(r, id, port)
	if no != nil {
		g.refuse(w, r, *no)
		return
	}
	up := g.enter(id, rt)
	if up == nil {
		g.refuse(w, r, refusal{
			status: http.StatusTooManyRequests, id: id, port: port,
			message: "The sandbox has " + strconv.Itoa(g.maxConns) + " open requests, the most allowed; close some",
		})
		return
	}
	q := &request{id: id, port: port, route: rt, up: up, w: w}
	defer func() { q.up.leave() }()
	if !healthCheck(r, port) {
		g.onTraffic(id)
	}
	g.proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), requestKey{}, q)))
}

// find routes r, waking the sandbox if it must be and r may.
func (g *Gateway) find(r *http.Request, id string, port int) (sandbox.Route, *refusal) {
	if !sandbox.ValidID(id) {
		return sandbox.Route{}, notFound(id)
	}
	ctx := r.Context()
	rt, err := g.router.Route(ctx, id, false)
	if err != nil && healthCheck(r, port) {
		// Asking whether a sandbox lives must not bring it to life.
		return sandbox.Route{}, notFound(id)
	}
	if err != nil {
		if no := g.mayWake(r, id, port); no != nil {
			return sandbox.Route{}, no
		}
		if rt, err = g.router.Route(ctx, id, true); err != nil {
			return sandbox.Route{}, g.routeError(id, err)
		}
	}
	return rt, authorise(r, rt.SandboxID, port, rt.Network.AllowPublicTraffic, rt.TrafficToken)
}

// mayWake refuses a caller without the token that the sandbox would ask for
// once it runs, so that strangers cannot keep it awake.
func (g *Gateway) mayWake(r *http.Request, id string, port int) *refusal {
	if g.peeker == nil {
		return nil
	}
	sb, err := g.peeker.Get(r.Context(), id)
	if err != nil {
		return g.routeError(id, err)
	}
	if port == GuestPort {
		return authoriseGuest(r, sb)
	}
	return authorise(r, id, port, sb.Network.AllowPublicTraffic, sb.TrafficToken)
}

func (g *Gateway) rewrite(pr *httputil.ProxyRequest) {
	q := requestOf(pr.In.Context())
	out := pr.Out
	out.URL.Scheme = "http"
	out.URL.Host = net.JoinHostPort(q.id, strconv.Itoa(q.port)) // names the connection pool; the dialer knows the address
	out.URL.RawQuery = pr.In.URL.RawQuery                       // as it came, even where Go would not parse it
	out.Host = pr.In.Host
	if mask := q.route.Network.MaskRequestHost; mask != "" && q.port != GuestPort {
		out.Host = strings.ReplaceAll(mask, "${PORT}", strconv.Itoa(q.port))
	}
	for _, h := range []string{HeaderSandboxID, HeaderSandboxPort, headerTrafficToken, "X-Api-Key", "X-Admin-Token", "X-Team-Id"} {
		out.Header.Del(h)
	}
	if strings.HasPrefix(strings.ToLower(out.Header.Get("Authorization")), "bearer e2b_") {
		out.Header.Del("Authorization") // an API key of the node, not a token of the server inside
	}
	g.forwarded(pr)
}

// forwarded sets the X-Forwarded headers; what came with the request is kept
// only from a proxy that is trusted.
func (g *Gateway) forwarded(pr *httputil.ProxyRequest) {
	trusted := g.trusts(pr.In.RemoteAddr)
	if trusted {
		pr.Out.Header["X-Forwarded-For"] = pr.In.Header["X-Forwarded-For"]
	}
	pr.SetXForwarded()
	if !trusted {
		return
	}
	for _, h := range []string{"X-Forwarded-Host", "X-Forwarded-Proto"} {
		if v := pr.In.Header.Get(h); v != "" {
			pr.Out.Header.Set(h, v)
		}
	}
}

func (g *Gateway) trusts(remote string) bool {
	if len(g.trusted) == 0 {
		return false
	}
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	for _, p := range g.trusted {
		if p.Contains(ap.Addr().Unmap()) {
			return true
		}
	}
	return false
}

// Close drops all connections to sandboxes.
func (g *Gateway) Close() error {
	g.mu.Lock()
	ups := g.upstreams
	g.upstreams = map[string]*upstream{}
	g.mu.Unlock()
	for _, up := range ups {
		up.close()
	}
	return nil
}

// debugWriter sends the proxy's own log (a client that went away, mostly) to
// the debug level.
type debugWriter struct{ log *slog.Logger }

func (d debugWriter) Write(p []byte) (int, error) {
	d.log.Debug("proxy", "message", strings.TrimSpace(string(p)))
	return len(p), nil
}

var _ http.Handler = (*Gateway)(nil)
