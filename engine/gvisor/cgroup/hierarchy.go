// Package cgroup bounds the host processes of one instance: cpu, memory and
// number of tasks. It works on version 2 (unified), version 1, and the hybrid of
// both. A group is <parent>/<id> in every hierarchy that matters:
//
//   - one per controller that limits something,
//   - and, for tracking only, the unified and the name=systemd hierarchies of a
//     version 1 or hybrid machine. Being outside of the daemon's own unit there is
//     what lets instances outlive a restart of the daemon under systemd.
//
// A controller that is missing is reported by Missing, with the reason; groups
// then go without it.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Controllers that limit something.
const (
	CPU    = "cpu"
	Memory = "memory"
	PIDs   = "pids"
)

var controllers = []string{CPU, Memory, PIDs}

// hierarchy is one mounted tree of groups.
type hierarchy struct {
	root   string   // mount point
	v2     bool     // unified interface files
	limits []string // controllers of it that this package uses
	acct   bool     // version 1 cpuacct
}

func (h *hierarchy) has(controller string) bool { return slices.Contains(h.limits, controller) }

// Parent is the group below which instances get theirs.
type Parent struct {
	name    string
	trees   []*hierarchy
	missing map[string]string
}

// Open finds the hierarchies of this machine and makes the parent group in each.
// name is relative to the roots, e.g. "holdfast" or "system.slice/holdfast".
// A machine without any usable controller is no error: see Missing.
func Open(name string) (*Parent, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cgroups: %w", err)
	}
	defer f.Close()
	trees, err := parseMounts(f)
	if err != nil {
		return nil, fmt.Errorf("cgroups: read mounts: %w", err)
	}
	return open(name, trees)
}

func open(name string, trees []*hierarchy) (*Parent, error) {
	name = strings.Trim(filepath.Clean("/"+name), "/")
	if name == "" {
		return nil, errors.New("cgroups: the parent group must not be the root; name one, e.g. holdfast")
	}
	p := &Parent{name: name, missing: map[string]string{}}
	for _, c := range controllers {
		p.missing[c] = "the kernel has no " + c + " cgroup controller mounted; enable it on the kernel command line or mount cgroup2"
	}
	for _, h := range trees {
		if err := os.MkdirAll(filepath.Join(h.root, name), 0o755); err != nil {
			for _, c := range h.limits {
				p.missing[c] = "cannot make a group: " + err.Error()
			}
			continue
		}
		if h.v2 {
			h.limits = p.delegate(h)
		}
		for _, c := range h.limits {
			delete(p.missing, c)
		}
		p.trees = append(p.trees, h)
	}
	return p, nil
}

// delegate switches the controllers on for the groups below the parent and gives
// those that are. On version 2 every group on the way has to pass them on.
func (p *Parent) delegate(h *hierarchy) []string {
	var on []string
	for _, c := range h.limits {
		dir, err := h.root, error(nil)
		for _, part := range append(strings.Split(p.name, "/"), "") {
			err = writeFile(filepath.Join(dir, "cgroup.subtree_control"), "+"+c)
			if err != nil {
				break
			}
			dir = filepath.Join(dir, part)
		}
		if err != nil {
			p.missing[c] = "cannot be switched on for groups of instances: " + err.Error()
			continue
		}
		on = append(on, c)
	}
	return on
}

// Remove deletes the parent group, which must have no groups in it.
func (p *Parent) Remove() error {
	var errs []error
	for _, h := range p.trees {
		if err := removeDir(filepath.Join(h.root, p.name)); err != nil {
			errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Missing tells which limits are not enforced on this machine, and why.
func (p *Parent) Missing() map[string]string { return p.missing }

// parseMounts reads mountinfo(5).
func parseMounts(r io.Reader) ([]*hierarchy, error) {
	var trees []*hierarchy
	seen := map[string]bool{} // a hierarchy can be mounted more than once
	s := bufio.NewScanner(r)
	for s.Scan() {
		fields := strings.Fields(s.Text())
		sep := slices.Index(fields, "-")
		if sep < 6 || len(fields) < sep+4 {
			continue
		}
		root, kind, options := fields[4], fields[sep+1], strings.Split(fields[sep+3], ",")
		if fields[3] != "/" && !strings.HasPrefix(fields[3], "/../") {
			continue // a bind mount of a part
		}
		switch kind {
		case "cgroup2":
			if seen["v2"] {
				continue
			}
			seen["v2"] = true
			h := &hierarchy{root: root, v2: true}
			b, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			for _, c := range strings.Fields(string(b)) {
				if slices.Contains(controllers, c) {
					h.limits = append(h.limits, c)
				}
			}
			trees = append(trees, h)
		case "cgroup":
			h := &hierarchy{root: root}
			useful := false
			for _, o := range options {
				if seen[o] {
					continue
				}
				switch {
				case slices.Contains(controllers, o):
					h.limits = append(h.limits, o)
				case o == "cpuacct":
					h.acct = true
				case o != "name=systemd":
					continue
				}
				seen[o], useful = true, true
			}
			if useful {
				trees = append(trees, h)
			}
		}
	}
	return trees, s.Err()
}

// writeFile writes a control file. The error names the file and what was written.
func writeFile(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("write %q: %w", value, err)
	}
	return nil
}
