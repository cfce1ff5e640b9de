package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-run/holdfast/node/journal"
	"github.com/holdfast-run/holdfast/sandbox"
)

// template is the journal's document of a template or snapshot. Immutable once
// committed, but for the counters in sandbox.Template.
type template struct {
	sandbox.Template
	Layers []string // bottom first, the guest's layer included
	Image  string   // folder relative to the data folder; "" for files only
	// Transient marks the picture that a fork is made from: not listed, removed
	// when the forks no longer need its image.
	Transient bool
	Network   sandbox.Network // of the sandbox it is a snapshot of
}

func parseTemplate(b []byte) (*template, error) {
	t := new(template)
	return t, json.Unmarshal(b, t)
}

func (n *Node) templateView(t *template) sandbox.Template {
	v := t.Template
	v.Names = nil
	for name, id := range n.names {
		if id == t.ID {
			v.Names = append(v.Names, name)
		}
	}
	slices.Sort(v.Names)
	if len(v.Names) > 0 && v.Name == "" {
		v.Name = v.Names[0]
	}
	return v
}

var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?(:[a-z0-9_.-]+)?$`)

// cleanName gives the canonical form of a template name: lower case, and the
// default tag dropped.
func cleanName(s string) (string, error) {
	name := strings.TrimSuffix(strings.ToLower(s), ":default")
	if len(name) > 128 || !namePattern.MatchString(name) {
		return "", &sandbox.Error{Kind: sandbox.InvalidRequest, Thing: fmt.Sprintf("template name %q", s),
			Reason: "is not of the form [namespace/]name[:tag] in a-z 0-9 . _ -", Next: "choose another name"}
	}
	return name, nil
}

// lookup resolves an id or name. The caller holds n.mu.
func (n *Node) lookup(ref string) (*template, error) {
	if t := n.templates[ref]; t != nil && !t.Transient {
		return t, nil
	}
	name := strings.TrimSuffix(strings.ToLower(ref), ":default")
	for _, c := range []string{name, strings.TrimPrefix(name, "default/")} {
		if t := n.templates[n.names[c]]; t != nil {
			return t, nil
		}
		if t := n.templates[c]; t != nil && !t.Transient {
			return t, nil
		}
	}
	return nil, noTemplate(ref)
}

func noTemplate(ref string) error {
	return &sandbox.Error{Kind: sandbox.NotFound, Thing: fmt.Sprintf("template %q", ref), Reason: "not found",
		Next: "see `holdfast template ls` and `holdfast snapshot ls`, or import one with `holdfast template import`"}
}

// visible tells whether a space may use t: its own always, and the templates, not
// the snapshots, of the default space, which is the operator's. "" sees all.
func (t *template) visible(space string) bool {
	return space == "" || t.Space == space || t.Space == "" || (!t.Snapshot && t.Space == sandbox.DefaultSpace)
}

// Template finds one template or snapshot by id or name.
func (n *Node) Template(_ context.Context, ref string) (*sandbox.Template, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	t, err := n.lookup(ref)
	if err != nil {
		return nil, err
	}
	v := n.templateView(t)
	return &v, nil
}

// Templates lists templates, or snapshots, newest first; the token is the id
// after which to go on.
func (n *Node) Templates(_ context.Context, o sandbox.TemplateListOptions) ([]sandbox.Template, string, error) {
	n.mu.RLock()
	all := make([]sandbox.Template, 0, len(n.templates))
	for _, t := range n.templates {
		if t.Transient || !t.visible(o.Space) || t.Snapshot != o.Snapshots || (o.SourceID != "" && t.SourceID != o.SourceID) {
			continue
		}
		v := n.templateView(t)
		if o.Name != "" && v.ID != o.Name && !slices.Contains(v.Names, strings.TrimSuffix(o.Name, ":default")) {
			continue
		}
		all = append(all, v)
	}
	n.mu.RUnlock()
	slices.SortFunc(all, func(a, b sandbox.Template) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	if o.Token != "" {
		i := slices.IndexFunc(all, func(t sandbox.Template) bool { return t.ID == o.Token })
		if i < 0 {
			return nil, "", &sandbox.Error{Kind: sandbox.InvalidRequest, Thing: fmt.Sprintf("next token %q", o.Token), Reason: "is unknown", Next: "start from the first page"}
		}
		all = all[i+1:]
	}
	if o.Limit > 0 && len(all) > o.Limit {
		return all[:o.Limit], all[o.Limit-1].ID, nil
	}
	return all, "", nil
}

// DeleteTemplate removes a template or snapshot, its names, its image and the
// layers nothing else needs. Sandboxes made from it keep their files. A sandbox
// whose only memory is the image makes it Conflict.
func (n *Node) DeleteTemplate(ctx context.Context, ref string) error {
	n.mu.RLock()
	t, err := n.lookup(ref)
	n.mu.RUnlock()
	if err != nil {
		return err
	}
	if err := n.removeTemplate(ctx, t); err != nil {
		return err
	}
	n.pool.forget(t.ID)
	return nil
}

func (n *Node) removeTemplate(ctx context.Context, t *template) error {
	n.mu.Lock()
	if n.templates[t.ID] != t {
		n.mu.Unlock()
		return nil
	}
	if t.Image != "" {
		for _, e := range n.sandboxes {
			// One that the pool restores just now is nobody's: it fails, or is forgotten.
			if r := e.rec.Load(); r.Image == t.Image && r.State != pooled {
				n.mu.Unlock()
				return &sandbox.Error{Kind: sandbox.Conflict, Thing: fmt.Sprintf("template %q", t.ID),
					Reason: fmt.Sprintf("holds the memory of %s", thing(r.ID)), Next: "wait until that sandbox has started, or delete it first"}
			}
		}
	}
	delete(n.templates, t.ID)
	for name, id := range n.names {
		if id == t.ID {
			delete(n.names, name)
		}
	}
	n.mu.Unlock()
	if err := n.journal.Do(ctx, func(tx journal.Tx) error { return tx.DeleteTemplate(t.ID) }); err != nil {
		n.mu.Lock() // it is still in the journal, so it is still there
		n.templates[t.ID] = t
		n.mu.Unlock()
		return err
	}
	n.step("template.deleted")
	var errs []error
	if t.Image != "" {
		errs = append(errs, os.RemoveAll(n.image(t.Image)))
	}
	return errors.Join(append(errs, n.drop(t.Layers...))...)
}

// drop removes those of the layers that no sandbox and no template names any
// more. A layer's id can only be learned from one of those, so a layer found
// unnamed stays so.
func (n *Node) drop(ids ...string) error {
	n.mu.RLock()
	live := map[string]bool{n.opts.GuestLayer: true}
	for _, e := range n.sandboxes {
		r := e.rec.Load()
		live[r.Upper] = true
		for _, l := range r.Layers {
			live[l] = true
		}
	}
	for _, t := range n.templates {
		for _, l := range t.Layers {
			live[l] = true
		}
	}
	n.mu.RUnlock()
	var errs []error
	for _, id := range ids {
		if id == "" || live[id] {
			continue
		}
		// An import in flight may be about to use a layer again that it found by its
		// digest; the next start's sweep takes those.
		if l, err := n.files.Get(id); err == nil && l.Digest != "" && n.importing.Load() > 0 {
			continue
		}
		errs = append(errs, n.files.Remove(id))
	}
	return errors.Join(errs...)
}

// addTemplate commits t under its names; with a record, that record too, so that
// a snapshot and the sandbox that goes on above it become official together.
func (n *Node) addTemplate(ctx context.Context, t *template, names []string, e *entry, r *record) error {
	write := func(tx journal.Tx) error {
		if err := tx.PutTemplate(t.ID, t.Snapshot, t.SourceID, t.CreatedAt, t); err != nil {
			return err
		}
		for _, name := range names {
			if err := tx.Name(name, t.ID, true); err != nil {
				return err
			}
		}
		return nil
	}
	n.mu.Lock()
	before := n.templates[t.ID] // nil, unless t replaces what is committed already
	n.templates[t.ID] = t       // before the commit, so that drop sees its layers
	n.mu.Unlock()
	var err error
	if r != nil {
		err = n.commit(ctx, e, r, write)
	} else {
		err = n.journal.Do(ctx, write)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil {
		if before == nil {
			delete(n.templates, t.ID)
		} else {
			n.templates[t.ID] = before
		}
		return err
	}
	for _, name := range names {
		n.names[name] = t.ID
	}
	return nil
}
