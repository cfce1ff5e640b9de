package e2b

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// listV1 gives every running sandbox at once: its clients cannot page.
func (s *Server) listV1(w http.ResponseWriter, c call) error {
	meta, err := parseMetadata(c.URL.Query().Get("metadata"))
	if err != nil {
		return err
	}
	o := sandbox.ListOptions{Space: c.space, States: runningStates, Metadata: meta, Limit: 100}
	out := []listed{}
	for {
		page, err := s.backend.List(c.Context(), o)
		if err != nil {
			return err
		}
		out = appendListed(out, page)
		if page.Next == nil || *page.Next == o.After {
			return reply(w, http.StatusOK, out)
		}
		o.After = *page.Next
	}
}

func (s *Server) listV2(w http.ResponseWriter, c call) error {
	o, err := parseList(c.URL.Query())
	if err != nil {
		return err
	}
	o.Space = c.space
	page, err := s.backend.List(c.Context(), o)
	if err != nil {
		return err
	}
	w.Header().Set("X-Total-Running", strconv.Itoa(page.TotalRunning))
	if page.Next != nil {
		setNext(w, encodeCursor(*page.Next, o.Ascending))
	}
	return reply(w, http.StatusOK, appendListed([]listed{}, page))
}

func appendListed(out []listed, page sandbox.Page) []listed {
	for i := range page.Sandboxes {
		out = append(out, toListed(&page.Sandboxes[i]))
	}
	return out
}

func parseList(q url.Values) (o sandbox.ListOptions, err error) {
	if o.Metadata, err = parseMetadata(q.Get("metadata")); err != nil {
		return o, err
	}
	if o.States, err = parseStates(q["state"]); err != nil {
		return o, err
	}
	switch order := q.Get("order"); order {
	case "asc":
		o.Ascending = true
	case "desc", "":
	default:
		return o, invalid("query parameter \"order\" must be asc or desc, got %q", order)
	}
	if at := q.Get("startedAfter"); at != "" {
		if o.StartedAfter, err = time.Parse(time.RFC3339Nano, at); err != nil {
			return o, invalid("query parameter \"startedAfter\" must be a time such as 2026-01-02T15:04:05Z, got %q", at)
		}
	}
	o.Template = q.Get("template")
	if o.Limit, err = limitOf(q, 100, 100); err != nil {
		return o, err
	}
	if token := q.Get("nextToken"); token != "" {
		var asc bool
		if o.After, asc, err = decodeCursor(token); err != nil {
			return o, err
		}
		if asc != o.Ascending {
			return o, invalid("query parameter \"nextToken\" is of a list in the other order; start anew")
		}
	}
	return o, nil
}

func parseStates(values []string) ([]sandbox.State, error) {
	var states []sandbox.State
	for _, name := range strings.Split(strings.Join(values, ","), ",") {
		switch name {
		case "running":
			states = append(states, runningStates...)
		case "paused":
			states = append(states, pausedStates...)
		case "":
		default:
			return nil, invalid("query parameter \"state\" must be running or paused or both with a comma, got %q", name)
		}
	}
	if states == nil {
		return append(append(states, runningStates...), pausedStates...), nil
	}
	return states, nil
}

// parseMetadata reads a query string that came as a query value. Clients escape
// every key and value, make a query string of them, which escapes again, and
// put that into the URL, which escapes once more; the first of the three was
// undone by the URL parser.
func parseMetadata(v string) (map[string]string, error) {
	if v == "" {
		return nil, nil
	}
	bad := invalid("query parameter \"metadata\" must be key=value pairs joined by &, each key and value URL-encoded, got %q", v)
	whole, err := url.QueryUnescape(v)
	if err != nil {
		return nil, bad
	}
	m := map[string]string{}
	for _, pair := range strings.Split(whole, "&") {
		k, val, found := strings.Cut(pair, "=")
		if !found {
			return nil, bad
		}
		k, err1 := url.QueryUnescape(k)
		val, err2 := url.QueryUnescape(val)
		if err1 != nil || err2 != nil || k == "" {
			return nil, bad
		}
		m[k] = val
	}
	return m, nil
}

const (
	cursorSeparator = "__"
	cursorAscending = "asc"
)

// encodeCursor keeps the time to the nanosecond: a rounded one would skip what
// started between the two.
func encodeCursor(c sandbox.Cursor, ascending bool) string {
	s := c.StartedAt.UTC().Format(time.RFC3339Nano) + cursorSeparator + c.ID
	if ascending {
		s += cursorSeparator + cursorAscending
	}
	return base64.RawURLEncoding.EncodeToString([]byte(s))
}

func decodeCursor(token string) (c sandbox.Cursor, ascending bool, err error) {
	bad := invalid("query parameter \"nextToken\" is not one that a list gave")
	raw, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(token, "="))
	if err != nil {
		return c, false, bad
	}
	parts := strings.Split(string(raw), cursorSeparator)
	switch {
	case len(parts) == 3 && parts[2] == cursorAscending:
		ascending = true
	case len(parts) != 2:
		return c, false, bad
	}
	at, err := time.Parse(time.RFC3339Nano, parts[0])
	if err != nil || !idPattern.MatchString(parts[1]) {
		return c, false, bad
	}
	return sandbox.Cursor{StartedAt: at, ID: parts[1]}, ascending, nil
}

func limitOf(q url.Values, absent, most int) (int, error) {
	v := q.Get("limit")
	if v == "" {
		return absent, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > most {
		return 0, invalid("query parameter \"limit\" must be from 1 to %d, got %q", most, v)
	}
	return n, nil
}

func setNext(w http.ResponseWriter, token string) {
	if token != "" {
		w.Header().Set("X-Next-Token", token)
	}
}

// shortID drops the client id that older clients append.
func shortID(id string) string {
	id, _, _ = strings.Cut(id, "-")
	return id
}
