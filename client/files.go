package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/holdfast-run/holdfast/guest/proto/filesystempb"
	"github.com/holdfast-run/holdfast/sandbox"
)

// killPatience bounds the wait for a kill after a context has ended.
const killPatience = 5 * time.Second

// Entry describes a file or folder inside.
type Entry struct {
	Name    string
	Path    string
	Dir     bool
	Size    int64
	Mode    uint32 // permission bits
	Owner   string
	Group   string
	ModTime time.Time
	Target  string // of a symbolic link
}

// Files is the sandbox's file system as one user sees it.
type Files struct {
	s    *Sandbox
	user string
}

// Files gives the file system as user sees it; "" is the default user. Relative
// paths start at that user's home or the default workdir.
func (s *Sandbox) Files(user string) *Files { return &Files{s: s, user: user} }

// Open reads a file as a stream.
func (f *Files) Open(ctx context.Context, path string) (io.ReadCloser, error) {
	res, err := f.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Write makes or replaces a file, and the folders above it, with what r gives.
func (f *Files) Write(ctx context.Context, path string, r io.Reader) error {
	res, err := f.do(ctx, http.MethodPost, path, r)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// Stat describes a file or folder.
func (f *Files) Stat(ctx context.Context, path string) (*Entry, error) {
	res, err := f.s.filesystem(f.user).Stat(ctx, &filesystempb.StatRequest{Path: path})
	if err != nil {
		return nil, f.s.guestError(quoted(path), err)
	}
	e := entry(res.GetEntry())
	return &e, nil
}

// Exists tells whether there is something at path.
func (f *Files) Exists(ctx context.Context, path string) (bool, error) {
	_, err := f.Stat(ctx, path)
	if sandbox.IsKind(err, sandbox.NotFound) {
		var e *sandbox.Error
		if errors.As(err, &e) && e.Thing == f.s.thing() {
			return false, err // it is the sandbox that is not there
		}
		return false, nil
	}
	return err == nil, err
}

// ReadDir lists a folder, depth levels deep (at least 1).
func (f *Files) ReadDir(ctx context.Context, path string, depth int) ([]Entry, error) {
	req := &filesystempb.ListDirRequest{Path: path, Depth: uint32(max(1, depth))} //nolint:gosec // not negative
	res, err := f.s.filesystem(f.user).ListDir(ctx, req)
	if err != nil {
		return nil, f.s.guestError(quoted(path), err)
	}
	out := make([]Entry, len(res.GetEntries()))
	for i, e := range res.GetEntries() {
		out[i] = entry(e)
	}
	return out, nil
}

// Mkdir makes a folder and those above it. It is a Conflict when there is one.
func (f *Files) Mkdir(ctx context.Context, path string) error {
	_, err := f.s.filesystem(f.user).MakeDir(ctx, &filesystempb.MakeDirRequest{Path: path})
	return f.s.guestError(quoted(path), err)
}

// Rename moves a file or folder, making the folders above its new place.
func (f *Files) Rename(ctx context.Context, from, to string) error {
	_, err := f.s.filesystem(f.user).Move(ctx, &filesystempb.MoveRequest{Source: from, Destination: to})
	return f.s.guestError(quoted(from), err)
}

// Remove removes a file, or a folder with all in it. Nothing there is no error.
func (f *Files) Remove(ctx context.Context, path string) error {
	_, err := f.s.filesystem(f.user).Remove(ctx, &filesystempb.RemoveRequest{Path: path})
	return f.s.guestError(quoted(path), err)
}

func (f *Files) do(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	q := url.Values{"path": {path}}
	if f.user != "" {
		q.Set("username", f.user)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://guest/files?"+q.Encode(), body)
	if err != nil {
		return nil, f.s.guestError(quoted(path), err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	res, err := f.s.guest("").Do(req)
	if err != nil {
		return nil, f.s.guestError(quoted(path), err)
	}
	if res.StatusCode/100 == 2 {
		return res, nil
	}
	defer res.Body.Close()
	return nil, f.failed(path, res)
}

var kindOfStatus = map[int]sandbox.Kind{
	http.StatusBadRequest:          sandbox.InvalidRequest,
	http.StatusUnauthorized:        sandbox.Authentication,
	http.StatusForbidden:           sandbox.Authentication,
	http.StatusNotFound:            sandbox.NotFound,
	http.StatusInsufficientStorage: sandbox.Capacity,
	http.StatusTooManyRequests:     sandbox.Capacity,
	http.StatusBadGateway:          sandbox.Unavailable,
}

func (f *Files) failed(path string, res *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10)) // what is missing shows below
	var wire struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(body, &wire) != nil || wire.Message == "" {
		wire.Message = res.Status
	}
	kind, ok := kindOfStatus[res.StatusCode]
	if !ok {
		kind = sandbox.Internal
	}
	return &sandbox.Error{Kind: kind, Thing: quoted(path), Reason: "in " + f.s.thing() + " failed: " + wire.Message}
}

func quoted(path string) string { return "path " + strconv.Quote(path) }

func entry(e *filesystempb.EntryInfo) Entry {
	return Entry{
		Name: e.GetName(), Path: e.GetPath(), Dir: e.GetType() == filesystempb.FileType_FILE_TYPE_DIRECTORY,
		Size: e.GetSize(), Mode: e.GetMode(), Owner: e.GetOwner(), Group: e.GetGroup(),
		ModTime: e.GetModifiedTime().AsTime(), Target: e.GetSymlinkTarget(),
	}
}
