package guest

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// lastWords is how long processes get between SIGTERM and SIGKILL.
const lastWords = 2 * time.Second

// LinkDevices makes the links in /dev that programs expect, where they are missing.
func LinkDevices() {
	for link, target := range map[string]string{
		"/dev/fd":     "/proc/self/fd",
		"/dev/stdin":  "/proc/self/fd/0",
		"/dev/stdout": "/proc/self/fd/1",
		"/dev/stderr": "/proc/self/fd/2",
	} {
		_ = os.Symlink(target, link) // there already, or /dev is read-only
	}
}

// Shutdown ends every process, politely first, and all requests.
func (s *Server) Shutdown() {
	s.signalAll(syscall.SIGTERM)
	for end := time.Now().Add(lastWords); s.anyoneLeft() && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	s.signalAll(syscall.SIGKILL)
	_ = s.Close()
}

// signalAll reaches everything in the sandbox if this is its pid 1, else only
// what clients started.
func (s *Server) signalAll(sig syscall.Signal) {
	if os.Getpid() == 1 {
		_ = syscall.Kill(-1, sig) // nobody there: fine
		return
	}
	s.processes.KillAll(sig)
}

func (s *Server) anyoneLeft() bool {
	if os.Getpid() == 1 {
		return !errors.Is(syscall.Kill(-1, 0), syscall.ESRCH)
	}
	return s.processes.Count() > 0
}
