// Package driver is the resident side of the runtime: it starts and steers
// instances for holdfast's engine, which speaks package wire's messages to it.
//
// It does what gVisor's own commands do, with gVisor's own parts, but in one
// process that is already initialised, with the processes of an instance begun side
// by side, and without state files: the engine keeps the record of an instance.
// It holds nothing that matters: killed at any moment, it leaves running instances
// as they are and half-begun ones for the engine to clear.
package driver

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/log"

	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
)

// Main serves the engine at wire.SocketFD until it goes away.
func Main() {
	inheritNothing()
	log.SetTarget(log.GoogleEmitter{Writer: &log.Writer{Next: io.Discard}})
	f := os.NewFile(wire.SocketFD, "engine")
	conn, err := net.FileConn(f)
	if err != nil {
		fmt.Fprintf(os.Stderr, "runsc driver: no engine at file descriptor %d: %v\n", wire.SocketFD, err)
		os.Exit(2)
	}
	f.Close()
	// The kernel maps application memory in large steps, locked: see gVisor's
	// sandbox.createSandboxProcess. Children inherit the limit.
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	unix.Umask(0o077)
	d := &driver{enc: json.NewEncoder(conn), ended: map[int]syscall.WaitStatus{}, spares: map[string]*kernel{}}
	dec := json.NewDecoder(conn)
	for {
		var r wire.Request
		if err := dec.Decode(&r); err != nil {
			// A launch that is under way must not go on: nobody knows of it.
			os.Exit(0)
		}
		go d.serve(r)
	}
}

// inheritNothing makes every descriptor that this process was started with close
// on exec: the lock, the stream, and whatever the daemon's own parents left open.
func inheritNothing() {
	if unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC) == nil {
		return
	}
	entries, err := os.ReadDir("/proc/self/fd") // before Linux 5.11
	if err != nil {
		fmt.Fprintf(os.Stderr, "runsc driver: cannot see own descriptors: %v\n", err)
		os.Exit(2)
	}
	for _, e := range entries {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
}

type driver struct {
	writing sync.Mutex
	enc     *json.Encoder

	mu    sync.Mutex
	ended map[int]syscall.WaitStatus // of children, until asked for

	spares map[string]*kernel // by the id they were prepared with

	configs  configs
	starting sync.Mutex
}

func (d *driver) serve(r wire.Request) {
	var reply wire.Reply
	var err error
	switch r.Op {
	case wire.Launch:
		reply.Sandbox, reply.Gofer, err = d.launch(r.Dir, *r.Launch)
	case wire.Prepare:
		reply.Sandbox, err = d.prepare(r.Dir, *r.Launch)
	case wire.Discard:
		d.discard(r.Launch.Spare)
	case wire.Save:
		err = save(r.Dir, r.Save.Image)
	case wire.Thaw:
		err = thaw(r.Dir)
	case wire.Status:
		reply.Status, reply.Known = d.status(r.PID)
	case wire.Warm:
		reply.Features = features()
		_, err = d.configs.get(r.Platform)
	default:
		err = fmt.Errorf("this runtime knows no operation %q", r.Op)
	}
	reply.Seq = r.Seq
	if err != nil {
		reply.Error = classify(err)
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	_ = d.enc.Encode(reply) // fails only when the engine is gone
}

// reap waits for a child and remembers how a sandbox ended.
func (d *driver) reap(p *os.Process, remember bool) {
	state, err := p.Wait()
	if err != nil || !remember {
		return
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.ended[p.Pid] = ws
	}
}

func (d *driver) status(pid int) (uint32, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ws, ok := d.ended[pid]
	delete(d.ended, pid)
	return uint32(ws), ok
}

func features() []string {
	cpuid.Initialize()
	fs := cpuid.HostFeatureSet().Fixed()
	var out []string
	for _, f := range cpuid.AllFeatures() {
		if fs.HasFeature(f) {
			out = append(out, f.String())
		}
	}
	return out
}
