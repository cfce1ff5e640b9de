package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
)

// imageFile describes a memory image beside gVisor's own three files.
const imageFile = "image.json"

// image is the content of imageFile, written last.
type image struct {
	Runtime    string           `json:"runtime"`
	CPUFeature []string         `json:"cpu_features"`
	Sizes      map[string]int64 `json:"sizes"`
}

// Names of gVisor's files in an image.
const (
	stateFile    = "checkpoint.img"
	pagesFile    = "pages.img"
	pagesMetaImg = "pages_meta.img"
)

var imageFiles = []string{stateFile, pagesFile, pagesMetaImg}

// Checkpoint implements engine.Engine. The instance is stopped before gVisor
// saves it and stays so, hence it never runs on past its image.
func (e *Engine) Checkpoint(ctx context.Context, id, dir string) (engine.Image, error) {
	img, err := e.checkpoint(ctx, id, dir)
	if err != nil {
		return engine.Image{}, fmt.Errorf("checkpoint instance %s: %w", id, err)
	}
	return img, nil
}

// Thaw implements engine.Engine.
func (e *Engine) Thaw(ctx context.Context, id string) error {
	in, err := e.alive(id)
	if err != nil {
		return err
	}
	if _, err := e.ask(ctx, in, wire.Request{Op: wire.Thaw}); err != nil {
		return fmt.Errorf("thaw instance %s: %w", id, err)
	}
	return nil
}

func (e *Engine) checkpoint(ctx context.Context, id, dir string) (_ engine.Image, err error) {
	in, err := e.alive(id)
	if err != nil {
		return engine.Image{}, err
	}
	if err := preflight(dir); err != nil {
		return engine.Image{}, err
	}
	defer func() {
		if err != nil {
			discard(dir)
		}
	}()
	began := time.Now()
	// Once begun it is not given up half-way: the driver would go on.
	ctx = context.WithoutCancel(ctx)
	if _, err := e.ask(ctx, in, wire.Request{Op: wire.Save, Save: &wire.SaveParams{Image: dir}}); err != nil {
		return engine.Image{}, err
	}
	img, err := e.seal(dir, in.Runtime)
	if err != nil {
		return engine.Image{}, errors.Join(fullDisk(err), e.Thaw(ctx, id))
	}
	img.Frozen = time.Since(began)
	return img, nil
}

// discard removes a failed image. The files are emptied first: gVisor may keep one
// open for a while, and the space is wanted back at once.
func discard(dir string) {
	for _, name := range append(slices.Clone(imageFiles), imageFile) {
		path := filepath.Join(dir, name)
		_ = os.Truncate(path, 0)
		_ = os.Remove(path)
	}
}

// preflight refuses a folder that is not what it should be.
func preflight(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("image folder %s is not empty", dir)
	}
	return nil
}

// seal describes a saved image and brings all of it to stable storage. The files go
// side by side, for a journaling file system commits them together; that a crash may
// then leave a description without the rest is what its sizes are for.
func (e *Engine) seal(dir, runtime string) (engine.Image, error) {
	m := image{Runtime: runtime, CPUFeature: e.caps.CPUFeature, Sizes: map[string]int64{}}
	out := engine.Image{Runtime: runtime, CPUFeature: e.caps.CPUFeature}
	for _, name := range imageFiles {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return out, err
		}
		m.Sizes[name] = fi.Size()
		out.Bytes += fi.Size()
		out.Files = append(out.Files, name)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return out, err
	}
	if err := os.WriteFile(filepath.Join(dir, imageFile), b, 0o600); err != nil {
		return out, err
	}
	out.Files = append(out.Files, imageFile)
	out.Bytes += int64(len(b))
	var all errgroup.Group
	for _, name := range append([]string{"."}, out.Files...) {
		all.Go(func() error { return syncFile(filepath.Join(dir, name)) })
	}
	return out, all.Wait()
}

// syncFile brings a file or folder to stable storage.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// checkImage refuses an image that cannot be restored here, before anything is
// started: engine.ErrImage.
func (e *Engine) checkImage(dir string) (image, error) {
	var m image
	b, err := os.ReadFile(filepath.Join(dir, imageFile))
	if err != nil {
		return m, fmt.Errorf("%w: it was not completed: %w", engine.ErrImage, err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		return m, fmt.Errorf("%w: its description is torn: %w", engine.ErrImage, err)
	}
	for name, size := range m.Sizes {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return m, fmt.Errorf("%w: %w", engine.ErrImage, err)
		}
		if fi.Size() != size {
			return m, fmt.Errorf("%w: %s has %d bytes instead of %d", engine.ErrImage, name, fi.Size(), size)
		}
	}
	var lacking []string
	for _, f := range m.CPUFeature {
		if _, ok := slices.BinarySearch(e.caps.CPUFeature, f); !ok {
			lacking = append(lacking, f)
		}
	}
	if lacking != nil {
		return m, fmt.Errorf("%w: this processor lacks %s", engine.ErrImage, strings.Join(lacking, ", "))
	}
	return m, nil
}

// fullDisk gives an error its kind when the disk is full.
func fullDisk(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	}
	return err
}
