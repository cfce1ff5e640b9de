package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/e2e/harness"
)

// verbs are all that the command line offers.
var verbs = []string{
	"up", "down", "status", "doctor", "env", "run", "create", "ps", "inspect", "exec", "shell", "logs", "cp", "pause", "resume",
	"snapshot", "snapshot ls", "snapshot rm", "fork", "rollback", "rm", "template ls", "template import", "template rm",
	"key ls", "key create", "key rm", "bench", "completion", "daemon",
}

func TestHelp(t *testing.T) {
	t.Parallel()
	root := harness.Holdfast(t, nil, "", "--help")
	if root.Code != 0 {
		t.Fatalf("--help: code %d: %s", root.Code, root.Err)
	}
	for _, verb := range verbs {
		r := harness.Holdfast(t, nil, "", append(strings.Fields(verb), "--help")...)
		if r.Code != 0 || !strings.Contains(r.Out, "Usage:") || len(r.Out) < 100 {
			t.Errorf("%s --help: code %d:\n%s%s", verb, r.Code, r.Out, r.Err)
		}
		if name := strings.Fields(verb)[0]; name != "daemon" && !strings.Contains(root.Out, "\n  "+name+" ") {
			t.Errorf("--help does not list %s", name)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	r := harness.Holdfast(t, nil, "", "--version")
	if r.Code != 0 || !strings.Contains(r.Out, "holdfast") || !regexp.MustCompile(`gVisor v\d`).MatchString(r.Out) {
		t.Errorf("code %d: %s%s", r.Code, r.Out, r.Err)
	}
}

// TestWrongUse wants code 2 for a wrong command line, 125 for what Holdfast could
// not do, and words that help.
func TestWrongUse(t *testing.T) {
	t.Parallel()
	d := harness.Shared(t)
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"no-such-verb", 2, "no-such-verb"},
		{"ps --no-such-flag", 2, "--no-such-flag"},
		{"inspect", 2, "holdfast inspect --help"},
		{"run", 2, "holdfast run --help"},
		{"cp a b", 2, "SANDBOX:PATH"},
		{"create --timeout -5s", 2, "negative"},
		{"create --env =x", 2, "KEY=VALUE"},
		{"create -t no-such-template", 125, "no-such-template"},
		{"inspect no-such-sandbox", 125, "no-such-sandbox"},
		{"exec no-such-sandbox -- true", 125, "no-such-sandbox"},
		{"rm no-such-sandbox", 125, "no-such-sandbox"},
		{"pause no-such-sandbox", 125, "no-such-sandbox"},
		{"template import x /no/such/file.tar", 125, "/no/such/file.tar"},
		{"template import x ftp://nowhere/x", 125, "ftp://nowhere/x"},
		{"template rm no-such-template", 125, "no-such-template"},
		{"--data /nowhere ps", 125, "holdfast up"},
		{"--url http://127.0.0.1:1 ps", 125, "127.0.0.1:1"},
	} {
		r := d.Holdfast(strings.Fields(c.args)...)
		if r.Code != c.code || !strings.Contains(r.Err, c.says) || !strings.HasPrefix(r.Err, "holdfast: ") {
			t.Errorf("%s: code %d, want %d with %q: %s", c.args, r.Code, c.code, c.says, r.Err)
		}
	}
	if r := d.Holdfast("rm", "-f", "no-such-sandbox"); r.Code != 0 {
		t.Errorf("rm -f of nothing: code %d: %s", r.Code, r.Err)
	}
	wrong := harness.Holdfast(t, []string{"HOLDFAST_DATA=" + d.Data, "HOLDFAST_LISTN=x"}, "", "ps")
	if wrong.Code == 0 || !strings.Contains(wrong.Err, "HOLDFAST_LISTEN") {
		t.Errorf("a misspelt variable: code %d: %s", wrong.Code, wrong.Err)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	d := harness.Shared(t)
	for _, c := range []struct {
		name, stdin string
		args        []string
		code        int
		out, err    string
	}{
		{name: "output", args: []string{"--", "echo", "a  b"}, out: "a  b\n"},
		{name: "both streams", args: []string{"--", "sh", "-c", "echo out; echo err >&2"}, out: "out\n", err: "err\n"},
		{name: "exit code", args: []string{"--", "sh", "-c", "exit 7"}, code: 7},
		{name: "signal", args: []string{"--", "sh", "-c", "kill -9 $$"}, code: 137},
		{name: "no such command", args: []string{"--", "no-such-command"}, code: 127},
		{name: "stdin", stdin: "hello", args: []string{"-i", "--", "wc", "-c"}, out: "5\n"},
		{name: "no stdin unless asked", stdin: "hello", args: []string{"--", "wc", "-c"}, out: "0\n"},
		{name: "user, folder, environment", args: []string{"-u", "root", "-w", "/etc", "-e", "A=b c", "--", "sh", "-c", `echo "$(id -un) $PWD $A"`}, out: "root /etc b c\n"},
		{name: "python", args: []string{"--", "python3", "-c", "print(6*7)"}, out: "42\n"},
		{name: "flags of the command are its own", args: []string{"ls", "-d", "/etc"}, out: "/etc\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := harness.Shared(t)
			r := harness.Holdfast(t, []string{"HOLDFAST_DATA=" + d.Data}, c.stdin, append([]string{"run", "--rm"}, c.args...)...)
			if r.Code != c.code || r.Out != c.out || c.err != "" && r.Err != c.err {
				t.Errorf("code %d, out %q, err %q; want %d, %q, %q", r.Code, r.Out, r.Err, c.code, c.out, c.err)
			}
		})
	}
	// --rm holds, whatever came of the command.
	t.Cleanup(func() {
		if left := strings.TrimSpace(d.Must("ps", "-q", "--metadata", "run=rm")); left != "" {
			t.Errorf("run --rm left %s", left)
		}
	})
	d.Must("run", "--rm", "-m", "run=rm", "--", "true")
}

// TestSandboxVerbs walks one sandbox through its life on the command line.
func TestSandboxVerbs(t *testing.T) {
	t.Parallel()
	d := harness.Shared(t)
	id := strings.TrimSpace(d.Must("create", "--name", "walk", "-m", "test=walk", "-e", "GREETING=hi", "--timeout", "1h"))
	t.Cleanup(func() { d.Must("rm", "-f", id) })
	if got := d.Must("exec", "walk", "--", "sh", "-c", "echo $GREETING"); got != "hi\n" {
		t.Errorf("exec by name: %q", got)
	}
	if got := d.Must("exec", id[:8], "--", "id", "-un"); got != "user\n" {
		t.Errorf("exec by prefix: %q", got)
	}

	var list []v1.Sandbox
	parse(t, d.Must("ps", "--json", "-m", "test=walk"), &list)
	if len(list) != 1 || list[0].ID != id || list[0].Name != "walk" || list[0].State != "running" {
		t.Errorf("ps --json: %+v", list)
	}
	if got := d.Must("ps"); !strings.Contains(got, "walk") || !strings.Contains(got, "running") {
		t.Errorf("ps:\n%s", got)
	}
	var in v1.Inspection
	parse(t, d.Must("inspect", "--json", "walk"), &in)
	if in.ID != id || in.Host == nil || len(in.Host.Layers) == 0 || len(in.Events) == 0 {
		t.Errorf("inspect --json: %+v", in)
	}
	if got := d.Must("inspect", "walk"); !strings.Contains(got, id) || !strings.Contains(got, "created") {
		t.Errorf("inspect:\n%s", got)
	}

	d.Must("exec", "walk", "--", "sh", "-c", "(setsid sleep 4321 >/dev/null 2>&1 &)")
	d.Must("pause", "walk")
	if got := state(t, d, id); got != "paused" {
		t.Errorf("after pause it is %q", got)
	}
	if r := d.Holdfast("pause", "walk"); r.Code != 125 || !strings.Contains(r.Err, "paused") {
		t.Errorf("a second pause: code %d: %s", r.Code, r.Err)
	}
	d.Must("resume", "walk")
	if got := d.Must("exec", "walk", "--", "pgrep", "-c", "-fx", "sleep 4321"); got != "1\n" {
		t.Errorf("the process did not survive the pause: %q", got)
	}
	d.Must("pause", "walk")
	if got := d.Must("exec", "walk", "--", "echo", "woken"); got != "woken\n" {
		t.Errorf("exec in a paused sandbox: %q", got)
	}
	if got := d.Must("logs", "walk"); !strings.Contains(got, "created") || !strings.Contains(got, "paused") || !strings.Contains(got, "resumed") {
		t.Errorf("logs:\n%s", got)
	}
	for line := range strings.Lines(d.Must("logs", "--json", "walk")) {
		parse(t, line, &v1.Event{})
	}

	d.Must("exec", "walk", "--", "sh", "-c", "echo one > state")
	snap := strings.TrimSpace(d.Must("snapshot", "walk", "--name", "walk-one"))
	t.Cleanup(func() { d.Holdfast("snapshot", "rm", snap) })
	d.Must("exec", "walk", "--", "sh", "-c", "echo two > state")
	var snaps []v1.Template
	parse(t, d.Must("snapshot", "ls", "--json", "walk"), &snaps)
	if len(snaps) != 1 || snaps[0].ID != snap || !snaps[0].HasMemory {
		t.Errorf("snapshot ls --json: %+v", snaps)
	}
	copyID := strings.TrimSpace(d.Must("create", "-t", "walk-one"))
	t.Cleanup(func() { d.Must("rm", "-f", copyID) })
	if got := d.Must("exec", copyID, "--", "cat", "state"); got != "one\n" {
		t.Errorf("the copy's state: %q", got)
	}
	d.Must("rollback", "walk", "walk-one")
	if got := d.Must("exec", "walk", "--", "cat", "state"); got != "one\n" {
		t.Errorf("state after rollback: %q", got)
	}
	forks := strings.Fields(d.Must("fork", "--count", "2", "walk"))
	if len(forks) != 2 {
		t.Fatalf("fork: %v", forks)
	}
	for _, f := range forks {
		if got := d.Must("exec", f, "--", "cat", "state"); got != "one\n" {
			t.Errorf("state of fork %s: %q", f, got)
		}
	}
	d.Must(append([]string{"rm"}, append(forks, copyID)...)...)
	d.Must("rm", "walk")
	if got := state(t, d, id); got != "" {
		t.Errorf("after rm it is %q", got)
	}
	d.Must("snapshot", "rm", "walk-one")
}

func TestCopy(t *testing.T) {
	t.Parallel()
	d := harness.Shared(t)
	sb := d.Create(v1.CreateRequest{})
	here := t.TempDir()
	tree := filepath.Join(here, "tree")
	write := func(name, content string, mode os.FileMode) {
		path := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("plain.txt", "plain", 0o644)
	write("deep/er/tool", "#!/bin/sh\necho tool runs\n", 0o755)
	if err := os.Symlink("plain.txt", filepath.Join(tree, "link")); err != nil {
		t.Fatal(err)
	}

	d.Must("cp", filepath.Join(tree, "plain.txt"), sb.ID+":copied.txt")
	if got := d.Sh(sb, "cat /home/user/copied.txt; stat -c %U /home/user/copied.txt"); got != "plainuser\n" {
		t.Errorf("a file copied in: %q", got)
	}
	d.Must("cp", tree, sb.ID+":/workspace")
	if got := d.Sh(sb, "/workspace/tree/deep/er/tool; cat /workspace/tree/link"); got != "tool runs\nplain" {
		t.Errorf("a folder copied in: %q", got)
	}
	back := filepath.Join(here, "back")
	d.Must("cp", sb.ID+":/workspace/tree", back)
	out, err := exec.CommandContext(t.Context(), "diff", "-r", tree, back).CombinedOutput()
	if err != nil {
		t.Errorf("a folder copied there and back differs: %v\n%s", err, out)
	}
	if got := d.Must("cp", sb.ID+":copied.txt", "-"); got != "plain" {
		t.Errorf("copied to standard output: %q", got)
	}
	r := harness.Holdfast(t, []string{"HOLDFAST_DATA=" + d.Data}, "from stdin", "cp", "-", sb.ID+":in.txt")
	if got := d.Sh(sb, "cat /home/user/in.txt"); r.Code != 0 || got != "from stdin" {
		t.Errorf("copied from standard input: code %d, %q", r.Code, got)
	}
	if r := d.Holdfast("cp", sb.ID+":no-such-file", here); r.Code != 125 || !strings.Contains(r.Err, "no-such-file") {
		t.Errorf("a file that is not there: code %d: %s", r.Code, r.Err)
	}
}

func TestTemplatesAndKeys(t *testing.T) {
	t.Parallel()
	d := harness.Start(t, harness.Options{Template: harness.Small})
	var templates []v1.Template
	parse(t, d.Must("template", "ls", "--json"), &templates)
	if len(templates) != 1 || templates[0].Name != "small" || !templates[0].HasMemory || templates[0].FilesBytes == 0 {
		t.Errorf("template ls --json: %+v", templates)
	}
	sb := d.Create(v1.CreateRequest{})
	d.Must("template", "rm", "small")
	d.Must("pause", sb.ID)
	if got := d.Must("exec", sb.ID, "--", "echo", "goes on"); got != "goes on\n" {
		t.Errorf("the sandbox does not go on without its template: %q", got)
	}
	if got := d.Must("template", "ls", "--json"); strings.Contains(got, "small") {
		t.Errorf("it is still there: %s", got)
	}

	secret := strings.TrimSpace(d.Must("key", "create", "ci"))
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(secret) {
		t.Errorf("key create: %q", secret)
	}
	remote := func() harness.Result {
		return harness.Holdfast(t, []string{"HOLDFAST_URL=" + d.URL, "HOLDFAST_API_KEY=" + secret}, "", "ps", "--json")
	}
	if r := remote(); r.Code != 0 {
		t.Errorf("the new key does not work: %s", r.Err)
	}
	var keys []v1.Key
	parse(t, d.Must("key", "ls", "--json"), &keys)
	var id string
	for _, k := range keys {
		if k.Name == "ci" {
			id = k.ID
		}
		if strings.Contains(k.Mask, secret) {
			t.Errorf("the list shows the key: %+v", k)
		}
	}
	d.Must("key", "rm", id)
	if r := remote(); r.Code != 125 || !strings.Contains(r.Err, "key") {
		t.Errorf("a removed key: code %d: %s", r.Code, r.Err)
	}
}

func TestStatusDoctorEnv(t *testing.T) {
	t.Parallel()
	d := harness.Shared(t)
	var st v1.Status
	parse(t, d.Must("status", "--json"), &st)
	if st.Listen != d.Listen || st.Data != d.Data || st.Node == nil || st.Node.Templates < 1 || st.LocalKey != "" {
		t.Errorf("status --json: %+v", st)
	}
	if got := d.Must("status"); !strings.Contains(got, d.Listen) || !strings.Contains(got, "gvisor") {
		t.Errorf("status:\n%s", got)
	}
	var findings []v1.Finding
	parse(t, d.Must("doctor", "--json"), &findings)
	if len(findings) == 0 {
		t.Error("doctor --json found nothing, not even what is well")
	}
	for _, f := range findings {
		if f.Severity == "problem" || f.Severity == "warning" && f.Next == "" {
			t.Errorf("doctor: %+v", f)
		}
	}
	script := d.Must("env") + "\n" + `printf '%s|%s|%s' "$E2B_API_URL" "$E2B_SANDBOX_URL" "$E2B_API_KEY"`
	out, err := exec.CommandContext(t.Context(), "sh", "-c", script).Output() //nolint:gosec // what a person would eval
	if want := d.URL + "|" + d.URL + "|" + d.Key(); err != nil || string(out) != want {
		t.Errorf("eval of env gives %q (%v), want %q", out, err, want)
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	d := harness.Shared(t)
	for shell, check := range map[string]string{"bash": "bash", "zsh": "", "fish": "", "powershell": ""} {
		script := d.Must("completion", shell)
		if len(script) < 500 {
			t.Errorf("completion %s: %q", shell, script)
		}
		if check == "" {
			continue
		}
		cmd := exec.CommandContext(t.Context(), check, "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("completion %s is no valid script: %v: %s", shell, err, out)
		}
	}
	sb := d.Create(v1.CreateRequest{})
	if got := d.Must("__complete", "inspect", sb.ID[:4]); !strings.Contains(got, sb.ID) {
		t.Errorf("ids are not completed:\n%s", got)
	}
	if got := d.Must("__complete", "create", "-t", "ba"); !strings.Contains(got, "base") {
		t.Errorf("templates are not completed:\n%s", got)
	}
}

// TestShell opens a shell on a real terminal, as a person does.
func TestShell(t *testing.T) {
	t.Parallel()
	d := harness.Shared(t)
	sb := d.Create(v1.CreateRequest{})
	cmd := exec.CommandContext(t.Context(), harness.Binary(), "shell", sb.ID)
	cmd.Env = append(os.Environ(), "HOLDFAST_DATA="+d.Data, "TERM=xterm-256color")
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: 31, Cols: 97})
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	screen := newScreen(tty)
	kind := func(keys string) {
		t.Helper()
		if _, err := tty.WriteString(keys); err != nil {
			t.Fatal(err)
		}
	}
	kind("stty size; tty; echo $TERM\n")
	screen.shows(t, `31 97\s+/dev/pts/\d+\s+xterm-256color`)
	if err := pty.Setsize(tty, &pty.Winsize{Rows: 40, Cols: 120}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the size inside follows", func() bool {
		kind("stty size\n")
		time.Sleep(200 * time.Millisecond)
		return screen.has(`40 120`)
	})
	kind("sleep 5000\n")
	eventually(t, "sleep runs", func() bool { return d.Sh(sb, "pgrep -fx 'sleep 5000' || true") != "" })
	kind("\x03")
	kind("echo still $((6*7))\n")
	screen.shows(t, `still 42`)
	kind("exit 9\n")
	err = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 9 {
		t.Errorf("the shell's exit code is %d (%v), want 9; screen:\n%s", code, err, screen.text())
	}
}

func parse(t *testing.T, text string, into any) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		t.Fatalf("not the JSON that is promised: %v\n%s", err, text)
	}
}
