package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// patience bounds every wait of the suite; nothing is asserted about speed.
const patience = 60 * time.Second

// buildPID1 compiles the program that runs inside, once, and gives its content.
var buildPID1 = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "hf-pid1-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	bin := filepath.Join(dir, "pid1")
	cmd := exec.Command("go", "build", "-o", bin, "github.com/holdfast-run/holdfast/engine/enginetest/pid1")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build pid1: %w\n%s", err, out)
	}
	return os.ReadFile(bin)
})

// world is one test's surroundings: an engine and what instances need.
type world struct {
	testing.TB
	engine.Engine
	open func(testing.TB, string) engine.Engine
	dir  string // of the engine's state
}

// newWorld makes a world whose instances are killed at the end of the test, which
// fails if anything is left of them.
func newWorld(t testing.TB, open func(testing.TB, string) engine.Engine) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf-") // short: sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, open: open, dir: dir}
	w.Engine = open(t, dir)
	t.Cleanup(func() {
		ids, err := w.List(context.Background())
		if err != nil {
			t.Errorf("list: %v", err)
		}
		for _, id := range ids {
			if err := w.Kill(context.Background(), id); err != nil {
				t.Errorf("kill %s: %v", id, err)
			}
		}
		if ids, _ := w.List(context.Background()); len(ids) > 0 {
			t.Errorf("left over after kill: %v", ids)
		}
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove engine's folder: %v", err)
		}
	})
	return w
}

// reopen replaces the engine by a new one on the same state, as after a restart of
// the daemon.
func (w *world) reopen() {
	w.Helper()
	if err := w.Close(); err != nil {
		w.Fatalf("close: %v", err)
	}
	w.Engine = w.open(w.TB, w.dir)
}

// root makes a root file system that holds pid1 and nothing else.
func (w *world) root() string {
	w.Helper()
	bin, err := buildPID1()
	if err != nil {
		w.Fatal(err)
	}
	root := w.TempDir()
	for _, dir := range []string{"bin", "etc", "proc", "sys", "dev", "tmp/.keep", engine.ShareMount} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			w.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "bin/pid1"), bin, 0o755); err != nil {
		w.Fatal(err)
	}
	return root
}

var (
	ids   atomic.Int64
	slots atomic.Int64
)

// spec describes a new instance on root, with a network of its own.
func (w *world) spec(root string) engine.Spec {
	w.Helper()
	return engine.Spec{
		ID:       fmt.Sprintf("t%d%06d", os.Getpid()%1000, ids.Add(1)),
		Root:     root,
		Share:    w.TempDir(),
		NetNS:    w.network(),
		Args:     []string{"/bin/pid1"},
		Env:      []string{"PATH=/bin", "GREETING=hello"},
		Hostname: "box",
	}
}

// start starts a new instance and waits until it answers.
func (w *world) start(s engine.Spec) *guest {
	w.Helper()
	in, err := w.Start(w.Context(), s)
	if err != nil {
		w.Fatalf("start: %v", err)
	}
	return w.guest(s, in)
}

// restore restores an image and waits until the instance answers.
func (w *world) restore(s engine.Spec, image string) *guest {
	w.Helper()
	in, err := w.Restore(w.Context(), s, image)
	if err != nil {
		w.Fatalf("restore: %v", err)
	}
	return w.guest(s, in)
}

// guest speaks with pid1 inside an instance.
type guest struct {
	testing.TB
	engine.Spec
	Instance engine.Instance
	client   *http.Client
	base     string
}

// PID is the instance's process on the host.
func (g *guest) PID() int { return g.Instance.PID }

// Runtime is what the instance runs on, whatever the Spec left open.
func (g *guest) Runtime() string { return g.Instance.Runtime }

func (w *world) guest(s engine.Spec, in engine.Instance) *guest {
	w.Helper()
	if in.ID != s.ID || in.PID <= 0 || in.Runtime == "" || in.Started.IsZero() {
		w.Fatalf("instance is described as %+v", in)
	}
	g := &guest{TB: w.TB, Spec: s, Instance: in, base: "http://" + insideAddr(s.NetNS) + ":8080", client: &http.Client{
		Timeout:   patience,
		Transport: &http.Transport{DisableKeepAlives: true},
	}}
	eventually(w.TB, "pid1 answers", func() error { _, err := g.try("/count"); return err })
	return g
}

func (g *guest) try(path string, args ...string) (string, error) {
	q := url.Values{}
	for i := 0; i+1 < len(args); i += 2 {
		q.Set(args[i], args[i+1])
	}
	r, err := g.client.Get(g.base + path + "?" + q.Encode())
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, b)
	}
	return string(b), err
}

// ask asks pid1 for something and fails the test when it cannot.
func (g *guest) ask(path string, args ...string) string {
	g.Helper()
	out, err := g.try(path, args...)
	if err != nil {
		g.Fatalf("ask pid1 for %s %v: %v", path, args, err)
	}
	return out
}

func (g *guest) count() int64 {
	g.Helper()
	n, err := strconv.ParseInt(g.ask("/count"), 10, 64)
	if err != nil {
		g.Fatal(err)
	}
	return n
}

// eventually waits until f succeeds.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("wait until %s: %v", what, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// network makes a network namespace with one address, reachable from the host.
// Its path tells the slot, from which both addresses follow.
func (w *world) network() string {
	w.Helper()
	slot := int(slots.Add(1))<<6 | os.Getpid()&0x3f // other runs of the suite may be going on
	name := fmt.Sprintf("hft%d", slot)
	if err := makeNetwork(name, slot); err != nil {
		w.Fatalf("make network: %v", err)
	}
	w.Cleanup(func() {
		if err := removeNetwork(name); err != nil {
			w.Errorf("remove network: %v", err)
		}
	})
	return "/run/netns/" + name
}

func addrs(slot int) (host, inside net.IP) {
	base := net.IPv4(10, 251, byte(slot>>6), byte(slot<<2)).To4()
	return net.IPv4(base[0], base[1], base[2], base[3]|1), net.IPv4(base[0], base[1], base[2], base[3]|2)
}

func insideAddr(path string) string {
	slot, _ := strconv.Atoi(filepath.Base(path)[len("hft"):])
	_, inside := addrs(slot)
	return inside.String()
}

func makeNetwork(name string, slot int) error {
	host, _ := addrs(slot)
	if err := inNetNS(name, true, func() error { return nil }); err != nil {
		return err
	}
	ns, err := netns.GetFromName(name)
	if err != nil {
		return err
	}
	defer ns.Close()
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "eth0", PeerNamespace: netlink.NsFd(ns)}
	if err := netlink.LinkAdd(veth); err != nil {
		return err
	}
	if err := netlink.AddrAdd(veth, &netlink.Addr{IPNet: &net.IPNet{IP: host, Mask: net.CIDRMask(30, 32)}}); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(veth); err != nil {
		return err
	}
	return giveAddress(name, slot)
}

// giveAddress gives the inside its address, which the instance then takes over.
func giveAddress(name string, slot int) error {
	host, inside := addrs(slot)
	return inNetNS(name, false, func() error {
		eth0, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: inside, Mask: net.CIDRMask(30, 32)}}
		if err := netlink.AddrReplace(eth0, addr); err != nil {
			return err
		}
		return errors.Join(netlink.LinkSetUp(lo), netlink.LinkSetUp(eth0),
			netlink.RouteReplace(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: host}))
	})
}

func removeNetwork(name string) error {
	if link, err := netlink.LinkByName(name); err == nil {
		if err := netlink.LinkDel(link); err != nil {
			return err
		}
	}
	return netns.DeleteNamed(name)
}

// inNetNS runs f on a thread inside the named namespace, made first if create.
func inNetNS(name string, create bool, f func() error) error {
	done := make(chan error)
	go func() {
		// The thread is not given back: it dies with the goroutine.
		runtime.LockOSThread()
		if create {
			h, err := netns.NewNamed(name)
			if err != nil {
				done <- err
				return
			}
			h.Close()
		} else {
			h, err := netns.GetFromName(name)
			if err != nil {
				done <- err
				return
			}
			defer h.Close()
			if err := netns.Set(h); err != nil {
				done <- err
				return
			}
		}
		done <- f()
	}()
	return <-done
}
