// Package engine says how a node isolates one sandbox: start, checkpoint,
// restore, kill. It knows nothing of templates, deadlines, tokens or wire
// dialects, and nothing in it is shaped by one runtime: a microVM must fit too.
//
// An Engine is told by its caller where the root file system is mounted, which
// network namespace to use and how much to allow. What it starts outlives the
// daemon; a new daemon finds it again with List and Adopt.
package engine

import (
	"context"
	"errors"
	"time"
)

// Errors that an Engine returns wrapped with the instance's id.
var (
	// ErrNotFound: no such instance (never started, or gone).
	ErrNotFound = errors.New("no such instance")
	// ErrExists: an instance of that id is alive.
	ErrExists = errors.New("instance exists")
	// ErrImage: the memory image cannot be restored here (torn, other runtime,
	// missing cpu features). The caller may fall back to files.
	ErrImage = errors.New("memory image cannot be restored")
	// ErrNoSpace: the disk filled up while checkpointing. The instance still runs.
	ErrNoSpace = errors.New("no space left for the memory image")
)

// Engine runs instances. All methods are safe for concurrent use on different
// ids; the caller serialises calls on one id.
type Engine interface {
	// Capabilities says what this machine can do and enforce, and why not.
	Capabilities() Capabilities

	// Start boots s cold and returns once its process runs (the guest inside may
	// need a moment more to answer). On error nothing is left behind.
	Start(ctx context.Context, s Spec) (Instance, error)

	// Restore brings back the memory image in dir under s.ID. s.Root must hold the
	// files as they were at the checkpoint. It returns once processes run. Pages may
	// still be loading, but the engine holds open what it needs: dir may be removed.
	// On error nothing is left behind. ErrImage when the image is at fault.
	Restore(ctx context.Context, s Spec, dir string) (Instance, error)

	// Checkpoint freezes the instance and writes its memory image into the existing
	// empty folder dir, on stable storage when it returns. The instance stays
	// frozen, so that the caller can make the image official before it decides:
	// Kill ends it, Thaw lets it go on. If Checkpoint fails the instance runs on
	// (ErrNoSpace, or another error) or, if that is impossible, is dead and the
	// error also wraps ErrNotFound. A caller that is killed leaves at worst a
	// frozen instance and a folder to remove.
	Checkpoint(ctx context.Context, id, dir string) (Image, error)

	// Thaw lets a frozen instance go on; on a running one it does nothing.
	Thaw(ctx context.Context, id string) error

	// Kill ends the instance and everything the engine made for it (processes,
	// cgroups, state files). Gone already: nil.
	Kill(ctx context.Context, id string) error

	// Adopt takes over an instance that an earlier daemon started: from now on
	// its exit is reported; one found frozen stays so until Thaw. ErrNotFound when
	// it is not alive.
	Adopt(ctx context.Context, id string) (Instance, error)

	// List gives the ids of all instances and leftovers (dead processes' state,
	// empty cgroups) in this engine's folders. Kill clears any of them.
	List(ctx context.Context) ([]string, error)

	// Update changes the limits of a running instance.
	Update(ctx context.Context, id string, r Resources) error

	// Stats samples a running instance.
	Stats(ctx context.Context, id string) (Stats, error)

	// Exits delivers the end of every instance that was not asked for by
	// Checkpoint or Kill. One receiver.
	Exits() <-chan Exit

	// Close stops watching. Instances go on.
	Close() error
}

// Capabilities is what an engine found on this machine.
type Capabilities struct {
	Engine     string            // e.g. "gvisor"
	Version    string            // e.g. the module version
	Platform   string            // e.g. "systrap"
	Runtime    string            // sha256 of the runtime that new instances use
	Checkpoint bool              // memory images can be made and restored
	CPUFeature []string          // what an image made here will need
	Missing    map[string]string // limit not enforced ("cpu", "memory", "pids") → why
}

// Spec describes one instance.
type Spec struct {
	ID       string   // [a-z0-9], at most 64
	Root     string   // mounted root file system on the host, read-write
	Share    string   // host folder that appears inside at ShareMount
	NetNS    string   // path of a network namespace whose addresses the instance takes over
	Args     []string // pid 1 inside, absolute path first
	Env      []string
	Hostname string // of a cold start; a restored guest names itself
	Runtime  string // sha256 of the runtime to use; "" for the current one
	Resources
}

// ShareMount is where Spec.Share appears inside. It is part of every memory
// image and therefore fixed for ever.
const ShareMount = "/.holdfast/host"

// Resources bind an instance; zero leaves one unbound.
type Resources struct {
	CPUMillis   int64 // 1000 is one core
	MemoryBytes int64 // of the inside; the engine adds its own overhead on top
	PIDs        int64
}

// Instance is a running one.
type Instance struct {
	ID      string
	PID     int    // the process whose end is the instance's end
	Runtime string // sha256
	Started time.Time
}

// Image describes a memory image that Checkpoint wrote.
type Image struct {
	Runtime    string   // sha256 of the runtime that can restore it
	CPUFeature []string // features the restoring machine must have
	Files      []string // names inside the folder
	Bytes      int64
	Frozen     time.Duration // how long the instance stood still until the image was on stable storage
}

// Exit tells of an end that nobody asked for.
type Exit struct {
	ID     string
	Reason ExitReason
	Detail string // human-readable: signal, exit code, last lines of the runtime's log
	Time   time.Time
}

// ExitReason classifies an Exit.
type ExitReason string

// Why an instance ended.
const (
	ExitOOM     ExitReason = "oom"     // its memory limit was hit
	ExitCrashed ExitReason = "crashed" // the runtime or pid 1 was killed or failed
	ExitEnded   ExitReason = "ended"   // pid 1 returned by itself
)

// Stats is one sample.
type Stats struct {
	Time        time.Time
	PID         int           // the process whose end is the instance's end
	Runtime     string        // sha256
	CPUTime     time.Duration // used since start
	MemoryBytes int64         // host memory charged, the engine's overhead included
	MemoryPeak  int64
	PIDs        int64
	OOMKills    int64
}
