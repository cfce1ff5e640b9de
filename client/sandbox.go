package client

import (
	"bufio"
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Sandbox is one sandbox of a daemon. The embedded description is as of the
// latest call that returned it; Refresh asks again. Methods are safe for
// concurrent use, but those that update the description are not with readers of it.
type Sandbox struct {
	v1.Sandbox
	c *Client
}

func (c *Client) sandbox(s v1.Sandbox) *Sandbox { return &Sandbox{Sandbox: s, c: c} }

// Create makes a sandbox that runs when it returns.
func (c *Client) Create(ctx context.Context, r v1.CreateRequest) (*Sandbox, error) {
	s, err := post[v1.Sandbox](ctx, c, "/v1/sandboxes", r)
	if err != nil {
		return nil, err
	}
	return c.sandbox(*s), nil
}

// Get finds a sandbox by id, unique prefix of one, or name. It does not wake it.
func (c *Client) Get(ctx context.Context, ref string) (*Sandbox, error) {
	s, err := get[v1.Sandbox](ctx, c, sandboxPath(ref), nil)
	if err != nil {
		return nil, err
	}
	return c.sandbox(*s), nil
}

// Connect finds a sandbox and makes sure that it runs for at least timeout (0:
// the one it was created with). resumed tells whether it had to be brought back.
func (c *Client) Connect(ctx context.Context, ref string, timeout time.Duration) (sb *Sandbox, resumed bool, err error) {
	r, err := post[v1.ConnectResponse](ctx, c, sandboxPath(ref)+"/connect", v1.ConnectRequest{TimeoutSeconds: timeout.Seconds()})
	if err != nil {
		return nil, false, err
	}
	return c.sandbox(r.Sandbox), r.Resumed, nil
}

// Inspect gives everything known about a sandbox. It does not wake it.
func (c *Client) Inspect(ctx context.Context, ref string) (*v1.Inspection, error) {
	return get[v1.Inspection](ctx, c, sandboxPath(ref)+"/inspect", nil)
}

// ListOptions filter a list; zero fields do not.
type ListOptions struct {
	States   []string
	Template string
	Metadata map[string]string
}

// List gives all sandboxes, newest first, page by page as they are ranged over.
func (c *Client) List(ctx context.Context, o ListOptions) iter.Seq2[*Sandbox, error] {
	q := url.Values{}
	if len(o.States) > 0 {
		q.Set("state", strings.Join(o.States, ","))
	}
	if o.Template != "" {
		q.Set("template", o.Template)
	}
	for k, v := range o.Metadata {
		q.Add("metadata", k+"="+v)
	}
	return func(yield func(*Sandbox, error) bool) {
		for {
			page, err := get[v1.SandboxList](ctx, c, "/v1/sandboxes", q)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, s := range page.Sandboxes {
				if !yield(c.sandbox(s), nil) {
					return
				}
			}
			if page.Cursor == "" {
				return
			}
			q.Set("cursor", page.Cursor)
		}
	}
}

// Delete removes a sandbox in any state.
func (c *Client) Delete(ctx context.Context, ref string) error {
	return c.delete(ctx, sandboxPath(ref))
}

// Refresh updates the description.
func (s *Sandbox) Refresh(ctx context.Context) error {
	return s.update(get[v1.Sandbox](ctx, s.c, s.path(), nil))
}

// Pause stops it; it then uses no memory. filesOnly drops what is in memory.
func (s *Sandbox) Pause(ctx context.Context, filesOnly bool) error {
	return s.update(post[v1.Sandbox](ctx, s.c, s.path()+"/pause", v1.PauseRequest{FilesOnly: filesOnly}))
}

// Resume brings it back and sets its deadline to now + r.TimeoutSeconds.
func (s *Sandbox) Resume(ctx context.Context, r v1.ConnectRequest) (resumed bool, err error) {
	out, err := post[v1.ConnectResponse](ctx, s.c, s.path()+"/resume", r)
	if err != nil {
		return false, err
	}
	s.Sandbox = out.Sandbox
	return out.Resumed, nil
}

// SetTimeout sets the deadline to now + d; 0 lets it pass now.
func (s *Sandbox) SetTimeout(ctx context.Context, d time.Duration) error {
	return s.update(post[v1.Sandbox](ctx, s.c, s.path()+"/timeout", v1.TimeoutRequest{TimeoutSeconds: d.Seconds()}))
}

// Extend moves the deadline to now + d if that is later.
func (s *Sandbox) Extend(ctx context.Context, d time.Duration) error {
	return s.update(post[v1.Sandbox](ctx, s.c, s.path()+"/timeout", v1.TimeoutRequest{TimeoutSeconds: d.Seconds(), ExtendOnly: true}))
}

// Snapshot makes an immutable picture whose id works as a template.
func (s *Sandbox) Snapshot(ctx context.Context, r v1.SnapshotRequest) (*v1.Template, error) {
	return post[v1.Template](ctx, s.c, s.path()+"/snapshots", r)
}

// Fork makes r.Count sandboxes that go on where this one is. Those that failed
// are missing from the result and in the error.
func (s *Sandbox) Fork(ctx context.Context, r v1.ForkRequest) ([]*Sandbox, error) {
	out, err := post[v1.ForkResponse](ctx, s.c, s.path()+"/fork", r)
	if err != nil {
		return nil, err
	}
	var forks []*Sandbox
	for _, f := range out.Forks {
		if f.Sandbox != nil {
			forks = append(forks, s.c.sandbox(*f.Sandbox))
		} else if err == nil {
			err = f.Error.Err()
		}
	}
	return forks, err
}

// Rollback puts it back to one of its own snapshots, in place.
func (s *Sandbox) Rollback(ctx context.Context, snapshot string) error {
	return s.update(post[v1.Sandbox](ctx, s.c, s.path()+"/rollback", v1.RollbackRequest{Snapshot: snapshot}))
}

// Delete removes it.
func (s *Sandbox) Delete(ctx context.Context) error { return s.c.Delete(ctx, s.ID) }

// Events gives its history after the event of seq since.
func (s *Sandbox) Events(ctx context.Context, since int64) ([]v1.Event, error) {
	out, err := get[v1.EventList](ctx, s.c, s.path()+"/events", url.Values{"since": {strconv.FormatInt(since, 10)}})
	if err != nil {
		return nil, err
	}
	return out.Events, nil
}

// Follow gives its history after since and then what happens, until ctx is done
// or the sandbox is gone.
func (s *Sandbox) Follow(ctx context.Context, since int64) iter.Seq2[v1.Event, error] {
	return func(yield func(v1.Event, error) bool) {
		q := url.Values{"since": {strconv.FormatInt(since, 10)}, "follow": {"1"}}
		res, err := s.c.send(ctx, http.MethodGet, s.path()+"/events", q, nil, "")
		if err != nil {
			yield(v1.Event{}, err)
			return
		}
		defer res.Body.Close()
		lines := bufio.NewScanner(res.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if len(lines.Bytes()) == 0 {
				continue // heartbeat
			}
			var e v1.Event
			if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
				yield(e, sandbox.Errorf(sandbox.Unavailable, "event stream", "cannot be read: %w", err))
				return
			}
			if !yield(e, nil) {
				return
			}
		}
		if err := lines.Err(); err != nil && ctx.Err() == nil {
			yield(v1.Event{}, s.c.unreachable(err))
		}
	}
}

func (s *Sandbox) path() string { return sandboxPath(s.ID) }

func (s *Sandbox) update(n *v1.Sandbox, err error) error {
	if err != nil {
		return err
	}
	s.Sandbox = *n
	return nil
}

func sandboxPath(ref string) string { return "/v1/sandboxes/" + url.PathEscape(ref) }
