package process

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// errGone says that a process has ended and been reaped.
var errGone = errors.New("process has ended")

// Reaper starts children and collects every dead process of this one: its own
// children and, for pid 1, the orphans of the whole sandbox.
//
// A wait for any child would steal the exit status that somebody else waits for,
// so there is exactly one waiter, and everything that starts a process goes
// through Start. It first looks at a dead process without collecting it, and
// collects under gate's write lock. A start holds the read lock from fork until
// the child is registered, so no child can be reaped before it is known; a signal
// holds it too, so no signal can meet a pid that was given to somebody else.
type Reaper struct {
	gate     sync.RWMutex
	mu       sync.Mutex
	children map[int]chan syscall.WaitStatus
	stop     chan struct{}
	done     chan struct{}
}

// NewReaper begins to reap. There must be one per process, and no other waiter.
func NewReaper() *Reaper {
	// Outside of a sandbox (tests) orphans come to us only if we ask.
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
	r := &Reaper{
		children: map[int]chan syscall.WaitStatus{},
		stop:     make(chan struct{}),
		done:     make(chan struct{}),
	}
	died := make(chan os.Signal, 1)
	signal.Notify(died, syscall.SIGCHLD)
	go func() {
		defer close(r.done)
		defer signal.Stop(died)
		for {
			r.reap()
			select {
			case <-died:
			case <-r.stop:
				return
			}
		}
	}()
	return r
}

// Close stops reaping.
func (r *Reaper) Close() {
	close(r.stop)
	<-r.done
}

// Start runs argv0 and gives its pid and a channel that delivers its end once.
func (r *Reaper) Start(argv0 string, argv []string, attr *syscall.ProcAttr) (int, <-chan syscall.WaitStatus, error) {
	r.gate.RLock()
	defer r.gate.RUnlock()
	pid, err := syscall.ForkExec(argv0, argv, attr)
	if err != nil {
		return 0, nil, err
	}
	exit := make(chan syscall.WaitStatus, 1)
	r.mu.Lock()
	r.children[pid] = exit
	r.mu.Unlock()
	return pid, exit, nil
}

// Signal sends sig to the process group that the child pid leads. errGone when
// the child has ended.
func (r *Reaper) Signal(pid int, sig syscall.Signal) error {
	r.gate.RLock()
	defer r.gate.RUnlock()
	r.mu.Lock()
	_, alive := r.children[pid]
	r.mu.Unlock()
	if !alive {
		return errGone
	}
	return syscall.Kill(-pid, sig)
}

func (r *Reaper) reap() {
	for {
		r.gate.Lock()
		pid := nextDead()
		if pid == 0 {
			r.gate.Unlock()
			return
		}
		var status syscall.WaitStatus
		got, err := wait4(pid, &status)
		r.mu.Lock()
		exit := r.children[pid]
		delete(r.children, pid)
		r.mu.Unlock()
		r.gate.Unlock()
		if exit != nil && err == nil && got == pid {
			exit <- status
		}
	}
}

// nextDead is the pid of a process that can be collected, or 0.
func nextDead() int {
	var info unix.Siginfo
	for {
		info = unix.Siginfo{}
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == nil {
			return int(siginfoPID(&info))
		}
		if !errors.Is(err, unix.EINTR) {
			return 0
		}
	}
}

func wait4(pid int, status *syscall.WaitStatus) (int, error) {
	for {
		got, err := syscall.Wait4(pid, status, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			return got, err
		}
	}
}
