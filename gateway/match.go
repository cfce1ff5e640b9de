package gateway

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-run/holdfast/sandbox"
)

// Headers that address a sandbox where the host name does not.
const (
	HeaderSandboxID   = "E2b-Sandbox-Id"
	HeaderSandboxPort = "E2b-Sandbox-Port"
)

// GuestPort is the port of the guest's own services in every sandbox.
const GuestPort = 49983

// errInvalidHost is what E2B answers in plain text.
var errInvalidHost = errors.New("Invalid host") //nolint:staticcheck // the text is E2B's

// Match tells whether r is for a sandbox, and for which port of which. A
// request is when the first label of its host is <port>-<id>, with or without
// -<client id> after it, or when it carries the E2b-Sandbox headers and its host
// is one where they are honoured: localhost, an address, sandbox.<anything> or a
// configured domain. Elsewhere they would let a page of one sandbox reach
// another's.
//
// With ok and err both set, r is for a sandbox but says so wrongly.
func (g *Gateway) Match(r *http.Request) (id string, port int, ok bool, err error) {
	host := hostname(r.Host)
	id, port, ok, err = parseHost(host)
	if ok || err != nil {
		return id, port, true, err
	}
	id = r.Header.Get(HeaderSandboxID)
	if id == "" {
		return "", 0, false, nil
	}
	if !g.honoursHeaders(host) {
		return "", 0, true, errors.New("Invalid host: the " + HeaderSandboxID + " header is honoured on localhost, " +
			"an IP address, sandbox.<domain> and the configured domain only, not on " + strconv.Quote(host))
	}
	id, _, _ = strings.Cut(id, "-")
	if port, err = parsePort(r.Header.Get(HeaderSandboxPort)); err != nil {
		return "", 0, true, errors.New("Invalid port: " + HeaderSandboxPort + " must be from 1 to 65535") //nolint:staticcheck // in the manner of E2B's
	}
	return id, port, true, nil
}

// hostname is a Host header without its port, in lower case.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// parseHost reads <port>-<id>[-<client>].<domain>. ok only for the form of a
// sandbox id, so that no machine's own name is taken for one; err when the port
// before such an id is none.
func parseHost(host string) (id string, port int, ok bool, err error) {
	label, domain, found := strings.Cut(host, ".")
	if !found || domain == "" {
		return "", 0, false, nil
	}
	digits, rest, found := strings.Cut(label, "-")
	id, _, _ = strings.Cut(rest, "-")
	if !found || !sandbox.ValidID(id) {
		return "", 0, false, nil
	}
	if port, err = parsePort(digits); err != nil {
		return "", 0, false, errInvalidHost
	}
	return id, port, true, nil
}

func parsePort(s string) (int, error) {
	port, err := strconv.ParseUint(s, 10, 16)
	if err != nil || port == 0 {
		return 0, errors.New("not a port")
	}
	return int(port), nil
}

func (g *Gateway) honoursHeaders(host string) bool {
	if host == "localhost" || strings.HasPrefix(host, "sandbox.") || slices.Contains(g.domains, host) {
		return true
	}
	_, err := netip.ParseAddr(host)
	return err == nil
}
