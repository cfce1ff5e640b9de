package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Snapshot makes an immutable picture of a running or paused sandbox. A running
// one stands still while its memory is written and comes back, then goes on.
func (n *Node) Snapshot(ctx context.Context, id string, o sandbox.SnapshotOptions) (*sandbox.Template, error) {
	var names []string
	if o.Name != "" {
		name, err := cleanName(o.Name)
		if err != nil {
			return nil, err
		}
		if err := n.snapshotMayBe(name); err != nil {
			return nil, err
		}
		names = []string{name}
	}
	var t *template
	err := n.locked(ctx, id, func(ctx context.Context, e *entry) (err error) {
		t, err = n.picture(ctx, e, names, o.FilesOnly, false)
		return err
	})
	if err != nil {
		return nil, err
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	v := n.templateView(t)
	return &v, nil
}

// snapshotMayBe refuses a name that a template bears: creates from it would
// silently start from the snapshot. From snapshot to snapshot a name may move.
func (n *Node) snapshotMayBe(name string) error {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if t := n.templates[n.names[name]]; t != nil && !t.Snapshot {
		return sandbox.Errorf(sandbox.Conflict, fmt.Sprintf("template name %q", name), "belongs to a template").WithNext("choose another name for the snapshot")
	}
	return nil
}

// picture makes a snapshot of the sandbox. The caller holds the lock.
func (n *Node) picture(ctx context.Context, e *entry, names []string, filesOnly, transient bool) (*template, error) {
	r := e.rec.Load()
	t := &template{Transient: transient, Network: r.Network}
	t.ID = newID("s")
	t.Snapshot, t.SourceID, t.Source, t.Space = true, r.ID, r.ID, r.Space
	t.CreatedAt, t.Resources, t.User, t.Workdir = n.now(), r.Resources, r.User, r.Workdir
	t.Env = nil // the sandbox's env may hold secrets; memory keeps what runs, files keep the rest
	t.Layers = append(slices.Clone(r.Layers), r.Upper)
	dir := filepath.Join("snapshots", t.ID)
	var err error
	switch r.State {
	case sandbox.Running:
		err = n.pictureRunning(ctx, e, t, dir, names, filesOnly)
	case sandbox.Paused:
		err = n.picturePaused(ctx, e, t, dir, names, filesOnly)
	default:
		return nil, &sandbox.Error{Kind: sandbox.Conflict, Thing: thing(r.ID), Reason: fmt.Sprintf("is %s", r.State), Next: "only a running or paused sandbox has a picture"}
	}
	if err != nil {
		return nil, err
	}
	if !transient {
		n.event(ctx, r, "snapshot", "snapshot "+t.ID+" made", map[string]string{"snapshot": t.ID})
	}
	return t, nil
}

// pictureRunning: checkpoint; one transaction makes the image a snapshot and the
// upper one of its layers, with a new upper above for the sandbox; then the
// sandbox comes back on that. Cut short before the transaction the frozen
// instance thaws; after it, the sandbox resumes from the snapshot's image.
func (n *Node) pictureRunning(ctx context.Context, e *entry, t *template, dir string, names []string, filesOnly bool) error {
	if err := n.checkDepth(t); err != nil {
		return err
	}
	upper, err := n.newLayer(ctx)
	if err != nil {
		return err
	}
	e.busy.Store(true)
	defer e.busy.Store(false)
	r := e.rec.Load().clone()
	r.Building = dir
	if err := n.commit(ctx, e, r); err != nil {
		return errors.Join(err, n.files.Remove(upper))
	}
	n.step("snapshot.journalled")
	// Memory is written even for a files-only picture: it is what the sandbox itself
	// goes on from. It is dropped from the snapshot afterwards.
	c, err := n.capture(ctx, e, r, dir, false)
	if err != nil {
		return errors.Join(err, n.goOn(ctx, e, r, dir), n.files.Remove(upper))
	}
	n.step("snapshot.captured")
	t.HasMemory, t.Image, t.ImageBytes = true, dir, c.bytes
	next := r.clone()
	next.State, next.Building, next.Image = sandbox.Resuming, "", dir
	next.Layers, next.Upper = slices.Clone(t.Layers), upper
	if err := n.addTemplate(ctx, t, names, e, next); err != nil {
		return errors.Join(err, n.goOn(ctx, e, r, dir), n.files.Remove(upper))
	}
	n.step("snapshot.committed")
	if err := n.takeDown(ctx, r); err != nil {
		return fmt.Errorf("snapshot %s: its old instance does not end: %w", thing(r.ID), err)
	}
	n.step("snapshot.down")
	r, s, err := n.come(ctx, e, next)
	if err != nil {
		back := next.clone()
		back.State, back.Generation = sandbox.Paused, r.Generation
		back.PausedAt, back.Reason = n.now(), fmt.Sprintf("did not come back after a snapshot: %v", err)
		return errors.Join(fmt.Errorf("snapshot %s is made, but the sandbox did not come back and is paused: %w", t.ID, err), n.commit(ctx, e, back))
	}
	still := time.Since(c.frozen)
	n.event(ctx, r, "stood_still", fmt.Sprintf("stood still for a snapshot (%s)", s.depth), map[string]string{
		"ms": strconv.FormatInt(still.Milliseconds(), 10), "depth": string(s.depth),
	})
	n.measureLayer(t.Layers[len(t.Layers)-1])
	if filesOnly {
		return n.dropMemory(ctx, t)
	}
	return nil
}

// picturePaused needs no engine: the image is on disk, complete and fits the
// upper. The snapshot takes it over and the sandbox resumes from there.
func (n *Node) picturePaused(ctx context.Context, e *entry, t *template, dir string, names []string, filesOnly bool) error {
	if err := n.checkDepth(t); err != nil {
		return err
	}
	upper, err := n.newLayer(ctx)
	if err != nil {
		return err
	}
	old := e.rec.Load()
	r := old.clone()
	r.Layers, r.Upper = slices.Clone(t.Layers), upper
	if old.Image != "" && !filesOnly {
		m, err := n.verify(ctx, old.Image)
		if err != nil {
			return errors.Join(fmt.Errorf("memory image of %s: %w", thing(r.ID), err), n.files.Remove(upper))
		}
		t.ImageBytes = m.Memory.Bytes()
		// Hard links: both names hold the same immutable files, in no time and space.
		err = linkTree(n.image(old.Image), n.image(dir))
		if err == nil {
			err = layers.Sync(n.image(dir)) // the new names; the files are there
		}
		if err != nil {
			return errors.Join(err, os.RemoveAll(n.image(dir)), n.files.Remove(upper))
		}
		t.HasMemory, t.Image = true, dir
	}
	n.step("snapshot.linked")
	if err := n.addTemplate(ctx, t, names, e, r); err != nil {
		return errors.Join(err, os.RemoveAll(n.image(dir)), n.files.Remove(upper))
	}
	n.measureLayer(old.Upper)
	return nil
}

// linkTree makes dst a copy of the folder src whose files are hard links.
func linkTree(src, dst string) error {
	return filepath.WalkDir(src, func(p string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(dst, rel), 0o700)
		}
		return os.Link(p, filepath.Join(dst, rel))
	})
}

func (n *Node) measureLayer(id string) {
	n.goes(func() {
		if _, err := n.files.Measure(n.ctx, id); err != nil && n.ctx.Err() == nil {
			n.log.Warn("measure layer", "layer", id, "error", err)
		}
	})
}

func (n *Node) checkDepth(t *template) error {
	if len(t.Layers) >= layers.MaxDepth {
		return &sandbox.Error{Kind: sandbox.Unsupported, Thing: thing(t.SourceID), Reason: fmt.Sprintf("stands on %d layers, the most that can be stacked", len(t.Layers)),
			Next: "copy what you need into a new sandbox of its template"}
	}
	return nil
}

// dropMemory makes t files-only.
func (n *Node) dropMemory(ctx context.Context, t *template) error {
	c := *t
	c.HasMemory, c.Image, c.ImageBytes = false, "", 0
	if err := n.addTemplate(ctx, &c, nil, nil, nil); err != nil {
		return err
	}
	return os.RemoveAll(n.image(t.Image))
}

// Fork makes Count sandboxes of one picture of the sandbox.
func (n *Node) Fork(ctx context.Context, id string, o sandbox.ForkOptions) ([]sandbox.ForkResult, error) {
	if o.Count < 1 || o.Count > 100 {
		return nil, &sandbox.Error{Kind: sandbox.InvalidRequest, Thing: "count", Reason: "must be between 1 and 100"}
	}
	var t *template
	var parent *record
	err := n.locked(ctx, id, func(ctx context.Context, e *entry) (err error) {
		if s := e.rec.Load().State; s != sandbox.Running {
			return &sandbox.Error{Kind: sandbox.Conflict, Thing: thing(id), Reason: fmt.Sprintf("is %s", s), Next: "connect to it, then fork"}
		}
		t, err = n.picture(ctx, e, nil, false, true)
		parent = e.rec.Load()
		return err
	})
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	n.pool.pause()
	defer n.pool.resume()
	results := make([]sandbox.ForkResult, o.Count)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			r := n.newRecord(t, sandbox.CreateOptions{
				Space: parent.Space, Template: parent.Template, Timeout: o.Timeout, Lifecycle: parent.Lifecycle, Resources: parent.Resources,
				Network: parent.Network, Metadata: parent.Metadata, Env: parent.Env, Secure: parent.AccessToken != "",
			})
			r.TemplateID, r.User, r.Workdir = parent.TemplateID, parent.User, parent.Workdir
			results[i].Sandbox, results[i].Err = n.createFrom(ctx, t, r)
		})
	}
	wg.Wait()
	if err := n.removeTemplate(ctx, t); err != nil { // the forks are there; the next start removes it
		n.log.Warn("picture of a fork stays", "template", t.ID, "error", err)
	}
	return results, nil
}

// Rollback puts the sandbox back to one of its own snapshots, in place: same id,
// same address, same deadline.
func (n *Node) Rollback(ctx context.Context, id, snapshotID string) (*sandbox.Sandbox, error) {
	n.mu.RLock()
	t, err := n.lookup(snapshotID)
	n.mu.RUnlock()
	if err != nil {
		return nil, err
	}
	if t.SourceID != id {
		return nil, &sandbox.Error{Kind: sandbox.InvalidRequest, Thing: fmt.Sprintf("snapshot %q", snapshotID), Reason: fmt.Sprintf("is not of %s", thing(id)),
			Next: "create a new sandbox from it instead"}
	}
	var sb *sandbox.Sandbox
	err = n.locked(ctx, id, func(ctx context.Context, e *entry) error {
		old := e.rec.Load()
		switch old.State {
		case sandbox.Running, sandbox.Paused, sandbox.Failed:
		default:
			return &sandbox.Error{Kind: sandbox.Conflict, Thing: thing(id), Reason: fmt.Sprintf("is %s", old.State), Next: "try again"}
		}
		if old.State != sandbox.Running {
			if err := n.admitResume(old); err != nil {
				return err
			}
			defer n.unreserve(old)
		}
		e.busy.Store(true)
		defer e.busy.Store(false)
		upper, err := n.newLayer(ctx)
		if err != nil {
			return err
		}
		r := old.clone()
		r.Layers, r.Upper, r.Image = slices.Clone(t.Layers), upper, t.Image
		r.State = sandbox.Resuming
		if err := n.commit(ctx, e, r); err != nil { // from here on it is the snapshot
			return errors.Join(err, n.files.Remove(upper))
		}
		// The record names the snapshot's layers and image now, so they stay from here
		// on; it may have been removed while we waited for the lock.
		n.mu.RLock()
		gone := n.templates[t.ID] != t
		n.mu.RUnlock()
		if gone {
			return errors.Join(&sandbox.Error{Kind: sandbox.NotFound, Thing: fmt.Sprintf("snapshot %q", snapshotID), Reason: "was removed meanwhile"},
				n.commit(ctx, e, old), n.files.Remove(upper))
		}
		n.step("rollback.committed")
		if err := n.takeDown(ctx, old); err != nil {
			return fmt.Errorf("roll back %s: %w", thing(id), err)
		}
		if old.State != sandbox.Running {
			r.StartedAt = n.now()
			r.EndAt = r.StartedAt.Add(r.Lifecycle.Timeout)
		}
		next, s, err := n.come(ctx, e, r)
		if err != nil {
			back := r.clone()
			back.State, back.Generation = sandbox.Paused, next.Generation
			back.PausedAt, back.Reason = n.now(), fmt.Sprintf("did not come back after a rollback: %v", err)
			return errors.Join(fmt.Errorf("roll back %s: %w", thing(id), err), n.commit(ctx, e, back))
		}
		n.discard(old.Image)
		n.event(ctx, next, "rolled_back", fmt.Sprintf("rolled back to %s (%s)", t.ID, s.depth), map[string]string{"snapshot": t.ID, "depth": string(s.depth)})
		sb = next.view()
		return n.drop(append([]string{old.Upper}, old.Layers...)...)
	})
	return sb, err
}
