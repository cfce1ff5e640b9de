package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/holdfast-run/holdfast/api/v1"
)

func (a *app) inspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "inspect SANDBOX",
		Short:   "Show everything about a sandbox",
		Long:    "Show a sandbox's state and why, what it is made of, what it uses, and its latest events. It is not woken.",
		Example: "  holdfast inspect dev\n  holdfast inspect --json dev",
		Args:    cobra.ExactArgs(1),
	}
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		i, err := c.Inspect(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(i)
		}
		a.printInspection(i, time.Now())
		return nil
	}
	complete(a, cmd, completeSandboxes, nil)
	return cmd
}

// line prints one "name  value" line of a description; no value, no line.
func (a *app) line(name, format string, args ...any) {
	value := fmt.Sprintf(format, args...)
	if value != "" {
		fmt.Fprintf(a.out, "%-12s %s\n", name, value)
	}
}

func (a *app) printInspection(i *v1.Inspection, now time.Time) {
	a.line("id", "%s", i.ID)
	a.line("name", "%s", i.Name)
	a.line("template", "%s", strings.TrimSuffix(i.Template+" ("+i.TemplateID+")", " ()"))
	a.line("state", "%s", a.state(i.State))
	a.line("reason", "%s", i.Reason)
	a.line("recovered", "%s", i.Recovered)
	a.line("created", "%s (%s)", i.CreatedAt.Local().Format(time.DateTime), ago(i.CreatedAt))
	if i.State == "running" {
		a.line("started", "%s", ago(i.StartedAt))
		a.line("deadline", "%s", left(&i.Sandbox, now))
	}
	if !i.PausedAt.IsZero() {
		a.line("paused", "%s", ago(i.PausedAt))
	}
	a.line("lifecycle", "%s after %s, %s, %s", i.Lifecycle.OnTimeout, time.Duration(i.Lifecycle.TimeoutSeconds*float64(time.Second)),
		either(i.Lifecycle.KeepMemory, "memory is kept", "memory is dropped"), either(i.Lifecycle.AutoResume, "traffic wakes it", "traffic does not wake it"))
	a.line("resources", "%d cpus, %d MiB memory, %d MiB disk", i.Resources.CPUs, i.Resources.MemoryMB, i.Resources.DiskMB)
	a.line("network", "%s", networkText(i.Network))
	a.line("user", "%s in %s", orDash(i.User), orDash(i.Workdir))
	a.line("metadata", "%s", mapText(i.Metadata))
	a.line("env", "%s", strings.Join(slices.Sorted(maps.Keys(i.Env)), " "))
	if h := i.Host; h != nil {
		a.line("layers", "%s", strings.Join(h.Layers, " "))
		a.line("host", "%s memory, %s files, %s image, %d tasks", size(h.MemoryBytes), size(h.DiskBytes), size(h.ImageBytes), h.Tasks)
		if h.PID != 0 {
			a.line("process", "%d", h.PID)
		}
		a.line("address", "%s", h.Address)
		a.line("runtime", "%s", shortID(h.Runtime))
	}
	if u := i.Usage; u != nil {
		a.line("usage", "%.0f %% cpu, %s of %s memory, %s of %s disk", u.CPUPercent,
			size(u.MemoryBytes), size(u.MemoryTotalBytes), size(u.DiskBytes), size(u.DiskTotalBytes))
	}
	if len(i.Events) > 0 {
		fmt.Fprintln(a.out, "events")
		for _, e := range i.Events {
			fmt.Fprintln(a.out, "  "+a.eventLine(e))
		}
	}
}

func either(yes bool, a, b string) string {
	if yes {
		return a
	}
	return b
}

func networkText(n v1.Network) string {
	s := either(n.AllowInternet, "internet", "offline")
	if len(n.AllowOut) > 0 {
		s += ", allow " + strings.Join(n.AllowOut, " ")
	}
	if len(n.DenyOut) > 0 {
		s += ", deny " + strings.Join(n.DenyOut, " ")
	}
	if !n.AllowPublicTraffic {
		s += ", ports need the traffic token"
	}
	return s
}

func mapText(m map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, k+"="+m[k])
	}
	return strings.Join(parts, " ")
}
