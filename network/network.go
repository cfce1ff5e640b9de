// Package network gives every sandbox a network namespace of its own in which
// the world always looks the same, and decides on the host what it may reach.
//
// Inside, every sandbox is 192.0.0.2/29 behind 192.0.0.1, with fixed hardware
// addresses, so a memory image taken in one namespace fits every other. The host
// tells sandboxes apart by slot: slot n is the n-th address of the instance's
// subnet, its outside address. Two stateless nftables rules translate one to the
// other at the host end of the veth, before connection tracking sees the packet,
// so nothing on the host ever handles the shared inner address.
//
//	sandbox ─ eth0 192.0.0.2 ═ veth ═ hf<instance><slot> ─ 10.2xx.0.<slot> ─ policy ─ masquerade ─ uplink
//	                                                                       └ DNS 192.0.0.1:53 ─ forwarder
//
// Fail closed: a source address other than the inner one is dropped, a slot
// without a policy reaches nothing, and strict reverse-path filtering on each
// veth drops everything if the table itself is taken away.
//
// A namespace outlives the process that made it: Close leaves it, a later New
// with the same instance and Sync take it over, Destroy removes it.
//
// Needs root and the host's network namespace. All methods are safe for
// concurrent use.
package network

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What every sandbox sees. These are part of every memory image and therefore
// fixed for ever.
var (
	InnerAddr   = netip.MustParseAddr("192.0.0.2")
	InnerPrefix = netip.PrefixFrom(InnerAddr, 29)
	GatewayAddr = netip.MustParseAddr("192.0.0.1")
	InnerMAC    = net.HardwareAddr{0x02, 0x68, 0x66, 0x00, 0x00, 0x02}
	GatewayMAC  = net.HardwareAddr{0x02, 0x68, 0x66, 0x00, 0x00, 0x01}
)

// InnerLink is the name of the interface inside.
const InnerLink = "eth0"

// DefaultPool is how many namespaces are kept ready when Options.Pool is 0.
const DefaultPool = 8

// guardEvery is how often the table is looked for: `nft flush ruleset` by
// another program must not leave sandboxes without network for long.
const guardEvery = 10 * time.Second

// ErrFull: every address of the subnet is taken.
var ErrFull = errors.New("no free network slot")

// ErrClosed: the manager was closed.
var ErrClosed = errors.New("network manager is closed")

// Options configure a Manager.
type Options struct {
	// Instance tells daemons on one machine apart: 4 lower-case hex digits. See
	// InstanceOf.
	Instance string
	// Dir holds the namespace files; "" is /run/holdfast/<Instance>. It should be
	// on a file system that a reboot clears.
	Dir string
	// Subnet holds the outside addresses, /8 to /28. The zero prefix picks one
	// that collides with no route; the caller keeps Manager.Subnet and passes it
	// next time.
	Subnet netip.Prefix
	// Upstream are the DNS servers to forward to; none: those of /etc/resolv.conf,
	// read again when the file changes.
	Upstream []netip.AddrPort
	// WrapResolver, if set, stands between sandboxes and the upstream resolver; it
	// sees question, slot and answer (domain policy, logging).
	WrapResolver func(Resolver) Resolver
	// Pool is the number of namespaces kept ready; 0: DefaultPool; negative: none.
	Pool int
	// Logger; nil discards.
	Logger *slog.Logger
}

// InstanceOf gives the instance name for a data folder (an absolute path).
func InstanceOf(dataDir string) string {
	sum := sha256.Sum256([]byte(filepath.Clean(dataDir)))
	return hex.EncodeToString(sum[:2])
}

// Manager owns the namespaces, addresses and firewall of one daemon instance.
type Manager struct {
	instance string
	dir      string // namespace files
	root     string // its parent, removed by Destroy
	subnet   netip.Prefix
	mtu      int
	pool     int
	log      *slog.Logger
	host     *netlink.Handle // bound to the host's namespace
	hostNS   int             // descriptor of the host's namespace
	fw       *firewall
	dns      *forwarder

	mu       sync.Mutex // slots, ready, next, closed
	slots    map[int]*slot
	ready    []int
	next     int // where the search for a free slot goes on; reuse comes late
	closed   bool
	released bool

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // background builds and removals
	kick   chan struct{}  // wakes the pool
	remove chan struct{}  // bounds removals in flight
}

var instancePattern = regexp.MustCompile(`^[0-9a-f]{4}$`)

// New prepares the host (forwarding, table, DNS forwarder) and starts filling
// the pool. Namespaces of an earlier process are left as they are, with the
// policies they had, until Sync says which are wanted.
func New(o Options) (*Manager, error) {
	if !instancePattern.MatchString(o.Instance) {
		return nil, fmt.Errorf("network instance %q: must be 4 lower-case hex digits", o.Instance)
	}
	m := &Manager{
		instance: o.Instance, root: o.Dir, pool: o.Pool, log: o.Logger,
		hostNS: -1, slots: map[int]*slot{}, kick: make(chan struct{}, 1), remove: make(chan struct{}, 4),
	}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if m.root == "" {
		m.root = filepath.Join("/run/holdfast", o.Instance)
	}
	m.dir = filepath.Join(m.root, "netns")
	if m.pool == 0 {
		m.pool = DefaultPool
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	if err := m.open(o); err != nil {
		m.cancel()
		m.release()
		return nil, fmt.Errorf("network %s: %w", o.Instance, err)
	}
	if m.pool > 0 {
		m.work.Go(m.fillPool)
	}
	m.work.Go(m.guard)
	return m, nil
}

func (m *Manager) open(o Options) error {
	var err error
	if m.hostNS, err = openThreadNS(); err != nil {
		return err
	}
	if m.host, err = netlink.NewHandle(); err != nil {
		return fmt.Errorf("open netlink: %w; run as root", err)
	}
	if m.subnet, err = chooseSubnet(m.host, o.Instance, o.Subnet); err != nil {
		return err
	}
	if err := prepareDir(m.dir); err != nil {
		return err
	}
	m.prepareUplink()
	if err := m.adopt(); err != nil {
		return err
	}
	if m.dns, err = newForwarder(m, o); err != nil {
		return err
	}
	m.fw = newFirewall(m.instance, m.subnet, m.dns.port)
	if err := m.fw.install(); err != nil {
		return err
	}
	if err := m.claimSubnet(); err != nil {
		return err
	}
	m.dns.serve()
	m.coexist()
	return nil
}

// Subnet is where the outside addresses come from. Keep it for the next New.
func (m *Manager) Subnet() netip.Prefix { return m.subnet }

// Addr is the outside address of a slot: what the host dials to reach it.
func (m *Manager) Addr(slot int) netip.Addr { return nth(m.subnet, slot) }

// Close stops the DNS forwarder and removes what no sandbox uses (the pool).
// Sandboxes keep their network, without DNS, until the next New.
func (m *Manager) Close() error {
	err := m.stop()
	m.release()
	return err
}

// stop ends all background work and empties the pool. Done once.
func (m *Manager) stop() error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	ready := m.ready
	m.ready = nil
	m.mu.Unlock()
	m.cancel()
	var errs []error
	for _, n := range ready {
		errs = append(errs, m.drop(n))
	}
	m.work.Wait()
	return errors.Join(errs...)
}

// release gives back sockets and descriptors.
func (m *Manager) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.released {
		return
	}
	m.released = true
	if m.dns != nil {
		m.dns.close()
	}
	if m.fw != nil {
		m.fw.close()
	}
	if m.host != nil {
		m.host.Close()
	}
	if m.hostNS >= 0 {
		unix.Close(m.hostNS)
	}
}

// Destroy removes every namespace, link, route, rule and mount of the instance
// and closes the manager. What could be removed is, even if an error is returned.
func (m *Manager) Destroy(ctx context.Context) error {
	defer m.release()
	errs := []error{m.stop()}
	left, err := m.present()
	errs = append(errs, err)
	for _, n := range left {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, m.drop(n))
	}
	errs = append(errs, m.fw.uninstall(), m.unclaimSubnet(), m.withdraw(), removeDir(m.dir))
	if err := os.Remove(m.root); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
