package network

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Each function gives the expressions for one phrase of a rule; a rule is a
// join of phrases, the last being a verdict. Register 1 carries every value.

type phrase = []expr.Any

func join(parts ...phrase) phrase { return slices.Concat(parts...) }

func verdict(k expr.VerdictKind) phrase { return phrase{&expr.Verdict{Kind: k}} }

func jump(chain string) phrase {
	return phrase{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

func compare(op expr.CmpOp, data []byte) phrase {
	return phrase{&expr.Cmp{Op: op, Register: 1, Data: data}}
}

func meta(k expr.MetaKey) phrase { return phrase{&expr.Meta{Key: k, Register: 1}} }

// link matches the start of an interface's name.
func link(k expr.MetaKey, op expr.CmpOp, start []byte) phrase {
	return join(meta(k), compare(op, start))
}

// Offsets in the IPv4 header.
const (
	source      = 12
	destination = 16
	checksum    = 10
)

func load(offset uint32) phrase {
	return phrase{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}}
}

// rewrite stores register 1 into an address field and keeps the checksums of
// the IP header and of TCP, UDP and the like right.
func rewrite(offset uint32) phrase {
	return phrase{&expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: 1,
		Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4,
		CsumType: expr.CsumTypeInet, CsumOffset: checksum, CsumFlags: unix.NFT_PAYLOAD_L4CSUM_PSEUDOHDR,
	}}
}

// rewriteQuoted stores register 1 as the source of the header quoted in an ICMP
// error (8 bytes of ICMP, then that header) and keeps that header's checksum
// right. Both changes together leave the ICMP checksum as it was.
func rewriteQuoted() phrase {
	return phrase{&expr.Payload{
		OperationType: expr.PayloadWrite, SourceRegister: 1,
		Base: expr.PayloadBaseTransportHeader, Offset: 8 + source, Len: 4,
		CsumType: expr.CsumTypeInet, CsumOffset: 8 + checksum,
	}}
}

// quotesPacket matches the ICMP errors: unreachable, time exceeded, bad header.
func quotesPacket(types *nftables.Set) phrase {
	return join(protocol(unix.IPPROTO_ICMP),
		phrase{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Len: 1}}, lookup(types))
}

func protocol(p byte) phrase {
	return join(meta(expr.MetaKeyL4PROTO), compare(expr.CmpOpEq, []byte{p}))
}

func toPort(p uint16) phrase {
	return join(phrase{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}},
		compare(expr.CmpOpEq, binaryutil.BigEndian.PutUint16(p)))
}

func immediate(data []byte) phrase { return phrase{&expr.Immediate{Register: 1, Data: data}} }

func lookup(s *nftables.Set) phrase {
	return phrase{&expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID}}
}

// translate replaces register 1 by its value in a map; without one the rule ends.
func translate(s *nftables.Set) phrase {
	return phrase{&expr.Lookup{SourceRegister: 1, DestRegister: 1, IsDestRegSet: true, SetName: s.Name, SetID: s.ID}}
}

// pair loads source and destination for a concatenated set.
func pair() phrase {
	return join(load(source), phrase{&expr.Payload{
		DestRegister: unix.NFT_REG32_01, Base: expr.PayloadBaseNetworkHeader, Offset: destination, Len: 4,
	}})
}

func within(p netip.Prefix) phrase {
	mask := binaryutil.BigEndian.PutUint32(^uint32(0) << (32 - p.Bits()))
	return join(load(source),
		phrase{&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: make([]byte, 4)}},
		compare(expr.CmpOpEq, bytes4(p.Masked().Addr())))
}

func tracked(bits uint32) phrase {
	return join(phrase{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
	}, compare(expr.CmpOpNeq, make([]byte, 4)))
}

// answers matches the replying direction of known connections. The direction
// keeps out connections that a tracking helper merely expects.
func answers() phrase {
	return join(phrase{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}}, compare(expr.CmpOpEq, []byte{1}),
		tracked(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED))
}

// redirect sends the packet to a port of the interface it came in by.
func redirect(p uint16) phrase {
	return join(immediate(binaryutil.BigEndian.PutUint16(p)),
		phrase{&expr.Redir{RegisterProtoMin: 1, RegisterProtoMax: 1, Flags: unix.NF_NAT_RANGE_PROTO_SPECIFIED}})
}

func bytes4(a netip.Addr) []byte {
	b := a.As4()
	return b[:]
}

func ip4(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
