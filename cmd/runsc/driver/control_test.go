package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
)

const (
	stoppedTask = "goroutine 7 [chan receive]:\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).doStop(0x1)\n\tx.go:1\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).run(0x1, 0x1)\n"
	runningTask = "goroutine 8 [select]:\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).block(0x1)\n\tx.go:1\ngvisor.dev/gvisor/pkg/sentry/kernel.(*Task).run(0x1, 0x2)\n"
	other       = "goroutine 9 [select]:\nmain.main()\n"
)

func TestStopped(t *testing.T) {
	for _, c := range []struct {
		stacks string
		want   bool
	}{
		{stoppedTask + "\n" + other + "\n" + stoppedTask, true},
		{stoppedTask + "\n" + runningTask, false},
		{runningTask, false},
		{other, false}, // not a word of tasks: do not touch
		{"", false},
	} {
		if got := stopped(c.stacks); got != c.want {
			t.Errorf("stopped = %t, want %t for:\n%s", got, c.want, c.stacks)
		}
	}
}

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		err  error
		kind string
	}{
		{fmt.Errorf("x: %w", errImage), wire.ImageFault},
		{fmt.Errorf("x: %w", errGone), wire.Gone},
		{&fs.PathError{Op: "write", Path: "p", Err: unix.ENOSPC}, wire.NoSpace},
		{errors.New(`urpc method "containerManager.Checkpoint" failed: write: no space left on device`), wire.NoSpace},
		{errors.New("disk quota exceeded"), wire.NoSpace},
		{errors.New("anything"), ""},
	} {
		if got := classify(c.err); got.Kind != c.kind || got.Text != c.err.Error() {
			t.Errorf("%v is %+v, want kind %q", c.err, got, c.kind)
		}
	}
}

func TestOpenImage(t *testing.T) {
	dir := t.TempDir()
	files, err := openImage(dir, os.O_CREATE|os.O_EXCL|os.O_RDWR)
	if err != nil || len(files) != len(imageFiles) {
		t.Fatalf("%d files, %v", len(files), err)
	}
	closeAll(files)
	if _, err := openImage(dir, os.O_CREATE|os.O_EXCL|os.O_RDWR); !errors.Is(err, fs.ErrExist) {
		t.Errorf("over an image: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, imageFiles[1])); err != nil {
		t.Fatal(err)
	}
	if _, err := openImage(dir, os.O_RDONLY); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("torn: %v", err)
	}
}

// TestThawUnmarked: without a marker nobody is asked.
func TestThawUnmarked(t *testing.T) {
	if err := thaw(t.TempDir()); err != nil {
		t.Error(err)
	}
}
