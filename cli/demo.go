package cli

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
)

// demoCounter counts in memory and tells the count to whoever asks its port.
//
//go:embed demo_counter.py
var demoCounter string

// demoPort is the counter's.
const demoPort = 8000

// demoLabel marks the sandboxes of demonstrations, so that a broken off one is
// cleaned up by the next.
var demoLabel = map[string]string{"holdfast": "demo"}

// demonstration shows the main job, step by step, with the time each took.
type demonstration struct {
	a    *app
	c    *client.Client
	sb   *client.Sandbox
	undo []func(context.Context) error
	last count // what the counter said last
}

// count is the counter's answer.
type count struct {
	Count int `json:"count"`
	PID   int `json:"pid"`
}

func (a *app) demo(ctx context.Context, c *client.Client) (err error) {
	d := &demonstration{a: a, c: c}
	fmt.Fprintln(a.out, "\nWhat a sandbox keeps:")
	if err := d.clean(ctx); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		for i := len(d.undo) - 1; i >= 0; i-- {
			err = errors.Join(err, d.undo[i](ctx))
		}
	}()
	for _, step := range []func(context.Context) (string, error){
		d.open, d.install, d.write, d.count, d.pause, d.wake, d.look, d.snapshot,
	} {
		start := time.Now()
		said, err := step(ctx)
		if err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		fmt.Fprintf(a.out, "  %8s  %s\n", took(time.Since(start)), said)
	}
	return nil
}

func took(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// clean removes what an interrupted demonstration left.
func (d *demonstration) clean(ctx context.Context) error {
	old, err := gather(d.c.List(ctx, client.ListOptions{Metadata: demoLabel}))
	if err != nil {
		return err
	}
	for _, sb := range old {
		if err := sb.Delete(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (d *demonstration) open(ctx context.Context) (string, error) {
	sb, err := d.c.Create(ctx, v1.CreateRequest{Metadata: demoLabel, TimeoutSeconds: time.Hour.Seconds()})
	if err != nil {
		return "", err
	}
	d.sb = sb
	d.undo = append(d.undo, sb.Delete)
	return "opened sandbox " + shortID(sb.ID), nil
}

// offlinePackage builds a package inside and installs it, where no mirror answers.
const offlinePackage = `set -e
d=$(mktemp -d); mkdir -p $d/DEBIAN $d/usr/local/bin
printf 'Package: keepsake\nVersion: 1\nArchitecture: all\nMaintainer: root\nDescription: shows that packages are kept\n' > $d/DEBIAN/control
printf '#!/bin/sh\necho keepsake-1\n' > $d/usr/local/bin/keepsake; chmod 755 $d $d/usr/local/bin/keepsake
dpkg-deb --build $d /tmp/keepsake.deb && dpkg -i /tmp/keepsake.deb`

// install puts a package into the sandbox: from the mirror, or one made inside.
func (d *demonstration) install(ctx context.Context) (string, error) {
	const quick = "-o Acquire::http::Timeout=10 -o Acquire::Retries=0 -o APT::Update::Error-Mode=any"
	p := d.a.progress("installing jq")
	_, err := d.root(ctx, "apt-get "+quick+" update -q && apt-get "+quick+" install -q -y --no-install-recommends jq")
	p.Done()
	if err == nil {
		return "installed a package (jq) from the Debian mirror", nil
	}
	if out, err := d.root(ctx, offlinePackage); err != nil {
		return "", fmt.Errorf("install a package: %w: %s", err, lastOf(out, 3))
	}
	return "installed a package made inside (no package mirror was reached: " + firstLine(reason(err), 80) + ")", nil
}

// reason is the last line of what a command complained.
func reason(err error) string {
	var exit *client.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return lastOf(string(exit.Stderr), 1)
	}
	return err.Error()
}

func (d *demonstration) root(ctx context.Context, script string) (string, error) {
	cmd := d.sb.Command(ctx, "/bin/sh", "-c", script)
	cmd.User = "root"
	cmd.Env = map[string]string{"DEBIAN_FRONTEND": "noninteractive"}
	out, err := cmd.Output()
	return string(out), err
}

func (d *demonstration) write(ctx context.Context) (string, error) {
	return "wrote a file", d.sb.Files("").Write(ctx, "note.txt", strings.NewReader("still here\n"))
}

func (d *demonstration) count(ctx context.Context) (string, error) {
	if err := d.sb.Files("").Write(ctx, "counter.py", strings.NewReader(demoCounter)); err != nil {
		return "", err
	}
	// It is no child of this connection: nobody waits for it.
	if err := d.sb.Command(ctx, "/bin/sh", "-c", "setsid python3 counter.py >/dev/null 2>&1 &").Run(); err != nil {
		return "", err
	}
	if err := d.until(ctx, func(n count) bool { return n.Count > 0 }); err != nil {
		return "", err
	}
	return fmt.Sprintf("started a process that counts in memory: it is at %d", d.last.Count), nil
}

// until asks the counter until its answer is as wanted.
func (d *demonstration) until(ctx context.Context, enough func(count) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		n, err := ask(ctx, d.sb)
		if err == nil && enough(n) {
			d.last = n
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the counter in %s does not answer: %w", shortID(d.sb.ID), errors.Join(ctx.Err(), err))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// ask sends one request to the counter, through the gateway.
func ask(ctx context.Context, sb *client.Sandbox) (count, error) {
	var n count
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://counter/", nil)
	if err != nil {
		return n, err
	}
	res, err := sb.HTTP(demoPort).Do(req)
	if err != nil {
		return n, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 4096))
	if err != nil {
		return n, err
	}
	if err := json.Unmarshal(body, &n); err != nil {
		return n, fmt.Errorf("the counter answered %s: %w", res.Status, err)
	}
	return n, nil
}

func (d *demonstration) pause(ctx context.Context) (string, error) {
	if err := d.until(ctx, func(count) bool { return true }); err != nil {
		return "", err
	}
	if err := d.sb.Pause(ctx, false); err != nil {
		return "", err
	}
	i, err := d.c.Inspect(ctx, d.sb.ID)
	if err != nil {
		return "", err
	}
	if i.Host == nil {
		return "paused it", nil
	}
	return fmt.Sprintf("paused it at %d: %d processes and %s of memory on the host, %s on disk",
		d.last.Count, i.Host.Tasks, size(i.Host.MemoryBytes), size(i.Host.ImageBytes)), nil
}

func (d *demonstration) wake(ctx context.Context) (string, error) {
	n, err := ask(ctx, d.sb)
	if err != nil {
		return "", err
	}
	if n.PID != d.last.PID || n.Count < d.last.Count {
		return "", fmt.Errorf("the counter began anew: process %d at %d, was %d at %d", n.PID, n.Count, d.last.PID, d.last.Count)
	}
	d.last = n
	return fmt.Sprintf("sent a request, which resumed it: the same process is at %d", n.Count), nil
}

func (d *demonstration) look(ctx context.Context) (string, error) {
	out, err := d.sb.Command(ctx, "/bin/sh", "-c", "cat note.txt; jq --version 2>/dev/null || keepsake").Output()
	if err != nil {
		return "", err
	}
	return "the file and the package are there: " + strings.Join(strings.Fields(string(out)), " "), nil
}

func (d *demonstration) snapshot(ctx context.Context) (string, error) {
	start := time.Now()
	t, err := d.sb.Snapshot(ctx, v1.SnapshotRequest{})
	if err != nil {
		return "", err
	}
	d.undo = append(d.undo, func(ctx context.Context) error { return d.c.DeleteSnapshot(ctx, t.ID) })
	times := []string{took(time.Since(start))}
	var ids []string
	for range 2 {
		start := time.Now()
		sb, err := d.c.Create(ctx, v1.CreateRequest{Template: t.ID, Metadata: demoLabel, TimeoutSeconds: time.Hour.Seconds()})
		if err != nil {
			return "", err
		}
		d.undo = append(d.undo, sb.Delete)
		times = append(times, took(time.Since(start)))
		n, err := ask(ctx, sb)
		if err != nil {
			return "", err
		}
		if n.PID != d.last.PID || n.Count < d.last.Count {
			return "", fmt.Errorf("the counter of sandbox %s began anew: process %d at %d", shortID(sb.ID), n.PID, n.Count)
		}
		ids = append(ids, fmt.Sprintf("%s is at %d", shortID(sb.ID), n.Count))
	}
	return fmt.Sprintf("took a snapshot (%s) and started two sandboxes from it (%s, %s): %s", times[0], times[1], times[2], strings.Join(ids, ", ")), nil
}
