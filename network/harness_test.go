package network

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// patience bounds what must happen; it only matters when a test fails.
const patience = 20 * time.Second

// open makes a manager that is destroyed at the end, and checks that nothing of
// it is left then.
func open(t *testing.T, o Options) *Manager {
	t.Helper()
	if o.Instance == "" {
		o.Instance = InstanceOf(t.TempDir())
	}
	if o.Dir == "" {
		o.Dir = t.TempDir() + "/run"
	}
	if len(o.Upstream) == 0 {
		o.Upstream = []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:9")}
	}
	o.Logger = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	m, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Destroy(context.Background()); err != nil {
			t.Error("destroy:", err)
		}
		checkGone(t, m)
	})
	return m
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	fmt.Fprint(os.Stderr, w.t.Name(), ": ", string(b))
	return len(b), nil
}

func checkGone(t *testing.T, m *Manager) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, vethPrefix(m.instance)) {
			t.Errorf("link %s is left", l.Attrs().Name)
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dst != nil && m.subnet.Contains(netip.AddrFrom4([4]byte(r.Dst.IP.To4()))) {
			t.Errorf("route %s is left", r)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), m.dir) {
		t.Errorf("mounts are left under %s:\n%s", m.dir, mounts)
	}
	if _, err := os.Stat(m.root); !os.IsNotExist(err) {
		t.Errorf("folder %s is left", m.root)
	}
	if ok, err := m.fw.present(); ok || err != nil {
		t.Errorf("table is left: %v %v", ok, err)
	}
}

func attach(t *testing.T, m *Manager, p Policy) (Endpoint, place) {
	t.Helper()
	e, err := m.Attach(t.Context(), 0, p)
	if err != nil {
		t.Fatal(err)
	}
	return e, placeOf(t, e)
}

func prefixes(t *testing.T, list ...string) []netip.Prefix {
	t.Helper()
	p, err := ParsePrefixes(list)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// dial connects from a namespace.
func dial(in runner, a netip.Addr, port uint16) (net.Conn, error) {
	var c net.Conn
	var err error
	in(func() {
		d := net.Dialer{Timeout: patience}
		c, err = d.Dial("tcp4", netip.AddrPortFrom(a, port).String())
	})
	if err == nil {
		err = c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

// greeting is what a server at the address says first.
func greeting(in runner, a netip.Addr, port uint16) (string, error) {
	c, err := dial(in, a, port)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return bufio.NewReader(c).ReadString('\n')
}

func reaches(t *testing.T, in runner, a netip.Addr, port uint16, want string) {
	t.Helper()
	got, err := greeting(in, a, port)
	if err != nil || strings.TrimSpace(got) != want {
		t.Errorf("connect to %s: got %q, %v; want %q", a, got, err, want)
	}
}

// refused checks that the firewall says no, and at once.
func refused(t *testing.T, in runner, a netip.Addr, port uint16) {
	t.Helper()
	if got, err := greeting(in, a, port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connect to %s: got %q, %v; want it refused", a, got, err)
	}
}

// packets is a UDP socket on all addresses of a namespace.
func packets(t *testing.T, in runner) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	var err error
	in(func() { c, err = net.ListenUDP("udp4", &net.UDPAddr{}) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return c
}

func portOf(c *net.UDPConn) uint16 { return uint16(c.LocalAddr().(*net.UDPAddr).Port) }

func send(t *testing.T, c *net.UDPConn, a netip.Addr, port uint16, text string) {
	t.Helper()
	if _, err := c.WriteToUDPAddrPort([]byte(text), netip.AddrPortFrom(a, port)); err != nil {
		t.Fatalf("send to %s: %v", a, err)
	}
}

// receives checks what the next datagram is. With a datagram that must not
// arrive sent before one that does, no time needs to be waited.
func receives(t *testing.T, c *net.UDPConn, want string) netip.AddrPort {
	t.Helper()
	b := make([]byte, 65536)
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil || string(b[:n]) != want {
		t.Errorf("received %.40q (%d bytes), %v; want %.40q", b[:n], n, err, want)
	}
	return from
}

// eventually waits for what happens in the background.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !f(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so in time: %s", what)
		}
	}
}
