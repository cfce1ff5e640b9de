package v1_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/api/v1/v1test"
	"github.com/holdfast-run/holdfast/sandbox"
)

// rig is a handler on a backend in memory, reached as from the socket unless a
// key is set.
type rig struct {
	t       *testing.T
	backend *v1test.Backend
	handler http.Handler
	key     string
	remote  bool
}

func newRig(t *testing.T) *rig {
	b := &v1test.Backend{}
	return &rig{t: t, backend: b, handler: handler(b)}
}

func handler(b sandbox.Backend) http.Handler {
	return v1.New(v1.Options{
		Backend: b, Keys: &v1test.Keys{},
		Status: func(context.Context) v1.Status {
			return v1.Status{Version: "1", PID: 7, Data: "/data", Config: "/etc/x", LocalKey: "e2b_local", Listen: "127.0.0.1:1"}
		},
		Checks: func(context.Context) []sandbox.Finding {
			return []sandbox.Finding{{Check: "kernel", Severity: sandbox.OK, Reason: "new enough"}}
		},
	})
}

func (r *rig) do(method, path, body string, headers ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	ctx := r.t.Context()
	if !r.remote {
		ctx = v1.WithLocal(ctx)
	}
	req := httptest.NewRequestWithContext(ctx, method, path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	if r.key != "" {
		req.Header.Set("X-API-Key", r.key)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	r.handler.ServeHTTP(w, req)
	return w
}

func decode[T any](t *testing.T, w *httptest.ResponseRecorder, status int) T {
	t.Helper()
	var v T
	if w.Code != status {
		t.Fatalf("status %d, want %d: %s", w.Code, status, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatalf("body %s: %v", w.Body, err)
	}
	return v
}

func wantError(t *testing.T, w *httptest.ResponseRecorder, status int, kind sandbox.Kind, text string) {
	t.Helper()
	e := decode[v1.ErrorBody](t, w, status).Error
	if e == nil || e.Kind != string(kind) || !strings.Contains(e.Thing+" "+e.Reason, text) {
		t.Errorf("error %+v, want kind %s with %q", e, kind, text)
	}
}

func TestWhoMayCall(t *testing.T) {
	r := newRig(t)
	r.remote = true
	for _, tt := range []struct {
		name, key, method, path string
		status                  int
	}{
		{"health needs no key", "", "GET", "/v1/health", 204},
		{"no key", "", "GET", "/v1/sandboxes", 401},
		{"wrong key", "e2b_ff", "GET", "/v1/sandboxes", 401},
		{"a key", v1test.Secret, "GET", "/v1/sandboxes", 200},
		{"keys are the operator's", v1test.Secret, "GET", "/v1/keys", 403},
		{"making keys too", v1test.Secret, "POST", "/v1/keys", 403},
		{"removing keys too", v1test.Secret, "DELETE", "/v1/keys/k1", 403},
		{"checks too", v1test.Secret, "GET", "/v1/doctor", 403},
		{"repairs too", v1test.Secret, "POST", "/v1/doctor/repair", 403},
		{"no such route", v1test.Secret, "GET", "/v1/nothing", 404},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.key = tt.key
			if w := r.do(tt.method, tt.path, `{"name":"x"}`); w.Code != tt.status {
				t.Errorf("status %d, want %d: %s", w.Code, tt.status, w.Body)
			}
		})
	}
	if r.backend.Repaired {
		t.Error("a repair went through")
	}
	r.key = ""
	if w := r.do("GET", "/v1/sandboxes", "", "Authorization", "Bearer "+v1test.Secret); w.Code != 200 {
		t.Errorf("bearer key: status %d", w.Code)
	}
}

func TestStatusHidesTheMachineFromRemoteCallers(t *testing.T) {
	r := newRig(t)
	st := decode[v1.Status](t, r.do("GET", "/v1/status", ""), 200)
	if st.LocalKey != "e2b_local" || st.PID != 7 || st.Node == nil || st.Node.Pool["base"].Ready != 1 {
		t.Errorf("over the socket: %+v", st)
	}
	r.remote, r.key = true, v1test.Secret
	st = decode[v1.Status](t, r.do("GET", "/v1/status", ""), 200)
	if st.LocalKey != "" || st.PID != 0 || st.Data != "" || st.Config != "" || st.Listen == "" {
		t.Errorf("from remote: %+v", st)
	}
}

func TestCreateDefaults(t *testing.T) {
	r := newRig(t)
	sb := decode[v1.Sandbox](t, r.do("POST", "/v1/sandboxes", ""), 201)
	if sb.AccessToken != "access" || sb.State != "running" || sb.EndAt.IsZero() {
		t.Errorf("answer %+v", sb)
	}
	want := sandbox.CreateOptions{
		Space: "default", Template: "base", Timeout: 5 * time.Minute, Secure: true,
		Lifecycle: sandbox.Lifecycle{Timeout: 5 * time.Minute, OnTimeout: sandbox.Pause, KeepMemory: true, AutoResume: true},
		Network:   sandbox.Network{AllowInternet: true, AllowPublicTraffic: true},
	}
	if d := cmp.Diff(want, r.backend.Created[0]); d != "" {
		t.Error(d)
	}
}

func TestCreateAllFields(t *testing.T) {
	r := newRig(t)
	r.do("POST", "/v1/sandboxes", `{"template":"go:1","name":"dev","timeout_seconds":1.5,"on_timeout":"kill","keep_memory":false,
		"resources":{"cpus":4,"memory_mb":512,"disk_mb":100,"pids":50},
		"network":{"allow_internet":false,"allow_out":["1.1.1.1"],"deny_out":["0.0.0.0/0"],"allow_public_traffic":false,"mask_request_host":"h"},
		"metadata":{"a":"b"},"env":{"K":"V"},"no_pool":true}`)
	want := sandbox.CreateOptions{
		Space: "default", Template: "go:1", Timeout: 1500 * time.Millisecond, Secure: true, NoPool: true,
		Lifecycle: sandbox.Lifecycle{Timeout: 1500 * time.Millisecond, OnTimeout: sandbox.Kill},
		Resources: sandbox.Resources{CPUs: 4, MemoryMB: 512, DiskMB: 100, PIDs: 50},
		Network:   sandbox.Network{AllowOut: []string{"1.1.1.1"}, DenyOut: []string{"0.0.0.0/0"}, MaskRequestHost: "h"},
		Metadata:  map[string]string{"a": "b", "name": "dev"}, Env: map[string]string{"K": "V"},
	}
	if d := cmp.Diff(want, r.backend.Created[0]); d != "" {
		t.Error(d)
	}
}

func TestCreateRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		status     int
		text       string
	}{
		{"unknown field", `{"templat":"base"}`, 400, "field templat is not known"},
		{"unknown security field", `{"network":{"allowInternet":false}}`, 400, "allowInternet is not known"},
		{"wrong type", `{"timeout_seconds":"soon"}`, 400, "field timeout_seconds must be a number, not string"},
		{"wrong type inside", `{"resources":{"cpus":1.5}}`, 400, "field resources.cpus must be a whole number"},
		{"wrong bool", `{"keep_memory":"no"}`, 400, "keep_memory must be true or false"},
		{"not json", `{`, 400, "is not the JSON expected"},
		{"two values", `{} {}`, 400, "more than one JSON value"},
		{"negative timeout", `{"timeout_seconds":-1}`, 400, "must be greater than 0"},
		{"endless timeout", `{"timeout_seconds":1e12}`, 400, "must be at most"},
		{"on_timeout", `{"on_timeout":"sleep"}`, 400, "must be kill or pause"},
		{"negative memory", `{"resources":{"memory_mb":-5}}`, 400, "resources.memory_mb must not be negative"},
		{"name", `{"name":"a b"}`, 400, "is not a name"},
		{"name like an id", `{"name":"` + v1test.ID(1) + `"}`, 400, "no sandbox id"},
		{"too large", `{"metadata":{"a":"` + strings.Repeat("x", 10<<20) + `"}}`, 413, "larger than 1048576 bytes"},
		{"template", `{"template":"missing"}`, 404, `template "missing" does not exist`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			kind := sandbox.InvalidRequest
			if tt.status == 404 {
				kind = sandbox.NotFound
			}
			wantError(t, newRig(t).do("POST", "/v1/sandboxes", tt.body), tt.status, kind, tt.text)
		})
	}
}

func TestNamesAreUnique(t *testing.T) {
	r := newRig(t)
	r.do("POST", "/v1/sandboxes", `{"name":"dev"}`)
	wantError(t, r.do("POST", "/v1/sandboxes", `{"name":"dev"}`), 409, sandbox.Conflict, "is taken")
	wantError(t, r.do("POST", "/v1/sandboxes", `{"metadata":{"name":"dev"}}`), 409, sandbox.Conflict, "is taken")
	r.remote, r.key = true, "e2b_other"
	if w := r.do("POST", "/v1/sandboxes", `{"name":"dev"}`); w.Code != 201 {
		t.Errorf("in another space: %d %s", w.Code, w.Body)
	}
}

func TestReferences(t *testing.T) {
	r := newRig(t)
	first := r.backend.Add(sandbox.Sandbox{ID: "i1aaaaaaaaaaaaaaaaaaa", Metadata: map[string]string{"name": "dev"}})
	second := r.backend.Add(sandbox.Sandbox{ID: "i1bbbbbbbbbbbbbbbbbbb", State: sandbox.Failed})
	r.backend.Add(sandbox.Sandbox{ID: "i1ccccccccccccccccccc", Metadata: map[string]string{"name": "dev"}}) // a fork
	r.backend.Add(sandbox.Sandbox{ID: "i2ddddddddddddddddddd", Space: "other"})
	for _, tt := range []struct {
		ref    string
		want   string
		status int
		text   string
	}{
		{ref: first.ID, want: first.ID, status: 200},
		{ref: "dev", want: first.ID, status: 200},
		{ref: "i1b", want: second.ID, status: 200},
		{ref: "i1", status: 409, text: "is ambiguous"},
		{ref: "i9", status: 404, text: "does not exist"},
		{ref: "b", status: 404, text: "does not exist"},
		{ref: "i2ddddddddddddddddddd", status: 404, text: "does not exist"},
		{ref: "i2", status: 404, text: "does not exist"},
		{ref: "a%2F..%2Fb", status: 404, text: "does not exist"},
	} {
		t.Run(tt.ref, func(t *testing.T) {
			w := r.do("GET", "/v1/sandboxes/"+tt.ref, "")
			if tt.status != 200 {
				wantError(t, w, tt.status, map[int]sandbox.Kind{404: sandbox.NotFound, 409: sandbox.Conflict}[tt.status], tt.text)
				return
			}
			if sb := decode[v1.Sandbox](t, w, 200); sb.ID != tt.want {
				t.Errorf("found %s, want %s", sb.ID, tt.want)
			}
		})
	}
}

func TestListPages(t *testing.T) {
	r := newRig(t)
	for n := range 250 {
		state := sandbox.Running
		if n%2 == 1 {
			state = sandbox.Paused
		}
		r.backend.Add(sandbox.Sandbox{ID: v1test.ID(n), State: state, AccessToken: "secret", Metadata: map[string]string{"n": fmt.Sprint(n % 5)}})
	}
	seen := map[string]bool{}
	pages := 0
	for cursor := ""; ; pages++ {
		w := r.do("GET", "/v1/sandboxes?cursor="+cursor, "")
		page := decode[v1.SandboxList](t, w, 200)
		if strings.Contains(w.Body.String(), "secret") {
			t.Fatal("a list shows tokens")
		}
		for _, s := range page.Sandboxes {
			if seen[s.ID] {
				t.Fatalf("%s comes twice", s.ID)
			}
			seen[s.ID] = true
		}
		if cursor = page.Cursor; cursor == "" {
			break
		}
	}
	if len(seen) != 250 || pages != 2 {
		t.Errorf("%d sandboxes on %d pages after the first", len(seen), pages)
	}
	if got := decode[v1.SandboxList](t, r.do("GET", "/v1/sandboxes?state=paused&metadata=n%3D3&limit=7", ""), 200); len(got.Sandboxes) != 7 || got.Sandboxes[0].State != "paused" {
		t.Errorf("filtered: %d", len(got.Sandboxes))
	}
	for query, text := range map[string]string{
		"state=asleep": `"asleep" is not one of`, "metadata=x": "is not key=value", "limit=0": "must be 1 to 100",
		"limit=101": "must be 1 to 100", "limit=x": "must be 1 to 100", "cursor=!": "is not one of this API", "cursor=YWJj": "is not one of this API",
	} {
		wantError(t, r.do("GET", "/v1/sandboxes?"+query, ""), 400, sandbox.InvalidRequest, text)
	}
}

func TestLifecycle(t *testing.T) {
	r := newRig(t)
	sb := decode[v1.Sandbox](t, r.do("POST", "/v1/sandboxes", `{"name":"dev","timeout_seconds":60}`), 201)
	if s := decode[v1.Sandbox](t, r.do("POST", "/v1/sandboxes/dev/pause", ""), 200); s.State != "paused" || !s.EndAt.IsZero() {
		t.Errorf("paused: %+v", s)
	}
	wantError(t, r.do("POST", "/v1/sandboxes/dev/pause", ""), 409, sandbox.Conflict, "is already paused")
	c := decode[v1.ConnectResponse](t, r.do("POST", "/v1/sandboxes/dev/connect", ""), 200)
	if !c.Resumed || c.Sandbox.Recovered != "memory" || c.Sandbox.AccessToken == "" {
		t.Errorf("connected: %+v", c)
	}
	decode[v1.ConnectResponse](t, r.do("POST", "/v1/sandboxes/dev/resume", `{"timeout_seconds":5,"files_only":true}`), 200)
	want := []sandbox.ConnectOptions{{Timeout: time.Minute}, {Timeout: 5 * time.Second, SetDeadline: true, FilesOnly: true}}
	if d := cmp.Diff(want, r.backend.Connects); d != "" {
		t.Error(d)
	}
	before := decode[v1.Sandbox](t, r.do("GET", "/v1/sandboxes/dev", ""), 200).EndAt
	if s := decode[v1.Sandbox](t, r.do("POST", "/v1/sandboxes/dev/timeout", `{"timeout_seconds":1,"extend_only":true}`), 200); !s.EndAt.Equal(before) {
		t.Errorf("extending moved the deadline back from %v to %v", before, s.EndAt)
	}
	if s := decode[v1.Sandbox](t, r.do("POST", "/v1/sandboxes/dev/timeout", `{}`), 200); !s.EndAt.Before(before) {
		t.Errorf("a timeout of 0 left the deadline at %v", s.EndAt)
	}
	if w := r.do("DELETE", "/v1/sandboxes/"+sb.ID, ""); w.Code != 204 {
		t.Errorf("delete: %d %s", w.Code, w.Body)
	}
	wantError(t, r.do("DELETE", "/v1/sandboxes/dev", ""), 404, sandbox.NotFound, "does not exist")
}

func TestSnapshotForkRollback(t *testing.T) {
	r := newRig(t)
	r.do("POST", "/v1/sandboxes", `{"name":"dev"}`)
	snap := decode[v1.Template](t, r.do("POST", "/v1/sandboxes/dev/snapshots", `{"name":"ready","files_only":true}`), 201)
	if !snap.Snapshot || snap.HasMemory || snap.Name != "ready" {
		t.Errorf("snapshot %+v", snap)
	}
	decode[v1.Sandbox](t, r.do("POST", "/v1/sandboxes", `{"template":"`+snap.ID[:4]+`"}`), 201)
	if got := r.backend.Created[1].Template; got != snap.ID {
		t.Errorf("an abbreviated snapshot id became %q, want %s", got, snap.ID)
	}
	forks := decode[v1.ForkResponse](t, r.do("POST", "/v1/sandboxes/dev/fork", `{"count":3}`), 201).Forks
	if len(forks) != 3 || forks[0].Sandbox == nil || forks[2].Error == nil || forks[2].Error.Kind != "capacity" {
		t.Errorf("forks %+v", forks)
	}
	wantError(t, r.do("POST", "/v1/sandboxes/dev/fork", `{"count":101}`), 400, sandbox.InvalidRequest, "must be 1 to 100")
	wantError(t, r.do("POST", "/v1/sandboxes/dev/rollback", `{}`), 400, sandbox.InvalidRequest, "field snapshot is missing")
	wantError(t, r.do("POST", "/v1/sandboxes/dev/rollback", `{"snapshot":"nope"}`), 404, sandbox.NotFound, `snapshot "nope"`)
	decode[v1.Sandbox](t, r.do("POST", "/v1/sandboxes/dev/rollback", `{"snapshot":"ready"}`), 200)
	in := decode[v1.Inspection](t, r.do("GET", "/v1/sandboxes/dev/inspect", ""), 200)
	if last := in.Events[len(in.Events)-1]; last.Kind != "rolled_back" || last.Message != snap.ID {
		t.Errorf("last event %+v", last)
	}
	if in.Host == nil || in.Usage == nil || in.Usage.CPUPercent != 12.5 || len(in.Host.Layers) != 2 {
		t.Errorf("inspection %+v", in)
	}
}

func TestTemplates(t *testing.T) {
	r := newRig(t)
	for n := range 120 {
		r.backend.AddTemplate(sandbox.Template{ID: fmt.Sprintf("t%04d", n), Name: fmt.Sprintf("n%d", n)})
	}
	r.backend.AddTemplate(sandbox.Template{ID: "s1", Snapshot: true, SourceID: v1test.ID(1)})
	r.backend.AddTemplate(sandbox.Template{ID: "s2", Snapshot: true, SourceID: v1test.ID(2)})
	first := decode[v1.TemplateList](t, r.do("GET", "/v1/templates", ""), 200)
	rest := decode[v1.TemplateList](t, r.do("GET", "/v1/templates?cursor="+first.Cursor, ""), 200)
	if len(first.Templates) != 100 || len(rest.Templates) != 20 || rest.Cursor != "" {
		t.Errorf("pages of %d and %d", len(first.Templates), len(rest.Templates))
	}
	if got := decode[v1.TemplateList](t, r.do("GET", "/v1/snapshots?sandbox="+v1test.ID(2), ""), 200).Templates; len(got) != 1 || got[0].ID != "s2" {
		t.Errorf("snapshots of one sandbox: %+v", got)
	}
	wantError(t, r.do("GET", "/v1/templates/t011", ""), 409, sandbox.Conflict, "is ambiguous")
	if got := decode[v1.Template](t, r.do("GET", "/v1/templates/n7", ""), 200); got.ID != "t0007" {
		t.Errorf("by name: %+v", got)
	}
	wantError(t, r.do("DELETE", "/v1/templates/s1", ""), 404, sandbox.NotFound, `template "s1"`)
	if w := r.do("DELETE", "/v1/snapshots/s1", ""); w.Code != 204 {
		t.Errorf("delete snapshot: %d %s", w.Code, w.Body)
	}
}

func lines(t *testing.T, w *httptest.ResponseRecorder) (steps int, last v1.ImportProgress) {
	t.Helper()
	d := json.NewDecoder(w.Body)
	for {
		var p v1.ImportProgress
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return steps, last
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.Step != nil {
			steps++
		}
		last = p
	}
}

func TestImport(t *testing.T) {
	r := newRig(t)
	w := r.do("POST", "/v1/templates", `{"name":"base"}`)
	if steps, last := lines(t, w); steps != 1 || last.Template == nil || last.Template.Name != "base" {
		t.Errorf("%d steps, then %+v", steps, last)
	}
	w = r.do("POST", "/v1/templates?name=app&cpus=4", "archive bytes", "Content-Type", "application/octet-stream")
	if _, last := lines(t, w); last.Template == nil {
		t.Errorf("upload: %+v", last)
	}
	if got := r.backend.Imports[1]; got.Name != "app" || got.Resources.CPUs != 4 || !bytes.Equal(r.backend.Archives[1], []byte("archive bytes")) {
		t.Errorf("upload arrived as %+v with %q", got, r.backend.Archives[1])
	}
	r.backend.ImportErr = sandbox.Errorf(sandbox.Unavailable, "registry", "does not answer")
	wantError(t, r.do("POST", "/v1/templates", `{"name":"x","source":"debian:12"}`), 503, sandbox.Unavailable, "does not answer")
	r.backend.AfterStep = true
	w = r.do("POST", "/v1/templates", `{"name":"x","source":"debian:12"}`)
	if steps, last := lines(t, w); w.Code != 200 || steps != 1 || last.Error == nil || last.Error.Kind != "unavailable" {
		t.Errorf("error after a step: %d, %d steps, %+v", w.Code, steps, last)
	}
	wantError(t, r.do("POST", "/v1/templates", `{}`), 400, sandbox.InvalidRequest, "field name is missing")
	wantError(t, r.do("POST", "/v1/templates?name=x&cpus=many", "", "Content-Type", "x/y"), 400, sandbox.InvalidRequest, "cpus must be a whole number")
}

func TestImportOfNodePathsIsLocal(t *testing.T) {
	r := newRig(t)
	r.remote, r.key = true, v1test.Secret
	for source, allowed := range map[string]bool{
		"debian:12": true, "docker://debian:12": true, "registry.example/a/b:1": true, "debootstrap://bookworm": true, "": true,
		"/etc": false, "./x": false, "../x": false, "~/x": false, "oci:/x": false, "tar:/x": false, "x.tar": false, "x.tar.gz": false,
		"x.tgz": false, "image.tar#tag": false, "layout#tag": false, "file:///etc": false, ".": false,
	} {
		w := r.do("POST", "/v1/templates", fmt.Sprintf(`{"name":"x","source":%q}`, source))
		if want := map[bool]int{true: 200, false: 403}[allowed]; w.Code != want {
			t.Errorf("source %q from remote: status %d, want %d", source, w.Code, want)
		}
	}
}

func TestFollowEndsWithTheSandbox(t *testing.T) {
	r := newRig(t)
	sb := r.backend.Add(sandbox.Sandbox{})
	srv := httptest.NewUnstartedServer(r.handler)
	srv.Start()
	defer srv.Close()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL+"/v1/sandboxes/"+sb.ID+"/events?follow=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-API-Key", v1test.Secret)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	stream := bufio.NewScanner(res.Body)
	next := func() string {
		if !stream.Scan() {
			return fmt.Sprint("end: ", stream.Err())
		}
		var e v1.Event
		if err := json.Unmarshal(stream.Bytes(), &e); err != nil {
			t.Fatalf("line %q: %v", stream.Text(), err)
		}
		return e.Kind
	}
	var kinds []string
	kinds = append(kinds, next())
	if err := r.backend.Pause(t.Context(), sb.ID, sandbox.PauseOptions{}); err != nil {
		t.Fatal(err)
	}
	kinds = append(kinds, next())
	if err := r.backend.Delete(t.Context(), sb.ID); err != nil {
		t.Fatal(err)
	}
	kinds = append(kinds, next(), next())
	if d := cmp.Diff([]string{"created", "paused", "deleted", "end: <nil>"}, kinds); d != "" {
		t.Error(d)
	}
}

func TestKeysAndDoctor(t *testing.T) {
	r := newRig(t)
	key := decode[v1.Key](t, r.do("POST", "/v1/keys", `{"name":"ci"}`), 201)
	if key.Secret == "" {
		t.Error("a new key is not shown")
	}
	wantError(t, r.do("POST", "/v1/keys", `{"name":" "}`), 400, sandbox.InvalidRequest, "field name")
	if w := r.do("GET", "/v1/keys", ""); strings.Contains(w.Body.String(), key.Secret) {
		t.Error("the list shows the key")
	}
	if w := r.do("DELETE", "/v1/keys/"+key.ID, ""); w.Code != 204 {
		t.Errorf("delete key: %d", w.Code)
	}
	r.backend.Findings = []sandbox.Finding{{Check: "mounts", Severity: sandbox.Problem, Thing: "/x", Reason: "belongs to no sandbox", Next: "--repair"}}
	found := decode[v1.FindingList](t, r.do("GET", "/v1/doctor", ""), 200).Findings
	if len(found) != 2 || found[0].Check != "kernel" || found[1].Severity != "problem" || found[1].Repaired || r.backend.Repaired {
		t.Errorf("check: %+v", found)
	}
	found = decode[v1.FindingList](t, r.do("POST", "/v1/doctor/repair", ""), 200).Findings
	if !found[1].Repaired {
		t.Errorf("repair: %+v", found)
	}
}

// plain is a backend without any optional ability.
type plain struct{ sandbox.Backend }

func TestMissingAbilities(t *testing.T) {
	b := &v1test.Backend{}
	sb := b.Add(sandbox.Sandbox{})
	r := &rig{t: t, backend: b, handler: handler(plain{b})}
	for _, route := range []string{
		"POST /v1/sandboxes/" + sb.ID + "/pause", "POST /v1/sandboxes/" + sb.ID + "/snapshots", "POST /v1/sandboxes/" + sb.ID + "/fork",
		"GET /v1/sandboxes/" + sb.ID + "/events", "GET /v1/templates", "GET /v1/snapshots/x", "DELETE /v1/templates/x",
	} {
		method, path, _ := strings.Cut(route, " ")
		wantError(t, r.do(method, path, ""), 501, sandbox.Unsupported, "cannot be done")
	}
	if in := decode[v1.Inspection](t, r.do("GET", "/v1/sandboxes/"+sb.ID+"/inspect", ""), 200); in.Host != nil || in.Usage != nil || in.ID != sb.ID {
		t.Errorf("inspection %+v", in)
	}
}

// failing answers every Get with an error.
type failing struct {
	sandbox.Backend
	err error
}

func (f failing) Get(context.Context, string) (*sandbox.Sandbox, error) { return nil, f.err }

func TestErrorsOnTheWire(t *testing.T) {
	cause := errors.New("disk on fire")
	for kind, status := range map[sandbox.Kind]int{
		sandbox.NotFound: 404, sandbox.Terminal: 410, sandbox.Authentication: 401, sandbox.InvalidRequest: 400, sandbox.Unsupported: 501,
		sandbox.Conflict: 409, sandbox.Capacity: 429, sandbox.Timeout: 504, sandbox.Unavailable: 503, sandbox.Internal: 500,
	} {
		err := sandbox.Errorf(kind, "sandbox x", "is broken: %w", cause).WithNext("wait")
		r := &rig{t: t, handler: handler(failing{&v1test.Backend{}, fmt.Errorf("get: %w", err)})}
		e := decode[v1.ErrorBody](t, r.do("GET", "/v1/sandboxes/"+v1test.ID(1), ""), status).Error
		want := &v1.Error{Kind: string(kind), Thing: "sandbox x", Reason: "is broken: disk on fire", Next: "wait"}
		if d := cmp.Diff(want, e); d != "" {
			t.Errorf("%s: %s", kind, d)
		}
		if back := e.Err(); sandbox.KindOf(back) != kind || back.Error() != "sandbox x is broken: disk on fire; wait" {
			t.Errorf("%s came back as %v", kind, back)
		}
	}
	r := &rig{t: t, handler: handler(failing{&v1test.Backend{}, cause})}
	wantError(t, r.do("GET", "/v1/sandboxes/"+v1test.ID(1), ""), 500, sandbox.Internal, "disk on fire")
}
