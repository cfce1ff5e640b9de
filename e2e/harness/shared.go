package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// shared is the one daemon with the base template that most tests use. It comes
// up the way people bring one up, and that is a test of its own.
var shared struct {
	once   sync.Once
	err    error
	data   string
	listen string
	output string // what the first `holdfast up --demo` printed
}

// Shared gives the daemon with the base template; sandboxes made by Create are
// deleted at the test's end.
func Shared(t testing.TB) *Daemon {
	t.Helper()
	requireRoot(t)
	shared.once.Do(func() { shared.err = bringUp(freeAddress(t)) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	d := connect(t, Options{Data: shared.data, Template: &Template{Name: "base"}}, shared.listen)
	d.shared = true
	t.Cleanup(d.Client.Close)
	return d
}

// DemoOutput is what `holdfast up --demo` printed when Shared came up.
func DemoOutput(t testing.TB) string {
	t.Helper()
	Shared(t)
	return shared.output
}

func bringUp(listen string) error {
	data, err := os.MkdirTemp("", "hf")
	if err != nil {
		return err
	}
	shared.data, shared.listen = data, listen
	env := environment("HOLDFAST_POOL=base=2")
	cache := filepath.Join(Repository(), "bin", "cache", "base.tar.gz")
	if _, err := os.Stat(cache); err == nil {
		env = append(env, "HOLDFAST_TEMPLATES_BASE="+cache)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*patience) // it bootstraps a distribution
	defer cancel()
	up := exec.CommandContext(ctx, Binary(), "up", "--demo", "--data", data, "--listen", listen) //nolint:gosec // the binary under test
	up.Env = env
	out, err := up.CombinedOutput()
	shared.output = string(out)
	if err != nil {
		return fmt.Errorf("holdfast up --demo: %w\n%s", err, out)
	}
	if _, err := os.Stat(cache); errors.Is(err, os.ErrNotExist) {
		return keepBase(ctx, data, cache)
	}
	return nil
}

// keepBase saves the files of the base template, so that the next run of the
// tests on this clone does not bootstrap them again.
func keepBase(ctx context.Context, data, cache string) error {
	bottoms, err := filepath.Glob(filepath.Join(data, "layers", "*", "fs", "usr", "bin", "python3"))
	if err != nil || len(bottoms) == 0 {
		return errors.Join(err, errors.New("no layer of the base template has python3"))
	}
	root := strings.TrimSuffix(bottoms[0], "/usr/bin/python3")
	if err := os.MkdirAll(filepath.Dir(cache), 0o755); err != nil {
		return err
	}
	tar := exec.CommandContext(ctx, "tar", "-C", root, "--numeric-owner", "--xattrs", "--use-compress-program", "gzip -1", "-cf", cache+".tmp", ".") //nolint:gosec // paths are ours
	if out, err := tar.CombinedOutput(); err != nil {
		return fmt.Errorf("keep base: %w: %s", err, out)
	}
	return os.Rename(cache+".tmp", cache)
}

// Finish ends the shared daemon and says what it left behind. TestMain calls it.
func Finish() error {
	if shared.data == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	left := Withdraw(ctx, shared.data)
	if err := os.RemoveAll(shared.data); err != nil {
		left = append(left, err.Error())
	}
	if len(left) > 0 {
		return fmt.Errorf("the shared daemon left behind:\n%s", strings.Join(left, "\n"))
	}
	return nil
}
