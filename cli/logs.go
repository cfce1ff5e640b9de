package cli

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/holdfast-run/holdfast/api/v1"
)

func (a *app) logs() *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use:   "logs SANDBOX",
		Short: "Show what happened to a sandbox",
		Long: `Show a sandbox's history: created, paused, resumed and how much came back, out of
memory, crashed and why. With -f it goes on until the sandbox is removed.`,
		Example: "  holdfast logs dev\n  holdfast logs -f --json dev",
		Args:    cobra.ExactArgs(1),
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what happens")
	cmd.Flags().IntVar(&tail, "tail", -1, "only the latest `n`")
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object for each line")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		sb, err := c.Get(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		events, err := sb.Events(cmd.Context(), 0)
		if err != nil {
			return err
		}
		var last int64
		if len(events) > 0 {
			last = events[len(events)-1].Seq
		}
		if tail >= 0 {
			events = events[max(0, len(events)-tail):]
		}
		for _, e := range events {
			if err := a.printEvent(e, *asJSON); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		for e, err := range sb.Follow(cmd.Context(), last) {
			if err != nil {
				return err
			}
			if err := a.printEvent(e, *asJSON); err != nil {
				return err
			}
		}
		return nil
	}
	complete(a, cmd, completeSandboxes, nil)
	return cmd
}

func (a *app) printEvent(e v1.Event, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(a.out).Encode(e)
	}
	_, err := fmt.Fprintln(a.out, a.eventLine(e))
	return err
}

func (a *app) eventLine(e v1.Event) string {
	s := a.paint(dim, e.Time.Local().Format(time.DateTime)) + "  " + e.Kind
	if e.Message != "" {
		s += ": " + e.Message
	}
	if fields := mapText(e.Fields); fields != "" {
		s += "  " + a.paint(dim, fields)
	}
	return s
}
