package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-run/holdfast/client"
)

func (a *app) pause() *cobra.Command {
	var drop bool
	cmd := &cobra.Command{
		Use:   "pause SANDBOX...",
		Short: "Pause sandboxes: they keep everything and use no memory",
		Long: `Write the memory of sandboxes to disk and stop them. A paused one uses no memory
and no CPU; a command, a resume, or traffic to it brings it back.`,
		Example: "  holdfast pause dev\n  holdfast pause --drop-memory dev",
		Args:    cobra.MinimumNArgs(1),
	}
	cmd.Flags().BoolVar(&drop, "drop-memory", false, "keep files only; processes end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.each(cmd, "pausing", args, func(ctx context.Context, c *client.Client, ref string) error {
			sb, err := c.Get(ctx, ref)
			if err != nil {
				return err
			}
			return sb.Pause(ctx, drop)
		})
	}
	complete(a, cmd, completeSandboxes, nil)
	return cmd
}

// atOnce is how many sandboxes one command works on at a time.
const atOnce = 4

// each does something to every reference and prints those where it worked, in
// the order given. All are tried; the errors are joined.
func (a *app) each(cmd *cobra.Command, what string, refs []string, do func(ctx context.Context, c *client.Client, ref string) error) error {
	c, err := a.connect(cmd)
	if err != nil {
		return err
	}
	p := a.progress(what)
	failed := make([]error, len(refs))
	var g errgroup.Group
	g.SetLimit(atOnce)
	for i, ref := range refs {
		g.Go(func() error {
			failed[i] = do(cmd.Context(), c, ref)
			return nil
		})
	}
	_ = g.Wait() // the errors are in failed
	p.Done()
	for i, ref := range refs {
		if failed[i] == nil {
			fmt.Fprintln(a.out, ref)
		}
	}
	return errors.Join(failed...)
}
