package node

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/sandbox"
)

func TestDeleteTriedAgainLeavesOthersTheirNetwork(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	stuck := filepath.Join(m.data, "sandboxes", sb.ID, "stuck")
	must(t, os.Mkdir(stuck, 0o700))
	must(t, unix.Mount("tmpfs", stuck, "tmpfs", 0, ""))
	if err := w.Delete(bg, sb.ID); !errors.Is(err, unix.EBUSY) {
		t.Fatalf("got %v", err)
	}
	other := w.create(sandbox.CreateOptions{})
	must(t, unix.Unmount(stuck, 0))
	must(t, w.Delete(bg, sb.ID))
	if slot := w.sandboxes[other.ID].rec.Load().Slot; len(m.slots) != 1 || m.slots[slot].DenyOut == nil {
		t.Fatalf("slot %d is not among %v", slot, m.slots)
	}
	w.clean()
}

func TestStatusDoesNotHoldUpOthersBehindThePool(t *testing.T) {
	w := newMachine(t).start(worldOptions{pool: map[string]int{"none": 1}})
	w.pool.mu.Lock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = w.Status(bg)
	}()
	time.Sleep(50 * time.Millisecond)
	free := w.mu.TryLock() // a create's lock
	if free {
		w.mu.Unlock()
	}
	w.pool.mu.Unlock()
	<-done
	if !free {
		t.Fatal("status waits for the pool with the node locked")
	}
}

func TestRollbackToWhatWasRemovedMeanwhileChangesNothing(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	w.write(sb.ID, "one")
	_, err := w.Snapshot(bg, sb.ID, sandbox.SnapshotOptions{Name: "first"})
	must(t, err)
	w.write(sb.ID, "two")
	e := w.sandboxes[sb.ID]
	<-e.lock
	result := make(chan error)
	go func() {
		_, err := w.Rollback(bg, sb.ID, "first")
		result <- err
	}()
	time.Sleep(50 * time.Millisecond) // it has looked the snapshot up, or will not find it
	must(t, w.DeleteTemplate(bg, "first"))
	e.release()
	wantKind(t, <-result, sandbox.NotFound, "first")
	w.holds(sb.ID, "two", true)
	w.clean()
}

func TestPoolOfARemovedTemplateIsEmptied(t *testing.T) {
	m := newMachine(t)
	var w *world
	ready := make(chan struct{})
	var once sync.Once
	var removed atomic.Bool
	w = m.start(worldOptions{pool: map[string]int{"base": 1}, fault: func(step string) {
		if step == "up.restored" {
			<-ready
			once.Do(func() {
				if err := w.DeleteTemplate(bg, "base"); err != nil {
					t.Error(err)
				}
				removed.Store(true)
			})
		}
	}})
	close(ready)
	eventually(t, "removed", removed.Load)
	eventually(t, "nothing runs", func() bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return len(m.instances) == 0
	})
	eventually(t, "only the guest's layer is left", func() bool { return len(w.all()) == 0 && len(w.files.List()) == 1 })
	w.clean()
}

func TestImportTakesANameFromASnapshotButNotItsContent(t *testing.T) {
	w := newMachine(t).start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	w.write(sb.ID, "v")
	snap, err := w.Snapshot(bg, sb.ID, sandbox.SnapshotOptions{Name: "mine"})
	must(t, err)
	_, err = w.ImportTemplate(bg, sandbox.ImportOptions{Name: "mine"})
	must(t, err)
	w.holds(w.create(sandbox.CreateOptions{Template: snap.ID}).ID, "v", true)
	w.clean()
}

func TestResumesShareTheLastPlaceOnce(t *testing.T) {
	w := newMachine(t).start(worldOptions{limits: Limits{CPUs: 2}})
	two := sandbox.CreateOptions{Resources: sandbox.Resources{CPUs: 2}}
	a := w.create(two)
	must(t, w.Pause(bg, a.ID, sandbox.PauseOptions{}))
	b := w.create(two)
	must(t, w.Pause(bg, b.ID, sandbox.PauseOptions{}))
	first, second := w.sandboxes[a.ID].rec.Load(), w.sandboxes[b.ID].rec.Load()
	must(t, w.admitResume(first))
	wantKind(t, w.admitResume(second), sandbox.Capacity, "cpus")
	w.unreserve(first)
	must(t, w.admitResume(second))
	w.unreserve(second)
	w.clean()
}

func TestCloseKeepsTheLastEvents(t *testing.T) {
	m := newMachine(t)
	down, closing := make(chan struct{}), make(chan struct{})
	w := m.start(worldOptions{fault: func(step string) {
		if step == "pause.down" {
			close(down)
			<-closing
		}
	}})
	sb := w.create(sandbox.CreateOptions{})
	go func() { _ = w.Pause(bg, sb.ID, sandbox.PauseOptions{}) }()
	<-down
	closed := make(chan error)
	go func() { closed <- w.Close() }()
	eventually(t, "closing", func() bool { return w.ctx.Err() != nil })
	close(closing)
	must(t, <-closed)
	events, err := w.Events(bg, sb.ID, sandbox.EventOptions{})
	must(t, err)
	if len(events) == 0 || events[len(events)-1].Kind != "paused" {
		t.Fatalf("events %+v", events)
	}
}

// A resume that came up ran on while its daemon was dead: memory from before
// would no longer fit the files.
func TestResumedBehindADeadDaemonGoesOn(t *testing.T) {
	m := newMachine(t)
	var armed atomic.Bool
	there := make(chan struct{})
	w := m.start(worldOptions{fault: func(step string) {
		if armed.Load() && step == "up.restored" {
			close(there)
			select {}
		}
	}})
	sb := w.create(sandbox.CreateOptions{})
	w.write(sb.ID, "v1")
	must(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{}))
	armed.Store(true)
	go func() { _, _, _ = w.Connect(bg, sb.ID, sandbox.ConnectOptions{Timeout: time.Hour}) }()
	<-there
	w.crash()
	m.mu.Lock()
	for _, i := range m.instances {
		i.memory = "v2"
		must(t, os.WriteFile(filepath.Join(i.root, "file"), []byte("v2"), 0o644))
	}
	m.mu.Unlock()
	w = m.start(worldOptions{})
	w.holds(sb.ID, "v2", true)
	w.clean()
}
