package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// elementsPerMessage keeps one netlink attribute under its limit of 64 KiB.
const elementsPerMessage = 500

// install makes the table what define says. Sets left by an earlier process are
// kept with their elements and read back, so running sandboxes notice nothing.
// A table of another shape (other version) is replaced: its sandboxes reach
// nothing until Sync.
func (f *firewall) install() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.batch(f.define)
	if err == nil {
		return f.readBack()
	}
	if !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("install nftables table %s: %w; the kernel needs nf_tables with nat and masquerade", f.table.Name, err)
	}
	return f.rebuild()
}

// rebuild replaces the whole table by what slots says. f.mu is held.
func (f *firewall) rebuild() error {
	err := f.batch(func(c *nftables.Conn) error {
		c.AddTable(f.table) // so that deleting it cannot fail
		c.DelTable(f.table)
		if err := f.define(c); err != nil {
			return err
		}
		return f.fill(c)
	})
	f.dirty = err != nil
	if err != nil {
		return fmt.Errorf("rebuild nftables table %s: %w", f.table.Name, err)
	}
	return nil
}

// fill adds the elements of all slots.
func (f *firewall) fill(c *nftables.Conn) error {
	all := map[*nftables.Set][]nftables.SetElement{}
	for n, r := range f.slots {
		all[f.outside] = append(all[f.outside], f.nameElement(n))
		for s, e := range f.elements(n, r) {
			all[s] = append(all[s], e...)
		}
	}
	for s, e := range all {
		if err := addElements(c, s, e); err != nil {
			return err
		}
	}
	return nil
}

// present tells whether the table is there.
func (f *firewall) present() (bool, error) {
	c, err := nftables.New()
	if err != nil {
		return false, err
	}
	t, err := c.ListTableOfFamily(f.table.Name, nftables.TableFamilyIPv4)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	return t != nil, err
}

// repair rebuilds the table if someone took it away or a change failed; it
// tells whether it did.
func (f *firewall) repair() (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ok, err := f.present(); err != nil || (ok && !f.dirty) {
		return false, err
	}
	return true, f.rebuild()
}

// uninstall removes the table. None there: nil.
func (f *firewall) uninstall() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.batch(func(c *nftables.Conn) error {
		c.AddTable(f.table)
		c.DelTable(f.table)
		return nil
	})
}

// set gives a slot its rules, and its outside address if it had none.
func (f *firewall) set(slot int, r rules) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, known := f.slots[slot]
	if known && !f.dirty && old.equal(r) {
		return nil
	}
	f.slots[slot] = r
	return f.change(func(c *nftables.Conn) error {
		if !known {
			if err := addElements(c, f.outside, []nftables.SetElement{f.nameElement(slot)}); err != nil {
				return err
			}
		}
		return f.difference(c, slot, old, r)
	})
}

// clear takes a slot's rules and outside address away.
func (f *firewall) clear(slot int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old, known := f.slots[slot]
	if !known {
		return nil
	}
	delete(f.slots, slot)
	return f.change(func(c *nftables.Conn) error {
		if err := c.SetDeleteElements(f.outside, []nftables.SetElement{f.nameElement(slot)}); err != nil {
			return err
		}
		return f.difference(c, slot, old, rules{})
	})
}

// change applies one batch. If the kernel does not hold what we think (someone
// flushed the ruleset), everything is put back. f.mu is held.
func (f *firewall) change(fill func(*nftables.Conn) error) error {
	err := f.batch(fill)
	if err == nil {
		return nil
	}
	if again := f.rebuild(); again != nil {
		return fmt.Errorf("change nftables table %s: %w", f.table.Name, errors.Join(err, again))
	}
	return nil
}

// difference adds to the batch what leads from old to new.
func (f *firewall) difference(c *nftables.Conn, slot int, old, new rules) error {
	before, after := f.elements(slot, old), f.elements(slot, new)
	for _, s := range []*nftables.Set{f.internet, f.allowPr, f.allow, f.deny} {
		if slices.EqualFunc(before[s], after[s], sameElement) {
			continue
		}
		for part := range slices.Chunk(before[s], elementsPerMessage) {
			if err := c.SetDeleteElements(s, part); err != nil {
				return err
			}
		}
		if err := addElements(c, s, after[s]); err != nil {
			return err
		}
	}
	return nil
}

func addElements(c *nftables.Conn, s *nftables.Set, all []nftables.SetElement) error {
	for part := range slices.Chunk(all, elementsPerMessage) {
		if err := c.SetAddElements(s, part); err != nil {
			return fmt.Errorf("fill set %s: %w", s.Name, err)
		}
	}
	return nil
}

func sameElement(a, b nftables.SetElement) bool {
	return string(a.Key) == string(b.Key) && string(a.KeyEnd) == string(b.KeyEnd)
}

func (f *firewall) nameElement(slot int) nftables.SetElement {
	key := make([]byte, unix.IFNAMSIZ)
	copy(key, vethName(f.instance, slot))
	return nftables.SetElement{Key: key, Val: bytes4(nth(f.subnet, slot))}
}

func (f *firewall) elements(slot int, r rules) map[*nftables.Set][]nftables.SetElement {
	addr := bytes4(nth(f.subnet, slot))
	pairs := func(list []span) (out []nftables.SetElement) {
		for _, s := range list {
			out = append(out, nftables.SetElement{
				Key: slices.Concat(addr, ip4(s.from)), KeyEnd: slices.Concat(addr, ip4(s.to)),
			})
		}
		return out
	}
	m := map[*nftables.Set][]nftables.SetElement{
		f.allowPr: pairs(r.allowPrivate), f.allow: pairs(r.allow), f.deny: pairs(r.deny),
	}
	if r.internet {
		m[f.internet] = []nftables.SetElement{{Key: addr}}
	}
	return m
}

// readBack learns from the kernel what an earlier process had set. f.mu is held.
func (f *firewall) readBack() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	found := map[int]rules{}
	names, err := c.GetSetElements(f.outside)
	if err != nil {
		return fmt.Errorf("read set %s: %w", f.outside.Name, err)
	}
	for _, e := range names {
		if n, ok := slotOf(f.instance, strings.TrimRight(string(e.Key), "\x00")); ok && n <= capacity(f.subnet) {
			found[n] = rules{}
		}
	}
	for _, s := range []*nftables.Set{f.internet, f.allowPr, f.allow, f.deny} {
		list, err := c.GetSetElements(s)
		if err != nil {
			return fmt.Errorf("read set %s: %w", s.Name, err)
		}
		for _, e := range list {
			addr, _ := netip.AddrFromSlice(e.Key[:4])
			n := index(f.subnet, addr)
			r, ok := found[n]
			if !ok { // not of our making
				return f.rebuild()
			}
			switch s {
			case f.internet:
				r.internet = true
			case f.allowPr:
				r.allowPrivate = append(r.allowPrivate, elementSpan(e))
			case f.allow:
				r.allow = append(r.allow, elementSpan(e))
			case f.deny:
				r.deny = append(r.deny, elementSpan(e))
			}
			found[n] = r
		}
	}
	for n, r := range found {
		for _, l := range [][]span{r.allowPrivate, r.allow, r.deny} {
			slices.SortFunc(l, func(a, b span) int { return int(int64(a.from) - int64(b.from)) })
		}
		f.slots[n] = r
	}
	return nil
}

func elementSpan(e nftables.SetElement) span {
	from, _ := netip.AddrFromSlice(e.Key[4:8])
	to, _ := netip.AddrFromSlice(e.KeyEnd[4:8])
	return span{number(from), number(to)}
}

// batch sends what fill adds as one transaction. f.mu is held. The connection
// is kept, because closing one waits for the kernel to clean up after earlier
// removals; after an error its unread answers would confuse the next batch.
func (f *firewall) batch(fill func(*nftables.Conn) error) error {
	if f.conn == nil {
		c, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return err
		}
		f.conn = c
	}
	err := fill(f.conn)
	if err == nil {
		err = f.conn.Flush()
	}
	if err != nil {
		f.disconnect()
	}
	return err
}

// disconnect closes the connection; the next batch opens another.
func (f *firewall) disconnect() {
	if f.conn != nil {
		_ = f.conn.CloseLasting()
		f.conn = nil
	}
}

func (f *firewall) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.disconnect()
}

// rulesOf gives a slot's rules.
func (f *firewall) rulesOf(slot int) (rules, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.slots[slot]
	return r, ok
}
