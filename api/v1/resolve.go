package v1

import (
	"context"
	"encoding/base64"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

// allStates is what a reference may point to: everything that can be deleted.
var allStates = []sandbox.State{
	sandbox.Creating, sandbox.Running, sandbox.Pausing, sandbox.Paused,
	sandbox.Resuming, sandbox.Failed, sandbox.Deleting,
}

// pageSize is how many sandboxes or templates are asked for at once.
const pageSize = 100

func noSandbox(ref string) error {
	return sandbox.Errorf(sandbox.NotFound, `sandbox "`+ref+`"`, "does not exist").WithNext("`holdfast ps` lists those that do")
}

// find gives the one sandbox that ref names: an id, a metadata name, or the
// beginning of an id, in this order. Another space's sandbox does not exist.
func (s *server) find(ctx context.Context, space, ref string) (*sandbox.Sandbox, error) {
	if sandbox.ValidID(ref) {
		sb, err := s.Backend.Get(ctx, ref)
		if err != nil {
			return nil, err
		}
		if sb.Space != space {
			return nil, noSandbox(ref)
		}
		return sb, nil
	}
	named, err := s.search(ctx, sandbox.ListOptions{Space: space, Metadata: map[string]string{NameKey: ref}}, nil, noLimit)
	if err != nil {
		return nil, err
	}
	if len(named) > 1 {
		// Forks have the metadata, and so the name, of their original: it goes first.
		oldest := slices.MinFunc(named, func(a, b sandbox.Sandbox) int { return a.CreatedAt.Compare(b.CreatedAt) })
		named = []sandbox.Sandbox{oldest}
	}
	if len(named) == 0 && strings.HasPrefix(ref, "i") {
		named, err = s.search(ctx, sandbox.ListOptions{Space: space}, func(id string) bool { return strings.HasPrefix(id, ref) }, 2)
		if err != nil {
			return nil, err
		}
	}
	switch len(named) {
	case 0:
		return nil, noSandbox(ref)
	case 1:
		// The list may leave out tokens; Get does not.
		return s.Backend.Get(ctx, named[0].ID)
	}
	return nil, sandbox.Errorf(sandbox.Conflict, `sandbox "`+ref+`"`, "is ambiguous: %s and %s", named[0].ID, named[1].ID).
		WithNext("give more of the id")
}

const noLimit = math.MaxInt

// search walks pages and gives the sandboxes that match, until there are enough.
func (s *server) search(ctx context.Context, o sandbox.ListOptions, match func(id string) bool, enough int) ([]sandbox.Sandbox, error) {
	o.States, o.Limit = allStates, pageSize
	var found []sandbox.Sandbox
	for {
		page, err := s.Backend.List(ctx, o)
		if err != nil {
			return nil, err
		}
		for _, sb := range page.Sandboxes {
			if match == nil || match(sb.ID) {
				found = append(found, sb)
			}
		}
		if len(found) >= enough || page.Next == nil {
			return found, nil
		}
		o.After = *page.Next
	}
}

// findTemplate gives the template (or snapshot) that ref names: what the backend
// knows by it, or the one whose id begins with it.
func (s *server) findTemplate(ctx context.Context, t sandbox.Templater, space, ref string, snapshots bool) (*sandbox.Template, error) {
	what := "template"
	if snapshots {
		what = "snapshot"
	}
	missing := sandbox.Errorf(sandbox.NotFound, what+` "`+ref+`"`, "does not exist").WithNext("`holdfast %s ls` lists those that do", what)
	switch found, err := t.Template(ctx, ref); {
	case err == nil && found.Space == space && found.Snapshot == snapshots:
		return found, nil
	case err == nil && found.Space == space:
		other := map[bool]string{true: "snapshot", false: "template"}[found.Snapshot]
		return nil, missing.WithNext("a %s of that name does: use `holdfast %s`", other, other)
	case err != nil && !sandbox.IsKind(err, sandbox.NotFound):
		return nil, err
	}
	var matches []sandbox.Template
	o := sandbox.TemplateListOptions{Space: space, Snapshots: snapshots, Limit: pageSize}
	for {
		list, next, err := t.Templates(ctx, o)
		if err != nil {
			return nil, err
		}
		for _, t := range list {
			if strings.HasPrefix(t.ID, ref) {
				matches = append(matches, t)
			}
		}
		if next == "" {
			break
		}
		o.Token = next
	}
	switch {
	case ref == "" || len(matches) == 0:
		return nil, missing
	case len(matches) > 1:
		return nil, sandbox.Errorf(sandbox.Conflict, what+` "`+ref+`"`, "is ambiguous: %s and %s", matches[0].ID, matches[1].ID).
			WithNext("give more of the id")
	}
	return &matches[0], nil
}

func encodeCursor(c *sandbox.Cursor) string {
	if c == nil {
		return ""
	}
	return base64.RawURLEncoding.EncodeToString([]byte(c.StartedAt.UTC().Format(time.RFC3339Nano) + " " + c.ID))
}

func decodeCursor(s string) (sandbox.Cursor, error) {
	if s == "" {
		return sandbox.Cursor{}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err == nil {
		when, id, _ := strings.Cut(string(b), " ")
		var t time.Time
		if t, err = time.Parse(time.RFC3339Nano, when); err == nil && sandbox.ValidID(id) {
			return sandbox.Cursor{StartedAt: t, ID: id}, nil
		}
	}
	return sandbox.Cursor{}, sandbox.Errorf(sandbox.InvalidRequest, "cursor", "is not one of this API").WithNext("start again without it")
}
