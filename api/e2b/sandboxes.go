package e2b

import (
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

var idPattern = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

// sandboxID is the id in the path; older clients append "-<clientID>".
func (c call) sandboxID() string {
	id, _, _ := strings.Cut(c.PathValue("id"), "-")
	return id
}

// own gives the sandbox in the path if it is the caller's. Whose it is not
// learns nothing about it.
func (s *Server) own(c call) (*sandbox.Sandbox, error) {
	id := c.sandboxID()
	if !idPattern.MatchString(id) {
		return nil, noSandbox(c.PathValue("id"))
	}
	sb, err := s.backend.Get(c.Context(), id)
	if err != nil {
		return nil, c.gone(err)
	}
	if sb.Space != c.space {
		return nil, noSandbox(id)
	}
	return sb, nil
}

// gone turns a backend's NotFound of the sandbox in the path into the
// protocol's words; it may have been deleted a moment ago.
func (c call) gone(err error) error {
	if k := sandbox.KindOf(err); k == sandbox.NotFound || k == sandbox.Terminal {
		return noSandbox(c.sandboxID())
	}
	return err
}

func (s *Server) get(w http.ResponseWriter, c call) error {
	sb, err := s.own(c)
	if err != nil {
		return err
	}
	if sb.State == sandbox.Deleting {
		return noSandbox(sb.ID)
	}
	return reply(w, http.StatusOK, s.detail(sb))
}

func (s *Server) delete(w http.ResponseWriter, c call) error {
	sb, err := s.own(c)
	if err != nil {
		return err
	}
	if err := s.backend.Delete(c.Context(), sb.ID); err != nil {
		return c.gone(err)
	}
	return noContent(w)
}

func (s *Server) pause(w http.ResponseWriter, c call) error {
	p, ok := s.backend.(sandbox.Pauser)
	if !ok {
		return unsupported("pausing")
	}
	body, err := readObject(w, c.Request, false)
	if err != nil {
		return err
	}
	o := sandbox.PauseOptions{FilesOnly: !body.bool("memory", true)}
	if err := body.end(false); err != nil {
		return err
	}
	sb, err := s.own(c)
	if err != nil {
		return err
	}
	if err := p.Pause(c.Context(), sb.ID, o); err != nil {
		return c.gone(err)
	}
	return noContent(w)
}

// resume is the old way: it sets the deadline, and a running sandbox is a
// conflict.
func (s *Server) resume(w http.ResponseWriter, c call) error {
	body, err := readObject(w, c.Request, false)
	if err != nil {
		return err
	}
	seconds := body.int("timeout", createV1.timeout)
	o := sandbox.ConnectOptions{SetDeadline: true, FilesOnly: !body.bool("memory", true)}
	body.bool("autoPause", false) // what happens at the deadline was settled at create
	if err := body.end(false); err != nil {
		return err
	}
	if o.Timeout, err = timeoutOf(seconds); err != nil {
		return err
	}
	sb, err := s.own(c)
	if err != nil {
		return err
	}
	if sb.State == sandbox.Running {
		return &wireError{http.StatusConflict, "Sandbox " + sb.ID + " is already running"}
	}
	sb, _, err = s.backend.Connect(c.Context(), sb.ID, o)
	if err != nil {
		return c.gone(err)
	}
	return reply(w, http.StatusCreated, s.session(sb))
}

// connectDefaults is what the versions of the connect route differ in.
type connectDefaults struct {
	timeout int // seconds; 0: the caller must say
}

var (
	connectV1 = connectDefaults{}
	connectV2 = connectDefaults{timeout: 300}
)

func (s *Server) connect(d connectDefaults) handler {
	return func(w http.ResponseWriter, c call) error {
		needed := d.timeout == 0
		body, err := readObject(w, c.Request, needed)
		if err != nil {
			return err
		}
		if needed && !body.has("timeout") {
			return invalid("field \"timeout\" is needed, in seconds")
		}
		seconds := body.int("timeout", d.timeout)
		o := sandbox.ConnectOptions{FilesOnly: !body.bool("memory", true)}
		if err := body.end(false); err != nil {
			return err
		}
		if o.Timeout, err = timeoutOf(seconds); err != nil {
			return err
		}
		sb, err := s.own(c)
		if err != nil {
			return err
		}
		sb, resumed, err := s.backend.Connect(c.Context(), sb.ID, o)
		if err != nil {
			return c.gone(err)
		}
		status := http.StatusOK
		if resumed {
			status = http.StatusCreated
		}
		return reply(w, status, s.session(sb))
	}
}

func (s *Server) timeout(w http.ResponseWriter, c call) error {
	body, err := readObject(w, c.Request, true)
	if err != nil {
		return err
	}
	if !body.has("timeout") {
		return invalid("field \"timeout\" is needed, in seconds")
	}
	seconds := body.int("timeout", 0)
	if err := body.end(false); err != nil {
		return err
	}
	d, err := deadlineOf(seconds)
	if err != nil {
		return err
	}
	sb, err := s.own(c)
	if err != nil {
		return err
	}
	if err := s.backend.SetTimeout(c.Context(), sb.ID, d); err != nil {
		return c.gone(err)
	}
	return noContent(w)
}

// maxRefresh bounds POST refreshes, seconds.
const maxRefresh = 3600

func (s *Server) refresh(w http.ResponseWriter, c call) error {
	body, err := readObject(w, c.Request, false)
	if err != nil {
		return err
	}
	seconds := body.int("duration", createV1.timeout)
	if err := body.end(false); err != nil {
		return err
	}
	if seconds < 0 || seconds > maxRefresh {
		return invalid("field \"duration\" must be from 0 to %d seconds, got %d", maxRefresh, seconds)
	}
	sb, err := s.own(c)
	if err != nil {
		return err
	}
	if err := s.backend.Extend(c.Context(), sb.ID, time.Duration(seconds)*time.Second); err != nil {
		return c.gone(err)
	}
	return noContent(w)
}
