package driver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
)

// frozenName marks an instance that is frozen or being frozen.
const frozenName = "frozen"

// errGone: nobody listens at the control socket.
var errGone = errors.New("the instance has ended")

// errImage marks failures of restoring that are the image's.
var errImage = errors.New("restore")

// imageFiles are in the order in which gVisor wants them.
var imageFiles = []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName}

func openImage(dir string, flags int) (files []*os.File, err error) {
	for _, name := range imageFiles {
		f, err := os.OpenFile(filepath.Join(dir, name), flags, 0o600)
		if err != nil {
			closeAll(files)
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func restore(ctl *urpc.Client, image string) error {
	files, err := openImage(image, os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("%w: %w", errImage, err)
	}
	defer closeAll(files)
	opts := boot.RestoreOpts{HavePagesFile: true, Background: true}
	opts.Files = files
	if err := ctl.Call(boot.ContMgrRestore, &opts, nil); err != nil {
		return fmt.Errorf("%w: %w", errImage, err)
	}
	return nil
}

// save freezes an instance and writes its image, which is the engine's to bring to
// stable storage. The instance stays frozen, unless this fails.
func save(dir, image string) (err error) {
	ctl, err := connect(dir)
	if err != nil {
		return err
	}
	defer ctl.Close()
	marker := filepath.Join(dir, frozenName)
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		return err
	}
	if err := ctl.Call(boot.ContMgrPause, nil, nil); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, thawAt(ctl, marker))
		}
	}()
	files, err := openImage(image, os.O_CREATE|os.O_EXCL|os.O_RDWR)
	if err != nil {
		return err
	}
	defer closeAll(files)
	opts := control.SaveOpts{
		Metadata:      statefile.CompressionLevelNone.ToMetadata(),
		HavePagesFile: true,
		Resume:        true, // or the kernel would end itself, even when it failed
	}
	opts.Files = files
	stop := writeEarly(files[len(files)-1])
	err = ctl.Call(boot.ContMgrCheckpoint, &opts, nil)
	stop()
	if err != nil {
		return fmt.Errorf("save: %w", err)
	}
	return nil
}

// writeEarly has the host write a file to the disk while it grows, so that little is
// left to wait for in the end. It goes on until the function it returns is called.
func writeEarly(f *os.File) (stop func()) {
	const every = 5 * time.Millisecond
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-done:
				return
			case <-t.C:
				// Begins writing what is dirty and does not wait for it. A file system
				// that cannot do so is synced as a whole later anyway.
				_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
			}
		}
	}()
	return func() { close(done); <-ended }
}

// thaw lets a frozen instance go on. An instance whose marker is there may not be
// frozen after all: its freezing was cut off. To let a running one go on would be
// fatal to gVisor's kernel, so that is asked: of a frozen one every task stands
// in the place where stopped tasks wait.
func thaw(dir string) error {
	marker := filepath.Join(dir, frozenName)
	if _, err := os.Stat(marker); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	ctl, err := connect(dir)
	if err != nil {
		return err
	}
	defer ctl.Close()
	var stacks string
	if err := ctl.Call(boot.DebugStacks, nil, &stacks); err != nil {
		return fmt.Errorf("see whether it is frozen: %w", err)
	}
	if !stopped(stacks) {
		return os.Remove(marker)
	}
	return thawAt(ctl, marker)
}

func thawAt(ctl *urpc.Client, marker string) error {
	if err := ctl.Call(boot.ContMgrResume, nil, nil); err != nil {
		return fmt.Errorf("thaw: %w", err)
	}
	return os.Remove(marker)
}

// stopped tells from the stacks of a kernel's goroutines whether all its tasks are
// stopped.
func stopped(stacks string) bool {
	tasks := 0
	for g := range strings.SplitSeq(stacks, "\n\n") {
		if !strings.Contains(g, "kernel.(*Task).run(") {
			continue
		}
		tasks++
		if !strings.Contains(g, "kernel.(*Task).doStop(") {
			return false
		}
	}
	return tasks > 0
}

// classify gives an error the kind that the engine acts on. gVisor's errors cross
// its socket as text.
func classify(err error) *wire.Error {
	e := &wire.Error{Text: err.Error()}
	switch {
	case errors.Is(err, errImage):
		e.Kind = wire.ImageFault
	case errors.Is(err, errGone):
		e.Kind = wire.Gone
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT),
		strings.Contains(e.Text, unix.ENOSPC.Error()), strings.Contains(e.Text, unix.EDQUOT.Error()):
		e.Kind = wire.NoSpace
	}
	return e
}
