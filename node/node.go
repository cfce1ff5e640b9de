// Package node is the single-machine platform: it owns the life of every
// sandbox on this machine. It decides and journals; the engine, the layer store,
// the network and the guest act.
//
// Invariants kept here (numbers as in ARCHITECTURE.md): the journal is the truth
// (1), sandboxes outlive the daemon (2), every state has a way out (3), a paused
// sandbox is woken only by connect, resume or traffic (4), identity never enters
// an image (7), operations on one sandbox are serialised (8).
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/node/journal"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Options composes a Node. All fields without a comment are required.
type Options struct {
	Data    string // data folder, exists
	Journal *journal.Journal
	Engine  engine.Engine
	Files   *layers.Store
	Network Network
	Guest   Guest
	Tokens  Tokens
	// GuestLayer is the layer that carries the guest program, and GuestPath where
	// it is inside.
	GuestLayer string
	GuestPath  string
	Importer   ImageImporter

	Limits Limits         // zero fields: unlimited
	Pool   map[string]int // template name → restored sandboxes kept ready
	// Ended, when set, is told that a sandbox's process is gone (paused, deleted,
	// crashed or replaced): its end of every connection cannot say so itself.
	Ended  func(id string)
	Logger *slog.Logger // nil: slog.Default()
	Clock  Clock        // nil: the system's
	// Fault, when set, is called at every named step of every operation; a test
	// makes it stop the world there. Nil in production.
	Fault func(step string)
}

// Limits are the node's quotas; zero is unlimited. Running sandboxes count for
// CPUs and MemoryMB; running and paused ones for Sandboxes and DiskMB.
type Limits struct {
	Sandboxes int
	CPUs      int
	MemoryMB  int
	DiskMB    int // MiB in the data folder, all sandboxes and images together
	// MinFreeMB is kept free on the data folder's file system: work that would
	// write more is refused before it starts. 0 means 256.
	MinFreeMB int
}

// Node implements sandbox.Backend and all its optional interfaces.
type Node struct {
	data    string
	journal *journal.Journal
	engine  engine.Engine
	files   *layers.Store
	network Network
	guest   Guest
	tokens  Tokens
	limits  Limits
	log     *slog.Logger
	clock   Clock
	fault   func(string)
	opts    Options

	mu        sync.RWMutex
	sandboxes map[string]*entry
	templates map[string]*template
	names     map[string]string  // template name → id
	reserved  map[string]*record // claims and resumes that count against the quotas but are not committed yet

	pool      pool
	events    eventHub
	diskUsed  atomic.Int64 // bytes, as last measured
	started   time.Time
	importing atomic.Int32 // imports in flight

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	bg     sync.Mutex // orders goes and Close
	wg     sync.WaitGroup
	boot   chan struct{} // limits concurrent cold starts of reconcile
	done   sync.Once
}

// Open starts a node on its journal: it reconciles what the journal says with
// what the machine holds (see reconcile.go), then serves. Sandboxes that must
// boot again do so in the background.
func Open(ctx context.Context, o Options) (*Node, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Clock == nil {
		o.Clock = systemClock{}
	}
	if o.Fault == nil {
		o.Fault = func(string) {}
	}
	if o.Ended == nil {
		o.Ended = func(string) {}
	}
	if o.Limits.MinFreeMB == 0 {
		o.Limits.MinFreeMB = 256
	}
	n := &Node{
		data: o.Data, journal: o.Journal, engine: o.Engine, files: o.Files, network: o.Network, guest: o.Guest,
		tokens: o.Tokens, limits: o.Limits, log: o.Logger, clock: o.Clock, fault: o.Fault, opts: o,
		boot:      make(chan struct{}, max(2, runtime.NumCPU())),
		sandboxes: map[string]*entry{}, templates: map[string]*template{}, names: map[string]string{}, reserved: map[string]*record{},
	}
	n.started = n.now()
	n.events.idle = sync.NewCond(&n.events.mu)
	n.ctx, n.cancel = context.WithCancel(context.Background())
	for _, d := range []string{"sandboxes", "snapshots"} {
		if err := os.MkdirAll(filepath.Join(n.data, d), 0o700); err != nil {
			return nil, err
		}
	}
	if err := n.load(ctx); err != nil {
		return nil, fmt.Errorf("read journal: %w", err)
	}
	if err := n.reconcile(ctx); err != nil {
		n.cancel()
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	n.goes(n.watchExits)
	n.goes(n.measure)
	n.goes(n.watchMemory)
	n.pool.init(n)
	return n, nil
}

// Close stops timers, the pool and background work and waits for operations in
// flight. Sandboxes go on running.
func (n *Node) Close() error {
	n.done.Do(func() {
		n.bg.Lock()
		n.cancel()
		n.bg.Unlock()
		n.mu.RLock()
		all := make([]*entry, 0, len(n.sandboxes))
		for _, e := range n.sandboxes {
			all = append(all, e)
		}
		n.mu.RUnlock()
		for _, e := range all { // an operation in flight ends before we do
			<-e.lock
			e.stopTimer()
			e.release()
		}
		n.wg.Wait()
		n.writeEvents() // of the operations that ended last
	})
	return nil
}

// goes runs f in the background; Close waits for it. After Close it does nothing.
func (n *Node) goes(f func()) {
	n.bg.Lock()
	defer n.bg.Unlock()
	if n.ctx.Err() != nil {
		return
	}
	n.wg.Add(1)
	go func() {
		defer n.wg.Done()
		f()
	}()
}

func (n *Node) load(ctx context.Context) error {
	err := n.journal.Sandboxes(ctx, func(id string, doc []byte) error {
		r, err := parseRecord(doc)
		if err != nil {
			return fmt.Errorf("sandbox %s: %w", id, err)
		}
		n.sandboxes[id] = newEntry(r)
		return nil
	})
	if err != nil {
		return err
	}
	err = n.journal.Templates(ctx, func(id string, doc []byte) error {
		t, err := parseTemplate(doc)
		if err != nil {
			return fmt.Errorf("template %s: %w", id, err)
		}
		n.templates[id] = t
		return nil
	})
	if err != nil {
		return err
	}
	return n.journal.Names(ctx, func(name, id string) error { n.names[name] = id; return nil })
}

// entry finds a sandbox that callers may see.
func (n *Node) entry(id string) (*entry, error) {
	n.mu.RLock()
	e := n.sandboxes[id]
	n.mu.RUnlock()
	if e == nil || e.rec.Load().State == pooled {
		return nil, notFound(id)
	}
	return e, nil
}

// locked runs op on a sandbox with its lock held. The operation is carried
// through even if the caller goes away: ctx bounds only the wait for the lock.
func (n *Node) locked(ctx context.Context, id string, op func(ctx context.Context, e *entry) error) error {
	e, err := n.entry(id)
	if err != nil {
		return err
	}
	if err := e.acquire(ctx); err != nil {
		return err
	}
	defer e.release()
	if n.ctx.Err() != nil {
		return &sandbox.Error{Kind: sandbox.Unavailable, Thing: "the daemon", Reason: "is shutting down", Next: "try again when it is back"}
	}
	if !n.known(e) { // deleted while we waited
		return notFound(id)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	return op(ctx, e)
}

// opTimeout bounds one operation on one sandbox, whatever it waits for.
const opTimeout = 5 * time.Minute

func (n *Node) known(e *entry) bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.sandboxes[e.id] == e
}

// commit makes r the sandbox's record, durably, and then visible. more joins
// other changes to the same transaction.
func (n *Node) commit(ctx context.Context, e *entry, r *record, more ...func(journal.Tx) error) error {
	err := n.journal.Do(ctx, func(tx journal.Tx) error {
		for _, f := range more {
			if err := f(tx); err != nil {
				return err
			}
		}
		return tx.PutSandbox(r.ID, string(r.State), r)
	})
	if err != nil {
		return fmt.Errorf("journal of %s: %w", thing(r.ID), err)
	}
	e.rec.Store(r)
	return nil
}

// step gives the fault hook its chance; the steps are enumerated by tests. At debug
// level their times in the log say where an operation's went.
func (n *Node) step(name string) {
	n.log.Debug("step", "name", name)
	n.fault(name)
}

// interface guards
var (
	_ sandbox.Backend     = (*Node)(nil)
	_ sandbox.Pauser      = (*Node)(nil)
	_ sandbox.Snapshotter = (*Node)(nil)
	_ sandbox.Templater   = (*Node)(nil)
	_ sandbox.Recorder    = (*Node)(nil)
	_ sandbox.Router      = (*Node)(nil)
	_ sandbox.Importer    = (*Node)(nil)
	_ sandbox.Inspector   = (*Node)(nil)
	_ sandbox.Reporter    = (*Node)(nil)
	_ sandbox.Doctor      = (*Node)(nil)
)

var errNoMemory = errors.New("no memory image")
