package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
	"github.com/holdfast-run/holdfast/runtimes"
)

// Start implements engine.Engine.
func (e *Engine) Start(ctx context.Context, s engine.Spec) (engine.Instance, error) {
	if s.Runtime == "" {
		s.Runtime = e.current.SHA256
	}
	in, err := e.launch(ctx, s, "")
	if err != nil {
		return engine.Instance{}, fmt.Errorf("start instance %s: %w", s.ID, err)
	}
	return in, nil
}

// Restore implements engine.Engine.
func (e *Engine) Restore(ctx context.Context, s engine.Spec, image string) (engine.Instance, error) {
	m, err := e.checkImage(image)
	if err != nil {
		return engine.Instance{}, fmt.Errorf("restore instance %s: %w", s.ID, err)
	}
	if s.Runtime != "" && s.Runtime != m.Runtime {
		return engine.Instance{}, fmt.Errorf("restore instance %s: %w: it was made by runtime %s, not %s", s.ID, engine.ErrImage, m.Runtime, s.Runtime)
	}
	s.Runtime, s.Hostname = m.Runtime, restoredName
	in, err := e.launch(ctx, s, image)
	if err != nil {
		return engine.Instance{}, fmt.Errorf("restore instance %s: %w", s.ID, err)
	}
	return in, nil
}

// launch does what starting and restoring have in common. On error nothing of the
// instance is left.
func (e *Engine) launch(ctx context.Context, s engine.Spec, image string) (engine.Instance, error) {
	ready := e.takeSpare(keyOf(s), image != "" && s.Runtime == e.current.SHA256)
	in, err := e.launchWith(ctx, s, image, ready)
	if err != nil && ready != nil && ctx.Err() == nil {
		// Whatever was wrong with the spare must not be held against the image.
		in, err = e.launchWith(ctx, s, image, nil)
	}
	return in, err
}

// launchWith launches with a spare kernel, or boots one.
func (e *Engine) launchWith(ctx context.Context, s engine.Spec, image string, ready *spare) (_ engine.Instance, err error) {
	placed := false
	defer func() {
		if ready != nil && !placed {
			e.dropSpare(ready)
		}
	}()
	if err := validate(s); err != nil {
		return engine.Instance{}, err
	}
	if err := ctx.Err(); err != nil {
		return engine.Instance{}, err
	}
	rt, err := e.store.Get(s.Runtime)
	if errors.Is(err, runtimes.ErrNotFound) {
		return engine.Instance{}, fmt.Errorf("%w: %w", engine.ErrImage, err)
	}
	if err != nil {
		return engine.Instance{}, err
	}
	if r, err := e.loadRecord(s.ID); err == nil && r.alive() {
		return engine.Instance{}, engine.ErrExists
	}
	if err := e.clear(s.ID); err != nil { // a leftover of a dead one
		return engine.Instance{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.clear(s.ID))
		}
	}()
	// The folder comes first: from here on List knows of the instance.
	dir := e.instanceDir(s.ID)
	name := ""
	if ready != nil {
		name = ready.name
		err = os.Rename(ready.dir, dir)
	} else {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return engine.Instance{}, err
	}
	placed = true
	if err := bundle(s, dir); err != nil {
		return engine.Instance{}, err
	}
	group, err := e.groups.Create(e.groupName(s.ID), limits(s.Resources))
	if err != nil {
		return engine.Instance{}, err
	}
	r := record{ID: s.ID, Runtime: s.Runtime, Started: time.Now(), Boot: bootID(), OOMKills: group.OOMKills()}
	reply, err := e.drive(ctx, rt, s.ID, wire.Request{Op: wire.Launch, Dir: dir, Launch: &wire.LaunchParams{
		ID:       s.ID,
		Platform: e.caps.Platform,
		NetNS:    s.NetNS,
		Cgroups:  group.Files(),
		Memory:   uint64(s.MemoryBytes),
		CPUs:     cpus(s.CPUMillis),
		Spare:    name,
		Image:    image,
	}})
	if err != nil {
		if group.OOMKills() > r.OOMKills {
			return engine.Instance{}, fmt.Errorf("its memory limit of %d MiB is too small to begin in; raise it: %w", s.MemoryBytes>>20, err)
		}
		return engine.Instance{}, err
	}
	if r.Sandbox, err = identify(reply.Sandbox); err != nil {
		return engine.Instance{}, fmt.Errorf("the sandbox ended at once: %w; it printed: %s", err, tail(dir+"/guest.log", 512))
	}
	if r.Gofer, err = identify(reply.Gofer); err != nil {
		return engine.Instance{}, fmt.Errorf("the gofer ended at once: %w", err)
	}
	if err := e.saveRecord(r); err != nil {
		return engine.Instance{}, err
	}
	in, err := e.watch(r)
	if err != nil {
		return engine.Instance{}, err
	}
	return in.public(), nil
}

// drive has a driver launch an instance. A launch is short; one that does not end,
// or that the caller gives up, is ended by killing its processes, so that when
// this returns nothing happens to the instance any more.
func (e *Engine) drive(ctx context.Context, rt runtimes.Runtime, id string, r wire.Request) (wire.Reply, error) {
	d, err := e.drivers.get(rt)
	if err != nil {
		return wire.Reply{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, launchTimeout)
	defer cancel()
	done := make(chan struct{})
	var reply wire.Reply
	go func() {
		defer close(done)
		reply, err = d.call(context.WithoutCancel(ctx), r)
	}()
	select {
	case <-done:
		return reply, err
	case <-ctx.Done():
	}
	for {
		_ = e.group(id).Kill(killTimeout)
		_ = e.killStrays(id)
		select {
		case <-done:
			return wire.Reply{}, errors.Join(ctx.Err(), err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// launchTimeout bounds one launch; on a machine that is busy with many it may
// take some seconds.
const launchTimeout = 2 * time.Minute

// cpus that the inside sees for a limit of so many thousandths; 0: the host's. At
// least two, for programs take other paths on one cpu.
func cpus(millis int64) int {
	if millis <= 0 {
		return 0
	}
	return min(max(int((millis+999)/1000), 2), hostCPUs())
}

// ask has an instance's driver do something with it.
func (e *Engine) ask(ctx context.Context, in *instance, r wire.Request) (wire.Reply, error) {
	rt, err := e.store.Get(in.Runtime)
	if err != nil {
		return wire.Reply{}, err
	}
	d, err := e.drivers.get(rt)
	if err != nil {
		return wire.Reply{}, err
	}
	r.Dir = e.instanceDir(in.ID)
	reply, err := d.call(ctx, r)
	if err != nil && !in.Sandbox.alive() && !errors.Is(err, engine.ErrNotFound) {
		err = fmt.Errorf("%w: %w", engine.ErrNotFound, err)
	}
	return reply, err
}
