package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/image"
	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/network"
	"github.com/holdfast-run/holdfast/node/journal"
	"github.com/holdfast-run/holdfast/sandbox"
)

// machine stands for what outlives a daemon: instances, namespaces, files. It
// lets a test stop a node dead at any step and open another on what is left.
// The real engine, network and guest have their own conformance tests and the
// e2e suite; here only the node's decisions are on trial.
type machine struct {
	t    *testing.T
	data string

	mu        sync.Mutex
	instances map[string]*fakeInstance
	slots     map[int]network.Policy
	exits     chan engine.Exit
	oomKills  int64
	fail      map[string]error // next error of the engine, by method; guarded by failMu
	failMu    sync.Mutex
}

type fakeInstance struct {
	memory string // what its processes hold
	frozen bool
	slot   int
	id     Identity
	root   string
}

func newMachine(t *testing.T) *machine {
	m := &machine{t: t, data: t.TempDir(), instances: map[string]*fakeInstance{}, slots: map[int]network.Policy{}, exits: make(chan engine.Exit, 100), fail: map[string]error{}}
	t.Cleanup(func() {
		mounts, err := layers.Mounts(m.data)
		if err != nil {
			t.Error(err)
		}
		for _, p := range mounts {
			if err := layers.Unmount(context.Background(), p); err != nil {
				t.Error(err)
			}
		}
	})
	return m
}

func (m *machine) failing(op string) error {
	m.failMu.Lock()
	defer m.failMu.Unlock()
	err := m.fail[op]
	delete(m.fail, op)
	return err
}

// reboot takes away everything that does not survive one.
func (m *machine) reboot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.instances)
	clear(m.slots)
	mounts, err := layers.Mounts(m.data)
	if err != nil {
		m.t.Fatal(err)
	}
	for _, p := range mounts {
		if err := layers.Unmount(context.Background(), p); err != nil {
			m.t.Fatal(err)
		}
	}
}

type fakeEngine struct{ m *machine }

func (f fakeEngine) Capabilities() engine.Capabilities {
	return engine.Capabilities{Engine: "fake", Checkpoint: true}
}

func (f fakeEngine) run(s engine.Spec, memory string) (engine.Instance, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.m.instances[s.ID] != nil {
		return engine.Instance{}, engine.ErrExists
	}
	if _, err := os.Stat(filepath.Join(s.Root, "guest-layer")); err != nil {
		return engine.Instance{}, fmt.Errorf("root is not mounted: %w", err)
	}
	slot := 0
	if _, err := fmt.Sscanf(s.NetNS, "/ns/%d", &slot); err != nil {
		return engine.Instance{}, err
	}
	f.m.instances[s.ID] = &fakeInstance{memory: memory, slot: slot, root: s.Root}
	return engine.Instance{ID: s.ID, PID: 1}, nil
}

func (f fakeEngine) Start(_ context.Context, s engine.Spec) (engine.Instance, error) {
	if err := f.m.failing("start"); err != nil {
		return engine.Instance{}, err
	}
	return f.run(s, "booted")
}

func (f fakeEngine) Restore(_ context.Context, s engine.Spec, dir string) (engine.Instance, error) {
	if err := f.m.failing("restore"); err != nil {
		return engine.Instance{}, err
	}
	b, err := os.ReadFile(filepath.Join(dir, "pages"))
	if err != nil {
		return engine.Instance{}, errors.Join(engine.ErrImage, err)
	}
	return f.run(s, string(b))
}

func (f fakeEngine) Checkpoint(_ context.Context, id, dir string) (engine.Image, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	i := f.m.instances[id]
	if i == nil {
		return engine.Image{}, engine.ErrNotFound
	}
	if err := f.m.failing("checkpoint"); err != nil {
		return engine.Image{}, err
	}
	if i.id.Token != "" {
		f.m.t.Errorf("instance %s is checkpointed with its identity", id)
	}
	i.frozen = true
	if err := os.WriteFile(filepath.Join(dir, "pages"), []byte(i.memory), 0o600); err != nil {
		return engine.Image{}, err
	}
	return engine.Image{Runtime: "r", Files: []string{"pages"}, Bytes: int64(len(i.memory))}, nil
}

func (f fakeEngine) Thaw(_ context.Context, id string) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	i := f.m.instances[id]
	if i == nil {
		return engine.ErrNotFound
	}
	i.frozen = false
	return nil
}

func (f fakeEngine) Kill(_ context.Context, id string) error {
	if err := f.m.failing("kill"); err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	delete(f.m.instances, id)
	return nil
}

func (f fakeEngine) Adopt(_ context.Context, id string) (engine.Instance, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if f.m.instances[id] == nil {
		return engine.Instance{}, engine.ErrNotFound
	}
	return engine.Instance{ID: id}, nil
}

func (f fakeEngine) List(context.Context) ([]string, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	var out []string
	for id := range f.m.instances {
		out = append(out, id)
	}
	return out, nil
}

func (f fakeEngine) Update(context.Context, string, engine.Resources) error { return nil }
func (f fakeEngine) Stats(context.Context, string) (engine.Stats, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	return engine.Stats{Time: time.Now(), OOMKills: f.m.oomKills}, nil
}
func (f fakeEngine) Exits() <-chan engine.Exit { return f.m.exits }
func (f fakeEngine) Close() error              { return nil }

type fakeNetwork struct{ m *machine }

func (f fakeNetwork) Attach(_ context.Context, slot int, p network.Policy) (network.Endpoint, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	if slot == 0 {
		for slot = 1; ; slot++ {
			if _, used := f.m.slots[slot]; !used {
				break
			}
		}
	}
	f.m.slots[slot] = p
	return network.Endpoint{Slot: slot, NetNS: fmt.Sprintf("/ns/%d", slot), Addr: f.Addr(slot)}, nil
}
func (f fakeNetwork) SetPolicy(_ context.Context, slot int, p network.Policy) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.m.slots[slot] = p
	return nil
}
func (f fakeNetwork) Detach(_ context.Context, slot int) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	delete(f.m.slots, slot)
	return nil
}
func (f fakeNetwork) Sync(_ context.Context, used map[int]network.Policy) (network.Synced, error) {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	var s network.Synced
	for slot := range used {
		if _, ok := f.m.slots[slot]; !ok {
			s.Rebuilt = append(s.Rebuilt, slot)
		}
	}
	f.m.slots = used
	return s, nil
}
func (f fakeNetwork) Addr(slot int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 200, 0, byte(slot)})
}
func (f fakeNetwork) Leftovers() ([]int, error) { return nil, nil }

type fakeGuest struct{ m *machine }

func (f fakeGuest) at(addr netip.Addr) (*fakeInstance, error) {
	for _, i := range f.m.instances {
		if fakeNetwork(f).Addr(i.slot) == addr {
			if i.frozen {
				return nil, errors.New("frozen")
			}
			return i, nil
		}
	}
	return nil, errors.New("connection refused")
}

func (f fakeGuest) Warm(_ context.Context, addr netip.Addr) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	_, err := f.at(addr)
	return err
}

func (f fakeGuest) Init(_ context.Context, addr netip.Addr, id Identity) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	i, err := f.at(addr)
	if err == nil {
		i.id = id
	}
	return err
}

func (f fakeGuest) Prepare(_ context.Context, addr netip.Addr) error {
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	i, err := f.at(addr)
	if err == nil {
		i.id = Identity{}
	}
	return err
}

func (f fakeGuest) Usage(context.Context, netip.Addr, string) (GuestUsage, error) {
	return GuestUsage{}, nil
}

type fakeTokens struct{}

func (fakeTokens) Access(id string) string  { return "access-" + id }
func (fakeTokens) Traffic(id string) string { return "traffic-" + id }

type fakeImporter struct{ files *layers.Store }

func (f fakeImporter) Import(ctx context.Context, _ string, _ io.Reader, _ func(sandbox.Step)) (image.Result, error) {
	l, err := f.files.New(ctx)
	return image.Result{Layers: []string{l.ID}}, err
}

// world is one daemon's life on a machine.
type world struct {
	*Node
	m  *machine
	db *journal.Journal
}

type worldOptions struct {
	fault  func(string)
	limits Limits
	pool   map[string]int
}

// start opens a node on the machine. The first one makes the template "base".
func (m *machine) start(o worldOptions) *world {
	m.t.Helper()
	ctx := context.Background()
	db, err := journal.Open(ctx, filepath.Join(m.data, "node.db"))
	if err != nil {
		m.t.Fatal(err)
	}
	store, err := layers.Open(filepath.Join(m.data, "layers"))
	if err != nil {
		m.t.Fatal(err)
	}
	guestLayer, err := db.Meta(ctx, "test.guest")
	if errors.Is(err, journal.ErrNotFound) {
		l, err := store.New(ctx)
		if err != nil {
			m.t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(store.Path(l.ID), "guest-layer"), nil, 0o644); err != nil {
			m.t.Fatal(err)
		}
		guestLayer = l.ID
		if err := db.SetMeta(ctx, "test.guest", guestLayer); err != nil {
			m.t.Fatal(err)
		}
	}
	n, err := Open(ctx, Options{
		Data: m.data, Journal: db, Engine: fakeEngine{m}, Files: store, Network: fakeNetwork{m}, Guest: fakeGuest{m}, Tokens: fakeTokens{},
		GuestLayer: guestLayer, GuestPath: "/guest", Importer: fakeImporter{store}, Limits: o.limits, Pool: o.pool, Fault: o.fault,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	w := &world{Node: n, m: m, db: db}
	m.t.Cleanup(w.crash)
	if _, err := n.Template(ctx, "base"); err != nil {
		if _, err := n.ImportTemplate(ctx, sandbox.ImportOptions{Name: "base"}); err != nil {
			m.t.Fatal(err)
		}
	}
	return w
}

// crash ends the daemon without letting anything finish.
func (w *world) crash() {
	w.bg.Lock()
	w.cancel()
	w.bg.Unlock()
	w.db.Close()
}

func (w *world) create(o sandbox.CreateOptions) *sandbox.Sandbox {
	w.m.t.Helper()
	if o.Timeout == 0 {
		o.Timeout = time.Hour
	}
	o.Secure = true
	sb, err := w.Create(context.Background(), o)
	if err != nil {
		w.m.t.Fatal(err)
	}
	return sb
}

// instance gives the live instance of a sandbox.
func (w *world) live(id string) *fakeInstance {
	w.m.t.Helper()
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	i := w.m.instances[w.sandboxes[id].rec.Load().instance()]
	if i == nil {
		w.m.t.Fatalf("sandbox %s has no instance", id)
	}
	return i
}

// write puts a file into a sandbox, and remember a value into its memory.
func (w *world) write(id, value string) {
	w.m.t.Helper()
	i := w.live(id)
	if err := os.WriteFile(filepath.Join(i.root, "file"), []byte(value), 0o644); err != nil {
		w.m.t.Fatal(err)
	}
	w.m.mu.Lock()
	i.memory = value
	w.m.mu.Unlock()
}

// holds fails unless the sandbox, brought up if need be, has the value in its
// file and, with memory, also in memory; and knows who it is.
func (w *world) holds(id, value string, memory bool) {
	w.m.t.Helper()
	sb, _, err := w.Connect(context.Background(), id, sandbox.ConnectOptions{Timeout: time.Hour})
	if err != nil {
		w.m.t.Fatalf("connect %s: %v", id, err)
	}
	i := w.live(id)
	b, err := os.ReadFile(filepath.Join(i.root, "file"))
	if err != nil || string(b) != value {
		w.m.t.Errorf("sandbox %s: file holds %q (%v), want %q", id, b, err, value)
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if memory && i.memory != value {
		w.m.t.Errorf("sandbox %s: memory holds %q, want %q (recovered %s: %s)", id, i.memory, value, sb.Recovered, sb.Reason)
	}
	if i.id.Token != (fakeTokens{}).Access(id) || i.frozen {
		w.m.t.Errorf("sandbox %s: identity %+v, frozen %v", id, i.id, i.frozen)
	}
}

// clean deletes every sandbox and snapshot and fails if anything of them is left.
func (w *world) clean() {
	w.m.t.Helper()
	ctx := context.Background()
	page, err := w.List(ctx, sandbox.ListOptions{States: []sandbox.State{sandbox.Running, sandbox.Paused, sandbox.Failed, sandbox.Creating}})
	if err != nil {
		w.m.t.Fatal(err)
	}
	for _, sb := range page.Sandboxes {
		if err := w.Delete(ctx, sb.ID); err != nil {
			w.m.t.Errorf("delete %s: %v", sb.ID, err)
		}
	}
	snaps, _, err := w.Templates(ctx, sandbox.TemplateListOptions{Snapshots: true})
	if err != nil {
		w.m.t.Fatal(err)
	}
	for _, s := range snaps {
		if err := w.DeleteTemplate(ctx, s.ID); err != nil {
			w.m.t.Errorf("delete snapshot %s: %v", s.ID, err)
		}
	}
	if f, err := w.Check(ctx); err != nil || len(f) > 0 {
		w.m.t.Errorf("doctor finds %v, %v", f, err)
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	if len(w.m.instances) > 0 || len(w.m.slots) > 0 {
		w.m.t.Errorf("left behind: instances %v, slots %v", w.m.instances, w.m.slots)
	}
	for _, dir := range []string{"sandboxes", "snapshots"} {
		var left []string
		list, _ := os.ReadDir(filepath.Join(w.m.data, dir))
		for _, d := range list {
			left = append(left, d.Name())
		}
		left = slices.DeleteFunc(left, func(s string) bool { return w.templates[s] != nil })
		if len(left) > 0 {
			w.m.t.Errorf("left behind in %s: %v", dir, left)
		}
	}
	named := map[string]bool{w.opts.GuestLayer: true}
	for _, t := range w.templates {
		for _, l := range t.Layers {
			named[l] = true
		}
	}
	for _, l := range w.files.List() {
		if !named[l.ID] {
			w.m.t.Errorf("left behind: layer %s", l.ID)
		}
	}
}
