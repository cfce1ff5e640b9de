package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/holdfast-run/holdfast/config"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Withdraw takes everything that a stopped daemon keeps alive off the machine:
// processes, mounts, namespaces, links, firewall rules and control groups. What
// runs is paused first; nothing but the data folder stays, and the next daemon
// of it finds all sandboxes as after a reboot.
func Withdraw(ctx context.Context, cfg *config.Config, o Options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("pausing sandboxes without their daemon needs root; run it as root, e.g. by sudo")
	}
	if _, err := os.Stat(cfg.Data); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	lock, err := acquire(filepath.Join(cfg.Data, LockName))
	if err != nil {
		return err
	}
	defer closeInto(&err, "lock", lock.Close)
	quiet := *cfg
	quiet.Pool = maps.Clone(cfg.Pool)
	clear(quiet.Pool) // what was pooled is removed, and not made anew
	p, err := assemble(ctx, &quiet, o.Logger)
	if err != nil {
		return err
	}
	defer closeInto(&err, "node", p.close)
	if err := p.pauseAll(ctx); err != nil {
		return err
	}
	if err := p.node.Close(); err != nil {
		return fmt.Errorf("close node: %w", err)
	}
	return errors.Join(p.network.Destroy(ctx), p.engine.Destroy())
}

// pauseAll pauses what runs, one after the other. All are tried.
func (p *parts) pauseAll(ctx context.Context) error {
	var errs []error
	o := sandbox.ListOptions{States: []sandbox.State{sandbox.Running}}
	for {
		page, err := p.node.List(ctx, o)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for i := range page.Sandboxes {
			errs = append(errs, p.node.Pause(ctx, page.Sandboxes[i].ID, sandbox.PauseOptions{}))
		}
		if page.Next == nil {
			return errors.Join(errs...)
		}
		o.After = *page.Next
	}
}
