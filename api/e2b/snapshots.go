package e2b

import (
	"net/http"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

type snapshotInfo struct {
	SnapshotID string    `json:"snapshotID"`
	Names      []string  `json:"names"`
	CreatedAt  time.Time `json:"createdAt"`
}

func toSnapshot(t *sandbox.Template) snapshotInfo {
	return snapshotInfo{SnapshotID: t.ID, Names: namesOf(t), CreatedAt: t.CreatedAt.UTC()}
}

func (s *Server) snapshot(w http.ResponseWriter, c call) error {
	sn, ok := s.backend.(sandbox.Snapshotter)
	if !ok {
		return unsupported("a snapshot")
	}
	body, err := readObject(w, c.Request, false)
	if err != nil {
		return err
	}
	o := sandbox.SnapshotOptions{Name: body.string("name")}
	if err := body.end(false); err != nil {
		return err
	}
	sb, err := s.own(c)
	if err != nil {
		return err
	}
	t, err := sn.Snapshot(c.Context(), sb.ID, o)
	if err != nil {
		return c.gone(err)
	}
	return reply(w, http.StatusCreated, toSnapshot(t))
}

func (s *Server) snapshots(w http.ResponseWriter, c call) error {
	tm, ok := s.backend.(sandbox.Templater)
	if !ok {
		return unsupported("a list of snapshots")
	}
	q := c.URL.Query()
	limit, err := limitOf(q, 100, 100)
	if err != nil {
		return err
	}
	list, next, err := tm.Templates(c.Context(), sandbox.TemplateListOptions{
		Space: c.space, Snapshots: true, SourceID: shortID(q.Get("sandboxID")), Name: q.Get("name"),
		Limit: limit, Token: q.Get("nextToken"),
	})
	if err != nil {
		return err
	}
	out := make([]snapshotInfo, len(list))
	for i := range list {
		out[i] = toSnapshot(&list[i])
	}
	setNext(w, next)
	return reply(w, http.StatusOK, out)
}

// forked is one result of a fork: exactly one field is set.
type forked struct {
	Sandbox *session   `json:"sandbox,omitempty"`
	Error   *errorBody `json:"error,omitempty"`
}

// maxForks bounds one fork.
const maxForks = 100

func (s *Server) fork(w http.ResponseWriter, c call) error {
	sn, ok := s.backend.(sandbox.Snapshotter)
	if !ok {
		return unsupported("a fork")
	}
	body, err := readObject(w, c.Request, false)
	if err != nil {
		return err
	}
	o := sandbox.ForkOptions{Count: body.int("count", 1)}
	seconds := body.int("timeout", createV1.timeout)
	if err := body.end(false); err != nil {
		return err
	}
	if o.Count < 1 || o.Count > maxForks {
		return invalid("field \"count\" must be from 1 to %d, got %d", maxForks, o.Count)
	}
	if o.Timeout, err = timeoutOf(seconds); err != nil {
		return err
	}
	sb, err := s.own(c)
	if err != nil {
		return err
	}
	results, err := sn.Fork(c.Context(), sb.ID, o)
	if err != nil {
		return c.gone(err)
	}
	out := make([]forked, len(results))
	for i, r := range results {
		if r.Err != nil {
			e := bodyOf(r.Err)
			out[i].Error = &e
			continue
		}
		one := s.session(r.Sandbox)
		out[i].Sandbox = &one
	}
	return reply(w, http.StatusCreated, out)
}
