package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Synced says what Sync had to do.
type Synced struct {
	// Rebuilt slots had lost their namespace or veth and got new ones, with the
	// inner addresses in place. A runtime still alive in an old namespace is cut
	// off: end it and restore.
	Rebuilt []int
	// Removed slots were nobody's.
	Removed []int
}

// syncWorkers bounds how many slots are looked at at once.
const syncWorkers = 4

// Sync makes the network what the caller's records say, after a restart of the
// daemon or the machine: every slot of want exists with its policy, slots left by
// an earlier process and not in want are gone. It does not touch the inside of
// slots that are whole, so sandboxes in them run on. Slots attached since New and
// the pool are left alone. A slot that fails does not keep the rest from being
// done; its error is in the joined one.
func (m *Manager) Sync(ctx context.Context, want map[int]Policy) (Synced, error) {
	var out Synced
	var errs []error
	m.coexist()
	present, err := m.present()
	if err != nil {
		return out, err
	}
	all := slices.Clone(present)
	for n := range want {
		if !slices.Contains(present, n) {
			all = append(all, n)
		}
	}
	slices.Sort(all)

	var mu sync.Mutex // out, errs
	var group sync.WaitGroup
	work := make(chan int)
	for range syncWorkers {
		group.Go(func() {
			for n := range work {
				p, wanted := want[n]
				rebuilt, removed, err := m.settle(n, p, wanted)
				mu.Lock()
				if rebuilt {
					out.Rebuilt = append(out.Rebuilt, n)
				}
				if removed {
					out.Removed = append(out.Removed, n)
				}
				if err != nil {
					errs = append(errs, fmt.Errorf("network slot %d: %w", n, err))
				}
				mu.Unlock()
			}
		})
	}
	for _, n := range all {
		if err := ctx.Err(); err != nil {
			errs = append(errs, err)
			break
		}
		work <- n
	}
	close(work)
	group.Wait()
	slices.Sort(out.Rebuilt)
	slices.Sort(out.Removed)
	return out, errors.Join(errs...)
}

// settle brings one slot in line.
func (m *Manager) settle(n int, p Policy, wanted bool) (rebuilt, removed bool, err error) {
	if n < 1 || n > capacity(m.subnet) {
		if wanted {
			return false, false, fmt.Errorf("outside subnet %s", m.subnet)
		}
		return false, true, m.tear(n)
	}
	r, err := p.compile()
	if err != nil {
		return false, false, err
	}
	s := m.slot(n)
	s.mu.Lock()
	defer s.mu.Unlock()
	if !wanted {
		m.mu.Lock()
		c := s.condition
		m.mu.Unlock()
		if c == attached || c == pooled {
			return false, false, nil
		}
		return false, true, m.erase(n)
	}
	m.own(n)
	if m.whole(n) {
		err = m.outer(n)
	} else {
		rebuilt, err = true, m.build(n)
	}
	if err != nil {
		return rebuilt, false, err
	}
	m.openWay(r)
	return rebuilt, false, m.fw.set(n, r)
}

// Leftovers gives the slots that exist on this machine and belong neither to a
// sandbox nor to the pool. Sync removes them.
func (m *Manager) Leftovers() ([]int, error) {
	present, err := m.present()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.DeleteFunc(present, func(n int) bool {
		s := m.slots[n]
		return s != nil && (s.condition == attached || s.condition == pooled || s.condition == leaving)
	}), nil
}

// adopt marks what an earlier process left, so that no such slot is given out.
func (m *Manager) adopt() error {
	present, err := m.present()
	if err != nil {
		return err
	}
	for _, n := range present {
		m.become(n, unknown)
	}
	return nil
}

// present lists the slots of which anything is left: link or namespace file.
func (m *Manager) present() ([]int, error) {
	found := map[int]bool{}
	links, err := dump(m.host.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if n, ok := slotOf(m.instance, l.Attrs().Name); ok {
			found[n] = true
		}
	}
	files, err := os.ReadDir(m.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	for _, f := range files {
		if n, err := strconv.Atoi(f.Name()); err == nil && n > 0 {
			found[n] = true
		}
	}
	out := make([]int, 0, len(found))
	for n := range found {
		out = append(out, n)
	}
	slices.Sort(out)
	return out, nil
}

// guard puts the table, and our exceptions in other programs' tables, back when
// somebody flushes the ruleset.
func (m *Manager) guard() {
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	for {
		select {
		case <-m.ctx.Done():
			return
		case <-tick.C:
			m.repair()
		}
	}
}

func (m *Manager) repair() {
	repaired, err := m.fw.repair()
	switch {
	case err != nil:
		m.log.Error("firewall not repaired; sandboxes reach nothing", "error", err)
	case repaired:
		m.log.Warn("firewall table was missing and has been put back")
	}
	m.coexist()
}
