package client

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/holdfast-run/holdfast/guest/files"
)

// ReadFile opens a file of the sandbox for reading, from its beginning.
func (c *Client) ReadFile(ctx context.Context, path string) (io.ReadCloser, error) {
	resp, err := c.do(ctx, http.MethodGet, "/files?"+url.Values{"path": {path}}.Encode(), nil,
		http.Header{"Accept-Encoding": {"identity"}})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return resp.Body, nil
}

// WriteFile makes body the contents of a file of the sandbox, creating it and
// its parents.
func (c *Client) WriteFile(ctx context.Context, path string, body io.Reader) error {
	resp, err := c.do(ctx, http.MethodPost, "/files?"+url.Values{"path": {path}}.Encode(), body,
		http.Header{"Content-Type": {"application/octet-stream"}})
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer resp.Body.Close()
	var written []files.Written
	if err := json.NewDecoder(resp.Body).Decode(&written); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
