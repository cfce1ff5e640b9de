package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// WriteJSON prints results as the array that scripts read.
func WriteJSON(w io.Writer, results []Result) error {
	if results == nil {
		results = []Result{}
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(results)
}

// WriteTable prints results for people: medians beside their budget and the peer.
func WriteTable(w io.Writer, results []Result) error {
	rows := [][]string{{"", "unit", "n", "min", "p50", "p95", "p99", "max", "budget (p50)", "", "docker p50"}}
	for _, r := range results {
		peer := ""
		if r.Peer != nil {
			peer = number(r.Peer.P50)
		}
		mark := ""
		if ok, known := kept(r, results); known {
			mark = map[bool]string{true: "✓", false: "✗"}[ok]
		}
		rows = append(rows, []string{
			r.Name, r.Unit, strconv.Itoa(r.N), number(r.Min), number(r.P50), number(r.P95), number(r.P99), number(r.Max),
			budgets[r.Name].String(), mark, peer,
		})
	}
	width := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			if i >= 2 && i <= 7 || i == len(row)-1 { // numbers line up on the right
				cell = pad + cell
			} else {
				cell += pad
			}
			line.WriteString(cell + "  ")
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(line.String(), " ")); err != nil {
			return err
		}
	}
	return nil
}

// number shows three digits that tell something.
func number(f float64) string {
	switch {
	case f >= 100:
		return strconv.FormatFloat(f, 'f', 0, 64)
	case f >= 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return strconv.FormatFloat(f, 'f', 2, 64)
}
