package bench

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
)

// worker.py runs inside: it dirties memory with random bytes, can say at any
// time what they hash to, and notices when it stood still.
//
//go:embed worker.py
var workerSource []byte

const workerPort = 8765

// worker is a sandbox with worker.py running in it.
type worker struct {
	*client.Sandbox
	http *http.Client
	hash string // of the random bytes it holds
}

// startWorker makes a sandbox, starts the worker and has it dirty megabytes of
// memory and write files megabytes of files, which are on disk when it returns.
func (b *run) startWorker(ctx context.Context, megabytes, files int) (*worker, error) {
	// Paused and woken by traffic, as the lifecycle of an agent's sandbox is.
	sb, err := b.c.Create(ctx, v1.CreateRequest{
		Template: b.Template, TimeoutSeconds: 3600, OnTimeout: "pause", Metadata: labels,
	})
	if err != nil {
		return nil, err
	}
	w := &worker{Sandbox: sb, http: sb.HTTP(workerPort)}
	if err := w.start(ctx, megabytes, files); err != nil {
		b.remove(ctx, sb)
		return nil, err
	}
	return w, nil
}

func (w *worker) start(ctx context.Context, megabytes, files int) error {
	if err := w.Files("").Write(ctx, "/tmp/worker.py", bytes.NewReader(workerSource)); err != nil {
		return err
	}
	// The command's stream ends with a pause; the process goes on.
	cmd := w.Command(context.WithoutCancel(ctx), "python3", "/tmp/worker.py", strconv.Itoa(workerPort))
	if err := cmd.Start(); err != nil {
		return err
	}
	deadline := time.Now().Add(time.Minute)
	for {
		_, err := w.ask(ctx, "/hash")
		if err == nil {
			break
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return fmt.Errorf("worker in sandbox %s does not answer: %w", w.ID, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if files > 0 {
		if _, err := w.ask(ctx, "/files?megabytes="+strconv.Itoa(files)); err != nil {
			return err
		}
	}
	return w.dirty(ctx, megabytes)
}

// dirty fills that much memory with new random bytes.
func (w *worker) dirty(ctx context.Context, megabytes int) error {
	hash, err := w.ask(ctx, "/dirty?megabytes="+strconv.Itoa(megabytes))
	w.hash = hash
	return err
}

// check fails unless the worker, or its copy in another sandbox, still holds
// the bytes that it was filled with.
func (w *worker) check(ctx context.Context) error {
	hash, err := w.ask(ctx, "/hash")
	if err != nil {
		return err
	}
	if hash != w.hash {
		return fmt.Errorf("memory of sandbox %s is not what it was: hash %s, was %s", w.ID, hash, w.hash)
	}
	return nil
}

// copyIn gives the worker's copy in a sandbox made of w's memory.
func (w *worker) copyIn(sb *client.Sandbox) *worker {
	return &worker{Sandbox: sb, http: sb.HTTP(workerPort), hash: w.hash}
}

func (w *worker) ask(ctx context.Context, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://worker"+path, nil)
	if err != nil {
		return "", err
	}
	res, err := w.http.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("worker in sandbox %s answered %s: %s", w.ID, res.Status, body)
	}
	return strings.TrimSpace(string(body)), nil
}

// labels mark the benchmark's sandboxes, so that those of an interrupted run are
// found: holdfast ps --metadata holdfast=bench.
var labels = map[string]string{"holdfast": "bench"}

// create makes a sandbox that ends by itself when the benchmark is interrupted.
// fresh makes it from the template's image although a ready one is in the pool.
func (b *run) create(ctx context.Context, fresh bool) (*client.Sandbox, error) {
	return b.c.Create(ctx, v1.CreateRequest{
		Template: b.Template, TimeoutSeconds: 3600, OnTimeout: "kill", NoPool: fresh,
		Metadata: labels,
	})
}

// remove deletes a sandbox even if the run was interrupted.
func (b *run) remove(ctx context.Context, boxes ...*client.Sandbox) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for _, sb := range boxes {
		if sb != nil {
			_ = sb.Delete(ctx) // it ends at its deadline in any case
		}
	}
}
