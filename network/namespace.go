package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// nsfsMagic is the type of the file system that namespace files are on.
const nsfsMagic = 0x6e736673

// prepareDir makes the folder for namespace files a mount of its own, private:
// mounts in it do not spread to other mount namespaces.
func prepareDir(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return fmt.Errorf("make namespace folder: %w", err)
	}
	mounted, err := isMount(dir)
	if err != nil {
		return err
	}
	if !mounted {
		if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount namespace folder %s: %w; run as root", dir, err)
		}
	}
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make namespace folder %s private: %w", dir, err)
	}
	return nil
}

func removeDir(dir string) error {
	for { // once per mount, should there be several
		err := unix.Unmount(dir, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return fmt.Errorf("unmount namespace folder %s: %w", dir, err)
		}
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove namespace folder: %w", err)
	}
	return nil
}

func isMount(path string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return false, fmt.Errorf("stat %s: %w", path, err)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// isNamespace tells whether a namespace is mounted at path.
func isNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == nsfsMagic
}

func (m *Manager) nsPath(slot int) string { return filepath.Join(m.dir, strconv.Itoa(slot)) }

func openThreadNS() (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open own network namespace: %w", err)
	}
	return fd, nil
}

// makeNamespace mounts a new namespace at path and gives a netlink handle bound
// to it. The thread that enters it either comes back or, failing that, is never
// unlocked and so ends with its goroutine: no other code can run in there.
func (m *Manager) makeNamespace(path string) (*netlink.Handle, error) {
	type result struct {
		h   *netlink.Handle
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		h, err := enterNew(path)
		if back := unix.Setns(m.hostNS, unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread()
		}
		done <- result{h, err}
	}()
	r := <-done
	return r.h, r.err
}

func enterNew(path string) (*netlink.Handle, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return nil, fmt.Errorf("make namespace file: %w", err)
	}
	f.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("make network namespace: %w", err)
	}
	// Before any link comes up: IPv6 is off inside.
	for _, scope := range []string{"all", "default"} {
		if err := sysctl("ipv6/conf/"+scope+"/disable_ipv6", "1"); err != nil {
			return nil, fmt.Errorf("switch ipv6 off: %w", err)
		}
	}
	if err := unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount network namespace %s: %w", path, err)
	}
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in namespace %s: %w", path, err)
	}
	return h, nil
}

// build makes namespace and veth of a slot, whatever may be left of an earlier
// one. On error nothing is left.
func (m *Manager) build(slot int) (err error) {
	if err := m.tear(slot); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("build network slot %d: %w", slot, err), m.tear(slot))
		}
	}()
	path := m.nsPath(slot)
	inside, err := m.makeNamespace(path)
	if err != nil {
		return err
	}
	defer inside.Close()
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()

	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = vethName(m.instance, slot), m.mtu, GatewayMAC
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerHardwareAddr, veth.PeerMTU = InnerLink, InnerMAC, uint32(m.mtu)
	veth.PeerNamespace = netlink.NsFd(int(ns.Fd()))
	if err := m.host.LinkAdd(veth); err != nil {
		return fmt.Errorf("make veth %s: %w", attrs.Name, err)
	}
	if err := m.outer(slot); err != nil {
		return err
	}
	return inner(inside)
}

// outer sets up the host's end of a slot's veth. It may be repeated.
func (m *Manager) outer(slot int) error {
	name, addr := vethName(m.instance, slot), m.Addr(slot)
	link, err := m.host.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find veth %s: %w", name, err)
	}
	// Strict reverse-path filtering accepts outside addresses, which are routed
	// to the veth. Were the table gone, packets would arrive with the inner
	// address, which is not, and be dropped.
	for _, s := range [][2]string{
		{"ipv6/conf/" + name + "/disable_ipv6", "1"},
		{"ipv4/conf/" + name + "/rp_filter", "1"},
		{"ipv4/conf/" + name + "/forwarding", "1"},
	} {
		if err := sysctl(s[0], s[1]); err != nil {
			return fmt.Errorf("set up veth %s: %w", name, err)
		}
	}
	if err := m.host.AddrReplace(link, &netlink.Addr{IPNet: hostNet(GatewayAddr)}); err != nil {
		return fmt.Errorf("set address of veth %s: %w", name, err)
	}
	if err := m.host.LinkSetUp(link); err != nil {
		return fmt.Errorf("set veth %s up: %w", name, err)
	}
	i := link.Attrs().Index
	if err := m.host.NeighSet(neighbour(i, addr, InnerMAC)); err != nil {
		return fmt.Errorf("set neighbour %s of veth %s: %w", addr, name, err)
	}
	err = m.host.RouteReplace(&netlink.Route{
		LinkIndex: i, Dst: hostNet(addr), Src: GatewayAddr.AsSlice(), Scope: netlink.SCOPE_LINK, Protocol: routeProtocol,
	})
	if err != nil {
		return fmt.Errorf("add route to %s: %w", addr, err)
	}
	return nil
}

// inner sets up the sandbox's end. It may be repeated: a runtime that took the
// addresses away has taken their routes along.
func inner(h *netlink.Handle) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find loopback: %w", err)
	}
	if err := h.LinkSetUp(lo); err != nil {
		return fmt.Errorf("set loopback up: %w", err)
	}
	loopback := netip.MustParsePrefix("127.0.0.1/8")
	if err := h.AddrReplace(lo, &netlink.Addr{IPNet: ipNet(loopback), Scope: unix.RT_SCOPE_HOST}); err != nil {
		return fmt.Errorf("set loopback address: %w", err)
	}
	eth, err := h.LinkByName(InnerLink)
	if err != nil {
		return fmt.Errorf("find %s: %w", InnerLink, err)
	}
	if err := h.LinkSetUp(eth); err != nil {
		return fmt.Errorf("set %s up: %w", InnerLink, err)
	}
	if err := h.AddrReplace(eth, &netlink.Addr{IPNet: ipNet(InnerPrefix)}); err != nil {
		return fmt.Errorf("set address of %s: %w", InnerLink, err)
	}
	i := eth.Attrs().Index
	if err := h.NeighSet(neighbour(i, GatewayAddr, GatewayMAC)); err != nil {
		return fmt.Errorf("set gateway's neighbour entry: %w", err)
	}
	if err := h.RouteReplace(&netlink.Route{LinkIndex: i, Gw: GatewayAddr.AsSlice()}); err != nil {
		return fmt.Errorf("set default route: %w", err)
	}
	return nil
}

func neighbour(link int, a netip.Addr, mac []byte) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: mac}
}

// inside opens a netlink handle in a slot's namespace.
func (m *Manager) inside(slot int) (*netlink.Handle, error) {
	path := m.nsPath(slot)
	if !isNamespace(path) {
		return nil, fmt.Errorf("network namespace %s: is not there", path)
	}
	ns, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in namespace %s: %w", path, err)
	}
	return h, nil
}

// whole tells whether namespace and both ends of the veth are there.
func (m *Manager) whole(slot int) bool {
	if _, err := m.host.LinkByName(vethName(m.instance, slot)); err != nil {
		return false
	}
	h, err := m.inside(slot)
	if err != nil {
		return false
	}
	defer h.Close()
	_, err = h.LinkByName(InnerLink)
	return err == nil
}

// tear removes veth (and with it routes, neighbours and the other end) and
// namespace of a slot. What is not there: nil.
func (m *Manager) tear(slot int) error {
	var errs []error
	link, err := m.host.LinkByName(vethName(m.instance, slot))
	var missing netlink.LinkNotFoundError
	switch {
	case err == nil:
		if err := m.host.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			errs = append(errs, fmt.Errorf("remove veth %s: %w", link.Attrs().Name, err))
		}
	case !errors.As(err, &missing):
		errs = append(errs, err)
	}
	path := m.nsPath(slot)
	err = unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		errs = append(errs, fmt.Errorf("unmount network namespace %s: %w", path, err))
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("remove network namespace file: %w", err))
	}
	return errors.Join(errs...)
}
