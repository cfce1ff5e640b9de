package harness

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// Result is what a command printed and its exit code.
type Result struct {
	Out, Err string
	Code     int
}

// Holdfast runs the program under test against the daemon, without a terminal.
func (d *Daemon) Holdfast(args ...string) Result {
	d.t.Helper()
	return Holdfast(d.t, []string{"HOLDFAST_DATA=" + d.Data, "HOLDFAST_LISTEN=" + d.Listen}, "", args...)
}

// Must is Holdfast for commands that have to succeed; it gives what they printed.
func (d *Daemon) Must(args ...string) string {
	d.t.Helper()
	r := d.Holdfast(args...)
	if r.Code != 0 {
		d.t.Fatalf("holdfast %s: code %d\n%s%s", strings.Join(args, " "), r.Code, r.Out, r.Err)
	}
	return r.Out
}

// Holdfast runs the program with env added and stdin as input.
func Holdfast(t testing.TB, env []string, stdin string, args ...string) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, Binary(), args...) //nolint:gosec // the binary under test
	cmd.Env = environment(env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("holdfast %s: %v", strings.Join(args, " "), err)
	}
	if ctx.Err() != nil {
		t.Fatalf("holdfast %s: still running after %v\n%s%s", strings.Join(args, " "), patience, out.String(), errs.String())
	}
	return Result{Out: out.String(), Err: errs.String(), Code: cmd.ProcessState.ExitCode()}
}
