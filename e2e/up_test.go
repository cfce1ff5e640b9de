package e2e

import (
	"regexp"
	"strings"
	"testing"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/bench"
	"github.com/holdfast-run/holdfast/e2e/harness"
)

// TestUp looks at what the first `holdfast up --demo` said, and runs it again.
func TestUp(t *testing.T) {
	t.Parallel()
	out := harness.DemoOutput(t)
	for _, pattern := range []string{
		`daemon started`, `base template ready`, `\d+ ms +opened sandbox`, `\d+ ms +installed a package`, `\d+ ms +started a process that counts`,
		`\d+ ms +paused it at \d+: 0 processes and 0 B of memory`, `\d+ ms +sent a request, which resumed it: the same process`,
		`the file and the package are there`, `took a snapshot .* and started two sandboxes`, `API key +e2b_[0-9a-f]{40}`, `eval "\$\(.*holdfast.* env\)"`,
	} {
		if !regexp.MustCompile(pattern).MatchString(out) {
			t.Errorf("`holdfast up --demo` does not say %q", pattern)
		}
	}
	d := harness.Shared(t)
	again := d.Must("up", "--demo")
	if !strings.Contains(again, "daemon runs already") || strings.Contains(again, "making the base template") {
		t.Errorf("a second up does not see what is there:\n%s", again)
	}
	if !strings.Contains(again, "started two sandboxes") {
		t.Errorf("a second demonstration did not run:\n%s", again)
	}
	if left := d.Must("ps", "-q", "-m", "holdfast=demo"); left != "" {
		t.Errorf("the demonstration left sandboxes: %s", left)
	}
	if t.Failed() {
		t.Logf("it said:\n%s", out)
	}
}

// TestDown stops a daemon and starts it again: sandboxes go on, or are paused.
func TestDown(t *testing.T) {
	t.Parallel()
	d := harness.Start(t, harness.Options{Template: harness.Small})
	sb := d.Create(v1.CreateRequest{})
	count(d, sb)
	d.Must("down")
	<-d.Ended()
	if got := d.Must("down"); !strings.Contains(got, "no daemon") {
		t.Errorf("a second down: %s", got)
	}
	d.Up()
	goesOn(t, d, sb)
	d.Must("down", "--sandboxes")
	<-d.Ended()
	if left := harness.Processes(d.Data); len(left) > 0 {
		t.Errorf("sandboxes still run after down --sandboxes: %s", strings.Join(left, "\n"))
	}
	d.Up()
	wantState(t, d, sb.ID, "paused")
	d.Must("resume", sb.ID)
	goesOn(t, d, sb)
}

// TestBench measures little, and looks at the shape of the report.
func TestBench(t *testing.T) {
	d := harness.Shared(t)
	names := []string{"create_pool", "create_cold", "exec_warm", "pause_20mb", "resume_20mb", "snapshot_20mb", "rollback", "guest_memory"}
	var results []bench.Result
	parse(t, d.Must("bench", "--json", "--samples", "2", "--only", strings.Join(names, ",")), &results)
	if len(results) != len(names) {
		t.Fatalf("%d results for %d names: %+v", len(results), len(names), results)
	}
	for i, r := range results {
		if r.Name != names[i] || r.N != 2 || r.Min <= 0 || r.Min > r.P50 || r.P50 > r.P99 || r.P99 > r.Max || r.Peer != nil {
			t.Errorf("%+v", r)
		}
	}
	if got := d.Must("bench", "--samples", "1", "--only", "exec_warm"); !strings.Contains(got, "exec_warm") || !strings.ContainsAny(got, "✓✗") {
		t.Errorf("the table:\n%s", got)
	}
	if r := d.Holdfast("bench", "--only", "no-such-thing"); r.Code == 0 || !strings.Contains(r.Err, "create_pool") {
		t.Errorf("an unknown name: code %d: %s", r.Code, r.Err)
	}
	if left := d.Must("ps", "-q", "-m", "holdfast=bench"); left != "" {
		t.Errorf("the benchmark left sandboxes: %s", left)
	}
}
