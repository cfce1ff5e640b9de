package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
)

func (a *app) ps() *cobra.Command {
	var o client.ListOptions
	var quiet bool
	var metadata []string
	cmd := &cobra.Command{
		Use:     "ps",
		Aliases: []string{"ls", "list"},
		Short:   "List sandboxes",
		Long:    "List all sandboxes: running, paused, failed and in between. Listing never wakes one.",
		Example: `  holdfast ps
  holdfast ps --state running --metadata user=42
  holdfast rm $(holdfast ps -q)`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	cmd.Flags().StringSliceVar(&o.States, "state", nil, "only in these `states`, e.g. running,paused")
	cmd.Flags().StringVarP(&o.Template, "template", "t", "", "only made from this `template`")
	cmd.Flags().StringArrayVarP(&metadata, "metadata", "m", nil, "only with this `key=value`; may be repeated")
	cmd.Flags().BoolP("all", "a", true, "all states, which is the default")
	_ = cmd.Flags().MarkHidden("all") // for fingers used to docker
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if o.Metadata, err = pairs("--metadata", metadata); err != nil {
			return err
		}
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		list := []v1.Sandbox{}
		for sb, err := range c.List(cmd.Context(), o) {
			if err != nil {
				return err
			}
			list = append(list, sb.Sandbox)
		}
		switch {
		case *asJSON:
			return a.printJSON(list)
		case quiet:
			for _, s := range list {
				fmt.Fprintln(a.out, s.ID)
			}
			return nil
		}
		return a.psTable(list, time.Now())
	}
	complete(a, cmd, nil, map[string]completer{"template": completeTemplates})
	return cmd
}

func (a *app) psTable(list []v1.Sandbox, now time.Time) error {
	rows := make([][]string, len(list))
	for i := range list {
		s := &list[i]
		state := a.state(s.State)
		if s.Reason != "" {
			state += " (" + firstLine(s.Reason, 40) + ")"
		}
		rows[i] = []string{
			shortID(s.ID), orDash(s.Name), s.Template, state, left(s, now), ago(s.CreatedAt),
			fmt.Sprintf("%d cpu, %d MiB", s.Resources.CPUs, s.Resources.MemoryMB),
		}
	}
	return table(a.out, []string{"ID", "NAME", "TEMPLATE", "STATE", "DEADLINE", "CREATED", "SIZE"}, rows)
}

// pairs parses key=value arguments.
func pairs(flag string, args []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		k, v, ok := strings.Cut(arg, "=")
		if !ok || k == "" {
			return nil, usagef("%s %q is not key=value", flag, arg)
		}
		out[k] = v
	}
	return out, nil
}
