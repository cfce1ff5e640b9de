package sandbox

import (
	"context"
	"io"
	"net/netip"
	"time"
)

// The interfaces below are optional abilities of a Backend that only the
// operator's side (api/v1, CLI) uses. They are found by type assertion.

// Importer is a Backend that can make templates.
type Importer interface {
	// ImportTemplate makes a template and its golden image. An existing template of
	// that name is replaced once the new one is complete; what was made from the
	// old one goes on.
	ImportTemplate(ctx context.Context, o ImportOptions) (*Template, error)
}

// ImportOptions says what to import.
type ImportOptions struct {
	Space string
	Name  string // "name" or "name:tag"
	// Source is an OCI reference, the path of an archive or folder on the node, or
	// a debootstrap:// URL. "" with Archive nil is the node's own recipe for base.
	Source    string
	Archive   io.Reader  // an uploaded docker save / OCI archive or root file system; wins over Source
	Resources Resources  // zero fields: the node's defaults
	Progress  func(Step) // may be nil; called from one goroutine at a time
}

// Step is progress of something long.
type Step struct {
	Name   string // e.g. "pull", "unpack", "boot"
	Detail string // human-readable; may be ""
	Done   int64  // bytes; Total is 0 when not known
	Total  int64
}

// Inspector is a Backend that knows what a sandbox is made of on its node.
type Inspector interface {
	Inspect(ctx context.Context, id string) (*Inspection, error)
}

// Inspection is what a sandbox costs and consists of. Zero: not known.
type Inspection struct {
	Layers      []string // ids, bottom first
	ImageBytes  int64    // memory image on disk (paused only)
	DiskBytes   int64    // its own files on disk
	MemoryBytes int64    // host memory charged now
	PIDs        int64    // tasks on the host
	PID         int      // its main process on the host; 0 when none
	Addr        netip.Addr
	Runtime     string // sha256
}

// Reporter is a Backend that reports on its node.
type Reporter interface {
	Status(ctx context.Context) (NodeStatus, error)
}

// NodeStatus sums up one node.
type NodeStatus struct {
	Started       time.Time
	Engine        string
	EngineVersion string
	Platform      string
	Runtime       string            // sha256
	Missing       map[string]string // limit not enforced → why
	Sandboxes     map[State]int
	Templates     int
	Snapshots     int
	Pool          map[string]PoolStatus // by template name
	Used          Resources             // by running sandboxes; PIDs is 0
	DiskUsed      int64                 // bytes of the data folder
	DiskFree      int64                 // bytes of the file system it is on
}

// PoolStatus says how full a pool is.
type PoolStatus struct {
	Want  int
	Ready int
}

// Doctor is a Backend that finds and repairs leftovers.
type Doctor interface {
	// Check changes nothing. Only what is wrong, or worth a warning, is returned.
	Check(ctx context.Context) ([]Finding, error)
	// Repair removes leftovers and returns every finding, the repaired ones marked.
	Repair(ctx context.Context) ([]Finding, error)
}

// Severity grades a finding.
type Severity string

// Severities.
const (
	OK      Severity = "ok"
	Warning Severity = "warning" // works, with a restriction that Reason names
	Problem Severity = "problem"
)

// Finding is one result of a check.
type Finding struct {
	Check    string // what was looked at, e.g. "kernel", "mounts"
	Severity Severity
	Thing    string // e.g. a path or an interface; may be ""
	Reason   string
	Next     string // next step; "" when OK
	Repaired bool
}
