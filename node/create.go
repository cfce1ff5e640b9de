package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/holdfast-run/holdfast/network"
	"github.com/holdfast-run/holdfast/node/journal"
	"github.com/holdfast-run/holdfast/sandbox"
)

// now is the time as the journal keeps it: UTC, whole microseconds, so that a
// list cursor made of it compares equal.
func (n *Node) now() time.Time { return n.clock.Now().UTC().Truncate(time.Microsecond) }

// Create makes a sandbox of a template or snapshot: a claim of a pooled one if
// there is one, else a restore of the memory image. It returns when the guest
// answers. A create that fails or is cut short leaves nothing.
func (n *Node) Create(ctx context.Context, o sandbox.CreateOptions) (*sandbox.Sandbox, error) {
	if err := validate(&o); err != nil {
		return nil, err
	}
	if n.ctx.Err() != nil {
		return nil, &sandbox.Error{Kind: sandbox.Unavailable, Thing: "the daemon", Reason: "is shutting down", Next: "try again when it is back"}
	}
	n.mu.RLock()
	t, err := n.lookup(o.Template)
	n.mu.RUnlock()
	if err == nil && !t.visible(o.Space) {
		err = noTemplate(o.Template)
	}
	if err != nil {
		return nil, err
	}
	if err := n.checkDisk("create a sandbox"); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	n.pool.pause()
	defer n.pool.resume()

	want := n.newRecord(t, o)
	if !o.NoPool {
		if sb, err := n.claim(ctx, t, want); err == nil || !errors.Is(err, errPoolEmpty) {
			return sb, err
		}
	}
	return n.createFrom(ctx, t, want)
}

// validate checks o and fills in the defaults that no template decides.
func validate(o *sandbox.CreateOptions) error {
	bad := func(what, reason, next string) error {
		return &sandbox.Error{Kind: sandbox.InvalidRequest, Thing: what, Reason: reason, Next: next}
	}
	if o.Space == "" {
		o.Space = sandbox.DefaultSpace
	}
	if o.Template == "" {
		o.Template = sandbox.DefaultTemplate
	}
	switch {
	case o.Timeout <= 0:
		return bad("Timeout", "must be greater than 0", "leave it out for the default")
	case o.Timeout > sandbox.MaxTimeout:
		return bad("Timeout", fmt.Sprintf("cannot be greater than %d hours", int(sandbox.MaxTimeout.Hours())), "ask for less, and extend it while in use")
	case o.Resources.CPUs < 0 || o.Resources.MemoryMB < 0 || o.Resources.DiskMB < 0 || o.Resources.PIDs < 0:
		return bad("resources", "must not be negative", "leave a field out for the template's value")
	case o.Resources.MemoryMB > 0 && o.Resources.MemoryMB < 64:
		return bad("memory", "is below 64 MiB, too little for the kernel inside", "ask for at least 64")
	}
	if err := validateRules(o.Network); err != nil {
		return err
	}
	if o.Lifecycle.OnTimeout == "" {
		o.Lifecycle.OnTimeout = sandbox.Kill
	}
	return nil
}

func validateRules(nw sandbox.Network) error {
	for _, list := range [][]string{nw.AllowOut, nw.DenyOut} {
		if _, err := network.ParsePrefixes(list); err != nil {
			return sandbox.Errorf(sandbox.InvalidRequest, "network rules:", "%w", err)
		}
	}
	return nil
}

// newRecord is the sandbox that o asks for, not yet on this machine.
func (n *Node) newRecord(t *template, o sandbox.CreateOptions) *record {
	r := &record{}
	r.Space, r.Template, r.TemplateID = o.Space, o.Template, t.ID
	r.Metadata, r.Lifecycle, r.Network = maps.Clone(o.Metadata), o.Lifecycle, o.Network
	r.Lifecycle.Timeout = o.Timeout
	r.Resources = merge(o.Resources, t.Resources)
	r.User, r.Workdir = t.User, t.Workdir
	r.Env = maps.Clone(t.Env)
	if r.Env == nil {
		r.Env = map[string]string{}
	}
	maps.Copy(r.Env, o.Env)
	if o.Secure {
		r.AccessToken = "wanted" // replaced by own, once the id is known
	}
	return r
}

// own gives the record its id and what follows from it.
func (n *Node) own(r *record, id string) {
	r.ID = id
	r.MachineID = newMachineID()
	if r.AccessToken != "" {
		r.AccessToken = n.tokens.Access(id)
	}
	r.TrafficToken = n.tokens.Traffic(id)
	r.CreatedAt = n.now()
	r.StartedAt = r.CreatedAt
	r.EndAt = r.CreatedAt.Add(r.Lifecycle.Timeout)
}

func merge(want, def sandbox.Resources) sandbox.Resources {
	pick := func(a, b, c int) int {
		if a != 0 {
			return a
		}
		if b != 0 {
			return b
		}
		return c
	}
	return sandbox.Resources{
		CPUs:     pick(want.CPUs, def.CPUs, sandbox.DefaultCPUs),
		MemoryMB: pick(want.MemoryMB, def.MemoryMB, sandbox.DefaultMemoryMB),
		DiskMB:   pick(want.DiskMB, def.DiskMB, sandbox.DefaultDiskMB),
		PIDs:     pick(want.PIDs, def.PIDs, DefaultPIDs),
	}
}

// createFrom makes the sandbox by a restore (or a boot, for a template without
// memory).
func (n *Node) createFrom(ctx context.Context, t *template, r *record) (*sandbox.Sandbox, error) {
	n.own(r, newID("i"))
	r.State = sandbox.Creating
	e, err := n.establish(ctx, t, r)
	if err != nil {
		return nil, err
	}
	defer e.release()
	r, _, err = n.come(ctx, e, r)
	if err != nil {
		return nil, errors.Join(err, n.erase(ctx, e))
	}
	n.event(ctx, r, "created", "created from "+r.Template, map[string]string{"template": r.TemplateID})
	return r.view(), nil
}

// establish admits r, gives it an upper and makes it known and journalled. The
// entry is returned with its lock held.
func (n *Node) establish(ctx context.Context, t *template, r *record) (*entry, error) {
	upper, err := n.newLayer(ctx)
	if err != nil {
		return nil, err
	}
	r.Layers, r.Upper, r.Image = t.Layers, upper, t.Image
	e := newEntry(r)
	<-e.lock
	if err := n.admit(e, r, t); err != nil {
		return nil, errors.Join(err, n.files.Remove(upper))
	}
	n.step("create.admitted")
	if err := n.commit(ctx, e, r); err != nil {
		n.forget(e)
		return nil, errors.Join(err, n.files.Remove(upper))
	}
	n.step("create.journalled")
	return e, nil
}

// come brings a journalled sandbox up and commits it as running. It is the
// common end of create, resume, snapshot, rollback and reconcile. The record's
// fields StartedAt and EndAt are the caller's business.
func (n *Node) come(ctx context.Context, e *entry, r *record) (*record, started, error) {
	r = r.clone()
	oldUpper, oldSlot, image := r.Upper, r.Slot, r.Image
	s, err := n.bringUp(ctx, r)
	if err != nil {
		return r, s, err
	}
	created := r.State == sandbox.Creating
	if s.depth == sandbox.DepthMemory || s.reason != "" {
		r.Reason = s.reason
	}
	r.State, r.Image, r.PausedAt = sandbox.Running, "", time.Time{}
	if !created || s.reason != "" {
		r.Recovered = s.depth
	}
	if err := n.commit(ctx, e, r); err != nil {
		err = errors.Join(err, n.takeDown(ctx, r))
		if oldSlot == 0 {
			err = errors.Join(err, n.network.Detach(ctx, r.Slot))
		}
		return r, s, err
	}
	n.step("up.committed")
	n.arm(e)
	n.discard(image)
	if r.Upper != oldUpper {
		_ = n.drop(oldUpper)
	}
	return r, s, nil
}

// erase takes a sandbox away altogether. The caller holds the lock. It is
// idempotent and picks up where an earlier try ended.
//
// A try that fails is made again after a while: what cannot be removed now, say
// from a full disk, is not forgotten.
func (n *Node) erase(ctx context.Context, e *entry) (err error) {
	r := e.rec.Load().clone()
	e.stopTimer()
	defer func() {
		if err != nil && n.ctx.Err() == nil {
			e.timer = n.clock.AfterFunc(retryExpiry, func() { n.goes(func() { n.expire(e.id) }) })
		}
	}()
	if r.State != sandbox.Deleting {
		r.State = sandbox.Deleting
		if err := n.commit(ctx, e, r); err != nil {
			return err
		}
	}
	n.step("delete.journalled")
	if err := n.takeDown(ctx, r); err != nil {
		return fmt.Errorf("delete %s: %w", thing(r.ID), err)
	}
	// A failed create may have got one generation further than the journal knows.
	next := *r
	next.Generation++
	if err := n.engine.Kill(ctx, next.instance()); err != nil {
		return fmt.Errorf("delete %s: %w", thing(r.ID), err)
	}
	n.step("delete.down")
	if err := os.RemoveAll(n.home(r.ID)); err != nil {
		return fmt.Errorf("delete %s: %w", thing(r.ID), err)
	}
	if err := n.journal.Do(ctx, func(tx journal.Tx) error { return tx.DeleteSandbox(r.ID) }); err != nil {
		return err
	}
	n.step("delete.committed")
	n.forget(e)
	// Last, for a slot that is free may be another sandbox's at once: a record that
	// still names it would take that one's network away when it is deleted again.
	if r.Slot != 0 {
		if err := n.network.Detach(ctx, r.Slot); err != nil {
			err = fmt.Errorf("%s is deleted, but its network stays until the next start or `holdfast doctor --repair`: %w", thing(r.ID), err)
			return errors.Join(err, n.drop(append([]string{r.Upper}, r.Layers...)...))
		}
	}
	n.step("delete.detached")
	return n.drop(append([]string{r.Upper}, r.Layers...)...)
}

func (n *Node) forget(e *entry) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sandboxes[e.id] == e {
		delete(n.sandboxes, e.id)
	}
}

// Delete ends a sandbox in any state and removes all that is its own.
func (n *Node) Delete(ctx context.Context, id string) error {
	return n.locked(ctx, id, func(ctx context.Context, e *entry) error {
		r := e.rec.Load()
		if err := n.erase(ctx, e); err != nil {
			return err
		}
		n.event(ctx, r, "deleted", "deleted", nil)
		return nil
	})
}
