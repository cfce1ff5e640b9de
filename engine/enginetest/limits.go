package enginetest

import (
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-run/holdfast/engine"
)

// enforced fails the test when this machine does not enforce a limit: a machine
// that runs the suite has to.
func enforced(w *world, limit string) {
	w.Helper()
	if why, missing := w.Capabilities().Missing[limit]; missing {
		w.Fatalf("the %s limit is not enforced on this machine: %s", limit, why)
	}
}

// testLimitCPU: with a quota of a fifth of a core, busy threads get no more, judged
// by the engine's own count over a window.
func testLimitCPU(w *world) {
	enforced(w, "cpu")
	s := w.spec(w.root())
	s.CPUMillis = 200
	g := w.start(s)
	g.ask("/burn", "n", "2")
	from, err := w.Stats(w.Context(), s.ID)
	if err != nil {
		w.Fatal(err)
	}
	var to engine.Stats
	eventually(w.TB, "ten periods of cpu time are used", func() error {
		to, err = w.Stats(w.Context(), s.ID)
		if err == nil && to.CPUTime-from.CPUTime < 200*time.Millisecond {
			err = errTooFew
		}
		return err
	})
	if used, passed := to.CPUTime-from.CPUTime, to.Time.Sub(from.Time); used > passed*3/10 {
		w.Errorf("used %s of cpu time within %s, the limit is a fifth", used, passed)
	}
}

const errTooFew = constError("too little yet")

type constError string

func (e constError) Error() string { return string(e) }

// testLimitMemory: beyond its limit the instance ends, and the reason is known.
func testLimitMemory(w *world) {
	enforced(w, "memory")
	s := w.spec(w.root())
	s.MemoryBytes = 64 << 20
	g := w.start(s)
	g.ask("/fill", "mb", "32") // within
	overfill(w, g)
	if x := w.exit(); x.ID != s.ID || x.Reason != engine.ExitOOM || x.Detail == "" {
		w.Errorf("exit is %+v, want oom", x)
	}
}

// overfill asks for far more memory than allowed, not waiting for an answer: the
// connection of an instance that ends is not closed.
func overfill(w *world, g *guest) {
	go func() {
		if _, err := g.try("/fill", "mb", "1024"); err == nil {
			w.Error("filled 1 GiB beyond the limit")
		}
	}()
	w.Cleanup(g.client.CloseIdleConnections)
}

// testLimitPIDs: the number of tasks is bounded, whatever the inside does.
func testLimitPIDs(w *world) {
	enforced(w, "pids")
	s := w.spec(w.root())
	s.PIDs = 32
	g := w.start(s)
	out, err := g.try("/spawn", "n", "500")
	if err == nil {
		n, _ := strconv.Atoi(strings.Fields(out)[0])
		if n >= 500 {
			w.Errorf("started %d processes within a limit of 32 tasks", n)
		}
		st, err := w.Stats(w.Context(), s.ID)
		if err == nil && st.PIDs > 500 {
			w.Errorf("%d tasks on the host within a limit of 32", st.PIDs)
		}
		return
	}
	w.Logf("the fork bomb ended the instance: %v", err)
	if x := w.exit(); x.ID != s.ID || x.Reason != engine.ExitCrashed {
		w.Errorf("exit is %+v, want crashed", x)
	}
}

// testUpdate: limits of a running instance can be narrowed and widened.
func testUpdate(w *world) {
	enforced(w, "memory")
	g := w.start(w.spec(w.root()))
	if err := w.Update(w.Context(), g.Spec.ID, engine.Resources{MemoryBytes: 512 << 20, CPUMillis: 500, PIDs: 1000}); err != nil {
		w.Fatalf("update: %v", err)
	}
	g.ask("/fill", "mb", "64")
	if err := w.Update(w.Context(), g.Spec.ID, engine.Resources{MemoryBytes: 1 << 30}); err != nil {
		w.Fatalf("widen: %v", err)
	}
	if err := w.Update(w.Context(), g.Spec.ID, engine.Resources{MemoryBytes: 96 << 20}); err != nil {
		w.Fatalf("narrow: %v", err)
	}
	overfill(w, g)
	if x := w.exit(); x.Reason != engine.ExitOOM {
		w.Errorf("exit is %+v, want oom", x)
	}
}

func testStats(w *world) {
	g := w.start(w.spec(w.root()))
	a, err := w.Stats(w.Context(), g.Spec.ID)
	if err != nil {
		w.Fatalf("stats: %v", err)
	}
	g.ask("/fill", "mb", "40")
	b, err := w.Stats(w.Context(), g.Spec.ID)
	if err != nil {
		w.Fatalf("stats: %v", err)
	}
	if a.CPUTime <= 0 || b.CPUTime < a.CPUTime || b.MemoryBytes < a.MemoryBytes+30<<20 ||
		b.MemoryPeak < b.MemoryBytes || b.PIDs < 3 || b.OOMKills != 0 || b.Time.Before(a.Time) {
		w.Errorf("stats went from %+v to %+v", a, b)
	}
}
