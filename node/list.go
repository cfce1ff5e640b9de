package node

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/holdfast-run/holdfast/sandbox"
)

// Get gives one sandbox. It never wakes or extends.
func (n *Node) Get(_ context.Context, id string) (*sandbox.Sandbox, error) {
	e, err := n.entry(id)
	if err != nil {
		return nil, err
	}
	return e.rec.Load().view(), nil
}

// public is the state a list filter sees: what is on its way counts as where it
// comes from, so that a sandbox never drops out of all lists.
func public(s sandbox.State) sandbox.State {
	switch s {
	case sandbox.Pausing:
		return sandbox.Running
	case sandbox.Resuming, sandbox.Failed:
		return sandbox.Paused
	}
	return s
}

// List gives a page of sandboxes ordered by start, then id.
func (n *Node) List(_ context.Context, o sandbox.ListOptions) (sandbox.Page, error) {
	var page sandbox.Page
	n.mu.RLock()
	found := make([]*record, 0, len(n.sandboxes))
	for _, e := range n.sandboxes {
		r := e.rec.Load()
		if r.State == pooled || r.State == sandbox.Deleting || (o.Space != "" && r.Space != o.Space) {
			continue
		}
		if public(r.State) == sandbox.Running {
			page.TotalRunning++
		}
		if n.matches(r, o) {
			found = append(found, r)
		}
	}
	n.mu.RUnlock()
	order := func(a, b *record) int {
		c := cmp.Or(a.StartedAt.Compare(b.StartedAt), strings.Compare(a.ID, b.ID))
		if !o.Ascending {
			c = -c
		}
		return c
	}
	slices.SortFunc(found, order)
	if o.After != (sandbox.Cursor{}) {
		at := &record{Sandbox: sandbox.Sandbox{ID: o.After.ID, StartedAt: o.After.StartedAt}}
		i, exact := slices.BinarySearchFunc(found, at, order)
		if exact {
			i++
		}
		found = found[i:]
	}
	limit := o.Limit
	if limit <= 0 {
		limit = 100
	}
	if len(found) > limit {
		found = found[:limit]
		last := found[limit-1]
		page.Next = &sandbox.Cursor{StartedAt: last.StartedAt, ID: last.ID}
	}
	for _, r := range found {
		page.Sandboxes = append(page.Sandboxes, *r.view())
	}
	return page, nil
}

func (n *Node) matches(r *record, o sandbox.ListOptions) bool {
	if len(o.States) > 0 {
		if !slices.Contains(o.States, r.State) && !slices.Contains(o.States, public(r.State)) {
			return false
		}
	} else if s := public(r.State); s != sandbox.Running && s != sandbox.Paused {
		return false
	}
	if o.Template != "" && r.TemplateID != o.Template && r.Template != o.Template && n.names[o.Template] != r.TemplateID {
		return false
	}
	if !o.StartedAfter.IsZero() && !r.StartedAt.After(o.StartedAfter) {
		return false
	}
	for k, v := range o.Metadata {
		if got, ok := r.Metadata[k]; !ok || got != v {
			return false
		}
	}
	return true
}
