package network

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// takeOver does what a runtime does: it notes the addresses and removes them, so
// that the namespace's own kernel does not answer beside it.
func takeOver(t *testing.T, in place) (addrs []string, gateway string, neighbours int) {
	t.Helper()
	in.do(func() {
		eth, err := netlink.LinkByName(InnerLink)
		if err != nil {
			t.Error(err)
			return
		}
		list, err := netlink.AddrList(eth, netlink.FAMILY_V4)
		if err != nil {
			t.Error(err)
		}
		routes, err := netlink.RouteList(eth, netlink.FAMILY_V4)
		if err != nil {
			t.Error(err)
		}
		for _, r := range routes {
			if r.Gw != nil {
				gateway = r.Gw.String()
			}
		}
		neigh, err := netlink.NeighList(eth.Attrs().Index, netlink.FAMILY_V4)
		if err != nil {
			t.Error(err)
		}
		for _, n := range neigh {
			if n.State == netlink.NUD_PERMANENT && n.IP.Equal(GatewayAddr.AsSlice()) && n.HardwareAddr.String() == GatewayMAC.String() {
				neighbours++
			}
		}
		if mac := eth.Attrs().HardwareAddr.String(); mac != InnerMAC.String() {
			t.Errorf("hardware address inside: got %s, want %s", mac, InnerMAC)
		}
		if mtu := eth.Attrs().MTU; mtu != 1400 {
			t.Errorf("mtu inside: got %d, want the uplink's 1400", mtu)
		}
		for _, a := range list {
			addrs = append(addrs, a.IPNet.String())
			if err := netlink.AddrDel(eth, &a); err != nil {
				t.Error(err)
			}
		}
	})
	return addrs, gateway, neighbours
}

func TestRuntimeFindsTheAddressesAgain(t *testing.T) {
	m := open(t, Options{})
	e, in := attach(t, m, Policy{AllowInternet: true})
	for i, again := range []func() error{
		func() error { return m.Refresh(t.Context(), e.Slot) },
		func() error { _, err := m.Attach(t.Context(), e.Slot, Policy{AllowInternet: true}); return err },
		func() error { return m.Refresh(t.Context(), e.Slot) },
	} {
		addrs, gateway, neighbours := takeOver(t, in)
		if !slices.Equal(addrs, []string{"192.0.0.2/29"}) || gateway != "192.0.0.1" || neighbours != 1 {
			t.Fatalf("round %d: got addresses %v, gateway %q, %d permanent neighbours", i, addrs, gateway, neighbours)
		}
		if err := again(); err != nil {
			t.Fatal(err)
		}
	}
	web := hello(t, internet.do, "web")
	reaches(t, in.do, publicA, web, "web "+uplinkAddr.Addr().String())
}

func TestNoIPv6(t *testing.T) {
	m := open(t, Options{})
	e, in := attach(t, m, Policy{AllowInternet: true})
	count := func(link string) int {
		l, err := netlink.LinkByName(link)
		if err != nil {
			t.Error(err)
			return 0
		}
		a, err := netlink.AddrList(l, netlink.FAMILY_V6)
		if err != nil {
			t.Error(err)
		}
		return len(a)
	}
	inside := 0
	in.do(func() { inside = count(InnerLink) + count("lo") })
	if outside := count(vethName(m.instance, e.Slot)); inside+outside != 0 {
		t.Errorf("IPv6 addresses: %d inside, %d outside", inside, outside)
	}
}

func TestAttachManyAtOnce(t *testing.T) {
	m := open(t, Options{Pool: 3})
	const n = 24
	var mu sync.Mutex
	seen := map[int]Endpoint{}
	var group sync.WaitGroup
	for range n {
		group.Go(func() {
			e, err := m.Attach(context.Background(), 0, Policy{AllowInternet: true})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if _, twice := seen[e.Slot]; twice {
				t.Errorf("slot %d given out twice", e.Slot)
			}
			seen[e.Slot] = e
		})
	}
	group.Wait()
	web := hello(t, internet.do, "web")
	for _, e := range seen {
		in := placeOf(t, e)
		reaches(t, in.do, publicA, web, "web "+uplinkAddr.Addr().String())
		reaches(t, here, e.Addr, hello(t, in.do, e.NetNS), e.NetNS+" 192.0.0.1")
	}
}

func TestDetach(t *testing.T) {
	m := open(t, Options{Pool: -1})
	e, in := attach(t, m, Policy{AllowInternet: true})
	web := hello(t, internet.do, "web")
	c, err := dial(in.do, publicA, web)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := trackedFrom(t, e.Addr); got == 0 {
		t.Fatal("the open connection is not tracked")
	}
	for range 2 { // idempotent
		if err := m.Detach(t.Context(), e.Slot); err != nil {
			t.Fatal(err)
		}
	}
	m.drain(e.Slot)
	if _, err := os.Stat(e.NetNS); !os.IsNotExist(err) {
		t.Errorf("namespace file is left: %v", err)
	}
	if _, err := greeting(here, e.Addr, 1); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("connect to a detached slot: got %v, want no route", err)
	}
	if got := trackedFrom(t, e.Addr); got != 0 {
		t.Errorf("%d connections of the detached slot are still tracked", got)
	}
	next, _ := attach(t, m, Policy{})
	if next.Slot == e.Slot {
		t.Error("a slot is reused at once")
	}
	again, err := m.Attach(t.Context(), e.Slot, Policy{AllowInternet: true})
	if err != nil || again != e {
		t.Errorf("attach the same slot again: got %v, %v; want %v", again, err, e)
	}
	reaches(t, placeOf(t, again).do, publicA, web, "web "+uplinkAddr.Addr().String())
	for _, n := range []int{0, 4000} {
		if err := m.Detach(t.Context(), n); err != nil {
			t.Errorf("detach slot %d, which nobody has: %v", n, err)
		}
	}
}

// drain waits for work on a slot to end.
func (m *Manager) drain(n int) {
	s := m.slot(n)
	s.mu.Lock()
	defer s.mu.Unlock()
}

func trackedFrom(t *testing.T, a netip.Addr) (n int) {
	t.Helper()
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if f.Forward.SrcIP.Equal(a.AsSlice()) {
			n++
		}
	}
	return n
}

func TestSubnetUsedUp(t *testing.T) {
	m := open(t, Options{Subnet: netip.MustParsePrefix("10.77.0.0/28"), Pool: -1})
	for range 14 {
		if _, err := m.Attach(t.Context(), 0, Policy{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := m.Attach(t.Context(), 0, Policy{}); !errors.Is(err, ErrFull) {
		t.Fatalf("attach with no slot left: got %v, want ErrFull", err)
	}
	if _, err := m.Attach(t.Context(), 15, Policy{}); err == nil {
		t.Error("attach the broadcast address: got no error")
	}
	if err := m.Detach(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	m.drain(7)
	if e, err := m.Attach(t.Context(), 0, Policy{}); err != nil || e.Slot != 7 {
		t.Errorf("attach with one slot free: got %v, %v; want slot 7", e, err)
	}
}

func TestSubnetAvoidsRoutes(t *testing.T) {
	first := open(t, Options{Instance: "aaaa", Pool: -1})
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	// The same instance would start its search at the same place.
	got, err := chooseSubnet(h, "aaaa", netip.Prefix{})
	if err != nil || got.Overlaps(first.Subnet()) {
		t.Errorf("got %v, %v; want a subnet apart from %v", got, err, first.Subnet())
	}
	for _, bad := range []string{"10.0.0.0/29", "10.0.0.0/7", "fd00::/64"} {
		if _, err := New(Options{Instance: "bbbb", Dir: t.TempDir(), Subnet: netip.MustParsePrefix(bad)}); err == nil {
			t.Errorf("subnet %s: got no error", bad)
		}
	}
	for _, bad := range []string{"", "xyz1", "ABCD", "12345"} {
		if _, err := New(Options{Instance: bad, Dir: t.TempDir()}); err == nil {
			t.Errorf("instance %q: got no error", bad)
		}
	}
}

func TestAfterClose(t *testing.T) {
	m := open(t, Options{})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Attach(t.Context(), 0, Policy{}); !errors.Is(err, ErrClosed) {
		t.Errorf("attach: got %v, want ErrClosed", err)
	}
	if err := m.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
}

func TestCancelledContext(t *testing.T) {
	m := open(t, Options{Pool: -1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, attachErr := m.Attach(ctx, 1, Policy{})
	_, syncErr := m.Sync(ctx, map[int]Policy{1: {}})
	for what, err := range map[string]error{
		"attach": attachErr, "refresh": m.Refresh(ctx, 1), "set policy": m.SetPolicy(ctx, 1, Policy{}),
		"detach": m.Detach(ctx, 1), "sync": syncErr,
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got %v, want cancelled", what, err)
		}
	}
}

func BenchmarkAttach(b *testing.B) {
	for _, c := range []struct {
		name string
		pool int
	}{{"pool", 64}, {"no pool", -1}} {
		b.Run(c.name, func(b *testing.B) {
			m, err := New(Options{Instance: InstanceOf(b.TempDir()), Dir: b.TempDir() + "/run", Pool: c.pool})
			if err != nil {
				b.Fatal(err)
			}
			defer func() {
				if err := m.Destroy(context.Background()); err != nil {
					b.Error(err)
				}
			}()
			for b.Loop() {
				b.StopTimer()
				for c.pool > 0 && m.readyCount() == 0 {
					m.wake()
				}
				b.StartTimer()
				e, err := m.Attach(context.Background(), 0, Policy{AllowInternet: true})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := m.Detach(context.Background(), e.Slot); err != nil {
					b.Fatal(err)
				}
				m.drain(e.Slot)
				b.StartTimer()
			}
		})
	}
}

func (m *Manager) readyCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.ready)
}
