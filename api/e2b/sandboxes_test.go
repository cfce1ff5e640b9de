package e2b_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

const missing = `Sandbox "imissing" doesn't exist or you don't have access to it`

// A specification of the routes on one sandbox: what is sent, what the backend
// is asked, what comes back.
func TestSandboxRoutes(t *testing.T) {
	detail := `{"templateID":"tbase","alias":"base","sandboxID":"` + box + `","clientID":"holdfast",` +
		`"startedAt":"2026-01-02T03:04:05.678901234Z","endAt":"2026-01-02T04:04:05.678901234Z",` +
		`"cpuCount":2,"memoryMB":1024,"diskSizeMB":10240,"state":"running","envdVersion":"0.7.0","metadata":{"k":"v"},"volumeMounts":[],` +
		`"envdAccessToken":"access","domain":null,"allowInternetAccess":true,` +
		`"network":{"allowPublicTraffic":true,"maskRequestHost":"app.local"},"lifecycle":{"autoResume":true,"onTimeout":"pause"}}`
	paused := func(s *script) { s.boxes[box].State = sandbox.Paused }
	resumed := func(s *script) { s.resumed = true; paused(s) }
	for _, c := range []struct {
		request string // method and path after /sandboxes/{id}, or a whole path
		body    string
		before  func(*script)
		called  string
		asked   func(*script) any
		want    any
		status  int
		answer  string
	}{
		{"GET ", "", nil, "", nil, nil, 200, detail},
		{"GET /sandboxes/" + box + "-legacy", "", nil, "", nil, nil, 200, detail},
		{"GET ", "", func(s *script) { s.boxes[box].State = sandbox.Failed }, "", nil, nil, 200, `"state":"paused"`},
		{"GET ", "", func(s *script) { s.boxes[box].State = sandbox.Pausing }, "", nil, nil, 200, `"state":"paused"`},
		{"GET ", "", func(s *script) { s.boxes[box].State = sandbox.Resuming }, "", nil, nil, 200, `"state":"running"`},
		{"GET ", "", func(s *script) { s.boxes[box].State = sandbox.Deleting }, "", nil, nil, 404, "doesn't exist"},
		{"DELETE ", "", nil, "delete", nil, nil, 204, ""},
		{"DELETE ", "", paused, "delete", nil, nil, 204, ""},

		{"POST /pause", "", nil, "pause", func(s *script) any { return s.pause }, sandbox.PauseOptions{}, 204, ""},
		{"POST /pause", "{}", nil, "pause", func(s *script) any { return s.pause }, sandbox.PauseOptions{}, 204, ""},
		{"POST /pause", `{"memory":false}`, nil, "pause", func(s *script) any { return s.pause }, sandbox.PauseOptions{FilesOnly: true}, 204, ""},
		{"POST /pause", `{"memory":"no"}`, nil, "", nil, nil, 400, `field "memory" must be a boolean`},
		{"POST /pause", "", func(s *script) { s.err = sandbox.Errorf(sandbox.Conflict, "sandbox", "is already paused") }, "pause", nil, nil, 409, "already paused"},

		{"POST /resume", "", resumed, "connect", func(s *script) any { return s.connect }, sandbox.ConnectOptions{Timeout: 15 * time.Second, SetDeadline: true}, 201, session},
		{"POST /resume", `{"timeout":60,"autoPause":true,"memory":false}`, resumed, "connect", func(s *script) any { return s.connect }, sandbox.ConnectOptions{Timeout: time.Minute, SetDeadline: true, FilesOnly: true}, 201, session},
		{"POST /resume", "", nil, "", nil, nil, 409, "is already running"},
		{"POST /resume", `{"timeout":0}`, nil, "", nil, nil, 400, "Timeout must be greater than 0"},

		{"POST /connect", `{"timeout":60}`, nil, "connect", func(s *script) any { return s.connect }, sandbox.ConnectOptions{Timeout: time.Minute}, 200, session},
		{"POST /connect", `{"timeout":60}`, resumed, "connect", func(s *script) any { return s.connect }, sandbox.ConnectOptions{Timeout: time.Minute}, 201, session},
		{"POST /connect", `{}`, nil, "", nil, nil, 400, `field "timeout" is needed`},
		{"POST /connect", ``, nil, "", nil, nil, 400, "request body is empty"},
		{"POST /connect", `{"timeout":-1}`, nil, "", nil, nil, 400, "Timeout must be greater than 0"},
		{"POST /v2/sandboxes/" + box + "/connect", ``, nil, "connect", func(s *script) any { return s.connect }, sandbox.ConnectOptions{Timeout: 300 * time.Second}, 200, session},
		{"POST /v2/sandboxes/" + box + "/connect", `{"memory":false}`, resumed, "connect", func(s *script) any { return s.connect }, sandbox.ConnectOptions{Timeout: 300 * time.Second, FilesOnly: true}, 201, session},
		{"POST /v2/sandboxes/" + box + "/connect", `{"timeout":31536001}`, nil, "", nil, nil, 400, "Timeout cannot be greater than 8760 hours"},

		{"POST /timeout", `{"timeout":1}`, nil, "timeout", func(s *script) any { return s.deadline }, time.Second, 204, ""},
		{"POST /timeout", `{"timeout":0}`, nil, "timeout", func(s *script) any { return s.deadline }, time.Duration(0), 204, ""},
		{"POST /timeout", `{"timeout":-1}`, nil, "", nil, nil, 400, "Timeout must not be negative"},
		{"POST /timeout", `{}`, nil, "", nil, nil, 400, `field "timeout" is needed`},
		{"POST /refreshes", ``, nil, "extend", func(s *script) any { return s.deadline }, 15 * time.Second, 204, ""},
		{"POST /refreshes", `{"duration":3600}`, nil, "extend", func(s *script) any { return s.deadline }, time.Hour, 204, ""},
		{"POST /refreshes", `{"duration":3601}`, nil, "", nil, nil, 400, `from 0 to 3600 seconds, got 3601`},

		{"PUT /network", `{"allowOut":["1.1.1.1"],"denyOut":["0.0.0.0/0"]}`, nil, "network", func(s *script) any { return s.network }, sandbox.Network{AllowInternet: true, AllowPublicTraffic: true, MaskRequestHost: "app.local", AllowOut: []string{"1.1.1.1"}, DenyOut: []string{"0.0.0.0/0"}}, 204, ""},
		{"PUT /network", `{"allow_internet_access":false}`, nil, "network", func(s *script) any { return s.network }, sandbox.Network{AllowPublicTraffic: true, MaskRequestHost: "app.local"}, 204, ""},
		{"PUT /network", `{"alowOut":[]}`, nil, "", nil, nil, 400, `did you mean "allowOut"?`},
		{"PUT /network", `{"rules":{"a":[]}}`, nil, "", nil, nil, 501, "not supported"},
		{"PUT /network", ``, nil, "", nil, nil, 400, "empty"},

		{"POST /snapshots", `{"name":"n"}`, nil, "snapshot", func(s *script) any { return s.snapshot }, sandbox.SnapshotOptions{Name: "n"}, 201, `"snapshotID":"s1","names":["n"]`},
		{"POST /snapshots", ``, nil, "snapshot", func(s *script) any { return s.snapshot }, sandbox.SnapshotOptions{}, 201, `"snapshotID":"s1","names":[]`},

		{"POST /fork", ``, nil, "fork", func(s *script) any { return s.fork }, sandbox.ForkOptions{Count: 1, Timeout: 15 * time.Second}, 201, `[]`},
		{"POST /fork", `{"count":2,"timeout":60}`, func(s *script) {
			s.forks = []sandbox.ForkResult{{Sandbox: s.boxes[box]}, {Err: sandbox.Errorf(sandbox.Capacity, "node", "is full")}}
		}, "fork", func(s *script) any { return s.fork }, sandbox.ForkOptions{Count: 2, Timeout: time.Minute}, 201, `},{"error":{"code":429,"message":"node is full","error_code":"sandbox_capacity_unavailable"}}]`},
		{"POST /fork", `{"count":0}`, nil, "", nil, nil, 400, `from 1 to 100, got 0`},
		{"POST /fork", `{"count":101}`, nil, "", nil, nil, 400, `from 1 to 100, got 101`},
	} {
		t.Run(c.request+" "+c.body, func(t *testing.T) {
			s := newScript()
			if c.before != nil {
				c.before(s)
			}
			method, path, _ := strings.Cut(c.request, " ")
			if !strings.Contains(path, "/sandboxes/") {
				path = "/sandboxes/" + box + path
			}
			call(t, full{s}, method, path, c.body).is(c.status, c.answer)
			if got := strings.Join(s.called, ","); got != strings.TrimSpace(c.called+" "+box) && (c.called != "" || got != "") {
				t.Errorf("the backend was asked %q, want %q", got, c.called)
			}
			if c.asked != nil && !reflect.DeepEqual(c.asked(s), c.want) {
				t.Errorf("the backend was asked for %+v, want %+v", c.asked(s), c.want)
			}
		})
	}
}

// Every route on a sandbox treats one that is missing, another's or nonsense
// alike, and asks the backend to do nothing to it.
func TestSandboxOfNobody(t *testing.T) {
	for _, route := range []string{
		"GET ", "DELETE ", "GET /metrics", "GET /logs", "POST /pause", "POST /resume", "POST /connect", "POST /timeout",
		"POST /refreshes", "PUT /network", "POST /snapshots", "POST /fork",
	} {
		method, path, _ := strings.Cut(route, " ")
		body := ""
		if method != "GET" {
			body = `{}`
		}
		if path == "/connect" || path == "/timeout" {
			body = `{"timeout":5}`
		}
		for _, id := range []string{"imissing", foreign, "UPPER", "%00", "a%2Fb", "..%2f", strings.Repeat("i", 100)} {
			s := newScript()
			a := call(t, full{s}, method, "/sandboxes/"+id+path, body)
			if a.status != 404 || !strings.Contains(a.body, "doesn't exist or you don't have access to it") || len(s.called) > 0 {
				t.Errorf("%s of %s: %d %s %v", route, id, a.status, a.body, s.called)
			}
		}
		// deleted between the look and the deed
		if path == "" && method == "GET" {
			continue
		}
		s := newScript()
		s.err = sandbox.Errorf(sandbox.NotFound, "sandbox", "is gone")
		if path == "/resume" {
			s.boxes[box].State = sandbox.Paused
		}
		a := call(t, full{s}, method, "/sandboxes/"+box+path, body)
		if a.status != 404 || !strings.Contains(a.body, "doesn't exist") {
			t.Errorf("%s of one just deleted: %d %s", route, a.status, a.body)
		}
	}
	call(t, newScript(), "GET", "/sandboxes/imissing", "").is(404, missing)
}

func TestAbsentAbilities(t *testing.T) {
	for _, route := range []string{
		"POST /sandboxes/{id}/pause", "PUT /sandboxes/{id}/network", "POST /sandboxes/{id}/snapshots", "POST /sandboxes/{id}/fork",
		"GET /sandboxes/{id}/logs", "GET /v2/sandboxes/{id}/logs", "GET /sandboxes/{id}/metrics", "GET /sandboxes/metrics?sandbox_ids=" + box,
		"GET /snapshots", "GET /templates", "GET /v2/templates", "GET /templates/base", "DELETE /templates/base", "GET /templates/aliases/base",
		// and what E2B has and nothing here does
		"POST /v3/templates", "POST /v2/templates/t/builds/b", "GET /templates/t/builds/b/status", "GET /templates/t/files/0",
		"POST /templates/tags", "GET /volumes", "POST /volumes", "GET /volumes/v", "GET /volumecontent/v/file", "GET /secrets",
		"POST /api-keys", "GET /nodes", "POST /admin/teams/t/sandboxes/kill", "POST /access-tokens",
	} {
		method, path, _ := strings.Cut(route, " ")
		a := call(t, newScript(), method, strings.Replace(path, "{id}", box, 1), "")
		if a.status != 501 || !strings.Contains(a.body, `"error_code":"unsupported"`) || !strings.Contains(a.body, "not supported") {
			t.Errorf("%s: %d %s", route, a.status, a.body)
		}
	}
}

func TestMetrics(t *testing.T) {
	sample := &sandbox.Metric{Time: time.Unix(1000, 0), CPUs: 2, CPUUsedPct: 12.5, MemUsed: 1, MemTotal: 2, DiskUsed: 3, DiskTotal: 4}
	one := `{"timestamp":"1970-01-01T00:16:40Z","timestampUnix":1000,"cpuCount":2,"cpuUsedPct":12.5,"memUsed":1,"memTotal":2,"memCache":0,"diskUsed":3,"diskTotal":4}`
	for query, want := range map[string]string{
		"": "[" + one + "]", "?start=1000&end=1000": "[" + one + "]", "?start=1001": "[]", "?end=999": "[]",
	} {
		s := newScript()
		s.metric = sample
		if a := call(t, full{s}, "GET", "/sandboxes/"+box+"/metrics"+query, ""); a.status != 200 || a.body != want {
			t.Errorf("%q: %d %s, want %s", query, a.status, a.body, want)
		}
	}
	for query, want := range map[string]string{"?start=x": `"start"`, "?start=5&end=4": "must not be after"} {
		call(t, full{newScript()}, "GET", "/sandboxes/"+box+"/metrics"+query, "").is(400, want)
	}

	s := newScript()
	s.metric = sample
	s.boxes[box].State = sandbox.Paused
	call(t, full{s}, "GET", "/sandboxes/"+box+"/metrics", "").is(200, "[]")
	call(t, full{s}, "GET", "/sandboxes/metrics?sandbox_ids="+box, "").is(200, `{"sandboxes":{}}`)
	if len(s.called) > 0 {
		t.Fatalf("a paused sandbox was asked for its metrics: %v", s.called)
	}
	s.boxes[box].State = sandbox.Running
	call(t, full{s}, "GET", "/sandboxes/metrics?sandbox_ids="+box+",imissing,"+foreign, "").is(200, `{"sandboxes":{"`+box+`":`+one+`}}`)
	call(t, full{s}, "GET", "/sandboxes/metrics", "").is(400, "sandbox_ids")
	call(t, full{s}, "GET", "/sandboxes/metrics?sandbox_ids="+strings.Repeat("a,", 101), "").is(400, "1 to 100")
}

func TestLogs(t *testing.T) {
	s := newScript()
	for i, kind := range []string{"created", "paused", "oom", "resumed"} {
		s.events = append(s.events, sandbox.Event{Seq: int64(i), Time: time.UnixMilli(int64(1000 + i)), Kind: kind, Message: "it was " + kind, Fields: map[string]string{"n": fmt.Sprint(i)}})
	}
	lines := func(path string) string {
		t.Helper()
		a := call(t, full{s}, "GET", path, "")
		if a.status != 200 {
			t.Fatalf("%s: %d %s", path, a.status, a.body)
		}
		var seen []string
		for _, part := range strings.Split(a.body, `"message":"it was `)[1:] {
			word, _, _ := strings.Cut(part, `"`)
			seen = append(seen, word)
		}
		return strings.Join(seen, " ")
	}
	v2 := "/v2/sandboxes/" + box + "/logs"
	for path, want := range map[string]string{
		"/sandboxes/" + box + "/logs":            "created paused oom resumed",
		"/sandboxes/" + box + "/logs?start=1001": "paused oom resumed",
		"/sandboxes/" + box + "/logs?limit=2":    "created paused",
		v2:                                       "created paused oom resumed",
		v2 + "?direction=backward":               "resumed oom paused created",
		v2 + "?direction=backward&limit=2":       "resumed oom",
		v2 + "?direction=backward&cursor=1001":   "paused created",
		v2 + "?cursor=1002":                      "oom resumed",
		v2 + "?level=warn":                       "oom",
		v2 + "?level=debug&search=paused":        "paused",
		v2 + "?search=ume":                       "resumed",
	} {
		if got := lines(path); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	call(t, full{s}, "GET", "/sandboxes/"+box+"/logs?limit=1", "").is(200,
		`{"logEntries":[{"timestamp":"1970-01-01T00:00:01Z","message":"it was created","level":"info","fields":{"event":"created","n":"0","sandboxID":"`+box+`"}}],`+
			`"logs":[{"timestamp":"1970-01-01T00:00:01Z","line":"it was created"}]}`)
	for query, want := range map[string]string{
		"limit=0": "from 1 to 1000", "limit=1001": "from 1 to 1000", "cursor=x": "milliseconds", "direction=up": "forward or backward",
		"level=loud": "debug, info, warn, error", "search=" + strings.Repeat("x", 257): "256",
	} {
		call(t, full{s}, "GET", v2+"?"+query, "").is(400, want)
	}
}
