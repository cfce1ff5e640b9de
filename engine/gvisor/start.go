package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/runtimes"
)

// Start implements engine.Engine.
func (e *Engine) Start(ctx context.Context, s engine.Spec) (engine.Instance, error) {
	in, err := e.launch(ctx, s, e.current.SHA256, func(c *runsc, dir string) error {
		return c.run(ctx, dir, e.groups.Group(s.ID), "run", "--detach", "--bundle", dir, s.ID)
	})
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
	in, err := e.launch(ctx, s, m.Runtime, func(c *runsc, dir string) error {
		err := c.run(ctx, dir, e.groups.Group(s.ID), "restore", "--detach", "--background", "--bundle", dir, "--image-path", image, s.ID)
		return classifyRestore(err)
	})
	if err != nil {
		return engine.Instance{}, fmt.Errorf("restore instance %s: %w", s.ID, err)
	}
	return in, nil
}

// launch does what starting and restoring have in common. On error nothing of the
// instance is left.
func (e *Engine) launch(ctx context.Context, s engine.Spec, runtime string, begin func(*runsc, string) error) (_ engine.Instance, err error) {
	if err := validate(s); err != nil {
		return engine.Instance{}, err
	}
	if s.Runtime != "" {
		runtime = s.Runtime
	}
	rt, err := e.store.Get(runtime)
	if errors.Is(err, runtimes.ErrNotFound) {
		return engine.Instance{}, fmt.Errorf("%w: %w", engine.ErrImage, err)
	}
	if err != nil {
		return engine.Instance{}, err
	}
	if r, err := e.loadRecord(s.ID); err == nil && r.Boot == bootID() && r.Sandbox.alive() {
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
	if err := os.Mkdir(dir, 0o700); err != nil {
		return engine.Instance{}, err
	}
	if err := bundle(s, dir); err != nil {
		return engine.Instance{}, err
	}
	group, err := e.groups.Create(s.ID, limits(s.Resources))
	if err != nil {
		return engine.Instance{}, err
	}
	r := record{ID: s.ID, Runtime: runtime, Started: time.Now(), Boot: bootID(), OOMKills: group.OOMKills()}
	c := e.runsc(rt)
	if err := begin(c, dir); err != nil {
		if group.OOMKills() > r.OOMKills {
			return engine.Instance{}, fmt.Errorf("its memory limit of %d MiB is too small to start in: %v", s.MemoryBytes>>20, err)
		}
		return engine.Instance{}, err
	}
	sandbox, gofer, err := c.processes(s.ID)
	if err != nil {
		return engine.Instance{}, err
	}
	if r.Sandbox, err = identify(sandbox); err != nil {
		return engine.Instance{}, fmt.Errorf("the sandbox ended at once: %w; it printed: %s", err, tail(dir+"/guest.log", 512))
	}
	if r.Gofer, err = identify(gofer); err != nil {
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
