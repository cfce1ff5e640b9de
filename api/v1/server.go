package v1

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// Options compose the handler. Logger nil discards.
type Options struct {
	Backend sandbox.Backend // with its optional interfaces
	Keys    Keys
	// Status gives what the daemon knows of itself; the node's part is added.
	Status func(ctx context.Context) Status
	// Checks looks at the machine, beside what the backend's Doctor finds. May be nil.
	Checks func(ctx context.Context) []sandbox.Finding
	Logger *slog.Logger
}

// Keys opens the API to remote callers and manages what opens it.
type Keys interface {
	// Authenticate gives the space that a key belongs to, or an Authentication error.
	Authenticate(ctx context.Context, key string) (space string, err error)
	List(ctx context.Context, space string) ([]Key, error)
	Create(ctx context.Context, space, name string) (Key, error)
	Delete(ctx context.Context, space, id string) error
}

type localKey struct{}

// WithLocal marks requests that came over the machine's own socket: the file
// system has authenticated them. The daemon sets it on that listener only.
func WithLocal(ctx context.Context) context.Context {
	return context.WithValue(ctx, localKey{}, true)
}

func isLocal(r *http.Request) bool {
	local, _ := r.Context().Value(localKey{}).(bool)
	return local
}

// maxBody bounds JSON requests in bytes. Archives are not bound here.
const maxBody = 1 << 20

type server struct {
	Options
	mu    sync.Mutex
	names map[string]bool // names of sandboxes being created
}

// call is one authenticated request.
type call struct {
	*http.Request
	space string
	local bool
}

// New gives the handler for everything under /v1/.
func New(o Options) http.Handler {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &server{Options: o, names: map[string]bool{}}
	mux := http.NewServeMux()
	route := func(pattern string, h func(http.ResponseWriter, *call) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			c, err := s.authenticate(r)
			if err == nil {
				err = h(w, c)
			}
			if err != nil {
				s.fail(w, r, err)
			}
		})
	}
	mux.HandleFunc("GET /v1/health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	route("GET /v1/status", s.status)
	route("GET /v1/sandboxes", s.listSandboxes)
	route("POST /v1/sandboxes", s.createSandbox)
	route("GET /v1/sandboxes/{ref}", s.getSandbox)
	route("DELETE /v1/sandboxes/{ref}", s.deleteSandbox)
	route("GET /v1/sandboxes/{ref}/inspect", s.inspectSandbox)
	route("GET /v1/sandboxes/{ref}/events", s.events)
	route("POST /v1/sandboxes/{ref}/pause", s.pauseSandbox)
	route("POST /v1/sandboxes/{ref}/resume", s.connectSandbox(true))
	route("POST /v1/sandboxes/{ref}/connect", s.connectSandbox(false))
	route("POST /v1/sandboxes/{ref}/timeout", s.setTimeout)
	route("POST /v1/sandboxes/{ref}/snapshots", s.snapshotSandbox)
	route("POST /v1/sandboxes/{ref}/fork", s.forkSandbox)
	route("POST /v1/sandboxes/{ref}/rollback", s.rollbackSandbox)
	for path, snapshots := range map[string]bool{"/v1/templates": false, "/v1/snapshots": true} {
		route("GET "+path, s.listTemplates(snapshots))
		route("GET "+path+"/{ref}", s.getTemplate(snapshots))
		route("DELETE "+path+"/{ref}", s.deleteTemplate(snapshots))
	}
	route("POST /v1/templates", s.importTemplate)
	route("GET /v1/keys", localOnly(s.listKeys))
	route("POST /v1/keys", localOnly(s.createKey))
	route("DELETE /v1/keys/{id}", localOnly(s.deleteKey))
	route("GET /v1/doctor", localOnly(s.doctor(false)))
	route("POST /v1/doctor/repair", localOnly(s.doctor(true)))
	route("/v1/", func(_ http.ResponseWriter, c *call) error {
		return sandbox.Errorf(sandbox.NotFound, c.Method+" "+c.URL.Path, "is not a route of this API").
			WithNext("see `holdfast --help` or the package documentation of api/v1")
	})
	return mux
}

func (s *server) authenticate(r *http.Request) (*call, error) {
	if isLocal(r) {
		return &call{Request: r, space: sandbox.DefaultSpace, local: true}, nil
	}
	key := r.Header.Get("X-API-Key")
	if key == "" {
		key, _ = strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	}
	if key == "" {
		return nil, sandbox.Errorf(sandbox.Authentication, "API key", "is missing").
			WithNext("set HOLDFAST_API_KEY, or header X-API-Key; on the machine itself `holdfast env` shows one")
	}
	space, err := s.Keys.Authenticate(r.Context(), key)
	if err != nil {
		return nil, err
	}
	return &call{Request: r, space: space}, nil
}

// localOnly guards what would let the holder of a sandbox key become the
// operator: keys, repairs, paths on the node.
func localOnly(h func(http.ResponseWriter, *call) error) func(http.ResponseWriter, *call) error {
	return func(w http.ResponseWriter, c *call) error {
		if !c.local {
			return forbidden(c.Method + " " + c.URL.Path)
		}
		return h(w, c)
	}
}

func forbidden(thing string) error {
	return statusError{sandbox.Errorf(sandbox.Authentication, thing, "is allowed only over the machine's own socket").
		WithNext("run the command on the machine where the daemon runs, without HOLDFAST_URL"), http.StatusForbidden}
}

// decode reads a JSON body; an empty one leaves v as it is.
func decode(r *http.Request, v any) error {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return sandbox.Errorf(sandbox.InvalidRequest, "request body", "cannot be read: %w", err)
	}
	if len(body) > maxBody {
		return statusError{sandbox.Errorf(sandbox.InvalidRequest, "request body", "is larger than %d bytes", maxBody), http.StatusRequestEntityTooLarge}
	}
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	err = d.Decode(v)
	if err == nil && d.More() {
		err = errors.New("more than one JSON value")
	}
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field != "":
		return sandbox.Errorf(sandbox.InvalidRequest, "field "+wrong.Field, "must be %s, not %s", jsonType(wrong.Type.Kind().String()), wrong.Value)
	case err != nil:
		if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
			return sandbox.Errorf(sandbox.InvalidRequest, "field "+strings.Trim(name, `"`), "is not known")
		}
		return sandbox.Errorf(sandbox.InvalidRequest, "request body", "is not the JSON expected: %w", err)
	}
	return nil
}

func jsonType(kind string) string {
	switch {
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "a whole number"
	case strings.HasPrefix(kind, "float"):
		return "a number"
	case kind == "bool":
		return "true or false"
	case kind == "slice":
		return "a list"
	case kind == "map", kind == "struct":
		return "an object"
	}
	return "a " + kind
}

// timeout checks a number of seconds; 0 gives the default.
func timeout(field string, s float64, def time.Duration) (time.Duration, error) {
	switch {
	case s == 0:
		return def, nil
	case s < 0 || math.IsNaN(s):
		return 0, sandbox.Errorf(sandbox.InvalidRequest, "field "+field, "must be greater than 0, not %v", s)
	case s > sandbox.MaxTimeout.Seconds():
		return 0, sandbox.Errorf(sandbox.InvalidRequest, "field "+field, "must be at most %v (%v hours)", sandbox.MaxTimeout.Seconds(), sandbox.MaxTimeout.Hours())
	}
	return seconds(s), nil
}

// ability gives the backend as one of its optional interfaces.
func ability[T any](s *server, what string) (T, error) {
	t, ok := s.Backend.(T)
	if !ok {
		return t, sandbox.Errorf(sandbox.Unsupported, what, "cannot be done by this daemon's backend")
	}
	return t, nil
}

func (s *server) status(w http.ResponseWriter, c *call) error {
	st := s.Status(c.Context())
	if !c.local {
		st.PID, st.Data, st.Config, st.LocalKey = 0, "", "", ""
	}
	if n, ok := s.Backend.(sandbox.Reporter); ok {
		ns, err := n.Status(c.Context())
		if err != nil {
			return fmt.Errorf("status of the node: %w", err)
		}
		st.Node = fromNodeStatus(&ns)
	}
	reply(w, http.StatusOK, st)
	return nil
}
