package node

import (
	"context"
	"net/netip"
	"time"

	"github.com/holdfast-run/holdfast/network"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Network is what the node asks of the network; *network.Manager is the one.
type Network interface {
	// Attach makes or repairs the namespace of a slot (0: choose one) and puts its
	// inner addresses back, so that an instance can take them over.
	Attach(ctx context.Context, slot int, p network.Policy) (network.Endpoint, error)
	SetPolicy(ctx context.Context, slot int, p network.Policy) error
	Detach(ctx context.Context, slot int) error
	// Sync makes the machine's network match: these slots exist, no others do.
	// An instance alive in a namespace that had to be rebuilt is cut off.
	Sync(ctx context.Context, used map[int]network.Policy) (network.Synced, error)
	// Addr is a slot's address as the host sees it.
	Addr(slot int) netip.Addr
	// Leftovers gives slots that exist on the machine but are not in use.
	Leftovers() ([]int, error)
}

// Guest is the host's side of the program inside.
type Guest interface {
	// Warm waits until the guest answers and has it do once, without identity, what
	// the first caller will ask for, so that pages are there and code has run.
	Warm(ctx context.Context, addr netip.Addr) error
	// Init waits until the guest answers and delivers identity; after every start,
	// restore and thaw.
	Init(ctx context.Context, addr netip.Addr, id Identity) error
	// Prepare flushes and drops identity before a checkpoint.
	Prepare(ctx context.Context, addr netip.Addr) error
	// Usage is the inside's view.
	Usage(ctx context.Context, addr netip.Addr, token string) (GuestUsage, error)
}

// Identity is what makes an instance this sandbox: nothing of it is in an image.
type Identity struct {
	Hostname  string
	MachineID string // 32 hex digits
	Token     string // "" for an open sandbox
	Env       map[string]string
	User      string
	Workdir   string
}

// GuestUsage is the inside's view of memory and disk, in bytes.
type GuestUsage struct {
	CPUs                                   int
	CPUUsedPct                             float64
	MemUsed, MemTotal, DiskUsed, DiskTotal int64
}

// Tokens makes a sandbox's tokens; they follow from its id, so they survive.
type Tokens interface {
	Access(id string) string
	Traffic(id string) string
}

// Clock is replaced in tests only.
type Clock interface {
	Now() time.Time
	AfterFunc(d time.Duration, f func()) *time.Timer
}

type systemClock struct{}

func (systemClock) Now() time.Time                                  { return time.Now() }
func (systemClock) AfterFunc(d time.Duration, f func()) *time.Timer { return time.AfterFunc(d, f) }

// policy is what the network is asked to enforce. The rules were checked when they
// came in; should one not parse all the same, nothing is reachable.
func policy(nw sandbox.Network) network.Policy {
	allow, err := network.ParsePrefixes(nw.AllowOut)
	if err != nil {
		return network.Policy{}
	}
	deny, err := network.ParsePrefixes(nw.DenyOut)
	if err != nil {
		return network.Policy{}
	}
	return network.Policy{AllowInternet: nw.AllowInternet, AllowOut: allow, DenyOut: deny}
}
