package network

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestPrivateHostAndNeighboursAreOutOfReach(t *testing.T) {
	m := open(t, Options{})
	web, host := hello(t, internet.do, "web"), hello(t, here, "host")
	everything := Policy{AllowInternet: true, AllowOut: prefixes(t, "0.0.0.0/0", "192.0.0.0/24", "192.0.2.1", m.Subnet().String())}
	other, otherIn := attach(t, m, everything)
	_, in := attach(t, m, Policy{AllowInternet: true})
	_, greedy := attach(t, m, everything)
	neighbour := hello(t, otherIn.do, "neighbour")

	reaches(t, here, other.Addr, neighbour, "neighbour 192.0.0.1") // the host itself may
	for _, p := range []place{in, greedy} {
		for _, a := range unreachable {
			refused(t, p.do, a, web)
		}
		refused(t, p.do, other.Addr, neighbour)
		for _, a := range []netip.Addr{uplinkAddr.Addr(), GatewayAddr} {
			refused(t, p.do, a, host)
		}
	}
}

func TestOtherUsersOfTheHostAreRefused(t *testing.T) {
	m := open(t, Options{})
	e, in := attach(t, m, Policy{AllowInternet: true})
	port := hello(t, in.do, "box")
	reaches(t, here, e.Addr, port, "box 192.0.0.1")
	refused := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread, and who it is, end with this
		if _, err := unix.SetfsuidRetUid(65534); err != nil {
			refused <- err
			return
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			refused <- err
			return
		}
		defer unix.Close(fd)
		timeout := unix.NsecToTimeval(int64(5 * time.Second))
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout)
		refused <- errors.Join(err, unix.Connect(fd, &unix.SockaddrInet4{Port: int(port), Addr: e.Addr.As4()}))
	}()
	if err := <-refused; !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("another user connects: %v", err)
	}
}

func TestNothingComesInFromOutside(t *testing.T) {
	m := open(t, Options{})
	e, in := attach(t, m, Policy{AllowInternet: true})
	box := packets(t, in.do)
	outside, host := packets(t, internet.do), packets(t, here)
	send(t, outside, e.Addr, portOf(box), "from outside")
	send(t, outside, InnerAddr, portOf(box), "from outside")
	send(t, host, e.Addr, portOf(box), "from the host")
	receives(t, box, "from the host")

	// Nor does an outsider speak as a sandbox to the host.
	send(t, claiming(t, internet.do, m.Addr(77)), uplinkAddr.Addr(), portOf(host), "as a sandbox")
	send(t, outside, uplinkAddr.Addr(), portOf(host), "as itself")
	receives(t, host, "as itself")
}

// claiming gives a socket that sends from an address which is not the
// namespace's.
func claiming(t *testing.T, in runner, as netip.Addr) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	var err error
	in(func() {
		lo, e := netlink.LinkByName("lo")
		if e != nil {
			err = e
			return
		}
		addr := &netlink.Addr{IPNet: hostNet(as)}
		if err = netlink.AddrAdd(lo, addr); err != nil {
			return
		}
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: as.AsSlice()})
		t.Cleanup(func() { in(func() { _ = netlink.AddrDel(lo, addr) }) })
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestSpoofedSourcesAreDropped(t *testing.T) {
	m := open(t, Options{})
	_, in := attach(t, m, Policy{AllowInternet: true})
	other, _ := attach(t, m, Policy{AllowInternet: true})
	server := packets(t, internet.do)
	for _, as := range []netip.Addr{other.Addr, uplinkAddr.Addr(), netip.MustParseAddr("192.0.0.3"), publicB} {
		send(t, claiming(t, in.do, as), publicA, portOf(server), "as "+as.String())
	}
	send(t, packets(t, in.do), publicA, portOf(server), "as itself")
	if from := receives(t, server, "as itself"); from.Addr() != uplinkAddr.Addr() {
		t.Errorf("came from %s, want it masqueraded as %s", from, uplinkAddr.Addr())
	}
}

func TestRefusalReachesUDP(t *testing.T) {
	m := open(t, Options{})
	_, in := attach(t, m, Policy{AllowInternet: true})
	for _, a := range []netip.Addr{privateA, metadata, uplinkAddr.Addr()} {
		var c net.Conn
		var err error
		in.do(func() { c, err = net.Dial("udp4", netip.AddrPortFrom(a, 9).String()) })
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("answer to a datagram to %s: got %v, want it refused", a, err)
		}
	}
}

func TestVethWithoutSlotIsMute(t *testing.T) {
	m := open(t, Options{})
	e, in := attach(t, m, Policy{AllowInternet: true})
	server, box := packets(t, internet.do), packets(t, in.do)
	if err := m.fw.clear(e.Slot); err != nil {
		t.Fatal(err)
	}
	send(t, box, publicA, portOf(server), "without")
	if err := m.SetPolicy(t.Context(), e.Slot, Policy{}); err == nil {
		t.Error("set policy of a slot that is not attached: got no error")
	}
	if _, err := m.Attach(t.Context(), e.Slot, Policy{AllowInternet: true}); err != nil {
		t.Fatal(err)
	}
	send(t, box, publicA, portOf(server), "with")
	receives(t, server, "with")
}

// Strict reverse-path filtering is what is left when the table is gone.
func TestFailsClosedWithoutTheTable(t *testing.T) {
	m := open(t, Options{Pool: -1}) // filling it would repair the table
	_, in := attach(t, m, Policy{AllowInternet: true})
	server, host, box := packets(t, internet.do), packets(t, here), packets(t, in.do)
	if err := m.fw.uninstall(); err != nil {
		t.Fatal(err)
	}
	if p := m.Check(); len(p) != 1 || !strings.Contains(p[0].What, tableName(m.instance)) {
		t.Errorf("check: got %v, want the missing table", p)
	}
	send(t, box, publicA, portOf(server), "without")
	send(t, box, uplinkAddr.Addr(), portOf(host), "without")
	send(t, packets(t, here), uplinkAddr.Addr(), portOf(host), "the host's")
	receives(t, host, "the host's")
	m.repair()
	if p := m.Check(); len(p) != 0 {
		t.Errorf("check after repair: got %v", p)
	}
	send(t, box, publicA, portOf(server), "with")
	receives(t, server, "with")
}

func TestChangeRepairsTheTable(t *testing.T) {
	m := open(t, Options{Pool: -1}) // filling it would repair the table
	web := hello(t, internet.do, "web")
	_, in := attach(t, m, Policy{AllowOut: prefixes(t, "198.51.100.7")})
	if err := m.fw.uninstall(); err != nil {
		t.Fatal(err)
	}
	_, second := attach(t, m, Policy{AllowInternet: true})
	for _, p := range []place{in, second} {
		reaches(t, p.do, publicA, web, "web "+uplinkAddr.Addr().String())
	}
	refused(t, in.do, publicB, web)
}

func TestPolicyChangesOpenConnections(t *testing.T) {
	m := open(t, Options{})
	web := hello(t, internet.do, "web")
	e, in := attach(t, m, Policy{AllowInternet: true})
	c, err := dial(in.do, publicA, web)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	echo := func() error {
		if _, err := io.WriteString(c, "x"); err != nil {
			return err
		}
		_, err := r.ReadByte()
		return err
	}
	if err := m.SetPolicy(t.Context(), e.Slot, Policy{AllowInternet: true, DenyOut: prefixes(t, "203.0.113.0/24")}); err != nil {
		t.Fatal(err)
	}
	if err := echo(); err != nil {
		t.Error("a change that does not concern it broke the connection:", err)
	}
	refused(t, in.do, publicB, web)
	if err := m.SetPolicy(t.Context(), e.Slot, Policy{}); err != nil {
		t.Fatal(err)
	}
	if err := echo(); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("connection after the internet was taken away: got %v, want it reset", err)
	}
	refused(t, in.do, publicA, web)
	if err := m.SetPolicy(t.Context(), e.Slot, Policy{AllowInternet: true}); err != nil {
		t.Fatal(err)
	}
	reaches(t, in.do, publicB, web, "web "+uplinkAddr.Addr().String())
}

// Datagrams of two sandboxes are cut into fragments that look alike: same
// source, and identifications that both kernels start to count from.
func TestFragmentsDoNotMix(t *testing.T) {
	m := open(t, Options{})
	server := packets(t, internet.do)
	var boxes []*net.UDPConn
	for range 2 {
		_, in := attach(t, m, Policy{AllowInternet: true})
		boxes = append(boxes, packets(t, in.do))
	}
	for i := range 20 {
		text := strings.Repeat(string(rune('a'+i)), 5000)
		box := boxes[i%2]
		send(t, box, routerAddr.Addr(), portOf(server), text) // answers come from there
		from := receives(t, server, text)
		if _, err := server.WriteToUDPAddrPort([]byte(text), from); err != nil {
			t.Fatal(err)
		}
		receives(t, box, text)
	}
}

// A router's "too big" quotes the packet; unless the quotation names the inner
// address, the sandbox cannot tell which connection is meant.
func TestPathMTUIsDiscovered(t *testing.T) {
	m := open(t, Options{})
	_, in := attach(t, m, Policy{AllowInternet: true})
	up, err := netlink.LinkByName("up0")
	if err != nil {
		t.Fatal(err)
	}
	const small = 1000
	narrow := &netlink.Route{LinkIndex: up.Attrs().Index, Dst: hostNet(publicB), Gw: routerAddr.Addr().AsSlice(), MTU: small, MTULock: true}
	if err := netlink.RouteAdd(narrow); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = netlink.RouteDel(narrow) })

	var c net.Conn
	in.do(func() { c, err = net.Dial("udp4", netip.AddrPortFrom(publicB, 9).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	control := func(f func(fd int) error) {
		if e := raw.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil || err != nil {
			t.Fatal(e, err)
		}
	}
	control(func(fd int) error {
		return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
	big := make([]byte, 1300)
	if _, err := c.Write(big); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the path MTU is known inside", func() bool {
		var mtu int
		control(func(fd int) (err error) {
			mtu, err = unix.GetsockoptInt(fd, unix.SOL_IP, unix.IP_MTU)
			return err
		})
		if mtu > small {
			_, _ = c.Write(big) // errors tell of the same discovery
		}
		return mtu == small
	})
}
