package node

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Status sums the node up.
func (n *Node) Status(context.Context) (sandbox.NodeStatus, error) {
	c := n.engine.Capabilities()
	s := sandbox.NodeStatus{
		Started: n.started, Engine: c.Engine, EngineVersion: c.Version, Platform: c.Platform, Runtime: c.Runtime, Missing: c.Missing,
		Sandboxes: map[sandbox.State]int{}, Pool: map[string]sandbox.PoolStatus{}, DiskUsed: n.diskUsed.Load(),
	}
	var st unix.Statfs_t
	if err := unix.Statfs(n.data, &st); err != nil {
		return s, fmt.Errorf("free space of %s: %w", n.data, err)
	}
	s.DiskFree = int64(st.Bavail) * st.Bsize
	ids := map[string]string{} // pool name → template id
	n.mu.RLock()
	for _, e := range n.sandboxes {
		r := e.rec.Load()
		if r.State == pooled {
			continue
		}
		s.Sandboxes[r.State]++
		if public(r.State) == sandbox.Running {
			s.Used.CPUs += r.Resources.CPUs
			s.Used.MemoryMB += r.Resources.MemoryMB
			s.Used.DiskMB += r.Resources.DiskMB
		}
	}
	for _, t := range n.templates {
		switch {
		case t.Transient:
		case t.Snapshot:
			s.Snapshots++
		default:
			s.Templates++
		}
	}
	for name := range n.opts.Pool {
		if t, err := n.lookup(name); err == nil {
			ids[name] = t.ID
		}
	}
	n.mu.RUnlock()
	// The pool's lock is taken before n.mu (see short), never inside it.
	for name, want := range n.opts.Pool {
		s.Pool[name] = sandbox.PoolStatus{Want: want, Ready: n.pool.count(ids[name])}
	}
	return s, nil
}

// Inspect tells what a sandbox is made of and what it costs now.
func (n *Node) Inspect(ctx context.Context, id string) (*sandbox.Inspection, error) {
	e, err := n.entry(id)
	if err != nil {
		return nil, err
	}
	r := e.rec.Load()
	in := &sandbox.Inspection{Layers: append(r.clone().Layers, r.Upper), DiskBytes: n.diskOf(e, r, true), Addr: n.network.Addr(r.Slot)}
	if r.Image != "" {
		in.ImageBytes, _, _ = layers.Usage(n.image(r.Image))
	}
	if r.State != sandbox.Running {
		return in, nil
	}
	st, err := n.engine.Stats(ctx, r.instance())
	if err != nil {
		return in, nil //nolint:nilerr // it ended this moment; what is known is still true
	}
	in.MemoryBytes, in.PIDs, in.PID, in.Runtime = st.MemoryBytes, st.PIDs, st.PID, st.Runtime
	return in, nil
}

// Metric samples a running sandbox: memory and disk as the inside sees them, cpu
// as the host charges it, averaged since the previous sample (or its start).
func (n *Node) Metric(ctx context.Context, id string) (*sandbox.Metric, error) {
	e, err := n.entry(id)
	if err != nil {
		return nil, err
	}
	r := e.rec.Load()
	if r.State != sandbox.Running {
		return nil, &sandbox.Error{Kind: sandbox.Conflict, Thing: thing(id), Reason: fmt.Sprintf("is %s and uses nothing", r.State)}
	}
	st, err := n.engine.Stats(ctx, r.instance())
	if err != nil {
		return nil, fmt.Errorf("sample %s: %w", thing(id), err)
	}
	m := &sandbox.Metric{
		Time: n.now(), CPUs: r.Resources.CPUs, CPUUsedPct: e.usage.cpu(st.CPUTime, r.StartedAt, st.Time),
		MemUsed: st.MemoryBytes, MemTotal: int64(r.Resources.MemoryMB) << 20,
		DiskUsed: n.diskOf(e, r, false), DiskTotal: int64(r.Resources.DiskMB) << 20,
	}
	if u, err := n.guest.Usage(ctx, n.network.Addr(r.Slot), r.AccessToken); err == nil {
		m.MemUsed = u.MemUsed
	}
	return m, nil
}

// cpu gives percent of one core used since the last call.
func (u *usage) cpu(used time.Duration, started, now time.Time) float64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	from, since := u.cpuTime, u.cpuAt
	if since.IsZero() || used < from { // first sample, or a new instance counts anew
		from, since = 0, started
	}
	u.cpuTime, u.cpuAt = used, now
	span := now.Sub(since)
	if span <= 0 {
		return 0
	}
	return 100 * float64(used-from) / float64(span)
}

// UpdateNetwork replaces what a sandbox may reach, at once for new connections.
func (n *Node) UpdateNetwork(ctx context.Context, id string, nw sandbox.Network) error {
	if err := validateRules(nw); err != nil {
		return err
	}
	return n.locked(ctx, id, func(ctx context.Context, e *entry) error {
		r := e.rec.Load().clone()
		r.Network.AllowInternet, r.Network.AllowOut, r.Network.DenyOut = nw.AllowInternet, nw.AllowOut, nw.DenyOut
		// Journal first: after a crash the stricter of the two must not be forgotten.
		if err := n.commit(ctx, e, r); err != nil {
			return err
		}
		return n.network.SetPolicy(ctx, r.Slot, policy(r.Network))
	})
}

// Check lists what is wrong on this node; it changes nothing.
func (n *Node) Check(ctx context.Context) ([]sandbox.Finding, error) { return n.examine(ctx, false) }

// Repair removes leftovers.
func (n *Node) Repair(ctx context.Context) ([]sandbox.Finding, error) { return n.examine(ctx, true) }

func (n *Node) examine(ctx context.Context, repair bool) ([]sandbox.Finding, error) {
	left, err := n.leftovers(ctx)
	if err != nil {
		return nil, err
	}
	var out []sandbox.Finding
	found := func(check, what, reason string, fix func() error) {
		f := sandbox.Finding{Check: check, Severity: sandbox.Problem, Thing: what, Reason: reason, Next: "run `holdfast doctor --repair`"}
		if repair {
			if err := fix(); err != nil {
				f.Reason += ": not removed: " + err.Error()
				f.Next = "restart the daemon, which reconciles from scratch"
			} else {
				f.Repaired, f.Next = true, ""
			}
		}
		out = append(out, f)
	}
	for _, id := range left.instances {
		found("instances", id, "belongs to no running sandbox", func() error { return n.engine.Kill(ctx, id) })
	}
	for _, m := range left.mounts {
		found("mounts", m, "belongs to no running sandbox", func() error { return layers.Unmount(ctx, m) })
	}
	for _, slot := range left.slots {
		found("network", fmt.Sprintf("slot %d (%s)", slot, n.network.Addr(slot)), "belongs to no sandbox", func() error { return n.network.Detach(ctx, slot) })
	}
	for what, why := range n.engine.Capabilities().Missing {
		out = append(out, sandbox.Finding{Check: "limits", Severity: sandbox.Warning, Thing: what, Reason: "limit is not enforced: " + why, Next: "mount that cgroup controller"})
	}
	for _, e := range n.all() {
		if r := e.rec.Load(); r.State == sandbox.Failed {
			out = append(out, sandbox.Finding{Check: "sandboxes", Severity: sandbox.Warning, Thing: r.ID, Reason: "failed: " + r.Reason, Next: "connect to it to boot it from its files, or delete it"})
		}
	}
	return out, nil
}
