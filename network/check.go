package network

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/google/nftables"
)

// Problem is something on this machine that keeps sandboxes from the network.
type Problem struct {
	What string // what is wrong and what comes of it
	Next string // what to do
}

// Check looks for problems, for doctor. It changes nothing. None: empty.
func (m *Manager) Check() []Problem {
	var out []Problem
	add := func(next, what string, args ...any) {
		out = append(out, Problem{What: fmt.Sprintf(what, args...), Next: next})
	}
	links, err := uplinks(m.host)
	switch {
	case err != nil:
		add("run as root", "routes cannot be read: %v", err)
	case len(links) == 0:
		add("add a default route; sandboxes work without internet until then", "this machine has no IPv4 default route")
	}
	for _, l := range links {
		name := l.Attrs().Name
		if !sysctlIs("ipv4/conf/"+name+"/forwarding", "1") {
			add("run: sysctl -w net.ipv4.conf."+name+".forwarding=1 (or restart the daemon)",
				"forwarding is off for the uplink %s, so no answer reaches a sandbox", name)
		}
	}
	if ok, err := m.fw.present(); err != nil {
		add("load the kernel module nf_tables and run as root", "nftables cannot be read: %v", err)
	} else if !ok {
		add(fmt.Sprintf("the daemon puts it back within %s; find out who flushes the ruleset (systemctl restart nftables does)", guardEvery),
			"nftables table %s is gone, so sandboxes reach nothing", tableName(m.instance))
	}
	if c, err := nftables.New(); err == nil {
		list, err := blockers(c, m.instance)
		if err != nil {
			add("run as root", "other firewalls cannot be read: %v", err)
		}
		for _, b := range list {
			if !b.done {
				add(fmt.Sprintf("the daemon adds an exception within %s; if this stays, accept interfaces %s* there by hand", guardEvery, vethPrefix(m.instance)),
					"%s drops what it does not know, sandbox traffic included", b)
			}
		}
	}
	out = append(out, legacyDrops(vethPrefix(m.instance))...)
	if left, err := m.Leftovers(); err != nil {
		add("run as root", "leftovers cannot be listed: %v", err)
	} else if len(left) > 0 {
		add("restart the daemon, which removes them", "%d network slots belong to no sandbox: %v", len(left), left)
	}
	return out
}

// legacyDrops looks at iptables in its old form, which nftables does not show.
// Its tables exist only where something has used them.
func legacyDrops(veth string) []Problem {
	tables, err := os.ReadFile("/proc/net/ip_tables_names")
	if err != nil || !strings.Contains(string(tables), "filter\n") {
		return nil
	}
	tool, err := exec.LookPath("iptables-legacy")
	if err != nil {
		return nil
	}
	var out []Problem
	for _, chain := range []string{"INPUT", "FORWARD"} {
		rules, err := exec.Command(tool, "-w", "-S", chain).Output()
		if err != nil || !strings.Contains(string(rules), "-P "+chain+" DROP") || strings.Contains(string(rules), veth+"+ ") {
			continue
		}
		next := fmt.Sprintf("run: %s -I %s -i %s+ -j ACCEPT", tool, chain, veth)
		if chain == "FORWARD" {
			next += fmt.Sprintf(" && %s -I %s -o %s+ -j ACCEPT", tool, chain, veth)
		}
		out = append(out, Problem{What: fmt.Sprintf("iptables (legacy) drops %s by default, sandbox traffic included", chain), Next: next})
	}
	return out
}
