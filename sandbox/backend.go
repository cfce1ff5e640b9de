package sandbox

import (
	"context"
	"net/netip"
	"time"
)

// Backend provides sandboxes. Every method is safe for concurrent use; calls on
// one sandbox are serialised by the backend. Get and List never wake or extend.
//
// Errors are *Error: NotFound (Thing names what), InvalidRequest, Conflict
// (a state does not allow it), Capacity (which limit, how to raise it).
type Backend interface {
	// Create returns once the sandbox runs and its guest answers.
	Create(ctx context.Context, o CreateOptions) (*Sandbox, error)
	Get(ctx context.Context, id string) (*Sandbox, error)
	List(ctx context.Context, o ListOptions) (Page, error)
	// Connect makes sure the sandbox runs (resuming it when paused or failed) and
	// extends its deadline to at least now+Timeout. resumed tells whether it had
	// to be brought back.
	Connect(ctx context.Context, id string, o ConnectOptions) (sb *Sandbox, resumed bool, err error)
	// SetTimeout sets the deadline to now+d, earlier or later; 0 expires it now.
	SetTimeout(ctx context.Context, id string, d time.Duration) error
	// Extend moves the deadline to now+d if that is later.
	Extend(ctx context.Context, id string, d time.Duration) error
	// Delete is idempotent for a sandbox being deleted, NotFound once gone.
	Delete(ctx context.Context, id string) error
}

// Pauser is a Backend that can pause. Pause of a paused sandbox is Conflict.
type Pauser interface {
	Pause(ctx context.Context, id string, o PauseOptions) error
}

// Snapshotter is a Backend with snapshots.
type Snapshotter interface {
	Snapshot(ctx context.Context, id string, o SnapshotOptions) (*Template, error)
	// Fork makes n new sandboxes of a running one, atomically from one picture of
	// it. Result i has either a sandbox or an error.
	Fork(ctx context.Context, id string, o ForkOptions) ([]ForkResult, error)
	// Rollback puts the sandbox back to one of its own snapshots, in place.
	Rollback(ctx context.Context, id, snapshotID string) (*Sandbox, error)
}

// Templater is a Backend whose templates and snapshots can be listed and removed.
type Templater interface {
	Templates(ctx context.Context, o TemplateListOptions) ([]Template, string, error) // list, next token
	Template(ctx context.Context, ref string) (*Template, error)                      // by id, name or name:tag
	DeleteTemplate(ctx context.Context, ref string) error                             // what was made from it goes on; Conflict while one of them starts
}

// Recorder is a Backend that keeps events and samples.
type Recorder interface {
	Events(ctx context.Context, id string, o EventOptions) ([]Event, error)
	Metric(ctx context.Context, id string) (*Metric, error)
}

// Router finds the way to a sandbox's ports for the gateway.
type Router interface {
	// Route gives the address of a running sandbox. With wake it first resumes a
	// paused one whose lifecycle says AutoResume; many callers cause one resume.
	// NotFound: no such sandbox, or paused and not to be woken.
	Route(ctx context.Context, id string, wake bool) (Route, error)
}

// Route is the way to a running sandbox.
type Route struct {
	SandboxID    string
	Addr         netip.Addr // reachable from this machine
	Network      Network
	TrafficToken string
	// Generation grows whenever the sandbox's process was replaced (resume,
	// rollback); pooled connections of an older one are stale.
	Generation int64
}

// CreateOptions asks for a sandbox.
type CreateOptions struct {
	Space     string
	Template  string // id, name or name:tag of a template or snapshot
	Timeout   time.Duration
	Lifecycle Lifecycle // Lifecycle.Timeout is ignored in favour of Timeout
	Resources Resources // zero fields: the template's
	Network   Network
	Metadata  map[string]string
	Env       map[string]string
	Secure    bool // give it an access token
	NoPool    bool // make it from the image even if a pooled one is ready (benchmarks)
}

// ListOptions filters. Order is by StartedAt, then id.
type ListOptions struct {
	Space        string
	States       []State // empty: running and paused
	Metadata     map[string]string
	Template     string
	StartedAfter time.Time
	Ascending    bool
	Limit        int    // 1..100; 0: 100
	After        Cursor // zero: from the start
}

// Cursor is a place in a list.
type Cursor struct {
	StartedAt time.Time
	ID        string
}

// Page is one page of a list.
type Page struct {
	Sandboxes    []Sandbox
	Next         *Cursor // nil at the end
	TotalRunning int     // in the space, whatever the filter
}

// ConnectOptions says how to connect.
type ConnectOptions struct {
	Timeout time.Duration
	// SetDeadline false extends only (E2B connect); true sets (E2B resume).
	SetDeadline bool
	// KeepMemory nil keeps the lifecycle's.
	FilesOnly bool // boot from files although a memory image exists
}

// PauseOptions says how to pause.
type PauseOptions struct {
	FilesOnly bool // drop memory
}

// SnapshotOptions says what to make.
type SnapshotOptions struct {
	Name      string // "" for none; "name" or "name:tag"
	FilesOnly bool
}

// ForkOptions says how many.
type ForkOptions struct {
	Count   int
	Timeout time.Duration
}

// ForkResult is one fork: exactly one field is set.
type ForkResult struct {
	Sandbox *Sandbox
	Err     error
}

// TemplateListOptions filters templates.
type TemplateListOptions struct {
	Space     string
	Snapshots bool   // list snapshots instead of templates
	SourceID  string // only snapshots of this sandbox
	Name      string
	Limit     int
	Token     string
}

// EventOptions filters events; Since is exclusive by Seq.
type EventOptions struct {
	Since int64
	Limit int
}
