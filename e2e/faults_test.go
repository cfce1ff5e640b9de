package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/e2e/harness"
	"github.com/holdfast-run/holdfast/network"
	"github.com/holdfast-run/holdfast/sandbox"
)

// TestKilledDaemon kills the daemon at moments spread over each operation, and
// wants that what was acknowledged holds, that nothing is leaked, and that every
// sandbox can still be used or deleted.
func TestKilledDaemon(t *testing.T) {
	t.Parallel()
	for _, op := range []struct {
		name  string
		ready func(*testing.T, *harness.Daemon, *client.Sandbox) // before the operation
		do    func(context.Context, *harness.Daemon, *client.Sandbox) error
		// done is what must hold if do was acknowledged.
		done func(*testing.T, *harness.Daemon, *client.Sandbox)
	}{
		{
			name: "create",
			do: func(ctx context.Context, d *harness.Daemon, _ *client.Sandbox) error {
				_, err := d.Client.Create(ctx, v1.CreateRequest{Template: "small", TimeoutSeconds: 3600, Name: "made", NoPool: true})
				return err
			},
			done: func(t *testing.T, d *harness.Daemon, _ *client.Sandbox) { wantState(t, d, "made", "running") },
		},
		{
			name: "pause",
			do:   func(ctx context.Context, _ *harness.Daemon, sb *client.Sandbox) error { return sb.Pause(ctx, false) },
			done: func(t *testing.T, d *harness.Daemon, sb *client.Sandbox) { wantState(t, d, sb.ID, "paused") },
		},
		{
			name:  "resume",
			ready: pauseNow,
			do: func(ctx context.Context, _ *harness.Daemon, sb *client.Sandbox) error {
				_, err := sb.Resume(ctx, v1.ConnectRequest{TimeoutSeconds: 3600})
				return err
			},
			done: func(t *testing.T, d *harness.Daemon, sb *client.Sandbox) { wantState(t, d, sb.ID, "running") },
		},
		{
			name: "kill",
			do:   func(ctx context.Context, _ *harness.Daemon, sb *client.Sandbox) error { return sb.Delete(ctx) },
			done: func(t *testing.T, d *harness.Daemon, sb *client.Sandbox) { wantState(t, d, sb.ID, "") },
		},
		{
			name: "snapshot",
			do: func(ctx context.Context, _ *harness.Daemon, sb *client.Sandbox) error {
				_, err := sb.Snapshot(ctx, v1.SnapshotRequest{Name: "picture"})
				return err
			},
			done: func(t *testing.T, d *harness.Daemon, _ *client.Sandbox) {
				for s, err := range d.Client.Snapshots(context.Background(), "") {
					if err != nil {
						t.Fatal(err)
					}
					if slices.Contains(s.Names, "picture") || s.Name == "picture" {
						return
					}
				}
				t.Error("the snapshot is gone")
			},
		},
	} {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			d := harness.Start(t, harness.Options{Template: harness.Small})
			const rounds = 8
			took := 100 * time.Millisecond
			for round := range rounds {
				sb := d.Create(v1.CreateRequest{})
				d.Sh(sb, "echo kept > /tmp/kept && sync")
				count(d, sb)
				if op.ready != nil {
					op.ready(t, d, sb)
				}
				var wg sync.WaitGroup
				var err error
				begin := time.Now()
				wg.Go(func() { err = op.do(t.Context(), d, sb) })
				if round > 0 { // the first tells how long it takes, undisturbed
					time.Sleep(took * time.Duration(round-1) / (rounds - 2))
					d.Kill()
				}
				wg.Wait()
				if round == 0 {
					if took = time.Since(begin); err != nil {
						t.Fatal(err)
					}
				} else {
					d.Up()
				}
				if err == nil {
					op.done(t, d, sb)
				}
				usable(t, d, sb, op.name == "kill")
				d.Healthy()
				clearAll(t, d)
				if t.Failed() {
					t.Fatalf("round %d, killed after %v of %v, acknowledged: %v", round, time.Since(begin), took, err == nil)
				}
			}
		})
	}
}

func pauseNow(t *testing.T, d *harness.Daemon, sb *client.Sandbox) {
	t.Helper()
	counted(t, d, sb)
	if err := sb.Pause(t.Context(), false); err != nil {
		t.Fatal(err)
	}
}

func wantState(t *testing.T, d *harness.Daemon, ref, want string) {
	t.Helper()
	// A sandbox whose operation was cut off is brought to rest in the background.
	var got string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if got = state(t, d, ref); got == want {
			return
		}
	}
	t.Errorf("sandbox %s is %q, want %q: %s", ref, got, want, d.Holdfast("inspect", ref).Out)
}

// usable wants the sandbox at rest, and its file where it was; or, if it may be
// gone, gone altogether.
func usable(t *testing.T, d *harness.Daemon, sb *client.Sandbox, mayBeGone bool) {
	t.Helper()
	eventually(t, "sandbox "+sb.ID+" is at rest", func() bool {
		return slices.Contains([]string{"running", "paused", ""}, state(t, d, sb.ID))
	})
	if state(t, d, sb.ID) == "" {
		if !mayBeGone {
			t.Errorf("sandbox %s is gone", sb.ID)
		}
		return
	}
	again, _, err := d.Client.Connect(t.Context(), sb.ID, time.Hour)
	if err != nil {
		t.Errorf("connect: %v", err)
		return
	}
	if got := d.Sh(again, "cat /tmp/kept"); got != "kept\n" {
		t.Errorf("its file says %q", got)
	}
	if again.Recovered == "memory" || again.Recovered == "" {
		goesOn(t, d, again)
	}
}

func clearAll(t *testing.T, d *harness.Daemon) {
	t.Helper()
	states := []string{"creating", "running", "pausing", "paused", "resuming", "failed", "deleting"}
	for s, err := range d.Client.List(t.Context(), client.ListOptions{States: states}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Delete(t.Context()); err != nil {
			t.Errorf("delete %s: %v", s.ID, err)
		}
	}
	for s, err := range d.Client.Snapshots(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Client.DeleteSnapshot(t.Context(), s.ID); err != nil {
			t.Errorf("delete snapshot %s: %v", s.ID, err)
		}
	}
}

// TestReboot takes away everything that a reboot takes away, and wants running
// and paused sandboxes back.
func TestReboot(t *testing.T) {
	t.Parallel()
	d := harness.Start(t, harness.Options{Template: harness.Small})
	running, paused := d.Create(v1.CreateRequest{}), d.Create(v1.CreateRequest{})
	for _, sb := range []*client.Sandbox{running, paused} {
		d.Sh(sb, "echo kept > /home/user/kept && sync")
		count(d, sb)
	}
	pauseNow(t, d, paused)
	d.Kill()
	reboot(t, d.Data)
	d.Up()
	wantState(t, d, running.ID, "running")
	if got := d.Sh(running, "cat /home/user/kept"); got != "kept\n" {
		t.Errorf("the running sandbox's file says %q", got)
	}
	if err := running.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if running.Recovered != "files" || running.Reason == "" {
		t.Errorf("recovered %q with the reason %q; want files, and why", running.Recovered, running.Reason)
	}
	wantState(t, d, paused.ID, "paused")
	if _, err := paused.Resume(t.Context(), v1.ConnectRequest{TimeoutSeconds: 3600}); err != nil {
		t.Fatal(err)
	}
	if paused.Recovered != "memory" {
		t.Errorf("the paused sandbox recovered %q (%s), want memory", paused.Recovered, paused.Reason)
	}
	goesOn(t, d, paused)
	d.Healthy()
}

// reboot ends the daemon's processes and removes what the kernel keeps of it.
func reboot(t *testing.T, data string) {
	t.Helper()
	for _, p := range harness.Processes(data) {
		pid, err := strconv.Atoi(strings.Fields(p)[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
			t.Fatal(err)
		}
	}
	eventually(t, "all processes are gone", func() bool { return len(harness.Processes(data)) == 0 })
	run := "/run/holdfast/" + network.InstanceOf(data)
	for _, item := range slices.Backward(harness.Leftovers(data)) { // mounts within mounts come later
		kind, thing, _ := strings.Cut(item, " ")
		var err error
		switch kind {
		case "mount":
			err = unix.Unmount(thing, unix.MNT_DETACH)
		case "link":
			err = exec.CommandContext(t.Context(), "ip", "link", "delete", thing).Run() //nolint:gosec // a link of ours
			if _, lookErr := os.Stat("/sys/class/net/" + thing); lookErr != nil {
				err = nil // it went with its namespace
			}
		case "nftables":
			err = exec.CommandContext(t.Context(), "nft", append([]string{"delete"}, strings.Fields(thing)...)...).Run() //nolint:gosec // a table of ours
		}
		if err != nil && kind != "control" {
			t.Logf("%s: %v", item, err)
		}
	}
	if err := os.RemoveAll(run); err != nil {
		t.Fatal(err)
	}
}

// TestDiskFull fills the disk below the data folder and wants a pause to be
// refused with the reason, and the sandbox to go on as if nothing had been asked.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	disk := filepath.Join(harness.ShortDir(t), "disk")
	if err := os.Mkdir(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("holdfast-test", disk, "tmpfs", 0, "size=1g"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Errorf("unmount the small disk: %v", err)
		}
	})
	d := harness.Start(t, harness.Options{Data: filepath.Join(disk, "data"), Template: harness.Small})
	sb := d.Create(v1.CreateRequest{})
	sum := d.Sh(sb, "head -c 200000000 /dev/urandom > /dev/shm/random && sha256sum /dev/shm/random")
	count(d, sb)
	filler := filepath.Join(disk, "filler")
	fill(t, filler, disk, 64<<20)

	err := sb.Pause(t.Context(), false)
	if !sandbox.IsKind(err, sandbox.Capacity) {
		t.Fatalf("pause on a full disk: %v, want a capacity error", err)
	}
	if !strings.Contains(err.Error(), "space") && !strings.Contains(err.Error(), "disk") {
		t.Errorf("the error does not name the disk: %v", err)
	}
	wantState(t, d, sb.ID, "running")
	goesOn(t, d, sb)
	if got := d.Sh(sb, "sha256sum /dev/shm/random"); got != sum {
		t.Errorf("its memory changed: %s, was %s", got, sum)
	}

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := sb.Pause(t.Context(), false); err != nil {
		t.Fatalf("pause with room again: %v", err)
	}
	if _, err := sb.Resume(t.Context(), v1.ConnectRequest{TimeoutSeconds: 3600}); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(sb, "sha256sum /dev/shm/random"); got != sum {
		t.Errorf("after pause and resume: %s, was %s", got, sum)
	}
	d.Healthy()
}

// fill writes a file until only left bytes of the disk are free.
func fill(t *testing.T, path, disk string, left int64) {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(disk, &st); err != nil {
		t.Fatal(err)
	}
	free := int64(st.Bavail) * st.Bsize //nolint:gosec // a gigabyte
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Fallocate(int(f.Fd()), 0, 0, free-left); err != nil {
		t.Fatal(err)
	}
}

// TestTornImage damages the memory image of a paused sandbox, and wants it back
// from its files, with the reason.
func TestTornImage(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(*testing.T, string){
		"a changed byte": func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			b := make([]byte, 1)
			if _, err := f.ReadAt(b, 4096); err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteAt([]byte{^b[0]}, 4096); err != nil {
				t.Fatal(err)
			}
		},
		"cut short": func(t *testing.T, path string) {
			if err := os.Truncate(path, 8192); err != nil {
				t.Fatal(err)
			}
		},
		"missing": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := harness.Start(t, harness.Options{Template: harness.Small})
			sb := d.Create(v1.CreateRequest{})
			d.Sh(sb, "echo kept > /home/user/kept")
			pause(t, sb)
			damage(t, biggest(t, filepath.Join(d.Data, "sandboxes", sb.ID)))
			again, resumed, err := d.Client.Connect(t.Context(), sb.ID, time.Hour)
			if err != nil || !resumed {
				t.Fatalf("connect: resumed %v, %v", resumed, err)
			}
			if again.Recovered != "files" || again.Reason == "" {
				t.Errorf("recovered %q with the reason %q; want files, and why", again.Recovered, again.Reason)
			}
			if got := d.Sh(again, "cat /home/user/kept"); got != "kept\n" {
				t.Errorf("its file says %q", got)
			}
		})
	}
}

func pause(t *testing.T, sb *client.Sandbox) {
	t.Helper()
	if err := sb.Pause(t.Context(), false); err != nil {
		t.Fatal(err)
	}
}

// biggest finds the biggest file below a folder: the pages of the memory image.
func biggest(t *testing.T, dir string) string {
	t.Helper()
	var path string
	var most int64
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		fi, err := e.Info()
		if err == nil && fi.Size() > most {
			path, most = p, fi.Size()
		}
		return err
	})
	if err != nil || most < 16<<10 {
		t.Fatalf("no memory image below %s (biggest file: %s, %d bytes): %v", dir, path, most, err)
	}
	return path
}

// TestCrash kills a sandbox's process from outside.
func TestCrash(t *testing.T) {
	t.Parallel()
	d := harness.Start(t, harness.Options{Template: harness.Small})
	sb := d.Create(v1.CreateRequest{})
	d.Sh(sb, "echo kept > /home/user/kept && sync")
	in, err := d.Client.Inspect(t.Context(), sb.ID)
	if err != nil {
		t.Fatal(err)
	}
	if in.Host == nil || in.Host.PID == 0 {
		t.Fatalf("inspect does not tell the process: %+v", in.Host)
	}
	if err := syscall.Kill(in.Host.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wantState(t, d, sb.ID, "failed")
	if err := sb.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if sb.Reason == "" {
		t.Error("it failed without a reason")
	}
	wantEvent(t, sb, "crashed")
	if _, err := sb.Resume(t.Context(), v1.ConnectRequest{TimeoutSeconds: 3600}); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(sb, "cat /home/user/kept"); got != "kept\n" {
		t.Errorf("its file says %q", got)
	}
	if sb.Recovered != "files" {
		t.Errorf("recovered %q, want files", sb.Recovered)
	}
}

// TestOutOfMemory lets a sandbox use more memory than it may.
func TestOutOfMemory(t *testing.T) {
	t.Parallel()
	d := harness.Start(t, harness.Options{Template: harness.Small})
	sb := d.Create(v1.CreateRequest{Resources: v1.Resources{MemoryMB: 128}})
	d.Sh(sb, "echo kept > /home/user/kept && sync")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err := sb.Command(ctx, "/bin/sh", "-c", "head -c 1000000000 /dev/urandom > /dev/shm/random").Run()
	if err == nil {
		t.Fatal("a sandbox of 128 MiB took a gigabyte")
	}
	wantEvent(t, sb, "oom")
	if err := sb.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if sb.State == "failed" && !strings.Contains(sb.Reason, "memory") {
		t.Errorf("the reason does not name memory: %q", sb.Reason)
	}
	if out := d.Must("inspect", sb.ID); !strings.Contains(out, "memory") {
		t.Errorf("inspect does not show it:\n%s", out)
	}
	if _, err := sb.Resume(t.Context(), v1.ConnectRequest{TimeoutSeconds: 3600}); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(sb, "cat /home/user/kept"); got != "kept\n" {
		t.Errorf("its file says %q", got)
	}
}

func wantEvent(t *testing.T, sb *client.Sandbox, kind string) {
	t.Helper()
	var seen []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		events, err := sb.Events(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		seen = seen[:0]
		for _, e := range events {
			if e.Kind == kind && e.Message != "" {
				return
			}
			seen = append(seen, fmt.Sprintf("%s (%s)", e.Kind, e.Message))
		}
	}
	t.Errorf("no event %q; there are: %s", kind, strings.Join(seen, ", "))
}

// TestQuotas goes over each limit of the node.
func TestQuotas(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key     string
		config  string
		request v1.CreateRequest
	}{
		{"limits.sandboxes", "limits:\n  sandboxes: 2\n", v1.CreateRequest{}},
		{"limits.cpus", "limits:\n  cpus: 5\n", v1.CreateRequest{Resources: v1.Resources{CPUs: 2}}},
		{"limits.memory_mb", "limits:\n  memory_mb: 600\n", v1.CreateRequest{Resources: v1.Resources{MemoryMB: 256}}},
	} {
		t.Run(c.key, func(t *testing.T) {
			t.Parallel()
			d := harness.Start(t, harness.Options{Template: harness.Small, Config: c.config + "pool: {}\n"})
			first, _ := d.Create(c.request), d.Create(c.request)
			over := c.request
			over.Template, over.TimeoutSeconds = "small", 60
			_, err := d.Client.Create(t.Context(), over)
			if !sandbox.IsKind(err, sandbox.Capacity) {
				t.Fatalf("the third: %v, want a capacity error", err)
			}
			if !strings.Contains(err.Error(), c.key) {
				t.Errorf("the error does not say which limit to raise (%s): %v", c.key, err)
			}
			if err := first.Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Client.Create(t.Context(), over); err != nil {
				t.Errorf("with room again: %v", err)
			}
		})
	}
}
