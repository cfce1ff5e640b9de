package e2b

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"github.com/holdfast-run/holdfast/keys"
	"github.com/holdfast-run/holdfast/sandbox"
)

// EnvdVersion is what sandboxes report as the version of their in-sandbox
// services. SDKs turn features on by it; all they know today are on.
const EnvdVersion = "0.7.0"

// clientID fills a field that clients require and no longer use.
const clientID = "holdfast"

// Verifier tells whose key an API key is. keys.Store is one.
type Verifier interface {
	Verify(ctx context.Context, secret string) (keys.Key, error)
}

// NetworkUpdater is a Backend that can change the egress policy of a sandbox
// while it lives.
type NetworkUpdater interface {
	// UpdateNetwork replaces AllowInternet, AllowOut and DenyOut by those of n.
	// AllowPublicTraffic and MaskRequestHost of n are as they were.
	// NotFound, or Conflict when the sandbox is in no state for it.
	UpdateNetwork(ctx context.Context, id string, n sandbox.Network) error
}

// Options configures a Server.
type Options struct {
	Backend sandbox.Backend
	Keys    Verifier
	// Domain is reported to clients, which then address sandboxes as
	// <port>-<id>.<Domain>. "": clients use what they were configured with.
	Domain string
	Log    *slog.Logger // nil: slog.Default()
}

// Server is the http.Handler of the dialect.
type Server struct {
	backend sandbox.Backend
	keys    Verifier
	domain  string
	log     *slog.Logger
	mux     *http.ServeMux
}

// New makes a Server. Options.Backend and Options.Keys are needed.
func New(o Options) *Server {
	s := &Server{backend: o.Backend, keys: o.Keys, domain: o.Domain, log: o.Log, mux: http.NewServeMux()}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.routes()
	return s
}

// call is one authenticated request.
type call struct {
	*http.Request
	space string
}

// handler answers with a reply, or an error that is put on the wire once.
type handler func(w http.ResponseWriter, c call) error

func (s *Server) routes() {
	s.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })

	s.handle("POST /sandboxes", s.create(createV1))
	s.handle("POST /v2/sandboxes", s.create(createV2))
	s.handle("GET /sandboxes", s.listV1)
	s.handle("GET /v2/sandboxes", s.listV2)
	s.handle("GET /sandboxes/metrics", s.metricsOfMany)
	s.handle("GET /sandboxes/{id}", s.get)
	s.handle("DELETE /sandboxes/{id}", s.delete)
	s.handle("GET /sandboxes/{id}/metrics", s.metrics)
	s.handle("GET /sandboxes/{id}/logs", s.logsV1)
	s.handle("GET /v2/sandboxes/{id}/logs", s.logsV2)
	s.handle("POST /sandboxes/{id}/pause", s.pause)
	s.handle("POST /sandboxes/{id}/resume", s.resume)
	s.handle("POST /sandboxes/{id}/connect", s.connect(connectV1))
	s.handle("POST /v2/sandboxes/{id}/connect", s.connect(connectV2))
	s.handle("POST /sandboxes/{id}/timeout", s.timeout)
	s.handle("POST /sandboxes/{id}/refreshes", s.refresh)
	s.handle("PUT /sandboxes/{id}/network", s.network)
	s.handle("POST /sandboxes/{id}/snapshots", s.snapshot)
	s.handle("POST /sandboxes/{id}/fork", s.fork)

	s.handle("GET /snapshots", s.snapshots)
	s.handle("GET /templates", s.templatesV1)
	s.handle("GET /v2/templates", s.templatesV2)
	s.handle("GET /templates/{ref}", s.template)
	s.handle("DELETE /templates/{ref}", s.deleteTemplate)
	s.handle("GET /templates/aliases/{ref}", s.alias)
	s.handle("GET /teams", s.teams)

	for pattern, reason := range absent {
		s.handle(pattern, func(_ http.ResponseWriter, c call) error {
			return sandbox.Errorf(sandbox.Unsupported, c.Method+" "+c.URL.Path, "is not supported: %s", reason)
		})
	}
	s.handle("/", s.noRoute)
}

const (
	noBuilds   = "templates are not built here; import them with `holdfast template import`"
	noPublish  = "templates are private to their space"
	noTags     = "a template's tags are set when it is imported"
	noVolumes  = "there are no volumes yet; files persist in the sandbox itself"
	noSecrets  = "there is no secret store yet; pass envVars"
	noKeys     = "keys are managed on the machine itself"
	noTokens   = "access tokens are obsolete; use an API key"
	noTeamUse  = "metrics are kept per sandbox: GET /sandboxes/{id}/metrics"
	noCluster  = "this is a single machine; see `holdfast status`"
	noAdminAPI = "administration is done on the machine itself with `holdfast`"
)

// absent lists E2B's routes that have no counterpart here, and why.
var absent = map[string]string{
	"POST /templates":               noBuilds,
	"POST /v2/templates":            noBuilds,
	"POST /v3/templates":            noBuilds,
	"POST /templates/{ref}":         noBuilds,
	"/templates/{ref}/{rest...}":    noBuilds, // builds, files, tags
	"/v2/templates/{ref}/{rest...}": noBuilds,
	"PATCH /templates/{ref}":        noPublish,
	"PATCH /v2/templates/{ref}":     noPublish,
	"POST /templates/tags":          noTags,
	"DELETE /templates/tags":        noTags,
	"/volumes":                      noVolumes,
	"/volumes/":                     noVolumes,
	"/volumecontent/":               noVolumes,
	"/secrets":                      noSecrets,
	"/secrets/":                     noSecrets,
	"/api-keys":                     noKeys,
	"/api-keys/":                    noKeys,
	"/access-tokens":                noTokens,
	"/access-tokens/":               noTokens,
	"GET /teams/{team}/metrics":     noTeamUse,
	"GET /teams/{team}/metrics/max": noTeamUse,
	"/nodes":                        noCluster,
	"/nodes/":                       noCluster,
	"/admin/":                       noAdminAPI,
}

func (s *Server) handle(pattern string, h handler) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		key, err := s.authenticate(r)
		if err == nil {
			err = h(w, call{Request: r, space: key.Space})
		}
		if err != nil {
			s.fail(w, r, err)
		}
	})
}

func (s *Server) authenticate(r *http.Request) (keys.Key, error) {
	if k, ok := keys.FromContext(r.Context()); ok {
		return k, nil
	}
	return s.keys.Verify(r.Context(), keys.FromRequest(r))
}

// ServeHTTP answers one request. Any web page may call: what admits a caller is
// the key it sends, never a cookie or where it comes from.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Origin") != "" {
		allowOrigin(w.Header())
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			allowPreflight(w.Header(), r.Header.Get("Access-Control-Request-Headers"))
			w.WriteHeader(http.StatusNoContent)
			return
		}
	}
	s.mux.ServeHTTP(w, r)
}

func allowOrigin(h http.Header) {
	h.Set("Access-Control-Allow-Origin", "*")
	h.Set("Access-Control-Expose-Headers", "X-Next-Token, X-Total-Running, Retry-After")
}

func allowPreflight(h http.Header, headers string) {
	h.Set("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE, OPTIONS")
	h.Set("Access-Control-Allow-Headers", headers)
	h.Set("Access-Control-Max-Age", "7200")
	h.Set("Vary", "Access-Control-Request-Headers")
}

// noRoute tells a wrong method from a wrong path.
func (s *Server) noRoute(w http.ResponseWriter, c call) error {
	var allowed []string
	for _, m := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		probe := &http.Request{Method: m, URL: c.URL, Host: c.Host}
		if _, pattern := s.mux.Handler(probe); pattern != "/" {
			allowed = append(allowed, m)
		}
	}
	if len(allowed) == 0 {
		return &wireError{status: http.StatusNotFound, message: "no route " + c.Method + " " + c.URL.Path}
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return &wireError{
		status:  http.StatusMethodNotAllowed,
		message: c.Method + " " + c.URL.Path + " is not allowed; use " + strings.Join(allowed, " or "),
	}
}

var _ http.Handler = (*Server)(nil)
