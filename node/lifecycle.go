package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/sandbox"
	"github.com/holdfast-run/holdfast/snapshot"
)

// Pause writes memory to disk and ends the instance: afterwards the sandbox uses
// no memory and no CPU. When it returns nil the image is complete on stable
// storage; when it fails the sandbox runs on and the error says why.
func (n *Node) Pause(ctx context.Context, id string, o sandbox.PauseOptions) error {
	return n.locked(ctx, id, func(ctx context.Context, e *entry) error {
		return n.pause(ctx, e, o.FilesOnly, "requested")
	})
}

func (n *Node) pause(ctx context.Context, e *entry, filesOnly bool, why string) error {
	r := e.rec.Load().clone()
	switch r.State {
	case sandbox.Running:
	case sandbox.Paused:
		return &sandbox.Error{Kind: sandbox.Conflict, Thing: thing(r.ID), Reason: "is already paused", Next: "resume it by connecting to it"}
	default:
		return &sandbox.Error{Kind: sandbox.Conflict, Thing: thing(r.ID), Reason: fmt.Sprintf("is %s", r.State), Next: "only a running sandbox can be paused"}
	}
	e.busy.Store(true)
	defer e.busy.Store(false)
	start := time.Now()
	dir := filepath.Join("sandboxes", r.ID, "images", strconv.FormatInt(r.Generation, 10))
	r.State, r.Building = sandbox.Pausing, dir
	if err := n.commit(ctx, e, r); err != nil {
		return err
	}
	n.step("pause.journalled")
	c, err := n.capture(ctx, e, r, dir, filesOnly)
	if err != nil {
		return errors.Join(err, n.goOn(ctx, e, r, dir))
	}
	n.step("pause.captured")
	r = r.clone()
	r.State, r.Building, r.PausedAt = sandbox.Paused, "", n.now()
	r.Image = dir
	if filesOnly {
		r.Image = ""
	}
	if err := n.commit(ctx, e, r); err != nil {
		return errors.Join(err, n.goOn(ctx, e, r, dir))
	}
	n.step("pause.committed")
	e.stopTimer()
	err = n.takeDown(ctx, r)
	n.step("pause.down")
	n.event(ctx, r, "paused", fmt.Sprintf("paused (%s)", why), map[string]string{
		"image_bytes": strconv.FormatInt(c.bytes, 10), "ms": strconv.FormatInt(time.Since(start).Milliseconds(), 10),
	})
	if err != nil { // paused for good, but something of the instance is left: doctor's case
		n.log.Error("instance of a paused sandbox could not be cleared", "sandbox", r.ID, "error", err)
	}
	return nil
}

// captured says what a capture wrote.
type captured struct {
	bytes  int64
	frozen time.Time // when the instance stopped
}

// capture freezes the instance and makes dir a complete image of it: files on
// stable storage, memory (unless filesOnly) with a manifest written last. The
// instance is left frozen; goOn or takeDown must follow.
func (n *Node) capture(ctx context.Context, e *entry, r *record, dir string, filesOnly bool) (c captured, err error) {
	if err := n.checkDisk("write a memory image"); err != nil {
		return c, err
	}
	if err := n.guest.Prepare(ctx, n.network.Addr(r.Slot)); err != nil {
		// Without it the image would be larger and carry the token: not official.
		return c, fmt.Errorf("guest of %s does not prepare: %w", thing(r.ID), err)
	}
	n.step("capture.prepared")
	abs := n.image(dir)
	if err := os.RemoveAll(abs); err != nil {
		return c, err
	}
	mem := filepath.Join(abs, memoryDir)
	if err := os.MkdirAll(mem, 0o700); err != nil {
		return c, err
	}
	img, err := n.engine.Checkpoint(ctx, r.instance(), mem)
	c.frozen = time.Now().Add(-img.Frozen)
	if errors.Is(err, engine.ErrNoSpace) {
		return c, &sandbox.Error{Kind: sandbox.Capacity, Thing: thing(r.ID), Reason: "could not be checkpointed: the disk of the data folder is full",
			Next: fmt.Sprintf("free space under %s and try again; it runs on", n.data), Err: err}
	}
	if err != nil {
		return c, fmt.Errorf("checkpoint %s: %w", thing(r.ID), err)
	}
	n.step("capture.checkpointed")
	if err := layers.Sync(n.files.Path(r.Upper)); err != nil {
		return c, fmt.Errorf("flush files of %s: %w", thing(r.ID), err)
	}
	m := snapshot.Manifest{ID: filepath.Base(dir), Created: n.now(), Layers: append(r.clone().Layers, r.Upper)}
	if filesOnly {
		if err := os.RemoveAll(mem); err != nil {
			return c, err
		}
	} else {
		m.Memory = &snapshot.Memory{Runtime: img.Runtime, CPUFeatures: img.CPUFeature}
		for _, f := range img.Files {
			m.Memory.Files = append(m.Memory.Files, snapshot.File{Name: filepath.Join(memoryDir, f)})
		}
		c.bytes = img.Bytes
	}
	if _, err := snapshot.Write(ctx, abs, m); err != nil {
		return c, noSpace(r.ID, err)
	}
	return c, nil
}

// goOn is the way back from a capture that did not become official: the instance
// thaws, gets its identity back and the sandbox is running as before. If the
// instance died, the sandbox is failed, with its files.
func (n *Node) goOn(ctx context.Context, e *entry, r *record, dir string) error {
	r = r.clone()
	r.State, r.Building, r.Image, r.PausedAt = sandbox.Running, "", "", time.Time{}
	err := n.engine.Thaw(ctx, r.instance())
	if err == nil {
		err = n.ready(ctx, r, restoredReady)
	}
	if err != nil {
		r.State, r.Reason = sandbox.Failed, fmt.Sprintf("did not survive a failed checkpoint: %v", err)
		err = errors.Join(err, n.takeDown(ctx, r))
	}
	return errors.Join(err, n.commit(ctx, e, r), os.RemoveAll(n.image(dir)))
}

// Connect makes sure the sandbox runs and has at least o.Timeout left.
func (n *Node) Connect(ctx context.Context, id string, o sandbox.ConnectOptions) (sb *sandbox.Sandbox, resumed bool, err error) {
	if o.Timeout <= 0 {
		return nil, false, &sandbox.Error{Kind: sandbox.InvalidRequest, Thing: "Timeout", Reason: "must be greater than 0", Next: "leave it out for the default"}
	}
	if o.Timeout > sandbox.MaxTimeout {
		return nil, false, &sandbox.Error{Kind: sandbox.InvalidRequest, Thing: "Timeout", Reason: fmt.Sprintf("cannot be greater than %d hours", int(sandbox.MaxTimeout.Hours()))}
	}
	err = n.locked(ctx, id, func(ctx context.Context, e *entry) error {
		if e.rec.Load().State != sandbox.Running {
			if err := n.resume(ctx, e, o.Timeout, o.FilesOnly, "connect"); err != nil {
				return err
			}
			resumed = true
		}
		if err := n.deadline(ctx, e, o.Timeout, !o.SetDeadline); err != nil {
			return err
		}
		sb = e.rec.Load().view()
		return nil
	})
	return sb, resumed, err
}

// resume brings a paused or failed sandbox back. The caller holds the lock.
func (n *Node) resume(ctx context.Context, e *entry, timeout time.Duration, filesOnly bool, why string) error {
	old := e.rec.Load()
	switch old.State {
	case sandbox.Paused, sandbox.Failed, sandbox.Resuming:
	default:
		return &sandbox.Error{Kind: sandbox.Conflict, Thing: thing(old.ID), Reason: fmt.Sprintf("is %s", old.State), Next: "try again"}
	}
	if err := n.admitResume(old); err != nil {
		return err
	}
	defer n.unreserve(old)
	e.busy.Store(true)
	defer e.busy.Store(false)
	start := time.Now()
	r := old.clone()
	r.State = sandbox.Resuming
	if err := n.commit(ctx, e, r); err != nil {
		return err
	}
	n.step("resume.journalled")
	stale := ""
	if filesOnly {
		stale, r.Image = r.Image, ""
	}
	r.Reason = whyFiles(old, filesOnly, why)
	r.StartedAt = n.now()
	r.EndAt = r.StartedAt.Add(timeout)
	r, s, err := n.come(ctx, e, r)
	if err != nil {
		back := old.clone() // its image and files are as they were: it can be tried again
		back.Reason = fmt.Sprintf("the last resume failed: %v", err)
		back.Generation = r.Generation
		if back.State == sandbox.Resuming {
			back.State = sandbox.Failed
		}
		return errors.Join(fmt.Errorf("resume %s: %w", thing(old.ID), err), n.commit(ctx, e, back))
	}
	n.discard(stale)
	msg := fmt.Sprintf("resumed from %s (%s)", s.depth, why)
	if s.reason != "" {
		msg += ": " + s.reason
	}
	n.event(ctx, r, "resumed", msg, map[string]string{
		"depth": string(s.depth), "ms": strconv.FormatInt(time.Since(start).Milliseconds(), 10),
	})
	return nil
}

// whyFiles is the reason for a sandbox's return without its memory, "" where it
// is not to be expected or was asked for.
func whyFiles(old *record, asked bool, why string) string {
	switch {
	case asked || old.Image != "":
		return ""
	case old.Reason != "":
		return old.Reason // why it failed
	case old.State == sandbox.Paused:
		return "it was paused without its memory"
	}
	return why
}

// Route gives the way to a sandbox's ports, waking it when its lifecycle allows.
func (n *Node) Route(ctx context.Context, id string, wake bool) (sandbox.Route, error) {
	e, err := n.entry(id)
	if err != nil {
		return sandbox.Route{}, err
	}
	if r := e.rec.Load(); r.State == sandbox.Running && !e.busy.Load() {
		return n.route(r), nil
	}
	var route sandbox.Route
	err = n.locked(ctx, id, func(ctx context.Context, e *entry) error {
		r := e.rec.Load()
		if r.State != sandbox.Running {
			if !wake || !r.Lifecycle.AutoResume || (r.State != sandbox.Paused && r.State != sandbox.Resuming) {
				return &sandbox.Error{Kind: sandbox.NotFound, Thing: thing(id), Reason: fmt.Sprintf("is %s and not woken by traffic", r.State),
					Next: "connect to it first, or create it with autoResume"}
			}
			if err := n.resume(ctx, e, max(r.Lifecycle.Timeout, minWake), false, "traffic"); err != nil {
				return err
			}
		}
		route = n.route(e.rec.Load())
		return nil
	})
	return route, err
}

// minWake is the least time that a wake by traffic gives, as E2B's.
const minWake = 300 * time.Second

func (n *Node) route(r *record) sandbox.Route {
	return sandbox.Route{SandboxID: r.ID, Addr: n.network.Addr(r.Slot), Network: r.Network, TrafficToken: r.TrafficToken, Generation: r.Generation}
}
