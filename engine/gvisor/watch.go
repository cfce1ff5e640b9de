package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
)

// instance is a running one that this engine watches.
type instance struct {
	record
	pidfd *os.File
	// ending is set before this engine ends it itself: no Exit is due then.
	ending bool
	ended  chan struct{} // closed when the sandbox process has ended
}

// alive gives a watched instance whose process runs.
func (e *Engine) alive(id string) (*instance, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	in := e.instances[id]
	if in == nil {
		return nil, fmt.Errorf("instance %s: %w", id, engine.ErrNotFound)
	}
	select {
	case <-in.ended:
		return nil, fmt.Errorf("instance %s: %w: its process has ended", id, engine.ErrNotFound)
	default:
		return in, nil
	}
}

// watch begins to watch a started or adopted instance. It fails with
// engine.ErrNotFound when its process is gone.
func (e *Engine) watch(r record) (*instance, error) {
	fd, err := r.Sandbox.open()
	if err != nil {
		return nil, fmt.Errorf("instance %s: %w: its process is gone", r.ID, engine.ErrNotFound)
	}
	in := &instance{record: r, pidfd: os.NewFile(uintptr(fd), "pidfd"), ended: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isClosed {
		in.pidfd.Close()
		return nil, fmt.Errorf("instance %s: the engine is closed", r.ID)
	}
	if old := e.instances[r.ID]; old != nil {
		in.pidfd.Close()
		return old, nil
	}
	e.instances[r.ID] = in
	e.watches.Go(func() { e.await(in) })
	return in, nil
}

// await waits for the end of an instance and reports it unless it was asked for.
func (e *Engine) await(in *instance) {
	conn, err := in.pidfd.SyscallConn()
	if err == nil {
		// Readable means ended; the runtime's poller waits, so no thread is held.
		err = conn.Read(func(fd uintptr) bool { return ended(int(fd)) })
	}
	if err != nil {
		return // closed
	}
	exit := e.diagnose(in)
	in.pidfd.Close()
	e.mu.Lock()
	quiet := in.ending
	close(in.ended)
	e.mu.Unlock()
	if quiet {
		return
	}
	e.log.Warn("instance ended by itself", "instance", in.ID, "reason", exit.Reason, "detail", exit.Detail)
	select {
	case e.exits <- exit:
	case <-e.closed:
	}
}

// ended tells whether the process behind a pidfd has ended.
func ended(pidfd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// expect marks an instance as being ended on purpose and gives it, nil if it is
// not watched.
func (e *Engine) expect(id string) *instance {
	e.mu.Lock()
	defer e.mu.Unlock()
	in := e.instances[id]
	if in != nil {
		in.ending = true
	}
	return in
}

// forget drops an instance from the watched ones once it has ended.
func (e *Engine) forget(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.instances, id)
}

// Adopt implements engine.Engine.
func (e *Engine) Adopt(_ context.Context, id string) (engine.Instance, error) {
	r, err := e.loadRecord(id)
	if err != nil {
		return engine.Instance{}, err
	}
	if !r.alive() {
		return engine.Instance{}, fmt.Errorf("adopt instance %s: %w: its process has ended", id, engine.ErrNotFound)
	}
	in, err := e.watch(r)
	if err != nil {
		return engine.Instance{}, err
	}
	return in.public(), nil
}

func (in *instance) public() engine.Instance {
	return engine.Instance{ID: in.ID, PID: in.Sandbox.PID, Runtime: in.Runtime, Started: in.Started}
}

// diagnose says why an instance ended: the cgroup's count of kills for memory
// first, then what the kernel or the runtime left behind.
func (e *Engine) diagnose(in *instance) engine.Exit {
	x := engine.Exit{ID: in.ID, Time: time.Now(), Reason: engine.ExitCrashed}
	status, known := exitStatus(in.Sandbox.PID, in.pidfd)
	if !known {
		status, known = e.askStatus(in)
	}
	panicked := tail(filepath.Join(e.instanceDir(in.ID), "panic.log"), 2048)
	switch {
	case e.group(in.ID).OOMKills() > in.OOMKills:
		x.Reason = engine.ExitOOM
		x.Detail = "the memory limit was hit and the host's kernel killed the instance"
	case panicked != "":
		x.Detail = "the sandbox's kernel failed: " + panicked
	case !known:
		x.Detail = "the sandbox process ended, its exit status is unknown"
	case status.Signaled():
		x.Detail = "the sandbox process was killed by signal " + unix.SignalName(status.Signal())
	case status.ExitStatus() == 0:
		x.Reason = engine.ExitEnded
		x.Detail = "pid 1 exited with status 0"
	case status.ExitStatus() > 128:
		x.Detail = "pid 1 was killed by signal " + unix.SignalName(unix.Signal(status.ExitStatus()-128))
	default:
		x.Detail = "pid 1 exited with status " + strconv.Itoa(status.ExitStatus())
	}
	if out := tail(filepath.Join(e.instanceDir(in.ID), "guest.log"), 512); out != "" && x.Reason == engine.ExitCrashed {
		x.Detail += "; it printed last: " + out
	}
	return x
}

// askStatus asks the driver, which is the parent unless it was begun anew since.
func (e *Engine) askStatus(in *instance) (unix.WaitStatus, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	reply, err := e.ask(ctx, in, wire.Request{Op: wire.Status, PID: in.Sandbox.PID})
	return unix.WaitStatus(reply.Status), err == nil && reply.Known
}

// pidfdInfo is the beginning of the kernel's struct pidfd_info.
type pidfdInfo struct {
	mask     uint64
	cgroup   uint64
	_        [11]uint32
	exitCode int32
}

const (
	pidfdGetInfo  = 0xC040FF0B // _IOWR(0xFF, 11, 64 bytes)
	pidfdInfoExit = 1 << 3
)

// exitStatus finds the wait status of an ended process that need not be our
// child: from /proc while nobody has reaped it, from its pidfd afterwards (Linux
// 6.15 and later).
func exitStatus(pid int, pidfd *os.File) (unix.WaitStatus, bool) {
	var ws unix.WaitStatus
	if p, err := unix.Wait4(pid, &ws, unix.WNOHANG, nil); err == nil && p == pid {
		return ws, true
	}
	if fields, err := procStatFields(pid); err == nil && fields[0] == "Z" {
		if code, err := strconv.Atoi(fields[49]); err == nil {
			return unix.WaitStatus(code), true
		}
	}
	conn, err := pidfd.SyscallConn()
	if err != nil {
		return 0, false
	}
	info := pidfdInfo{mask: pidfdInfoExit}
	err = conn.Control(func(fd uintptr) {
		for range 50 {
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, fd, pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
			if errno == 0 && info.mask&pidfdInfoExit != 0 {
				return
			}
			if errno == unix.ENOTTY || errno == unix.EINVAL {
				return
			}
			time.Sleep(time.Millisecond) // not reaped yet
		}
	})
	if err != nil || info.mask&pidfdInfoExit == 0 {
		return 0, false
	}
	return unix.WaitStatus(info.exitCode), true
}

// tail gives the last n bytes of a text file; "" when it is absent or empty.
func tail(path string, n int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.Size() > n {
		_, _ = f.Seek(-n, 2)
	}
	b := make([]byte, n)
	got, _ := f.Read(b)
	return strings.ToValidUTF8(strings.TrimSpace(string(b[:got])), "?")
}

// Bounds of guest.log: it is cut to its last half when it exceeds logMax bytes.
const (
	logMax      = 1 << 20
	logInterval = time.Second
)

// trimLogs keeps what the instances print from filling the disk.
func (e *Engine) trimLogs() {
	t := time.NewTicker(logInterval)
	defer t.Stop()
	for {
		select {
		case <-e.closed:
			return
		case <-t.C:
		}
		e.mu.Lock()
		ids := make([]string, 0, len(e.instances))
		for id := range e.instances {
			ids = append(ids, id)
		}
		e.mu.Unlock()
		for _, id := range ids {
			if err := trim(filepath.Join(e.instanceDir(id), "guest.log")); err != nil {
				e.log.Error("cannot trim the log of an instance", "instance", id, "error", err)
			}
		}
	}
}

// trim cuts a log to its last half of logMax. The writer appends, so what it
// writes goes on behind the kept part.
func trim(path string) error {
	fi, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil || fi.Size() <= logMax {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	keep := make([]byte, logMax/2)
	n, err := f.ReadAt(keep, fi.Size()-int64(len(keep)))
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.Write(keep[:n])
	return err
}
