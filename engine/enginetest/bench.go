package enginetest

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/engine"
)

// Bench measures what the suite's promises cost. Its unit is ms of one operation;
// "answer" counts until pid 1 inside has answered a request.
func Bench(b *testing.B, open func(t testing.TB, dir string) engine.Engine) {
	for _, mb := range []int{0, 20, 200} {
		b.Run(fmt.Sprintf("Memory%dMB", mb), func(b *testing.B) { benchMemory(b, open, mb) })
	}
	b.Run("Start", func(b *testing.B) { benchStart(b, open) })
	b.Run("Restore20AtOnce", func(b *testing.B) { benchBurst(b, open) })
}

// watch sums up the time of one kind of operation.
type watch struct {
	name string
	sum  time.Duration
	n    int
}

func (t *watch) time(f func()) {
	began := time.Now()
	f()
	t.sum += time.Since(began)
	t.n++
}

func (t *watch) report(b *testing.B) {
	b.ReportMetric(float64(t.sum.Microseconds())/1000/float64(t.n), t.name)
}

// benchMemory takes an instance with mb MiB of random memory round and round.
func benchMemory(b *testing.B, open func(testing.TB, string) engine.Engine, mb int) {
	w := newWorld(b, open)
	g := w.start(w.spec(w.root()))
	g.ask("/fill", "mb", fmt.Sprint(mb))
	save, kill, restore, answer := &watch{name: "save-ms"}, &watch{name: "kill-ms"}, &watch{name: "restore-ms"}, &watch{name: "answer-ms"}
	cpu := &watch{name: "restored-cpu-ms"}
	for b.Loop() {
		dir := b.TempDir()
		save.time(func() {
			if _, err := w.Checkpoint(w.Context(), g.Spec.ID, dir); err != nil {
				b.Fatal(err)
			}
		})
		kill.time(func() {
			if err := w.Kill(w.Context(), g.Spec.ID); err != nil {
				b.Fatal(err)
			}
		})
		refresh(w, g.Spec)
		answer.time(func() {
			restore.time(func() {
				if _, err := w.Restore(w.Context(), g.Spec, dir); err != nil {
					b.Fatal(err)
				}
			})
			if s, err := w.Stats(w.Context(), g.Spec.ID); err == nil {
				cpu.sum += s.CPUTime
				cpu.n++
			}
			eventually(b, "pid 1 answers", func() error { _, err := g.try("/count"); return err })
		})
		os.RemoveAll(dir)
	}
	for _, t := range []*watch{save, kill, restore, answer, cpu} {
		t.report(b)
	}
}

func benchStart(b *testing.B, open func(testing.TB, string) engine.Engine) {
	w := newWorld(b, open)
	s := w.spec(w.root())
	start, answer := &watch{name: "start-ms"}, &watch{name: "answer-ms"}
	for b.Loop() {
		refresh(w, s)
		answer.time(func() {
			var in engine.Instance
			var err error
			start.time(func() { in, err = w.Start(w.Context(), s) })
			if err != nil {
				b.Fatal(err)
			}
			w.guest(s, in)
		})
		if err := w.Kill(w.Context(), s.ID); err != nil {
			b.Fatal(err)
		}
	}
	start.report(b)
	answer.report(b)
}

func benchBurst(b *testing.B, open func(testing.TB, string) engine.Engine) {
	w := newWorld(b, open)
	g := w.start(w.spec(w.root()))
	dir, _ := w.checkpoint(g)
	const n = 20
	specs := make([]engine.Spec, n)
	for i := range specs {
		specs[i] = w.spec(copyTree(w, g.Root))
	}
	all, answers := &watch{name: "all-ms"}, &watch{name: "answers-ms"}
	for b.Loop() {
		for i := range specs {
			refresh(w, specs[i])
		}
		started := make([]engine.Instance, n)
		errs := make([]error, n)
		var wg sync.WaitGroup
		answers.time(func() {
			all.time(func() {
				for i := range specs {
					wg.Go(func() { started[i], errs[i] = w.Restore(w.Context(), specs[i], dir) })
				}
				wg.Wait()
			})
			for i := range specs {
				if errs[i] != nil {
					b.Fatal(errs[i])
				}
				w.guest(specs[i], started[i])
			}
		})
		for i := range specs {
			wg.Go(func() { errs[i] = w.Kill(w.Context(), specs[i].ID) })
		}
		wg.Wait()
	}
	all.report(b)
	answers.report(b)
}
