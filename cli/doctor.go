package cli

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/doctor"
	"github.com/holdfast-run/holdfast/sandbox"
)

// exitUnwell is doctor's answer when something is wrong.
const exitUnwell = 1

func (a *app) doctor() *cobra.Command {
	var repair bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the machine and what the daemon left behind",
		Long: `Check whether the machine can run sandboxes, and look for leftovers: processes,
mounts, namespaces, interfaces, cgroups and files that belong to no sandbox.
Every finding names the next step. The exit code is 1 when something is wrong.`,
		Example: "  holdfast doctor\n  holdfast doctor --repair",
		Args:    cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&repair, "repair", false, "remove leftovers")
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		findings, err := a.examine(cmd, repair)
		if err != nil {
			return err
		}
		if *asJSON {
			err = a.printJSON(findings)
		} else {
			a.printFindings(findings)
		}
		unwell := func(f v1.Finding) bool { return f.Severity == string(sandbox.Problem) && !f.Repaired }
		if err == nil && slices.ContainsFunc(findings, unwell) {
			return codeError{code: exitUnwell}
		}
		return err
	}
	complete(a, cmd, nil, nil)
	return cmd
}

// examine asks the daemon; when none runs it looks at the machine itself.
func (a *app) examine(cmd *cobra.Command, repair bool) ([]v1.Finding, error) {
	cfg, err := a.configure(cmd)
	if err != nil {
		return nil, err
	}
	c, err := dial(cfg)
	if err != nil {
		return nil, err
	}
	found, err := c.Doctor(cmd.Context(), repair)
	if err == nil {
		return append([]v1.Finding{{Check: "daemon", Severity: string(sandbox.OK), Reason: "runs"}}, found...), nil
	}
	var e *sandbox.Error
	if c.Remote() || !errors.As(err, &e) || e.Kind != sandbox.Unavailable && e.Kind != sandbox.Authentication {
		return nil, err
	}
	if repair {
		return nil, err // only the daemon knows what is a leftover
	}
	list := []v1.Finding{{Check: "daemon", Severity: string(sandbox.Problem), Thing: e.Thing, Reason: e.Reason, Next: e.Next}}
	for _, f := range doctor.This(cfg.Data).Check() {
		list = append(list, v1.Finding{Check: f.Check, Severity: string(f.Severity), Thing: f.Thing, Reason: f.Reason, Next: f.Next})
	}
	return list, nil
}

func (a *app) printFindings(list []v1.Finding) {
	for _, f := range list {
		mark := a.paint(good, "ok     ")
		switch {
		case f.Repaired:
			mark = a.paint(good, "fixed  ")
		case f.Severity == string(sandbox.Warning):
			mark = a.paint(warn, "warning")
		case f.Severity == string(sandbox.Problem):
			mark = a.paint(bad, "problem")
		}
		text := f.Reason
		if f.Thing != "" {
			text = f.Thing + ": " + f.Reason
		}
		fmt.Fprintf(a.out, "%s  %-12s %s\n", mark, f.Check, text)
		if f.Next != "" && !f.Repaired {
			fmt.Fprintf(a.out, "                      %s\n", a.paint(dim, "→ "+f.Next))
		}
	}
}
