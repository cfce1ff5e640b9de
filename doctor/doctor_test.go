package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-run/holdfast/sandbox"
)

// machine makes a folder that looks like a machine that is well; changes
// replace files ("" removes one).
func machine(t *testing.T, changes map[string]string) Machine {
	t.Helper()
	root := t.TempDir()
	files := map[string]string{
		"proc/sys/kernel/osrelease":        "6.1.0-30-amd64\n",
		"proc/filesystems":                 "nodev\tsysfs\nnodev\toverlay\n\text4\n",
		"proc/sys/net/ipv4/ip_forward":     "0\n",
		"proc/meminfo":                     "MemTotal: 8000000 kB\nMemAvailable:   4194304 kB\n",
		"proc/self/mountinfo":              "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
		"proc/self/ns/net":                 "-", "proc/self/ns/mnt": "-", "proc/self/ns/pid": "-", "proc/self/ns/ipc": "-", "proc/self/ns/uts": "-",
	}
	gone := map[string]bool{}
	for name, content := range changes {
		files[name] = content
		gone[name] = content == ""
	}
	for name, content := range files {
		if gone[name] {
			continue
		}
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Machine{Root: root, Data: t.TempDir(), UID: 0, Arch: "amd64"}
}

func TestCheck(t *testing.T) {
	for _, tt := range []struct {
		name    string
		changes map[string]string
		change  func(*Machine)
		check   string
		want    sandbox.Severity
		reason  string
	}{
		{name: "kernel is new enough", check: "kernel", want: sandbox.OK},
		{name: "old kernel", changes: map[string]string{"proc/sys/kernel/osrelease": "5.4.0-1"}, check: "kernel", want: sandbox.Problem, reason: "older than 5.10"},
		{name: "oldest kernel", changes: map[string]string{"proc/sys/kernel/osrelease": "5.10.0"}, check: "kernel", want: sandbox.OK},
		{name: "odd kernel", changes: map[string]string{"proc/sys/kernel/osrelease": "next"}, check: "kernel", want: sandbox.Warning, reason: "cannot be told"},
		{name: "overlay", check: "overlayfs", want: sandbox.OK},
		{name: "no overlay", changes: map[string]string{"proc/filesystems": "\text4\n"}, check: "overlayfs", want: sandbox.Problem},
		{name: "namespaces", check: "namespaces", want: sandbox.OK},
		{name: "no net namespace", changes: map[string]string{"proc/self/ns/net": ""}, check: "namespaces", want: sandbox.Problem},
		{name: "network", check: "network", want: sandbox.OK},
		{name: "no IPv4", changes: map[string]string{"proc/sys/net/ipv4/ip_forward": ""}, check: "network", want: sandbox.Problem},
		{name: "cgroup v2", check: "cgroups", want: sandbox.OK},
		{name: "cgroup v2 without memory", changes: map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpu pids"}, check: "cgroups", want: sandbox.Warning, reason: "not enforced"},
		{name: "cgroup v1", changes: map[string]string{
			"sys/fs/cgroup/cgroup.controllers": "",
			"proc/self/mountinfo": "31 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n" +
				"32 23 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n33 23 0:29 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
		}, check: "cgroups", want: sandbox.OK},
		{name: "memory", check: "memory", want: sandbox.OK, reason: "4096 MiB"},
		{name: "little memory", changes: map[string]string{"proc/meminfo": "MemAvailable: 1000 kB\n"}, check: "memory", want: sandbox.Warning},
		{name: "memory unknown", changes: map[string]string{"proc/meminfo": "x"}, check: "memory", want: sandbox.Warning},
		{name: "root", check: "user", want: sandbox.OK},
		{name: "not root", change: func(m *Machine) { m.UID = 1000 }, check: "user", want: sandbox.Problem, reason: "uid 1000"},
		{name: "architecture", change: func(m *Machine) { m.Arch = "riscv64" }, check: "architecture", want: sandbox.Problem},
		{name: "data folder to be made", change: func(m *Machine) { m.Data += "/a/b" }, check: "data", want: sandbox.OK},
		{name: "data is a file", change: func(m *Machine) {
			m.Data += "/file"
			if err := os.WriteFile(m.Data, nil, 0o600); err != nil {
				panic(err)
			}
		}, check: "data", want: sandbox.Problem, reason: "is not a folder"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := machine(t, tt.changes)
			if tt.change != nil {
				tt.change(&m)
			}
			seen := false
			for _, f := range m.Check() {
				if f.Severity != sandbox.OK && f.Next == "" {
					t.Errorf("%s names no next step: %+v", f.Check, f)
				}
				if f.Check != tt.check {
					continue
				}
				seen = true
				if f.Severity != tt.want || !strings.Contains(f.Reason, tt.reason) {
					t.Errorf("found %+v, want %s with %q", f, tt.want, tt.reason)
				}
			}
			if !seen {
				t.Errorf("%s was not looked at", tt.check)
			}
		})
	}
}

func TestThisMachineCanBeLookedAt(t *testing.T) {
	for _, f := range This(t.TempDir()).Check() {
		if f.Check == "" || f.Severity == "" || f.Reason == "" {
			t.Errorf("incomplete: %+v", f)
		}
	}
}
