// Package wire is what the engine and a driver say to each other. A driver is the
// runtime's own program, resident, which starts and steers instances of exactly
// its version; the engine speaks to drivers of all versions that memory images
// still name. So this format only grows: fields are added, never changed, and an
// unknown one is ignored.
//
// Messages are JSON values in a stream socket. Each request carries a number, each
// reply the number of its request; replies come in any order. When the engine goes
// away the stream ends, and the driver ends at once; instances go on.
package wire

// Operations.
const (
	Launch  = "launch"  // start or restore: Request.Launch
	Prepare = "prepare" // boot a spare kernel: Request.Launch
	Discard = "discard" // end the spare kernel Launch.Spare
	Save    = "save"    // freeze and save: Request.Save
	Thaw    = "thaw"    // let a frozen one go on
	Status  = "status"  // the wait status of an ended process: Request.PID
	Warm    = "warm"    // get ready for Request.Platform; tells the processor's features
)

// File descriptors that a driver is started with.
const (
	SocketFD = 3 // the stream
	LockFD   = 4 // a lock that tells the next engine that this driver still lives
)

// Request asks a driver for something.
type Request struct {
	Seq uint64 `json:"seq"`
	Op  string `json:"op"`
	// Dir is the instance's folder; its control socket is in it.
	Dir      string        `json:"dir,omitempty"`
	Platform string        `json:"platform,omitempty"`
	Launch   *LaunchParams `json:"launch,omitempty"`
	Save     *SaveParams   `json:"save,omitempty"`
	PID      int           `json:"pid,omitempty"`
}

// LaunchParams say how to begin an instance whose OCI configuration is in Dir.
type LaunchParams struct {
	ID       string `json:"id"`
	Platform string `json:"platform"`
	NetNS    string `json:"netns"`
	// Cgroups are the cgroup.procs files that all processes join.
	Cgroups []string `json:"cgroups,omitempty"`
	// Memory in bytes and cpus that the inside believes to have; 0: the host's.
	Memory uint64 `json:"memory,omitempty"`
	CPUs   int    `json:"cpus,omitempty"`
	// Spare is the id of a prepared kernel to restore into; Dir is its folder, moved.
	Spare string `json:"spare,omitempty"`
	// Image to restore; "" starts cold.
	Image string `json:"image,omitempty"`
}

// SaveParams say where to save.
type SaveParams struct {
	Image string `json:"image"` // an existing empty folder
}

// Reply answers the request of the same number.
type Reply struct {
	Seq   uint64 `json:"seq"`
	Error *Error `json:"error,omitempty"`
	// Sandbox and Gofer are the processes of a launched instance.
	Sandbox  int      `json:"sandbox,omitempty"`
	Gofer    int      `json:"gofer,omitempty"`
	Features []string `json:"features,omitempty"`
	// Status is a wait status, Known whether there is one.
	Status uint32 `json:"status,omitempty"`
	Known  bool   `json:"known,omitempty"`
}

// Kinds of failure that the engine tells apart.
const (
	ImageFault = "image" // the memory image is at fault
	NoSpace    = "space" // the disk is full
	Gone       = "gone"  // the instance has ended
)

// Error is a failure.
type Error struct {
	Kind string `json:"kind,omitempty"`
	Text string `json:"text"`
}

func (e *Error) Error() string { return e.Text }
