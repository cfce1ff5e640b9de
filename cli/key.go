package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/holdfast-run/holdfast/client"
)

func (a *app) key() *cobra.Command {
	cmd := &cobra.Command{
		Use: "key", Aliases: []string{"keys"},
		Short: "List, create and remove API keys",
		Long:  "API keys open the daemon to SDKs and other machines. They are managed on the daemon's own machine only.",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.keyList(), a.keyCreate(), a.keyRemove())
	return cmd
}

func (a *app) keyList() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List API keys", Args: cobra.NoArgs}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		list, err := c.Keys(cmd.Context())
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(list)
		}
		rows := make([][]string, len(list))
		for i, k := range list {
			rows[i] = []string{k.ID, k.Name, k.Mask, ago(k.CreatedAt), ago(k.LastUsedAt)}
		}
		return table(a.out, []string{"ID", "NAME", "KEY", "CREATED", "LAST USED"}, rows)
	}
	complete(a, cmd, nil, nil)
	return cmd
}

func (a *app) keyCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create an API key and print it; it is shown this once",
		Example: "  holdfast key create ci", Args: cobra.ExactArgs(1),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		k, err := c.CreateKey(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(k)
		}
		fmt.Fprintln(a.out, k.Secret)
		return nil
	}
	complete(a, cmd, nil, nil)
	return cmd
}

func (a *app) keyRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm ID...", Short: "Make API keys invalid", Args: cobra.MinimumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.each(cmd, "removing", args, func(ctx context.Context, c *client.Client, ref string) error {
			return c.DeleteKey(ctx, ref)
		})
	}
	complete(a, cmd, func(ctx context.Context, c *client.Client) []string {
		var out []string
		keys, err := c.Keys(ctx)
		if err != nil {
			return nil
		}
		for _, k := range keys {
			out = append(out, k.ID+"\t"+k.Name)
		}
		return out
	}, nil)
	return cmd
}
