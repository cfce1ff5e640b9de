package client

import (
	"context"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Templates gives all templates.
func (c *Client) Templates(ctx context.Context) iter.Seq2[v1.Template, error] {
	return c.templates(ctx, "/v1/templates", url.Values{})
}

// Snapshots gives all snapshots, or those of one sandbox (id, prefix or name).
func (c *Client) Snapshots(ctx context.Context, ofSandbox string) iter.Seq2[v1.Template, error] {
	q := url.Values{}
	if ofSandbox != "" {
		q.Set("sandbox", ofSandbox)
	}
	return c.templates(ctx, "/v1/snapshots", q)
}

func (c *Client) templates(ctx context.Context, path string, q url.Values) iter.Seq2[v1.Template, error] {
	return func(yield func(v1.Template, error) bool) {
		for {
			page, err := get[v1.TemplateList](ctx, c, path, q)
			if err != nil {
				yield(v1.Template{}, err)
				return
			}
			for _, t := range page.Templates {
				if !yield(t, nil) {
					return
				}
			}
			if page.Cursor == "" {
				return
			}
			q.Set("cursor", page.Cursor)
		}
	}
}

// Template finds a template by id, unique prefix of one, or name.
func (c *Client) Template(ctx context.Context, ref string) (*v1.Template, error) {
	return get[v1.Template](ctx, c, "/v1/templates/"+url.PathEscape(ref), nil)
}

// DeleteTemplate removes a template; sandboxes made from it go on.
func (c *Client) DeleteTemplate(ctx context.Context, ref string) error {
	return c.delete(ctx, "/v1/templates/"+url.PathEscape(ref))
}

// DeleteSnapshot removes a snapshot; sandboxes made from it go on.
func (c *Client) DeleteSnapshot(ctx context.Context, ref string) error {
	return c.delete(ctx, "/v1/snapshots/"+url.PathEscape(ref))
}

// Import makes a template from r.Source, or, when archive is not nil, from the
// archive: docker save, OCI archive or root file system, compressed or not.
// progress may be nil.
func (c *Client) Import(ctx context.Context, r v1.ImportRequest, archive io.Reader, progress func(v1.Step)) (*v1.Template, error) {
	var res *http.Response
	var err error
	if archive != nil {
		q := url.Values{"name": {r.Name}}
		for k, n := range map[string]int{"cpus": r.Resources.CPUs, "memory_mb": r.Resources.MemoryMB, "disk_mb": r.Resources.DiskMB} {
			if n != 0 {
				q.Set(k, strconv.Itoa(n))
			}
		}
		res, err = c.send(ctx, http.MethodPost, "/v1/templates", q, archive, "application/octet-stream")
	} else {
		res, err = c.sendJSON(ctx, "/v1/templates", r)
	}
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	for lines := json.NewDecoder(res.Body); ; {
		var p v1.ImportProgress
		if err := lines.Decode(&p); err != nil {
			return nil, sandbox.Errorf(sandbox.Unavailable, "import of "+r.Name, "broke off before its result: %w", err).
				WithNext("`holdfast template ls` tells whether it is there; the daemon's log says more")
		}
		switch {
		case p.Error != nil:
			return nil, p.Error.Err()
		case p.Template != nil:
			return p.Template, nil
		case p.Step != nil && progress != nil:
			progress(*p.Step)
		}
	}
}
