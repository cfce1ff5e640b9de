package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/holdfast-run/holdfast/image"
	"github.com/holdfast-run/holdfast/sandbox"
)

// ImageImporter turns a source into layers; package image behind a small shell
// that knows the node's defaults.
type ImageImporter interface {
	// Import unpacks source ("" is the base recipe) or, when archive is set, what it
	// delivers. Progress may be called from any goroutine, one call at a time.
	Import(ctx context.Context, source string, archive io.Reader, progress func(sandbox.Step)) (image.Result, error)
}

// ImportTemplate makes a template: files from the source, then one boot whose
// memory becomes the golden image. The name moves to the new template when it is
// complete; what was made from the old one goes on.
func (n *Node) ImportTemplate(ctx context.Context, o sandbox.ImportOptions) (*sandbox.Template, error) {
	name, err := cleanName(o.Name)
	if err != nil {
		return nil, err
	}
	if err := n.checkDisk("import a template"); err != nil {
		return nil, err
	}
	if o.Progress == nil {
		o.Progress = func(sandbox.Step) {}
	}
	n.importing.Add(1)
	defer n.importing.Add(-1)
	res, err := n.opts.Importer.Import(ctx, o.Source, o.Archive, o.Progress)
	if err != nil {
		return nil, err
	}
	t := &template{}
	t.ID = newID("t")
	t.Space, t.CreatedAt, t.Resources = o.Space, n.now(), merge(o.Resources, sandbox.Resources{})
	if t.Space == "" {
		t.Space = sandbox.DefaultSpace
	}
	t.Source = res.Source
	t.Env, t.User, t.Workdir = maps.Clone(res.Config.Env), res.Config.User, res.Config.Workdir
	t.Layers = append([]string{n.opts.GuestLayer}, res.Layers...)
	for _, l := range t.Layers {
		if meta, err := n.files.Get(l); err == nil {
			t.FilesBytes += meta.Bytes
		}
	}
	o.Progress(sandbox.Step{Name: "boot", Detail: "golden memory image"})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), opTimeout)
	defer cancel()
	if err := n.golden(ctx, t); err != nil {
		return nil, errors.Join(fmt.Errorf("golden image of template %q: %w", name, err), n.drop(res.Layers...))
	}
	n.mu.RLock()
	old := n.templates[n.names[name]]
	n.mu.RUnlock()
	if err := n.addTemplate(ctx, t, []string{name}, nil, nil); err != nil {
		return nil, err
	}
	if old != nil && !old.Snapshot { // a snapshot is somebody's work: it only loses the name
		n.retire(ctx, old)
	}
	n.pool.kick()
	n.mu.RLock()
	defer n.mu.RUnlock()
	v := n.templateView(t)
	return &v, nil
}

// retire removes a template that has lost its last name to a newer one.
func (n *Node) retire(ctx context.Context, old *template) {
	n.mu.RLock()
	for _, id := range n.names {
		if id == old.ID {
			n.mu.RUnlock()
			return
		}
	}
	n.mu.RUnlock()
	if err := n.removeTemplate(ctx, old); err != nil {
		n.log.Warn("replaced template stays", "template", old.ID, "error", err)
		return
	}
	n.pool.forget(old.ID)
}

// golden boots t once in a sandbox of its own and keeps its memory, so that a
// create is a restore. On success t has Image and one layer more: what booting
// wrote.
func (n *Node) golden(ctx context.Context, t *template) error {
	n.mu.Lock()
	n.templates[t.ID] = &template{Template: t.Template, Layers: t.Layers, Transient: true} // its layers are alive from here
	shadow := n.templates[t.ID]
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		if n.templates[t.ID] == shadow {
			delete(n.templates, t.ID)
		}
		n.mu.Unlock()
	}()
	r := n.newRecord(shadow, sandbox.CreateOptions{Space: t.Space, Template: t.ID, Timeout: time.Hour, Resources: t.Resources})
	n.own(r, newID("i"))
	r.State, r.Pool = pooled, t.ID // no identity, and gone after a crash
	e, err := n.establish(ctx, shadow, r)
	if err != nil {
		return err
	}
	defer e.release()
	err = func() error {
		r = r.clone()
		if _, err := n.bringUp(ctx, r); err != nil {
			return err
		}
		if err := n.commit(ctx, e, r); err != nil {
			return err
		}
		dir := filepath.Join("snapshots", t.ID)
		c, err := n.capture(ctx, e, r, dir, false)
		if err != nil {
			return errors.Join(err, os.RemoveAll(n.image(dir)))
		}
		t.Image, t.HasMemory, t.ImageBytes = dir, true, c.bytes
		t.Layers = append(append([]string(nil), t.Layers...), r.Upper)
		n.mu.Lock()
		n.templates[t.ID] = &template{Template: t.Template, Layers: t.Layers, Transient: true}
		shadow = n.templates[t.ID]
		n.mu.Unlock()
		return nil
	}()
	return errors.Join(err, n.erase(ctx, e))
}
