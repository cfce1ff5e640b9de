package daemon

import (
	"context"
	"math"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/holdfast-run/holdfast/gateway"
	"github.com/holdfast-run/holdfast/guest/client"
	"github.com/holdfast-run/holdfast/node"
	"github.com/holdfast-run/holdfast/sandbox"
)

// guests is the node's way to the programs inside. Connections are not kept: one
// that was open while a sandbox was frozen into an image would be half of a
// connection in every restore of it.
type guests struct {
	http *http.Client
}

func newGuests() *guests {
	return &guests{&http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, DisableCompression: true,
		DialContext: (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
	}}}
}

func (g *guests) at(addr netip.Addr, token string) *client.Client {
	return client.New(net.JoinHostPort(addr.String(), strconv.Itoa(client.Port)), token, g.http)
}

func (g *guests) Warm(ctx context.Context, addr netip.Addr) error {
	c := g.at(addr, "")
	if err := c.WaitInit(ctx, client.InitRequest{}); err != nil {
		return err
	}
	// Whether the image has such a program does not matter: the way there is walked.
	_, _ = c.WithUser("root").Exec(ctx, client.ExecOptions{Cmd: "/bin/true", Timeout: 10 * time.Second})
	return nil
}

// initPatience bounds the delivery of an identity. It is tried again until then:
// on a machine under heavy load a connection may take its time, and giving up
// means to give up the sandbox's memory.
const initPatience = 30 * time.Second

func (g *guests) Init(ctx context.Context, addr netip.Addr, id node.Identity) error {
	ctx, cancel := context.WithTimeout(ctx, initPatience)
	defer cancel()
	now := time.Now()
	return g.at(addr, "").WaitInit(ctx, client.InitRequest{
		Hostname: id.Hostname, MachineID: id.MachineID, AccessToken: id.Token, EnvVars: id.Env,
		DefaultUser: id.User, DefaultWorkdir: id.Workdir, Timestamp: &now,
	})
}

func (g *guests) Prepare(ctx context.Context, addr netip.Addr) error {
	return g.at(addr, "").Prepare(ctx)
}

func (g *guests) Usage(ctx context.Context, addr netip.Addr, token string) (node.GuestUsage, error) {
	m, err := g.at(addr, token).Metrics(ctx)
	if err != nil {
		return node.GuestUsage{}, err
	}
	bytes := func(n uint64) int64 { return int64(min(n, math.MaxInt64)) } //nolint:gosec // bounded
	return node.GuestUsage{
		CPUs: m.CPUCount, CPUUsedPct: m.CPUUsedPct,
		MemUsed: bytes(m.MemUsed), MemTotal: bytes(m.MemTotal), DiskUsed: bytes(m.DiskUsed), DiskTotal: bytes(m.DiskTotal),
	}, nil
}

// dialer lets the gateway reach servers that listen on a sandbox's loopback only.
type dialer struct{}

func (dialer) DialPort(ctx context.Context, rt sandbox.Route, port int) (net.Conn, error) {
	return client.DialPort(ctx, rt.Addr, uint16(port)) //nolint:gosec // the gateway checked the range
}

var (
	_ node.Guest     = (*guests)(nil)
	_ gateway.Dialer = dialer{}
)
