package network

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Policy says what a sandbox may reach. The zero Policy reaches nothing.
//
// AllowOut wins over DenyOut, DenyOut over AllowInternet. Private, link-local
// (cloud metadata), multicast and reserved ranges are out of reach unless an
// AllowOut entry lies within them: 10.1.0.0/16 opens that network, 0.0.0.0/0
// opens the internet only. No entry opens the host's own services or another
// sandbox. A change holds from the next packet on, for open connections too.
//
// Names are resolved while the internet is allowed at large (AllowInternet, and
// not all of it denied); otherwise the forwarder answers REFUSED, because
// questions alone can carry data out.
type Policy struct {
	AllowInternet bool
	AllowOut      []netip.Prefix
	DenyOut       []netip.Prefix
}

// ParsePrefixes reads CIDRs and single addresses. IPv6 is off in sandboxes, so
// an IPv6 entry is an error: allowing one could not be kept, and denying one
// would look as if the rest were reachable.
func ParsePrefixes(list []string) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(list))
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if !strings.Contains(s, "/") {
			var a netip.Addr
			if a, err = netip.ParseAddr(s); err == nil {
				p = netip.PrefixFrom(a, a.BitLen())
			}
		}
		if err != nil {
			return nil, fmt.Errorf("network address %q: is neither an address nor a CIDR; write it like 203.0.113.7 or 203.0.113.0/24", s)
		}
		if !p.Addr().Is4() {
			return nil, fmt.Errorf("network address %q: sandboxes have no IPv6; give IPv4 only", s)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

// private holds what a sandbox does not reach unless told so: "this" network,
// private, shared, loopback, link-local, IETF protocol assignments (our own
// inner network among them), multicast, reserved and broadcast.
var private = mustPrefixes("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16",
	"172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16", "224.0.0.0/3")

func mustPrefixes(list ...string) []netip.Prefix {
	p, err := ParsePrefixes(list)
	if err != nil {
		panic(err)
	}
	return p
}

// span is an inclusive range of IPv4 addresses. Spans of one list neither
// overlap nor touch, which the kernel's interval sets require.
type span struct{ from, to uint32 }

// rules is a Policy as the firewall holds it.
type rules struct {
	internet     bool
	allowPrivate []span // within the private ranges; looked up before them
	allow        []span
	deny         []span
}

func (p Policy) compile() (rules, error) {
	r := rules{internet: p.AllowInternet}
	var within, rest []netip.Prefix
	for _, a := range p.AllowOut {
		if !a.Addr().Is4() {
			return rules{}, fmt.Errorf("allow out %s: sandboxes have no IPv6; give IPv4 only", a)
		}
		if slices.ContainsFunc(private, func(q netip.Prefix) bool { return q.Bits() <= a.Bits() && q.Contains(a.Addr()) }) {
			within = append(within, a)
		} else {
			rest = append(rest, a)
		}
	}
	for _, d := range p.DenyOut {
		if !d.Addr().Is4() {
			return rules{}, fmt.Errorf("deny out %s: sandboxes have no IPv6; give IPv4 only", d)
		}
	}
	r.allowPrivate, r.allow, r.deny = spans(within), spans(rest), spans(p.DenyOut)
	return r, nil
}

// resolves tells whether names are resolved for the sandbox.
func (r rules) resolves() bool {
	return r.internet && !slices.Contains(r.deny, span{0, 1<<32 - 1})
}

func (r rules) equal(o rules) bool {
	return r.internet == o.internet && slices.Equal(r.allowPrivate, o.allowPrivate) &&
		slices.Equal(r.allow, o.allow) && slices.Equal(r.deny, o.deny)
}

// spans sorts and merges prefixes.
func spans(list []netip.Prefix) []span {
	all := make([]span, 0, len(list))
	for _, p := range list {
		from := number(p.Masked().Addr())
		all = append(all, span{from, from | uint32(1<<(32-p.Bits())-1)})
	}
	slices.SortFunc(all, func(a, b span) int {
		switch {
		case a.from < b.from:
			return -1
		case a.from > b.from:
			return 1
		}
		return 0
	})
	var out []span
	for _, s := range all {
		if n := len(out); n > 0 && uint64(s.from) <= uint64(out[n-1].to)+1 {
			out[n-1].to = max(out[n-1].to, s.to)
			continue
		}
		out = append(out, s)
	}
	return out
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func address(n uint32) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return netip.AddrFrom4(b)
}
