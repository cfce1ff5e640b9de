package layers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Root is a file system made of layers and a writable folder.
type Root struct {
	Lower  []string // layer ids, bottom first; at least one
	Upper  string   // takes what is written
	Work   string   // overlayfs's own, empty, on Upper's file system
	Target string   // where the whole appears
}

// MaxDepth is the number of layers that one root can always have.
const MaxDepth = 128

// The options of every mount, the kernel's build-time defaults notwithstanding:
//   - redirect_dir: a folder from a layer can be renamed (programs expect that);
//     the note it leaves in the upper is a path in the layers below, so it stays
//     right when the upper becomes a layer itself.
//   - index, metacopy, xino off: they tie an upper to the very mount it was made
//     under, and uppers here move, become layers and are mounted elsewhere.
const overlayOptions = "redirect_dir=on,index=off,metacopy=off,xino=off"

// Mount mounts the root, making the three folders if they are missing. A root
// that is mounted there already with the same layers and upper is no error;
// anything else at Target is. Devices and setuid bits are inert for the host's
// own processes; the sandbox sees and honours them.
func (s *Store) Mount(ctx context.Context, r Root) error {
	if err := s.mount(ctx, r); err != nil {
		return fmt.Errorf("mount %s: %w", r.Target, err)
	}
	return nil
}

func (s *Store) mount(ctx context.Context, r Root) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(r.Lower) == 0 {
		return errors.New("a root needs at least one layer")
	}
	for _, id := range r.Lower {
		if _, err := s.Get(id); err != nil {
			return err
		}
	}
	for _, p := range []string{r.Upper, r.Work, r.Target} {
		if !filepath.IsAbs(p) {
			return fmt.Errorf("%q is not an absolute path", p)
		}
		if err := makeRootDir(p); err != nil {
			return err
		}
	}
	if mounted, err := isMountpoint(r.Target); err != nil {
		return err
	} else if mounted {
		return sameMount(r)
	}
	options := overlayOptions + ",lowerdir=" + strings.Join(lowerDirs(r), ":") +
		",upperdir=" + escapeOption(r.Upper) + ",workdir=" + escapeOption(r.Work)
	if len(options) >= os.Getpagesize() {
		return fmt.Errorf("%d layers are too many for one mount (%d always fit); make a template of the sandbox's files to start a new stack", len(r.Lower), MaxDepth)
	}
	return inFolder(s.dir, func() error {
		if err := bindable(); err != nil {
			return err
		}
		return unix.Mount("overlay", r.Target, "overlay", unix.MS_NODEV|unix.MS_NOSUID|unix.MS_NOATIME, options)
	})
}

// makeRootDir makes a folder fit to be the root of a file system, which takes
// its mode from the upper, whatever the umask.
func makeRootDir(p string) error {
	err := os.Mkdir(p, 0o755)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.Chmod(p, 0o755)
}

// lowerDirs names the layers relative to the store, top first as overlayfs wants.
func lowerDirs(r Root) []string {
	dirs := make([]string, 0, len(r.Lower))
	for _, id := range slices.Backward(r.Lower) {
		dirs = append(dirs, id+"/"+filesName)
	}
	return dirs
}

func escapeOption(p string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`, `:`, `\:`).Replace(p)
}

// sameMount tells whether what is mounted at the target is this root.
func sameMount(r Root) error {
	all, err := overlays()
	if err != nil {
		return err
	}
	for _, o := range slices.Backward(all) { // the last one is on top
		if o.target != r.Target {
			continue
		}
		if o.upper == r.Upper && slices.Equal(o.lower, lowerDirs(r)) {
			return nil
		}
		return fmt.Errorf("another root (upper %s) is mounted there; unmount it first", o.upper)
	}
	return errors.New("something else is mounted there; unmount it first")
}

// inFolder runs do with a working folder of its own. Relative names keep the
// mount options of a deep stack within the one page that mount(2) takes, on every
// kernel. A working folder belongs to the process, so do runs on a thread that
// gives up sharing it and ends afterwards.
func inFolder(dir string, do func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			result <- fmt.Errorf("unshare working folder: %w", err)
			return
		}
		if err := unix.Chdir(dir); err != nil {
			result <- fmt.Errorf("chdir %s: %w", dir, err)
			return
		}
		result <- do()
	}()
	return <-result
}

// busyWait is how long Unmount lets the last users of a mount go. The processes
// of a sandbox that was just killed need a few milliseconds to be gone.
const busyWait = 500 * time.Millisecond

// Unmount unmounts target and returns when it is out of the mount table. Not
// mounted, or absent, is no error. A mount that stays busy is detached: it is out
// of sight at once, and whoever still holds it open keeps it alive until then.
func Unmount(ctx context.Context, target string) error {
	deadline := time.Now().Add(busyWait)
	pause := time.Millisecond
	for {
		mounted, err := isMountpoint(target)
		if err != nil {
			return fmt.Errorf("unmount %s: %w", target, err)
		}
		if !mounted {
			return nil
		}
		flags := unix.UMOUNT_NOFOLLOW
		detach := time.Now().After(deadline) || ctx.Err() != nil
		if detach {
			flags |= unix.MNT_DETACH
		}
		switch err := unix.Unmount(target, flags); {
		case err == nil:
		case detach || !errors.Is(err, unix.EBUSY):
			// Another goroutine may have unmounted it between the look and the call.
			if mounted, _ := isMountpoint(target); mounted {
				return fmt.Errorf("unmount %s: %w", target, err)
			}
		default:
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, 50*time.Millisecond)
		}
	}
}

// Discard is Unmount for a root whose upper will be thrown away: it takes the
// mount out of sight at once and does not wait for anything to reach the disk.
// Unmount does wait, for all of the file system that holds the upper: overlayfs
// writes that out when its last user goes. Here the last user is a descriptor that
// is closed in the background.
func Discard(ctx context.Context, target string) error {
	mounted, err := isMountpoint(target)
	if err != nil {
		return fmt.Errorf("discard %s: %w", target, err)
	}
	if !mounted {
		return nil
	}
	hold, err := os.Open(target)
	if err != nil {
		return fmt.Errorf("discard: %w", err)
	}
	defer func() { go hold.Close() }()
	if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
		return fmt.Errorf("discard %s: %w", target, err)
	}
	return Unmount(ctx, target) // one that lay below; normally none
}
