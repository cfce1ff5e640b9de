package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/api/v1/v1test"
	"github.com/holdfast-run/holdfast/sandbox"
)

// terminalLess is the command line of somebody whose daemon keeps its sandboxes
// in memory.
type terminalLess struct {
	t       *testing.T
	data    string
	backend *v1test.Backend
}

func newCLI(t *testing.T) *terminalLess {
	t.Helper()
	dir, err := os.MkdirTemp("", "hf") // short, for the socket in it
	if err != nil {
		t.Fatal(err)
	}
	c := &terminalLess{t: t, data: dir, backend: &v1test.Backend{}}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", filepath.Join(dir, "holdfast.sock"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{
		Handler: v1.New(v1.Options{Backend: c.backend, Keys: &v1test.Keys{}, Status: func(context.Context) v1.Status {
			return v1.Status{Version: "9", PID: 4711, Data: dir, Listen: "127.0.0.1:7171", LocalKey: "e2b_1f", StartedAt: time.Now()}
		}}),
		BaseContext:       func(net.Listener) context.Context { return v1.WithLocal(context.Background()) },
		ReadHeaderTimeout: time.Minute,
	}
	go srv.Serve(l) //nolint:errcheck // it ends with Close
	t.Cleanup(func() {
		_ = srv.Close()
		_ = os.RemoveAll(dir)
	})
	return c
}

// run gives the exit code and what was printed.
func (c *terminalLess) run(args ...string) (code int, out, errs string) {
	return c.runWith("", args...)
}

func (c *terminalLess) runWith(in string, args ...string) (code int, out, errs string) {
	c.t.Helper()
	var stdout, stderr bytes.Buffer
	a := &app{in: strings.NewReader(in), out: &stdout, err: &stderr, env: []string{"HOLDFAST_DATA=" + c.data, "GREETING=hello"}}
	code = a.main(c.t.Context(), args)
	return code, stdout.String(), stderr.String()
}

func TestExitCodes(t *testing.T) {
	c := newCLI(t)
	c.backend.Add(sandbox.Sandbox{ID: v1test.ID(1)})
	for _, tt := range []struct {
		args string
		code int
		errs string
	}{
		{"ps", 0, ""},
		{"--version", 0, ""},
		{"--help", 0, ""},
		{"frobnicate", 2, `holdfast: unknown command "frobnicate"`},
		{"ps --frob", 2, "holdfast: unknown flag: --frob; see `holdfast ps --help`"},
		{"ps extra", 2, "holdfast: unknown command \"extra\" for \"holdfast ps\"; see `holdfast ps --help`"},
		{"inspect", 2, "holdfast: accepts 1 arg(s), received 0"},
		{"rm", 2, "holdfast: requires at least 1 arg(s)"},
		{"rm -f", 0, ""},
		{"rm nope", 125, `holdfast: sandbox "nope" does not exist; ` + "`holdfast ps`"},
		{"rm -f nope", 0, ""},
		{"cp a b", 2, "must be SANDBOX:PATH"},
		{"cp x:a y:b", 2, "must be SANDBOX:PATH"},
		{"cp x: y", 2, "x: has no path"},
		{"create -m novalue", 2, `--metadata "novalue" is not key=value`},
		{"create -e =x", 2, `--env "=x" is not KEY=VALUE`},
		{"create --timeout -1s", 2, "must not be negative"},
		{"create --on-timeout explode", 125, "field on_timeout must be kill or pause"},
		{"create -t missing", 125, `template "missing" does not exist`},
		{"ps --url nowhere", 125, `holdfast: --url: url "nowhere" must be a URL`},
		{"ps --data /nonexistent", 125, "is not running; `holdfast up` starts it"},
		{"status", 0, ""},
		{"run", 2, "requires at least 1 arg(s)"},
		{"exec i0001 --", 2, "no command given"},
	} {
		t.Run(tt.args, func(t *testing.T) {
			code, _, errs := c.run(strings.Fields(tt.args)...)
			if code != tt.code || !strings.Contains(errs, tt.errs) {
				t.Errorf("code %d, want %d; said %q, want …%s…", code, tt.code, errs, tt.errs)
			}
		})
	}
}

func TestPs(t *testing.T) {
	c := newCLI(t)
	if _, out, _ := c.run("ps", "--json"); strings.TrimSpace(out) != "[]" {
		t.Errorf("nothing is %q, want []", out)
	}
	c.backend.Add(sandbox.Sandbox{ID: v1test.ID(1), Template: "base", Metadata: map[string]string{"name": "dev", "team": "a"}, EndAt: time.Now().Add(150 * time.Second)})
	c.backend.Add(sandbox.Sandbox{ID: v1test.ID(2), Template: "go", State: sandbox.Failed, Reason: "out of memory"})
	_, out, _ := c.run("ps")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 3 {
		t.Fatalf("output\n%s", out)
	}
	for i, want := range []string{
		"ID             NAME   TEMPLATE   STATE                    DEADLINE      CREATED",
		"i0002abcdefg   -      go         failed (out of memory)   -",
		"i0001abcdefg   dev    base       running                  pause in 2m",
	} {
		if !strings.HasPrefix(lines[i], want) {
			t.Errorf("line %d\n%s\nwant\n%s", i, lines[i], want)
		}
	}
	for args, want := range map[string]string{
		"ps -q":                  v1test.ID(2) + "\n" + v1test.ID(1) + "\n",
		"ps -q -a":               v1test.ID(2) + "\n" + v1test.ID(1) + "\n",
		"ps -q --state running":  v1test.ID(1) + "\n",
		"ps -q -m team=a":        v1test.ID(1) + "\n",
		"ps -q -t go":            v1test.ID(2) + "\n",
		"ps -q --state creating": "",
	} {
		if _, out, errs := c.run(strings.Fields(args)...); out != want {
			t.Errorf("%s: %q %q, want %q", args, out, errs, want)
		}
	}
	var list []v1.Sandbox
	_, out, _ = c.run("ps", "--json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 2 || list[1].Name != "dev" {
		t.Errorf("json %s: %v", out, err)
	}
}

func TestCreate(t *testing.T) {
	c := newCLI(t)
	code, out, errs := c.run("create", "-n", "dev", "-t", "go", "--timeout", "90s", "--on-timeout", "kill", "--drop-memory", "--no-wake",
		"--cpus", "3", "--memory", "512", "--disk", "9", "-e", "A=b=c", "-e", "GREETING", "-e", "UNSET", "-m", "k=v",
		"--offline", "--allow-out", "1.1.1.1,2.2.2.0/24", "--deny-out", "0.0.0.0/0", "--private")
	if code != 0 || !sandbox.ValidID(strings.TrimSpace(out)) {
		t.Fatalf("code %d: %q %q", code, out, errs)
	}
	o := c.backend.Created[0]
	switch {
	case o.Template != "go", o.Timeout != 90*time.Second, o.Lifecycle.OnTimeout != sandbox.Kill, o.Lifecycle.KeepMemory, o.Lifecycle.AutoResume,
		o.Resources != sandbox.Resources{CPUs: 3, MemoryMB: 512, DiskMB: 9}, len(o.Env) != 2, o.Env["A"] != "b=c", o.Env["GREETING"] != "hello",
		o.Metadata["k"] != "v", o.Metadata["name"] != "dev", o.Network.AllowInternet, o.Network.AllowPublicTraffic,
		len(o.Network.AllowOut) != 2, len(o.Network.DenyOut) != 1, !o.Secure:
		t.Errorf("asked for %+v", o)
	}
	if code, _, errs = c.run("create", "-n", "dev"); code != 125 || !strings.Contains(errs, `sandbox name "dev" is taken`) {
		t.Errorf("same name: %d %q", code, errs)
	}
	c.run("create")
	if o := c.backend.Created[1]; !o.Network.AllowInternet || !o.Lifecycle.KeepMemory || !o.Lifecycle.AutoResume || o.Template != "base" {
		t.Errorf("defaults %+v", o)
	}
}

func TestManyAtOnceAreAllTried(t *testing.T) {
	c := newCLI(t)
	for n := range 3 {
		c.backend.Add(sandbox.Sandbox{ID: v1test.ID(n)})
	}
	code, out, errs := c.run("pause", v1test.ID(0), "nope", v1test.ID(2))
	if code != 125 || out != v1test.ID(0)+"\n"+v1test.ID(2)+"\n" || !strings.Contains(errs, `"nope" does not exist`) {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if code, out, errs = c.run("resume", v1test.ID(0), "--timeout", "5s"); code != 0 || out != v1test.ID(0)+"\n" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if last := c.backend.Connects[len(c.backend.Connects)-1]; last.Timeout != 5*time.Second || !last.SetDeadline {
		t.Errorf("resumed with %+v", last)
	}
	if _, out, _ = c.run("rm", v1test.ID(0), v1test.ID(1), v1test.ID(2)); strings.Count(out, "\n") != 3 {
		t.Errorf("removed %q", out)
	}
	if _, out, _ = c.run("ps", "-q"); out != "" {
		t.Errorf("left %q", out)
	}
}

func TestKeeping(t *testing.T) {
	c := newCLI(t)
	c.backend.Add(sandbox.Sandbox{ID: v1test.ID(1), Metadata: map[string]string{"name": "dev"}})
	code, out, errs := c.run("snapshot", "dev", "--name", "ready")
	if code != 0 {
		t.Fatal(errs)
	}
	id := strings.TrimSpace(out)
	if _, out, _ = c.run("snapshot", "ls", "dev"); !strings.Contains(out, id) || !strings.Contains(out, "memory, files") {
		t.Errorf("list\n%s", out)
	}
	if code, out, errs = c.run("rollback", "dev", "ready"); code != 0 || out != "dev\n" {
		t.Errorf("%d %q %q", code, out, errs)
	}
	code, out, errs = c.run("fork", "dev", "-c", "3")
	if code != 125 || strings.Count(out, "\n") != 2 || !strings.Contains(errs, "limit sandboxes is reached") {
		t.Errorf("two forks and one reason: %d %q %q", code, out, errs)
	}
	if code, _, _ = c.run("snapshot", "rm", id[:6]); code != 0 {
		t.Error("cannot remove by a part of the id")
	}
	if _, out, _ = c.run("logs", "dev", "--tail", "1"); !strings.Contains(out, "rolled_back: "+id) || strings.Count(out, "\n") != 1 {
		t.Errorf("log %q", out)
	}
	var e v1.Event
	_, out, _ = c.run("logs", "dev", "--json")
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&e); err != nil || e.Kind != "created" {
		t.Errorf("log %q: %v", out, err)
	}
}

func TestInspect(t *testing.T) {
	c := newCLI(t)
	c.backend.Add(sandbox.Sandbox{
		ID: v1test.ID(1), Template: "base", TemplateID: "t1", Env: map[string]string{"TOKEN": "secret"}, AccessToken: "secret",
		Lifecycle: sandbox.Lifecycle{Timeout: time.Minute, OnTimeout: sandbox.Pause, KeepMemory: true}, User: "user", Workdir: "/w",
	})
	_, out, _ := c.run("inspect", "i0001")
	for _, want := range []string{
		"id           " + v1test.ID(1), "template     base (t1)", "state        running", "lifecycle    pause after 1m0s, memory is kept, traffic does not wake it",
		"env          TOKEN\n", "layers       l1 l2", "usage        12 % cpu, 1.0 MiB of 1.0 GiB memory", "created: created from base",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "secret") {
		t.Error("values of variables and tokens are shown to bystanders")
	}
}

func TestTemplateImport(t *testing.T) {
	c := newCLI(t)
	file := filepath.Join(c.data, "root.tar")
	if err := os.WriteFile(file, []byte("tar"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(c.data)
	for _, tt := range []struct{ in, source, want, archive string }{
		{source: "root.tar", want: file},
		{source: "./root.tar#tag", want: file + "#tag"},
		{source: "tar:root.tar", want: "tar:" + file},
		{source: "debian:12", want: "debian:12"},
		{source: "docker://debian:12", want: "docker://debian:12"},
		{source: "-", in: "piped", archive: "piped"},
	} {
		code, out, errs := c.runWith(tt.in, "template", "import", "x", tt.source, "--cpus", "1")
		if code != 0 || out == "" {
			t.Fatalf("%s: %d %q", tt.source, code, errs)
		}
		last := len(c.backend.Imports) - 1
		if got := c.backend.Imports[last]; got.Source != tt.want || got.Resources.CPUs != 1 || string(c.backend.Archives[last]) != tt.archive {
			t.Errorf("%s became %+v with %q", tt.source, got, c.backend.Archives[last])
		}
		if !strings.Contains(errs, "importing x: unpack layer 1 1 B of 2 B\n") {
			t.Errorf("%s: progress %q", tt.source, errs)
		}
	}
	for _, absent := range []string{"./nope", "/nope", "oci:nope"} {
		if code, _, errs := c.run("template", "import", "x", absent); code != 125 || !strings.Contains(errs, "no such file") {
			t.Errorf("%s: %d %q", absent, code, errs)
		}
	}
	if _, out, _ := c.run("template", "ls"); !strings.Contains(out, "x  ") {
		t.Errorf("list %s", out)
	}
}

func TestEnvAndStatus(t *testing.T) {
	c := newCLI(t)
	_, out, _ := c.run("env")
	for _, want := range []string{
		"export E2B_API_KEY=e2b_1f\n", "export E2B_API_URL=http://127.0.0.1:7171\n", "export E2B_SANDBOX_URL=http://127.0.0.1:7171\n",
		"export CUBE_API_KEY=e2b_1f\n", "export CUBE_API_URL=http://127.0.0.1:7171\n", "export CUBE_PROXY_NODE_IP=127.0.0.1\n",
		"export CUBE_PROXY_PORT_HTTP=7171\n", "export CUBE_PROXY_SCHEME=http\n", "export CUBE_SANDBOX_DOMAIN=localhost\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	_, out, _ = c.run("status")
	if !strings.Contains(out, "process      4711") || !strings.Contains(out, "pool         base: 1 of 2 ready") {
		t.Errorf("status\n%s", out)
	}
	if _, out, _ = c.run("status", "--json"); strings.Contains(out, "e2b_1f") {
		t.Error("status shows the key")
	}
}

func TestKeys(t *testing.T) {
	c := newCLI(t)
	_, out, _ := c.run("key", "create", "ci")
	if out != "e2b_01\n" {
		t.Errorf("key %q", out)
	}
	if _, out, _ = c.run("key", "ls"); strings.Contains(out, "e2b_01") || !strings.Contains(out, "ci") {
		t.Errorf("list\n%s", out)
	}
	if code, _, _ := c.run("key", "rm", "k1"); code != 0 {
		t.Error("cannot remove it")
	}
}

func TestDoctor(t *testing.T) {
	c := newCLI(t)
	if code, out, _ := c.run("doctor"); code != 0 || !strings.Contains(out, "ok       daemon       runs") {
		t.Errorf("%d\n%s", code, out)
	}
	c.backend.Findings = []sandbox.Finding{{Check: "mounts", Severity: sandbox.Problem, Thing: "/x", Reason: "belongs to no sandbox", Next: "holdfast doctor --repair"}}
	code, out, _ := c.run("doctor")
	if code != 1 || !strings.Contains(out, "problem  mounts       /x: belongs to no sandbox\n") || !strings.Contains(out, "→ holdfast doctor --repair") {
		t.Errorf("%d\n%s", code, out)
	}
	if code, out, _ = c.run("doctor", "--repair"); code != 0 || !strings.Contains(out, "fixed    mounts") {
		t.Errorf("%d\n%s", code, out)
	}
	// Without a daemon the machine is looked at all the same.
	code, out, _ = c.run("doctor", "--data", t.TempDir())
	if code != 1 || !strings.Contains(out, "is not running") || !strings.Contains(out, "kernel") {
		t.Errorf("%d\n%s", code, out)
	}
}

func TestCompletion(t *testing.T) {
	c := newCLI(t)
	c.backend.Add(sandbox.Sandbox{ID: v1test.ID(1), Template: "base", Metadata: map[string]string{"name": "dev"}})
	c.backend.AddTemplate(sandbox.Template{ID: "t1", Name: "base"})
	c.backend.AddTemplate(sandbox.Template{ID: "s1", Name: "ready", Snapshot: true, SourceID: v1test.ID(1)})
	for args, want := range map[string]string{
		"exec d":           "dev\trunning, base\n",
		"inspect i":        v1test.ID(1) + "\trunning, base\n",
		"create -t ":       "base\ttemplate\nready\tsnapshot of i0001abcdefg\n",
		"snapshot rm r":    "ready\tsnapshot of i0001abcdefg\n",
		"pause zzz":        "",
		"status ":          "",
		"exec --data /x d": "",
	} {
		words := strings.Split("__complete "+args, " ")
		if _, out, _ := c.run(words...); !strings.HasPrefix(out, want) || want == "" && !strings.HasPrefix(out, ":") {
			t.Errorf("%s offers %q, want %q", args, out, want)
		}
	}
}

// TestHelp keeps every command presentable to a newcomer.
func TestHelp(t *testing.T) {
	root := (&app{out: &bytes.Buffer{}, err: &bytes.Buffer{}}).root()
	for _, cmd := range root.Commands() {
		if cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") || !strings.Contains("ABCDEFGHIJKLMNOPQRSTUVWXYZ", cmd.Short[:1]) {
			t.Errorf("%s: short text %q must be a phrase that begins with a capital", cmd.Name(), cmd.Short)
		}
		if cmd.GroupID == "" && !cmd.Hidden {
			t.Errorf("%s is in no group", cmd.Name())
		}
	}
}
