package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"

	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Command gives `holdfast bench`. connect gives a client of the daemon that the
// command line points to.
func Command(connect func(cmd *cobra.Command) (*client.Client, error)) *cobra.Command {
	var (
		asJSON  bool
		vs      string
		options Options
	)
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure the running daemon as its clients see it",
		Long: `Measures the running daemon over its API and gateway, and the same operations on
Docker in the same run with --vs docker. Nothing else should run on the machine.
Sandboxes it makes are removed; they carry the metadata holdfast=bench.

What can be measured:
  ` + strings.Join(Names(), "\n  "),
		Example: `  holdfast bench
  holdfast bench --only create_pool,exec_warm
  holdfast bench --json --vs docker > bench.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if vs != "" && vs != dockerName {
				return sandbox.Errorf(sandbox.InvalidRequest, "--vs "+vs, "is not known").WithNext("the only peer is docker")
			}
			if options.Samples < 0 {
				return sandbox.Errorf(sandbox.InvalidRequest, "--samples", "must be 1 or more")
			}
			ctx := cmd.Context()
			c, err := connect(cmd)
			if err != nil {
				return err
			}
			defer c.Close()
			options.Local = !c.Remote()
			if c, err = overTCP(ctx, c); err != nil {
				return err
			}
			defer c.Close()
			say := func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
			if vs == dockerName {
				options.Docker, err = OpenDocker(ctx, c, options.Template)
				if errors.Is(err, ErrNoDocker) {
					say("bench: measuring without a peer: %v", err)
				} else if err != nil {
					return err
				}
			}
			options.Progress = func(name string) { say("bench: %s", name) }
			results, err := Run(ctx, c, options)
			write := WriteTable
			if asJSON {
				write = WriteJSON
			}
			if len(results) == 0 && err != nil {
				return err
			}
			return errors.Join(write(cmd.OutOrStdout(), results), err)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&asJSON, "json", false, "print JSON")
	f.StringSliceVar(&options.Only, "only", nil, "measure only these, separated by commas")
	f.StringVar(&vs, "vs", "", "measure the same on `peer` (docker) in the same run")
	f.StringVarP(&options.Template, "template", "t", sandbox.DefaultTemplate, "template to measure with; needs python3")
	f.IntVar(&options.Samples, "samples", 0, "samples of each measurement (default: each one's own number)")
	for name, values := range map[string][]string{"only": Names(), "vs": {dockerName}} {
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // the flag was defined above
		}
	}
	return cmd
}

// overTCP gives a client of the same daemon that goes over its listener, as
// clients on other machines do; the socket would flatter the numbers.
func overTCP(ctx context.Context, c *client.Client) (*client.Client, error) {
	if c.Remote() {
		return c, nil
	}
	st, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(st.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen address %q of the daemon: %w", st.Listen, err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return client.New(client.Options{URL: "http://" + net.JoinHostPort(host, port), APIKey: st.LocalKey, Agent: "holdfast-bench"})
}
