package e2b

import (
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/holdfast-run/holdfast/sandbox"
)

// everything is E2B's ALL_TRAFFIC.
const everything = "0.0.0.0/0"

// parsePolicy reads the network object of a create. Every field of it limits
// the sandbox, so an unknown one is always refused.
func parsePolicy(o *object, n *sandbox.Network) error {
	n.AllowPublicTraffic = o.bool("allowPublicTraffic", true)
	n.MaskRequestHost = o.string("maskRequestHost")
	if err := parseEgress(o, n); err != nil {
		return err
	}
	return checkMask(n.MaskRequestHost)
}

// network is PUT /sandboxes/{id}/network: a full replacement of the egress
// policy, where an omitted field goes back to its default.
func (s *Server) network(w http.ResponseWriter, c call) error {
	up, ok := s.backend.(NetworkUpdater)
	if !ok {
		return unsupported("changing the network of a sandbox")
	}
	body, err := readObject(w, c.Request, true)
	if err != nil {
		return err
	}
	n := sandbox.Network{AllowInternet: body.bool("allow_internet_access", true)}
	if err := parseEgress(body, &n); err != nil {
		return err
	}
	sb, err := s.own(c)
	if err != nil {
		return err
	}
	n.AllowPublicTraffic, n.MaskRequestHost = sb.Network.AllowPublicTraffic, sb.Network.MaskRequestHost
	if err := up.UpdateNetwork(c.Context(), sb.ID, n); err != nil {
		return c.gone(err)
	}
	return noContent(w)
}

func parseEgress(o *object, n *sandbox.Network) error {
	n.AllowOut = o.strings("allowOut")
	n.DenyOut = o.strings("denyOut")
	o.refuse("egressProxy", "leave it out, or set the proxy inside the sandbox")
	o.refuse("rules", "leave them out, or set headers inside the sandbox")
	o.refuse("httpsPorts", "leave it out: there are no rules that it could apply to")
	if err := o.end(true); err != nil {
		return err
	}
	for _, d := range n.DenyOut {
		if !isAddress(d) {
			return invalid("field %q: %q is not an address or CIDR; domains cannot be denied", o.path+"denyOut", d)
		}
	}
	domain := slices.IndexFunc(n.AllowOut, func(a string) bool { return !isAddress(a) })
	if domain < 0 {
		return nil
	}
	// Without a deny-all beneath it, an allowed domain would limit nothing.
	if !slices.Contains(n.DenyOut, everything) && n.AllowInternet {
		return invalid("When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' (%s) in deny out "+
			"to block all other traffic.", everything)
	}
	return sandbox.Errorf(sandbox.Unsupported, "field \""+o.path+"allowOut\"",
		"names the domain %q, and domains are not supported yet", n.AllowOut[domain]).WithNext("use addresses or CIDRs")
}

func isAddress(s string) bool {
	if _, err := netip.ParsePrefix(s); err == nil {
		return true
	}
	a, err := netip.ParseAddr(s)
	return err == nil && a.Zone() == ""
}

var hostPattern = regexp.MustCompile(`^([A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?$`)

// checkMask allows a host with an optional port, ${PORT} anywhere in it.
func checkMask(mask string) error {
	if mask == "" || len(mask) <= 255 && hostPattern.MatchString(strings.ReplaceAll(mask, "${PORT}", "1")) {
		return nil
	}
	return invalid("field %q: %q is not a host name with an optional port", "network.maskRequestHost", mask)
}
