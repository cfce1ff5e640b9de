// Package sandbox is the domain: neutral types, states, errors with kinds and
// the Backend interface that the dialects (api/*) and the gateway speak to.
// Nothing here knows a wire dialect above it or an engine below it.
package sandbox

import (
	"regexp"
	"time"
)

// State is where a sandbox stands. Every state can be left by Delete.
//
//	creating ─► running ─► pausing ─► paused ─► resuming ─► running
//	    │          │           │         │          │
//	    └──────────┴───────────┴─ failed ┴──────────┘   (resume of failed boots from its files)
//	any ─► deleting ─► (gone)
type State string

// The states. Only Running and Paused are at rest; the -ing states name an
// operation in flight, which a restarted daemon finishes or rolls back.
const (
	Creating State = "creating"
	Running  State = "running"
	Pausing  State = "pausing"
	Paused   State = "paused"
	Resuming State = "resuming"
	Failed   State = "failed" // its engine process died; Reason says why; files are kept
	Deleting State = "deleting"
)

// Depth says how much of a sandbox came back from a pause, crash or reboot.
type Depth string

// Depths, best first.
const (
	DepthMemory   Depth = "memory"   // processes, memory and files
	DepthFiles    Depth = "files"    // files only: the guest booted anew on them
	DepthTemplate Depth = "template" // nothing of the sandbox's own could be used
)

// OnTimeout is what happens when the deadline passes.
type OnTimeout string

// What a deadline does.
const (
	Kill  OnTimeout = "kill"
	Pause OnTimeout = "pause"
)

// DefaultSpace is the tenant of a machine that has only one.
const DefaultSpace = "default"

// Limits that hold for every backend.
const (
	DefaultTimeout  = 300 * time.Second
	MaxTimeout      = 24 * 365 * time.Hour
	DefaultCPUs     = 2
	DefaultMemoryMB = 1024
	DefaultDiskMB   = 10240
	DefaultTemplate = "base"
)

var idPattern = regexp.MustCompile(`^i[a-z0-9]{20}$`)

// ValidID tells whether s has the form of a sandbox id: "i" and 20 of [a-z0-9].
func ValidID(s string) bool { return idPattern.MatchString(s) }

// Sandbox is a point-in-time copy of what a backend knows about one sandbox.
type Sandbox struct {
	ID         string
	Space      string
	TemplateID string // template or snapshot it was made from
	Template   string // the name it was asked for by, e.g. "base"
	State      State
	Reason     string // why Failed, or why the last recovery lost something; human-readable
	Recovered  Depth  // how much the latest resume brought back; "" before the first
	CreatedAt  time.Time
	StartedAt  time.Time // last time it began to run
	EndAt      time.Time // deadline; meaningful while Running
	PausedAt   time.Time // zero unless Paused
	Lifecycle  Lifecycle
	Resources  Resources
	Network    Network
	Metadata   map[string]string
	Env        map[string]string
	// User and Workdir are the defaults for processes and relative paths.
	User    string
	Workdir string
	// AccessToken opens the guest's services ("" when not secured);
	// TrafficToken opens its ports when public traffic is off.
	AccessToken  string
	TrafficToken string
}

// Lifecycle says what ends a running sandbox and what wakes a paused one.
type Lifecycle struct {
	Timeout    time.Duration // the timeout it was created with
	OnTimeout  OnTimeout
	KeepMemory bool // a pause by deadline keeps memory (true) or files only
	AutoResume bool // traffic wakes it when paused
}

// Resources bind a sandbox; zero means the template's or the node's default.
type Resources struct {
	CPUs     int // whole cores
	MemoryMB int // MiB
	DiskMB   int // MiB of files written above the template
	PIDs     int // tasks on the host
}

// Network is what a sandbox may reach and who may reach it.
type Network struct {
	AllowInternet      bool
	AllowOut           []string // CIDRs or addresses; win over DenyOut
	DenyOut            []string // CIDRs or addresses
	AllowPublicTraffic bool     // false: ports need TrafficToken
	MaskRequestHost    string   // Host header shown to servers inside; "${PORT}" is replaced
}

// Template is an immutable starting point.
type Template struct {
	ID         string
	Name       string // "" for a snapshot without one
	Names      []string
	CreatedAt  time.Time
	Source     string // what it was imported from, or the sandbox it is a snapshot of
	SourceID   string // sandbox id, for a snapshot
	Snapshot   bool   // true: made from a sandbox, listed apart from templates
	HasMemory  bool   // carries a memory image (golden, or of the snapshotted sandbox)
	Resources  Resources
	Env        map[string]string
	User       string
	Workdir    string
	FilesBytes int64 // bytes of its own layers on disk
	ImageBytes int64 // bytes of its memory image on disk
	SpawnCount int64
	LastUsedAt time.Time
	Space      string
}

// Event is one entry of a sandbox's history.
type Event struct {
	Seq       int64
	Time      time.Time
	SandboxID string
	Kind      string // e.g. "created", "paused", "resumed", "oom", "crashed"
	Message   string
	Fields    map[string]string
}

// Metric is one sample of a sandbox's use of the host.
type Metric struct {
	Time                                   time.Time
	CPUs                                   int
	CPUUsedPct                             float64
	MemUsed, MemTotal, DiskUsed, DiskTotal int64 // bytes
}
