package guest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/guest/files"
	"github.com/holdfast-run/holdfast/guest/identity"
)

// InitRequest is the body of POST /init: who this sandbox is from now on. It
// replaces everything an earlier one said.
type InitRequest struct {
	EnvVars        map[string]string `json:"envVars,omitempty"`
	AccessToken    string            `json:"accessToken,omitempty"` // "" leaves the services open
	Timestamp      *time.Time        `json:"timestamp,omitempty"`
	DefaultUser    string            `json:"defaultUser,omitempty"` // "" is root
	DefaultWorkdir string            `json:"defaultWorkdir,omitempty"`
	Hostname       string            `json:"hostname,omitempty"`
	// MachineID is 32 hex digits; "" derives one from Hostname, so that a resumed
	// sandbox keeps its id and a fork gets its own.
	MachineID    string          `json:"machineId,omitempty"`
	VolumeMounts json.RawMessage `json:"volumeMounts,omitempty"` // accepted, not used
}

// maxInitBody bounds the body of init, in bytes.
const maxInitBody = 4 << 20

// clockTolerance is how wrong the clock may be before init sets it.
const clockTolerance = time.Second

// init gives the sandbox its identity. Doing it again is harmless.
func (s *Server) init(w http.ResponseWriter, r *http.Request) {
	var req InitRequest
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxInitBody))
	dec.DisallowUnknownFields() // a misspelt accessToken must not leave the services open
	if err := dec.Decode(&req); err != nil {
		files.Fail(w, http.StatusBadRequest, "init body cannot be read: "+err.Error())
		return
	}
	if err := s.namer.check(req.Hostname, req.MachineID); err != nil {
		files.Fail(w, http.StatusBadRequest, err.Error())
		return
	}
	if req.Timestamp != nil {
		s.setClock(*req.Timestamp)
	}
	// A sandbox whose /etc is read-only works all the same.
	if err := s.namer.apply(req.Hostname, req.MachineID); err != nil {
		s.config.Log.Warn("host name not fully set", "error", err)
	}
	if req.DefaultUser == "" {
		req.DefaultUser = "root"
	}
	s.identity.Set(identity.Identity{
		Token:   req.AccessToken,
		Env:     req.EnvVars,
		User:    req.DefaultUser,
		Workdir: req.DefaultWorkdir,
	})
	w.WriteHeader(http.StatusNoContent)
}

// setClock corrects a clock that is clearly wrong. Where that is not permitted
// the runtime keeps the time, and it is right.
func (s *Server) setClock(now time.Time) {
	if !s.config.SetKernel || time.Since(now).Abs() <= clockTolerance {
		return
	}
	ts := unix.NsecToTimespec(now.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		s.config.Log.Debug("clock not set", "error", err)
	}
}

// prepare makes ready for a memory image: it forgets the identity, lets go of
// idle connections and memory, and writes files out. Afterwards the guest serves
// nothing until the next init, whether the image was made or not.
//
// A token must not be written to disk. It is in the identity, in headers of past
// requests and in read buffers of past connections: all of that is garbage now,
// and with GODEBUG=clobberfree=1, which main sets, the collector overwrites
// garbage. Two collections, because pools keep their buffers for one.
func (s *Server) prepare(w http.ResponseWriter, _ *http.Request) {
	s.identity.Clear()
	s.http.SetKeepAlivesEnabled(false) // closes those that idle now
	s.http.SetKeepAlivesEnabled(true)
	syscall.Sync()
	answer := func() { w.WriteHeader(http.StatusNoContent) }
	if conn, buffered, err := http.NewResponseController(w).Hijack(); err == nil {
		defer conn.Close()
		wipe(buffered.Reader)
		answer = func() { _, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n") }
	}
	runtime.GC()
	debug.FreeOSMemory()
	answer()
}

// wipe overwrites the buffer of this very request's connection, which an earlier
// connection may have used.
func wipe(r *bufio.Reader) {
	r.Reset(zeros{})
	_, _ = r.Peek(r.Size())
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

func (s *Server) envs(w http.ResponseWriter, _ *http.Request) {
	env := s.identity.Env()
	if env == nil {
		env = map[string]string{}
	}
	reply(w, env)
}

func reply(w http.ResponseWriter, body any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(body); err != nil {
		panic(fmt.Errorf("answer: %w", http.ErrAbortHandler))
	}
}
