package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
	"github.com/holdfast-run/holdfast/runtimes"
)

// drivers are the resident programs that start and steer instances: one for each
// runtime in use, begun when first needed. They hold no state: one that died is
// begun anew with the next call.
type drivers struct {
	lock *os.File

	mu     sync.Mutex
	byHash map[string]*driver
	closed bool
}

// lockTimeout bounds the wait for an earlier engine and its drivers to be gone.
const lockTimeout = 10 * time.Second

// openDrivers takes the folder's lock. Every driver holds it too, so an engine
// begins only when the drivers of the one before have ended: what they had under
// way no longer changes.
func openDrivers(dir string) (*drivers, error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(lockTimeout)
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return &drivers{lock: f, byHash: map[string]*driver{}}, nil
		}
		if err != unix.EWOULDBLOCK || time.Now().After(deadline) {
			f.Close()
			return nil, fmt.Errorf("another engine uses %s: %w; stop it first", dir, err)
		}
		time.Sleep(time.Millisecond)
	}
}

// get gives the driver of a runtime, starting it if none is alive.
func (d *drivers) get(r runtimes.Runtime) (*driver, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errors.New("the engine is closed")
	}
	if have := d.byHash[r.SHA256]; have != nil {
		select {
		case <-have.ended:
		default:
			return have, nil
		}
	}
	fresh, err := startDriver(r, d.lock)
	if err != nil {
		return nil, err
	}
	d.byHash[r.SHA256] = fresh
	return fresh, nil
}

// close ends all drivers and waits for their ends.
func (d *drivers) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	for _, have := range d.byHash {
		have.conn.Close()
		<-have.ended
	}
	d.lock.Close()
}

// driver is one resident program.
type driver struct {
	cmd   *exec.Cmd
	conn  net.Conn
	ended chan struct{} // closed when the process has ended

	writing sync.Mutex
	enc     *json.Encoder

	mu      sync.Mutex
	seq     uint64
	waiting map[uint64]chan wire.Reply
	said    tailBuffer // its standard error
}

func startDriver(r runtimes.Runtime, lock *os.File) (*driver, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start driver: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "driver"), os.NewFile(uintptr(fds[1]), "engine")
	defer theirs.Close()
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		return nil, fmt.Errorf("start driver: %w", err)
	}
	d := &driver{
		cmd:     exec.Command(r.Path, "driver"),
		conn:    conn,
		ended:   make(chan struct{}),
		enc:     json.NewEncoder(conn),
		waiting: map[uint64]chan wire.Reply{},
	}
	d.cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	d.cmd.ExtraFiles = []*os.File{theirs, lock}
	d.cmd.Stderr = &d.said
	// A session of its own: the terminal's signals end the daemon, which ends it.
	d.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		conn.Close()
		return nil, fmt.Errorf("start driver: %w", err)
	}
	go d.listen()
	return d, nil
}

// listen hands replies to who waits for them, until the driver ends.
func (d *driver) listen() {
	dec := json.NewDecoder(d.conn)
	for {
		var r wire.Reply
		if dec.Decode(&r) != nil {
			break
		}
		d.mu.Lock()
		ch := d.waiting[r.Seq]
		delete(d.waiting, r.Seq)
		d.mu.Unlock()
		if ch != nil {
			ch <- r
		}
	}
	d.conn.Close()
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
	close(d.ended)
}

// call asks the driver and waits for its answer. When the context ends it gives
// up, but the driver goes on.
func (d *driver) call(ctx context.Context, r wire.Request) (wire.Reply, error) {
	ch := make(chan wire.Reply, 1)
	d.mu.Lock()
	d.seq++
	r.Seq = d.seq
	d.waiting[r.Seq] = ch
	d.mu.Unlock()
	d.writing.Lock()
	err := d.enc.Encode(r)
	d.writing.Unlock()
	if err != nil {
		d.conn.Close()
	}
	select {
	case reply := <-ch:
		return reply, kindOf(reply.Error)
	case <-d.ended:
		return wire.Reply{}, fmt.Errorf("the driver ended: %s", d.said.String())
	case <-ctx.Done():
		d.mu.Lock()
		delete(d.waiting, r.Seq)
		d.mu.Unlock()
		return wire.Reply{}, ctx.Err()
	}
}

// kindOf makes the engine's error of a driver's.
func kindOf(e *wire.Error) error {
	if e == nil {
		return nil
	}
	switch e.Kind {
	case wire.ImageFault:
		return fmt.Errorf("%w: %w", engine.ErrImage, e)
	case wire.NoSpace:
		return fmt.Errorf("%w: %w", engine.ErrNoSpace, e)
	case wire.Gone:
		return fmt.Errorf("%w: %w", engine.ErrNotFound, e)
	}
	return e
}

// tailBuffer keeps the last few KiB written to it.
type tailBuffer struct {
	mu sync.Mutex
	b  []byte
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	const most = 4096
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b = append(t.b, p...)
	if len(t.b) > most {
		t.b = t.b[len(t.b)-most:]
	}
	return len(p), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.b))
}
