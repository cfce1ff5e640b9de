package node

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/sandbox"
)

// watchExits turns the end of an instance that nobody asked for into a failed
// sandbox with a reason. Its files stay; a connect boots it anew on them.
func (n *Node) watchExits() {
	for {
		select {
		case <-n.ctx.Done():
			return
		case x, ok := <-n.engine.Exits():
			if !ok {
				return
			}
			n.goes(func() { n.exited(x) })
		}
	}
}

func (n *Node) exited(x engine.Exit) {
	e := n.byInstance(x.ID)
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(n.ctx, opTimeout)
	defer cancel()
	if e.acquire(ctx) != nil {
		return
	}
	defer e.release()
	r := e.rec.Load()
	if !n.known(e) || r.instance() != x.ID || (r.State != sandbox.Running && r.State != pooled) {
		return // an operation ended it meanwhile, or already noticed
	}
	if r.State == pooled {
		if err := n.erase(ctx, e); err != nil {
			n.log.Warn("pooled sandbox ended", "sandbox", r.ID, "error", err)
		}
		n.pool.lost(e)
		return
	}
	e.stopTimer()
	c := r.clone()
	c.State, c.Reason = sandbox.Failed, fmt.Sprintf("%s: %s", x.Reason, x.Detail)
	if err := n.takeDown(ctx, r); err != nil {
		n.log.Error("clear a dead instance", "sandbox", r.ID, "error", err)
	}
	if err := n.commit(ctx, e, c); err != nil {
		n.log.Error("a dead sandbox could not be journalled", "sandbox", r.ID, "error", err)
		return
	}
	n.event(ctx, c, string(x.Reason), c.Reason, nil)
}

// watchMemory tells of processes inside that were killed at the memory limit while
// the sandbox itself goes on.
func (n *Node) watchMemory() {
	tick := time.NewTicker(2 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-tick.C:
			n.watchMemoryOnce()
		}
	}
}

func (n *Node) watchMemoryOnce() {
	for _, e := range n.all() {
		r := e.rec.Load()
		if r.State != sandbox.Running {
			continue
		}
		st, err := n.engine.Stats(n.ctx, r.instance())
		if err != nil {
			continue // it ends, which exited tells
		}
		if more := e.usage.oom(r.Generation, st.OOMKills); more > 0 {
			n.event(n.ctx, r, "oom", fmt.Sprintf("%d of its processes were killed at the memory limit of %d MiB; the sandbox goes on", more, r.Resources.MemoryMB),
				map[string]string{"processes": strconv.FormatInt(more, 10)})
		}
	}
}

// oom gives how many kills are new since the last look at this instance.
func (u *usage) oom(generation, kills int64) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	seen := u.oomKills
	if u.oomOf != generation {
		seen = 0
	}
	u.oomOf, u.oomKills = generation, kills
	return max(0, kills-seen)
}

func (n *Node) byInstance(id string) *entry {
	if len(id) < 21 {
		return nil
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.sandboxes[id[:21]]
}
