package e2b_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/api/e2b"
	"github.com/holdfast-run/holdfast/keys"
	"github.com/holdfast-run/holdfast/sandbox"
)

func TestAuthentication(t *testing.T) {
	h := api(newScript())
	for _, c := range []struct {
		name   string
		adjust func(*http.Request) *http.Request
		status int
	}{
		{"key header", func(r *http.Request) *http.Request { r.Header.Set("X-API-Key", key); return r }, 200},
		{"bearer", func(r *http.Request) *http.Request { r.Header.Set("Authorization", "Bearer "+key); return r }, 200},
		{"none", func(r *http.Request) *http.Request { return r }, 401},
		{"wrong", func(r *http.Request) *http.Request { r.Header.Set("X-API-Key", "e2b_01"); return r }, 401},
		{"wrong bearer", func(r *http.Request) *http.Request { r.Header.Set("Authorization", "Bearer x"); return r }, 401},
		{"admitted by other means", func(r *http.Request) *http.Request {
			return r.WithContext(keys.NewContext(r.Context(), keys.Key{Space: "acme"}))
		}, 200},
	} {
		a := serve(t, h, c.adjust(httptest.NewRequest("GET", "/sandboxes/"+box, nil)))
		if a.status != c.status {
			t.Errorf("%s: %d %s", c.name, a.status, a.body)
		}
		if c.status == 401 {
			a.is(401, "api key")
		}
	}
	for _, path := range []string{"/v2/sandboxes", "/teams", "/volumes", "/nonsense", "/templates/x"} {
		if a := serve(t, h, httptest.NewRequest("GET", path, nil)); a.status != 401 {
			t.Errorf("%s answers %d to anyone", path, a.status)
		}
	}
	if a := serve(t, h, httptest.NewRequest("GET", "/health", nil)); a.status != 204 {
		t.Errorf("health: %d", a.status)
	}
}

func TestNoRoute(t *testing.T) {
	call(t, newScript(), "GET", "/nonsense", "").is(404, "no route GET /nonsense")
	a := call(t, newScript(), "PUT", "/sandboxes/"+box, "{}")
	a.is(405, "use GET or DELETE")
	if got := a.header.Get("Allow"); got != "GET, DELETE" {
		t.Errorf("allow %q", got)
	}
}

func TestBrowsers(t *testing.T) {
	r := httptest.NewRequest("OPTIONS", "/v2/sandboxes", nil) // without a key: browsers send none
	r.Header.Set("Origin", "https://app.example")
	r.Header.Set("Access-Control-Request-Method", "POST")
	r.Header.Set("Access-Control-Request-Headers", "x-api-key,browser,lang,package_version,publisher,sdk_runtime,system")
	a := serve(t, api(newScript()), r)
	if a.status != 204 || a.header.Get("Access-Control-Allow-Origin") != "*" ||
		!strings.Contains(a.header.Get("Access-Control-Allow-Headers"), "x-api-key,browser,lang") ||
		a.header.Get("Access-Control-Allow-Credentials") != "" {
		t.Fatalf("preflight: %d %v", a.status, a.header)
	}
	r = request("GET", "/v2/sandboxes", "")
	r.Header.Set("Origin", "https://app.example")
	a = serve(t, api(newScript()), r)
	if a.header.Get("Access-Control-Allow-Origin") != "*" || !strings.Contains(a.header.Get("Access-Control-Expose-Headers"), "X-Next-Token") {
		t.Fatalf("call: %v", a.header)
	}
}

func TestDomainIsReported(t *testing.T) {
	h := e2b.New(e2b.Options{Backend: newScript(), Keys: doorman{}, Domain: "boxes.example"})
	serve(t, h, request("POST", "/v2/sandboxes", `{"templateID":"base"}`)).is(201, `"domain":"boxes.example"`)
	serve(t, h, request("GET", "/sandboxes/"+box, "")).is(200, `"domain":"boxes.example"`)
}

func TestListV2(t *testing.T) {
	running := []sandbox.State{sandbox.Running, sandbox.Resuming}
	paused := []sandbox.State{sandbox.Paused, sandbox.Pausing, sandbox.Failed}
	all := append(append([]sandbox.State{}, running...), paused...)
	for query, want := range map[string]sandbox.ListOptions{
		"":                                  {States: all, Limit: 100},
		"state=running":                     {States: running, Limit: 100},
		"state=paused&limit=5":              {States: paused, Limit: 5},
		"state=running,paused":              {States: all, Limit: 100},
		"state=running&state=paused":        {States: all, Limit: 100},
		"order=asc":                         {States: all, Limit: 100, Ascending: true},
		"template=base":                     {States: all, Limit: 100, Template: "base"},
		"metadata=a%3Db%252520c":            {States: all, Limit: 100, Metadata: map[string]string{"a": "b c"}},
		"startedAfter=2026-01-02T03:04:05Z": {States: all, Limit: 100, StartedAfter: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)},
	} {
		s := newScript()
		a := call(t, s, "GET", "/v2/sandboxes?"+query, "")
		want.Space = "acme"
		if a.status != 200 || !reflect.DeepEqual(s.list, want) {
			t.Errorf("%s: %d, asked for\n%+v\nwant\n%+v", query, a.status, s.list, want)
		}
		if a.header.Get("X-Total-Running") != "7" || a.header.Get("X-Next-Token") != "" {
			t.Errorf("%s: headers %v", query, a.header)
		}
	}
	for query, want := range map[string]string{
		"state=creating": `"state"`, "order=up": `"order"`, "limit=0": `"limit"`, "limit=101": `"limit"`, "limit=x": `"limit"`,
		"startedAfter=yesterday": `"startedAfter"`, "metadata=a": `"metadata"`, "nextToken=x": `"nextToken"`,
	} {
		call(t, newScript(), "GET", "/v2/sandboxes?"+query, "").is(400, want)
	}
	s := newScript()
	s.page = func(sandbox.ListOptions) sandbox.Page { return sandbox.Page{} }
	if a := call(t, s, "GET", "/v2/sandboxes", ""); a.body != "[]" {
		t.Errorf("no sandboxes: %s", a.body)
	}
}

func TestPagingGivesEachOnce(t *testing.T) {
	const total = 7
	s := newScript()
	// Sandbox i started i nanoseconds after t0: a rounded cursor would lose some.
	s.page = func(o sandbox.ListOptions) (p sandbox.Page) {
		first := 0
		if !o.After.StartedAt.IsZero() {
			first = int(o.After.StartedAt.Sub(t0)) + 1
		}
		for i := first; i < min(total, first+o.Limit); i++ {
			p.Sandboxes = append(p.Sandboxes, sandbox.Sandbox{ID: "i" + string(rune('a'+i)), StartedAt: t0.Add(time.Duration(i))})
		}
		if last := first + len(p.Sandboxes) - 1; last < total-1 {
			p.Next = &sandbox.Cursor{StartedAt: t0.Add(time.Duration(last)), ID: p.Sandboxes[len(p.Sandboxes)-1].ID}
		}
		return p
	}
	token, pages, ids := "", 0, ""
	for {
		a := call(t, s, "GET", "/v2/sandboxes?order=asc&limit=3&nextToken="+url.QueryEscape(token), "")
		if a.status != 200 {
			t.Fatal(a.body)
		}
		for _, part := range strings.Split(a.body, `"sandboxID":"i`)[1:] {
			ids += part[:1]
		}
		pages++
		if token = a.header.Get("X-Next-Token"); token == "" {
			break
		}
	}
	if pages != 3 || ids != "abcdefg" {
		t.Fatalf("%d pages gave %s", pages, ids)
	}
	a := call(t, s, "GET", "/v2/sandboxes?order=asc&limit=3", "")
	call(t, s, "GET", "/v2/sandboxes?order=desc&nextToken="+a.header.Get("X-Next-Token"), "").is(400, "other order")

	// v1 gives all of them at once.
	s.called = nil
	a = call(t, s, "GET", "/sandboxes?metadata=a%3Db", "")
	if got := strings.Count(a.body, `"sandboxID"`); a.status != 200 || got != total {
		t.Fatalf("v1: %d of %d", got, total)
	}
	if !reflect.DeepEqual(s.list.States, []sandbox.State{sandbox.Running, sandbox.Resuming}) || s.list.Metadata["a"] != "b" || s.list.Space != "acme" {
		t.Fatalf("v1 asked for %+v", s.list)
	}
}

func TestTemplates(t *testing.T) {
	s := newScript()
	mine := &sandbox.Template{ID: "t1", Name: "mine", Names: []string{"mine:v1", "mine:v2", "also"}, Space: "acme", CreatedAt: t0, Resources: sandbox.Resources{CPUs: 2, MemoryMB: 512, DiskMB: 1024}, SpawnCount: 3}
	base := &sandbox.Template{ID: "t0", Name: "base", CreatedAt: t0, LastUsedAt: t0}
	theirs := &sandbox.Template{ID: "t2", Name: "theirs", Space: "other"}
	s.template = map[string]*sandbox.Template{"mine": mine, "t1": mine, "ns/mine:v1": mine, "base": base, "theirs": theirs}
	s.pages = func(o sandbox.TemplateListOptions) ([]sandbox.Template, string) {
		if o.Space != "acme" {
			t.Errorf("asked for space %q", o.Space)
		}
		switch {
		case o.Snapshots:
			return []sandbox.Template{{ID: "s1", Name: o.Name, SourceID: o.SourceID, CreatedAt: t0}}, "more"
		case o.Token == "":
			return []sandbox.Template{*base}, "next"
		}
		return []sandbox.Template{*mine}, ""
	}
	b := full{s}

	baseJSON := `{"templateID":"t0","buildID":"t0","cpuCount":0,"memoryMB":0,"diskSizeMB":0,"public":true,"aliases":["base"],"names":["base"],` +
		`"createdAt":"2026-01-02T03:04:05.678901234Z","updatedAt":"2026-01-02T03:04:05.678901234Z","createdBy":null,` +
		`"lastSpawnedAt":"2026-01-02T03:04:05.678901234Z","spawnCount":0,"buildCount":1,"envdVersion":"0.7.0","buildStatus":"ready"}`
	if a := call(t, b, "GET", "/v2/templates", ""); a.body != "["+baseJSON+"]" || a.header.Get("X-Next-Token") != "next" {
		t.Errorf("v2: %s %v", a.body, a.header)
	}
	a := call(t, b, "GET", "/templates", "")
	if a.is(200, baseJSON); !strings.Contains(a.body, `"templateID":"t1"`) {
		t.Errorf("v1 stops after a page: %s", a.body)
	}
	call(t, b, "GET", "/templates/mine", "").is(200, `"templateID":"t1","public":false,"aliases":["mine","also"],"names":["mine:v1","mine:v2","also"]`)
	call(t, b, "GET", "/templates/ns%2Fmine:v1", "").is(200, `"builds":[{"buildID":"t1","status":"ready"`)
	call(t, b, "GET", "/templates/theirs", "").is(404, "template 'theirs' not found")
	call(t, b, "GET", "/templates/none", "").is(404, "template 'none' not found")

	call(t, b, "GET", "/templates/aliases/base", "").is(200, `{"public":true,"templateID":"t0"}`)
	call(t, b, "GET", "/templates/aliases/theirs", "").is(403, "belongs to another space")
	call(t, b, "GET", "/templates/aliases/none", "").is(404, "not found")

	call(t, b, "DELETE", "/templates/theirs", "").is(404, "not found")
	call(t, b, "DELETE", "/templates/base", "").is(403, "belongs to the machine")
	if len(s.called) > 0 {
		t.Fatalf("deleted what is not the caller's: %v", s.called)
	}
	call(t, b, "DELETE", "/templates/ns%2Fmine:v1", "").is(204, "")
	if got := strings.Join(s.called, ","); got != "delete template ns/mine:v1" {
		t.Errorf("asked to %s", got)
	}
	s.err = sandbox.Errorf(sandbox.Conflict, "template mine", "is in use")
	call(t, b, "DELETE", "/templates/mine", "").is(409, "in use")
	s.err = nil

	a = call(t, b, "GET", "/snapshots?sandboxID="+box+"-legacy&name=n&limit=3", "")
	if a.is(200, `"snapshotID":"s1","names":["n"]`); a.header.Get("X-Next-Token") != "more" {
		t.Errorf("snapshots: %v", a.header)
	}
	call(t, b, "GET", "/snapshots?limit=101", "").is(400, "limit")
	call(t, b, "GET", "/teams", "").is(200, `[{"apiKey":"","isDefault":true,"name":"acme","teamID":"acme"}]`)
}
