package enginetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-run/holdfast/engine"
)

func testStart(w *world) {
	c := w.Capabilities()
	if c.Engine == "" || c.Version == "" || c.Platform == "" || c.Runtime == "" || c.Missing == nil {
		w.Errorf("capabilities are %+v", c)
	}
	s := w.spec(w.root())
	s.Args = append(s.Args, "one", "two words")
	if err := os.WriteFile(filepath.Join(s.Share, "note"), []byte("from outside"), 0o644); err != nil {
		w.Fatal(err)
	}
	g := w.start(s)
	if g.Runtime() != c.Runtime {
		w.Errorf("runs on %s, want the current runtime %s", g.Runtime(), c.Runtime)
	}
	for _, x := range []struct{ path, arg, want string }{
		{"/hostname", "", "box"},
		{"/env", "GREETING", "hello"},
		{"/args", "", "/bin/pid1 one two words"},
		{"/read", engine.ShareMount + "/note", "from outside"},
	} {
		if got := g.ask(x.path, "name", x.arg, "path", x.arg); got != x.want {
			w.Errorf("%s %s is %q, want %q", x.path, x.arg, got, x.want)
		}
	}
	g.ask("/write", "path", engine.ShareMount+"/answer", "data", "from inside")
	if b, err := os.ReadFile(filepath.Join(s.Share, "answer")); err != nil || string(b) != "from inside" {
		w.Errorf("share holds %q, %v", b, err)
	}
	g.ask("/write", "path", "/file", "data", "written")
	if b, err := os.ReadFile(filepath.Join(s.Root, "file")); err != nil || string(b) != "written" {
		w.Errorf("root holds %q, %v", b, err)
	}
	if list, err := w.List(w.Context()); err != nil || !slices.Equal(list, []string{s.ID}) {
		w.Errorf("list is %v, %v; want only %s", list, err, s.ID)
	}
}

// testStartBad: on error nothing is left behind.
func testStartBad(w *world) {
	root := w.root()
	for name, spoil := range map[string]func(*engine.Spec){
		"id empty":      func(s *engine.Spec) { s.ID = "" },
		"id upper":      func(s *engine.Spec) { s.ID = "Aa" },
		"id path":       func(s *engine.Spec) { s.ID = "../x" },
		"id long":       func(s *engine.Spec) { s.ID = strings.Repeat("a", 65) },
		"root missing":  func(s *engine.Spec) { s.Root = filepath.Join(s.Root, "missing") },
		"root relative": func(s *engine.Spec) { s.Root = "root" },
		"root file":     func(s *engine.Spec) { s.Root = filepath.Join(s.Root, "bin/pid1") },
		"share missing": func(s *engine.Spec) { s.Share = "/nowhere/at/all" },
		"netns missing": func(s *engine.Spec) { s.NetNS = "/run/netns/hf-missing" },
		"netns no ns":   func(s *engine.Spec) { s.NetNS = "/etc/hostname" },
		"no args":       func(s *engine.Spec) { s.Args = nil },
		"args relative": func(s *engine.Spec) { s.Args = []string{"pid1"} },
		"args missing":  func(s *engine.Spec) { s.Args = []string{"/bin/missing"} },
		"negative":      func(s *engine.Spec) { s.PIDs = -1 },
		"runtime":       func(s *engine.Spec) { s.Runtime = strings.Repeat("0", 64) },
	} {
		s := w.spec(root)
		spoil(&s)
		in, err := w.Start(w.Context(), s)
		if err == nil {
			w.Errorf("%s: started as %+v", name, in)
		}
		if list, err := w.List(w.Context()); err != nil || len(list) > 0 {
			w.Errorf("%s: left behind: %v, %v", name, list, err)
		}
	}
	// A canceled start leaves nothing either.
	ctx, cancel := context.WithCancel(w.Context())
	cancel()
	if _, err := w.Start(ctx, w.spec(root)); err == nil {
		w.Error("started although canceled")
	}
	if list, _ := w.List(w.Context()); len(list) > 0 {
		w.Errorf("left behind by a canceled start: %v", list)
	}
}

func testExists(w *world) {
	s := w.spec(w.root())
	g := w.start(s)
	if _, err := w.Start(w.Context(), s); !errors.Is(err, engine.ErrExists) {
		w.Errorf("second start: %v, want ErrExists", err)
	}
	g.ask("/count") // the first is unharmed
}

func testUnknown(w *world) {
	ctx, id := w.Context(), "nobody"
	for name, call := range map[string]func() error{
		"checkpoint": func() error { _, err := w.Checkpoint(ctx, id, w.TempDir()); return err },
		"thaw":       func() error { return w.Thaw(ctx, id) },
		"adopt":      func() error { _, err := w.Adopt(ctx, id); return err },
		"update":     func() error { return w.Update(ctx, id, engine.Resources{}) },
		"stats":      func() error { _, err := w.Stats(ctx, id); return err },
	} {
		if err := call(); !errors.Is(err, engine.ErrNotFound) {
			w.Errorf("%s: %v, want ErrNotFound", name, err)
		}
	}
	if err := w.Kill(ctx, id); err != nil {
		w.Errorf("kill: %v, want nil", err)
	}
}

// testFiles: what the outside prepared is what the inside sees, and no tmpfs hides
// /tmp.
func testFiles(w *world) {
	s := w.spec(w.root())
	if err := os.WriteFile(filepath.Join(s.Root, "tmp/here"), []byte("yes"), 0o644); err != nil {
		w.Fatal(err)
	}
	g := w.start(s)
	if got := g.ask("/read", "path", "/tmp/here"); got != "yes" {
		w.Errorf("/tmp/here is %q", got)
	}
	if status := g.ask("/read", "path", "/proc/self/status"); !strings.Contains(status, "NoNewPrivs:\t0") {
		w.Errorf("set-user-id programs cannot work:\n%s", status)
	}
}

func testKill(w *world) {
	g := w.start(w.spec(w.root()))
	for range 2 { // idempotent
		if err := w.Kill(w.Context(), g.Spec.ID); err != nil {
			w.Fatalf("kill: %v", err)
		}
	}
	if alive(g.PID()) {
		w.Errorf("process %d is still there", g.PID())
	}
	if _, err := w.Stats(w.Context(), g.Spec.ID); !errors.Is(err, engine.ErrNotFound) {
		w.Errorf("stats after kill: %v, want ErrNotFound", err)
	}
	w.noExit()
	// Its id, root and network can be used again.
	refresh(w, g.Spec)
	w.start(g.Spec)
}

func testEnded(w *world) {
	g := w.start(w.spec(w.root()))
	g.ask("/exit", "code", "0")
	x := w.exit()
	if x.ID != g.Spec.ID || x.Reason != engine.ExitEnded || x.Detail == "" || x.Time.IsZero() {
		w.Errorf("exit is %+v", x)
	}
	// What is left is listed until it is killed.
	if list, _ := w.List(w.Context()); !slices.Contains(list, g.Spec.ID) {
		w.Errorf("list is %v without %s", list, g.Spec.ID)
	}
	if _, err := w.Stats(w.Context(), g.Spec.ID); !errors.Is(err, engine.ErrNotFound) {
		w.Errorf("stats of an ended one: %v, want ErrNotFound", err)
	}
	if _, err := w.Checkpoint(w.Context(), g.Spec.ID, w.TempDir()); !errors.Is(err, engine.ErrNotFound) {
		w.Errorf("checkpoint of an ended one: %v, want ErrNotFound", err)
	}
	// A dead one does not stand in the way of a new start.
	refresh(w, g.Spec)
	w.start(g.Spec)
}

func testFailed(w *world) {
	g := w.start(w.spec(w.root()))
	g.ask("/exit", "code", "3")
	if x := w.exit(); x.Reason != engine.ExitCrashed || !strings.Contains(x.Detail, "3") {
		w.Errorf("exit is %+v, want crashed with status 3", x)
	}
}

func testSandboxKilled(w *world) {
	g := w.start(w.spec(w.root()))
	if err := syscall.Kill(g.PID(), syscall.SIGKILL); err != nil {
		w.Fatal(err)
	}
	if x := w.exit(); x.ID != g.Spec.ID || x.Reason != engine.ExitCrashed || !strings.Contains(x.Detail, "SIGKILL") {
		w.Errorf("exit is %+v, want crashed by SIGKILL", x)
	}
}

func testAdopt(w *world) {
	g := w.start(w.spec(w.root()))
	before := g.count()
	w.reopen()
	if _, err := w.Stats(w.Context(), g.Spec.ID); !errors.Is(err, engine.ErrNotFound) {
		w.Errorf("stats before adopt: %v, want ErrNotFound", err)
	}
	if list, _ := w.List(w.Context()); !slices.Equal(list, []string{g.Spec.ID}) {
		w.Errorf("list is %v, want %s", list, g.Spec.ID)
	}
	in, err := w.Adopt(w.Context(), g.Spec.ID)
	if err != nil {
		w.Fatalf("adopt: %v", err)
	}
	if in.PID != g.PID() || in.Runtime != g.Runtime() || !in.Started.Equal(g.Instance.Started) {
		w.Errorf("adopted %+v, want %+v", in, g.Instance)
	}
	if _, err := w.Adopt(w.Context(), g.Spec.ID); err != nil {
		w.Errorf("adopt again: %v", err)
	}
	if after := g.count(); after < before {
		w.Errorf("count went from %d to %d", before, after)
	}
	if _, err := w.Stats(w.Context(), g.Spec.ID); err != nil {
		w.Errorf("stats: %v", err)
	}
	g.ask("/exit", "code", "0")
	if x := w.exit(); x.ID != g.Spec.ID || x.Reason != engine.ExitEnded {
		w.Errorf("exit of an adopted one is %+v", x)
	}
}

func testAdoptDead(w *world) {
	g := w.start(w.spec(w.root()))
	if err := w.Close(); err != nil {
		w.Fatal(err)
	}
	if err := syscall.Kill(g.PID(), syscall.SIGKILL); err != nil {
		w.Fatal(err)
	}
	eventually(w.TB, "process is gone", func() error {
		if alive(g.PID()) {
			return errors.New("still there")
		}
		return nil
	})
	w.Engine = w.open(w.TB, w.dir)
	if _, err := w.Adopt(w.Context(), g.Spec.ID); !errors.Is(err, engine.ErrNotFound) {
		w.Errorf("adopt: %v, want ErrNotFound", err)
	}
	if list, _ := w.List(w.Context()); !slices.Equal(list, []string{g.Spec.ID}) {
		w.Errorf("list is %v, want the leftover %s", list, g.Spec.ID)
	}
	if err := w.Kill(w.Context(), g.Spec.ID); err != nil {
		w.Errorf("kill: %v", err)
	}
	if list, _ := w.List(w.Context()); len(list) > 0 {
		w.Errorf("list is %v after kill", list)
	}
}

// testClose: instances go on, Exits ends, nobody is blocked.
func testClose(w *world) {
	g := w.start(w.spec(w.root()))
	exits := w.Exits()
	for range 2 {
		if err := w.Close(); err != nil {
			w.Fatalf("close: %v", err)
		}
	}
	if x, ok := <-exits; ok {
		w.Errorf("exit %+v after close", x)
	}
	g.ask("/count")
	w.Engine = w.open(w.TB, w.dir)
}

// testPrint: what pid 1 prints cannot fill the disk.
func testPrint(w *world) {
	g := w.start(w.spec(w.root()))
	g.ask("/print", "kb", "4096")
	eventually(w.TB, "log is cut", func() error {
		var total int64
		err := filepath.Walk(w.dir, func(_ string, fi os.FileInfo, err error) error {
			if err == nil && fi.Mode().IsRegular() {
				total += fi.Size()
			}
			return nil
		})
		if err == nil && total > 2<<20 {
			err = fmt.Errorf("%d bytes in the engine's folder", total)
		}
		return err
	})
	g.ask("/print", "kb", "1") // still works
}

// exit waits for the next Exit.
func (w *world) exit() engine.Exit {
	w.Helper()
	select {
	case x, ok := <-w.Exits():
		if !ok {
			w.Fatal("exits were closed")
		}
		return x
	case <-time.After(patience):
		w.Fatal("no exit was reported")
	}
	return engine.Exit{}
}

// noExit checks that no Exit is waiting to be received.
func (w *world) noExit() {
	w.Helper()
	select {
	case x := <-w.Exits():
		w.Errorf("unasked exit %+v", x)
	case <-time.After(50 * time.Millisecond):
	}
}

// alive tells whether a process runs, zombies excluded.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(b), ") ")
	return after != "" && after[0] != 'Z' && after[0] != 'X'
}
