package v1

import (
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-run/holdfast/sandbox"
)

func (s *server) listTemplates(snapshots bool) func(http.ResponseWriter, *call) error {
	return func(w http.ResponseWriter, c *call) error {
		t, err := ability[sandbox.Templater](s, "template list")
		if err != nil {
			return err
		}
		q := c.URL.Query()
		o := sandbox.TemplateListOptions{Space: c.space, Snapshots: snapshots, Name: q.Get("name"), Token: q.Get("cursor")}
		if o.Limit, err = limit(q.Get("limit")); err != nil {
			return err
		}
		if ref := q.Get("sandbox"); ref != "" {
			o.SourceID = ref
			if !sandbox.ValidID(ref) {
				sb, err := s.find(c.Context(), c.space, ref)
				if err != nil {
					return err
				}
				o.SourceID = sb.ID
			}
		}
		list, next, err := t.Templates(c.Context(), o)
		if err != nil {
			return err
		}
		out := TemplateList{Templates: make([]Template, len(list)), Cursor: next}
		for i := range list {
			out.Templates[i] = fromTemplate(&list[i])
		}
		reply(w, http.StatusOK, out)
		return nil
	}
}

func (s *server) getTemplate(snapshots bool) func(http.ResponseWriter, *call) error {
	return func(w http.ResponseWriter, c *call) error {
		t, err := ability[sandbox.Templater](s, "template")
		if err != nil {
			return err
		}
		found, err := s.findTemplate(c.Context(), t, c.space, c.PathValue("ref"), snapshots)
		if err != nil {
			return err
		}
		reply(w, http.StatusOK, fromTemplate(found))
		return nil
	}
}

func (s *server) deleteTemplate(snapshots bool) func(http.ResponseWriter, *call) error {
	return func(w http.ResponseWriter, c *call) error {
		t, err := ability[sandbox.Templater](s, "template removal")
		if err != nil {
			return err
		}
		found, err := s.findTemplate(c.Context(), t, c.space, c.PathValue("ref"), snapshots)
		if err != nil {
			return err
		}
		if err := t.DeleteTemplate(c.Context(), found.ID); err != nil {
			return err
		}
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
}

func (s *server) importTemplate(w http.ResponseWriter, c *call) error {
	im, err := ability[sandbox.Importer](s, "template import")
	if err != nil {
		return err
	}
	o := sandbox.ImportOptions{Space: c.space}
	var req ImportRequest
	if kind, _, _ := mime.ParseMediaType(c.Header.Get("Content-Type")); kind == "application/json" {
		err = decode(c.Request, &req)
	} else {
		req, err = importQuery(c.URL.Query())
		o.Archive = c.Body
	}
	if err != nil {
		return err
	}
	if req.Name == "" {
		return sandbox.Errorf(sandbox.InvalidRequest, "field name", "is missing").WithNext("say what the template is to be called")
	}
	if o.Archive == nil && !c.local && isNodePath(req.Source) {
		return forbidden("import from the node's own path " + req.Source)
	}
	o.Name, o.Source, o.Resources = req.Name, req.Source, sandbox.Resources(req.Resources)

	w.Header().Set("Content-Type", "application/x-ndjson")
	lines := &lineWriter{w: w}
	o.Progress = func(st sandbox.Step) {
		lines.write(ImportProgress{Step: &Step{Name: st.Name, Detail: st.Detail, DoneBytes: st.Done, TotalBytes: st.Total}})
	}
	t, err := im.ImportTemplate(c.Context(), o)
	if err != nil && !lines.begun() {
		return err // nothing was sent yet: the status can say it
	}
	last := ImportProgress{Error: wireErrorOrNil(err)}
	if err == nil {
		wire := fromTemplate(t)
		last.Template = &wire
	}
	lines.write(last)
	return nil
}

func wireErrorOrNil(err error) *Error {
	if err == nil {
		return nil
	}
	return wireError(err)
}

func importQuery(q url.Values) (ImportRequest, error) {
	req := ImportRequest{Name: q.Get("name"), Source: q.Get("source")}
	for field, n := range map[string]*int{"cpus": &req.Resources.CPUs, "memory_mb": &req.Resources.MemoryMB, "disk_mb": &req.Resources.DiskMB} {
		if v := q.Get(field); v != "" {
			var err error
			if *n, err = strconv.Atoi(v); err != nil || *n < 0 {
				return req, sandbox.Errorf(sandbox.InvalidRequest, field, "must be a whole number, not %q", v)
			}
		}
	}
	return req, nil
}

// archivePattern is what a bare file name must end with to be taken for one.
var archivePattern = regexp.MustCompile(`\.(tar|tgz|tzst|txz|tbz2?)(\.|$)`)

// isNodePath tells whether a source would make the node read its own files.
// When in doubt it would.
func isNodePath(source string) bool {
	if scheme, _, ok := strings.Cut(source, "://"); ok {
		return scheme != "docker" && scheme != "debootstrap"
	}
	file, _, tagged := strings.Cut(source, "#")
	for _, kind := range []string{"oci:", "tar:", "dir:", "file:", "path:"} {
		if strings.HasPrefix(source, kind) {
			return true
		}
	}
	return tagged || strings.HasPrefix(file, "/") || strings.HasPrefix(file, ".") || strings.HasPrefix(file, "~") || archivePattern.MatchString(file)
}

// lineWriter writes NDJSON and flushes every line.
type lineWriter struct {
	mu   sync.Mutex
	w    http.ResponseWriter
	sent bool
}

func (l *lineWriter) write(v any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent = true
	// A client that is gone is noticed by the request's context.
	_ = json.NewEncoder(l.w).Encode(v)
	_ = http.NewResponseController(l.w).Flush()
}

func (l *lineWriter) begun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sent
}
