package v1

import (
	"net/http"
	"strconv"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// followEvery is how often a followed history is looked at; heartbeatEvery how
// often a quiet stream proves that its client is still there.
const (
	followEvery    = 200 * time.Millisecond
	heartbeatEvery = 15 * time.Second
)

func (s *server) events(w http.ResponseWriter, c *call) error {
	rec, err := ability[sandbox.Recorder](s, "event history")
	if err != nil {
		return err
	}
	var o sandbox.EventOptions
	if v := c.URL.Query().Get("since"); v != "" {
		if o.Since, err = strconv.ParseInt(v, 10, 64); err != nil || o.Since < 0 {
			return sandbox.Errorf(sandbox.InvalidRequest, "since", "must be the seq of an event, not %q", v)
		}
	}
	if v := c.URL.Query().Get("limit"); v != "" {
		if o.Limit, err = strconv.Atoi(v); err != nil || o.Limit < 1 {
			return sandbox.Errorf(sandbox.InvalidRequest, "limit", "must be 1 or more, not %q", v)
		}
	}
	sb, err := s.find(c.Context(), c.space, c.PathValue("ref"))
	if err != nil {
		return err
	}
	list, err := rec.Events(c.Context(), sb.ID, o)
	if err != nil {
		return err
	}
	if c.URL.Query().Get("follow") != "1" {
		out := EventList{Events: make([]Event, len(list))}
		for i, e := range list {
			out.Events[i] = fromEvent(e)
		}
		reply(w, http.StatusOK, out)
		return nil
	}
	return s.follow(w, c, rec, sb.ID, list, o.Since)
}

// follow streams events until the sandbox or the client is gone. Empty lines
// are heartbeats.
func (s *server) follow(w http.ResponseWriter, c *call, rec sandbox.Recorder, id string, list []sandbox.Event, since int64) error {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	lines := &lineWriter{w: w}
	tick := time.NewTicker(followEvery)
	defer tick.Stop()
	beat := time.NewTicker(heartbeatEvery)
	defer beat.Stop()
	for gone := false; ; {
		for _, e := range list {
			lines.write(fromEvent(e))
			since = e.Seq
		}
		if gone {
			return nil
		}
		select {
		case <-c.Context().Done():
			return nil
		case <-beat.C:
			if _, err := w.Write([]byte("\n")); err != nil {
				return nil // the client is gone: nobody to tell
			}
			_ = http.NewResponseController(w).Flush()
		case <-tick.C:
		}
		_, err := s.Backend.Get(c.Context(), id)
		gone = sandbox.IsKind(err, sandbox.NotFound)
		if list, err = rec.Events(c.Context(), id, sandbox.EventOptions{Since: since}); err != nil {
			return nil // its history went with the sandbox, or the daemon stops: the stream ends
		}
	}
}
