package gvisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestConfinement: what starts instances faster leaves their processes exactly as
// confined as gVisor's own way of starting them.
func TestConfinement(t *testing.T) {
	e, one := start(t)
	r, err := e.loadRecord(one.Spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct {
		name string
		pid  int
		caps string
	}{
		{"sandbox", r.Sandbox.PID, "000000000008001f"}, // file access and ptrace
		{"gofer", r.Gofer.PID, "000000000004001f"},     // file access and chroot
	} {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", p.pid))
		if err != nil || len(tasks) == 0 {
			t.Fatalf("%s has no threads: %v", p.name, err)
		}
		for _, task := range tasks {
			status := statusOf(t, task)
			ambient, inheritable := "0000000000000000", "0000000000000000"
			if p.name == "gofer" {
				ambient, inheritable = p.caps, p.caps
			}
			for key, want := range map[string]string{
				"CapBnd": p.caps, "CapPrm": p.caps, "CapEff": p.caps, "CapInh": inheritable, "CapAmb": ambient,
				"Seccomp": "2", "NoNewPrivs": "1",
			} {
				if got := status[key]; got != want {
					t.Errorf("%s %s: %s is %s, want %s", p.name, filepath.Base(filepath.Dir(task)), key, got, want)
				}
			}
		}
		for _, ns := range []string{"user", "mnt", "pid", "ipc", "uts", "net"} {
			theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.pid, ns))
			if err != nil {
				t.Fatal(err)
			}
			if ours, _ := os.Readlink("/proc/1/ns/" + ns); theirs == ours {
				t.Errorf("%s shares the host's %s namespace", p.name, ns)
			}
		}
		if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/root/proc", p.pid)); p.name == "sandbox" && err == nil && len(entries) > 0 {
			t.Errorf("the sandbox still sees a /proc with %d entries", len(entries))
		}
	}
}

func statusOf(t *testing.T, path string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			out[k] = strings.TrimSpace(v)
		}
	}
	return out
}
