package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) rollback() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollback SANDBOX SNAPSHOT",
		Short: "Put a sandbox back to one of its snapshots",
		Long: `Put a sandbox back, in place, to a snapshot that was taken of it. What happened
in it since is lost; its id, name and address stay.`,
		Example: "  holdfast snapshot dev --name before\n  holdfast rollback dev before",
		Args:    cobra.ExactArgs(2),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		sb, err := c.Get(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		p := a.progress("rolling back")
		err = sb.Rollback(cmd.Context(), args[1])
		p.Done()
		if err != nil {
			return err
		}
		a.tellRecovery(sb)
		fmt.Fprintln(a.out, args[0])
		return nil
	}
	complete(a, cmd, completeSandboxes, nil)
	return cmd
}
