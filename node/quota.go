package node

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/sandbox"
)

// admit checks the quotas and, in the same moment, makes e known, so that two
// creates cannot share the last place. With t the template must still exist. For
// a claim e is known already and the record is reserved instead (unreserve).
func (n *Node) admit(e *entry, r *record, t *template) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if t != nil && n.templates[t.ID] != t {
		return &sandbox.Error{Kind: sandbox.NotFound, Thing: fmt.Sprintf("template %q", r.Template), Reason: "was removed meanwhile"}
	}
	if r.State != pooled {
		if err := n.room(r, e.id, true); err != nil {
			return err
		}
	}
	if t != nil {
		n.sandboxes[e.id] = e
	} else {
		n.reserved[r.ID] = r
	}
	return nil
}

func (n *Node) unreserve(r *record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.reserved, r.ID)
}

// admitResume checks the quotas of running sandboxes for one that comes back, and
// reserves its place until its record says so itself (unreserve).
func (n *Node) admitResume(r *record) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.room(r, r.ID, false); err != nil {
		return err
	}
	c := r.clone()
	c.State = sandbox.Resuming
	n.reserved[r.ID] = c
	return nil
}

// room tells which limit r would exceed. The caller holds n.mu.
func (n *Node) room(r *record, self string, fresh bool) error {
	var count, cpus, memory int
	add := func(o *record) {
		if o.ID == self || o.State == pooled || o.State == sandbox.Deleting {
			return
		}
		count++
		if o.State != sandbox.Paused && o.State != sandbox.Failed {
			cpus += o.Resources.CPUs
			memory += o.Resources.MemoryMB
		}
	}
	for id, e := range n.sandboxes {
		if o := n.reserved[id]; o != nil { // what it is about to be
			add(o)
		} else {
			add(e.rec.Load())
		}
	}
	over := func(what, key string, used, want, limit int, unit string) error {
		return &sandbox.Error{Kind: sandbox.Capacity, Thing: "this node",
			Reason: fmt.Sprintf("has reached its limit of %s: %d%s in use, %d%s more asked for, limit %d%s", what, used, unit, want, unit, limit, unit),
			Next:   fmt.Sprintf("pause or delete a sandbox, or raise limits.%s in holdfast.yaml", key)}
	}
	l := n.limits
	switch {
	case fresh && l.Sandboxes > 0 && count+1 > l.Sandboxes:
		return over("sandboxes", "sandboxes", count, 1, l.Sandboxes, "")
	case l.CPUs > 0 && cpus+r.Resources.CPUs > l.CPUs:
		return over("cpus", "cpus", cpus, r.Resources.CPUs, l.CPUs, "")
	case l.MemoryMB > 0 && memory+r.Resources.MemoryMB > l.MemoryMB:
		return over("memory", "memory_mb", memory, r.Resources.MemoryMB, l.MemoryMB, " MiB")
	}
	return nil
}

// checkDisk refuses work that writes when the file system or the disk quota has
// no room left.
func (n *Node) checkDisk(work string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(n.data, &st); err != nil {
		return fmt.Errorf("free space of %s: %w", n.data, err)
	}
	free := int64(st.Bavail) * st.Bsize >> 20
	if free < int64(n.limits.MinFreeMB) {
		return &sandbox.Error{Kind: sandbox.Capacity, Thing: "this node",
			Reason: fmt.Sprintf("cannot %s: %d MiB free under %s, %d MiB are kept free", work, free, n.data, n.limits.MinFreeMB),
			Next:   "free some space, or lower limits.min_free_mb in holdfast.yaml"}
	}
	if l := n.limits.DiskMB; l > 0 {
		if used := n.diskUsed.Load() >> 20; used >= int64(l) {
			return &sandbox.Error{Kind: sandbox.Capacity, Thing: "this node",
				Reason: fmt.Sprintf("cannot %s: its sandboxes and images use %d MiB of disk, limit %d MiB", work, used, l),
				Next:   "delete sandboxes or snapshots, or raise limits.disk_mb in holdfast.yaml"}
		}
	}
	return nil
}

// noSpace makes a full disk a Capacity error that says so.
func noSpace(id string, err error) error {
	if isNoSpace(err) {
		return &sandbox.Error{Kind: sandbox.Capacity, Thing: thing(id), Reason: "could not be written: the disk of the data folder is full", Next: "free some space and try again", Err: err}
	}
	return err
}

// usage is what a sandbox was last seen to use.
type usage struct {
	mu      sync.Mutex
	disk    int64 // bytes of its upper
	diskAt  time.Time
	cpuTime time.Duration
	cpuAt   time.Time

	oomOf    int64 // generation that oomKills was counted in
	oomKills int64
}

// measureEvery is how often written files are counted; counting walks them.
const measureEvery = 30 * time.Second

// pruneEvery is after how many of those old events are removed.
const pruneEvery = 120

// measure keeps count of the disk that sandboxes use and holds each to its own
// limit: one that is over it is told so, and paused rather than let fill the disk.
func (n *Node) measure() {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for i := 1; ; i++ {
		n.measureOnce()
		if i%pruneEvery == 0 {
			if err := n.journal.PruneEvents(n.ctx, n.now().Add(-eventsKept)); err != nil && n.ctx.Err() == nil {
				n.log.Warn("old events stay", "error", err)
			}
		}
		select {
		case <-n.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (n *Node) measureOnce() {
	var total int64
	counted := map[string]bool{}
	for _, e := range n.all() {
		if n.ctx.Err() != nil {
			return
		}
		r := e.rec.Load()
		used := n.diskOf(e, r, true)
		counted[r.Upper] = true
		total += used
		if r.Image != "" {
			b, _, _ := layers.Usage(n.image(r.Image))
			total += b
		}
		if r.State == sandbox.Running && r.Resources.DiskMB > 0 && used>>20 > int64(r.Resources.DiskMB) {
			n.overDisk(r, used)
		}
	}
	n.mu.RLock()
	for _, t := range n.templates {
		total += t.ImageBytes
		for _, l := range t.Layers {
			if !counted[l] {
				counted[l] = true
				if meta, err := n.files.Get(l); err == nil {
					total += meta.Bytes
				}
			}
		}
	}
	n.mu.RUnlock()
	n.diskUsed.Store(total)
}

func (n *Node) overDisk(r *record, used int64) {
	err := n.locked(n.ctx, r.ID, func(ctx context.Context, e *entry) error {
		n.event(ctx, r, "disk_full", fmt.Sprintf("wrote %d MiB, its limit is %d MiB: paused; raise it or delete files after a connect", used>>20, r.Resources.DiskMB), nil)
		return n.pause(ctx, e, false, "disk limit")
	})
	if err != nil && n.ctx.Err() == nil {
		n.log.Warn("disk limit", "sandbox", r.ID, "error", err)
	}
}

// diskOf gives the bytes of a sandbox's own files, counted anew when asked for or
// when the last count is old.
func (n *Node) diskOf(e *entry, r *record, fresh bool) int64 {
	e.usage.mu.Lock()
	defer e.usage.mu.Unlock()
	if fresh || time.Since(e.usage.diskAt) > measureEvery {
		if b, _, err := layers.Usage(n.files.Path(r.Upper)); err == nil {
			e.usage.disk, e.usage.diskAt = b, time.Now()
		}
	}
	return e.usage.disk
}

func (n *Node) all() []*entry {
	n.mu.RLock()
	defer n.mu.RUnlock()
	out := make([]*entry, 0, len(n.sandboxes))
	for _, e := range n.sandboxes {
		out = append(out, e)
	}
	return out
}

func samePolicy(a, b sandbox.Network) bool {
	return a.AllowInternet == b.AllowInternet && slices.Equal(a.AllowOut, b.AllowOut) && slices.Equal(a.DenyOut, b.DenyOut)
}
