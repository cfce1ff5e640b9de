package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/engine"
)

// imageFile describes a memory image beside gVisor's own three files.
const imageFile = "image.json"

// image is the content of imageFile, written last.
type image struct {
	Runtime    string           `json:"runtime"`
	Version    string           `json:"version"`
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
	rt, err := e.store.Get(in.Runtime)
	if err != nil {
		return fmt.Errorf("thaw instance %s: %w", id, err)
	}
	c := e.runsc(rt)
	if paused, err := c.paused(id); err != nil || !paused {
		return err
	}
	if err := c.run(ctx, e.instanceDir(id), nil, "resume", id); err != nil {
		return fmt.Errorf("thaw instance %s: %w", id, e.orDead(in, err))
	}
	return nil
}

func (e *Engine) checkpoint(ctx context.Context, id, dir string) (_ engine.Image, err error) {
	in, err := e.alive(id)
	if err != nil {
		return engine.Image{}, err
	}
	rt, err := e.store.Get(in.Runtime)
	if err != nil {
		return engine.Image{}, err
	}
	if err := e.preflight(id, dir); err != nil {
		return engine.Image{}, err
	}
	c, own := e.runsc(rt), e.instanceDir(id)
	began := time.Now()
	if err := c.run(ctx, own, nil, "pause", id); err != nil {
		return engine.Image{}, e.orDead(in, err)
	}
	defer func() {
		if err == nil {
			return
		}
		// Whatever happened to the caller's context, the instance must go on.
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
		defer cancel()
		if rerr := c.run(rctx, own, nil, "resume", id); rerr != nil {
			err = e.orDead(in, errors.Join(err, fmt.Errorf("let it go on: %w", rerr)))
		}
		discard(dir)
	}()
	if err := c.run(ctx, own, nil, "checkpoint", "--leave-running", "--image-path", dir, id); err != nil {
		return engine.Image{}, classifySave(err)
	}
	img, err := e.seal(dir, in.Runtime, rt.Version)
	if err != nil {
		return engine.Image{}, classifySave(err)
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

// orDead adds engine.ErrNotFound when the instance's process is gone.
func (e *Engine) orDead(in *instance, err error) error {
	if in.Sandbox.alive() {
		return err
	}
	return fmt.Errorf("%w: %w", engine.ErrNotFound, err)
}

// preflight refuses a checkpoint that cannot fit: an image is at most as large as
// what the instance holds in memory.
func (e *Engine) preflight(id, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) > 0 {
		return fmt.Errorf("image folder %s is not empty", dir)
	}
	s, err := e.groups.Group(id).Stats()
	if err != nil {
		return nil // without a cgroup the amount is not known beforehand
	}
	var fsys unix.Statfs_t
	if err := unix.Statfs(dir, &fsys); err != nil {
		return err
	}
	free := int64(fsys.Bavail) * fsys.Bsize
	if need := s.MemoryBytes; free < need && free < 1<<20 {
		return fmt.Errorf("%w: %s has %d MiB free, the instance holds %d MiB", engine.ErrNoSpace, dir, free>>20, need>>20)
	}
	return nil
}

// seal brings the image to stable storage and describes it, last of all.
func (e *Engine) seal(dir, runtime, version string) (engine.Image, error) {
	m := image{Runtime: runtime, Version: version, CPUFeature: e.caps.CPUFeature, Sizes: map[string]int64{}}
	out := engine.Image{Runtime: runtime, CPUFeature: e.caps.CPUFeature}
	for _, name := range imageFiles {
		size, err := syncFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) && name == pagesFile {
			continue
		}
		if err != nil {
			return out, err
		}
		m.Sizes[name] = size
		out.Bytes += size
		out.Files = append(out.Files, name)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return out, err
	}
	path := filepath.Join(dir, imageFile)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return out, err
	}
	if _, err := syncFile(path); err != nil {
		return out, err
	}
	if _, err := syncFile(dir); err != nil {
		return out, err
	}
	out.Files = append(out.Files, imageFile)
	out.Bytes += int64(len(b))
	return out, nil
}

// syncFile fsyncs a file or folder and gives its size.
func syncFile(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return 0, err
	}
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
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

// classifySave recognises a full disk. gVisor's errors cross a socket as text.
func classifySave(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) ||
		strings.Contains(err.Error(), unix.ENOSPC.Error()) || strings.Contains(err.Error(), unix.EDQUOT.Error()) {
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, err)
	}
	return err
}

// classifyRestore tells an image's fault from others: everything that the
// sandbox's kernel reports while it loads is one.
func classifyRestore(err error) error {
	if err != nil && strings.Contains(err.Error(), "restoring container") {
		return fmt.Errorf("%w: %w", engine.ErrImage, err)
	}
	return err
}
