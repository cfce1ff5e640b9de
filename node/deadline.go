package node

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// SetTimeout sets the deadline to now+d; 0 expires it now.
func (n *Node) SetTimeout(ctx context.Context, id string, d time.Duration) error {
	if d < 0 || d > sandbox.MaxTimeout {
		return &sandbox.Error{Kind: sandbox.InvalidRequest, Thing: "Timeout", Reason: fmt.Sprintf("must be between 0 and %d hours", int(sandbox.MaxTimeout.Hours()))}
	}
	return n.locked(ctx, id, func(ctx context.Context, e *entry) error {
		if err := mustRun(e.rec.Load()); err != nil {
			return err
		}
		return n.deadline(ctx, e, d, false)
	})
}

// Extend moves the deadline to now+d if that is later.
func (n *Node) Extend(ctx context.Context, id string, d time.Duration) error {
	if d < 0 || d > sandbox.MaxTimeout {
		return &sandbox.Error{Kind: sandbox.InvalidRequest, Thing: "duration", Reason: fmt.Sprintf("must be between 0 and %d hours", int(sandbox.MaxTimeout.Hours()))}
	}
	return n.locked(ctx, id, func(ctx context.Context, e *entry) error {
		if err := mustRun(e.rec.Load()); err != nil {
			return err
		}
		return n.deadline(ctx, e, d, true)
	})
}

// mustRun: a paused sandbox has no deadline to move.
func mustRun(r *record) error {
	if r.State == sandbox.Running {
		return nil
	}
	return &sandbox.Error{Kind: sandbox.NotFound, Thing: thing(r.ID), Reason: fmt.Sprintf("is %s, so it has no deadline", r.State), Next: "connect to it first"}
}

func (n *Node) deadline(ctx context.Context, e *entry, d time.Duration, onlyLater bool) error {
	r := e.rec.Load().clone()
	end := n.now().Add(d)
	if onlyLater && !end.After(r.EndAt) {
		return nil
	}
	r.EndAt = end
	if err := n.commit(ctx, e, r); err != nil {
		return err
	}
	n.arm(e)
	return nil
}

// arm sets the deadline's timer. The caller holds the lock.
func (n *Node) arm(e *entry) {
	e.stopTimer()
	r := e.rec.Load()
	if r.State != sandbox.Running || n.ctx.Err() != nil {
		return
	}
	e.timer = n.clock.AfterFunc(max(0, r.EndAt.Sub(n.clock.Now())), func() { n.goes(func() { n.expire(e.id) }) })
}

func (e *entry) stopTimer() {
	if e.timer != nil {
		e.timer.Stop()
		e.timer = nil
	}
}

// retryExpiry is how long after a pause by deadline, or a removal, failed it is
// tried again.
const retryExpiry = time.Minute

// expire does what the lifecycle says if the deadline has really passed.
func (n *Node) expire(id string) {
	err := n.locked(n.ctx, id, func(ctx context.Context, e *entry) error {
		r := e.rec.Load()
		if r.State == sandbox.Deleting {
			return n.erase(ctx, e)
		}
		if r.State != sandbox.Running || n.now().Before(r.EndAt) {
			n.arm(e) // it was extended, or the clock was set back
			return nil
		}
		if r.Lifecycle.OnTimeout == sandbox.Pause {
			err := n.pause(ctx, e, !r.Lifecycle.KeepMemory, "deadline")
			if err != nil && e.rec.Load().State == sandbox.Running {
				n.event(ctx, r, "pause_failed", fmt.Sprintf("pause at the deadline failed, it runs on for another minute: %v", err), nil)
				return n.deadline(ctx, e, retryExpiry, false)
			}
			return err
		}
		if err := n.erase(ctx, e); err != nil {
			return err
		}
		n.event(ctx, r, "deleted", "its deadline passed", nil)
		return nil
	})
	if err != nil && n.ctx.Err() == nil && !sandbox.IsKind(err, sandbox.NotFound) {
		n.log.Error("deadline", "sandbox", id, "error", err)
	}
}
