package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Limits bind a group; zero leaves one unbound.
type Limits struct {
	CPUMillis   int64 // 1000 is one core
	MemoryBytes int64
	PIDs        int64
}

// Stats is one sample of a group. A value whose controller is missing is zero.
type Stats struct {
	CPUTime     time.Duration
	MemoryBytes int64
	MemoryPeak  int64
	PIDs        int64
	OOMKills    int64
}

// Group is one instance's group in all hierarchies.
type Group struct {
	parent *Parent
	id     string
}

// period of the cpu quota, microseconds: the kernel's default.
const period = 100_000

// Group gives the handle of a group, whether it exists or not.
func (p *Parent) Group(id string) *Group { return &Group{p, id} }

// Create makes the group with its limits set. It may exist already.
func (p *Parent) Create(id string, l Limits) (*Group, error) {
	g := p.Group(id)
	for _, h := range p.trees {
		if err := os.Mkdir(g.dir(h), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, errors.Join(fmt.Errorf("make cgroup: %w", err), g.Remove())
		}
	}
	if err := g.Update(l); err != nil {
		return nil, errors.Join(err, g.Remove())
	}
	return g, nil
}

// List gives the ids of all groups below the parent.
func (p *Parent) List() ([]string, error) {
	found := map[string]bool{}
	for _, h := range p.trees {
		entries, err := os.ReadDir(filepath.Join(h.root, p.name))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				found[e.Name()] = true
			}
		}
	}
	ids := make([]string, 0, len(found))
	for id := range found {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

func (g *Group) dir(h *hierarchy) string { return filepath.Join(h.root, g.parent.name, g.id) }

// Update sets the limits. A memory limit below what is in use makes the kernel
// reclaim, and the group's processes may be killed for it.
func (g *Group) Update(l Limits) error {
	for _, h := range g.parent.trees {
		for _, c := range h.limits {
			if err := g.limit(h, c, l); err != nil {
				return fmt.Errorf("limit %s of cgroup %s: %w", c, g.id, err)
			}
		}
	}
	return nil
}

func (g *Group) limit(h *hierarchy, controller string, l Limits) error {
	dir := g.dir(h)
	switch controller {
	case CPU:
		quota := l.CPUMillis * period / 1000
		if h.v2 {
			return writeFile(filepath.Join(dir, "cpu.max"), number(quota, "max")+" "+strconv.Itoa(period))
		}
		return writeFile(filepath.Join(dir, "cpu.cfs_quota_us"), number(quota, "-1"))
	case Memory:
		if h.v2 {
			if err := writeFile(filepath.Join(dir, "memory.max"), number(l.MemoryBytes, "max")); err != nil {
				return err
			}
			// Without it a limit would be stretched by swap. Absent without swap.
			if err := writeFile(filepath.Join(dir, "memory.swap.max"), "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			// One process of an instance never survives another.
			return writeFile(filepath.Join(dir, "memory.oom.group"), "1")
		}
		return limitMemory1(dir, number(l.MemoryBytes, "-1"))
	default:
		return writeFile(filepath.Join(dir, "pids.max"), number(l.PIDs, "max"))
	}
}

// limitMemory1 sets memory and memory+swap to the same value. The kernel demands
// memory <= memory+swap at every moment, so growing starts with the latter.
func limitMemory1(dir, value string) error {
	memory := filepath.Join(dir, "memory.limit_in_bytes")
	both := filepath.Join(dir, "memory.memsw.limit_in_bytes")
	if _, err := os.Stat(both); errors.Is(err, fs.ErrNotExist) {
		return writeFile(memory, value) // swap is not accounted on this machine
	}
	if err := writeFile(memory, value); err == nil {
		return writeFile(both, value)
	}
	if err := writeFile(both, value); err != nil {
		return err
	}
	return writeFile(memory, value)
}

// number gives n, or none when n is not positive.
func number(n int64, none string) string {
	if n <= 0 {
		return none
	}
	return strconv.FormatInt(n, 10)
}

// Files gives the cgroup.procs files that a process has to write itself to in
// order to be inside.
func (g *Group) Files() []string {
	var out []string
	for _, h := range g.parent.trees {
		out = append(out, filepath.Join(g.dir(h), "cgroup.procs"))
	}
	return out
}

// Join moves a process with all its threads into the group. Each write waits for
// an RCU grace period of the kernel (up to 20 ms), so they go side by side.
func (g *Group) Join(pid int) error {
	files := g.Files()
	errs := make([]error, len(files))
	var wg sync.WaitGroup
	for i, file := range files {
		wg.Go(func() { errs[i] = writeFile(file, strconv.Itoa(pid)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("move process %d into cgroup %s: %w", pid, g.id, err)
	}
	return nil
}

// Procs gives the processes in the group, in any hierarchy.
func (g *Group) Procs() ([]int, error) {
	var pids []int
	for _, file := range g.Files() {
		b, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("processes of cgroup %s: %w", g.id, err)
		}
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
				pids = append(pids, pid)
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// Kill kills every process in the group and waits until it is empty.
func (g *Group) Kill(timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for {
		for _, h := range g.parent.trees {
			if h.v2 {
				// One write gets all, forks included. Absent before Linux 5.14.
				_ = writeFile(filepath.Join(g.dir(h), "cgroup.kill"), "1")
			}
		}
		pids, err := g.Procs()
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("kill cgroup %s: processes %v are still there after %s", g.id, pids, timeout)
		}
		time.Sleep(time.Millisecond)
	}
}

// Remove deletes the group, which must be empty. Gone already: nil.
func (g *Group) Remove() error {
	var errs []error
	for _, h := range g.parent.trees {
		if err := removeDir(g.dir(h)); err != nil {
			errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
		}
	}
	return errors.Join(errs...)
}

// removeDir retries while the kernel still counts processes that are just ending.
func removeDir(dir string) error {
	var err error
	for range 200 {
		err = unix.Rmdir(dir)
		if err == nil || err == unix.ENOENT {
			return nil
		}
		if err != unix.EBUSY {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
}

// Stats samples the group. fs.ErrNotExist when there is no such group.
func (g *Group) Stats() (Stats, error) {
	var s Stats
	for _, h := range g.parent.trees {
		dir := g.dir(h)
		if _, err := os.Stat(dir); err != nil {
			return s, fmt.Errorf("cgroup %s: %w", g.id, err)
		}
		if h.v2 {
			if h.has(CPU) {
				s.CPUTime = time.Duration(keyed(filepath.Join(dir, "cpu.stat"), "usage_usec")) * time.Microsecond
			}
			if h.has(Memory) {
				s.MemoryBytes = value(filepath.Join(dir, "memory.current"))
				s.MemoryPeak = max(value(filepath.Join(dir, "memory.peak")), s.MemoryBytes)
				s.OOMKills = keyed(filepath.Join(dir, "memory.events"), "oom_kill")
			}
		} else {
			if h.acct {
				s.CPUTime = time.Duration(value(filepath.Join(dir, "cpuacct.usage")))
			}
			if h.has(Memory) {
				s.MemoryBytes = value(filepath.Join(dir, "memory.usage_in_bytes"))
				s.MemoryPeak = value(filepath.Join(dir, "memory.max_usage_in_bytes"))
				s.OOMKills = keyed(filepath.Join(dir, "memory.oom_control"), "oom_kill")
			}
		}
		if h.has(PIDs) {
			s.PIDs = value(filepath.Join(dir, "pids.current"))
		}
	}
	return s, nil
}

// OOMKills tells how many processes of the group the kernel killed because of
// the memory limit; 0 when it cannot be known.
func (g *Group) OOMKills() int64 {
	s, err := g.Stats()
	if err != nil {
		return 0
	}
	return s.OOMKills
}

// value reads a file of one number; absent or not a number: 0.
func value(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n
}

// keyed reads "key number" from a file of such lines; absent: 0.
func keyed(path, key string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), " "); ok && k == key {
			n, _ := strconv.ParseInt(v, 10, 64)
			return n
		}
	}
	return 0
}
