package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/engine"
)

// record is what a later daemon has to know about an instance.
type record struct {
	ID      string    `json:"id"`
	Runtime string    `json:"runtime"` // sha256
	Started time.Time `json:"started"`
	Boot    string    `json:"boot"` // the host's boot id: after a reboot nothing is alive
	Sandbox process   `json:"sandbox"`
	Gofer   process   `json:"gofer"`
	// OOMKills of the group when it began: more of them later mean out of memory.
	OOMKills int64 `json:"oom_kills"`
}

// alive tells whether the instance still runs.
func (r record) alive() bool { return r.Boot == bootID() && r.Sandbox.alive() }

// process names one for ever: a pid is reused, a pid with a start time is not.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks after boot, /proc/<pid>/stat
}

const recordFile = "instance.json"

var bootID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

func (e *Engine) saveRecord(r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	path := filepath.Join(e.instanceDir(r.ID), recordFile)
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	// No fsync: after a power loss no instance is alive.
	return os.Rename(path+".tmp", path)
}

// loadRecord gives a record, engine.ErrNotFound when there is none or it is torn.
func (e *Engine) loadRecord(id string) (record, error) {
	var r record
	if !idPattern.MatchString(id) {
		return r, fmt.Errorf("instance %q: %w", id, engine.ErrNotFound)
	}
	b, err := os.ReadFile(filepath.Join(e.instanceDir(id), recordFile))
	if errors.Is(err, fs.ErrNotExist) {
		return r, fmt.Errorf("instance %s: %w", id, engine.ErrNotFound)
	}
	if err != nil {
		return r, fmt.Errorf("instance %s: %w", id, err)
	}
	if err := json.Unmarshal(b, &r); err != nil || r.ID != id {
		return r, fmt.Errorf("instance %s: %w: its record is torn", id, engine.ErrNotFound)
	}
	return r, nil
}

// identify fills in the start time of a live process.
func identify(pid int) (process, error) {
	start, state, err := procStat(pid)
	if err != nil {
		return process{}, err
	}
	if state == 'Z' || state == 'X' {
		return process{}, fmt.Errorf("process %d has ended", pid)
	}
	return process{pid, start}, nil
}

// open gives a pidfd if the process is still the recorded one, alive or not yet
// reaped.
func (p process) open() (int, error) {
	if p.PID <= 0 {
		return -1, unix.ESRCH
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return -1, err
	}
	// The pidfd is held: what is at this pid now cannot change any more.
	if start, _, err := procStat(p.PID); err != nil || start != p.Start {
		unix.Close(fd)
		return -1, unix.ESRCH
	}
	return fd, nil
}

// alive tells whether the recorded process still runs.
func (p process) alive() bool {
	start, state, err := procStat(p.PID)
	return err == nil && p.PID > 0 && start == p.Start && state != 'Z' && state != 'X'
}

// kill kills the process if it is still the recorded one.
func (p process) kill() {
	fd, err := p.open()
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
}

// wait waits until the process has ended, at most timeout.
func (p process) wait(timeout time.Duration) error {
	fd, err := p.open()
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	deadline := time.Now().Add(timeout)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("process %d has not ended within %s", p.PID, timeout)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left/time.Millisecond)+1)
		if n > 0 {
			return nil
		}
		if err != nil && err != unix.EINTR {
			return err
		}
	}
}

// procStat reads the start time and state of a process.
func procStat(pid int) (start uint64, state byte, err error) {
	fields, err := procStatFields(pid)
	if err != nil {
		return 0, 0, err
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0][0], err
}

// procStatFields gives the fields of /proc/<pid>/stat from the third (state) on.
func procStatFields(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	// The second field is the name in parentheses and may hold anything.
	s := string(b)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(fields) < 50 {
		return nil, fmt.Errorf("process %d: odd stat %q", pid, s)
	}
	return fields, nil
}
