package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
)

func (a *app) template() *cobra.Command {
	cmd := &cobra.Command{
		Use: "template", Aliases: []string{"templates"},
		Short: "List, import and remove templates",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.templateList(), a.templateImport(), a.templateRemove())
	return cmd
}

// gather collects what a list yields; nothing is the empty list, not null.
func gather[T any](seq iter.Seq2[T, error]) ([]T, error) {
	list := []T{}
	for v, err := range seq {
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

func (a *app) templateList() *cobra.Command {
	cmd := &cobra.Command{Use: "ls", Aliases: []string{"list"}, Short: "List templates", Args: cobra.NoArgs}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		list, err := gather(c.Templates(cmd.Context()))
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(list)
		}
		rows := make([][]string, len(list))
		for i, t := range list {
			rows[i] = []string{
				orDash(t.Name), t.ID, firstLine(orDash(t.Source), 40), size(t.FilesBytes), size(t.ImageBytes),
				fmt.Sprintf("%d cpu, %d MiB", t.Resources.CPUs, t.Resources.MemoryMB), fmt.Sprint(t.SpawnCount), ago(t.CreatedAt),
			}
		}
		return table(a.out, []string{"NAME", "ID", "SOURCE", "FILES", "MEMORY", "SIZE", "USED", "CREATED"}, rows)
	}
	complete(a, cmd, nil, nil)
	return cmd
}

func (a *app) templateImport() *cobra.Command {
	var req v1.ImportRequest
	cmd := &cobra.Command{
		Use:   "import NAME [SOURCE]",
		Short: "Make a template from an image, an archive or a Debian bootstrap",
		Long: `Make a template, boot it once and keep its memory, so that a create is a restore.

SOURCE is one of
  docker.io/library/debian:12      an OCI image reference
  ./image.tar, ./layout/           an OCI layout, OCI archive or "docker save" archive
  ./rootfs.tar.gz                  a root file system (.tar, .gz, .zst, .xz)
  debootstrap://bookworm?packages=git,jq
                                   a Debian bootstrap through the node's own mirror
  -                                an archive from standard input
Without SOURCE the template NAME is made by the node's own recipe for "base".
A template of that name is replaced; sandboxes made from the old one go on.`,
		Example: `  holdfast template import node docker.io/library/node:22
  docker save app | holdfast template import app -`,
		Args: cobra.RangeArgs(1, 2),
	}
	cmd.Flags().IntVar(&req.Resources.CPUs, "cpus", 0, "cores for sandboxes made from it (default 2)")
	cmd.Flags().IntVar(&req.Resources.MemoryMB, "memory", 0, "memory in `MiB` (default 1024)")
	cmd.Flags().IntVar(&req.Resources.DiskMB, "disk", 0, "disk in `MiB` above the template (default 10240)")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		req.Name = args[0]
		var archive io.ReadCloser
		if len(args) == 2 {
			if req.Source, archive, err = a.importSource(c, args[1]); err != nil {
				return err
			}
		}
		t, err := a.importTemplate(cmd.Context(), c, req, archive)
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(t)
		}
		fmt.Fprintln(a.out, t.ID)
		return nil
	}
	complete(a, cmd, nil, nil)
	return cmd
}

func (a *app) importTemplate(ctx context.Context, c *client.Client, req v1.ImportRequest, archive io.ReadCloser) (*v1.Template, error) {
	p := a.progress("importing " + req.Name)
	defer p.Done()
	if archive == nil {
		return c.Import(ctx, req, nil, p.Step)
	}
	defer archive.Close()
	return c.Import(ctx, req, archive, p.Step)
}

// importSource decides who reads a source: the node what is named, we what is
// on our side when the node is another machine.
func (a *app) importSource(c *client.Client, source string) (name string, archive io.ReadCloser, err error) {
	if source == "-" {
		return "", io.NopCloser(a.in), nil
	}
	kind, file, tag := splitSource(source)
	info, err := os.Stat(file)
	switch {
	case strings.Contains(source, "://"):
		return source, nil, nil
	case errors.Is(err, fs.ErrNotExist) && kind == "" && !looksLikePath(file):
		return source, nil, nil // an image reference
	case err != nil:
		return "", nil, fmt.Errorf("template source: %w", err)
	case !c.Remote():
		// The daemon's working folder is another one.
		abs, err := filepath.Abs(file)
		return kind + abs + tag, nil, err
	case info.IsDir() || tag != "":
		return "", nil, fmt.Errorf("template source %s cannot be sent to another machine; make an archive of the one image and import that", source)
	}
	archive, err = os.Open(file)
	return "", archive, err
}

// splitSource takes the kind before and the image's tag behind a path apart.
func splitSource(source string) (kind, file, tag string) {
	file = source
	for _, k := range []string{"oci:", "tar:"} {
		if rest, ok := strings.CutPrefix(source, k); ok {
			kind, file = k, rest
		}
	}
	if i := strings.LastIndexByte(file, '#'); i >= 0 {
		file, tag = file[:i], file[i:]
	}
	return kind, file, tag
}

func looksLikePath(s string) bool {
	return strings.HasPrefix(s, "/") || strings.HasPrefix(s, "./") || strings.HasPrefix(s, "../") || s == "." || s == ".."
}

func (a *app) templateRemove() *cobra.Command {
	cmd := &cobra.Command{
		Use: "rm TEMPLATE...", Short: "Remove templates; sandboxes made from them go on", Args: cobra.MinimumNArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return a.each(cmd, "removing", args, func(ctx context.Context, c *client.Client, ref string) error {
			return c.DeleteTemplate(ctx, ref)
		})
	}
	complete(a, cmd, completeTemplates, nil)
	return cmd
}
