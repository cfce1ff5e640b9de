package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/network"
	"github.com/holdfast-run/holdfast/sandbox"
	"github.com/holdfast-run/holdfast/snapshot"
)

// How long a guest may take to answer. A restored one answers in milliseconds; a
// machine under heavy load needs patience before memory is given up for lost.
const (
	restoredReady = 60 * time.Second
	bootedReady   = 60 * time.Second
)

// DefaultPIDs bounds the host tasks of a sandbox that asks for nothing else.
const DefaultPIDs = 4096

// memoryDir is the folder in an image that the engine writes to.
const memoryDir = "memory"

// started says how an instance came up.
type started struct {
	depth  sandbox.Depth
	reason string // why it is not the best depth that was asked for
	addr   network.Endpoint
}

// bringUp makes the record's next instance run: files mounted, network attached,
// memory restored from r.Image or, where that is impossible, the guest booted on
// the files. It advances r.Generation and sets r.Slot. On error nothing of the
// instance is left; files, image and slot stay.
func (n *Node) bringUp(ctx context.Context, r *record) (s started, err error) {
	r.Generation++
	s.depth = sandbox.DepthMemory
	if _, err := os.Stat(n.files.Path(r.Upper)); err != nil {
		// Its own files are gone: start over from the template, and say so.
		up, err := n.newLayer(ctx)
		if err != nil {
			return s, err
		}
		s.depth, s.reason = sandbox.DepthTemplate, fmt.Sprintf("its files (layer %s) are missing", r.Upper)
		r.Upper, r.Image = up, ""
	}
	start := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.mount(gctx, r) })
	g.Go(func() (err error) {
		s.addr, err = n.network.Attach(gctx, r.Slot, policy(r.Network))
		return err
	})
	var manifest snapshot.Manifest
	var imageErr error = errNoMemory
	if r.Image != "" {
		g.Go(func() error {
			manifest, imageErr = n.verify(gctx, r.Image)
			return nil
		})
	}
	fresh := r.Slot == 0
	defer func() {
		if err != nil { // leave nothing: not a mount, not a slot the journal does not know
			err = errors.Join(err, n.unmount(ctx, r.ID))
			if fresh && s.addr.Slot != 0 {
				err = errors.Join(err, n.network.Detach(ctx, s.addr.Slot))
				r.Slot = 0
			}
		}
	}()
	if err := g.Wait(); err != nil {
		return s, fmt.Errorf("set up %s: %w", thing(r.ID), err)
	}
	r.Slot = s.addr.Slot
	prepared := time.Now()
	n.step("up.prepared")

	if imageErr == nil {
		imageErr = n.restore(ctx, r, manifest, s.addr)
		if imageErr == nil {
			n.log.Debug("up", "sandbox", r.ID, "prepare", prepared.Sub(start), "restore", time.Since(prepared))
			n.step("up.restored")
			return s, nil
		}
		// The addresses went to the instance that failed.
		if _, err := n.network.Attach(ctx, r.Slot, policy(r.Network)); err != nil {
			return s, errors.Join(imageErr, err)
		}
	}
	if s.depth == sandbox.DepthMemory {
		s.depth = sandbox.DepthFiles
		if !errors.Is(imageErr, errNoMemory) {
			s.reason = fmt.Sprintf("memory could not be restored: %v", imageErr)
			n.log.Warn("booting from files", "sandbox", r.ID, "reason", imageErr)
		}
	}
	if err := n.coldStart(ctx, r, s.addr); err != nil {
		return s, err
	}
	n.step("up.booted")
	return s, nil
}

func (n *Node) restore(ctx context.Context, r *record, m snapshot.Manifest, at network.Endpoint) error {
	start := time.Now()
	_, err := n.engine.Restore(ctx, n.spec(r, at, m.Memory.Runtime), filepath.Join(n.image(r.Image), memoryDir))
	if err != nil {
		return err
	}
	n.log.Debug("restored", "sandbox", r.ID, "took", time.Since(start))
	if err := n.ready(ctx, r, restoredReady); err != nil {
		return errors.Join(err, n.engine.Kill(ctx, r.instance()))
	}
	return nil
}

func (n *Node) coldStart(ctx context.Context, r *record, at network.Endpoint) error {
	if _, err := n.engine.Start(ctx, n.spec(r, at, "")); err != nil {
		return fmt.Errorf("boot %s: %w", thing(r.ID), err)
	}
	if err := n.ready(ctx, r, bootedReady); err != nil {
		return errors.Join(fmt.Errorf("boot %s: %w", thing(r.ID), err), n.engine.Kill(ctx, r.instance()))
	}
	return nil
}

// ready waits for the guest and, unless the record is still without identity,
// tells it who it is.
func (n *Node) ready(ctx context.Context, r *record, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if r.State != pooled {
		return n.identify(ctx, r)
	}
	if err := n.guest.Warm(ctx, n.network.Addr(r.Slot)); err != nil {
		return fmt.Errorf("guest does not answer: %w", err)
	}
	return nil
}

func (n *Node) identify(ctx context.Context, r *record) error {
	err := n.guest.Init(ctx, n.network.Addr(r.Slot), Identity{
		Hostname: hostname(r), MachineID: r.MachineID, Token: r.AccessToken, Env: r.Env, User: r.User, Workdir: r.Workdir,
	})
	if err != nil {
		return fmt.Errorf("guest takes no identity: %w", err)
	}
	return nil
}

// hostname is E2B-like: one word that a shell prompt can bear.
func hostname(r *record) string { return r.ID }

func (n *Node) spec(r *record, at network.Endpoint, runtime string) engine.Spec {
	pids := r.Resources.PIDs
	if pids == 0 {
		pids = DefaultPIDs
	}
	return engine.Spec{
		ID: r.instance(), Root: n.root(r.ID), Share: n.share(r.ID), NetNS: at.NetNS,
		Args:     []string{n.opts.GuestPath},
		Env:      []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		Hostname: hostname(r), Runtime: runtime,
		Resources: resources(r.Resources, pids),
	}
}

func resources(r sandbox.Resources, pids int) engine.Resources {
	return engine.Resources{CPUMillis: int64(r.CPUs) * 1000, MemoryBytes: int64(r.MemoryMB) << 20, PIDs: int64(pids)}
}

// verify loads an image's manifest and checks sizes and hashes (invariant 5).
func (n *Node) verify(ctx context.Context, image string) (snapshot.Manifest, error) {
	m, err := snapshot.Load(n.image(image))
	if err != nil {
		return m, err
	}
	if m.Memory == nil {
		return m, errNoMemory
	}
	return m, snapshot.Verify(ctx, n.image(image), m)
}

func (n *Node) mount(ctx context.Context, r *record) error {
	for _, d := range []string{n.share(r.ID), n.root(r.ID), n.work(r.ID)} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	return n.files.Mount(ctx, layers.Root{
		Lower: r.Layers, Upper: n.files.Path(r.Upper), Work: filepath.Join(n.work(r.ID), r.Upper), Target: n.root(r.ID),
	})
}

// unmount does not wait for the disk, as an ordinary unmount of an overlay would:
// it flushes the whole file system. Who needs the files on stable storage has
// synced them before.
func (n *Node) unmount(ctx context.Context, id string) error {
	return layers.Discard(ctx, n.root(id))
}

// takeDown ends the record's instance and unmounts its files. The network slot
// stays. It is idempotent.
func (n *Node) takeDown(ctx context.Context, r *record) error {
	defer n.opts.Ended(r.ID)
	return errors.Join(n.engine.Kill(ctx, r.instance()), n.unmount(ctx, r.ID))
}

func (n *Node) newLayer(ctx context.Context) (string, error) {
	l, err := n.files.New(ctx)
	return l.ID, err
}

// discard removes a memory image that belonged to one sandbox alone. The running
// instance that came from it holds open what it still reads. Images of snapshots
// stay.
func (n *Node) discard(image string) {
	if !strings.HasPrefix(image, "sandboxes/") {
		return
	}
	if err := os.RemoveAll(n.image(image)); err != nil {
		n.log.Warn("stale memory image stays until the next start", "image", image, "error", err)
	}
}
