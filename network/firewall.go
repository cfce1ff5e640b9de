package network

import (
	"fmt"
	"net/netip"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// firewall is the instance's nftables table. The number of rules is constant;
// what differs between sandboxes sits in maps and sets keyed by interface or
// outside address, so a change is one small netlink batch.
//
//	map outside        veth name → outside address
//	set internet       outside address
//	set allow_private  outside address . destination range
//	set allow, deny    the same
//	set private        destination range, the same for all
//
// Chains, in the order in which a packet meets them:
//
//	inner_out   prerouting, before defragmentation: from our veths, drop any other
//	            source, then inner → outside. Before defragmentation because
//	            fragments are put together by source address, and all sandboxes
//	            have the same one.
//	dns         prerouting, dstnat: port 53 of the gateway → the forwarder's port
//	input       to the host: answers and DNS only
//	forward     policy
//	output      from the host to sandboxes: root only
//	masquerade  postrouting, srcnat: leaving by an interface that is not ours
//	inner_in    postrouting, after srcnat: to our veths, outside → inner
type firewall struct {
	instance string
	subnet   netip.Prefix
	port     uint16 // of the DNS forwarder

	table    *nftables.Table
	outside  *nftables.Set
	internet *nftables.Set
	allowPr  *nftables.Set
	allow    *nftables.Set
	deny     *nftables.Set
	private  *nftables.Set
	errors   *nftables.Set // ICMP types that quote a packet

	mu    sync.Mutex
	conn  *nftables.Conn // nil until used
	slots map[int]rules  // what the kernel holds, or is to hold once repaired
	dirty bool           // the kernel may not hold what slots says
}

// Priorities beside the well-known ones.
const (
	beforeDefrag = -450 // NF_IP_PRI_CONNTRACK_DEFRAG is -400
	dstNAT       = -100
	srcNAT       = 100
	afterNAT     = 150
)

func tableName(instance string) string { return "holdfast_" + instance }

func newFirewall(instance string, subnet netip.Prefix, port uint16) *firewall {
	t := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: tableName(instance)}
	two := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeIPAddr)
	// Ids are given here because the library would draw them from an unguarded
	// global; they need only be unique within a batch.
	pairs := func(id uint32, name string) *nftables.Set {
		return &nftables.Set{Table: t, ID: id, Name: name, KeyType: two, Interval: true, Concatenation: true}
	}
	return &firewall{
		instance: instance, subnet: subnet, port: port, table: t,
		outside:  &nftables.Set{Table: t, ID: 1, Name: "outside", IsMap: true, KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian, DataType: nftables.TypeIPAddr},
		internet: &nftables.Set{Table: t, ID: 2, Name: "internet", KeyType: nftables.TypeIPAddr},
		allowPr:  pairs(3, "allow_private"),
		allow:    pairs(4, "allow"),
		deny:     pairs(5, "deny"),
		private:  &nftables.Set{Table: t, ID: 6, Name: "private", KeyType: nftables.TypeIPAddr, Interval: true},
		errors:   &nftables.Set{Table: t, ID: 7, Name: "icmp_errors", KeyType: nftables.TypeICMPType},
		slots:    map[int]rules{},
	}
}

// define adds table, sets and rules to the batch. What exists is kept, except
// for rules, which are replaced within the same transaction.
func (f *firewall) define(c *nftables.Conn) error {
	c.AddTable(f.table)
	for _, s := range []*nftables.Set{f.outside, f.internet, f.allowPr, f.allow, f.deny, f.private, f.errors} {
		if err := c.AddSet(s, nil); err != nil {
			return fmt.Errorf("define set %s: %w", s.Name, err)
		}
	}
	c.FlushSet(f.private)
	var ranges []nftables.SetElement
	for _, s := range spans(private) {
		ranges = append(ranges, nftables.SetElement{Key: ip4(s.from)})
		if s.to != 1<<32-1 { // a last range without end reaches to the top
			ranges = append(ranges, nftables.SetElement{Key: ip4(s.to + 1), IntervalEnd: true})
		}
	}
	if err := c.SetAddElements(f.private, ranges); err != nil {
		return fmt.Errorf("define private ranges: %w", err)
	}
	quoting := []nftables.SetElement{{Key: []byte{3}}, {Key: []byte{11}}, {Key: []byte{12}}}
	if err := c.SetAddElements(f.errors, quoting); err != nil {
		return fmt.Errorf("define icmp errors: %w", err)
	}
	f.translation(c)
	f.filter(c)
	return nil
}

// translation adds the chains that change addresses.
func (f *firewall) translation(c *nftables.Conn) {
	ours := []byte(vethPrefix(f.instance))
	inner, gateway := bytes4(InnerAddr), bytes4(GatewayAddr)
	fromUs := link(expr.MetaKeyIIFNAME, expr.CmpOpEq, ours)
	fromOthers := link(expr.MetaKeyIIFNAME, expr.CmpOpNeq, ours)
	toOthers := link(expr.MetaKeyOIFNAME, expr.CmpOpNeq, ours)

	f.chain(c, "inner_out", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, beforeDefrag,
		// Nobody else speaks as one of our outside addresses.
		join(fromOthers, within(f.subnet), verdict(expr.VerdictDrop)),
		join(fromOthers, verdict(expr.VerdictReturn)),
		join(load(source), compare(expr.CmpOpNeq, inner), verdict(expr.VerdictDrop)),
		join(meta(expr.MetaKeyIIFNAME), translate(f.outside), rewrite(source)),
		// Still the inner address: the veth has no slot.
		join(load(source), compare(expr.CmpOpEq, inner), verdict(expr.VerdictDrop)),
	)
	query := join(fromUs, load(destination), compare(expr.CmpOpEq, gateway))
	f.chain(c, "dns", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, dstNAT,
		join(query, protocol(unix.IPPROTO_UDP), toPort(53), redirect(f.port)),
		join(query, protocol(unix.IPPROTO_TCP), toPort(53), redirect(f.port)),
	)
	f.chain(c, "masquerade", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, srcNAT,
		join(within(f.subnet), toOthers, phrase{&expr.Masq{FullyRandom: true}}),
	)
	f.chain(c, "inner_in", nftables.ChainTypeFilter, nftables.ChainHookPostrouting, afterNAT,
		join(toOthers, verdict(expr.VerdictReturn)),
		join(immediate(inner), rewrite(destination)),
		// An ICMP error quotes the header of the packet it is about. The sandbox
		// finds the connection by it, and path MTU discovery depends on that.
		join(quotesPacket(f.errors), immediate(inner), rewriteQuoted()),
	)
}

// filter adds the chains that decide.
func (f *firewall) filter(c *nftables.Conn) {
	ours := []byte(vethPrefix(f.instance))
	gateway := bytes4(GatewayAddr)
	fromOthers := link(expr.MetaKeyIIFNAME, expr.CmpOpNeq, ours)
	toUs := link(expr.MetaKeyOIFNAME, expr.CmpOpEq, ours)
	accept, refuse := verdict(expr.VerdictAccept), jump("refuse")

	// A refusal is told at once; the program inside need not wait for a timeout.
	f.chain(c, "refuse", nftables.ChainTypeFilter, nil, 0,
		join(protocol(unix.IPPROTO_TCP), phrase{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}}),
		phrase{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3}}, // port unreachable: gVisor passes it on to UDP sockets too
	)
	toForwarder := join(load(destination), compare(expr.CmpOpEq, gateway))
	f.chain(c, "input", nftables.ChainTypeFilter, nftables.ChainHookInput, 0,
		join(fromOthers, verdict(expr.VerdictReturn)),
		join(answers(), accept),
		join(toForwarder, protocol(unix.IPPROTO_UDP), toPort(f.port), accept),
		join(toForwarder, protocol(unix.IPPROTO_TCP), toPort(f.port), accept),
		refuse,
	)
	f.chain(c, "forward", nftables.ChainTypeFilter, nftables.ChainHookForward, 0,
		// Towards sandboxes go only answers, never from another sandbox. The host
		// itself opens connections to them, but its packets do not pass here.
		join(toUs, fromOthers, answers(), accept),
		join(toUs, fromOthers, verdict(expr.VerdictDrop)),
		join(fromOthers, verdict(expr.VerdictReturn)),
		// From sandboxes every packet is judged, not only the first, so that a
		// changed policy holds for open connections. A packet that belongs to no
		// connection would not be masqueraded.
		join(tracked(expr.CtStateBitINVALID), verdict(expr.VerdictDrop)),
		join(toUs, refuse),
		join(pair(), lookup(f.allowPr), accept),
		join(load(destination), lookup(f.private), refuse),
		join(pair(), lookup(f.allow), accept),
		join(pair(), lookup(f.deny), refuse),
		join(load(source), lookup(f.internet), accept),
		refuse,
	)
	// Whoever speaks from the host's address may tell a guest who it is: that is for
	// the daemon, and so for root, not for every user of the host. A packet of the
	// kernel's own has no user and passes. A reset would come from a sandbox's address
	// and not from its veth, which inner_out drops.
	unreachable := phrase{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: 3}}
	f.chain(c, "output", nftables.ChainTypeFilter, nftables.ChainHookOutput, 0,
		join(toUs, meta(expr.MetaKeySKUID), compare(expr.CmpOpNeq, make([]byte, 4)), unreachable),
	)
}

// chain adds a chain with exactly these rules; without a hook it is only
// jumped to.
func (f *firewall) chain(c *nftables.Conn, name string, t nftables.ChainType, hook *nftables.ChainHook, priority int32, rules ...phrase) {
	ch := &nftables.Chain{Table: f.table, Name: name}
	if hook != nil {
		ch.Type, ch.Hooknum, ch.Priority = t, hook, nftables.ChainPriorityRef(nftables.ChainPriority(priority))
	}
	c.AddChain(ch)
	c.FlushChain(ch)
	for _, r := range rules {
		c.AddRule(&nftables.Rule{Table: f.table, Chain: ch, Exprs: r})
	}
}
