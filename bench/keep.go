package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
)

// pauseAndResume, with megabytes of random memory, and files megabytes of files
// that are on disk before:
//
//	pause   from the request until the answer says that it is paused
//	resume  from a plain HTTP request to a server inside until its answer's first byte
//
// Memory is filled anew before each sample, and checked by hash after it.
func pauseAndResume(megabytes, files int) func(context.Context, *run, *measurement) error {
	return func(ctx context.Context, b *run, m *measurement) error {
		w, err := b.startWorker(ctx, megabytes, files)
		if err != nil {
			return err
		}
		defer b.remove(ctx, w.Sandbox)
		return b.each(m, func(int) error {
			if err := w.dirty(ctx, megabytes); err != nil {
				return err
			}
			start := time.Now()
			if err := w.Pause(ctx, false); err != nil {
				return err
			}
			b.add(m.names[0], since(start))
			w.http.CloseIdleConnections()
			start = time.Now()
			if _, err := w.ask(ctx, "/ping"); err != nil { // the request itself wakes it
				return err
			}
			if len(m.names) > 1 {
				b.add(m.names[1], since(start))
			}
			return w.check(ctx)
		}, nil)
	}
}

// snapshotStill: how long the sandbox stood still while a snapshot of it was
// taken, as a thread inside that looks at the clock every millisecond saw it.
// Docker's is `docker commit`, which stops a container and keeps its files only;
// its time is that of the whole command.
func snapshotStill(ctx context.Context, b *run, m *measurement) error {
	const megabytes = 20
	w, err := b.startWorker(ctx, megabytes, 0)
	if err != nil {
		return err
	}
	defer b.remove(ctx, w.Sandbox)
	var container string
	if b.Docker != nil {
		if container, err = b.Docker.start(ctx); err != nil {
			return err
		}
		defer b.Docker.remove(ctx, container)
	}
	return b.each(m, func(int) error {
		if err := w.dirty(ctx, megabytes); err != nil {
			return err
		}
		if _, err := w.ask(ctx, "/longest"); err != nil { // starts anew
			return err
		}
		snap, err := w.Snapshot(ctx, v1.SnapshotRequest{})
		if err != nil {
			return err
		}
		longest, err := w.ask(ctx, "/longest")
		if err != nil {
			return err
		}
		ms, err := strconv.ParseFloat(longest, 64)
		if err != nil {
			return fmt.Errorf("worker's answer %q: %w", longest, err)
		}
		b.add("snapshot_20mb", ms)
		if err := w.check(ctx); err != nil {
			return err
		}
		return b.c.DeleteSnapshot(ctx, snap.ID)
	}, func(int) error {
		start := time.Now()
		image, err := b.Docker.command(ctx, "commit", container)
		if err != nil {
			return err
		}
		b.addPeer("snapshot_20mb", since(start))
		return b.Docker.removeImage(ctx, image)
	})
}

// fork: from the request for ten forks of a sandbox with 20 MB of random memory
// until the answer that they run. Every fork's memory is checked.
func fork(ctx context.Context, b *run, m *measurement) error {
	const count = 10
	w, err := b.startWorker(ctx, 20, 0)
	if err != nil {
		return err
	}
	defer b.remove(ctx, w.Sandbox)
	return b.each(m, func(int) error {
		start := time.Now()
		forks, err := w.Fork(ctx, v1.ForkRequest{Count: count, TimeoutSeconds: 3600})
		took := since(start)
		defer b.remove(ctx, forks...)
		if err != nil {
			return err
		}
		if len(forks) != count {
			return fmt.Errorf("%d of %d forks were made", len(forks), count)
		}
		b.add("fork10", took)
		return checkAll(ctx, w, forks)
	}, nil)
}

func checkAll(ctx context.Context, w *worker, copies []*client.Sandbox) error {
	return together(len(copies), func(i int) error { return w.copyIn(copies[i]).check(ctx) })
}

// rollback: from the request to put a sandbox back to its snapshot until the
// answer that it runs. Memory was overwritten meanwhile, and is checked.
func rollback(ctx context.Context, b *run, m *measurement) error {
	const megabytes = 20
	w, err := b.startWorker(ctx, megabytes, 0)
	if err != nil {
		return err
	}
	defer b.remove(ctx, w.Sandbox)
	then := w.hash
	snap, err := w.Snapshot(ctx, v1.SnapshotRequest{})
	if err != nil {
		return err
	}
	defer func() {
		b.remove(ctx, w.Sandbox)
		_ = b.c.DeleteSnapshot(context.WithoutCancel(ctx), snap.ID) // nothing more can be done about it
	}()
	return b.each(m, func(int) error {
		if err := w.dirty(ctx, megabytes); err != nil {
			return err
		}
		start := time.Now()
		if err := w.Rollback(ctx, snap.ID); err != nil {
			return err
		}
		b.add("rollback", since(start))
		w.http.CloseIdleConnections()
		w.hash = then
		return w.check(ctx)
	}, nil)
}
