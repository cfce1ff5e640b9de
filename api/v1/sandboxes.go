package v1

import (
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-run/holdfast/sandbox"
)

func (s *server) listSandboxes(w http.ResponseWriter, c *call) error {
	o, err := listOptions(c.URL.Query())
	if err != nil {
		return err
	}
	o.Space = c.space
	page, err := s.Backend.List(c.Context(), o)
	if err != nil {
		return err
	}
	out := SandboxList{Sandboxes: make([]Sandbox, len(page.Sandboxes)), Cursor: encodeCursor(page.Next), TotalRunning: page.TotalRunning}
	for i := range page.Sandboxes {
		sb := FromSandbox(&page.Sandboxes[i])
		sb.AccessToken, sb.TrafficToken = "", ""
		out.Sandboxes[i] = sb
	}
	reply(w, http.StatusOK, out)
	return nil
}

func listOptions(q url.Values) (sandbox.ListOptions, error) {
	o := sandbox.ListOptions{States: allStates, Template: q.Get("template")}
	if list := q.Get("state"); list != "" {
		o.States = nil
		for name := range strings.SplitSeq(list, ",") {
			state := sandbox.State(name)
			if !slices.Contains(allStates, state) {
				return o, sandbox.Errorf(sandbox.InvalidRequest, "state", "%q is not one of creating, running, pausing, paused, resuming, failed, deleting", name)
			}
			o.States = append(o.States, state)
		}
	}
	for _, pair := range q["metadata"] {
		k, v, ok := strings.Cut(pair, "=")
		if !ok {
			return o, sandbox.Errorf(sandbox.InvalidRequest, "metadata", "%q is not key=value", pair)
		}
		if o.Metadata == nil {
			o.Metadata = map[string]string{}
		}
		o.Metadata[k] = v
	}
	var err error
	if o.Limit, err = limit(q.Get("limit")); err != nil {
		return o, err
	}
	o.After, err = decodeCursor(q.Get("cursor"))
	return o, err
}

func limit(s string) (int, error) {
	if s == "" {
		return pageSize, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > pageSize {
		return 0, sandbox.Errorf(sandbox.InvalidRequest, "limit", "must be 1 to %d, not %q", pageSize, s)
	}
	return n, nil
}

var namePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)

func (s *server) createSandbox(w http.ResponseWriter, c *call) error {
	var req CreateRequest
	if err := decode(c.Request, &req); err != nil {
		return err
	}
	o, err := req.options()
	if err != nil {
		return err
	}
	o.Space = c.space
	if t, ok := s.Backend.(sandbox.Templater); ok && !named(c, t, o.Template) {
		// An abbreviated id is as good as a whole one.
		if found, err := s.findTemplate(c.Context(), t, c.space, o.Template, true); err == nil {
			o.Template = found.ID
		}
	}
	if name := o.Metadata[NameKey]; name != "" {
		release, err := s.reserveName(c, name)
		if err != nil {
			return err
		}
		defer release()
	}
	sb, err := s.Backend.Create(c.Context(), o)
	if err != nil {
		return err
	}
	reply(w, http.StatusCreated, FromSandbox(sb))
	return nil
}

func named(c *call, t sandbox.Templater, ref string) bool {
	_, err := t.Template(c.Context(), ref)
	return err == nil
}

// reserveName keeps two creates from taking one name, until release is called.
func (s *server) reserveName(c *call, name string) (release func(), err error) {
	key := c.space + "/" + name
	s.mu.Lock()
	taken := s.names[key]
	if !taken {
		s.names[key] = true
	}
	s.mu.Unlock()
	conflict := sandbox.Errorf(sandbox.Conflict, `sandbox name "`+name+`"`, "is taken").WithNext("choose another, or `holdfast rm %s`", name)
	if taken {
		return nil, conflict
	}
	release = func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.names, key)
	}
	found, err := s.search(c.Context(), sandbox.ListOptions{Space: c.space, Metadata: map[string]string{NameKey: name}}, nil, 1)
	if err == nil && len(found) > 0 {
		err = conflict
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// options checks a request and fills in its defaults.
func (r *CreateRequest) options() (sandbox.CreateOptions, error) {
	none := sandbox.CreateOptions{}
	life, err := r.lifecycle()
	if err != nil {
		return none, err
	}
	for field, n := range map[string]int{"cpus": r.Resources.CPUs, "memory_mb": r.Resources.MemoryMB, "disk_mb": r.Resources.DiskMB, "pids": r.Resources.PIDs} {
		if n < 0 {
			return none, sandbox.Errorf(sandbox.InvalidRequest, "field resources."+field, "must not be negative, not %d", n)
		}
	}
	metadata := maps.Clone(r.Metadata)
	if r.Name != "" {
		if !namePattern.MatchString(r.Name) || sandbox.ValidID(r.Name) {
			return none, sandbox.Errorf(sandbox.InvalidRequest, "field name", "%q is not a name: letters, digits, _ . - and at most 63 of them, and no sandbox id", r.Name)
		}
		if metadata == nil {
			metadata = map[string]string{}
		}
		metadata[NameKey] = r.Name
	}
	template := r.Template
	if template == "" {
		template = sandbox.DefaultTemplate
	}
	return sandbox.CreateOptions{
		Template: template, Timeout: life.Timeout, Lifecycle: life, Resources: sandbox.Resources(r.Resources),
		Network: sandbox.Network{
			AllowInternet: orTrue(r.Network.AllowInternet), AllowOut: r.Network.AllowOut, DenyOut: r.Network.DenyOut,
			AllowPublicTraffic: orTrue(r.Network.AllowPublicTraffic), MaskRequestHost: r.Network.MaskRequestHost,
		},
		Metadata: metadata, Env: r.Env, Secure: true, NoPool: r.NoPool,
	}, nil
}

func (r *CreateRequest) lifecycle() (sandbox.Lifecycle, error) {
	life := sandbox.Lifecycle{OnTimeout: sandbox.Pause, KeepMemory: orTrue(r.KeepMemory)}
	var err error
	if life.Timeout, err = timeout("timeout_seconds", r.TimeoutSeconds, sandbox.DefaultTimeout); err != nil {
		return life, err
	}
	switch on := sandbox.OnTimeout(r.OnTimeout); on {
	case "":
	case sandbox.Kill, sandbox.Pause:
		life.OnTimeout = on
	default:
		return life, sandbox.Errorf(sandbox.InvalidRequest, "field on_timeout", "must be kill or pause, not %q", r.OnTimeout)
	}
	life.AutoResume = life.OnTimeout == sandbox.Pause
	if r.AutoResume != nil {
		life.AutoResume = *r.AutoResume
	}
	return life, nil
}

func orTrue(b *bool) bool { return b == nil || *b }

func (s *server) getSandbox(w http.ResponseWriter, c *call) error {
	sb, err := s.find(c.Context(), c.space, c.PathValue("ref"))
	if err != nil {
		return err
	}
	reply(w, http.StatusOK, FromSandbox(sb))
	return nil
}

func (s *server) deleteSandbox(w http.ResponseWriter, c *call) error {
	sb, err := s.find(c.Context(), c.space, c.PathValue("ref"))
	if err != nil {
		return err
	}
	if err := s.Backend.Delete(c.Context(), sb.ID); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// inspectEvents is how many of the latest events Inspection shows.
const inspectEvents = 20

func (s *server) inspectSandbox(w http.ResponseWriter, c *call) error {
	sb, err := s.find(c.Context(), c.space, c.PathValue("ref"))
	if err != nil {
		return err
	}
	out := Inspection{Sandbox: FromSandbox(sb), Env: sb.Env, Events: []Event{}}
	if i, ok := s.Backend.(sandbox.Inspector); ok {
		in, err := i.Inspect(c.Context(), sb.ID)
		if err != nil {
			return err
		}
		out.Host = fromInspection(in)
	}
	if rec, ok := s.Backend.(sandbox.Recorder); ok {
		events, err := rec.Events(c.Context(), sb.ID, sandbox.EventOptions{})
		if err != nil {
			return err
		}
		for _, e := range events[max(0, len(events)-inspectEvents):] {
			out.Events = append(out.Events, fromEvent(e))
		}
		if sb.State == sandbox.Running {
			// It may be paused between the two calls: then there is no usage to show.
			if m, err := rec.Metric(c.Context(), sb.ID); err == nil && m != nil {
				out.Usage = fromMetric(m)
			}
		}
	}
	reply(w, http.StatusOK, out)
	return nil
}

func (s *server) pauseSandbox(w http.ResponseWriter, c *call) error {
	var req PauseRequest
	if err := decode(c.Request, &req); err != nil {
		return err
	}
	p, err := ability[sandbox.Pauser](s, "pause")
	if err != nil {
		return err
	}
	sb, err := s.find(c.Context(), c.space, c.PathValue("ref"))
	if err != nil {
		return err
	}
	if err := p.Pause(c.Context(), sb.ID, sandbox.PauseOptions{FilesOnly: req.FilesOnly}); err != nil {
		return err
	}
	return s.replySandbox(w, c, sb.ID)
}

func (s *server) replySandbox(w http.ResponseWriter, c *call, id string) error {
	sb, err := s.Backend.Get(c.Context(), id)
	if err != nil {
		return err
	}
	reply(w, http.StatusOK, FromSandbox(sb))
	return nil
}

func (s *server) connectSandbox(setDeadline bool) func(http.ResponseWriter, *call) error {
	return func(w http.ResponseWriter, c *call) error {
		var req ConnectRequest
		if err := decode(c.Request, &req); err != nil {
			return err
		}
		sb, err := s.find(c.Context(), c.space, c.PathValue("ref"))
		if err != nil {
			return err
		}
		def := sb.Lifecycle.Timeout
		if def <= 0 {
			def = sandbox.DefaultTimeout
		}
		d, err := timeout("timeout_seconds", req.TimeoutSeconds, def)
		if err != nil {
			return err
		}
		sb, resumed, err := s.Backend.Connect(c.Context(), sb.ID, sandbox.ConnectOptions{Timeout: d, SetDeadline: setDeadline, FilesOnly: req.FilesOnly})
		if err != nil {
			return err
		}
		reply(w, http.StatusOK, ConnectResponse{Sandbox: FromSandbox(sb), Resumed: resumed})
		return nil
	}
}

func (s *server) setTimeout(w http.ResponseWriter, c *call) error {
	var req TimeoutRequest
	if err := decode(c.Request, &req); err != nil {
		return err
	}
	d, err := timeout("timeout_seconds", req.TimeoutSeconds, 0)
	if err != nil {
		return err
	}
	sb, err := s.find(c.Context(), c.space, c.PathValue("ref"))
	if err != nil {
		return err
	}
	if req.ExtendOnly {
		err = s.Backend.Extend(c.Context(), sb.ID, d)
	} else {
		err = s.Backend.SetTimeout(c.Context(), sb.ID, d)
	}
	if err != nil {
		return err
	}
	return s.replySandbox(w, c, sb.ID)
}
