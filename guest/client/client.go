// Package client is the host's side of the guest: readiness, identity, files and
// processes of one sandbox. With a gateway's URL and Headers it works from further
// away, except for what only the host may do (Init, Prepare, DialPort's detour).
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest"
	"github.com/holdfast-run/holdfast/guest/proto/filesystempb/filesystempbconnect"
	"github.com/holdfast-run/holdfast/guest/proto/processpb/processpbconnect"
)

// The services' generated clients and the bodies that host and guest share.
type (
	ProcessClient    = processpbconnect.ProcessClient
	FilesystemClient = filesystempbconnect.FilesystemClient
	InitRequest      = guest.InitRequest
	Metrics          = guest.Metrics
)

// Port is where a guest listens inside its sandbox; Version is the envd version
// it is compatible with.
const (
	Port    = guest.Port
	Version = guest.Version
)

// HostOnly tells whether path (decoded, as in url.URL.Path) belongs to the host
// alone. A gateway must answer 404 for it.
func HostOnly(path string) bool { return guest.HostOnly(path) }

// Client speaks with one guest. It is safe for concurrent use.
type Client struct {
	base    string
	addr    string // host:port for direct dialling; "" behind a gateway
	token   string
	headers http.Header
	http    *http.Client

	// Process and Filesystem are the RPC services, authorised.
	Process    ProcessClient
	Filesystem FilesystemClient
}

// Error is what the guest answered.
type Error struct {
	Status  int // HTTP
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("guest answers %d: %s", e.Status, e.Message) }

// New makes a client of the guest at target: "host:port", or the URL of a gateway
// together with WithSandbox. token may be "". A nil hc is a client of its own with
// a small pool of connections; pass one to share a pool.
func New(target, token string, hc *http.Client) *Client {
	c := &Client{token: token, http: hc, headers: http.Header{}}
	if strings.Contains(target, "://") {
		c.base = strings.TrimRight(target, "/")
	} else {
		c.base, c.addr = "http://"+target, target
	}
	if hc == nil {
		c.http = &http.Client{Transport: &http.Transport{
			DisableCompression:  true, // next door, compressing takes longer than sending
			MaxIdleConnsPerHost: 4,
			IdleConnTimeout:     30 * time.Second,
			WriteBufferSize:     64 << 10,
			ReadBufferSize:      64 << 10,
		}}
	}
	c.services()
	return c
}

// WithSandbox gives a client whose requests name the sandbox to a gateway.
func (c *Client) WithSandbox(id string) *Client {
	d := *c
	d.headers = c.headers.Clone()
	d.headers.Set("E2b-Sandbox-Id", id)
	d.headers.Set("E2b-Sandbox-Port", strconv.Itoa(Port))
	d.addr = ""
	d.services()
	return &d
}

// WithHeader gives a client that sends one more header.
func (c *Client) WithHeader(name, value string) *Client {
	d := *c
	d.headers = c.headers.Clone()
	d.headers.Set(name, value)
	d.services()
	return &d
}

// WithUser gives a client that acts as user; "" is the sandbox's default user.
func (c *Client) WithUser(user string) *Client {
	if user == "" {
		return c
	}
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(user, "")
	return c.WithHeader("Authorization", r.Header.Get("Authorization"))
}

func (c *Client) services() {
	doer := doer{c.http, c.header()}
	c.Process = processpbconnect.NewProcessClient(doer, c.base)
	c.Filesystem = filesystempbconnect.NewFilesystemClient(doer, c.base)
}

func (c *Client) header() http.Header {
	h := c.headers.Clone()
	if c.token != "" {
		h.Set("X-Access-Token", c.token)
	}
	return h
}

// doer adds the client's headers to every request of the RPC services.
type doer struct {
	http   *http.Client
	header http.Header
}

func (d doer) Do(r *http.Request) (*http.Response, error) {
	for name, values := range d.header {
		if _, set := r.Header[name]; !set {
			r.Header[name] = values
		}
	}
	return d.http.Do(r)
}

// CloseIdle closes pooled connections, e.g. once the sandbox was paused.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// do sends a request; an answer of 300 and up is an *Error.
func (c *Client) do(ctx context.Context, method, path string, body io.Reader, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, body)
	if err != nil {
		return nil, err
	}
	for name, values := range header {
		req.Header[name] = values
	}
	auth := c.header()
	if HostOnly(path) { // opened by where it comes from; a token would only linger inside
		auth.Del("X-Access-Token")
	}
	resp, err := doer{c.http, auth}.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, answered(resp)
	}
	return resp, nil
}

func answered(resp *http.Response) *Error {
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	var body struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(b, &body) != nil || body.Message == "" {
		body.Message = strings.TrimSpace(string(b))
	}
	return &Error{resp.StatusCode, body.Message}
}

func (c *Client) post(ctx context.Context, path string, body any) error {
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return err
		}
		r = bytes.NewReader(b)
	}
	resp, err := c.do(ctx, http.MethodPost, path, r, http.Header{"Content-Type": {"application/json"}})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// Init gives the sandbox its identity. It may be repeated.
func (c *Client) Init(ctx context.Context, req InitRequest) error {
	if err := c.post(ctx, "/init", req); err != nil {
		return fmt.Errorf("init guest: %w", err)
	}
	return nil
}

// Prepare makes the guest ready for a memory image: identity forgotten, files
// written out, memory and connections let go. Whether the image is then made or
// not, the guest serves nothing until the next Init.
func (c *Client) Prepare(ctx context.Context) error {
	err := c.post(ctx, "/prepare", nil)
	c.CloseIdle()
	if err != nil {
		return fmt.Errorf("prepare guest: %w", err)
	}
	return nil
}

// Healthy tells whether the guest answers.
func (c *Client) Healthy(ctx context.Context) error {
	resp, err := c.do(ctx, http.MethodGet, "/health", nil, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// Metrics gives the sandbox's own view of its use.
func (c *Client) Metrics(ctx context.Context) (Metrics, error) {
	var m Metrics
	resp, err := c.do(ctx, http.MethodGet, "/metrics", nil, nil)
	if err != nil {
		return m, fmt.Errorf("guest metrics: %w", err)
	}
	defer resp.Body.Close()
	return m, json.NewDecoder(resp.Body).Decode(&m)
}

// Envs gives the environment that every process gets.
func (c *Client) Envs(ctx context.Context) (map[string]string, error) {
	var env map[string]string
	resp, err := c.do(ctx, http.MethodGet, "/envs", nil, nil)
	if err != nil {
		return nil, fmt.Errorf("guest envs: %w", err)
	}
	defer resp.Body.Close()
	return env, json.NewDecoder(resp.Body).Decode(&env)
}

// CodeOf gives the RPC code of an error of Process, Filesystem or Exec; 0 if it has none.
func CodeOf(err error) connect.Code {
	var ce *connect.Error
	if errors.As(err, &ce) {
		return ce.Code()
	}
	return 0
}

// dialOnce tries to connect for at most d.
func dialOnce(ctx context.Context, addr string, d time.Duration) (net.Conn, error) {
	dialer := net.Dialer{Timeout: d}
	return dialer.DialContext(ctx, "tcp", addr)
}
