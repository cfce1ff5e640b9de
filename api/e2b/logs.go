package e2b

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

const (
	maxLogs   = 1000
	maxSearch = 256
	maxMany   = 100 // sandboxes in one request for metrics
)

type logEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

type logLine struct {
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line"`
}

// levels in rising order.
var levels = []string{"debug", "info", "warn", "error"}

// levelOf gives the level of an event: the one it carries, or else by its kind.
func levelOf(e *sandbox.Event) string {
	if l := e.Fields["level"]; slices.Contains(levels, l) {
		return l
	}
	switch e.Kind {
	case "oom", "crashed", "failed":
		return "error"
	}
	return "info"
}

// entries gives a sandbox's events as log entries, oldest first.
func (s *Server) entries(c call) ([]logEntry, error) {
	rec, ok := s.backend.(sandbox.Recorder)
	if !ok {
		return nil, unsupported("a sandbox's log")
	}
	sb, err := s.own(c)
	if err != nil {
		return nil, err
	}
	events, err := rec.Events(c.Context(), sb.ID, sandbox.EventOptions{})
	if err != nil {
		return nil, c.gone(err)
	}
	list := make([]logEntry, len(events))
	for i := range events {
		e := &events[i]
		fields := map[string]string{"event": e.Kind, "sandboxID": sb.ID}
		for k, v := range e.Fields {
			fields[k] = v
		}
		message := e.Message
		if message == "" {
			message = e.Kind
		}
		list[i] = logEntry{Timestamp: e.Time.UTC(), Message: message, Level: levelOf(e), Fields: fields}
	}
	return list, nil
}

func (s *Server) logsV1(w http.ResponseWriter, c call) error {
	q := c.URL.Query()
	limit, err := limitOf(q, maxLogs, maxLogs)
	if err != nil {
		return err
	}
	start, err := millis(q, "start")
	if err != nil {
		return err
	}
	list, err := s.entries(c)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(e logEntry) bool { return e.Timestamp.Before(start) })
	list = list[:min(limit, len(list))]
	lines := make([]logLine, len(list))
	for i, e := range list {
		lines[i] = logLine{Timestamp: e.Timestamp, Line: e.Message}
	}
	return reply(w, http.StatusOK, map[string]any{"logs": lines, "logEntries": list})
}

func (s *Server) logsV2(w http.ResponseWriter, c call) error {
	q := c.URL.Query()
	limit, err := limitOf(q, maxLogs, maxLogs)
	if err != nil {
		return err
	}
	cursor, err := millis(q, "cursor")
	if err != nil {
		return err
	}
	backward := false
	switch d := q.Get("direction"); d {
	case "backward":
		backward = true
	case "forward", "":
	default:
		return invalid("query parameter \"direction\" must be forward or backward, got %q", d)
	}
	least := 0
	if l := q.Get("level"); l != "" {
		if least = slices.Index(levels, l); least < 0 {
			return invalid("query parameter \"level\" must be one of %s, got %q", strings.Join(levels, ", "), l)
		}
	}
	search := q.Get("search")
	if len(search) > maxSearch {
		return invalid("query parameter \"search\" must not be longer than %d bytes", maxSearch)
	}
	list, err := s.entries(c)
	if err != nil {
		return err
	}
	list = slices.DeleteFunc(list, func(e logEntry) bool {
		beyond := e.Timestamp.Before(cursor)
		if backward {
			beyond = !cursor.IsZero() && e.Timestamp.After(cursor)
		}
		return beyond || slices.Index(levels, e.Level) < least || !strings.Contains(e.Message, search)
	})
	if backward {
		slices.Reverse(list)
	}
	return reply(w, http.StatusOK, map[string]any{"logs": list[:min(limit, len(list))]})
}

// millis reads a time in milliseconds since 1970; zero when absent.
func millis(q url.Values, name string) (time.Time, error) {
	v := q.Get(name)
	if v == "" {
		return time.Time{}, nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		return time.Time{}, invalid("query parameter %q must be milliseconds since 1970, got %q", name, v)
	}
	return time.UnixMilli(n), nil
}

// metrics gives the sandbox's present use: no history is kept, so start and end
// only decide whether it falls between them. A paused one uses nothing.
func (s *Server) metrics(w http.ResponseWriter, c call) error {
	start, end, err := metricRange(c.URL.Query())
	if err != nil {
		return err
	}
	rec, ok := s.backend.(sandbox.Recorder)
	if !ok {
		return unsupported("a sandbox's metrics")
	}
	sb, err := s.own(c)
	if err != nil {
		return err
	}
	out := []metric{}
	if sb.State == sandbox.Running {
		m, err := rec.Metric(c.Context(), sb.ID)
		if err != nil && !sandbox.IsKind(err, sandbox.Conflict) { // paused meanwhile
			return c.gone(err)
		}
		if m != nil && m.Time.Unix() >= start && m.Time.Unix() <= end {
			out = append(out, toMetric(m))
		}
	}
	return reply(w, http.StatusOK, out)
}

func metricRange(q url.Values) (start, end int64, err error) {
	end = 1<<63 - 1
	for name, into := range map[string]*int64{"start": &start, "end": &end} {
		v := q.Get(name)
		if v == "" {
			continue
		}
		if *into, err = strconv.ParseInt(v, 10, 64); err != nil || *into < 0 {
			return 0, 0, invalid("query parameter %q must be seconds since 1970, got %q", name, v)
		}
	}
	if start > end {
		return 0, 0, invalid("query parameter \"start\" must not be after \"end\"")
	}
	return start, end, nil
}

// metricsOfMany leaves out what is not running or not the caller's.
func (s *Server) metricsOfMany(w http.ResponseWriter, c call) error {
	rec, ok := s.backend.(sandbox.Recorder)
	if !ok {
		return unsupported("metrics of sandboxes")
	}
	ids := strings.FieldsFunc(strings.Join(c.URL.Query()["sandbox_ids"], ","), func(r rune) bool { return r == ',' })
	if len(ids) == 0 || len(ids) > maxMany {
		return invalid("query parameter \"sandbox_ids\" must name 1 to %d sandboxes, joined by commas, got %d", maxMany, len(ids))
	}
	out := map[string]metric{}
	for _, id := range ids {
		id = shortID(id)
		sb, err := s.backend.Get(c.Context(), id)
		if err != nil || sb.Space != c.space || sb.State != sandbox.Running {
			continue
		}
		if m, err := rec.Metric(c.Context(), id); err == nil && m != nil {
			out[id] = toMetric(m)
		}
	}
	return reply(w, http.StatusOK, map[string]any{"sandboxes": out})
}
