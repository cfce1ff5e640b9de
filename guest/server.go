// Package guest is the program inside every sandbox: pid 1, processes, files.
// To clients it is E2B's envd; the routes that only the host may call (init,
// prepare, forward) are Holdfast's own.
package guest

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/account"
	"github.com/holdfast-run/holdfast/guest/files"
	"github.com/holdfast-run/holdfast/guest/identity"
	"github.com/holdfast-run/holdfast/guest/process"
	"github.com/holdfast-run/holdfast/guest/proto/filesystempb/filesystempbconnect"
	"github.com/holdfast-run/holdfast/guest/proto/processpb/processpbconnect"
)

// Version is the envd version that the guest is compatible with.
const Version = "0.6.13"

// Port is where the guest listens inside.
const Port = 49983

// maxMessage bounds one RPC message, in bytes.
const maxMessage = 64 << 20

// Config says how to serve.
type Config struct {
	Host   netip.Addr // the only peer that may call the host's routes
	Passwd string     // e.g. /etc/passwd
	Group  string     // e.g. /etc/group
	Etc    string     // where hostname, hosts and machine-id are written, e.g. /etc
	// SetKernel lets init change the kernel's host name and clock: only inside a sandbox.
	SetKernel bool
	Log       *slog.Logger
}

// Server is the guest.
type Server struct {
	config    Config
	accounts  *account.Database
	identity  identity.Store
	processes *process.Service
	files     *files.Service
	http      *http.Server
	cpu       cpuMeter
	namer     namer
}

// New makes a guest that starts its processes through r.
func New(c Config, r *process.Reaper) *Server {
	s := &Server{
		config:   c,
		accounts: account.NewDatabase(c.Passwd, c.Group),
		namer:    namer{etc: c.Etc, kernel: c.SetKernel},
	}
	s.processes = process.NewService(r, &s.identity)
	s.files = files.NewService(s.accounts, &s.identity)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s.http = &http.Server{
		Handler:           s.handler(),
		Protocols:         protocols,
		ReadHeaderTimeout: time.Minute,
		IdleTimeout:       10 * time.Minute,
		ErrorLog:          slog.NewLogLogger(c.Log.Handler(), slog.LevelWarn),
	}
	return s
}

// Serve answers on l until Close.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve guest on %s: %w", l.Addr(), err)
}

// Close ends all requests.
func (s *Server) Close() error { return s.http.Close() }

func (s *Server) handler() http.Handler {
	options := connect.WithHandlerOptions(
		connect.WithReadMaxBytes(maxMessage),
		// Compressed requests are read; answers are not worth compressing next door.
		connect.WithCompressMinBytes(math.MaxInt),
	)
	open := http.NewServeMux()
	rpcPath, rpc := processpbconnect.NewProcessHandler(s.processes, options)
	open.Handle(rpcPath, s.rpc(rpc))
	rpcPath, rpc = filesystempbconnect.NewFilesystemHandler(s.files, options)
	open.Handle(rpcPath, s.rpc(rpc))
	open.HandleFunc("GET /metrics", s.metrics)
	open.HandleFunc("GET /envs", s.envs)
	open.HandleFunc("GET /files", s.files.Download)
	open.HandleFunc("POST /files", s.files.Upload)
	open.HandleFunc("POST /files/compose", s.files.Compose)
	open.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		files.Fail(w, http.StatusNotFound, fmt.Sprintf("no route %s %s", r.Method, r.URL.Path))
	})

	all := http.NewServeMux()
	all.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	all.Handle("/init", s.hostOnly(s.init))
	all.Handle("/prepare", s.hostOnly(s.prepare))
	all.Handle("/forward", s.hostOnly(s.forward))
	all.Handle("/", s.authorised(open))
	return cors(all)
}
