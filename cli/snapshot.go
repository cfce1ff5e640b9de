package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
)

func (a *app) snapshot() *cobra.Command {
	var req v1.SnapshotRequest
	cmd := &cobra.Command{
		Use:   "snapshot SANDBOX",
		Short: "Take a snapshot of a sandbox, list or remove snapshots",
		Long: `Take an immutable picture of a sandbox, with its processes and memory, and print
its id. The sandbox goes on. New sandboxes start from the snapshot with
"holdfast create -t ID", and go on where it was taken.`,
		Example: `  holdfast snapshot dev --name ready
  holdfast create -t ready
  holdfast snapshot ls
  holdfast snapshot rm ready`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVarP(&req.Name, "name", "n", "", "`name` or name:tag for it")
	cmd.Flags().BoolVar(&req.FilesOnly, "files-only", false, "leave out processes and memory")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		sb, err := c.Get(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		p := a.progress("taking snapshot")
		t, err := sb.Snapshot(cmd.Context(), req)
		p.Done()
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(t)
		}
		fmt.Fprintln(a.out, t.ID)
		return nil
	}
	complete(a, cmd, completeSandboxes, nil)
	cmd.AddCommand(a.snapshotList(), a.snapshotRemove())
	return cmd
}

func (a *app) snapshotList() *cobra.Command {
	cmd := &cobra.Command{
		Use: "ls [SANDBOX]", Aliases: []string{"list"},
		Short: "List snapshots, all or those of one sandbox",
		Args:  cobra.MaximumNArgs(1),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		of := ""
		if len(args) == 1 {
			of = args[0]
		}
		list, err := gather(c.Snapshots(cmd.Context(), of))
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(list)
		}
		rows := make([][]string, len(list))
		for i, t := range list {
			rows[i] = []string{
				t.ID, orDash(t.Name), orDash(shortID(t.SandboxID)), either(t.HasMemory, "memory, files", "files"),
				size(t.FilesBytes), size(t.ImageBytes), ago(t.CreatedAt),
			}
		}
		return table(a.out, []string{"ID", "NAME", "SANDBOX", "HOLDS", "FILES", "MEMORY", "CREATED"}, rows)
	}
	complete(a, cmd, completeSandboxes, nil)
	return cmd
}

func (a *app) snapshotRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm SNAPSHOT...", Short: "Remove snapshots; sandboxes made from them go on", Args: cobra.MinimumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.each(cmd, "removing", args, func(ctx context.Context, c *client.Client, ref string) error {
			return c.DeleteSnapshot(ctx, ref)
		})
	}
	complete(a, cmd, completeSnapshots, nil)
	return cmd
}
