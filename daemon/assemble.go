package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/holdfast-run/holdfast/api/e2b"
	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/config"
	"github.com/holdfast-run/holdfast/doctor"
	"github.com/holdfast-run/holdfast/engine/gvisor"
	"github.com/holdfast-run/holdfast/gateway"
	"github.com/holdfast-run/holdfast/keys"
	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/network"
	"github.com/holdfast-run/holdfast/node"
	"github.com/holdfast-run/holdfast/node/journal"
	"github.com/holdfast-run/holdfast/runtimes"
	"github.com/holdfast-run/holdfast/sandbox"
)

// subnetKey is where the journal remembers the network that was chosen once:
// addresses must not move while sandboxes live.
const subnetKey = "network.subnet"

// parts is everything a daemon is made of.
type parts struct {
	cfg     *config.Config
	log     *slog.Logger
	node    *node.Node
	engine  *gvisor.Engine
	network *network.Manager
	gateway *gateway.Gateway
	keys    *keys.Store
	status  func(context.Context) v1.Status
	closers []func() error // in the order of opening
}

// assemble opens all parts, bottom up. The node reconciles while it opens.
func assemble(ctx context.Context, cfg *config.Config, log *slog.Logger) (p *parts, err error) {
	p = &parts{cfg: cfg, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	j, err := journal.Open(ctx, filepath.Join(cfg.Data, "node.db"))
	if err != nil {
		return p, err
	}
	p.closers = append(p.closers, j.Close)
	keyDir := filepath.Join(cfg.Data, "keys")
	if err := os.MkdirAll(keyDir, 0o700); err != nil {
		return p, fmt.Errorf("key folder: %w", err)
	}
	if p.keys, err = keys.Open(ctx, keyDir, j.DB()); err != nil {
		return p, err
	}
	seed, err := keys.OpenSeed(keyDir)
	if err != nil {
		return p, err
	}
	store, err := runtimes.Open(filepath.Join(cfg.Data, "runtimes"))
	if err != nil {
		return p, err
	}
	files, err := layers.Open(filepath.Join(cfg.Data, "layers"))
	if err != nil {
		return p, err
	}
	program, err := store.Guest(ctx)
	if err != nil {
		return p, err
	}
	guestLayer, err := files.Guest(ctx, program.Path)
	if err != nil {
		return p, err
	}
	instance := network.InstanceOf(cfg.Data)
	eng, err := gvisor.New(ctx, gvisor.Options{
		Dir: filepath.Join(cfg.Data, "engine"), Runtimes: store, CgroupParent: "holdfast-" + instance,
		Platform: cfg.Platform, Logger: log.With("part", "engine"),
	})
	if err != nil {
		return p, err
	}
	p.engine = eng
	p.closers = append(p.closers, eng.Close)
	if err := p.openNetwork(ctx, j, instance); err != nil {
		return p, err
	}
	imports := filepath.Join(cfg.Data, "imports")
	if err := os.RemoveAll(imports); err != nil { // what a daemon that was killed was reading
		return p, fmt.Errorf("unfinished imports: %w", err)
	}
	var gate atomic.Pointer[gateway.Gateway] // the node is open before the gateway to it
	p.node, err = node.Open(ctx, node.Options{
		Data: cfg.Data, Journal: j, Engine: eng, Files: files, Network: p.network, Guest: newGuests(), Tokens: tokens{seed},
		GuestLayer: guestLayer.ID, GuestPath: layers.GuestPath,
		Importer: &importer{files: files, base: cfg.Templates.Base, dir: imports},
		Limits: node.Limits{
			Sandboxes: cfg.Limits.Sandboxes, CPUs: cfg.Limits.CPUs, MemoryMB: cfg.Limits.MemoryMB, DiskMB: cfg.Limits.DiskMB,
		},
		Pool: cfg.Pool, Logger: log.With("part", "node"),
		Ended: func(id string) {
			if g := gate.Load(); g != nil {
				g.Disconnect(id)
			}
		},
	})
	if err != nil {
		return p, err
	}
	p.closers = append(p.closers, p.node.Close)
	p.gateway = gateway.New(gateway.Options{Router: p.node, Domains: domains(cfg.Domain), Dialer: dialer{}, Log: log.With("part", "gateway")})
	gate.Store(p.gateway)
	p.closers = append(p.closers, func() error { p.gateway.Close(); return nil })
	return p, nil
}

// openNetwork takes the configured subnet, or the one chosen before.
func (p *parts) openNetwork(ctx context.Context, j *journal.Journal, instance string) error {
	subnet := p.cfg.Network.Subnet
	if !subnet.IsValid() {
		saved, err := j.Meta(ctx, subnetKey)
		if err != nil && !errors.Is(err, journal.ErrNotFound) {
			return err
		}
		if saved != "" {
			if subnet, err = netip.ParsePrefix(saved); err != nil {
				return fmt.Errorf("remembered %s: %w", subnetKey, err)
			}
		}
	}
	m, err := network.New(network.Options{Instance: instance, Subnet: subnet, Upstream: p.cfg.Network.DNS, Logger: p.log.With("part", "network")})
	if err != nil {
		return err
	}
	p.network = m
	p.closers = append(p.closers, m.Close)
	return j.SetMeta(ctx, subnetKey, m.Subnet().String())
}

func domains(domain string) []string {
	if domain == "" {
		return nil
	}
	return []string{domain}
}

// close closes everything in the opposite order. Sandboxes go on.
func (p *parts) close() error {
	var errs []error
	for i := len(p.closers) - 1; i >= 0; i-- {
		errs = append(errs, p.closers[i]())
	}
	p.closers = nil
	return errors.Join(errs...)
}

// handler leads a request to a sandbox, to our own API or to E2B's. stopping
// ends what would otherwise last as long as its client likes.
func (p *parts) handler(stopping context.Context) http.Handler {
	own := v1.New(v1.Options{
		Backend: p.node, Keys: keyring{p.keys}, Status: p.status, Logger: p.log.With("part", "v1"),
		Checks: func(context.Context) []sandbox.Finding {
			findings := doctor.This(p.cfg.Data).Check()
			for _, problem := range p.network.Check() {
				findings = append(findings, sandbox.Finding{Check: "network", Severity: sandbox.Problem, Reason: problem.What, Next: problem.Next})
			}
			return findings
		},
	})
	dialect := e2b.New(e2b.Options{Backend: p.node, Keys: p.keys, Domain: p.cfg.Domain, Log: p.log.With("part", "e2b")})
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			if r.URL.Query().Get("follow") != "" {
				var cancel context.CancelFunc
				r, cancel = endWith(stopping, r)
				defer cancel()
			}
			own.ServeHTTP(w, r)
			return
		}
		dialect.ServeHTTP(w, r)
	})
	traffic := p.gateway.Wrap(api)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _, ok, _ := p.gateway.Match(r); ok {
			var cancel context.CancelFunc
			r, cancel = endWith(stopping, r)
			defer cancel()
		}
		traffic.ServeHTTP(w, r)
	})
}

// endWith gives the request a context that also ends when stopping does.
func endWith(stopping context.Context, r *http.Request) (*http.Request, context.CancelFunc) {
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(stopping, cancel)
	return r.WithContext(ctx), func() { stop(); cancel() }
}

// tokens derives a sandbox's tokens for the node.
type tokens struct{ seed keys.Seed }

func (t tokens) Access(id string) string  { return t.seed.AccessToken(id) }
func (t tokens) Traffic(id string) string { return t.seed.TrafficToken(id) }

// keyring shows the key store to api/v1.
type keyring struct{ store *keys.Store }

func (k keyring) Authenticate(ctx context.Context, secret string) (string, error) {
	key, err := k.store.Verify(ctx, secret)
	return key.Space, err
}

func (k keyring) List(ctx context.Context, space string) ([]v1.Key, error) {
	list, err := k.store.List(ctx, space)
	if err != nil {
		return nil, err
	}
	out := make([]v1.Key, len(list))
	for i, key := range list {
		out[i] = wireKey(key)
	}
	return out, nil
}

func (k keyring) Create(ctx context.Context, space, name string) (v1.Key, error) {
	key, secret, err := k.store.Create(ctx, space, name)
	if err != nil {
		return v1.Key{}, err
	}
	out := wireKey(key)
	out.Secret = secret
	return out, nil
}

func (k keyring) Delete(ctx context.Context, space, id string) error {
	return k.store.Delete(ctx, space, id)
}

func wireKey(k keys.Key) v1.Key {
	at := func(t time.Time) time.Time {
		if t.IsZero() {
			return t
		}
		return t.UTC()
	}
	return v1.Key{
		ID: k.ID, Name: k.Name, Mask: keys.Prefix + k.MaskPrefix + "…" + k.MaskSuffix,
		CreatedAt: at(k.CreatedAt), LastUsedAt: at(k.LastUsedAt),
	}
}

var (
	_ v1.Keys     = keyring{}
	_ node.Tokens = tokens{}
)
