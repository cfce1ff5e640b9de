// Package client is the Go client of a Holdfast daemon, shaped like os/exec:
//
//	c, err := client.New(client.Options{})            // the machine's own daemon
//	sb, err := c.Create(ctx, v1.CreateRequest{Template: "base"})
//	out, err := sb.Command(ctx, "uname", "-a").Output()
//
// Errors are *sandbox.Error (see sandbox.KindOf), except *ExitError of a command
// that ended with a code other than 0.
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
	"net/url"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/sandbox"
)

// DefaultSocket is the daemon's socket with the default data folder.
const DefaultSocket = "/var/lib/holdfast/holdfast.sock"

// Options say which daemon.
type Options struct {
	URL    string // e.g. http://node:7070; "" for the socket
	APIKey string // for URL
	Socket string // "" for DefaultSocket; not used with URL
	Agent  string // User-Agent; "" for one of this package
}

// Client talks to one daemon. It is safe for concurrent use.
type Client struct {
	base   string
	where  string // for errors
	key    string
	agent  string
	remote bool
	http   *http.Client
}

// New gives a client. It does not connect yet.
func New(o Options) (*Client, error) {
	c := &Client{base: "http://localhost", key: o.APIKey, agent: o.Agent}
	if c.agent == "" {
		c.agent = "holdfast-go"
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	transport := &http.Transport{
		DialContext: dialer.DialContext, DisableCompression: true, MaxIdleConnsPerHost: 64,
		IdleConnTimeout: time.Minute, ReadBufferSize: 64 << 10, WriteBufferSize: 64 << 10,
		Proxy: http.ProxyFromEnvironment,
	}
	if o.URL != "" {
		u, err := url.Parse(o.URL)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, sandbox.Errorf(sandbox.InvalidRequest, "daemon URL "+strconv.Quote(o.URL), "is not an http or https URL")
		}
		c.base, c.where, c.remote = strings.TrimRight(o.URL, "/"), o.URL, true
	} else {
		socket := o.Socket
		if socket == "" {
			socket = DefaultSocket
		}
		c.where = socket
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		}
	}
	c.http = &http.Client{Transport: transport}
	return c, nil
}

// Remote tells whether the daemon is reached by URL.
func (c *Client) Remote() bool { return c.remote }

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status asks the daemon how it is.
func (c *Client) Status(ctx context.Context) (*v1.Status, error) {
	return get[v1.Status](ctx, c, "/v1/status", nil)
}

// Healthy tells whether a daemon answers at all, by an error that says why not.
func (c *Client) Healthy(ctx context.Context) error {
	res, err := c.send(ctx, http.MethodGet, "/v1/health", nil, nil, "")
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// Doctor checks machine and node; with repair it also removes leftovers.
func (c *Client) Doctor(ctx context.Context, repair bool) ([]v1.Finding, error) {
	var out *v1.FindingList
	var err error
	if repair {
		out, err = post[v1.FindingList](ctx, c, "/v1/doctor/repair", nil)
	} else {
		out, err = get[v1.FindingList](ctx, c, "/v1/doctor", nil)
	}
	if err != nil {
		return nil, err
	}
	return out.Findings, nil
}

// Keys lists the API keys.
func (c *Client) Keys(ctx context.Context) ([]v1.Key, error) {
	out, err := get[v1.KeyList](ctx, c, "/v1/keys", nil)
	if err != nil {
		return nil, err
	}
	return out.Keys, nil
}

// CreateKey makes an API key; its Secret is shown this once.
func (c *Client) CreateKey(ctx context.Context, name string) (*v1.Key, error) {
	return post[v1.Key](ctx, c, "/v1/keys", v1.KeyRequest{Name: name})
}

// DeleteKey makes a key invalid.
func (c *Client) DeleteKey(ctx context.Context, id string) error {
	return c.delete(ctx, "/v1/keys/"+url.PathEscape(id))
}

// send makes one request and gives an answer of status 2xx, whose body the
// caller closes.
func (c *Client) send(ctx context.Context, method, path string, query url.Values, body io.Reader, contentType string) (*http.Response, error) {
	u := c.base + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.InvalidRequest, "request "+path, "cannot be made: %w", err)
	}
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	c.identify(req)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if res.StatusCode/100 != 2 {
		defer res.Body.Close()
		return nil, c.refused(res)
	}
	return res, nil
}

func (c *Client) identify(req *http.Request) {
	req.Header.Set("User-Agent", c.agent)
	if c.remote && c.key != "" {
		req.Header.Set("X-API-Key", c.key)
	}
}

// refused reads the error of an answer.
func (c *Client) refused(res *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // what is missing shows below
	var wire v1.ErrorBody
	if json.Unmarshal(body, &wire) == nil && wire.Error != nil {
		return wire.Error.Err()
	}
	return sandbox.Errorf(sandbox.Unavailable, "daemon at "+c.where, "answered %s: %s", res.Status, bytes.TrimSpace(body[:min(len(body), 200)])).
		WithNext("is it a Holdfast daemon of this version?")
}

// unreachable says what keeps the daemon from being reached.
func (c *Client) unreachable(err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	thing := "daemon at " + c.where
	var op *net.OpError
	switch dial := errors.As(err, &op) && op.Op == "dial"; {
	case !c.remote && dial && (errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)):
		return sandbox.Errorf(sandbox.Unavailable, thing, "is not running").WithNext("`holdfast up` starts it; if its data folder is elsewhere, give --data or set HOLDFAST_DATA")
	case !c.remote && dial && errors.Is(err, os.ErrPermission):
		return sandbox.Errorf(sandbox.Authentication, thing, "may not be used by this user").
			WithNext("use sudo, join the group of `socket_group`, or set HOLDFAST_URL and HOLDFAST_API_KEY")
	case dial:
		return sandbox.Errorf(sandbox.Unavailable, thing, "cannot be reached: %w", op.Err).WithNext("check HOLDFAST_URL (or --url) and that the daemon runs")
	}
	var known *sandbox.Error
	if errors.As(err, &known) {
		return known
	}
	return sandbox.Errorf(sandbox.Unavailable, thing, "broke off: %w", err).WithNext("try again; `holdfast status` tells whether it runs")
}

func get[T any](ctx context.Context, c *Client, path string, query url.Values) (*T, error) {
	res, err := c.send(ctx, http.MethodGet, path, query, nil, "") //nolint:bodyclose // read closes it
	if err != nil {
		return nil, err
	}
	return read[T](res)
}

func post[T any](ctx context.Context, c *Client, path string, body any) (*T, error) {
	res, err := c.sendJSON(ctx, path, body) //nolint:bodyclose // read closes it
	if err != nil {
		return nil, err
	}
	return read[T](res)
}

// sendJSON posts body, or nothing for nil.
func (c *Client) sendJSON(ctx context.Context, path string, body any) (*http.Response, error) {
	if body == nil {
		return c.send(ctx, http.MethodPost, path, nil, nil, "")
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("encode request %s: %w", path, err)
	}
	return c.send(ctx, http.MethodPost, path, nil, bytes.NewReader(b), "application/json")
}

func read[T any](res *http.Response) (*T, error) {
	defer res.Body.Close()
	out := new(T)
	if err := json.NewDecoder(res.Body).Decode(out); err != nil {
		return nil, sandbox.Errorf(sandbox.Unavailable, "answer to "+res.Request.Method+" "+res.Request.URL.Path, "cannot be read: %w", err)
	}
	return out, nil
}

func (c *Client) delete(ctx context.Context, path string) error {
	res, err := c.send(ctx, http.MethodDelete, path, nil, nil, "")
	if err != nil {
		return err
	}
	return res.Body.Close()
}
