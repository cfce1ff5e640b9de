package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	v1 "github.com/holdfast-run/holdfast/api/v1"
)

func (a *app) status() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show how the daemon is and what it uses",
		Args:  cobra.NoArgs,
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		st, err := c.Status(cmd.Context())
		if err != nil {
			return err
		}
		st.LocalKey = "" // `holdfast env` is where keys are shown
		if *asJSON {
			return a.printJSON(st)
		}
		a.printStatus(st)
		return nil
	}
	complete(a, cmd, nil, nil)
	return cmd
}

func (a *app) printStatus(st *v1.Status) {
	a.line("daemon", "%s, version %s, up since %s", a.paint(good, "running"), st.Version, ago(st.StartedAt))
	if st.PID != 0 {
		a.line("process", "%d", st.PID)
	}
	a.line("listens on", "%s", st.Listen)
	a.line("domain", "%s", st.Domain)
	a.line("data", "%s", st.Data)
	a.line("config", "%s", st.Config)
	n := st.Node
	if n == nil {
		return
	}
	a.line("engine", "%s %s on %s", n.Engine, n.EngineVersion, n.Platform)
	for _, limit := range slices.Sorted(maps.Keys(n.Missing)) {
		a.line("not bound", "%s", a.paint(warn, limit+": "+n.Missing[limit]))
	}
	var counts []string
	for _, state := range slices.Sorted(maps.Keys(n.Sandboxes)) {
		if n.Sandboxes[state] > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n.Sandboxes[state], state))
		}
	}
	if len(counts) == 0 {
		counts = []string{"none"}
	}
	a.line("sandboxes", "%s", strings.Join(counts, ", "))
	a.line("asked for", "%d cpus, %d MiB memory by running sandboxes", n.UsedCPUs, n.UsedMemoryMB)
	a.line("templates", "%d, and %d snapshots", n.Templates, n.Snapshots)
	for _, name := range slices.Sorted(maps.Keys(n.Pool)) {
		a.line("pool", "%s: %d of %d ready", name, n.Pool[name].Ready, n.Pool[name].Want)
	}
	a.line("disk", "%s used, %s free", size(n.DiskUsedBytes), size(n.DiskFreeBytes))
}
