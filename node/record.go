package node

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// pooled is a state that no caller sees: restored from a golden image, without
// identity, waiting to be claimed by a create.
const pooled sandbox.State = "pooled"

// record is the journal's document of one sandbox. A record in memory is never
// changed in place: an operation copies it, commits the copy and swaps it in, so
// that readers need no lock.
type record struct {
	sandbox.Sandbox

	// Files: Layers below (bottom first), Upper on top. All are folders of the
	// layer store; the ones named here are alive.
	Layers []string
	Upper  string

	Slot       int   // network slot, kept while paused
	Generation int64 // counts instances; part of the engine's instance id

	// Image is the folder (relative to the data folder) with the memory that fits
	// Upper as it is now; "" when there is none. Set while paused and resuming.
	Image string
	// Building is the folder a checkpoint in flight writes to; reconcile removes it.
	Building string

	Pool      string // template id, while pooled
	MachineID string // /etc/machine-id inside
}

func (r *record) clone() *record {
	c := *r
	c.Metadata = maps.Clone(r.Metadata)
	c.Env = maps.Clone(r.Env)
	c.Layers = append([]string(nil), r.Layers...)
	return &c
}

// instance is the engine's id of the record's current instance. A new one for
// every start, so that clearing away an old one never races with the next.
func (r *record) instance() string { return fmt.Sprintf("%sg%06d", r.ID, r.Generation) }

func (r *record) view() *sandbox.Sandbox {
	s := r.clone().Sandbox
	return &s
}

func parseRecord(b []byte) (*record, error) {
	r := new(record)
	return r, json.Unmarshal(b, r)
}

// entry is a sandbox in memory: the current record, and the lock that serialises
// operations on it (invariant 8).
type entry struct {
	id   string
	rec  atomic.Pointer[record]
	lock chan struct{} // holds one token when free
	busy atomic.Bool   // an operation that stops the instance is in flight; Route waits

	timer *time.Timer // deadline; guarded by lock
	usage usage       // last samples, guarded by its own lock
}

func newEntry(r *record) *entry {
	e := &entry{id: r.ID, lock: make(chan struct{}, 1)}
	e.lock <- struct{}{}
	e.rec.Store(r)
	return e
}

// acquire takes the operation lock or gives up when ctx ends.
func (e *entry) acquire(ctx context.Context) error {
	select {
	case <-e.lock:
		return nil
	default:
	}
	select {
	case <-e.lock:
		return nil
	case <-ctx.Done():
		return &sandbox.Error{Kind: sandbox.Timeout, Thing: thing(e.id), Reason: "is busy with another operation", Next: "try again", Err: ctx.Err()}
	}
}

func (e *entry) release() { e.lock <- struct{}{} }

func thing(id string) string { return fmt.Sprintf("sandbox %q", id) }

func notFound(id string) error {
	return &sandbox.Error{Kind: sandbox.NotFound, Thing: thing(id), Reason: "doesn't exist or you don't have access to it", Next: "list the ones that do with `holdfast ps --all`"}
}

// Folders of one sandbox, below <data>/sandboxes/<id>.
func (n *Node) home(id string) string   { return filepath.Join(n.data, "sandboxes", id) }
func (n *Node) root(id string) string   { return filepath.Join(n.home(id), "root") }
func (n *Node) share(id string) string  { return filepath.Join(n.home(id), "share") }
func (n *Node) work(id string) string   { return filepath.Join(n.home(id), "work") }
func (n *Node) image(rel string) string { return filepath.Join(n.data, rel) }
