package e2e

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/e2e/harness"
	"github.com/holdfast-run/holdfast/sandbox"
)

// eventually fails the test when cond stays false for far longer than a healthy
// machine needs.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
	}
}

// state asks for a sandbox's state; "" when it is gone.
func state(t *testing.T, d *harness.Daemon, id string) string {
	t.Helper()
	sb, err := d.Client.Get(context.Background(), id)
	if sandbox.IsKind(err, sandbox.NotFound) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return sb.State
}

// count starts a process inside that counts in memory only: a copy of it is
// what a file says about a process that lives.
func count(d *harness.Daemon, sb *client.Sandbox) {
	d.Sh(sb, `(setsid sh -c 'i=0; while :; do i=$((i+1)); echo $i > /tmp/count; sleep 0.02; done' >/dev/null 2>&1 </dev/null &)`)
}

func counted(t *testing.T, d *harness.Daemon, sb *client.Sandbox) string {
	t.Helper()
	var n string
	eventually(t, "there is a count", func() bool {
		n = strings.TrimSpace(d.Sh(sb, "cat /tmp/count 2>/dev/null || true"))
		return n != ""
	})
	return n
}

// goesOn fails unless the counting process of sb still counts.
func goesOn(t *testing.T, d *harness.Daemon, sb *client.Sandbox) {
	t.Helper()
	first := counted(t, d, sb)
	eventually(t, "the process in "+sb.ID+" counts on", func() bool { return counted(t, d, sb) != first })
}

func TestSecondDaemonOnTheSameFolder(t *testing.T) {
	t.Parallel()
	d := harness.Start(t, harness.Options{})
	r := harness.Holdfast(t, nil, "", "daemon", "--data", d.Data, "--listen", "127.0.0.1:0")
	if r.Code == 0 {
		t.Fatal("a second daemon started on the same folder")
	}
	if !strings.Contains(r.Err, d.Data) || !strings.Contains(r.Err, "another daemon") {
		t.Errorf("it does not say why: %s", r.Err)
	}
	if err := d.Client.Healthy(t.Context()); err != nil {
		t.Errorf("the first daemon is no longer well: %v", err)
	}
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	d := harness.Start(t, harness.Options{})
	other := harness.ShortDir(t)
	r := harness.Holdfast(t, nil, "", "daemon", "--data", other, "--listen", d.Listen)
	if r.Code == 0 || !strings.Contains(r.Err, d.Listen) {
		t.Errorf("code %d, and no word of %s: %s", r.Code, d.Listen, r.Err)
	}
	if left := harness.Withdraw(t.Context(), other); len(left) > 0 {
		t.Errorf("it left behind: %s", strings.Join(left, "\n"))
	}
}

func TestTwoDaemonsSideBySide(t *testing.T) {
	t.Parallel()
	one := harness.Start(t, harness.Options{Template: harness.Small})
	two := harness.Start(t, harness.Options{Template: harness.Small})
	a, b := one.Create(v1.CreateRequest{}), two.Create(v1.CreateRequest{})
	for _, c := range []struct {
		d *harness.Daemon
		s *client.Sandbox
	}{{one, a}, {two, b}} {
		if got := c.d.Sh(c.s, "echo works"); got != "works\n" {
			t.Errorf("daemon on %s: %q", c.d.Data, got)
		}
	}
	if got := state(t, one, b.ID); got != "" {
		t.Errorf("one daemon knows the other's sandbox (%s)", got)
	}
	one.Stop()
	if got := two.Sh(b, "echo goes on"); got != "goes on\n" {
		t.Errorf("after the other daemon stopped: %q", got)
	}
	one.Up()
	one.Healthy()
	two.Healthy()
}

func TestWithoutRoot(t *testing.T) {
	t.Parallel()
	// A copy, for the tree may be where nobody may look.
	dir := harness.ShortDir(t)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "holdfast")
	copyFile(t, harness.Binary(), program)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, verb := range []string{"daemon", "up"} {
		cmd := exec.CommandContext(ctx, program, verb, "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0")
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err == nil || ctx.Err() != nil {
			t.Errorf("%s as nobody: no refusal: %s", verb, out)
		}
		if !strings.Contains(string(out), "root") {
			t.Errorf("%s as nobody does not say that root is needed: %s", verb, out)
		}
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	in, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(out, in); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestWithoutControlGroups hides the control groups from the daemon, as on a
// host that gives it none.
func TestWithoutControlGroups(t *testing.T) {
	t.Parallel()
	d := harness.Start(t, harness.Options{
		Wrap:     []string{"unshare", "--mount", "sh", "-c", `umount --recursive /sys/fs/cgroup && exec "$@"`, "sh"},
		Template: harness.Small,
	})
	sb := d.Create(v1.CreateRequest{})
	if got := d.Sh(sb, "echo works"); got != "works\n" {
		t.Errorf("a sandbox without limits: %q", got)
	}
	st, err := d.Client.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"cpu", "memory", "pids"} {
		if st.Node.Missing[limit] == "" {
			t.Errorf("status does not say that the %s limit is not enforced: %v", limit, st.Node.Missing)
		}
	}
	found, err := d.Client.Doctor(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	said := false
	for _, f := range found {
		said = said || f.Severity != "ok" && strings.Contains(f.Check+f.Thing+f.Reason, "memory") && f.Next != ""
	}
	if !said {
		t.Errorf("doctor does not say it: %+v", found)
	}
}

func TestDaemonRestartKeepsSandboxes(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*harness.Daemon){"stopped": (*harness.Daemon).Stop, "killed": (*harness.Daemon).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := harness.Start(t, harness.Options{Template: harness.Small})
			running, paused, brief := d.Create(v1.CreateRequest{}), d.Create(v1.CreateRequest{}), d.Create(v1.CreateRequest{OnTimeout: "kill"})
			count(d, running)
			count(d, paused)
			counted(t, d, paused)
			if err := paused.Pause(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			if err := brief.SetTimeout(t.Context(), 2*time.Second); err != nil {
				t.Fatal(err)
			}
			before, err := d.Client.Inspect(t.Context(), running.ID)
			if err != nil {
				t.Fatal(err)
			}
			end(d)
			time.Sleep(2 * time.Second) // brief's deadline passes with no daemon to see it
			d.Up()
			d.Healthy()
			goesOn(t, d, running)
			after, err := d.Client.Inspect(t.Context(), running.ID)
			if err != nil {
				t.Fatal(err)
			}
			if before.Host == nil || after.Host == nil || before.Host.PID != after.Host.PID {
				t.Errorf("the process was replaced: %+v, then %+v", before.Host, after.Host)
			}
			if got := state(t, d, paused.ID); got != "paused" {
				t.Errorf("the paused sandbox is %q", got)
			}
			if _, err := paused.Resume(t.Context(), v1.ConnectRequest{}); err != nil {
				t.Fatal(err)
			}
			if paused.Recovered != "memory" {
				t.Errorf("recovered %q (%s), want memory", paused.Recovered, paused.Reason)
			}
			goesOn(t, d, paused)
			eventually(t, "the sandbox past its deadline is gone", func() bool { return state(t, d, brief.ID) == "" })
		})
	}
}

// TestStreamsEndWithTheSandbox wants a client that waits for a command to be
// told when the sandbox is paused or removed: the other end of its connection
// is gone and cannot say so.
func TestStreamsEndWithTheSandbox(t *testing.T) {
	t.Parallel()
	d := harness.Start(t, harness.Options{Template: harness.Small})
	for name, end := range map[string]func(*client.Sandbox) error{
		"paused":  func(sb *client.Sandbox) error { return sb.Pause(t.Context(), false) },
		"removed": func(sb *client.Sandbox) error { return sb.Delete(t.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			sb := d.Create(v1.CreateRequest{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := sb.Command(ctx, "/bin/sleep", "1000")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if err := end(sb); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil || ctx.Err() != nil {
				t.Errorf("the waiting client was told %v (%v)", err, ctx.Err())
			}
		})
	}
}
