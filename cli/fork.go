package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/holdfast-run/holdfast/api/v1"
)

func (a *app) fork() *cobra.Command {
	var req v1.ForkRequest
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "fork SANDBOX",
		Short: "Make sandboxes that go on where a running one is",
		Long: `Make new sandboxes from one picture of a running sandbox: the same files, and
processes that go on at the same point. Their ids are printed.`,
		Example: "  holdfast fork dev\n  holdfast fork --count 10 dev",
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().IntVarP(&req.Count, "count", "c", 1, "how many")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "`time` until they are paused (default: as the original)")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if timeout < 0 || req.Count < 1 {
			return usagef("--timeout must not be negative and --count at least 1")
		}
		req.TimeoutSeconds = timeout.Seconds()
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		sb, err := c.Get(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		p := a.progress("forking")
		forks, err := sb.Fork(cmd.Context(), req)
		p.Done()
		made := []v1.Sandbox{}
		for _, f := range forks {
			made = append(made, f.Sandbox)
			if !*asJSON {
				fmt.Fprintln(a.out, f.ID)
			}
		}
		if *asJSON && (err == nil || len(made) > 0) {
			if jsonErr := a.printJSON(made); jsonErr != nil {
				return jsonErr
			}
		}
		return err
	}
	complete(a, cmd, completeSandboxes, nil)
	return cmd
}
