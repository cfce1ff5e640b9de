// Package daemon composes one process from a configuration: journal, engine,
// layers, network, node, the dialects and the gateway, behind one listener and
// one Unix socket. It is the only place that knows all of them.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/config"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Options are what a daemon is told beside its configuration.
type Options struct {
	Version string // of the binary
	GVisor  string // version of the embedded runtime
	Logger  *slog.Logger
	// Ready, if set, is called once requests are served, with the listener's address.
	Ready func(net.Addr)
}

// How long requests may take to finish when the daemon is told to stop.
// Connections into sandboxes and followed histories are cut at once: the
// sandboxes go on, and their clients connect again.
const drainTime = 30 * time.Second

// Run serves until ctx is done, then finishes what is in flight and returns.
// Sandboxes go on running; the next daemon of the data folder adopts them.
func Run(ctx context.Context, cfg *config.Config, o Options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("daemon needs root for mounts, namespaces and cgroups; run it as root, e.g. by sudo")
	}
	if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	lock, err := acquire(filepath.Join(cfg.Data, LockName))
	if err != nil {
		return err
	}
	defer closeInto(&err, "lock", lock.Close)

	listener, err := listen(ctx, cfg.Listen)
	if err != nil {
		return err
	}
	defer listener.Close() // by the server already, unless it never came to serve
	socket, err := listenUnix(ctx, cfg.Socket(), cfg.SocketGroup)
	if err != nil {
		return err
	}
	defer socket.Close()

	p, err := assemble(ctx, cfg, o.Logger)
	if err != nil {
		return err
	}
	defer closeInto(&err, "node", p.close)
	started := time.Now().UTC()
	p.status = func(context.Context) v1.Status {
		return v1.Status{
			Version: o.Version, GVisor: o.GVisor, PID: os.Getpid(), Data: cfg.Data, Config: cfg.File,
			Listen: listener.Addr().String(), Domain: cfg.Domain, StartedAt: started, LocalKey: p.keys.Local(),
		}
	}
	return serve(ctx, p, listener, socket, o)
}

func closeInto(err *error, what string, f func() error) {
	if closeErr := f(); closeErr != nil {
		*err = errors.Join(*err, fmt.Errorf("close %s: %w", what, closeErr))
	}
}

// serve runs both servers until ctx is done.
func serve(ctx context.Context, p *parts, listener, socket net.Listener, o Options) error {
	stopping, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	handler := p.handler(stopping)
	server := func(local bool) *http.Server {
		return &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: 10 * time.Second,
			IdleTimeout:       2 * time.Minute,
			ErrorLog:          slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug),
			BaseContext: func(net.Listener) context.Context {
				ctx := context.WithoutCancel(ctx)
				if local {
					ctx = v1.WithLocal(ctx)
				}
				return ctx
			},
		}
	}
	outer, local := server(false), server(true)
	var g errgroup.Group
	failed, fail := context.WithCancel(ctx)
	defer fail()
	for srv, l := range map[*http.Server]net.Listener{outer: listener, local: socket} {
		g.Go(func() error {
			defer fail()
			if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve %s: %w", l.Addr(), err)
			}
			return nil
		})
	}
	o.Logger.Info("daemon serves", "listen", listener.Addr().String(), "socket", socket.Addr().String(), "version", o.Version)
	if o.Ready != nil {
		o.Ready(listener.Addr())
	}
	<-failed.Done()
	o.Logger.Info("daemon stops; sandboxes go on")
	cut()
	deadline, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	for _, srv := range []*http.Server{outer, local} {
		g.Go(func() error {
			if err := srv.Shutdown(deadline); err != nil {
				return errors.Join(fmt.Errorf("requests did not finish in %v: %w", drainTime, err), srv.Close())
			}
			return nil
		})
	}
	return g.Wait()
}

// listen opens the TCP listener.
func listen(ctx context.Context, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, sandbox.Errorf(sandbox.Conflict, "listen address "+address, "cannot be used: %w", err).
			WithNext("choose another with --listen or HOLDFAST_LISTEN")
	}
	return l, nil
}
