package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/holdfast-run/holdfast/client"
)

// completer gives candidates with a description behind a tab.
type completer func(ctx context.Context, c *client.Client) []string

// complete sets what the shell offers for arguments (nil: nothing) and flags.
// Candidates come from the daemon; when it does not answer soon there are none.
func complete(a *app, cmd *cobra.Command, args completer, flags map[string]completer) {
	offer := func(get completer) cobra.CompletionFunc {
		return func(cmd *cobra.Command, _ []string, typed string) ([]string, cobra.ShellCompDirective) {
			c, err := a.connect(cmd)
			if err != nil {
				return nil, cobra.ShellCompDirectiveError
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			var out []string
			for _, s := range get(ctx, c) {
				if strings.HasPrefix(s, typed) {
					out = append(out, s)
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		}
	}
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	if args != nil {
		cmd.ValidArgsFunction = offer(args)
	}
	for name, get := range flags {
		if err := cmd.RegisterFlagCompletionFunc(name, offer(get)); err != nil {
			panic(err) // the flag's name is a constant of ours
		}
	}
}

func completeSandboxes(ctx context.Context, c *client.Client) []string {
	var out []string
	for sb, err := range c.List(ctx, client.ListOptions{}) {
		if err != nil {
			break
		}
		about := "\t" + sb.State + ", " + sb.Template
		out = append(out, sb.ID+about)
		if sb.Name != "" {
			out = append(out, sb.Name+about)
		}
	}
	return out
}

// completeTemplates offers what create can start from: templates and snapshots.
func completeTemplates(ctx context.Context, c *client.Client) []string {
	var out []string
	for t, err := range c.Templates(ctx) {
		if err != nil {
			break
		}
		out = append(out, t.Name+"\ttemplate")
	}
	return append(out, completeSnapshots(ctx, c)...)
}

func completeSnapshots(ctx context.Context, c *client.Client) []string {
	var out []string
	for t, err := range c.Snapshots(ctx, "") {
		if err != nil {
			break
		}
		name := t.Name
		if name == "" {
			name = t.ID
		}
		out = append(out, name+"\tsnapshot of "+shortID(t.SandboxID))
	}
	return out
}
