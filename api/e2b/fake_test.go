package e2b_test

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/api/e2b"
	"github.com/holdfast-run/holdfast/keys"
	"github.com/holdfast-run/holdfast/sandbox"
)

const (
	box     = "iabcdefghij0123456789"
	foreign = "ibelongstosomeoneelse"
	key     = "e2b_00"
)

var t0 = time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC)

// script is a Backend that remembers what it was asked and answers as told.
type script struct {
	err      error // given by every call but Get
	resumed  bool
	boxes    map[string]*sandbox.Sandbox
	events   []sandbox.Event
	metric   *sandbox.Metric
	page     func(sandbox.ListOptions) sandbox.Page
	forks    []sandbox.ForkResult
	pages    func(sandbox.TemplateListOptions) ([]sandbox.Template, string)
	template map[string]*sandbox.Template

	// what was asked last
	called   []string
	create   sandbox.CreateOptions
	list     sandbox.ListOptions
	connect  sandbox.ConnectOptions
	pause    sandbox.PauseOptions
	snapshot sandbox.SnapshotOptions
	fork     sandbox.ForkOptions
	deadline time.Duration
	network  sandbox.Network
}

func newScript() *script {
	return &script{boxes: map[string]*sandbox.Sandbox{
		box: {
			ID: box, Space: "acme", TemplateID: "tbase", Template: "base", State: sandbox.Running,
			StartedAt: t0, EndAt: t0.Add(time.Hour), Lifecycle: sandbox.Lifecycle{OnTimeout: sandbox.Pause, AutoResume: true},
			Resources: sandbox.Resources{CPUs: 2, MemoryMB: 1024, DiskMB: 10240},
			Network:   sandbox.Network{AllowInternet: true, AllowPublicTraffic: true, MaskRequestHost: "app.local"},
			Metadata:  map[string]string{"k": "v"}, AccessToken: "access", TrafficToken: "traffic",
		},
		foreign: {ID: foreign, Space: "other", State: sandbox.Running},
	}}
}

func (s *script) call(name, id string) error {
	s.called = append(s.called, strings.TrimSpace(name+" "+id))
	return s.err
}

func (s *script) Create(_ context.Context, o sandbox.CreateOptions) (*sandbox.Sandbox, error) {
	s.create = o
	if err := s.call("create", ""); err != nil {
		return nil, err
	}
	sb := *s.boxes[box]
	sb.Network = o.Network
	if !o.Secure {
		sb.AccessToken = ""
	}
	return &sb, nil
}

func (s *script) Get(_ context.Context, id string) (*sandbox.Sandbox, error) {
	sb, ok := s.boxes[id]
	if !ok {
		return nil, sandbox.Errorf(sandbox.NotFound, "sandbox "+id, "does not exist")
	}
	c := *sb
	return &c, nil
}

func (s *script) List(_ context.Context, o sandbox.ListOptions) (sandbox.Page, error) {
	s.list = o
	if err := s.call("list", ""); err != nil {
		return sandbox.Page{}, err
	}
	if s.page != nil {
		return s.page(o), nil
	}
	return sandbox.Page{Sandboxes: []sandbox.Sandbox{*s.boxes[box]}, TotalRunning: 7}, nil
}

func (s *script) Connect(_ context.Context, id string, o sandbox.ConnectOptions) (*sandbox.Sandbox, bool, error) {
	s.connect = o
	if err := s.call("connect", id); err != nil {
		return nil, false, err
	}
	return s.boxes[id], s.resumed, nil
}

func (s *script) SetTimeout(_ context.Context, id string, d time.Duration) error {
	s.deadline = d
	return s.call("timeout", id)
}

func (s *script) Extend(_ context.Context, id string, d time.Duration) error {
	s.deadline = d
	return s.call("extend", id)
}

func (s *script) Delete(_ context.Context, id string) error { return s.call("delete", id) }

// full is a script with every optional ability.
type full struct{ *script }

func (s full) Pause(_ context.Context, id string, o sandbox.PauseOptions) error {
	s.pause = o
	return s.call("pause", id)
}

func (s full) Snapshot(_ context.Context, id string, o sandbox.SnapshotOptions) (*sandbox.Template, error) {
	s.snapshot = o
	if err := s.call("snapshot", id); err != nil {
		return nil, err
	}
	return &sandbox.Template{ID: "s1", Name: o.Name, CreatedAt: t0}, nil
}

func (s full) Fork(_ context.Context, id string, o sandbox.ForkOptions) ([]sandbox.ForkResult, error) {
	s.fork = o
	return s.forks, s.call("fork", id)
}

func (s full) Rollback(_ context.Context, id, _ string) (*sandbox.Sandbox, error) {
	return s.boxes[id], s.call("rollback", id)
}

func (s full) Templates(_ context.Context, o sandbox.TemplateListOptions) ([]sandbox.Template, string, error) {
	list, next := s.pages(o)
	return list, next, s.err
}

func (s full) Template(_ context.Context, ref string) (*sandbox.Template, error) {
	if t, ok := s.template[ref]; ok {
		return t, nil
	}
	return nil, sandbox.Errorf(sandbox.NotFound, "template "+ref, "does not exist")
}

func (s full) DeleteTemplate(_ context.Context, ref string) error {
	return s.call("delete template", ref)
}

func (s full) Events(_ context.Context, id string, _ sandbox.EventOptions) ([]sandbox.Event, error) {
	return slices.Clone(s.events), s.call("events", id)
}

func (s full) Metric(_ context.Context, id string) (*sandbox.Metric, error) {
	return s.metric, s.call("metric", id)
}

func (s full) UpdateNetwork(_ context.Context, id string, n sandbox.Network) error {
	s.network = n
	return s.call("network", id)
}

var (
	_ sandbox.Backend     = (*script)(nil)
	_ sandbox.Pauser      = full{}
	_ sandbox.Snapshotter = full{}
	_ sandbox.Templater   = full{}
	_ sandbox.Recorder    = full{}
	_ e2b.NetworkUpdater  = full{}
)

// doorman knows one key.
type doorman struct{}

func (doorman) Verify(_ context.Context, secret string) (keys.Key, error) {
	if secret != key {
		return keys.Key{}, sandbox.Errorf(sandbox.Authentication, "api key", "is not known here")
	}
	return keys.Key{ID: "k1", Space: "acme"}, nil
}

type answer struct {
	*testing.T
	status int
	header http.Header
	body   string
}

// api serves b; a backend that is a *script only has no optional ability.
func api(b sandbox.Backend) *e2b.Server {
	return e2b.New(e2b.Options{Backend: b, Keys: doorman{}, Log: slog.New(slog.DiscardHandler)})
}

func request(method, path, body string) *http.Request {
	var r io.Reader
	if body != "" {
		r = strings.NewReader(body)
	}
	q := httptest.NewRequest(method, path, r)
	q.Header.Set("X-API-Key", key)
	return q
}

func serve(t *testing.T, h http.Handler, q *http.Request) answer {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, q)
	return answer{t, w.Code, w.Header(), strings.TrimSpace(w.Body.String())}
}

func call(t *testing.T, b sandbox.Backend, method, path, body string) answer {
	t.Helper()
	return serve(t, api(b), request(method, path, body))
}

// is checks status and body. A body of an error is given as its message.
func (a answer) is(status int, want string) {
	a.Helper()
	got := a.body
	if a.status >= 400 {
		var e struct {
			Code    int
			Message string
		}
		if err := json.Unmarshal([]byte(a.body), &e); err != nil || e.Code != a.status {
			a.Fatalf("not an error body of status %d: %s", a.status, a.body)
		}
		got = e.Message
	}
	if a.status != status || !strings.Contains(got, want) || want == "" && got != "" {
		a.Fatalf("got  %d %s\nwant %d %s", a.status, got, status, want)
	}
}
