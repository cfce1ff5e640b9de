package gvisor

import (
	"fmt"
	"hash/fnv"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/engine/enginetest"
	"github.com/holdfast-run/holdfast/runtimes"
)

// sharedStore is unpacked once for all tests of this package.
var sharedStore *runtimes.Store

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "hf-runtimes-")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if sharedStore, err = runtimes.Open(dir); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

// opened are the folders of engines seen so far.
var opened sync.Map

func open(t testing.TB, dir string) *Engine {
	t.Helper()
	h := fnv.New32a()
	h.Write([]byte(dir))
	parent := fmt.Sprintf("holdfast-test/%08x", h.Sum32())
	e, err := New(t.Context(), Options{
		Dir:          filepath.Join(dir, "e"),
		Runtimes:     sharedStore,
		CgroupParent: parent,
		Logger:       slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, again := opened.LoadOrStore(dir, true); !again {
		// Registered by the first engine of a test, so it runs last: nothing of the
		// instances and spares of any of them may be left then.
		t.Cleanup(func() {
			if err := e.groups.Remove(); err != nil {
				t.Errorf("remove the test's cgroups: %v", err)
			}
		})
	}
	return e
}

func TestConformance(t *testing.T) {
	enginetest.Run(t, func(t testing.TB, dir string) engine.Engine { return open(t, dir) })
}

func BenchmarkEngine(b *testing.B) {
	enginetest.Bench(b, func(t testing.TB, dir string) engine.Engine { return open(t, dir) })
}
