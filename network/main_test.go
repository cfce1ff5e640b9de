package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The tests run in a network and mount namespace of their own, which plays the
// host: they may set routes, flush rulesets and leave nothing behind.
const insideEnv = "HOLDFAST_NETWORK_TEST_INSIDE"

// The "internet" is one more namespace behind the host's uplink. It owns all of
// these addresses, public and private, so that a refused connection is refused
// by policy and not for want of a server.
var (
	uplinkAddr  = netip.MustParsePrefix("192.0.2.1/24")
	routerAddr  = netip.MustParsePrefix("192.0.2.2/24")
	publicA     = netip.MustParseAddr("198.51.100.7")
	publicB     = netip.MustParseAddr("203.0.113.9")
	privateA    = netip.MustParseAddr("10.99.0.1")
	metadata    = netip.MustParseAddr("169.254.169.254")
	unreachable = []netip.Addr{
		privateA, metadata, netip.MustParseAddr("172.16.5.5"), netip.MustParseAddr("192.168.44.1"),
		netip.MustParseAddr("100.64.0.9"), netip.MustParseAddr("169.254.1.1"),
	}
)

var internet place

func TestMain(m *testing.M) {
	if os.Getenv(insideEnv) == "" {
		os.Exit(reexec())
	}
	if err := playHost(); err != nil {
		fmt.Fprintln(os.Stderr, "set up the test's host:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func reexec() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return exit.ExitCode()
	case err != nil:
		fmt.Fprintln(os.Stderr, "these tests make network namespaces and need root:", err)
		return 1
	}
	return 0
}

func playHost() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	if internet, err = newPlace(); err != nil {
		return err
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: "up0", MTU: 1400})
	veth.PeerName, veth.PeerNamespace, veth.PeerMTU = "out0", netlink.NsFd(internet.fd), 1400
	if err := errors.Join(h.LinkSetUp(lo), h.LinkAdd(veth), h.AddrAdd(veth, &netlink.Addr{IPNet: ipNet(uplinkAddr)}), h.LinkSetUp(veth)); err != nil {
		return err
	}
	var inside error
	internet.do(func() { inside = playInternet() })
	if inside != nil {
		return inside
	}
	return h.RouteAdd(&netlink.Route{LinkIndex: veth.Attrs().Index, Gw: routerAddr.Addr().AsSlice()})
}

func playInternet() error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	out, err := h.LinkByName("out0")
	if err != nil {
		return err
	}
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	errs := []error{h.LinkSetUp(lo), h.AddrAdd(out, &netlink.Addr{IPNet: ipNet(routerAddr)}), h.LinkSetUp(out)}
	for _, a := range append([]netip.Addr{publicA, publicB}, unreachable...) {
		errs = append(errs, h.AddrAdd(lo, &netlink.Addr{IPNet: hostNet(a)}))
	}
	// An intruder who knows where sandboxes are.
	errs = append(errs, h.RouteAdd(&netlink.Route{LinkIndex: out.Attrs().Index, Gw: uplinkAddr.Addr().AsSlice()}))
	return errors.Join(errs...)
}

// place is a network namespace in which code can be run.
type place struct{ fd int }

func newPlace() (place, error) {
	type result struct {
		fd  int
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{-1, err}
			return
		}
		fd, err := openThreadNS()
		done <- result{fd, err}
	}()
	r := <-done
	return place{r.fd}, r.err
}

func placeOf(t *testing.T, e Endpoint) place {
	t.Helper()
	fd, err := unix.Open(e.NetNS, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return place{fd}
}

// do runs f on a thread that is in the namespace. Sockets that f makes stay there.
func (p place) do(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		back, err := openThreadNS()
		if err != nil {
			panic(err)
		}
		defer unix.Close(back)
		if err := unix.Setns(p.fd, unix.CLONE_NEWNET); err != nil {
			panic(err)
		}
		f()
		if err := unix.Setns(back, unix.CLONE_NEWNET); err == nil {
			runtime.UnlockOSThread()
		}
	}()
	<-done
}

// here runs f in the host's namespace, with the same shape as place.do.
func here(f func()) { f() }

type runner func(func())

// hello serves TCP: it greets with name and the caller's address, then echoes.
func hello(t *testing.T, in runner, name string) (port uint16) {
	t.Helper()
	var l net.Listener
	var err error
	in(func() { l, err = net.Listen("tcp4", "0.0.0.0:0") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "%s %s\n", name, c.RemoteAddr().(*net.TCPAddr).IP)
				b := make([]byte, 64)
				for {
					n, err := c.Read(b)
					if err != nil {
						return
					}
					if _, err := c.Write(b[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}
