package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// killTimeout bounds the wait for killed processes to be gone.
const killTimeout = 10 * time.Second

// Kill implements engine.Engine.
func (e *Engine) Kill(_ context.Context, id string) error {
	if !idPattern.MatchString(id) {
		return nil // nothing of that name can exist
	}
	if err := e.clear(id); err != nil {
		return fmt.Errorf("kill instance %s: %w", id, err)
	}
	return nil
}

// clear ends whatever is left of an instance, half-started ones included, and
// removes all that the engine made for it. It is idempotent.
func (e *Engine) clear(id string) error {
	in := e.expect(id)
	r, err := e.loadRecord(id)
	if err == nil && r.Boot == bootID() {
		// The sandbox is pid 1 of its pid namespace: the stubs that user code runs
		// in die with it.
		r.Sandbox.kill()
		r.Gofer.kill()
	}
	group := e.group(id)
	errs := []error{group.Kill(killTimeout)}
	if err != nil {
		// No record: an earlier daemon died while starting it, perhaps before its
		// processes were in the cgroup.
		errs = append(errs, e.killStrays(id))
	} else if r.Boot == bootID() {
		errs = append(errs, r.Sandbox.wait(killTimeout), r.Gofer.wait(killTimeout))
	}
	if in != nil {
		select {
		case <-in.ended:
		case <-e.closed:
		case <-time.After(killTimeout):
			errs = append(errs, errors.New("the end of its sandbox process was not noticed"))
		}
		e.forget(id)
	}
	if err := errors.Join(errs...); err != nil {
		return err // its record must stay, so that another try finds the processes
	}
	return errors.Join(group.Remove(), os.RemoveAll(e.instanceDir(id)))
}

// killStrays finds processes of an instance by their command line, which names
// its folder.
func (e *Engine) killStrays(id string) error {
	if _, err := os.Stat(e.instanceDir(id)); os.IsNotExist(err) {
		return nil
	}
	bundle := "--bundle=" + e.instanceDir(id)
	return e.killWhere(func(_ int, args []string) bool { return slices.Contains(args, bundle) })
}

// killWhere kills the processes that match, by pid and command line, and waits for
// their end.
func (e *Engine) killWhere(match func(pid int, args []string) bool) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range entries {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", d.Name(), "cmdline"))
		if err != nil || !match(pid, strings.Split(string(b), "\x00")) {
			continue
		}
		p, err := identify(pid)
		if err != nil {
			continue
		}
		p.kill()
		errs = append(errs, p.wait(killTimeout))
	}
	return errors.Join(errs...)
}
