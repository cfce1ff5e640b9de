// Package v1 is Holdfast's own JSON API: the types on the wire, which the
// client uses too, and the handler that serves them from a sandbox.Backend.
//
// Times are RFC 3339 in UTC, absent when there is none; numbers carry their unit
// in the name. Unknown fields in a request are refused. Every error is
// {"error": {"kind", "thing", "reason", "next"}} with the status of its kind.
// A {ref} names a sandbox by id, by a unique prefix of one, or by its metadata
// "name"; a template by id, unique prefix of one, or name.
//
//	GET    /v1/health                          204; needs no key
//	GET    /v1/status                          Status
//	GET    /v1/sandboxes                       SandboxList; state, template, metadata (k=v), limit, cursor
//	POST   /v1/sandboxes                       CreateRequest → 201 Sandbox
//	GET    /v1/sandboxes/{ref}                 Sandbox
//	DELETE /v1/sandboxes/{ref}                 204
//	GET    /v1/sandboxes/{ref}/inspect         Inspection
//	GET    /v1/sandboxes/{ref}/events          EventList; since, limit; with follow=1 NDJSON of Event
//	POST   /v1/sandboxes/{ref}/pause           PauseRequest → Sandbox
//	POST   /v1/sandboxes/{ref}/resume          ConnectRequest → ConnectResponse; sets the deadline
//	POST   /v1/sandboxes/{ref}/connect         ConnectRequest → ConnectResponse; only extends it
//	POST   /v1/sandboxes/{ref}/timeout         TimeoutRequest → Sandbox
//	POST   /v1/sandboxes/{ref}/snapshots       SnapshotRequest → 201 Template
//	POST   /v1/sandboxes/{ref}/fork            ForkRequest → 201 ForkResponse
//	POST   /v1/sandboxes/{ref}/rollback        RollbackRequest → Sandbox
//	GET    /v1/templates, /v1/snapshots        TemplateList; snapshots: sandbox, name; limit, cursor
//	GET    /v1/templates/{ref}                 Template; the same under /v1/snapshots
//	DELETE /v1/templates/{ref}                 204; the same under /v1/snapshots
//	POST   /v1/templates                       ImportRequest as JSON, or an archive as body with the
//	                                           request's fields in the query → NDJSON of ImportProgress
//	GET    /v1/keys                            KeyList            ┐
//	POST   /v1/keys                            KeyRequest → 201 Key │ over the machine's own socket only
//	DELETE /v1/keys/{id}                       204                │
//	GET    /v1/doctor                          FindingList        │
//	POST   /v1/doctor/repair                   FindingList        ┘
package v1

import "time"

// Sandbox is one sandbox.
type Sandbox struct {
	ID         string            `json:"id"`
	Name       string            `json:"name,omitempty"` // metadata "name"
	Template   string            `json:"template"`       // as it was asked for
	TemplateID string            `json:"template_id"`
	State      string            `json:"state"` // creating, running, pausing, paused, resuming, failed, deleting
	Reason     string            `json:"reason,omitempty"`
	Recovered  string            `json:"recovered,omitempty"` // memory, files or template: what the latest resume brought back
	CreatedAt  time.Time         `json:"created_at"`
	StartedAt  time.Time         `json:"started_at,omitzero"`
	EndAt      time.Time         `json:"end_at,omitzero"` // deadline; only while running
	PausedAt   time.Time         `json:"paused_at,omitzero"`
	Lifecycle  Lifecycle         `json:"lifecycle"`
	Resources  Resources         `json:"resources"`
	Network    Network           `json:"network"`
	Metadata   map[string]string `json:"metadata,omitempty"`
	User       string            `json:"user,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	// The tokens are absent in lists. AccessToken (header X-Access-Token) opens
	// port 49983; TrafficToken (E2b-Traffic-Access-Token) the others when public
	// traffic is off.
	AccessToken  string `json:"access_token,omitempty"`
	TrafficToken string `json:"traffic_token,omitempty"`
}

// Lifecycle says what ends a sandbox and what wakes it.
type Lifecycle struct {
	TimeoutSeconds float64 `json:"timeout_seconds"`
	OnTimeout      string  `json:"on_timeout"`  // kill or pause
	KeepMemory     bool    `json:"keep_memory"` // a pause by deadline keeps memory
	AutoResume     bool    `json:"auto_resume"` // traffic wakes it
}

// Resources bind a sandbox. In a request 0 means the template's.
type Resources struct {
	CPUs     int `json:"cpus"`
	MemoryMB int `json:"memory_mb"` // MiB
	DiskMB   int `json:"disk_mb"`   // MiB above the template
	PIDs     int `json:"pids,omitempty"`
}

// Network is what a sandbox may reach and who may reach it.
type Network struct {
	AllowInternet      bool     `json:"allow_internet"`
	AllowOut           []string `json:"allow_out,omitempty"`
	DenyOut            []string `json:"deny_out,omitempty"`
	AllowPublicTraffic bool     `json:"allow_public_traffic"`
	MaskRequestHost    string   `json:"mask_request_host,omitempty"`
}

// SandboxList is one page, newest first.
type SandboxList struct {
	Sandboxes    []Sandbox `json:"sandboxes"`
	Cursor       string    `json:"cursor,omitempty"` // absent on the last page
	TotalRunning int       `json:"total_running"`
}

// CreateRequest asks for a sandbox. Absent fields have the defaults named.
type CreateRequest struct {
	Template       string            `json:"template,omitempty"` // "base"
	Name           string            `json:"name,omitempty"`     // unique among sandboxes
	TimeoutSeconds float64           `json:"timeout_seconds,omitempty"`
	OnTimeout      string            `json:"on_timeout,omitempty"`  // "pause"
	KeepMemory     *bool             `json:"keep_memory,omitempty"` // true
	AutoResume     *bool             `json:"auto_resume,omitempty"` // true when on_timeout is pause
	Resources      Resources         `json:"resources,omitzero"`
	Network        NetworkRequest    `json:"network,omitzero"`
	Metadata       map[string]string `json:"metadata,omitempty"`
	Env            map[string]string `json:"env,omitempty"`
	NoPool         bool              `json:"no_pool,omitempty"` // restore it anew although one is ready (benchmarks)
}

// NetworkRequest is Network in a request.
type NetworkRequest struct {
	AllowInternet      *bool    `json:"allow_internet,omitempty"` // true
	AllowOut           []string `json:"allow_out,omitempty"`
	DenyOut            []string `json:"deny_out,omitempty"`
	AllowPublicTraffic *bool    `json:"allow_public_traffic,omitempty"` // true
	MaskRequestHost    string   `json:"mask_request_host,omitempty"`
}

// PauseRequest says how to pause; an empty body is one.
type PauseRequest struct {
	FilesOnly bool `json:"files_only,omitempty"` // drop memory
}

// ConnectRequest says how to connect or resume; an empty body is one.
type ConnectRequest struct {
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"` // the one it was created with
	FilesOnly      bool    `json:"files_only,omitempty"`      // boot from files although memory was kept
}

// ConnectResponse tells whether the sandbox had to be brought back.
type ConnectResponse struct {
	Sandbox Sandbox `json:"sandbox"`
	Resumed bool    `json:"resumed"`
}

// TimeoutRequest moves the deadline to now + TimeoutSeconds; 0 expires it now.
type TimeoutRequest struct {
	TimeoutSeconds float64 `json:"timeout_seconds"`
	ExtendOnly     bool    `json:"extend_only,omitempty"` // only if that is later
}

// SnapshotRequest says what to make; an empty body is one.
type SnapshotRequest struct {
	Name      string `json:"name,omitempty"` // "name" or "name:tag"
	FilesOnly bool   `json:"files_only,omitempty"`
}

// ForkRequest says how many; an empty body is one fork.
type ForkRequest struct {
	Count          int     `json:"count,omitempty"`           // 1
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"` // the original's
}

// ForkResponse has one entry for each fork asked for.
type ForkResponse struct {
	Forks []Fork `json:"forks"`
}

// Fork is a sandbox or the reason why there is none.
type Fork struct {
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	Error   *Error   `json:"error,omitempty"`
}

// RollbackRequest names one of the sandbox's own snapshots.
type RollbackRequest struct {
	Snapshot string `json:"snapshot"`
}

// Inspection is everything known about one sandbox.
type Inspection struct {
	Sandbox
	Env    map[string]string `json:"env,omitempty"`
	Host   *Host             `json:"host,omitempty"`  // absent where the backend does not know
	Usage  *Usage            `json:"usage,omitempty"` // only while running
	Events []Event           `json:"events"`          // the latest 20, oldest first
}

// Host is what a sandbox consists of on its node.
type Host struct {
	Layers      []string `json:"layers"` // bottom first
	ImageBytes  int64    `json:"image_bytes"`
	DiskBytes   int64    `json:"disk_bytes"`
	MemoryBytes int64    `json:"memory_bytes"`
	Tasks       int64    `json:"tasks"`
	PID         int      `json:"pid,omitempty"`
	Address     string   `json:"address,omitempty"`
	Runtime     string   `json:"runtime,omitempty"` // sha256
}

// Usage is a sample of what a sandbox uses.
type Usage struct {
	Time             time.Time `json:"time"`
	CPUPercent       float64   `json:"cpu_percent"` // 100 is all its cores
	MemoryBytes      int64     `json:"memory_bytes"`
	MemoryTotalBytes int64     `json:"memory_total_bytes"`
	DiskBytes        int64     `json:"disk_bytes"`
	DiskTotalBytes   int64     `json:"disk_total_bytes"`
}

// Event is one entry of a sandbox's history.
type Event struct {
	Seq       int64             `json:"seq"`
	Time      time.Time         `json:"time"`
	SandboxID string            `json:"sandbox_id"`
	Kind      string            `json:"kind"`
	Message   string            `json:"message,omitempty"`
	Fields    map[string]string `json:"fields,omitempty"`
}

// EventList is events, oldest first.
type EventList struct {
	Events []Event `json:"events"`
}

// Template is a template or snapshot.
type Template struct {
	ID         string    `json:"id"`
	Name       string    `json:"name,omitempty"`
	Names      []string  `json:"names,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
	Source     string    `json:"source,omitempty"`
	SandboxID  string    `json:"sandbox_id,omitempty"` // of a snapshot
	Snapshot   bool      `json:"snapshot"`
	HasMemory  bool      `json:"has_memory"`
	Resources  Resources `json:"resources"`
	User       string    `json:"user,omitempty"`
	Workdir    string    `json:"workdir,omitempty"`
	FilesBytes int64     `json:"files_bytes"`
	ImageBytes int64     `json:"image_bytes"`
	SpawnCount int64     `json:"spawn_count"`
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
}

// TemplateList is one page.
type TemplateList struct {
	Templates []Template `json:"templates"`
	Cursor    string     `json:"cursor,omitempty"`
}

// ImportRequest asks for a template. Without Source (and without an archive as
// body) the node's own recipe for base is used. A Source that is a path on the
// node is taken only over the machine's own socket.
type ImportRequest struct {
	Name      string    `json:"name"`
	Source    string    `json:"source,omitempty"`
	Resources Resources `json:"resources,omitzero"` // in a query: cpus, memory_mb, disk_mb
}

// ImportProgress is one line of an import's answer: a step, or, last, the
// template or the error.
type ImportProgress struct {
	Step     *Step     `json:"step,omitempty"`
	Template *Template `json:"template,omitempty"`
	Error    *Error    `json:"error,omitempty"`
}

// Step is progress of an import.
type Step struct {
	Name       string `json:"name"`
	Detail     string `json:"detail,omitempty"`
	DoneBytes  int64  `json:"done_bytes,omitempty"`
	TotalBytes int64  `json:"total_bytes,omitempty"` // absent when not known
}

// Key is an API key. Secret is shown once, by the request that made it.
type Key struct {
	ID         string    `json:"id"`
	Name       string    `json:"name"`
	Mask       string    `json:"mask"` // e.g. "e2b_1a…9f"
	CreatedAt  time.Time `json:"created_at"`
	LastUsedAt time.Time `json:"last_used_at,omitzero"`
	Secret     string    `json:"secret,omitempty"`
}

// KeyRequest names a new key.
type KeyRequest struct {
	Name string `json:"name"`
}

// KeyList is all keys.
type KeyList struct {
	Keys []Key `json:"keys"`
}

// Finding is one result of a check.
type Finding struct {
	Check    string `json:"check"`
	Severity string `json:"severity"` // ok, warning or problem
	Thing    string `json:"thing,omitempty"`
	Reason   string `json:"reason"`
	Next     string `json:"next,omitempty"`
	Repaired bool   `json:"repaired,omitempty"`
}

// FindingList is what a check found.
type FindingList struct {
	Findings []Finding `json:"findings"`
}

// Status is the daemon and its node.
type Status struct {
	Version   string      `json:"version"`
	GVisor    string      `json:"gvisor"`
	PID       int         `json:"pid,omitempty"` // of the daemon; with the paths below only over the socket
	Data      string      `json:"data,omitempty"`
	Config    string      `json:"config,omitempty"` // the file that was read
	Listen    string      `json:"listen"`
	Domain    string      `json:"domain,omitempty"`
	StartedAt time.Time   `json:"started_at"`
	Node      *NodeStatus `json:"node,omitempty"`
	// LocalKey is the machine's own API key, given only over its own socket.
	LocalKey string `json:"local_key,omitempty"`
}

// NodeStatus sums up a node.
type NodeStatus struct {
	Engine        string            `json:"engine"`
	EngineVersion string            `json:"engine_version"`
	Platform      string            `json:"platform"`
	Runtime       string            `json:"runtime"` // sha256
	Missing       map[string]string `json:"missing,omitempty"`
	Sandboxes     map[string]int    `json:"sandboxes"` // by state
	Templates     int               `json:"templates"`
	Snapshots     int               `json:"snapshots"`
	Pool          map[string]Pool   `json:"pool,omitempty"`
	UsedCPUs      int               `json:"used_cpus"`
	UsedMemoryMB  int               `json:"used_memory_mb"`
	DiskUsedBytes int64             `json:"disk_used_bytes"`
	DiskFreeBytes int64             `json:"disk_free_bytes"`
}

// Pool says how full a template's pool is.
type Pool struct {
	Want  int `json:"want"`
	Ready int `json:"ready"`
}
