package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/config"
	"github.com/holdfast-run/holdfast/daemon"
)

// stopPatience is how long a daemon may take to stop: it finishes what it does.
const stopPatience = time.Minute

func (a *app) down() *cobra.Command {
	var sandboxes bool
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the daemon; sandboxes go on",
		Long: `Stop the daemon. Sandboxes go on running, and the next "holdfast up" takes them
over; their timeouts wait until then.

With --sandboxes they are paused first, and nothing of them stays on the machine
but the data folder: no process, mount, namespace, link or firewall rule.`,
		Example: "  holdfast down\n  holdfast down --sandboxes",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&sandboxes, "sandboxes", false, "pause all running sandboxes, and take everything off the machine")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.configure(cmd)
		if err != nil {
			return err
		}
		cfg.URL = "" // only this machine's daemon can be stopped
		pid, err := daemon.Holder(cfg.Data)
		if err != nil {
			return err
		}
		if pid == 0 {
			fmt.Fprintf(a.out, "no daemon runs on %s\n", cfg.Data)
			return a.withdraw(cmd.Context(), cfg, sandboxes)
		}
		if sandboxes {
			if err := a.pauseAll(cmd.Context(), cfg); err != nil {
				return err
			}
		}
		p := a.progress("stopping")
		err = stop(cmd.Context(), cfg, pid)
		p.Done()
		if err != nil {
			return err
		}
		fmt.Fprintf(a.out, "daemon stopped (pid %d)\n", pid)
		return a.withdraw(cmd.Context(), cfg, sandboxes)
	}
	complete(a, cmd, nil, nil)
	return cmd
}

// withdraw takes off the machine what the stopped daemon left running, if wanted.
func (a *app) withdraw(ctx context.Context, cfg *config.Config, wanted bool) error {
	if !wanted {
		return nil
	}
	p := a.progress("clearing the machine")
	defer p.Done()
	return daemon.Withdraw(ctx, cfg, daemon.Options{Version: version, GVisor: gvisorVersion(), Logger: slog.New(slog.DiscardHandler)})
}

// pauseAll pauses what runs. All are tried.
func (a *app) pauseAll(ctx context.Context, cfg *config.Config) error {
	c, err := dial(cfg)
	if err != nil {
		return err
	}
	running, err := gather(c.List(ctx, client.ListOptions{States: []string{"running"}}))
	if err != nil {
		return err
	}
	p := a.progress("pausing sandboxes")
	defer p.Done()
	failed := make([]error, len(running))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, sb := range running {
		g.Go(func() error {
			failed[i] = sb.Pause(ctx, false)
			return nil
		})
	}
	_ = g.Wait() // the errors are in failed
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("the daemon was not stopped: %w", err)
	}
	fmt.Fprintf(a.out, "%d sandboxes paused\n", len(running))
	return nil
}

// stop ends the daemon and waits until it has let go of its data folder.
func stop(ctx context.Context, cfg *config.Config, pid int) error {
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("daemon (pid %d) cannot be stopped: %w; run it as root, e.g. by sudo", pid, err)
	}
	ctx, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		holder, err := daemon.Holder(cfg.Data)
		if err != nil || holder != pid {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("daemon (pid %d) does not stop: %w; see %s, or end it with kill -9 %d (nothing is lost by that)", pid, ctx.Err(), cfg.LogFile(), pid)
		case <-tick.C:
		}
	}
}
