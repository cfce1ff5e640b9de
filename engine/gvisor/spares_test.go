package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/engine/enginetest"
)

func start(t *testing.T) (*Engine, *enginetest.One) {
	t.Helper()
	one := enginetest.StartOne(t, func(t testing.TB, dir string) engine.Engine { return open(t, dir) })
	return one.Engine.(*Engine), one
}

// stocked waits until the engine keeps all the spares it should and gives the one to
// be used next.
func stocked(t *testing.T, e *Engine) *spare {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		e.mu.Lock()
		for _, list := range e.spares {
			if len(list) == DefaultSpares {
				e.mu.Unlock()
				return list[len(list)-1]
			}
		}
		e.mu.Unlock()
	}
	t.Fatal("no spares were made")
	return nil
}

// again ends an instance with a checkpoint and restores it.
func again(t *testing.T, e *Engine, one *enginetest.One) engine.Instance {
	t.Helper()
	dir := t.TempDir()
	if _, err := e.Checkpoint(t.Context(), one.Spec.ID, dir); err != nil {
		t.Fatal(err)
	}
	if err := e.Kill(t.Context(), one.Spec.ID); err != nil {
		t.Fatal(err)
	}
	one.Refresh()
	in, err := e.Restore(t.Context(), one.Spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	one.Answer()
	return in
}

// TestSpareUsed: a restore takes a spare, whose process and cgroup become the
// instance's, limits included, and another one is made.
func TestSpareUsed(t *testing.T) {
	e, one := start(t)
	s := stocked(t, e)
	one.Spec.PIDs = 500
	in := again(t, e, one)
	if name := e.groupName(in.ID); !strings.HasPrefix(name, sparePrefix) {
		t.Fatalf("it is in cgroup %s, not in a spare's", name)
	}
	r, err := e.loadRecord(in.ID)
	if err != nil || r.Sandbox.PID != s.sandbox.PID {
		t.Errorf("its process is %d, %v; the spare's was %d", r.Sandbox.PID, err, s.sandbox.PID)
	}
	pids, err := e.group(in.ID).Procs()
	if err != nil {
		t.Fatal(err)
	}
	inside := map[int]bool{}
	for _, pid := range pids {
		inside[pid] = true
	}
	if !inside[r.Sandbox.PID] || !inside[r.Gofer.PID] || len(pids) < 4 {
		t.Errorf("in its cgroup are %v, want sandbox %d, gofer %d and stubs", pids, r.Sandbox.PID, r.Gofer.PID)
	}
	if next := stocked(t, e); next.name == s.name {
		t.Error("a spare was used and is still kept")
	}
	if list, err := e.List(t.Context()); err != nil || len(list) != 1 || list[0] != in.ID {
		t.Errorf("list is %v, %v; spares are no instances", list, err)
	}
}

// TestSpareDied: a spare that is dead, or dies at once, costs nothing but time.
func TestSpareDied(t *testing.T) {
	e, one := start(t)
	s := stocked(t, e)
	if err := syscall.Kill(s.sandbox.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	again(t, e, one)
	// One whose other half is gone: the driver knows nothing of it.
	stocked(t, e)
	e.mu.Lock()
	for _, list := range e.spares {
		for _, s := range list {
			s.name = sparePrefix + "unknown"
		}
	}
	e.mu.Unlock()
	again(t, e, one)
}

// TestSparesOfKilledEngine: the next engine ends them, and spares those that have
// become instances.
func TestSparesOfKilledEngine(t *testing.T) {
	e, one := start(t)
	stocked(t, e)
	in := again(t, e, one)
	left := stocked(t, e)
	e.drivers.close() // as if killed: nothing is cleared
	one.Reopen(func() {
		if _, err := os.Stat(left.dir); err != nil {
			t.Errorf("the spare went with its engine: %v", err)
		}
	})
	e = one.Engine.(*Engine)
	if left.sandbox.alive() {
		t.Error("a spare outlived its engine and the next one's start")
	}
	if _, err := os.Stat(filepath.Join(e.dir, spareFolder)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its folder is still there: %v", err)
	}
	if _, err := e.Adopt(t.Context(), in.ID); err != nil {
		t.Errorf("adopt what had been a spare: %v", err)
	}
	one.Answer()
}

// TestDriverKilled: instances go on, and the next call begins a new driver.
func TestDriverKilled(t *testing.T) {
	e, one := start(t)
	e.drivers.mu.Lock()
	d := e.drivers.byHash[e.current.SHA256]
	e.drivers.mu.Unlock()
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-d.ended
	one.Answer()
	again(t, e, one)
	r, err := e.loadRecord(one.Spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(r.Sandbox.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if x := <-e.Exits(); x.ID != one.Spec.ID || x.Reason != engine.ExitCrashed {
		t.Errorf("exit is %+v", x)
	}
}

// TestThawRunning: an engine that was killed between marking an instance as frozen
// and freezing it leaves a marker on a running one, which a thaw must not harm.
func TestThawRunning(t *testing.T) {
	e, one := start(t)
	marker := filepath.Join(e.instanceDir(one.Spec.ID), "frozen")
	if err := os.WriteFile(marker, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := e.Thaw(t.Context(), one.Spec.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(marker); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the marker is still there: %v", err)
	}
	one.Answer()
	again(t, e, one)
}

// TestHalfStarted: what a killed engine had begun is found by its command line, even
// without a record, and cleared.
func TestHalfStarted(t *testing.T) {
	e, one := start(t)
	r, err := e.loadRecord(one.Spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(e.instanceDir(one.Spec.ID), recordFile)); err != nil {
		t.Fatal(err)
	}
	if err := e.killStrays(one.Spec.ID); err != nil {
		t.Fatal(err)
	}
	if r.Sandbox.alive() || r.Gofer.alive() {
		t.Error("a half-started instance's processes were not found")
	}
	<-e.Exits()
	if err := e.Kill(t.Context(), one.Spec.ID); err != nil {
		t.Error(err)
	}
	if list, _ := e.List(t.Context()); len(list) > 0 {
		t.Errorf("left over: %v", list)
	}
}
