package gvisor

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/holdfast-run/holdfast/engine/gvisor/cgroup"
	"github.com/holdfast-run/holdfast/runtimes"
)

// runsc drives one gVisor runtime through its command line.
type runsc struct {
	path     string // the program
	root     string // its state folder
	platform string
}

func (e *Engine) runsc(r runtimes.Runtime) *runsc {
	return &runsc{r.Path, filepath.Join(e.dir, ".runsc"), e.caps.Platform}
}

// flags hold for every command.
//
//   - overlay2=none: the root is an overlayfs of the host already, so files never
//     enter a memory image.
//   - file-access=exclusive: only this instance writes below its root, so it may
//     cache. The share is shared, which is the default for mounts.
//   - allow-suid: without it sudo does not work.
//   - ignore-cgroups: this package places the processes itself.
//   - no raw sockets, no host sockets: the defaults, said aloud.
func (c *runsc) flags(dir string) []string {
	return []string{
		"--root=" + c.root,
		"--platform=" + c.platform,
		"--network=sandbox",
		"--overlay2=none",
		"--file-access=exclusive",
		"--allow-suid",
		"--net-raw=false",
		"--host-uds=none",
		"--ignore-cgroups",
		"--host-settings=ignore",
		"--gofer-network-namespace=new",
		"--panic-log=" + filepath.Join(dir, "panic.log"),
		"--log=" + filepath.Join(dir, "runsc.log"),
		"--log-format=json",
	}
}

// run runs a command about the instance in dir. A process that it leaves behind
// is in group, when one is given, and has guest.log for its output.
func (c *runsc) run(ctx context.Context, dir string, group *cgroup.Group, args ...string) error {
	logFile := filepath.Join(dir, "runsc.log")
	_ = os.Remove(logFile)
	cmd := exec.CommandContext(ctx, c.path, append(c.flags(dir), args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	var out bytes.Buffer
	if group != nil {
		// A pipe would stay open for as long as the instance lives.
		log, err := os.OpenFile(filepath.Join(dir, "guest.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			return err
		}
		defer log.Close()
		cmd.Stdout, cmd.Stderr = log, log
		cmd.Env = append(cmd.Env, "HOLDFAST_CGROUPS="+strings.Join(group.Files(), ":"))
	} else {
		cmd.Stdout, cmd.Stderr = &out, &out
	}
	err := cmd.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if msg := lastError(logFile); msg != "" {
		return fmt.Errorf("runsc %s: %s", args[0], msg)
	}
	if msg := strings.TrimSpace(out.String()); msg != "" {
		return fmt.Errorf("runsc %s: %s", args[0], msg)
	}
	return fmt.Errorf("runsc %s: %w", args[0], err)
}

// lastError gives the last error that a command wrote into its log.
func lastError(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	last := ""
	for line := range strings.Lines(string(b)) {
		var entry struct{ Msg, Level string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Level == "error" {
			last = entry.Msg
		}
	}
	return last
}

// processes gives the pids of the sandbox and the gofer from runsc's own state.
func (c *runsc) processes(id string) (sandbox, gofer int, err error) {
	var state struct {
		GoferPid int `json:"goferPid"`
		Sandbox  struct {
			Pid int `json:"pid"`
		} `json:"sandbox"`
	}
	b, err := os.ReadFile(c.stateFile(id))
	if err != nil {
		return 0, 0, err
	}
	if err := json.Unmarshal(b, &state); err != nil {
		return 0, 0, err
	}
	return state.Sandbox.Pid, state.GoferPid, nil
}

// paused tells whether the instance is stopped as a whole.
func (c *runsc) paused(id string) (bool, error) {
	var state struct {
		Status string `json:"status"`
	}
	b, err := os.ReadFile(c.stateFile(id))
	if err != nil {
		return false, err
	}
	err = json.Unmarshal(b, &state)
	return state.Status == "paused", err
}

func (c *runsc) stateFile(id string) string {
	return filepath.Join(c.root, id+"_sandbox:"+id+".state")
}

// clear removes runsc's own files about an instance.
func (c *runsc) clear(id string) error {
	for _, path := range []string{
		c.stateFile(id),
		filepath.Join(c.root, id+"_sandbox:"+id+".lock"),
		filepath.Join(c.root, "runsc-"+id+".sock"),
	} {
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}
