package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// routeProtocol marks our routes ("h") for whoever looks at the routing table.
const routeProtocol = 0x68

const defaultMTU = 1500

// sysctl writes a value below /proc/sys/net for the namespace of the calling
// thread. A kernel without the file (no IPv6) has nothing to set.
func sysctl(path, value string) error {
	err := os.WriteFile(filepath.Join("/proc/sys/net", path), []byte(value), 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

func sysctlIs(path, value string) bool {
	b, err := os.ReadFile(filepath.Join("/proc/sys/net", path))
	return err == nil && len(b) > 0 && string(b[:1]) == value
}

// dump asks the kernel for a list until it is whole: links and routes of this
// machine change while it is read, by us and by others, and half a list would
// hide what is there.
func dump[T any](ask func() ([]T, error)) ([]T, error) {
	for {
		list, err := ask()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
	}
}

// uplinks are the links that default routes leave by.
func uplinks(h *netlink.Handle) ([]netlink.Link, error) {
	routes, err := dump(func() ([]netlink.Route, error) { return h.RouteList(nil, netlink.FAMILY_V4) })
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var out []netlink.Link
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			continue
		}
		hops := []int{r.LinkIndex}
		for _, p := range r.MultiPath {
			hops = append(hops, p.LinkIndex)
		}
		for _, i := range hops {
			if l, err := h.LinkByIndex(i); i > 0 && err == nil {
				out = append(out, l)
			}
		}
	}
	return out, nil
}

// prepareUplink learns the MTU of the way out and lets answers be forwarded.
// Forwarding is asked of the interface a packet comes in by, so it is switched
// on for the uplink and for each veth and nowhere else. What cannot be done is
// left for Check to report: a machine without uplink still runs sandboxes.
func (m *Manager) prepareUplink() {
	m.mtu = defaultMTU
	links, err := uplinks(m.host)
	if err != nil {
		m.log.Warn("no uplink found", "error", err)
	}
	for _, l := range links {
		m.mtu = min(m.mtu, l.Attrs().MTU)
		m.forwardFrom(l.Attrs().Name)
	}
}

func (m *Manager) forwardFrom(link string) {
	path := "ipv4/conf/" + link + "/forwarding"
	if sysctlIs(path, "1") {
		return
	}
	if err := sysctl(path, "1"); err != nil {
		m.log.Warn("forwarding could not be switched on", "link", link, "error", err)
	}
}

// openWay lets answers come back from private networks that a policy opens:
// they may lie behind another interface than the uplink.
func (m *Manager) openWay(r rules) {
	for _, s := range r.allowPrivate {
		routes, err := m.host.RouteGet(net.IP(ip4(s.from)))
		if err != nil {
			continue // no way there now; the packets say so themselves
		}
		for _, r := range routes {
			if l, err := m.host.LinkByIndex(r.LinkIndex); err == nil && l.Attrs().Flags&net.FlagLoopback == 0 {
				m.forwardFrom(l.Attrs().Name)
			}
		}
	}
}

// claimSubnet makes addresses of slots that do not exist unreachable rather than
// leave by the default route, and keeps other instances off the subnet.
func (m *Manager) claimSubnet() error {
	if err := m.host.RouteReplace(m.claim()); err != nil {
		return fmt.Errorf("add unreachable route for %s: %w", m.subnet, err)
	}
	return nil
}

func (m *Manager) unclaimSubnet() error {
	err := m.host.RouteDel(m.claim())
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove unreachable route for %s: %w", m.subnet, err)
	}
	return nil
}

func (m *Manager) claim() *netlink.Route {
	return &netlink.Route{Dst: ipNet(m.subnet), Type: unix.RTN_UNREACHABLE, Protocol: routeProtocol, Table: unix.RT_TABLE_MAIN}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), 32)}
}

// hostNet is a single address as a network.
func hostNet(a netip.Addr) *net.IPNet { return ipNet(netip.PrefixFrom(a, 32)) }
