package network

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// Without a subnet given, one of 10.200.0.0/16 … 10.249.0.0/16 is taken.
const (
	firstPick = 200
	picks     = 50
)

// chooseSubnet checks the wanted subnet, or picks one that overlaps no route and
// no address of the host. The pick starts at a hash of the instance, so that
// daemons beside each other rarely meet.
func chooseSubnet(h *netlink.Handle, instance string, want netip.Prefix) (netip.Prefix, error) {
	if want.IsValid() {
		if !want.Addr().Is4() || want.Bits() < 8 || want.Bits() > 28 {
			return netip.Prefix{}, fmt.Errorf("subnet %s: must be IPv4 and between /8 and /28", want)
		}
		return want.Masked(), nil
	}
	taken, err := routed(h)
	if err != nil {
		return netip.Prefix{}, err
	}
	sum := sha256.Sum256([]byte(instance))
	for i := range picks {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(firstPick + (int(sum[0])+i)%picks)}), 16)
		if !overlaps(p, taken) {
			return p, nil
		}
	}
	return netip.Prefix{}, fmt.Errorf("subnet: every one of 10.%d.0.0/16 to 10.%d.0.0/16 overlaps a route of this machine; set one in the configuration",
		firstPick, firstPick+picks-1)
}

// routed lists the destinations of every route and address, default excepted.
func routed(h *netlink.Handle) ([]netip.Prefix, error) {
	routes, err := dump(func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	var out []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		a, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		if ones, _ := r.Dst.Mask.Size(); ok && ones > 0 {
			out = append(out, netip.PrefixFrom(a, ones))
		}
	}
	return out, nil
}

func overlaps(p netip.Prefix, list []netip.Prefix) bool {
	for _, q := range list {
		if p.Overlaps(q) {
			return true
		}
	}
	return false
}

// capacity is the highest slot of a subnet; network and broadcast address are
// not used.
func capacity(p netip.Prefix) int { return 1<<(32-p.Bits()) - 2 }

// nth is the outside address of a slot.
func nth(p netip.Prefix, slot int) netip.Addr { return address(number(p.Addr()) + uint32(slot)) }

// index is the slot of an outside address; 0 when it has none.
func index(p netip.Prefix, a netip.Addr) int {
	if !p.Contains(a) {
		return 0
	}
	return int(number(a) - number(p.Addr()))
}

// vethPrefix starts the names of all veths of an instance. It has a fixed
// length, so that none starts another.
func vethPrefix(instance string) string { return "hf" + instance }

// vethName is at most 14 bytes: slots have 8 digits.
func vethName(instance string, slot int) string { return vethPrefix(instance) + strconv.Itoa(slot) }

// slotOf reads a slot from a veth name.
func slotOf(instance, name string) (int, bool) {
	rest, ok := strings.CutPrefix(name, vethPrefix(instance))
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(rest)
	return n, err == nil && n > 0 && strconv.Itoa(n) == rest
}
