package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
)

func (a *app) run() *cobra.Command {
	f := &createFlags{}
	var x execFlags
	var remove, tty bool
	cmd := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run a command in a new sandbox",
		Long: `Create a sandbox, run a command in it and exit with the command's code (125 when
Holdfast itself failed, 127 when there is no such command).

The sandbox stays and is paused after its timeout, unless --rm is given. Its id
goes to standard error when that is a terminal.`,
		Example: `  holdfast run -- python3 -c 'print(6*7)'
  holdfast run --rm -t base -- sh -c 'uname -a; id'
  echo hello | holdfast run -i --rm -- wc -c
  holdfast run -i --tty -- bash`,
		Args: cobra.MinimumNArgs(1),
	}
	cmd.Flags().SetInterspersed(false)
	f.add(cmd)
	cmd.Flags().BoolVarP(&x.stdin, "interactive", "i", false, "pass standard input")
	cmd.Flags().BoolVar(&tty, "tty", false, "run it on a terminal")
	cmd.Flags().StringVarP(&x.user, "user", "u", "", "`user` inside (default: the template's)")
	cmd.Flags().StringVarP(&x.dir, "workdir", "w", "", "`folder` inside (default: the template's)")
	cmd.Flags().BoolVar(&remove, "rm", false, "remove the sandbox afterwards")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		req, err := f.request(a.env)
		if err != nil {
			return err
		}
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		p := a.progress("creating")
		sb, err := c.Create(cmd.Context(), req)
		p.Done()
		if err != nil {
			return err
		}
		if remove {
			defer func() {
				// Also when interrupted: what --rm promises holds.
				ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Context()), 30*time.Second)
				defer cancel()
				if rmErr := sb.Delete(ctx); rmErr != nil && err == nil {
					err = rmErr
				}
			}()
		}
		x.tty = tty
		err = a.execute(cmd.Context(), sb, args, x)
		if !remove {
			a.note("sandbox %s stays; `holdfast exec %s …` goes on in it, `holdfast rm %s` removes it", shortID(sb.ID), shortID(sb.ID), shortID(sb.ID))
		}
		return err
	}
	complete(a, cmd, nil, map[string]completer{"template": completeTemplates})
	return cmd
}
