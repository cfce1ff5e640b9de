package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/holdfast-run/holdfast/image"
	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/node"
	"github.com/holdfast-run/holdfast/sandbox"
)

// importer turns what a template is made from into layers.
type importer struct {
	files *layers.Store
	base  string // configured source of the base template; "" for the recipe
	dir   string // where uploads lie while they are read
}

func (i *importer) Import(ctx context.Context, source string, archive io.Reader, progress func(sandbox.Step)) (image.Result, error) {
	o := image.Options{Progress: func(s image.Step) { progress(sandbox.Step(s)) }}
	if archive != nil {
		return i.upload(ctx, archive, o)
	}
	recipe := source == ""
	if recipe {
		source = i.base
	}
	if source == "" {
		return image.Base(ctx, i.files, o)
	}
	src, err := image.ParseSource(source)
	if err != nil {
		return image.Result{}, err
	}
	r, err := image.Import(ctx, i.files, src, o)
	if err == nil && (recipe || r.Config.User == "") {
		// A sandbox's own user, who may become root, is what agents expect.
		r.Config.User, r.Config.Workdir = image.UserName, image.UserHome
	}
	return r, err
}

// upload keeps an archive on disk while it is read: some kinds are read twice.
func (i *importer) upload(ctx context.Context, archive io.Reader, o image.Options) (r image.Result, err error) {
	if err := os.MkdirAll(i.dir, 0o700); err != nil {
		return r, fmt.Errorf("import folder: %w", err)
	}
	f, err := os.CreateTemp(i.dir, "upload-*.tar")
	if err != nil {
		return r, fmt.Errorf("import folder: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	o.Progress(image.Step{Name: "upload", Detail: "reading the archive"})
	_, err = io.Copy(f, &contextReader{ctx, archive})
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return r, sandbox.Errorf(sandbox.InvalidRequest, "archive", "did not arrive whole: %w", err)
	}
	r, err = image.Import(ctx, i.files, image.Source{Kind: image.Path, Path: f.Name()}, o)
	r.Source = "upload"
	if err == nil && r.Config.User == "" {
		r.Config.User, r.Config.Workdir = image.UserName, image.UserHome
	}
	return r, err
}

// contextReader ends with its context.
type contextReader struct {
	ctx context.Context // a reader has no other way to know
	r   io.Reader
}

func (c *contextReader) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}

var _ node.ImageImporter = (*importer)(nil)
