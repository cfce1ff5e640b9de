package e2b

import (
	"net/http"
	"strings"
	"time"

	"github.com/holdfast-run/holdfast/sandbox"
)

type template struct {
	TemplateID    string     `json:"templateID"`
	BuildID       string     `json:"buildID"`
	CPUCount      int        `json:"cpuCount"`
	MemoryMB      int        `json:"memoryMB"`
	DiskSizeMB    int        `json:"diskSizeMB"`
	Public        bool       `json:"public"`
	Aliases       []string   `json:"aliases"`
	Names         []string   `json:"names"`
	CreatedAt     time.Time  `json:"createdAt"`
	UpdatedAt     time.Time  `json:"updatedAt"`
	CreatedBy     *struct{}  `json:"createdBy"`
	LastSpawnedAt *time.Time `json:"lastSpawnedAt"`
	SpawnCount    int64      `json:"spawnCount"`
	BuildCount    int        `json:"buildCount"`
	EnvdVersion   string     `json:"envdVersion"`
	BuildStatus   string     `json:"buildStatus"`
}

// build is the one build that an imported template has. Its id is the
// template's.
type build struct {
	BuildID     string    `json:"buildID"`
	Status      string    `json:"status"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
	FinishedAt  time.Time `json:"finishedAt"`
	CPUCount    int       `json:"cpuCount"`
	MemoryMB    int       `json:"memoryMB"`
	DiskSizeMB  int       `json:"diskSizeMB"`
	EnvdVersion string    `json:"envdVersion"`
}

type templateWithBuilds struct {
	TemplateID    string     `json:"templateID"`
	Public        bool       `json:"public"`
	Aliases       []string   `json:"aliases"`
	Names         []string   `json:"names"`
	CreatedAt     time.Time  `json:"createdAt"`
	UpdatedAt     time.Time  `json:"updatedAt"`
	LastSpawnedAt *time.Time `json:"lastSpawnedAt"`
	SpawnCount    int64      `json:"spawnCount"`
	Builds        []build    `json:"builds"`
}

const buildReady = "ready"

func namesOf(t *sandbox.Template) []string {
	switch {
	case len(t.Names) > 0:
		return t.Names
	case t.Name != "":
		return []string{t.Name}
	}
	return []string{}
}

// aliasesOf are the names without tags, each once.
func aliasesOf(t *sandbox.Template) []string {
	list, seen := []string{}, map[string]bool{}
	for _, n := range namesOf(t) {
		a, _, _ := strings.Cut(n, ":")
		if !seen[a] {
			seen[a] = true
			list = append(list, a)
		}
	}
	return list
}

func lastSpawned(t *sandbox.Template) *time.Time {
	if t.LastUsedAt.IsZero() {
		return nil
	}
	at := t.LastUsedAt.UTC()
	return &at
}

// public tells whether a template belongs to no space, and so to all.
func public(t *sandbox.Template) bool { return t.Space == "" }

func toTemplate(t *sandbox.Template) template {
	return template{
		TemplateID: t.ID, BuildID: t.ID,
		CPUCount: t.Resources.CPUs, MemoryMB: t.Resources.MemoryMB, DiskSizeMB: t.Resources.DiskMB,
		Public: public(t), Aliases: aliasesOf(t), Names: namesOf(t),
		CreatedAt: t.CreatedAt.UTC(), UpdatedAt: t.CreatedAt.UTC(),
		LastSpawnedAt: lastSpawned(t), SpawnCount: t.SpawnCount, BuildCount: 1,
		EnvdVersion: EnvdVersion, BuildStatus: buildReady,
	}
}

func (s *Server) templater() (sandbox.Templater, error) {
	if tm, ok := s.backend.(sandbox.Templater); ok {
		return tm, nil
	}
	return nil, unsupported("a list of templates")
}

// templatesV1 gives all at once, as older clients cannot page.
func (s *Server) templatesV1(w http.ResponseWriter, c call) error {
	tm, err := s.templater()
	if err != nil {
		return err
	}
	out, token := []template{}, ""
	for {
		list, next, err := tm.Templates(c.Context(), sandbox.TemplateListOptions{Space: c.space, Limit: 100, Token: token})
		if err != nil {
			return err
		}
		for i := range list {
			out = append(out, toTemplate(&list[i]))
		}
		if next == "" || next == token {
			return reply(w, http.StatusOK, out)
		}
		token = next
	}
}

func (s *Server) templatesV2(w http.ResponseWriter, c call) error {
	tm, err := s.templater()
	if err != nil {
		return err
	}
	limit, err := limitOf(c.URL.Query(), 100, 100)
	if err != nil {
		return err
	}
	list, next, err := tm.Templates(c.Context(), sandbox.TemplateListOptions{
		Space: c.space, Limit: limit, Token: c.URL.Query().Get("nextToken"),
	})
	if err != nil {
		return err
	}
	out := make([]template, len(list))
	for i := range list {
		out[i] = toTemplate(&list[i])
	}
	setNext(w, next)
	return reply(w, http.StatusOK, out)
}

// ownTemplate gives the template in the path. exists tells a template of
// another space from none.
func (s *Server) ownTemplate(c call) (tm sandbox.Templater, t *sandbox.Template, exists bool, err error) {
	if tm, err = s.templater(); err != nil {
		return nil, nil, false, err
	}
	ref := c.PathValue("ref")
	missing := &wireError{http.StatusNotFound, "template '" + ref + "' not found"}
	t, err = tm.Template(c.Context(), ref)
	switch {
	case sandbox.IsKind(err, sandbox.NotFound):
		return nil, nil, false, missing
	case err != nil:
		return nil, nil, false, err
	case t.Space != c.space && !public(t):
		return nil, nil, true, missing
	}
	return tm, t, true, nil
}

func (s *Server) template(w http.ResponseWriter, c call) error {
	_, t, _, err := s.ownTemplate(c)
	if err != nil {
		return err
	}
	at := t.CreatedAt.UTC()
	return reply(w, http.StatusOK, templateWithBuilds{
		TemplateID: t.ID, Public: public(t), Aliases: aliasesOf(t), Names: namesOf(t),
		CreatedAt: at, UpdatedAt: at, LastSpawnedAt: lastSpawned(t), SpawnCount: t.SpawnCount,
		Builds: []build{{
			BuildID: t.ID, Status: buildReady, CreatedAt: at, UpdatedAt: at, FinishedAt: at,
			CPUCount: t.Resources.CPUs, MemoryMB: t.Resources.MemoryMB, DiskSizeMB: t.Resources.DiskMB,
			EnvdVersion: EnvdVersion,
		}},
	})
}

// deleteTemplate removes a template or a snapshot.
func (s *Server) deleteTemplate(w http.ResponseWriter, c call) error {
	tm, t, _, err := s.ownTemplate(c)
	if err != nil {
		return err
	}
	if public(t) && c.space != sandbox.DefaultSpace {
		return &wireError{http.StatusForbidden, "template '" + c.PathValue("ref") + "' belongs to the machine; remove it there"}
	}
	if err := tm.DeleteTemplate(c.Context(), c.PathValue("ref")); err != nil {
		return err
	}
	return noContent(w)
}

// alias answers "is this name taken": 403 says yes, by another.
func (s *Server) alias(w http.ResponseWriter, c call) error {
	_, t, exists, err := s.ownTemplate(c)
	if err != nil && exists {
		return &wireError{http.StatusForbidden, "template '" + c.PathValue("ref") + "' belongs to another space"}
	}
	if err != nil {
		return err
	}
	return reply(w, http.StatusOK, map[string]any{"templateID": t.ID, "public": public(t)})
}

// teams tells of the one team a key opens. The key is not repeated.
func (s *Server) teams(w http.ResponseWriter, c call) error {
	return reply(w, http.StatusOK, []map[string]any{
		{"teamID": c.space, "name": c.space, "apiKey": "", "isDefault": true},
	})
}
