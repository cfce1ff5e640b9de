package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
)

// Endpoint is a sandbox's place in the network.
type Endpoint struct {
	Slot  int
	NetNS string     // path of the namespace, for the runtime
	Addr  netip.Addr // where the host reaches it, on any port
}

// condition of a slot. Guarded by Manager.mu.
type condition int

const (
	free     condition = iota
	pooled             // built, waiting for a sandbox
	attached           // a sandbox's
	unknown            // found at start; Sync decides
	leaving            // being removed
)

// slot is one place of the subnet. Its mutex serialises work on its namespace
// and is held across a removal in the background.
type slot struct {
	mu        sync.Mutex
	condition condition
	asking    atomic.Int32 // DNS questions in flight
}

// slot gives the record of a slot, which is never dropped.
func (m *Manager) slot(n int) *slot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.slotLocked(n)
}

func (m *Manager) slotLocked(n int) *slot {
	s := m.slots[n]
	if s == nil {
		s = &slot{}
		m.slots[n] = s
	}
	return s
}

func (m *Manager) become(n int, c condition) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.slotLocked(n).condition = c
}

// own makes a slot a sandbox's, whatever it was: a removal or a build for the
// pool may have ended only now. slot.mu is held.
func (m *Manager) own(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ready = slices.DeleteFunc(m.ready, func(p int) bool { return p == n })
	m.slotLocked(n).condition = attached
}

// choose reserves a free slot under condition c. The search goes round, so that
// the address of a sandbox that ended is not soon another's. m.mu is held.
func (m *Manager) choose(c condition) (int, error) {
	size := capacity(m.subnet)
	for range size {
		m.next = m.next%size + 1
		if s := m.slotLocked(m.next); s.condition == free {
			s.condition = c
			return m.next, nil
		}
	}
	return 0, fmt.Errorf("subnet %s has %d slots: %w; remove sandboxes or configure a larger subnet", m.subnet, size, ErrFull)
}

// Attach gives a sandbox its network. Slot 0 takes one from the pool or chooses
// a free one; a given slot is made, or repaired if it is there already. The
// inner addresses are (re)added so that a runtime can take them over: do not
// attach a slot in which a runtime is running. On error the slot has no network,
// and a given one stays the caller's until Detach.
// ErrFull when the subnet is used up.
func (m *Manager) Attach(ctx context.Context, n int, p Policy) (Endpoint, error) {
	r, err := p.compile()
	if err != nil {
		return Endpoint{}, err
	}
	if n < 0 || n > capacity(m.subnet) {
		return Endpoint{}, fmt.Errorf("network slot %d: outside subnet %s", n, m.subnet)
	}
	if err := ctx.Err(); err != nil {
		return Endpoint{}, err
	}
	kept := n != 0
	n, ready, err := m.take(n)
	if err != nil {
		return Endpoint{}, err
	}
	s := m.slot(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	m.own(n)
	if !ready {
		err = m.restore(n)
	}
	if err == nil {
		m.openWay(r)
		err = m.fw.set(n, r)
	}
	if err != nil && kept {
		return Endpoint{}, errors.Join(err, m.strip(n)) // the caller's records name it: still theirs
	}
	if err != nil {
		return Endpoint{}, errors.Join(err, m.erase(n))
	}
	return Endpoint{Slot: n, NetNS: m.nsPath(n), Addr: m.Addr(n)}, nil
}

// take picks the slot to attach; ready tells that it came from the pool.
func (m *Manager) take(n int) (int, bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return 0, false, ErrClosed
	}
	for i, p := range m.ready {
		if n == 0 || n == p {
			m.ready = slices.Delete(m.ready, i, i+1)
			m.slots[p].condition = attached
			m.wake()
			return p, true, nil
		}
	}
	if n != 0 {
		return n, false, nil
	}
	n, err := m.choose(attached)
	return n, false, err
}

// restore makes a slot whole and fresh inside. s.mu is held.
func (m *Manager) restore(n int) error {
	if !m.whole(n) {
		return m.build(n)
	}
	if err := m.outer(n); err != nil {
		return err
	}
	return m.refresh(n)
}

// Refresh puts the inner addresses and routes of an existing slot back after a
// runtime took them and ended, so that the next one finds them.
func (m *Manager) Refresh(ctx context.Context, n int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := m.slot(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	return m.refresh(n)
}

func (m *Manager) refresh(n int) error {
	h, err := m.inside(n)
	if err != nil {
		return fmt.Errorf("refresh network slot %d: %w", n, err)
	}
	defer h.Close()
	if err := inner(h); err != nil {
		return fmt.Errorf("refresh network slot %d: %w", n, err)
	}
	return nil
}

// SetPolicy changes what an attached slot may reach, from the next packet on.
func (m *Manager) SetPolicy(ctx context.Context, n int, p Policy) error {
	r, err := p.compile()
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s := m.slot(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := m.fw.rulesOf(n); !ok {
		return fmt.Errorf("network slot %d: is not attached", n)
	}
	m.openWay(r)
	return m.fw.set(n, r)
}

// Detach takes a slot's network away. Its traffic stops before Detach returns;
// namespace and veth are removed in the background, and the slot is free after
// that. Not attached: nil.
func (m *Manager) Detach(ctx context.Context, n int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s := m.slot(n)
	s.mu.Lock()
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		s.mu.Unlock()
		return ErrClosed
	}
	if s.condition == free || s.condition == pooled {
		m.mu.Unlock()
		s.mu.Unlock()
		return nil
	}
	s.condition = leaving
	m.work.Add(1)
	m.mu.Unlock()
	err := m.fw.clear(n)
	go func() {
		defer m.work.Done()
		defer s.mu.Unlock()
		m.remove <- struct{}{}
		defer func() { <-m.remove }()
		if err := m.erase(n); err != nil {
			m.log.Error("network slot not removed", "slot", n, "error", err)
		}
	}()
	return err
}

// erase removes all of a slot and frees it. s.mu is held.
func (m *Manager) erase(n int) error {
	if err := m.strip(n); err != nil {
		return err // still leaving: the slot is not given out again
	}
	m.become(n, free)
	return nil
}

// strip removes all of a slot, but keeps it from being given out. s.mu is held.
func (m *Manager) strip(n int) error {
	if err := m.fw.clear(n); err != nil {
		return err
	}
	if err := m.tear(n); err != nil {
		return err
	}
	m.forget(n)
	return nil
}

// forget drops tracked connections of the slot's address, so that the next
// sandbox there gets no packets of the last one's. What remains times out.
func (m *Manager) forget(n int) {
	f := &netlink.ConntrackFilter{}
	if err := f.AddIP(netlink.ConntrackOrigSrcIP, net.IP(bytes4(m.Addr(n)))); err != nil {
		return
	}
	if _, err := m.host.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, f); err != nil {
		m.log.Debug("tracked connections kept", "slot", n, "error", err)
	}
}

// drop erases a slot in the foreground.
func (m *Manager) drop(n int) error {
	s := m.slot(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	return m.erase(n)
}

func (m *Manager) wake() {
	select {
	case m.kick <- struct{}{}:
	default:
	}
}

// fillPool keeps namespaces ready until the manager is closed.
func (m *Manager) fillPool() {
	for {
		wait := time.Duration(0)
		for m.ctx.Err() == nil {
			more, err := m.fillOne()
			if err != nil {
				m.log.Warn("network pool not filled", "error", err)
				wait = time.Second
			}
			if err != nil || !more {
				break
			}
		}
		var again <-chan time.Time
		if wait > 0 {
			again = time.After(wait)
		}
		select {
		case <-m.ctx.Done():
			return
		case <-m.kick:
		case <-again:
		}
	}
}

// fillOne builds one namespace for the pool, with an outside address and no
// policy: it reaches nothing.
func (m *Manager) fillOne() (more bool, err error) {
	m.mu.Lock()
	if m.closed || len(m.ready) >= m.pool {
		m.mu.Unlock()
		return false, nil
	}
	n, err := m.choose(pooled)
	m.mu.Unlock()
	if err != nil {
		return false, err
	}
	s := m.slot(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err = m.build(n); err == nil {
		err = m.fw.set(n, rules{})
	}
	if err != nil {
		m.become(n, free)
		return false, err
	}
	m.mu.Lock()
	closed := m.closed
	if !closed {
		m.ready = append(m.ready, n)
	}
	m.mu.Unlock()
	if closed {
		return false, m.erase(n)
	}
	return true, nil
}
