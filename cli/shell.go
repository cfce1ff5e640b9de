package cli

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/holdfast-run/holdfast/client"
)

// findShell starts bash where there is one. It runs inside.
const findShell = `if [ -x /bin/bash ]; then exec /bin/bash -l; fi; exec /bin/sh -l`

func (a *app) shell() *cobra.Command {
	f := &createFlags{}
	x := execFlags{stdin: true, tty: true}
	cmd := &cobra.Command{
		Use:   "shell [flags] [SANDBOX]",
		Short: "Open a terminal in a sandbox",
		Long: `Open a login shell on a terminal in a sandbox, resuming it when it is paused.
Without SANDBOX a new one is created, from --template; it stays afterwards.`,
		Example: `  holdfast shell
  holdfast shell dev
  holdfast shell -u root dev`,
		Args: cobra.MaximumNArgs(1),
	}
	f.add(cmd)
	cmd.Flags().StringVarP(&x.user, "user", "u", "", "`user` inside (default: the sandbox's)")
	cmd.Flags().StringVarP(&x.dir, "workdir", "w", "", "`folder` inside (default: the sandbox's)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var sb *client.Sandbox
		if len(args) == 1 {
			var err error
			if sb, err = a.wake(cmd, args[0]); err != nil {
				return err
			}
		} else {
			req, err := f.request(a.env)
			if err != nil {
				return err
			}
			c, err := a.connect(cmd)
			if err != nil {
				return err
			}
			p := a.progress("creating")
			sb, err = c.Create(cmd.Context(), req)
			p.Done()
			if err != nil {
				return err
			}
		}
		x.env = f.env
		if in, ok := a.in.(*os.File); !ok || !isTerminal(in) {
			x.tty = false // a script on a pipe: it ends where the pipe does
		}
		err := a.execute(cmd.Context(), sb, []string{"/bin/sh", "-c", findShell}, x)
		a.note("sandbox %s stays; `holdfast shell %s` comes back to it, `holdfast rm %s` removes it", shortID(sb.ID), shortID(sb.ID), shortID(sb.ID))
		return err
	}
	complete(a, cmd, completeSandboxes, map[string]completer{"template": completeTemplates})
	return cmd
}
