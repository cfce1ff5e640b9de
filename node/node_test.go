package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/sandbox"
)

var bg = context.Background()

// eventually waits for a condition that another goroutine brings about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("never happened: %s", what)
}

func wantKind(t *testing.T, err error, k sandbox.Kind, says string) {
	t.Helper()
	if !sandbox.IsKind(err, k) || !strings.Contains(fmt.Sprint(err), says) {
		t.Fatalf("got %v (%s), want a %s that says %q", err, sandbox.KindOf(err), k, says)
	}
}

func TestPauseKeepsMemoryAndUsesNone(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	w.write(sb.ID, "v")
	must(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{}))
	if len(m.instances) != 0 {
		t.Fatalf("a paused sandbox has instances %v", m.instances)
	}
	got, err := w.Get(bg, sb.ID)
	must(t, err)
	if got.State != sandbox.Paused || got.PausedAt.IsZero() {
		t.Fatalf("state %s, paused at %v", got.State, got.PausedAt)
	}
	wantKind(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{}), sandbox.Conflict, "already paused")
	w.holds(sb.ID, "v", true)
	if got, _ = w.Get(bg, sb.ID); got.Recovered != sandbox.DepthMemory {
		t.Fatalf("recovered %s", got.Recovered)
	}
	w.clean()
}

func TestPauseOfFilesOnlyDropsMemory(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	w.write(sb.ID, "v")
	must(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{FilesOnly: true}))
	w.holds(sb.ID, "v", false)
	if got := w.live(sb.ID).memory; got != "booted" {
		t.Fatalf("memory %q came back", got)
	}
	w.clean()
}

func TestManyWakesMakeOneResume(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{Lifecycle: sandbox.Lifecycle{AutoResume: true}})
	w.write(sb.ID, "v")
	must(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{}))
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			var err error
			if i%2 == 0 {
				_, err = w.Route(bg, sb.ID, true)
			} else {
				_, _, err = w.Connect(bg, sb.ID, sandbox.ConnectOptions{Timeout: time.Minute})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	events, err := w.Events(bg, sb.ID, sandbox.EventOptions{})
	must(t, err)
	n := 0
	for _, e := range events {
		if e.Kind == "resumed" {
			n++
		}
	}
	if n != 1 || len(m.instances) != 1 {
		t.Fatalf("%d resumes, %d instances", n, len(m.instances))
	}
}

func TestTrafficWakesOnlyUnderAutoResume(t *testing.T) {
	w := newMachine(t).start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	must(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{}))
	_, err := w.Route(bg, sb.ID, true)
	wantKind(t, err, sandbox.NotFound, "not woken by traffic")
	for range 3 { // looking never wakes
		_, _ = w.Get(bg, sb.ID)
		_, _ = w.List(bg, sandbox.ListOptions{})
		_, _ = w.Inspect(bg, sb.ID)
	}
	if got, _ := w.Get(bg, sb.ID); got.State != sandbox.Paused {
		t.Fatalf("state %s", got.State)
	}
}

func TestFullDiskWhilePausingLeavesItRunning(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	w.write(sb.ID, "v")
	m.fail["checkpoint"] = engine.ErrNoSpace
	wantKind(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{}), sandbox.Capacity, "disk")
	if got, _ := w.Get(bg, sb.ID); got.State != sandbox.Running {
		t.Fatalf("state %s", got.State)
	}
	w.holds(sb.ID, "v", true)
	must(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{}))
	w.holds(sb.ID, "v", true)
	w.clean()
}

func TestDamagedImageFallsBackToFilesAndSaysSo(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	w.write(sb.ID, "v")
	must(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{}))
	pages, err := filepath.Glob(filepath.Join(m.data, "sandboxes", sb.ID, "images", "*", "memory", "pages"))
	if err != nil || len(pages) != 1 {
		t.Fatal(pages, err)
	}
	must(t, os.WriteFile(pages[0], []byte("x"), 0o600))
	w.holds(sb.ID, "v", false)
	got, err := w.Get(bg, sb.ID)
	must(t, err)
	if got.Recovered != sandbox.DepthFiles || !strings.Contains(got.Reason, "damaged") {
		t.Fatalf("recovered %s, reason %q", got.Recovered, got.Reason)
	}
	w.clean()
}

func TestFailedResumeCanBeTriedAgain(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	w.write(sb.ID, "v")
	must(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{}))
	m.fail["restore"], m.fail["start"] = errors.New("out of luck"), errors.New("out of luck too")
	if _, _, err := w.Connect(bg, sb.ID, sandbox.ConnectOptions{Timeout: time.Hour}); err == nil || !strings.Contains(err.Error(), "out of luck") {
		t.Fatalf("got %v", err)
	}
	if got, _ := w.Get(bg, sb.ID); got.State != sandbox.Paused || got.Reason == "" {
		t.Fatalf("state %s, reason %q", got.State, got.Reason)
	}
	w.holds(sb.ID, "v", true)
	w.clean()
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	m.fail["restore"], m.fail["start"] = errors.New("no"), errors.New("no")
	if _, err := w.Create(bg, sandbox.CreateOptions{Timeout: time.Hour}); err == nil {
		t.Fatal("created")
	}
	w.clean()
}

func TestDeadInstanceIsNoticedWithItsReason(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	w.write(sb.ID, "v")
	id := w.sandboxes[sb.ID].rec.Load().instance()
	m.mu.Lock()
	delete(m.instances, id)
	m.mu.Unlock()
	m.exits <- engine.Exit{ID: id, Reason: engine.ExitOOM, Detail: "limit 64 MiB"}
	eventually(t, "failed", func() bool { got, _ := w.Get(bg, sb.ID); return got.State == sandbox.Failed })
	got, _ := w.Get(bg, sb.ID)
	if got.Reason != "oom: limit 64 MiB" {
		t.Fatalf("reason %q", got.Reason)
	}
	w.holds(sb.ID, "v", false)
	w.clean()
}

func TestOutOfMemoryInsideIsTold(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	w.watchMemoryOnce()
	m.mu.Lock()
	m.oomKills = 2
	m.mu.Unlock()
	w.watchMemoryOnce()
	w.watchMemoryOnce() // told once
	events, err := w.Events(bg, sb.ID, sandbox.EventOptions{})
	must(t, err)
	if n := len(events); n != 2 || events[1].Kind != "oom" || events[1].Fields["processes"] != "2" {
		t.Fatalf("events %+v", events)
	}
}

func TestDeadlines(t *testing.T) {
	w := newMachine(t).start(worldOptions{})
	killed := w.create(sandbox.CreateOptions{})
	paused := w.create(sandbox.CreateOptions{Lifecycle: sandbox.Lifecycle{OnTimeout: sandbox.Pause, KeepMemory: true}})
	kept := w.create(sandbox.CreateOptions{})
	w.write(paused.ID, "v")
	for _, id := range []string{killed.ID, paused.ID, kept.ID} {
		must(t, w.SetTimeout(bg, id, 300*time.Millisecond))
	}
	must(t, w.Extend(bg, kept.ID, time.Hour))
	must(t, w.Extend(bg, kept.ID, time.Second)) // only ever later
	eventually(t, "killed", func() bool { _, err := w.Get(bg, killed.ID); return sandbox.IsKind(err, sandbox.NotFound) })
	eventually(t, "paused", func() bool { got, _ := w.Get(bg, paused.ID); return got.State == sandbox.Paused })
	if got, err := w.Get(bg, kept.ID); err != nil || got.State != sandbox.Running || time.Until(got.EndAt) < 50*time.Minute {
		t.Fatalf("extended one: %+v, %v", got, err)
	}
	wantKind(t, w.SetTimeout(bg, paused.ID, time.Hour), sandbox.NotFound, "no deadline")
	w.holds(paused.ID, "v", true)
	must(t, w.SetTimeout(bg, paused.ID, 0))
	eventually(t, "expired now", func() bool { got, _ := w.Get(bg, paused.ID); return got.State == sandbox.Paused })
	w.clean()
}

func TestDeadlineHoldsOverARestart(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	must(t, w.SetTimeout(bg, sb.ID, 500*time.Millisecond))
	w.crash()
	w = m.start(worldOptions{})
	eventually(t, "killed", func() bool { _, err := w.Get(bg, sb.ID); return sandbox.IsKind(err, sandbox.NotFound) })
	w.clean()
}

func TestQuotasNameTheLimit(t *testing.T) {
	w := newMachine(t).start(worldOptions{limits: Limits{Sandboxes: 3, CPUs: 5, MemoryMB: 2500}})
	big := sandbox.CreateOptions{Timeout: time.Hour, Resources: sandbox.Resources{CPUs: 2, MemoryMB: 1024}}
	a, b := w.create(big), w.create(big)
	_, err := w.Create(bg, big)
	wantKind(t, err, sandbox.Capacity, "raise limits.cpus")
	small := sandbox.CreateOptions{Timeout: time.Hour, Resources: sandbox.Resources{CPUs: 1, MemoryMB: 1024}}
	_, err = w.Create(bg, small)
	wantKind(t, err, sandbox.Capacity, "raise limits.memory_mb")
	must(t, w.Pause(bg, a.ID, sandbox.PauseOptions{}))
	must(t, w.Pause(bg, b.ID, sandbox.PauseOptions{}))
	w.create(big)
	_, err = w.Create(bg, small)
	wantKind(t, err, sandbox.Capacity, "raise limits.sandboxes")
	w.clean()
}

func TestQuotaHoldsUnderConcurrentCreates(t *testing.T) {
	w := newMachine(t).start(worldOptions{limits: Limits{Sandboxes: 5}, pool: map[string]int{"base": 3}})
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 20 {
		wg.Go(func() {
			_, err := w.Create(bg, sandbox.CreateOptions{Timeout: time.Hour})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if !sandbox.IsKind(err, sandbox.Capacity) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if made != 5 {
		t.Fatalf("made %d, limit 5", made)
	}
}

func TestPoolIsClaimedAndFilledAgain(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{pool: map[string]int{"base": 2}})
	full := func() bool {
		s, err := w.Status(bg)
		must(t, err)
		return s.Pool["base"].Ready == 2
	}
	eventually(t, "pool full", full)
	if p, _ := w.List(bg, sandbox.ListOptions{}); len(p.Sandboxes) != 0 {
		t.Fatalf("pooled sandboxes are listed: %v", p.Sandboxes)
	}
	sb := w.create(sandbox.CreateOptions{Metadata: map[string]string{"k": "v"}, Env: map[string]string{"E": "1"}})
	i := w.live(sb.ID)
	if i.id.Env["E"] != "1" || i.id.Token == "" || sb.Metadata["k"] != "v" {
		t.Fatalf("claimed one has identity %+v, %+v", i.id, sb)
	}
	events, err := w.Events(bg, sb.ID, sandbox.EventOptions{})
	must(t, err)
	if len(events) != 1 || !strings.Contains(events[0].Message, "(pool)") {
		t.Fatalf("events %+v", events)
	}
	eventually(t, "pool full again", full)
	w.crash()
	w = m.start(worldOptions{})
	w.clean() // the old pool's sandboxes are gone
}

func TestForkAndRollback(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{Env: map[string]string{"E": "1"}})
	w.write(sb.ID, "one")
	snap, err := w.Snapshot(bg, sb.ID, sandbox.SnapshotOptions{Name: "First"})
	must(t, err)
	if snap.Names[0] != "first" || !snap.HasMemory {
		t.Fatalf("snapshot %+v", snap)
	}
	w.write(sb.ID, "two")
	forks, err := w.Fork(bg, sb.ID, sandbox.ForkOptions{Count: 3, Timeout: time.Hour})
	must(t, err)
	ids := map[string]bool{sb.ID: true}
	for _, f := range forks {
		must(t, f.Err)
		w.holds(f.Sandbox.ID, "two", true)
		ids[f.Sandbox.ID] = true
	}
	if len(ids) != 4 {
		t.Fatalf("forks share ids: %v", ids)
	}
	w.write(forks[0].Sandbox.ID, "other")
	w.holds(sb.ID, "two", true)
	if _, err := w.Rollback(bg, sb.ID, "first"); err != nil {
		t.Fatal(err)
	}
	w.holds(sb.ID, "one", true)
	w.holds(forks[0].Sandbox.ID, "other", true)
	fromSnap := w.create(sandbox.CreateOptions{Template: "first:default"})
	w.holds(fromSnap.ID, "one", true)
	_, err = w.Rollback(bg, forks[0].Sandbox.ID, "first")
	wantKind(t, err, sandbox.InvalidRequest, "is not of")
	w.clean()
}

func TestTemplateRemovedUnderItsSandboxes(t *testing.T) {
	w := newMachine(t).start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	w.write(sb.ID, "v")
	must(t, w.DeleteTemplate(bg, "base"))
	_, err := w.Create(bg, sandbox.CreateOptions{Timeout: time.Hour})
	wantKind(t, err, sandbox.NotFound, "template")
	must(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{}))
	w.holds(sb.ID, "v", true)
	w.clean()
}

func TestBadInput(t *testing.T) {
	w := newMachine(t).start(worldOptions{})
	hour := time.Hour
	for name, c := range map[string]struct {
		o    sandbox.CreateOptions
		kind sandbox.Kind
		says string
	}{
		"unknown template": {sandbox.CreateOptions{Template: "nope", Timeout: hour}, sandbox.NotFound, "nope"},
		"no timeout":       {sandbox.CreateOptions{}, sandbox.InvalidRequest, "Timeout must be greater than 0"},
		"negative timeout": {sandbox.CreateOptions{Timeout: -1}, sandbox.InvalidRequest, "Timeout must be greater than 0"},
		"timeout for ever": {sandbox.CreateOptions{Timeout: 2 * sandbox.MaxTimeout}, sandbox.InvalidRequest, "hours"},
		"negative cpus":    {sandbox.CreateOptions{Timeout: hour, Resources: sandbox.Resources{CPUs: -1}}, sandbox.InvalidRequest, "negative"},
		"tiny memory":      {sandbox.CreateOptions{Timeout: hour, Resources: sandbox.Resources{MemoryMB: 1}}, sandbox.InvalidRequest, "64"},
		"rule of IPv6":     {sandbox.CreateOptions{Timeout: hour, Network: sandbox.Network{DenyOut: []string{"::/0"}}}, sandbox.InvalidRequest, "IPv6"},
		"rule not a range": {sandbox.CreateOptions{Timeout: hour, Network: sandbox.Network{DenyOut: []string{"example.com"}}}, sandbox.InvalidRequest, "example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := w.Create(bg, c.o)
			wantKind(t, err, c.kind, c.says)
		})
	}
	_, err := w.Get(bg, "../../etc")
	wantKind(t, err, sandbox.NotFound, "doesn't exist")
	sb := w.create(sandbox.CreateOptions{})
	_, err = w.Snapshot(bg, sb.ID, sandbox.SnapshotOptions{Name: "../x"})
	wantKind(t, err, sandbox.InvalidRequest, "template name")
	_, err = w.Snapshot(bg, sb.ID, sandbox.SnapshotOptions{Name: "BASE"})
	wantKind(t, err, sandbox.Conflict, "belongs to a template")
	w.clean()
}

func TestListFiltersAndPages(t *testing.T) {
	w := newMachine(t).start(worldOptions{})
	for i := range 5 {
		w.create(sandbox.CreateOptions{Metadata: map[string]string{"n": fmt.Sprint(i % 2)}})
	}
	var seen []string
	o := sandbox.ListOptions{Limit: 2, Ascending: true}
	for {
		p, err := w.List(bg, o)
		must(t, err)
		for _, sb := range p.Sandboxes {
			seen = append(seen, sb.ID)
		}
		if p.TotalRunning != 5 {
			t.Fatalf("total running %d", p.TotalRunning)
		}
		if p.Next == nil {
			break
		}
		o.After = *p.Next
	}
	if len(seen) != 5 {
		t.Fatalf("paged over %v", seen)
	}
	p, err := w.List(bg, sandbox.ListOptions{Metadata: map[string]string{"n": "1"}})
	must(t, err)
	if len(p.Sandboxes) != 2 {
		t.Fatalf("filter found %d", len(p.Sandboxes))
	}
	w.clean()
}

func TestDeleteAnyState(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	must(t, w.Pause(bg, sb.ID, sandbox.PauseOptions{}))
	must(t, w.Delete(bg, sb.ID))
	wantKind(t, w.Delete(bg, sb.ID), sandbox.NotFound, sb.ID)
	w.clean()
}

func TestSnapshotsBelongToTheirSpace(t *testing.T) {
	w := newMachine(t).start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	snap, err := w.Snapshot(bg, sb.ID, sandbox.SnapshotOptions{Name: "mine"})
	must(t, err)
	for _, ref := range []string{snap.ID, "mine"} {
		_, err = w.Create(bg, sandbox.CreateOptions{Space: "other", Template: ref, Timeout: time.Hour})
		wantKind(t, err, sandbox.NotFound, ref)
	}
	list, _, err := w.Templates(bg, sandbox.TemplateListOptions{Space: "other", Snapshots: true})
	must(t, err)
	if len(list) != 0 {
		t.Fatalf("another space lists %v", list)
	}
	w.create(sandbox.CreateOptions{Space: "other"}) // the operator's templates are everyone's
	w.clean()
}

func TestDeleteThatFailsIsTriedAgain(t *testing.T) {
	m := newMachine(t)
	w := m.start(worldOptions{})
	sb := w.create(sandbox.CreateOptions{})
	m.fail["kill"] = errors.New("busy")
	if err := w.Delete(bg, sb.ID); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Fatalf("got %v", err)
	}
	w.mu.RLock()
	armed := w.sandboxes[sb.ID].timer != nil
	w.mu.RUnlock()
	if !armed {
		t.Fatal("nothing will try again")
	}
	w.expire(sb.ID) // what the timer does
	_, err := w.Get(bg, sb.ID)
	wantKind(t, err, sandbox.NotFound, sb.ID)
	w.clean()
}
