package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/network"
	"github.com/holdfast-run/holdfast/sandbox"
)

// reconcile makes the machine and the journal agree after a stop of any kind:
// orderly, kill -9 at any point, or a reboot that took processes, mounts and
// namespaces away. What to do follows from the journalled state alone:
//
//	creating, pooled   was never promised to anyone: removed
//	deleting           finished
//	running, pausing   instance alive: adopted, thawed, told who it is again
//	                   instance gone: boots from its files, or from the image if the
//	                   last thing journalled was a snapshot or rollback
//	resuming           came up already: adopted; else resumed again, as it was asked for
//	paused, failed     stays; anything alive of it is ended
//
// One broken sandbox never stalls the others: it becomes failed, with the reason.
func (n *Node) reconcile(ctx context.Context) error {
	alive, err := n.engine.List(ctx)
	if err != nil {
		return fmt.Errorf("list instances: %w", err)
	}
	wanted := map[string]bool{}
	for _, e := range n.sandboxes {
		r := e.rec.Load()
		switch r.State {
		case sandbox.Running, sandbox.Pausing, sandbox.Resuming:
			wanted[r.instance()] = true
			next := *r
			next.Generation++
			wanted[next.instance()] = true
		}
	}
	var g errgroup.Group
	g.SetLimit(8)
	for _, id := range alive {
		if !wanted[id] {
			g.Go(func() error {
				if err := n.engine.Kill(ctx, id); err != nil {
					n.log.Error("leftover instance", "instance", id, "error", err)
				}
				return nil
			})
		}
	}
	_ = g.Wait()
	synced, err := n.network.Sync(ctx, n.slots())
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	for _, e := range n.all() { // cut off for good: its instance starts again
		if r := e.rec.Load(); slices.Contains(synced.Rebuilt, r.Slot) {
			next := *r
			next.Generation++
			if err := errors.Join(n.engine.Kill(ctx, r.instance()), n.engine.Kill(ctx, next.instance())); err != nil {
				n.log.Error("instance without its network", "sandbox", r.ID, "error", err)
			}
		}
	}
	for _, e := range n.all() {
		g.Go(func() error {
			if err := n.settle(ctx, e); err != nil {
				n.log.Error("reconcile", "sandbox", e.id, "error", err)
				n.fail(ctx, e, err)
			}
			return nil
		})
	}
	_ = g.Wait()
	if err := n.sweep(ctx); err != nil { // what stays costs space; it must not cost the daemon
		n.log.Error("leftovers stay until the next start", "error", err)
	}
	return n.journal.PruneEvents(ctx, n.now().Add(-eventsKept))
}

// slots gives the network slots that sandboxes hold, with their policies.
func (n *Node) slots() map[int]network.Policy {
	used := map[int]network.Policy{}
	for _, e := range n.all() {
		r := e.rec.Load()
		if r.Slot != 0 && r.State != sandbox.Creating && r.State != sandbox.Deleting {
			used[r.Slot] = policy(r.Network)
		}
	}
	return used
}

// settle brings one sandbox to rest, or sends it on its way in the background.
func (n *Node) settle(ctx context.Context, e *entry) error {
	<-e.lock
	defer e.release()
	r := e.rec.Load()
	switch r.State {
	case sandbox.Creating, pooled, sandbox.Deleting:
		return n.erase(ctx, e)
	case sandbox.Paused, sandbox.Failed:
		return n.unmount(ctx, r.ID)
	}
	kept, err := n.adopt(ctx, e)
	if err != nil || kept {
		return err
	}
	// Its instance is gone. The journal's generation counts on from both that may
	// have been.
	c := r.clone()
	c.Generation++
	c.State, c.Building = sandbox.Resuming, ""
	if err := n.takeDown(ctx, r); err != nil {
		return err
	}
	if err := n.commit(ctx, e, c); err != nil {
		return err
	}
	n.goes(func() { n.comeBack(e.id) })
	return nil
}

// adopt takes over the live instance of a sandbox that should run. A checkpoint
// in flight is void: the instance thaws.
func (n *Node) adopt(ctx context.Context, e *entry) (bool, error) {
	r := e.rec.Load().clone()
	if r.State == sandbox.Resuming {
		return n.adoptResumed(ctx, e, r)
	}
	_, err := n.engine.Adopt(ctx, r.instance())
	if errors.Is(err, engine.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := n.engine.Thaw(ctx, r.instance()); err != nil {
		return false, n.engine.Kill(ctx, r.instance())
	}
	if err := n.ready(ctx, r, restoredReady); err != nil {
		n.log.Warn("adopted instance does not answer, starting it again", "sandbox", r.ID, "error", err)
		return false, n.engine.Kill(ctx, r.instance())
	}
	if r.State != sandbox.Running || r.Building != "" {
		r.State, r.Building, r.Image = sandbox.Running, "", ""
		if err := n.commit(ctx, e, r); err != nil {
			return false, err
		}
	}
	n.arm(e)
	return true, nil
}

// adoptResumed takes over what bringUp started and did not live to journal. It
// ran on without us and wrote files: the image it came from fits them no more, so
// it is the sandbox now. One that came up by half, or does not answer, goes.
func (n *Node) adoptResumed(ctx context.Context, e *entry, r *record) (bool, error) {
	next := r.clone()
	next.Generation++
	_, err := n.engine.Adopt(ctx, next.instance())
	if err == nil {
		_, err = os.Stat(n.files.Path(r.Upper)) // else bringUp took a new one that we do not know
	}
	if err == nil {
		err = n.ready(ctx, next, restoredReady) // it may never have been told who it is
	}
	if err != nil {
		return false, n.engine.Kill(ctx, next.instance())
	}
	if err := n.engine.Kill(ctx, r.instance()); err != nil {
		return false, err
	}
	next.Recovered = sandbox.DepthMemory
	if r.Image == "" {
		next.Recovered = sandbox.DepthFiles
	}
	next.State, next.Building, next.Image, next.PausedAt = sandbox.Running, "", "", time.Time{}
	next.StartedAt = n.now()
	if least := next.StartedAt.Add(minWake); next.EndAt.Before(least) {
		next.EndAt = least
	}
	if err := n.commit(ctx, e, next); err != nil {
		return false, err
	}
	n.discard(r.Image)
	n.arm(e)
	n.event(ctx, next, "resumed", "resumed while the daemon was away", map[string]string{"depth": string(next.Recovered)})
	return true, nil
}

// comeBack resumes a sandbox that ran when the machine or its instance went away.
func (n *Node) comeBack(id string) {
	select {
	case n.boot <- struct{}{}:
		defer func() { <-n.boot }()
	case <-n.ctx.Done():
		return
	}
	err := n.locked(n.ctx, id, func(ctx context.Context, e *entry) error {
		r := e.rec.Load()
		if r.State != sandbox.Resuming {
			return nil // somebody was faster
		}
		left := r.EndAt.Sub(n.now())
		if left < minWake {
			left = minWake // it could not be used while it was away
		}
		if err := n.resume(ctx, e, left, false, "the machine or the runtime was restarted"); err != nil {
			n.fail(ctx, e, err)
			return err
		}
		return nil
	})
	if err != nil && n.ctx.Err() == nil {
		n.log.Error("come back", "sandbox", id, "error", err)
	}
}

// fail records that a sandbox is not running although it should be. The caller
// holds the lock, or is the only one (reconcile).
func (n *Node) fail(ctx context.Context, e *entry, why error) {
	r := e.rec.Load().clone()
	if r.State == sandbox.Paused || r.State == sandbox.Deleting {
		return
	}
	r.State, r.Reason = sandbox.Failed, why.Error()
	if err := n.commit(ctx, e, r); err != nil {
		n.log.Error("journal", "sandbox", r.ID, "error", err)
		return
	}
	n.event(ctx, r, "failed", r.Reason, nil)
}

// sweep removes what nothing in the journal names: it runs before any operation,
// so whatever is unnamed was left by one that was cut short.
func (n *Node) sweep(ctx context.Context) error {
	var errs []error
	images := map[string]bool{}
	for _, e := range n.sandboxes {
		images[e.rec.Load().Image] = true
	}
	for _, t := range n.templates {
		images[t.Image] = true
	}
	homes, err := os.ReadDir(filepath.Join(n.data, "sandboxes"))
	errs = append(errs, err)
	for _, d := range homes {
		if n.sandboxes[d.Name()] == nil {
			errs = append(errs, n.unmount(ctx, d.Name()), os.RemoveAll(n.home(d.Name())))
			continue
		}
		errs = append(errs, n.sweepImages(filepath.Join("sandboxes", d.Name(), "images"), images))
	}
	errs = append(errs, n.sweepImages("snapshots", images))
	var dead []string
	for _, l := range n.files.List() {
		dead = append(dead, l.ID)
	}
	errs = append(errs, n.drop(dead...))
	for _, t := range n.templates {
		if t.Transient && !n.imageUsed(t.Image) {
			errs = append(errs, n.removeTemplate(ctx, t))
		}
	}
	return errors.Join(errs...)
}

func (n *Node) imageUsed(image string) bool {
	for _, e := range n.sandboxes {
		if e.rec.Load().Image == image {
			return true
		}
	}
	return false
}

func (n *Node) sweepImages(dir string, keep map[string]bool) error {
	list, err := os.ReadDir(n.image(dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	var errs []error
	for _, d := range list {
		if rel := filepath.Join(dir, d.Name()); !keep[rel] {
			errs = append(errs, os.RemoveAll(n.image(rel)))
		}
	}
	return errors.Join(errs...)
}

// leftovers lists what the machine holds that the journal does not explain.
// Operations go on meanwhile, so only what two looks find is one.
func (n *Node) leftovers(ctx context.Context) (leftover, error) {
	first, err := n.look(ctx)
	if err != nil || len(first.instances)+len(first.mounts)+len(first.slots) == 0 {
		return first, err
	}
	select {
	case <-ctx.Done():
		return leftover{}, ctx.Err()
	case <-time.After(lookAgain):
	}
	second, err := n.look(ctx)
	return leftover{
		instances: both(first.instances, second.instances), mounts: both(first.mounts, second.mounts), slots: both(first.slots, second.slots),
	}, err
}

// lookAgain is how long what looks like a leftover may be an operation under way.
const lookAgain = time.Second

func both[T comparable](a, b []T) []T {
	return slices.DeleteFunc(slices.Clone(a), func(x T) bool { return !slices.Contains(b, x) })
}

// leftover is what belongs to no sandbox.
type leftover struct {
	instances, mounts []string
	slots             []int
}

func (n *Node) look(ctx context.Context) (leftover, error) {
	var l leftover
	all, err := n.engine.List(ctx)
	if err != nil {
		return l, err
	}
	for _, id := range all {
		e := n.byInstance(id)
		if e == nil || (e.rec.Load().instance() != id && !e.busy.Load()) || slices.Contains([]sandbox.State{sandbox.Paused, sandbox.Failed}, e.rec.Load().State) {
			l.instances = append(l.instances, id)
		}
	}
	list, err := layers.Mounts(filepath.Join(n.data, "sandboxes"))
	if err != nil {
		return l, err
	}
	for _, m := range list {
		rel := strings.TrimPrefix(m, filepath.Join(n.data, "sandboxes")+"/")
		id, _, _ := strings.Cut(rel, "/")
		n.mu.RLock()
		e := n.sandboxes[id]
		n.mu.RUnlock()
		if e == nil || slices.Contains([]sandbox.State{sandbox.Paused, sandbox.Failed}, e.rec.Load().State) {
			l.mounts = append(l.mounts, m)
		}
	}
	l.slots, err = n.network.Leftovers()
	return l, err
}
