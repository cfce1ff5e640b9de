package network

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParsePrefixes(t *testing.T) {
	got, err := ParsePrefixes([]string{"203.0.113.9", "198.51.100.77/24", "0.0.0.0/0"})
	want := []netip.Prefix{netip.MustParsePrefix("203.0.113.9/32"), netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("0.0.0.0/0")}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for _, bad := range []string{"", "example.com", "1.2.3.4/33", "1.2.3", "2001:db8::/32", "::1", "1.2.3.4/", "/24"} {
		if _, err := ParsePrefixes([]string{bad}); err == nil || !strings.Contains(err.Error(), `"`+bad+`"`) {
			t.Errorf("%q: got error %v, want one that names it", bad, err)
		}
	}
}

func TestSpans(t *testing.T) {
	span4 := func(from, to string) span {
		return span{number(netip.MustParseAddr(from)), number(netip.MustParseAddr(to))}
	}
	for _, c := range []struct {
		name string
		in   []string
		want []span
	}{
		{"none", nil, nil},
		{"one address", []string{"1.2.3.4"}, []span{span4("1.2.3.4", "1.2.3.4")}},
		{"everything", []string{"9.9.9.9", "0.0.0.0/0", "8.0.0.0/8"}, []span{span4("0.0.0.0", "255.255.255.255")}},
		{"contained", []string{"10.1.0.0/16", "10.0.0.0/8", "10.1.2.3"}, []span{span4("10.0.0.0", "10.255.255.255")}},
		{"adjacent", []string{"10.0.1.0/24", "10.0.0.0/24"}, []span{span4("10.0.0.0", "10.0.1.255")}},
		{"apart", []string{"10.0.2.0/24", "10.0.0.0/24"}, []span{span4("10.0.0.0", "10.0.0.255"), span4("10.0.2.0", "10.0.2.255")}},
		{"top", []string{"255.255.255.255", "255.255.255.254"}, []span{span4("255.255.255.254", "255.255.255.255")}},
	} {
		if got := spans(prefixes(t, c.in...)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestResolves(t *testing.T) {
	for _, c := range []struct {
		name string
		p    Policy
		want bool
	}{
		{"nothing", Policy{}, false},
		{"internet", Policy{AllowInternet: true}, true},
		{"one address only", Policy{AllowOut: prefixes(t, "198.51.100.7")}, false},
		{"some denied", Policy{AllowInternet: true, DenyOut: prefixes(t, "198.51.100.0/24")}, true},
		{"all denied", Policy{AllowInternet: true, DenyOut: prefixes(t, "0.0.0.0/0")}, false},
		{"all denied in halves", Policy{AllowInternet: true, DenyOut: prefixes(t, "128.0.0.0/1", "0.0.0.0/1")}, false},
	} {
		r, err := c.p.compile()
		if err != nil || r.resolves() != c.want {
			t.Errorf("%s: got %v, %v; want %v", c.name, r.resolves(), err, c.want)
		}
	}
}

func TestReach(t *testing.T) {
	m := open(t, Options{})
	web := hello(t, internet.do, "web")
	up := "web " + uplinkAddr.Addr().String()
	for _, c := range []struct {
		name           string
		policy         Policy
		a, b, private_ bool // publicA, publicB, privateA
	}{
		{"nothing", Policy{}, false, false, false},
		{"internet", Policy{AllowInternet: true}, true, true, false},
		{"internet but for a network", Policy{AllowInternet: true, DenyOut: prefixes(t, "198.51.100.0/24")}, false, true, false},
		{"allow wins over deny", Policy{AllowInternet: true, AllowOut: prefixes(t, "198.51.100.7"), DenyOut: prefixes(t, "0.0.0.0/0")}, true, false, false},
		{"one address without internet", Policy{AllowOut: prefixes(t, "203.0.113.9")}, false, true, false},
		{"everything allowed is the internet", Policy{AllowOut: prefixes(t, "0.0.0.0/0")}, true, true, false},
		{"a range around a private one is not in it", Policy{AllowOut: prefixes(t, "8.0.0.0/5")}, false, false, false},
		{"a private network by name", Policy{AllowOut: prefixes(t, "10.99.0.0/16")}, false, false, true},
		{"private by name, internet, all denied", Policy{AllowInternet: true, AllowOut: prefixes(t, "10.99.0.1"), DenyOut: prefixes(t, "0.0.0.0/0")}, false, false, true},
		{"overlapping entries", Policy{AllowOut: prefixes(t, "198.51.100.0/24", "198.51.100.7", "198.51.0.0/16"), DenyOut: prefixes(t, "0.0.0.0/0", "1.0.0.0/8")}, true, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, in := attach(t, m, c.policy)
			for _, x := range []struct {
				addr netip.Addr
				may  bool
			}{{publicA, c.a}, {publicB, c.b}, {privateA, c.private_}} {
				if x.may {
					reaches(t, in.do, x.addr, web, up)
				} else {
					refused(t, in.do, x.addr, web)
				}
			}
		})
	}
}
