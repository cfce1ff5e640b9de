package network

import (
	"bufio"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestRestart(t *testing.T) {
	web := hello(t, internet.do, "web")
	up := "web " + uplinkAddr.Addr().String()
	o := Options{Instance: InstanceOf(t.TempDir()), Dir: filepath.Join(t.TempDir(), "run"), Pool: 2}
	first, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	limited := Policy{AllowInternet: true, AllowOut: prefixes(t, "10.99.0.1"), DenyOut: prefixes(t, "203.0.113.0/24", "198.18.0.0/15")}
	kept, in := attach(t, first, limited)
	broken, _ := attach(t, first, Policy{AllowInternet: true})
	gone, _ := attach(t, first, Policy{AllowInternet: true})
	nobodys, _ := attach(t, first, Policy{AllowInternet: true})
	c, err := dial(in.do, publicA, web)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	runs := func(when string) {
		t.Helper()
		if _, err := io.WriteString(c, "x"); err != nil {
			t.Errorf("open connection %s: %v", when, err)
		}
		if _, err := r.ReadByte(); err != nil {
			t.Errorf("open connection %s: %v", when, err)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	runs("without a daemon")

	// What may happen meanwhile: a link lost, a namespace lost.
	link, err := netlink.LinkByName(vethName(o.Instance, broken.Slot))
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(gone.NetNS, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}

	o.Subnet = first.Subnet()
	m := open(t, o)
	runs("before sync")
	refused(t, in.do, publicB, web)
	reaches(t, in.do, privateA, web, up)
	left, err := m.Leftovers()
	if all := []int{kept.Slot, broken.Slot, gone.Slot, nobodys.Slot}; err != nil || !sameInts(left, all) {
		t.Errorf("leftovers before sync: got %v, %v; want %v", left, err, all)
	}
	early, _ := attach(t, m, Policy{AllowInternet: true})
	if slices.Contains(left, early.Slot) {
		t.Errorf("slot %d of an earlier process is given out", early.Slot)
	}

	const fresh = 500 // in the records, nowhere on the machine
	want := map[int]Policy{kept.Slot: limited, broken.Slot: {AllowInternet: true}, gone.Slot: {AllowInternet: true}, fresh: {AllowInternet: true}, 1 << 20: {}}
	done, err := m.Sync(t.Context(), want)
	if err == nil {
		t.Error("sync of a slot outside the subnet: got no error")
	}
	if !sameInts(done.Rebuilt, []int{broken.Slot, gone.Slot, fresh}) || !sameInts(done.Removed, []int{nobodys.Slot}) {
		t.Errorf("sync: got %+v", done)
	}
	runs("after sync")
	for _, n := range []int{broken.Slot, gone.Slot, fresh, early.Slot} {
		reaches(t, placeOf(t, Endpoint{NetNS: m.nsPath(n)}).do, publicA, web, up)
	}
	if left, err := m.Leftovers(); err != nil || len(left) != 0 {
		t.Errorf("leftovers after sync: got %v, %v", left, err)
	}
	if p := m.Check(); len(p) != 0 {
		t.Errorf("check after sync: got %v", p)
	}
	if err := m.SetPolicy(t.Context(), kept.Slot, Policy{AllowInternet: true}); err != nil {
		t.Fatal(err)
	}
	reaches(t, in.do, publicB, web, up)
	refused(t, in.do, privateA, web)
	if done, err := m.Sync(t.Context(), map[int]Policy{kept.Slot: {}}); err != nil || len(done.Removed)+len(done.Rebuilt) != 0 {
		t.Errorf("second sync: got %+v, %v", done, err)
	}
	refused(t, in.do, publicB, web)
}

// After a reboot nothing is there but the caller's records.
func TestReboot(t *testing.T) {
	m := open(t, Options{Subnet: netip.MustParsePrefix("10.250.0.0/20")})
	want := map[int]Policy{}
	for n := range 10 {
		want[100+n] = Policy{AllowInternet: n%2 == 0}
	}
	done, err := m.Sync(t.Context(), want)
	if err != nil || len(done.Rebuilt) != len(want) {
		t.Fatalf("sync: got %+v, %v", done, err)
	}
	web := hello(t, internet.do, "web")
	for n, p := range want {
		in := placeOf(t, Endpoint{NetNS: m.nsPath(n)})
		if p.AllowInternet {
			reaches(t, in.do, publicA, web, "web "+uplinkAddr.Addr().String())
		} else {
			refused(t, in.do, publicA, web)
		}
	}
}

// A table that another version made in another shape is replaced.
func TestTableOfAnotherShape(t *testing.T) {
	instance := InstanceOf(t.TempDir())
	old := newFirewall(instance, netip.MustParsePrefix("10.240.0.0/16"), 1)
	old.internet.Interval = true
	if err := old.install(); err != nil {
		t.Fatal(err)
	}
	m := open(t, Options{Instance: instance})
	_, in := attach(t, m, Policy{AllowInternet: true})
	reaches(t, in.do, publicA, hello(t, internet.do, "web"), "web "+uplinkAddr.Addr().String())
}

func TestTwoInstances(t *testing.T) {
	one, two := open(t, Options{Instance: "0001", Pool: 1}), open(t, Options{Instance: "0002", Pool: 1})
	if one.Subnet().Overlaps(two.Subnet()) {
		t.Fatalf("subnets %s and %s overlap", one.Subnet(), two.Subnet())
	}
	web := hello(t, internet.do, "web")
	a, aIn := attach(t, one, Policy{AllowInternet: true, AllowOut: []netip.Prefix{two.Subnet()}})
	b, bIn := attach(t, two, Policy{AllowInternet: true})
	aPort, bPort := hello(t, aIn.do, "a"), hello(t, bIn.do, "b")
	reaches(t, here, a.Addr, aPort, "a 192.0.0.1")
	reaches(t, here, b.Addr, bPort, "b 192.0.0.1")
	for _, in := range []place{aIn, bIn} {
		reaches(t, in.do, publicA, web, "web "+uplinkAddr.Addr().String())
	}
	refused(t, bIn.do, a.Addr, aPort)
	// Allowed by its own instance, a sandbox meets the other's rule: only the host
	// opens connections.
	box, sender := packets(t, bIn.do), packets(t, aIn.do)
	send(t, sender, b.Addr, portOf(box), "from another instance")
	send(t, packets(t, here), b.Addr, portOf(box), "from the host")
	receives(t, box, "from the host")

	if done, err := two.Sync(t.Context(), nil); err != nil || len(done.Removed) != 0 {
		t.Errorf("sync: got %+v, %v", done, err)
	}
	if err := two.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	reaches(t, here, a.Addr, aPort, "a 192.0.0.1")
	reaches(t, aIn.do, publicA, web, "web "+uplinkAddr.Addr().String())
}

func sameInts(got, want []int) bool {
	got, want = slices.Clone(got), slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	return slices.Equal(got, want)
}

func TestNamespaceFolderIsPrivate(t *testing.T) {
	m := open(t, Options{Pool: 1})
	if ok, err := isMount(m.dir); !ok || err != nil {
		t.Fatalf("%s: mount point: %v, %v", m.dir, ok, err)
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 6 && (f[4] == m.dir || filepath.Dir(f[4]) == m.dir) {
			found++
			if f[6] != "-" { // optional fields name a peer group
				t.Errorf("mount %s spreads: %s", f[4], line)
			}
		}
	}
	if found == 0 {
		t.Error("no mount found")
	}
}
