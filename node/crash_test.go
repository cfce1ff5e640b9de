package node

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// Every operation is stopped dead at each of its steps, as by kill -9, once with
// the machine left as it is and once with a reboot; then a new daemon starts.
// Whatever was acknowledged before is there, nothing is stuck, nothing leaks.
func TestKillAtEveryStep(t *testing.T) {
	ctx := context.Background()
	ops := map[string]struct {
		before func(w *world, id string)
		op     func(w *world, id string) error
		memory bool // whether memory must survive without a reboot
		always bool // and even with one
	}{
		"create": {op: func(w *world, id string) error {
			_, err := w.Create(ctx, sandbox.CreateOptions{Timeout: time.Hour, Secure: true})
			return err
		}, memory: true},
		"pause": {op: func(w *world, id string) error { return w.Pause(ctx, id, sandbox.PauseOptions{}) }, memory: true},
		"resume": {
			before: func(w *world, id string) { must(t, w.Pause(ctx, id, sandbox.PauseOptions{})) },
			op: func(w *world, id string) error {
				_, _, err := w.Connect(ctx, id, sandbox.ConnectOptions{Timeout: time.Hour})
				return err
			}, memory: true,
		},
		"snapshot": {op: func(w *world, id string) error {
			_, err := w.Snapshot(ctx, id, sandbox.SnapshotOptions{Name: "snap"})
			return err
		}, memory: true},
		"snapshot of paused": {
			before: func(w *world, id string) { must(t, w.Pause(ctx, id, sandbox.PauseOptions{})) },
			op: func(w *world, id string) error {
				_, err := w.Snapshot(ctx, id, sandbox.SnapshotOptions{})
				return err
			}, memory: true, always: true,
		},
		"fork": {op: func(w *world, id string) error {
			_, err := w.Fork(ctx, id, sandbox.ForkOptions{Count: 2, Timeout: time.Hour})
			return err
		}, memory: true},
		"rollback": {
			before: func(w *world, id string) {
				_, err := w.Snapshot(ctx, id, sandbox.SnapshotOptions{Name: "back"})
				must(t, err)
			},
			op:     func(w *world, id string) error { _, err := w.Rollback(ctx, id, "back"); return err },
			memory: true,
		},
		"delete other": {
			before: func(w *world, id string) { w.create(sandbox.CreateOptions{Metadata: map[string]string{"other": "y"}}) },
			op: func(w *world, id string) error {
				p, err := w.List(ctx, sandbox.ListOptions{Metadata: map[string]string{"other": "y"}})
				must(t, err)
				return w.Delete(ctx, p.Sandboxes[0].ID)
			}, memory: true,
		},
	}
	for name, c := range ops {
		t.Run(name, func(t *testing.T) {
			// A first run counts the steps.
			var steps []string
			{
				m := newMachine(t)
				var record atomic.Bool
				var mu sync.Mutex
				w := m.start(worldOptions{fault: func(s string) {
					if record.Load() {
						mu.Lock()
						steps = append(steps, s)
						mu.Unlock()
					}
				}})
				sb := w.create(sandbox.CreateOptions{})
				w.write(sb.ID, "v1")
				if c.before != nil {
					c.before(w, sb.ID)
				}
				record.Store(true)
				must(t, c.op(w, sb.ID))
				record.Store(false)
				w.holds(sb.ID, "v1", true)
				w.clean()
			}
			if len(steps) == 0 {
				t.Fatalf("%s has steps %v", name, steps)
			}
			for i, step := range steps {
				for _, reboot := range []bool{false, true} {
					t.Run(fmt.Sprintf("%d %s reboot=%v", i, step, reboot), func(t *testing.T) {
						m := newMachine(t)
						var count atomic.Int64
						var armed atomic.Bool
						there := make(chan struct{})
						w := m.start(worldOptions{fault: func(string) {
							if !armed.Load() {
								return
							}
							if c := int(count.Add(1)); c > i {
								if c == i+1 {
									close(there)
								}
								select {} // the daemon is gone
							}
						}})
						sb := w.create(sandbox.CreateOptions{})
						w.write(sb.ID, "v1")
						if c.before != nil {
							c.before(w, sb.ID)
						}
						armed.Store(true)
						go func() { _ = c.op(w, sb.ID) }()
						select {
						case <-there:
						case <-time.After(30 * time.Second):
							t.Fatal("the step was not reached")
						}
						w.crash()
						if reboot {
							m.reboot()
						}
						w = m.start(worldOptions{})
						w.holds(sb.ID, "v1", c.memory && (!reboot || c.always))
						w.clean()
					})
				}
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
