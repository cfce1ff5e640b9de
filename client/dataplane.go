package client

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/proto/filesystempb/filesystempbconnect"
	"github.com/holdfast-run/holdfast/guest/proto/processpb/processpbconnect"
	"github.com/holdfast-run/holdfast/sandbox"
)

// GuestPort is where a sandbox's own services listen.
const GuestPort = 49983

// Headers that lead a request through the gateway to a sandbox's port.
const (
	headerID      = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
	headerAccess  = "X-Access-Token"
	headerTraffic = "E2b-Traffic-Access-Token"
)

// HTTP gives an http.Client whose every request goes to the port inside the
// sandbox, whatever host its URL names; paths and queries are kept. A paused
// sandbox wakes if its lifecycle says so.
func (s *Sandbox) HTTP(port int) *http.Client {
	return &http.Client{Transport: &portTransport{s: s, port: port}}
}

// portTransport routes through the gateway and turns the gateway's own answers
// into errors.
type portTransport struct {
	s    *Sandbox
	port int
	user string // for the guest's services: who acts; "" for the default user
}

func (t *portTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	out := req.Clone(req.Context())
	scheme, host, _ := strings.Cut(t.s.c.base, "://")
	out.URL.Scheme, out.URL.Host, out.Host = scheme, host, host
	out.Header.Set(headerID, t.s.ID)
	out.Header.Set(headerPort, strconv.Itoa(t.port))
	if t.port == GuestPort {
		if t.s.AccessToken != "" {
			out.Header.Set(headerAccess, t.s.AccessToken)
		}
		if t.user != "" {
			out.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(t.user+":")))
		}
	} else if t.s.TrafficToken != "" {
		out.Header.Set(headerTraffic, t.s.TrafficToken)
	}
	res, err := t.s.c.http.Transport.RoundTrip(out)
	if err != nil {
		return nil, t.s.c.unreachable(err)
	}
	if res.StatusCode == http.StatusBadGateway && strings.HasPrefix(res.Header.Get("Content-Type"), "application/json") {
		return t.gatewayAnswer(res)
	}
	return res, nil
}

// gatewayAnswer reads a 502: the gateway's (an error here), or one that a
// server inside gave, which is handed on.
func (t *portTransport) gatewayAnswer(res *http.Response) (*http.Response, error) {
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err != nil {
		res.Body.Close()
		return nil, t.s.c.unreachable(err)
	}
	var g struct {
		SandboxID string `json:"sandboxId"`
		Message   string `json:"message"`
		Port      int    `json:"port"`
	}
	if json.Unmarshal(body, &g) != nil || g.SandboxID != t.s.ID {
		rest := res.Body
		res.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), rest), rest}
		return res, nil //nolint:nilerr // these are not the gateway's words: they are handed on
	}
	res.Body.Close()
	if g.Port != 0 {
		return nil, sandbox.Errorf(sandbox.Unavailable, "port "+strconv.Itoa(g.Port)+" of "+t.s.thing(), "is not open").
			WithNext("start a server there, on any address")
	}
	return nil, sandbox.Errorf(sandbox.NotFound, t.s.thing(), "is not running or does not exist").WithNext("`holdfast resume %s` brings a paused one back", t.s.ID)
}

func (s *Sandbox) thing() string { return `sandbox "` + s.ID + `"` }

// guest gives an HTTP client for the sandbox's own services.
func (s *Sandbox) guest(user string) *http.Client {
	return &http.Client{Transport: &portTransport{s: s, port: GuestPort, user: user}}
}

// uncompressed: the way is short, and gzip would cost more than it saves.
var uncompressed = connect.WithAcceptCompression("gzip", nil, nil)

func (s *Sandbox) processes(user string) processpbconnect.ProcessClient {
	return processpbconnect.NewProcessClient(s.guest(user), "http://guest", uncompressed)
}

func (s *Sandbox) filesystem(user string) filesystempbconnect.FilesystemClient {
	return filesystempbconnect.NewFilesystemClient(s.guest(user), "http://guest", uncompressed)
}

var kindOfCode = map[connect.Code]sandbox.Kind{
	connect.CodeNotFound:           sandbox.NotFound,
	connect.CodeAlreadyExists:      sandbox.Conflict,
	connect.CodeFailedPrecondition: sandbox.Conflict,
	connect.CodeInvalidArgument:    sandbox.InvalidRequest,
	connect.CodeUnauthenticated:    sandbox.Authentication,
	connect.CodePermissionDenied:   sandbox.Authentication,
	connect.CodeDeadlineExceeded:   sandbox.Timeout,
	connect.CodeCanceled:           sandbox.Timeout,
	connect.CodeUnimplemented:      sandbox.Unsupported,
	connect.CodeResourceExhausted:  sandbox.Capacity,
	connect.CodeUnavailable:        sandbox.Unavailable,
}

// guestError names what was to be done to what.
func (s *Sandbox) guestError(thing string, err error) error {
	if err == nil {
		return nil
	}
	var known *sandbox.Error
	if errors.As(err, &known) {
		return known
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return sandbox.Errorf(sandbox.Unavailable, thing, "in %s failed: %w", s.thing(), err)
	}
	kind, ok := kindOfCode[ce.Code()]
	if !ok {
		kind = sandbox.Internal
	}
	return &sandbox.Error{Kind: kind, Thing: thing, Reason: "in " + s.thing() + " failed: " + ce.Message()}
}
