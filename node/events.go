package node

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/holdfast-run/holdfast/node/journal"
	"github.com/holdfast-run/holdfast/sandbox"
)

// eventsKept is how long history is kept, also of deleted sandboxes.
const eventsKept = 7 * 24 * time.Hour

// eventHub writes history behind the operations' backs: an event describes a
// change that is already committed, so losing the last few in a crash loses no
// truth, and no caller waits for it.
type eventHub struct {
	mu      sync.Mutex
	pending []journal.Event
	writing bool
	idle    *sync.Cond
}

func (n *Node) event(_ context.Context, r *record, kind, message string, fields map[string]string) {
	n.log.Info(message, "sandbox", r.ID, "event", kind)
	h := &n.events
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending = append(h.pending, journal.Event{SandboxID: r.ID, Time: n.now(), Kind: kind, Message: message, Fields: maps.Clone(fields)})
	if !h.writing {
		h.writing = true
		n.goes(n.writeEvents)
	}
}

func (n *Node) writeEvents() {
	h := &n.events
	for {
		h.mu.Lock()
		batch := h.pending
		h.pending = nil
		if len(batch) == 0 {
			h.writing = false
			h.idle.Broadcast()
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		err := n.journal.Do(context.WithoutCancel(n.ctx), func(tx journal.Tx) error {
			for _, e := range batch {
				if _, err := tx.AddEvent(e.SandboxID, e.Time, e.Kind, e.Message, e.Fields); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			n.log.Error("events lost", "count", len(batch), "error", err)
		}
	}
}

// Events gives a sandbox's history, oldest first. A deleted one's is kept for a
// week. It waits for what is being written, so a caller reads its own changes.
func (n *Node) Events(ctx context.Context, id string, o sandbox.EventOptions) ([]sandbox.Event, error) {
	n.events.mu.Lock()
	for n.events.writing {
		n.events.idle.Wait()
	}
	n.events.mu.Unlock()
	limit := o.Limit
	if limit <= 0 || limit > 1000 {
		limit = 1000
	}
	rows, err := n.journal.Events(ctx, id, o.Since, limit)
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		if _, err := n.entry(id); err != nil {
			return nil, err
		}
	}
	out := make([]sandbox.Event, len(rows))
	for i, e := range rows {
		out[i] = sandbox.Event(e)
	}
	return out, nil
}
