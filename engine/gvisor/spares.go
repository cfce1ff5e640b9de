package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-run/holdfast/engine"
	"github.com/holdfast-run/holdfast/engine/gvisor/cgroup"
	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
)

// A spare is a sandbox process whose kernel has booted and waits to be told what to
// run. Booting is half of the time of a restore and does not depend on what is
// restored, so a few are kept ready and a restore takes one. Each has its folder and
// its cgroup, which become the instance's.
//
// Spares belong to one engine: Close ends them, and New ends those of an engine that
// was killed.

// spareKey is what a spare is made for: what the kernel has to know at boot.
type spareKey struct {
	args   string
	memory int64
	cpus   int
}

func keyOf(s engine.Spec) spareKey {
	return spareKey{strings.Join(s.Args, "\x00"), s.MemoryBytes, cpus(s.CPUMillis)}
}

type spare struct {
	name    string // also of its cgroup
	dir     string
	driver  *driver
	group   *cgroup.Group
	sandbox process
}

const (
	// DefaultSpares is how many are kept for each of the latest kinds of instances.
	DefaultSpares = 2
	// spareKinds is for how many kinds.
	spareKinds = 2
	// spareQuiet is how long nothing was launched before new ones are made: they
	// must not take the processor from what is wanted now.
	spareQuiet = 100 * time.Millisecond
	// sparePrefix of their names. No instance's id can begin so.
	sparePrefix = "spare-"
	spareFolder = ".spare"
	// groupFile in an instance's folder names its cgroup if that is not its id.
	groupFile = "cgroup"
)

// takeSpare notes that an instance of this kind is wanted and gives a spare for it,
// if it may have one and there is one.
func (e *Engine) takeSpare(key spareKey, may bool) *spare {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isClosed {
		return nil
	}
	e.wantSpares(key)
	if !may {
		return nil
	}
	for list := e.spares[key]; len(list) > 0; list = e.spares[key] {
		s := list[len(list)-1]
		e.spares[key] = list[:len(list)-1]
		if s.usable() {
			return s
		}
		e.watches.Go(func() { e.dropSpare(s) })
	}
	return nil
}

// usable: it lives, and so does the driver that holds its other half.
func (s *spare) usable() bool {
	select {
	case <-s.driver.ended:
		return false
	default:
		return s.sandbox.alive()
	}
}

// wantSpares notes that key is the kind of the latest instance.
func (e *Engine) wantSpares(key spareKey) {
	kinds := []spareKey{key}
	for _, k := range e.spareKinds {
		if k != key && len(kinds) < spareKinds {
			kinds = append(kinds, k)
		}
	}
	e.spareKinds = kinds
	select {
	case e.launched <- struct{}{}:
	default:
	}
}

// keepSpares makes new spares whenever it has been quiet for a while.
func (e *Engine) keepSpares(count int) {
	quiet := time.NewTimer(spareQuiet)
	defer quiet.Stop()
	for {
		select {
		case <-e.closed:
			return
		case <-e.launched:
			quiet.Reset(spareQuiet)
		case <-quiet.C:
			if e.stockSpare(count) {
				quiet.Reset(spareQuiet / 10)
			}
		}
	}
}

// stockSpare drops a spare that nobody wants any more or makes one that is
// missing, and tells whether there may be more to do.
func (e *Engine) stockSpare(count int) bool {
	unwanted, missing, ok := e.spareChange(count)
	if unwanted != nil {
		e.dropSpare(unwanted)
		return true
	}
	if !ok {
		return false
	}
	s, err := e.makeSpare(missing)
	if err != nil {
		e.log.Warn("cannot keep a spare kernel ready; restores will take longer", "error", err)
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.spares[missing] = append(e.spares[missing], s)
	return true
}

func (e *Engine) spareChange(count int) (unwanted *spare, missing spareKey, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wanted := map[spareKey]bool{}
	for _, k := range e.spareKinds {
		wanted[k] = true
	}
	for k, list := range e.spares {
		if !wanted[k] && len(list) > 0 {
			e.spares[k] = list[1:]
			return list[0], missing, false
		}
	}
	for _, k := range e.spareKinds {
		if len(e.spares[k]) < count {
			return nil, k, true
		}
	}
	return nil, missing, false
}

func (e *Engine) makeSpare(key spareKey) (_ *spare, err error) {
	e.mu.Lock()
	e.spareSeq++
	name := sparePrefix + strconv.Itoa(e.spareSeq)
	e.mu.Unlock()
	s := &spare{name: name, dir: filepath.Join(e.dir, spareFolder, name), group: e.groups.Group(name)}
	defer func() {
		if err != nil {
			e.dropSpare(s)
		}
	}()
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	// The group is named by a file, which moves with the folder.
	if err := os.WriteFile(filepath.Join(s.dir, groupFile), []byte(name), 0o600); err != nil {
		return nil, err
	}
	spec := engine.Spec{Hostname: restoredName, Root: "/", Share: "/", NetNS: "/proc/self/ns/net", Args: strings.Split(key.args, "\x00")}
	if err := bundle(spec, s.dir); err != nil {
		return nil, err
	}
	if _, err := e.groups.Create(name, cgroup.Limits{}); err != nil {
		return nil, err
	}
	if s.driver, err = e.drivers.get(e.current); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), launchTimeout)
	defer cancel()
	reply, err := s.driver.call(ctx, wire.Request{Op: wire.Prepare, Dir: s.dir, Launch: &wire.LaunchParams{
		ID: name, Platform: e.caps.Platform, Cgroups: s.group.Files(), Memory: uint64(key.memory), CPUs: key.cpus,
	}})
	if err != nil {
		return nil, err
	}
	s.sandbox, err = identify(reply.Sandbox)
	return s, err
}

// dropSpare ends a spare and removes what was made for it.
func (e *Engine) dropSpare(s *spare) {
	if s.driver != nil {
		ctx, cancel := context.WithTimeout(context.Background(), killTimeout)
		defer cancel()
		_, _ = s.driver.call(ctx, wire.Request{Op: wire.Discard, Launch: &wire.LaunchParams{Spare: s.name}})
	}
	s.sandbox.kill() // its driver may be another by now
	err := errors.Join(s.group.Kill(killTimeout), s.sandbox.wait(killTimeout), s.group.Remove(), os.RemoveAll(s.dir))
	if err != nil {
		e.log.Error("cannot clear a spare kernel", "name", s.name, "error", err)
	}
}

// dropSpares ends all of them.
func (e *Engine) dropSpares() {
	e.mu.Lock()
	all := e.spares
	e.spares = map[spareKey][]*spare{}
	e.mu.Unlock()
	for _, list := range all {
		for _, s := range list {
			e.dropSpare(s)
		}
	}
}

// clearSpares removes what an engine that was killed left of its spares. Those that
// had become instances are left alone.
func (e *Engine) clearSpares() error {
	used, taken := map[string]bool{}, map[int]bool{}
	for _, id := range e.folders() {
		used[e.groupName(id)] = true
		if r, err := e.loadRecord(id); err == nil {
			taken[r.Sandbox.PID] = true
		}
	}
	dir := filepath.Join(e.dir, spareFolder)
	errs := []error{e.killWhere(func(pid int, args []string) bool {
		if taken[pid] {
			return false
		}
		for _, a := range args {
			if strings.HasPrefix(a, "--bundle="+dir+"/") {
				return true
			}
		}
		return false
	})}
	groups, err := e.groups.List()
	errs = append(errs, err)
	for _, name := range groups {
		if strings.HasPrefix(name, sparePrefix) && !used[name] {
			g := e.groups.Group(name)
			errs = append(errs, g.Kill(killTimeout), g.Remove())
		}
	}
	errs = append(errs, os.RemoveAll(dir))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clear spare kernels of an earlier engine: %w", err)
	}
	return nil
}

// groupName tells the cgroup of an instance.
func (e *Engine) groupName(id string) string {
	b, err := os.ReadFile(filepath.Join(e.instanceDir(id), groupFile))
	if err != nil || !strings.HasPrefix(string(b), sparePrefix) || strings.ContainsRune(string(b), '/') {
		return id
	}
	return string(b)
}

func (e *Engine) group(id string) *cgroup.Group { return e.groups.Group(e.groupName(id)) }

// folders gives the ids of all instances that have a folder.
func (e *Engine) folders() []string {
	entries, err := os.ReadDir(e.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.log.Error("cannot list instances", "error", err)
	}
	var ids []string
	for _, d := range entries {
		if idPattern.MatchString(d.Name()) {
			ids = append(ids, d.Name())
		}
	}
	return ids
}
