package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseMounts(t *testing.T) {
	unified := t.TempDir()
	write(t, filepath.Join(unified, "cgroup.controllers"), "cpuset cpu io memory hugetlb pids\n")
	for _, c := range []struct {
		name, mounts string
		want         []string // root and what it limits
	}{
		{"v2", "30 25 0:26 / " + unified + " rw,nosuid shared:4 - cgroup2 cgroup2 rw\n", []string{unified + " v2 cpu,memory,pids acct=false"}},
		{"v1", `40 30 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
41 30 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
42 30 0:32 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
43 30 0:33 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
`, []string{"/sys/fs/cgroup/cpu,cpuacct v1 cpu acct=true", "/sys/fs/cgroup/memory v1 memory acct=false", "/sys/fs/cgroup/systemd v1  acct=false"}},
		{"mounted twice", `41 30 0:31 / /a rw - cgroup cgroup rw,memory
42 30 0:31 / /b rw - cgroup cgroup rw,memory
`, []string{"/a v1 memory acct=false"}},
		{"bind mount of a part", "41 30 0:31 /docker/x /a rw - cgroup cgroup rw,memory\n", nil},
		{"optional fields", "41 30 0:31 / /a rw shared:1 master:2 - cgroup cgroup rw,pids\n", []string{"/a v1 pids acct=false"}},
		{"others", "22 1 0:21 / /proc rw - proc proc rw\nshort line\n", nil},
	} {
		trees, err := parseMounts(strings.NewReader(c.mounts))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var got []string
		for _, h := range trees {
			version := "v1"
			if h.v2 {
				version = "v2"
			}
			got = append(got, fmt.Sprintf("%s %s %s acct=%t", h.root, version, strings.Join(h.limits, ","), h.acct))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// fake makes a folder that looks like a unified hierarchy whose kernel has made the
// control files of the groups named.
func fake(t *testing.T, groups ...string) (string, []*hierarchy) {
	t.Helper()
	root := t.TempDir()
	for _, g := range append([]string{"", "parent"}, groups...) {
		for file, content := range map[string]string{
			"cgroup.subtree_control": "", "cgroup.procs": "", "cgroup.kill": "", "cpu.max": "", "memory.max": "",
			"memory.swap.max": "", "memory.oom.group": "", "pids.max": "",
			"cpu.stat": "usage_usec 1500\nuser_usec 1000\n", "memory.current": "4096\n", "memory.peak": "8192\n",
			"memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2\n", "pids.current": "7\n",
		} {
			write(t, filepath.Join(root, g, file), content)
		}
	}
	return root, []*hierarchy{{root: root, v2: true, limits: []string{CPU, Memory, PIDs}}}
}

func TestUnified(t *testing.T) {
	root, trees := fake(t, "parent/one")
	p, err := open("parent", trees)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Missing()) > 0 {
		t.Errorf("missing: %v", p.Missing())
	}
	g, err := p.Create("one", Limits{CPUMillis: 1500, MemoryBytes: 64 << 20, PIDs: 100})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, root, "cgroup.subtree_control", "+pids") // the last one written
	expect(t, root, "parent/cgroup.subtree_control", "+pids")
	expect(t, root, "parent/one/cpu.max", "150000 100000")
	expect(t, root, "parent/one/memory.max", "67108864")
	expect(t, root, "parent/one/memory.swap.max", "0")
	expect(t, root, "parent/one/memory.oom.group", "1")
	expect(t, root, "parent/one/pids.max", "100")
	if err := g.Update(Limits{}); err != nil {
		t.Fatal(err)
	}
	expect(t, root, "parent/one/cpu.max", "max 100000")
	expect(t, root, "parent/one/memory.max", "max")
	expect(t, root, "parent/one/pids.max", "max")
	s, err := g.Stats()
	want := Stats{CPUTime: 1500 * time.Microsecond, MemoryBytes: 4096, MemoryPeak: 8192, PIDs: 7, OOMKills: 2}
	if err != nil || s != want {
		t.Errorf("stats %+v, %v; want %+v", s, err, want)
	}
	if n := g.OOMKills(); n != 2 {
		t.Errorf("%d kills for memory, want 2", n)
	}
	if err := g.Kill(time.Second); err != nil {
		t.Errorf("kill an empty group: %v", err)
	}
	expect(t, root, "parent/one/cgroup.kill", "1")
	if ids, err := p.List(); err != nil || !slices.Equal(ids, []string{"one"}) {
		t.Errorf("list %v, %v", ids, err)
	}
	if files := g.Files(); !slices.Equal(files, []string{filepath.Join(root, "parent/one/cgroup.procs")}) {
		t.Errorf("files %v", files)
	}
}

// TestUnifiedWithoutSwap: a kernel without swap accounting has no file for it.
func TestUnifiedWithoutSwap(t *testing.T) {
	root, trees := fake(t, "parent/one")
	if err := os.Remove(filepath.Join(root, "parent/one/memory.swap.max")); err != nil {
		t.Fatal(err)
	}
	p, err := open("parent", trees)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Create("one", Limits{MemoryBytes: 1}); err != nil {
		t.Error(err)
	}
}

// TestMissing: what cannot be had is said, with the reason, and the rest works.
func TestMissing(t *testing.T) {
	p, err := open("parent", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{CPU, Memory, PIDs} {
		if p.Missing()[c] == "" {
			t.Errorf("%s is not reported as missing", c)
		}
	}
	g, err := p.Create("one", Limits{MemoryBytes: 1, PIDs: 1, CPUMillis: 1})
	if err != nil {
		t.Errorf("create without controllers: %v", err)
	}
	if err := errors.Join(g.Join(os.Getpid()), g.Kill(time.Second), g.Remove()); err != nil {
		t.Errorf("without controllers: %v", err)
	}

	root, trees := fake(t)
	if err := os.Remove(filepath.Join(root, "parent/cgroup.subtree_control")); err != nil {
		t.Fatal(err)
	}
	if p, err = open("parent", trees); err != nil {
		t.Fatal(err)
	}
	if why := p.Missing()[Memory]; !strings.Contains(why, "switched on") {
		t.Errorf("memory is missing because %q", why)
	}
	if _, err := open("/", nil); err == nil {
		t.Error("the root was taken for a parent")
	}
	if _, err := open("a/../..", nil); err == nil {
		t.Error("a way out was taken for a parent")
	}
}

// TestReal: on this machine's own hierarchies, a process is placed, counted, killed
// and its group removed.
func TestReal(t *testing.T) {
	p, err := Open(fmt.Sprintf("holdfast-test/cg%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, h := range p.trees {
			if err := removeDir(filepath.Join(h.root, p.name)); err != nil {
				t.Error(err)
			}
		}
	})
	if len(p.Missing()) == 3 {
		t.Fatalf("this machine enforces nothing: %v", p.Missing())
	}
	g, err := p.Create("one", Limits{CPUMillis: 500, MemoryBytes: 64 << 20, PIDs: 10})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Create("one", Limits{}); err != nil {
		t.Errorf("create again: %v", err)
	}
	// Narrow and widen, which version 1 wants in different orders.
	for _, mb := range []int64{32, 128, 0, 16} {
		if err := g.Update(Limits{MemoryBytes: mb << 20}); err != nil {
			t.Errorf("limit memory to %d MiB: %v", mb, err)
		}
	}
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	if err := g.Join(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if pids, err := g.Procs(); err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("processes %v, %v; want %d", pids, err, cmd.Process.Pid)
	}
	if s, err := g.Stats(); err != nil || p.Missing()[PIDs] == "" && s.PIDs != 1 {
		t.Errorf("stats %+v, %v", s, err)
	}
	if err := g.Kill(10 * time.Second); err != nil {
		t.Errorf("kill: %v", err)
	}
	<-ended
	for range 2 {
		if err := g.Remove(); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if _, err := g.Stats(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("stats of none: %v", err)
	}
	if ids, err := p.List(); err != nil || len(ids) > 0 {
		t.Errorf("list %v, %v", ids, err)
	}
	if err := g.Join(os.Getpid()); err == nil {
		t.Error("joined a group that is gone")
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func expect(t *testing.T, root, file, want string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil || string(b) != want {
		t.Errorf("%s holds %q, %v; want %q", file, b, err, want)
	}
}
