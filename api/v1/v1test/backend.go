// Package v1test has a backend in memory, for tests of what is built on api/v1.
package v1test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Backend keeps sandboxes in memory. Its zero value is empty and usable.
type Backend struct {
	mu        sync.Mutex
	sandboxes map[string]*sandbox.Sandbox
	events    map[string][]sandbox.Event
	templates []sandbox.Template
	seq       int64

	Created  []sandbox.CreateOptions // as Create was called
	Imports  []sandbox.ImportOptions // as ImportTemplate was called; Archive is read
	Archives [][]byte                // what their archives held
	// ImportErr fails imports, after AfterStep when that is set.
	ImportErr error
	AfterStep bool
	Findings  []sandbox.Finding
	Repaired  bool
	Connects  []sandbox.ConnectOptions
}

// ID gives the id of the n-th sandbox, a form that ValidID accepts.
func ID(n int) string { return fmt.Sprintf("i%04dabcdefghijklmnop", n) }

// Add puts a sandbox there, running unless it says otherwise.
func (b *Backend) Add(s sandbox.Sandbox) *sandbox.Sandbox {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sandboxes == nil {
		b.sandboxes, b.events = map[string]*sandbox.Sandbox{}, map[string][]sandbox.Event{}
	}
	if s.ID == "" {
		s.ID = ID(len(b.sandboxes) + 1)
	}
	s.Space = cmp.Or(s.Space, sandbox.DefaultSpace)
	s.State = cmp.Or(s.State, sandbox.Running)
	if s.CreatedAt.IsZero() {
		s.CreatedAt = time.Date(2026, 1, 1, 0, 0, len(b.sandboxes), 0, time.UTC)
	}
	if s.StartedAt.IsZero() {
		s.StartedAt = s.CreatedAt
	}
	if s.Lifecycle.Timeout == 0 {
		s.Lifecycle.Timeout = sandbox.DefaultTimeout
	}
	b.sandboxes[s.ID] = &s
	b.event(s.ID, "created", "created from "+s.Template)
	return &s
}

// AddTemplate puts a template or snapshot there.
func (b *Backend) AddTemplate(t sandbox.Template) {
	b.mu.Lock()
	defer b.mu.Unlock()
	t.Space = cmp.Or(t.Space, sandbox.DefaultSpace)
	b.templates = append(b.templates, t)
}

func (b *Backend) event(id, kind, message string) {
	b.seq++
	b.events[id] = append(b.events[id], sandbox.Event{Seq: b.seq, Time: time.Unix(b.seq, 0), SandboxID: id, Kind: kind, Message: message})
}

// with calls f on a sandbox under the lock.
func (b *Backend) with(id string, f func(*sandbox.Sandbox) error) (*sandbox.Sandbox, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok := b.sandboxes[id]
	if !ok {
		return nil, sandbox.Errorf(sandbox.NotFound, `sandbox "`+id+`"`, "does not exist")
	}
	if err := f(s); err != nil {
		return nil, err
	}
	c := *s
	return &c, nil
}

func unchanged(*sandbox.Sandbox) error { return nil }

// Create implements sandbox.Backend.
func (b *Backend) Create(_ context.Context, o sandbox.CreateOptions) (*sandbox.Sandbox, error) {
	b.mu.Lock()
	b.Created = append(b.Created, o)
	b.mu.Unlock()
	if o.Template == "missing" {
		return nil, sandbox.Errorf(sandbox.NotFound, `template "missing"`, "does not exist")
	}
	return b.Add(sandbox.Sandbox{
		Space: o.Space, Template: o.Template, Lifecycle: o.Lifecycle, Network: o.Network, Metadata: o.Metadata, Env: o.Env,
		Resources: o.Resources, AccessToken: "access", EndAt: time.Now().Add(o.Timeout),
	}), nil
}

// Get implements sandbox.Backend.
func (b *Backend) Get(_ context.Context, id string) (*sandbox.Sandbox, error) {
	return b.with(id, unchanged)
}

// List implements sandbox.Backend.
func (b *Backend) List(_ context.Context, o sandbox.ListOptions) (sandbox.Page, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var page sandbox.Page
	for _, s := range b.sandboxes {
		match := s.Space == o.Space && (len(o.States) == 0 || slices.Contains(o.States, s.State)) && (o.Template == "" || o.Template == s.Template)
		for k, v := range o.Metadata {
			match = match && s.Metadata[k] == v
		}
		if match {
			page.Sandboxes = append(page.Sandboxes, *s)
		}
	}
	before := func(a, b sandbox.Sandbox) int {
		return cmp.Or(b.StartedAt.Compare(a.StartedAt), strings.Compare(b.ID, a.ID))
	}
	slices.SortFunc(page.Sandboxes, before)
	if o.After.ID != "" {
		after := sandbox.Sandbox{ID: o.After.ID, StartedAt: o.After.StartedAt}
		page.Sandboxes = slices.DeleteFunc(page.Sandboxes, func(s sandbox.Sandbox) bool { return before(s, after) <= 0 })
	}
	if o.Limit > 0 && len(page.Sandboxes) > o.Limit {
		page.Sandboxes = page.Sandboxes[:o.Limit]
		last := page.Sandboxes[o.Limit-1]
		page.Next = &sandbox.Cursor{StartedAt: last.StartedAt, ID: last.ID}
	}
	return page, nil
}

// Connect implements sandbox.Backend.
func (b *Backend) Connect(_ context.Context, id string, o sandbox.ConnectOptions) (*sandbox.Sandbox, bool, error) {
	resumed := false
	s, err := b.with(id, func(s *sandbox.Sandbox) error {
		b.Connects = append(b.Connects, o)
		if resumed = s.State != sandbox.Running; resumed {
			s.State, s.Recovered = sandbox.Running, sandbox.DepthMemory
			b.event(id, "resumed", "")
		}
		s.EndAt = time.Now().Add(o.Timeout)
		return nil
	})
	return s, resumed, err
}

// SetTimeout implements sandbox.Backend.
func (b *Backend) SetTimeout(_ context.Context, id string, d time.Duration) error {
	_, err := b.with(id, func(s *sandbox.Sandbox) error { s.EndAt = time.Now().Add(d); return nil })
	return err
}

// Extend implements sandbox.Backend.
func (b *Backend) Extend(_ context.Context, id string, d time.Duration) error {
	_, err := b.with(id, func(s *sandbox.Sandbox) error {
		if end := time.Now().Add(d); end.After(s.EndAt) {
			s.EndAt = end
		}
		return nil
	})
	return err
}

// Delete implements sandbox.Backend.
func (b *Backend) Delete(_ context.Context, id string) error {
	_, err := b.with(id, func(*sandbox.Sandbox) error {
		b.event(id, "deleted", "")
		delete(b.sandboxes, id)
		return nil
	})
	return err
}

// Pause implements sandbox.Pauser.
func (b *Backend) Pause(_ context.Context, id string, _ sandbox.PauseOptions) error {
	_, err := b.with(id, func(s *sandbox.Sandbox) error {
		if s.State == sandbox.Paused {
			return sandbox.Errorf(sandbox.Conflict, `sandbox "`+id+`"`, "is already paused").WithNext("resume it first")
		}
		s.State = sandbox.Paused
		b.event(id, "paused", "")
		return nil
	})
	return err
}

// Snapshot implements sandbox.Snapshotter.
func (b *Backend) Snapshot(_ context.Context, id string, o sandbox.SnapshotOptions) (*sandbox.Template, error) {
	if _, err := b.with(id, unchanged); err != nil {
		return nil, err
	}
	t := sandbox.Template{ID: "s" + ID(len(b.templates))[1:], Name: o.Name, Snapshot: true, SourceID: id, HasMemory: !o.FilesOnly}
	b.AddTemplate(t)
	return &t, nil
}

// Fork implements sandbox.Snapshotter; the last of more than one fails.
func (b *Backend) Fork(_ context.Context, id string, o sandbox.ForkOptions) ([]sandbox.ForkResult, error) {
	s, err := b.with(id, unchanged)
	if err != nil {
		return nil, err
	}
	var out []sandbox.ForkResult
	for n := range o.Count {
		if n > 0 && n == o.Count-1 {
			out = append(out, sandbox.ForkResult{Err: sandbox.Errorf(sandbox.Capacity, "limit sandboxes", "is reached")})
			continue
		}
		out = append(out, sandbox.ForkResult{Sandbox: b.Add(sandbox.Sandbox{Template: s.Template, Metadata: s.Metadata})})
	}
	return out, nil
}

// Rollback implements sandbox.Snapshotter.
func (b *Backend) Rollback(_ context.Context, id, snapshotID string) (*sandbox.Sandbox, error) {
	return b.with(id, func(*sandbox.Sandbox) error { b.event(id, "rolled_back", snapshotID); return nil })
}

// Templates implements sandbox.Templater; the token is the index to go on at.
func (b *Backend) Templates(_ context.Context, o sandbox.TemplateListOptions) (list []sandbox.Template, token string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	start := 0
	if o.Token != "" {
		if _, err := fmt.Sscan(o.Token, &start); err != nil {
			return nil, "", sandbox.Errorf(sandbox.InvalidRequest, "cursor", "is not one")
		}
	}
	for i := start; i < len(b.templates); i++ {
		t := b.templates[i]
		if t.Snapshot != o.Snapshots || t.Space != o.Space || o.SourceID != "" && o.SourceID != t.SourceID {
			continue
		}
		if len(list) == o.Limit {
			return list, fmt.Sprint(i), nil
		}
		list = append(list, t)
	}
	return list, "", nil
}

// Template implements sandbox.Templater.
func (b *Backend) Template(_ context.Context, ref string) (*sandbox.Template, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.templates {
		if t.ID == ref || t.Name != "" && t.Name == ref {
			return &t, nil
		}
	}
	return nil, sandbox.Errorf(sandbox.NotFound, `template "`+ref+`"`, "does not exist")
}

// DeleteTemplate implements sandbox.Templater.
func (b *Backend) DeleteTemplate(_ context.Context, ref string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(b.templates)
	b.templates = slices.DeleteFunc(b.templates, func(t sandbox.Template) bool { return t.ID == ref })
	if len(b.templates) == n {
		return sandbox.Errorf(sandbox.NotFound, `template "`+ref+`"`, "does not exist")
	}
	return nil
}

// Events implements sandbox.Recorder. The history outlives its sandbox.
func (b *Backend) Events(_ context.Context, id string, o sandbox.EventOptions) ([]sandbox.Event, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(b.events[id]), func(e sandbox.Event) bool { return e.Seq <= o.Since }), nil
}

// Metric implements sandbox.Recorder.
func (b *Backend) Metric(_ context.Context, id string) (*sandbox.Metric, error) {
	_, err := b.with(id, unchanged)
	return &sandbox.Metric{Time: time.Unix(1, 0), CPUs: 2, CPUUsedPct: 12.5, MemUsed: 1 << 20, MemTotal: 1 << 30}, err
}

// Inspect implements sandbox.Inspector.
func (b *Backend) Inspect(_ context.Context, id string) (*sandbox.Inspection, error) {
	_, err := b.with(id, unchanged)
	return &sandbox.Inspection{Layers: []string{"l1", "l2"}, DiskBytes: 4096}, err
}

// ImportTemplate implements sandbox.Importer.
func (b *Backend) ImportTemplate(_ context.Context, o sandbox.ImportOptions) (*sandbox.Template, error) {
	var archive []byte
	if o.Archive != nil {
		var err error
		if archive, err = io.ReadAll(o.Archive); err != nil {
			return nil, err
		}
	}
	b.Imports, b.Archives = append(b.Imports, o), append(b.Archives, archive)
	if b.ImportErr != nil && !b.AfterStep {
		return nil, b.ImportErr
	}
	o.Progress(sandbox.Step{Name: "unpack", Detail: "layer 1", Done: 1, Total: 2})
	if b.ImportErr != nil {
		return nil, b.ImportErr
	}
	t := sandbox.Template{ID: "t" + ID(len(b.templates))[1:], Name: o.Name, Source: o.Source}
	b.AddTemplate(t)
	return &t, nil
}

// Status implements sandbox.Reporter.
func (b *Backend) Status(context.Context) (sandbox.NodeStatus, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return sandbox.NodeStatus{
		Engine: "memory", Sandboxes: map[sandbox.State]int{sandbox.Running: len(b.sandboxes)},
		Pool: map[string]sandbox.PoolStatus{"base": {Want: 2, Ready: 1}},
	}, nil
}

// Check implements sandbox.Doctor.
func (b *Backend) Check(context.Context) ([]sandbox.Finding, error) { return b.Findings, nil }

// Repair implements sandbox.Doctor.
func (b *Backend) Repair(context.Context) ([]sandbox.Finding, error) {
	b.Repaired = true
	out := slices.Clone(b.Findings)
	for i := range out {
		out[i].Repaired = true
	}
	return out, nil
}

// Secret is the key that Keys knows at first; it opens the default space.
const Secret = "e2b_00"

// Keys keeps API keys in memory.
type Keys struct {
	mu   sync.Mutex
	list []v1.Key
}

// Authenticate implements v1.Keys: Secret and the created keys open the default
// space, "e2b_other" the space other.
func (k *Keys) Authenticate(_ context.Context, key string) (string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key == "e2b_other" {
		return "other", nil
	}
	if key == Secret || slices.ContainsFunc(k.list, func(c v1.Key) bool { return c.Secret == key }) {
		return sandbox.DefaultSpace, nil
	}
	return "", sandbox.Errorf(sandbox.Authentication, "API key", "is not known")
}

// List implements v1.Keys.
func (k *Keys) List(context.Context, string) ([]v1.Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := slices.Clone(k.list)
	for i := range out {
		out[i].Secret = ""
	}
	return out, nil
}

// Create implements v1.Keys.
func (k *Keys) Create(_ context.Context, _, name string) (v1.Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.list) + 1
	key := v1.Key{ID: fmt.Sprintf("k%d", n), Name: name, Mask: "e2b_…", Secret: fmt.Sprintf("e2b_%02d", n), CreatedAt: time.Unix(int64(n), 0).UTC()}
	k.list = append(k.list, key)
	return key, nil
}

// Delete implements v1.Keys.
func (k *Keys) Delete(_ context.Context, _, id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.list)
	k.list = slices.DeleteFunc(k.list, func(c v1.Key) bool { return c.ID == id })
	if len(k.list) == n {
		return sandbox.Errorf(sandbox.NotFound, "API key "+id, "does not exist")
	}
	return nil
}

var (
	_ sandbox.Backend     = (*Backend)(nil)
	_ sandbox.Pauser      = (*Backend)(nil)
	_ sandbox.Snapshotter = (*Backend)(nil)
	_ sandbox.Templater   = (*Backend)(nil)
	_ sandbox.Recorder    = (*Backend)(nil)
	_ sandbox.Inspector   = (*Backend)(nil)
	_ sandbox.Importer    = (*Backend)(nil)
	_ sandbox.Reporter    = (*Backend)(nil)
	_ sandbox.Doctor      = (*Backend)(nil)
	_ v1.Keys             = (*Keys)(nil)
)
