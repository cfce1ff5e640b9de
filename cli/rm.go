package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/sandbox"
)

func (a *app) remove() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "rm SANDBOX...",
		Short:   "Remove sandboxes in any state",
		Long:    "Remove sandboxes with everything in them, running ones too. Snapshots made of them stay.",
		Example: "  holdfast rm dev\n  holdfast rm -f $(holdfast ps -q)",
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if force { // `rm -f $(holdfast ps -q)` with nothing to remove is fine
			return nil
		}
		return cobra.MinimumNArgs(1)(cmd, args)
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "it is no error when one does not exist")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.each(cmd, "removing", args, func(ctx context.Context, c *client.Client, ref string) error {
			err := c.Delete(ctx, ref)
			if force && sandbox.IsKind(err, sandbox.NotFound) {
				return nil
			}
			return err
		})
	}
	complete(a, cmd, completeSandboxes, nil)
	return cmd
}
