package network

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Other programs' tables have their say as well: a packet passes only if every
// table lets it. Docker, ufw and firewalld drop what they do not know in FORWARD
// or INPUT. What comes from or goes to our veths is judged by our own table in
// full, so it is safe to let it pass theirs, and only there.

// dockerUser is the chain that Docker keeps for others' rules and jumps to first.
const dockerUser = "DOCKER-USER"

// blocker is a base chain of another table that drops by default.
type blocker struct {
	base   *nftables.Chain
	insert *nftables.Chain // where an exception belongs
	done   bool            // it is there
}

func (b blocker) String() string {
	return fmt.Sprintf("chain %s of table %s", b.base.Name, b.base.Table.Name)
}

// blockers finds the chains of other tables that would drop sandbox traffic.
func blockers(c *nftables.Conn, instance string) ([]blocker, error) {
	var out []blocker
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyINet} {
		chains, err := c.ListChainsOfTableFamily(family)
		if err != nil {
			return nil, fmt.Errorf("list nftables chains: %w", err)
		}
		for _, ch := range chains {
			if !drops(ch) || strings.HasPrefix(ch.Table.Name, "holdfast_") {
				continue
			}
			b := blocker{base: ch, insert: ch}
			if i := slices.IndexFunc(chains, func(o *nftables.Chain) bool {
				return o.Name == dockerUser && o.Table.Name == ch.Table.Name && *ch.Hooknum == *nftables.ChainHookForward
			}); i >= 0 {
				b.insert = chains[i]
			}
			mine, err := exceptionsIn(c, b.insert, instance)
			if err != nil {
				return nil, err
			}
			b.done = len(mine) > 0
			out = append(out, b)
		}
	}
	return out, nil
}

func drops(ch *nftables.Chain) bool {
	return ch.Type == nftables.ChainTypeFilter && ch.Hooknum != nil && ch.Policy != nil && *ch.Policy == nftables.ChainPolicyDrop &&
		(*ch.Hooknum == *nftables.ChainHookForward || *ch.Hooknum == *nftables.ChainHookInput)
}

// exceptionsIn finds our rules in a chain: those that accept by the start of our
// veths' names. iptables keeps no comment of rules that it did not make.
func exceptionsIn(c *nftables.Conn, ch *nftables.Chain, instance string) ([]*nftables.Rule, error) {
	rules, err := c.GetRules(ch.Table, ch)
	if err != nil {
		return nil, fmt.Errorf("list rules of chain %s: %w", ch.Name, err)
	}
	return slices.DeleteFunc(rules, func(r *nftables.Rule) bool {
		return !slices.ContainsFunc(r.Exprs, func(e expr.Any) bool {
			cmp, ok := e.(*expr.Cmp)
			return ok && string(cmp.Data) == vethPrefix(instance)
		})
	}), nil
}

// coexist puts an exception into every chain that needs one. What fails is left
// for Check to report.
func (m *Manager) coexist() {
	if err := m.except(); err != nil {
		m.log.Warn("another firewall may drop sandbox traffic", "error", err)
	}
}

func (m *Manager) except() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	list, err := blockers(c, m.instance)
	if err != nil {
		return err
	}
	ours := []byte(vethPrefix(m.instance))
	for _, b := range list {
		if b.done {
			continue
		}
		// In the shape in which iptables writes `-i name+ -j ACCEPT`, so that it can
		// list them.
		pass := func(k expr.MetaKey) {
			c.InsertRule(&nftables.Rule{Table: b.insert.Table, Chain: b.insert, Exprs: join(
				link(k, expr.CmpOpEq, ours), phrase{&expr.Counter{}}, verdict(expr.VerdictAccept),
			)})
		}
		pass(expr.MetaKeyIIFNAME)
		if *b.base.Hooknum == *nftables.ChainHookForward {
			pass(expr.MetaKeyOIFNAME)
		}
		if err := c.Flush(); err != nil {
			return fmt.Errorf("add exception to %s: %w", b, err)
		}
		m.log.Info("let sandbox traffic pass another firewall", "chain", b.insert.Name, "table", b.insert.Table.Name)
	}
	return nil
}

// withdraw removes our exceptions from all chains of other tables.
func (m *Manager) withdraw() error {
	c, err := nftables.New()
	if err != nil {
		return err
	}
	for _, family := range []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyINet} {
		chains, err := c.ListChainsOfTableFamily(family)
		if err != nil {
			return fmt.Errorf("list nftables chains: %w", err)
		}
		for _, ch := range chains {
			if strings.HasPrefix(ch.Table.Name, "holdfast_") || (ch.Hooknum == nil && ch.Name != dockerUser) {
				continue
			}
			mine, err := exceptionsIn(c, ch, m.instance)
			if err != nil {
				return err
			}
			for _, r := range mine {
				if err := c.DelRule(r); err != nil {
					return err
				}
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("remove exceptions from other tables: %w", err)
	}
	return nil
}
