package network

import (
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// otherFirewall makes a table like those of Docker and ufw.
func otherFirewall(t *testing.T, family nftables.TableFamily, table string, docker bool) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	tab := c.AddTable(&nftables.Table{Family: family, Name: table})
	drop := nftables.ChainPolicyDrop
	for name, hook := range map[string]*nftables.ChainHook{"FORWARD": nftables.ChainHookForward, "INPUT": nftables.ChainHookInput} {
		ch := c.AddChain(&nftables.Chain{Table: tab, Name: name, Type: nftables.ChainTypeFilter, Hooknum: hook,
			Priority: nftables.ChainPriorityFilter, Policy: &drop})
		if docker && name == "FORWARD" {
			c.AddChain(&nftables.Chain{Table: tab, Name: dockerUser})
			c.AddRule(&nftables.Rule{Table: tab, Chain: ch, Exprs: []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictJump, Chain: dockerUser}}})
		}
		// The host's own traffic goes on.
		c.AddRule(&nftables.Rule{Table: tab, Chain: ch, Exprs: join(link(expr.MetaKeyIIFNAME, expr.CmpOpEq, []byte("lo\x00")), verdict(expr.VerdictAccept))})
	}
	if err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.DelTable(tab)
		if err := c.Flush(); err != nil {
			t.Error(err)
		}
	})
}

func TestOtherFirewallsLetSandboxesPass(t *testing.T) {
	for _, c := range []struct {
		name   string
		family nftables.TableFamily
		table  string
		docker bool
	}{
		{"docker", nftables.TableFamilyIPv4, "filter", true},
		{"ufw", nftables.TableFamilyIPv4, "filter", false},
		{"inet", nftables.TableFamilyINet, "other", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			web := hello(t, internet.do, "web")
			m := open(t, Options{Upstream: nil})
			_, in := attach(t, m, Policy{AllowInternet: true})
			otherFirewall(t, c.family, c.table, c.docker)
			if p := m.Check(); len(p) != 2 || !strings.Contains(p[0].What+p[1].What, "FORWARD") || !strings.Contains(p[0].What+p[1].What, "INPUT") {
				t.Errorf("check: got %v, want both chains", p)
			}
			m.repair()
			m.repair() // adds nothing more
			if p := m.Check(); len(p) != 0 {
				t.Errorf("check after repair: got %v", p)
			}
			reaches(t, in.do, publicA, web, "web "+uplinkAddr.Addr().String())
			if _, err := ask(in.do, "udp", GatewayAddr, "some.test.", 1); err != nil {
				t.Error("no answer to a question:", err)
			}
			if got := countExceptions(t, m.instance); got != 3 {
				t.Errorf("%d exceptions, want 3: in and out of FORWARD, into INPUT", got)
			}
			if err := m.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := countExceptions(t, m.instance); got != 0 {
				t.Errorf("%d exceptions are left", got)
			}
		})
	}
}

func countExceptions(t *testing.T, instance string) (n int) {
	t.Helper()
	c, err := nftables.New()
	if err != nil {
		t.Fatal(err)
	}
	chains, err := c.ListChains()
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range chains {
		if strings.HasPrefix(ch.Table.Name, "holdfast_") {
			continue
		}
		mine, err := exceptionsIn(c, ch, instance)
		if err != nil {
			t.Fatal(err)
		}
		n += len(mine)
	}
	return n
}

func TestCheckWithoutUplink(t *testing.T) {
	m := open(t, Options{Pool: -1})
	if err := sysctl("ipv4/conf/up0/forwarding", "0"); err != nil {
		t.Fatal(err)
	}
	p := m.Check()
	if len(p) != 1 || !strings.Contains(p[0].What, "forwarding is off") || !strings.Contains(p[0].Next, "sysctl") {
		t.Errorf("check without forwarding: got %v", p)
	}
	m.forwardFrom("up0")
	if p := m.Check(); len(p) != 0 {
		t.Errorf("check: got %v", p)
	}
}
