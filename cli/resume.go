package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
)

func (a *app) resume() *cobra.Command {
	var timeout time.Duration
	var filesOnly bool
	cmd := &cobra.Command{
		Use:   "resume SANDBOX...",
		Short: "Bring paused or failed sandboxes back",
		Long: `Bring sandboxes back where they were. When memory cannot be restored, or the
sandbox had failed, it boots anew on its files, and a note says so.`,
		Example: "  holdfast resume dev\n  holdfast resume --timeout 1h dev",
		Args:    cobra.MinimumNArgs(1),
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "`time` until it is paused again (default: as created)")
	cmd.Flags().BoolVar(&filesOnly, "files-only", false, "boot from files although memory was kept")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout < 0 {
			return usagef("--timeout %v must not be negative", timeout)
		}
		return a.each(cmd, "resuming", args, func(ctx context.Context, c *client.Client, ref string) error {
			sb, err := c.Get(ctx, ref)
			if err != nil {
				return err
			}
			resumed, err := sb.Resume(ctx, v1.ConnectRequest{TimeoutSeconds: timeout.Seconds(), FilesOnly: filesOnly})
			if resumed && !filesOnly {
				a.tellRecovery(sb)
			}
			return err
		})
	}
	complete(a, cmd, completeSandboxes, nil)
	return cmd
}
