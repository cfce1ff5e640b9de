package gateway

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

const (
	dialTimeout = 5 * time.Second
	idleTimeout = 90 * time.Second
	idlePerPort = 64
	sweepEvery  = time.Minute
	bufferSize  = 128 << 10
)

// upstream is the connections to one generation of one sandbox.
type upstream struct {
	route     sandbox.Route
	transport *http.Transport
	open      atomic.Int64 // requests
	lastUsed  atomic.Int64 // unix nanoseconds

	mu     sync.Mutex
	conns  map[*conn]struct{}
	closed bool
}

// dialError is a failure to connect: nothing of the request was sent.
type dialError struct {
	port int
	err  error
}

func (e *dialError) Error() string { return fmt.Sprintf("dial port %d: %v", e.port, e.err) }
func (e *dialError) Unwrap() error { return e.err }

// conn is a connection that its upstream can close from aside.
type conn struct {
	net.Conn
	up   *upstream
	once sync.Once
	err  error
}

func (c *conn) Close() error {
	c.once.Do(func() {
		c.up.mu.Lock()
		delete(c.up.conns, c)
		c.up.mu.Unlock()
		c.err = c.Conn.Close()
	})
	return c.err
}

// CloseWrite ends one direction, as upgraded connections do.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return c.Close()
}

func (g *Gateway) newUpstream(rt sandbox.Route) *upstream {
	up := &upstream{route: rt, conns: map[*conn]struct{}{}}
	up.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
			_, p, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			port, err := strconv.Atoi(p)
			if err != nil {
				return nil, err
			}
			return up.dial(ctx, g.dialer, port)
		},
		DisableCompression:  true,
		MaxIdleConnsPerHost: idlePerPort,
		IdleConnTimeout:     idleTimeout,
		ReadBufferSize:      32 << 10,
		WriteBufferSize:     32 << 10,
		// No Proxy: the way to a sandbox is never another's.
	}
	return up
}

func (u *upstream) dial(ctx context.Context, d Dialer, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	nc, err := d.DialPort(ctx, u.route, port)
	if err != nil {
		return nil, &dialError{port: port, err: err}
	}
	c := &conn{Conn: nc, up: u}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		_ = nc.Close()
		return nil, &dialError{port: port, err: net.ErrClosed}
	}
	u.conns[c] = struct{}{}
	return c, nil
}

// close breaks all connections, also those with a request on them.
func (u *upstream) close() {
	u.mu.Lock()
	u.closed = true
	conns := make([]*conn, 0, len(u.conns))
	for c := range u.conns {
		conns = append(conns, c)
	}
	u.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
	}
	u.transport.CloseIdleConnections()
}

func (u *upstream) leave() {
	u.lastUsed.Store(time.Now().UnixNano())
	u.open.Add(-1)
}

// enter gives the upstream of a route, counting one more request on it; nil when
// there are too many. An older generation's connections are closed: the process
// at their other end is gone. A caller that comes with an older one than known
// was routed before the replacement and gets the newer.
func (g *Gateway) enter(id string, rt sandbox.Route) *upstream {
	g.mu.Lock()
	g.sweep()
	up := g.upstreams[id]
	var old *upstream
	if up == nil || up.route.Generation < rt.Generation {
		old, up = up, g.newUpstream(rt)
		g.upstreams[id] = up
	}
	entered := up.open.Add(1) <= int64(g.maxConns)
	if !entered {
		up.leave()
	}
	g.mu.Unlock()
	if old != nil {
		old.close()
	}
	if !entered {
		return nil
	}
	return up
}

// sweep forgets sandboxes that had no traffic for long, so that the map does
// not grow with every sandbox that ever was. g.mu is held.
func (g *Gateway) sweep() {
	now := time.Now()
	if now.Before(g.nextSweep) {
		return
	}
	g.nextSweep = now.Add(sweepEvery)
	for id, up := range g.upstreams {
		if up.open.Load() == 0 && now.UnixNano()-up.lastUsed.Load() > int64(idleTimeout) {
			delete(g.upstreams, id)
			up.transport.CloseIdleConnections()
		}
	}
}

// Disconnect breaks every connection to the sandbox, streams and WebSockets
// included. To be called when its process was ended (paused, deleted, crashed):
// the other end cannot say so itself, and clients would wait for ever.
func (g *Gateway) Disconnect(id string) {
	g.mu.Lock()
	up := g.upstreams[id]
	delete(g.upstreams, id)
	g.mu.Unlock()
	if up != nil {
		up.close()
	}
}

// directDialer is the way to an address that this machine reaches.
type directDialer struct{}

// Keep-alive ends connections whose other end vanished without a word, should
// nobody call Disconnect.
var direct = net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
	Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 4,
}}

func (directDialer) DialPort(ctx context.Context, rt sandbox.Route, port int) (net.Conn, error) {
	return direct.DialContext(ctx, "tcp", net.JoinHostPort(rt.Addr.String(), strconv.Itoa(port)))
}

// bufferPool lends buffers for copying bodies.
type bufferPool struct{ pool sync.Pool }

var buffers bufferPool

func (b *bufferPool) Get() []byte {
	if p, ok := b.pool.Get().(*[]byte); ok {
		return *p
	}
	return make([]byte, bufferSize)
}

func (b *bufferPool) Put(p []byte) { b.pool.Put(&p) }
