package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	v1 "github.com/holdfast-run/holdfast/api/v1"
)

func isTerminal(f *os.File) bool { return term.IsTerminal(int(f.Fd())) } //nolint:gosec // a file descriptor fits

// jsonFlag adds --json.
func jsonFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print JSON")
}

func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table prints columns that are as wide as they need to be. Cells may carry
// colours, which take no room.
func table(w io.Writer, header []string, rows [][]string) error {
	width := make([]int, len(header))
	for _, row := range append([][]string{header}, rows...) {
		for i, cell := range row {
			width[i] = max(width[i], visible(cell))
		}
	}
	for _, row := range append([][]string{header}, rows...) {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", width[i]-visible(cell)+3))
			}
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(b.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// visible is the number of characters without colour sequences.
func visible(s string) int {
	n := 0
	for s != "" {
		if strings.HasPrefix(s, "\x1b[") {
			if end := strings.IndexByte(s, 'm'); end >= 0 {
				s = s[end+1:]
				continue
			}
		}
		_, size := utf8.DecodeRuneInString(s)
		s, n = s[size:], n+1
	}
	return n
}

// Colours, by what they say.
const (
	good = "32"
	warn = "33"
	bad  = "31"
	dim  = "2"
	bold = "1"
)

func (a *app) paint(color, s string) string {
	if !a.color || s == "" {
		return s
	}
	return "\x1b[" + color + "m" + s + "\x1b[0m"
}

func (a *app) state(s string) string {
	switch s {
	case "running":
		return a.paint(good, s)
	case "failed":
		return a.paint(bad, s)
	case "paused":
		return a.paint(dim, s)
	}
	return a.paint(warn, s)
}

// ago gives "3 minutes ago", or "-" for no time.
func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return humanize.Time(t)
}

func size(bytes int64) string { return humanize.IBytes(uint64(max(0, bytes))) } //nolint:gosec // not negative

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// shortID is how much of an id tables show. It is enough to be typed back.
const shortIDLen = 12

func shortID(id string) string {
	return id[:min(len(id), shortIDLen)]
}

// left tells what becomes of a running sandbox and when.
func left(s *v1.Sandbox, now time.Time) string {
	if s.State != "running" || s.EndAt.IsZero() {
		return "-"
	}
	d := s.EndAt.Sub(now)
	if d < 0 {
		d = 0
	}
	what := "pause"
	if s.Lifecycle.OnTimeout == "kill" {
		what = "remove"
	}
	return what + " in " + shortDuration(d)
}

func shortDuration(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
