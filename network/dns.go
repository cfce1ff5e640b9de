package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// Resolver answers one DNS question of a sandbox. An error becomes SERVFAIL.
type Resolver interface {
	Resolve(ctx context.Context, slot int, question *dns.Msg) (*dns.Msg, error)
}

// Limits of the forwarder. Beyond them a question is answered SERVFAIL at once
// and a connection closed; nothing is dropped in silence.
const (
	maxQuestions     = 1024 // in flight
	maxPerSandbox    = 128
	maxConns         = 512 // TCP
	maxConnsPerSlot  = 16
	upstreamTimeout  = 2 * time.Second // one server, one try
	questionTimeout  = 8 * time.Second
	upstreamRounds   = 2
	resolvConf       = "/etc/resolv.conf"
	resolvConfMaxAge = 5 * time.Second
	bindTries        = 16
)

// forwarder listens on the gateway address, on a port of its own: the table
// redirects port 53 of the instance's veths there, so daemons beside each other
// do not meet. The address sits on the veths, of which there may be none yet;
// IP_FREEBIND lets it be bound before it exists.
//
// Its clients are told apart by their outside addresses. Who is not a slot of
// the instance with names allowed is answered REFUSED.
type forwarder struct {
	port     uint16
	allowed  func(slot int) bool
	inFlight func(slot int) *atomic.Int32
	subnet   netip.Prefix
	resolver Resolver
	log      *slog.Logger
	total    atomic.Int32
	udp, tcp *dns.Server
	serving  sync.WaitGroup
	ctx      context.Context
	cancel   context.CancelFunc
}

func newForwarder(m *Manager, o Options) (*forwarder, error) {
	f := &forwarder{
		subnet: m.subnet, log: m.log, resolver: &upstream{servers: o.Upstream},
		allowed: func(slot int) bool {
			r, ok := m.fw.rulesOf(slot)
			return ok && r.resolves()
		},
		inFlight: func(slot int) *atomic.Int32 { return &m.slot(slot).asking },
	}
	if o.WrapResolver != nil {
		f.resolver = o.WrapResolver(f.resolver)
	}
	pc, l, err := bindDNS()
	if err != nil {
		return nil, fmt.Errorf("dns forwarder: %w", err)
	}
	f.port = netip.MustParseAddrPort(pc.LocalAddr().String()).Port()
	f.ctx, f.cancel = context.WithCancel(context.Background())
	limited := &limitedListener{Listener: l, subnet: m.subnet, open: map[int]int{}}
	f.udp = &dns.Server{PacketConn: pc, Handler: f}
	f.tcp = &dns.Server{Listener: limited, Handler: f, MaxTCPQueries: 128, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second}
	return f, nil
}

// serve starts answering; the table must be installed.
func (f *forwarder) serve() {
	for _, s := range []*dns.Server{f.udp, f.tcp} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		f.serving.Add(1)
		failed := make(chan struct{})
		go func() {
			defer f.serving.Done()
			defer close(failed)
			if err := s.ActivateAndServe(); err != nil && f.ctx.Err() == nil {
				f.log.Error("dns forwarder stopped", "error", err)
			}
		}()
		select { // a shutdown before the start would be lost
		case <-started:
		case <-failed:
		}
	}
}

func (f *forwarder) close() {
	f.cancel()
	for _, s := range []*dns.Server{f.udp, f.tcp} {
		if err := s.Shutdown(); err != nil { // never served
			if s.PacketConn != nil {
				s.PacketConn.Close()
			}
			if s.Listener != nil {
				s.Listener.Close()
			}
		}
	}
	f.serving.Wait()
}

// bindDNS binds one port of the gateway address for both protocols.
func bindDNS() (net.PacketConn, net.Listener, error) {
	free := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) }); e != nil {
			return e
		}
		return err
	}}
	var last error
	for range bindTries {
		pc, err := free.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(GatewayAddr, 0).String())
		if err != nil {
			return nil, nil, err
		}
		l, err := free.Listen(context.Background(), "tcp4", pc.LocalAddr().String())
		if err == nil {
			return pc, l, nil
		}
		last = err
		pc.Close()
	}
	return nil, nil, last
}

// ServeDNS answers one question.
func (f *forwarder) ServeDNS(w dns.ResponseWriter, q *dns.Msg) {
	slot := slotOfClient(f.subnet, w.RemoteAddr())
	switch {
	case slot == 0:
		f.answer(w, q, dns.RcodeRefused, dns.ExtendedErrorCodeProhibited, "not a sandbox of this daemon")
		return
	case !f.allowed(slot):
		f.answer(w, q, dns.RcodeRefused, dns.ExtendedErrorCodeProhibited, "this sandbox has no internet access")
		return
	case len(q.Question) != 1 || q.Opcode != dns.OpcodeQuery:
		f.answer(w, q, dns.RcodeNotImplemented, dns.ExtendedErrorCodeNotSupported, "one query at a time")
		return
	}
	mine := f.inFlight(slot)
	defer mine.Add(-1)
	defer f.total.Add(-1)
	if n, all := mine.Add(1), f.total.Add(1); n > maxPerSandbox || all > maxQuestions {
		f.answer(w, q, dns.RcodeServerFailure, dns.ExtendedErrorCodeOther, "too many questions in flight")
		return
	}
	ctx, cancel := context.WithTimeout(f.ctx, questionTimeout)
	defer cancel()
	a, err := f.resolver.Resolve(context.WithValue(ctx, overTCP{}, w.RemoteAddr().Network() == "tcp"), slot, q)
	if err != nil {
		f.log.Debug("dns question failed", "slot", slot, "error", err)
		f.answer(w, q, dns.RcodeServerFailure, dns.ExtendedErrorCodeNetworkError, "no name server answered")
		return
	}
	a.Id = q.Id
	f.write(w, a)
}

// overTCP is the context key that tells how the client asked.
type overTCP struct{}

func (f *forwarder) answer(w dns.ResponseWriter, q *dns.Msg, code int, extended uint16, text string) {
	a := new(dns.Msg).SetRcode(q, code)
	if q.IsEdns0() != nil {
		a.SetEdns0(dns.DefaultMsgSize, false)
		o := a.IsEdns0()
		o.Option = append(o.Option, &dns.EDNS0_EDE{InfoCode: extended, ExtraText: text})
	}
	f.write(w, a)
}

func (f *forwarder) write(w dns.ResponseWriter, a *dns.Msg) {
	if err := w.WriteMsg(a); err != nil {
		f.log.Debug("dns answer not delivered", "error", err)
	}
}

func slotOfClient(subnet netip.Prefix, a net.Addr) int {
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return 0
	}
	return index(subnet, p.Addr().Unmap())
}

// upstream asks the configured servers, or the machine's own.
type upstream struct {
	servers []netip.AddrPort // fixed; empty: those of /etc/resolv.conf

	mu      sync.Mutex
	found   []netip.AddrPort
	looked  time.Time
	changed time.Time
}

// Resolve asks each server in turn, twice round. A truncated answer is fetched
// again over TCP if the client can take it whole.
func (u *upstream) Resolve(ctx context.Context, _ int, q *dns.Msg) (*dns.Msg, error) {
	servers, err := u.current()
	if err != nil {
		return nil, err
	}
	ask := q.Copy()
	ask.Id = dns.Id() // the client's may be guessable
	tcp, _ := ctx.Value(overTCP{}).(bool)
	var errs []error
	for range upstreamRounds {
		for _, s := range servers {
			a, err := exchange(ctx, ask, s, tcp)
			if err == nil {
				return a, nil
			}
			errs = append(errs, fmt.Errorf("ask %s: %w", s, err))
			if ctx.Err() != nil {
				return nil, errors.Join(errs...)
			}
		}
	}
	return nil, errors.Join(errs...)
}

func exchange(ctx context.Context, q *dns.Msg, server netip.AddrPort, tcp bool) (*dns.Msg, error) {
	c := dns.Client{Net: "udp", Timeout: upstreamTimeout}
	a, _, err := c.ExchangeContext(ctx, q, server.String())
	if err == nil && a.Truncated && tcp {
		c.Net = "tcp"
		a, _, err = c.ExchangeContext(ctx, q, server.String())
	}
	return a, err
}

// current gives the servers; the file is read again when it changes.
func (u *upstream) current() ([]netip.AddrPort, error) {
	if len(u.servers) > 0 {
		return u.servers, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.found) > 0 && time.Since(u.looked) < resolvConfMaxAge {
		return u.found, nil
	}
	st, err := os.Stat(resolvConf)
	if err != nil {
		return nil, err
	}
	u.looked = time.Now()
	if len(u.found) > 0 && st.ModTime().Equal(u.changed) {
		return u.found, nil
	}
	conf, err := dns.ClientConfigFromFile(resolvConf)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", resolvConf, err)
	}
	u.found, u.changed = nil, st.ModTime()
	for _, s := range conf.Servers {
		if a, err := netip.ParseAddr(s); err == nil {
			u.found = append(u.found, netip.AddrPortFrom(a, 53))
		}
	}
	if len(u.found) == 0 {
		return nil, fmt.Errorf("%s names no server", resolvConf)
	}
	return u.found, nil
}

// limitedListener keeps one sandbox from using up the daemon's descriptors.
type limitedListener struct {
	net.Listener
	subnet netip.Prefix

	mu    sync.Mutex
	total int
	open  map[int]int
}

// Accept gives the next connection that is within the limits.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		slot := slotOfClient(l.subnet, c.RemoteAddr())
		l.mu.Lock()
		fits := slot > 0 && l.total < maxConns && l.open[slot] < maxConnsPerSlot
		if fits {
			l.total++
			l.open[slot]++
		}
		l.mu.Unlock()
		if fits {
			return &countedConn{Conn: c, done: sync.OnceFunc(func() { l.left(slot) })}, nil
		}
		c.Close()
	}
}

func (l *limitedListener) left(slot int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.open[slot]--; l.open[slot] == 0 {
		delete(l.open, slot)
	}
}

type countedConn struct {
	net.Conn
	done func()
}

func (c *countedConn) Close() error {
	c.done()
	return c.Conn.Close()
}
