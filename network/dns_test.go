package network

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// nameServer is an upstream in the host's namespace: big.test has an answer that
// fits TCP only, silent.test none, everything else is 198.51.100.7.
func nameServer(t *testing.T) netip.AddrPort {
	t.Helper()
	pc, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp4", pc.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	answer := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetReply(q)
		hdr := dns.RR_Header{Name: q.Question[0].Name, Class: dns.ClassINET, Ttl: 1}
		switch q.Question[0].Name {
		case "silent.test.":
			return
		case "big.test.":
			hdr.Rrtype = dns.TypeTXT
			for range 20 {
				a.Answer = append(a.Answer, &dns.TXT{Hdr: hdr, Txt: []string{strings.Repeat("x", 200)}})
			}
			if w.RemoteAddr().Network() == "udp" {
				a.Truncate(dns.MinMsgSize)
			}
		default:
			hdr.Rrtype = dns.TypeA
			a.Answer = []dns.RR{&dns.A{Hdr: hdr, A: publicA.AsSlice()}}
		}
		_ = w.WriteMsg(a)
	})
	for _, s := range []*dns.Server{{PacketConn: pc, Handler: answer}, {Listener: l, Handler: answer}} {
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { _ = s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() { _ = s.Shutdown() })
	}
	return netip.MustParseAddrPort(pc.LocalAddr().String())
}

// ask puts a question to a server from a namespace.
func ask(in runner, network string, server netip.Addr, name string, typ uint16) (*dns.Msg, error) {
	var c *dns.Conn
	var err error
	client := dns.Client{Net: network, Timeout: patience}
	in(func() { c, err = client.Dial(netip.AddrPortFrom(server, 53).String()) })
	if err != nil {
		return nil, err
	}
	defer c.Close()
	q := new(dns.Msg).SetQuestion(name, typ).SetEdns0(4096, false)
	a, _, err := client.ExchangeWithConn(q, c)
	return a, err
}

func TestNames(t *testing.T) {
	up := nameServer(t)
	// Two daemons: both forwarders answer at the same address.
	for _, instance := range []string{"0d01", "0d02"} {
		m := open(t, Options{Instance: instance, Upstream: []netip.AddrPort{up}, Pool: 1})
		e, in := attach(t, m, Policy{AllowInternet: true})
		for _, network := range []string{"udp", "tcp"} {
			a, err := ask(in.do, network, GatewayAddr, "some.test.", dns.TypeA)
			if err != nil || len(a.Answer) != 1 || !a.Answer[0].(*dns.A).A.Equal(publicA.AsSlice()) {
				t.Errorf("%s over %s: got %v, %v", instance, network, a, err)
			}
		}
		if a, err := ask(in.do, "udp", GatewayAddr, "big.test.", dns.TypeTXT); err != nil || !a.Truncated {
			t.Errorf("big answer over udp: got %v, %v; want it truncated", a, err)
		}
		if a, err := ask(in.do, "tcp", GatewayAddr, "big.test.", dns.TypeTXT); err != nil || len(a.Answer) != 20 {
			t.Errorf("big answer over tcp: got %v, %v; want 20 records", a, err)
		}
		if err := m.SetPolicy(t.Context(), e.Slot, Policy{AllowOut: prefixes(t, "198.51.100.7")}); err != nil {
			t.Fatal(err)
		}
		for _, network := range []string{"udp", "tcp"} {
			a, err := ask(in.do, network, GatewayAddr, "some.test.", dns.TypeA)
			if err != nil || a.Rcode != dns.RcodeRefused || !strings.Contains(a.String(), "no internet access") {
				t.Errorf("without internet over %s: got %v, %v; want it refused with the reason", network, a, err)
			}
		}
	}
}

func TestNamesFromElsewhere(t *testing.T) {
	m := open(t, Options{Upstream: []netip.AddrPort{nameServer(t)}})
	if _, err := m.Attach(t.Context(), 0, Policy{AllowInternet: true}); err != nil {
		t.Fatal(err)
	}
	// The host itself is no sandbox; nobody else gets even that far.
	c := dns.Client{Timeout: patience}
	a, _, err := c.Exchange(new(dns.Msg).SetQuestion("some.test.", dns.TypeA), netip.AddrPortFrom(GatewayAddr, m.dns.port).String())
	if err != nil || a.Rcode != dns.RcodeRefused {
		t.Errorf("asked by the host: got %v, %v; want it refused", a, err)
	}
}

func TestNoNameServerAnswers(t *testing.T) {
	dead, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := netip.MustParseAddrPort(dead.LocalAddr().String())
	dead.Close()
	m := open(t, Options{Upstream: []netip.AddrPort{closed}})
	_, in := attach(t, m, Policy{AllowInternet: true})
	if a, err := ask(in.do, "udp", GatewayAddr, "some.test.", dns.TypeA); err != nil || a.Rcode != dns.RcodeServerFailure {
		t.Errorf("got %v, %v; want SERVFAIL", a, err)
	}

	second := open(t, Options{Upstream: []netip.AddrPort{closed, nameServer(t)}})
	_, in = attach(t, second, Policy{AllowInternet: true})
	if a, err := ask(in.do, "udp", GatewayAddr, "some.test.", dns.TypeA); err != nil || len(a.Answer) != 1 {
		t.Errorf("with a second server: got %v, %v; want its answer", a, err)
	}
}

// denier is a domain policy in miniature.
type denier struct {
	Resolver
	slots chan int
}

func (d denier) Resolve(ctx context.Context, slot int, q *dns.Msg) (*dns.Msg, error) {
	d.slots <- slot
	if q.Question[0].Name == "evil.test." {
		return nil, errors.New("not this one")
	}
	return d.Resolver.Resolve(ctx, slot, q)
}

func TestWrapResolver(t *testing.T) {
	slots := make(chan int, 2)
	m := open(t, Options{
		Upstream:     []netip.AddrPort{nameServer(t)},
		WrapResolver: func(r Resolver) Resolver { return denier{r, slots} },
	})
	e, in := attach(t, m, Policy{AllowInternet: true})
	for name, code := range map[string]int{"evil.test.": dns.RcodeServerFailure, "good.test.": dns.RcodeSuccess} {
		if a, err := ask(in.do, "udp", GatewayAddr, name, dns.TypeA); err != nil || a.Rcode != code {
			t.Errorf("%s: got %v, %v; want code %d", name, a, err, code)
		}
		if got := <-slots; got != e.Slot {
			t.Errorf("%s: asked by slot %d, want %d", name, got, e.Slot)
		}
	}
}

// stuck never answers before its context ends.
type stuck struct{ asked chan struct{} }

func (s stuck) Resolve(ctx context.Context, _ int, _ *dns.Msg) (*dns.Msg, error) {
	s.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestTooManyQuestions(t *testing.T) {
	asked := make(chan struct{}, 2*maxPerSandbox)
	m := open(t, Options{WrapResolver: func(Resolver) Resolver { return stuck{asked} }})
	_, in := attach(t, m, Policy{AllowInternet: true})
	flood := packets(t, in.do)
	q, err := new(dns.Msg).SetQuestion("slow.test.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	for range maxPerSandbox {
		send(t, flood, GatewayAddr, 53, string(q))
		<-asked
	}
	if a, err := ask(in.do, "udp", GatewayAddr, "one.test.", dns.TypeA); err != nil || a.Rcode != dns.RcodeServerFailure ||
		!strings.Contains(a.String(), "too many") {
		t.Errorf("one question too many: got %v, %v; want SERVFAIL that says so", a, err)
	}
	var conns []net.Conn
	for range maxConnsPerSlot {
		c, err := dial(in.do, GatewayAddr, 53)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	c, err := dial(in.do, GatewayAddr, 53)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		t.Errorf("one connection too many: got %v, want it closed", err)
	}
	_ = conns
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func TestUpstreamFromFile(t *testing.T) {
	u := &upstream{}
	got, err := u.current()
	if err != nil || len(got) == 0 || got[0].Port() != 53 {
		t.Fatalf("servers of %s: got %v, %v", resolvConf, got, err)
	}
	u.looked = time.Time{}
	if again, err := u.current(); err != nil || len(again) != len(got) {
		t.Errorf("looked again: got %v, %v", again, err)
	}
}
