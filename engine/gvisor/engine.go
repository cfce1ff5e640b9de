// Package gvisor isolates instances with gVisor: a kernel of its own for each, in
// an unprivileged process without hardware virtualisation, whose memory can be
// written to disk and brought back.
//
// The host's side of an instance is a sandbox process (the kernel), a gofer (file
// access) and, in the sandbox's own pid namespace, the stubs that user code runs
// in. All are in the instance's cgroup. They are nobody's children in the end:
// they outlive the daemon, and a new one finds them by their records.
//
// On disk, below Options.Dir:
//
//	<id>/instance.json   the record: processes, limits, runtime
//	<id>/config.json     the OCI configuration
//	<id>/guest.log       what pid 1 printed, bounded
//	<id>/panic.log       what a failing kernel printed
//	<id>/control.sock    what its kernel listens at
//	<id>/cgroup          the name of its cgroup, if that is not its id
//	.spare/<n>/          booted kernels waiting to be used
//	.lock                held by an engine and its drivers
package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/engine/gvisor/cgroup"
	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
	"github.com/holdfast-run/holdfast/runtimes"
)

// What the host needs for an instance beside what the inside may use: the kernel
// and the gofer hold about 15 MB when idle; tables for open files, page tables and
// network buffers grow with use.
const (
	// MemoryOverhead is added to Resources.MemoryBytes, and a 32nd of it again.
	MemoryOverhead = 96 << 20
	// PIDsOverhead is added to Resources.PIDs: threads of the kernel and the gofer.
	PIDsOverhead = 96
)

// Options configure an Engine.
type Options struct {
	// Dir holds the engine's state; short, for sockets live below it.
	Dir string
	// Runtimes keeps the gVisor programs.
	Runtimes *runtimes.Store
	// CgroupParent is the group below which each instance gets its own. Nobody
	// else may use it: List takes what it finds there for its own. Default
	// "holdfast".
	CgroupParent string
	// Platform is "systrap" (default), "kvm", or "auto": kvm where a probe proves
	// that it works.
	Platform string
	// Spares is how many booted kernels are kept ready for the next restores, of each
	// of the latest two sizes of instances; 0 is DefaultSpares, negative none. Each
	// holds about 10 MB.
	Spares int
	Logger *slog.Logger // default: slog.Default
}

// Engine runs instances on gVisor. See engine.Engine.
type Engine struct {
	dir     string
	store   *runtimes.Store
	current runtimes.Runtime
	groups  *cgroup.Parent
	caps    engine.Capabilities
	drivers *drivers
	log     *slog.Logger
	exits   chan engine.Exit
	closed  chan struct{}
	watches sync.WaitGroup

	launched chan struct{} // tells keepSpares

	mu         sync.Mutex
	instances  map[string]*instance
	isClosed   bool
	spares     map[spareKey][]*spare
	spareKinds []spareKey // wanted, the latest first
	spareSeq   int
}

// New makes the engine ready: unpacks the runtime, finds cgroups and the
// processor's features. It starts and adopts nothing.
func New(ctx context.Context, o Options) (*Engine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("gvisor engine: needs root to set up namespaces, mounts and cgroups; run the daemon as root")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("gvisor engine: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("gvisor engine: %w", err)
	}
	if o.CgroupParent == "" {
		o.CgroupParent = "holdfast"
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	current, err := o.Runtimes.Ensure(ctx)
	if err != nil {
		return nil, fmt.Errorf("gvisor engine: %w", err)
	}
	groups, err := cgroup.Open(o.CgroupParent)
	if err != nil {
		return nil, fmt.Errorf("gvisor engine: %w", err)
	}
	platform, err := choosePlatform(ctx, o.Platform, current, dir)
	if err != nil {
		return nil, fmt.Errorf("gvisor engine: %w", err)
	}
	drivers, err := openDrivers(dir)
	if err != nil {
		return nil, fmt.Errorf("gvisor engine: %w", err)
	}
	features, err := warm(ctx, drivers, current, platform)
	if err != nil {
		drivers.close()
		return nil, fmt.Errorf("gvisor engine: %w", err)
	}
	e := &Engine{
		dir:     dir,
		store:   o.Runtimes,
		current: current,
		groups:  groups,
		drivers: drivers,
		log:     o.Logger,
		caps: engine.Capabilities{
			Engine:     "gvisor",
			Version:    current.Version,
			Platform:   platform,
			Runtime:    current.SHA256,
			Checkpoint: true,
			CPUFeature: features,
			Missing:    groups.Missing(),
		},
		exits:     make(chan engine.Exit),
		closed:    make(chan struct{}),
		launched:  make(chan struct{}, 1),
		instances: map[string]*instance{},
		spares:    map[spareKey][]*spare{},
	}
	if err := e.clearSpares(); err != nil {
		drivers.close()
		return nil, fmt.Errorf("gvisor engine: %w", err)
	}
	e.watches.Go(e.trimLogs)
	if o.Spares == 0 {
		o.Spares = DefaultSpares
	}
	e.watches.Go(func() { e.keepSpares(o.Spares) })
	return e, nil
}

// Capabilities implements engine.Engine.
func (e *Engine) Capabilities() engine.Capabilities { return e.caps }

// Exits implements engine.Engine. The channel is closed by Close.
func (e *Engine) Exits() <-chan engine.Exit { return e.exits }

// Close implements engine.Engine.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.isClosed {
		e.mu.Unlock()
		return nil
	}
	e.isClosed = true
	close(e.closed)
	for _, in := range e.instances {
		in.pidfd.Close() // wakes its watch
	}
	e.mu.Unlock()
	e.watches.Wait()
	e.dropSpares()
	e.drivers.close()
	close(e.exits)
	return nil
}

// Destroy closes the engine and removes what it keeps on the machine for all
// instances together. There must be none.
func (e *Engine) Destroy() error {
	return errors.Join(e.Close(), e.groups.Remove())
}

// List implements engine.Engine.
func (e *Engine) List(context.Context) ([]string, error) {
	groups, err := e.groups.List()
	if err != nil {
		return nil, err
	}
	ids := e.folders()
	for _, name := range groups {
		if !strings.HasPrefix(name, sparePrefix) { // those go with a folder
			ids = append(ids, name)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Update implements engine.Engine.
func (e *Engine) Update(_ context.Context, id string, r engine.Resources) error {
	if _, err := e.alive(id); err != nil {
		return err
	}
	return e.group(id).Update(limits(r))
}

// Stats implements engine.Engine.
func (e *Engine) Stats(_ context.Context, id string) (engine.Stats, error) {
	in, err := e.alive(id)
	if err != nil {
		return engine.Stats{}, err
	}
	s, err := e.group(id).Stats()
	if err != nil {
		return engine.Stats{}, fmt.Errorf("stats of instance %s: %w", id, err)
	}
	return engine.Stats{
		PID: in.Sandbox.PID, Runtime: in.Runtime,
		Time: time.Now(), CPUTime: s.CPUTime, MemoryBytes: s.MemoryBytes,
		MemoryPeak: s.MemoryPeak, PIDs: s.PIDs, OOMKills: s.OOMKills,
	}, nil
}

// limits are what the cgroup gets for r.
func limits(r engine.Resources) cgroup.Limits {
	l := cgroup.Limits{CPUMillis: r.CPUMillis}
	if r.MemoryBytes > 0 {
		l.MemoryBytes = r.MemoryBytes + r.MemoryBytes/32 + MemoryOverhead
	}
	if r.PIDs > 0 {
		l.PIDs = r.PIDs + PIDsOverhead
	}
	return l
}

func (e *Engine) instanceDir(id string) string { return filepath.Join(e.dir, id) }

// warm starts the current runtime's driver and gives the features of the processor
// that an image made here will need.
func warm(ctx context.Context, all *drivers, r runtimes.Runtime, platform string) ([]string, error) {
	d, err := all.get(r)
	if err != nil {
		return nil, err
	}
	reply, err := d.call(ctx, wire.Request{Op: wire.Warm, Platform: platform})
	if err != nil {
		return nil, err
	}
	slices.Sort(reply.Features)
	return reply.Features, nil
}

func hostCPUs() int { return runtime.NumCPU() }

var _ engine.Engine = (*Engine)(nil)
