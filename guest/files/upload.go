package files

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/holdfast-run/holdfast/guest/account"
)

// Written is what POST /files answers for each file.
type Written struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"` // always "file"
	Metadata map[string]string `json:"metadata,omitempty"`
}

// Upload serves POST /files: one file as the body, or many as multipart parts.
func (s *Service) Upload(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	u := account.FromContext(r.Context())
	var err error
	if name := query.Get("username"); name != "" {
		u, err = s.accounts.Lookup(name)
	}
	if err != nil {
		Drain(r)
		Fail(w, http.StatusUnauthorized, err.Error())
		return
	}
	up := &upload{service: s, user: u, seen: map[string]bool{}}
	if up.metadata, err = metadataOf(r.Header); err == nil {
		err = up.receive(r, query.Get("path"))
	}
	if err != nil {
		Drain(r)
		fail(w, up.path, err)
		return
	}
	answer(w, http.StatusOK, up.written)
}

type upload struct {
	service  *Service
	user     account.User
	metadata map[string]string
	written  []Written
	seen     map[string]bool
	path     string // of the file in progress
}

func (up *upload) receive(r *http.Request, path string) error {
	body, err := decode(r)
	if err != nil {
		return err
	}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return invalid("content type %q cannot be read; send multipart/form-data or application/octet-stream", r.Header.Get("Content-Type"))
	}
	switch kind {
	case "application/octet-stream":
		if path == "" {
			return invalid("query parameter path is missing; name the file to write")
		}
		return up.write(r.Context(), path, body)
	case "multipart/form-data":
		return up.parts(r.Context(), multipart.NewReader(body, params["boundary"]), path)
	}
	return invalid("content type %q is not supported; send multipart/form-data or application/octet-stream", kind)
}

// parts writes every part named "file", to path or where its file name says.
func (up *upload) parts(ctx context.Context, mr *multipart.Reader, path string) error {
	for {
		part, err := mr.NextRawPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return invalid("multipart body cannot be read: %w", err)
		}
		name, file := partName(part)
		if name != "file" {
			continue
		}
		to := path
		if to == "" {
			to = file
		}
		if to == "" {
			return invalid("a part has no file name and there is no query parameter path; give one of them")
		}
		if err := up.write(ctx, to, part); err != nil {
			return err
		}
	}
	if len(up.written) == 0 {
		return invalid("the form has no part named \"file\"")
	}
	return nil
}

// partName gives a part's form name and its whole file name: the standard
// library's FileName keeps only the last element of a path.
func partName(p *multipart.Part) (name, file string) {
	_, params, err := mime.ParseMediaType(p.Header.Get("Content-Disposition"))
	if err != nil {
		return "", ""
	}
	return params["name"], params["filename"]
}

func (up *upload) write(ctx context.Context, path string, body io.Reader) (err error) {
	up.path = path
	abs, err := up.service.resolve(up.user, path)
	if err != nil {
		return err
	}
	up.path = abs
	if up.seen[abs] {
		return invalid("path '%s' comes twice in one request; only the first was written", abs)
	}
	up.seen[abs] = true
	f, existed, err := create(up.user, abs)
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
	}()
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return errors.Join(err, invalid("path '%s' is not a regular file", abs))
	}
	if len(up.metadata) > 0 || existed {
		if err := writeMetadata(f, up.metadata, existed); err != nil {
			return err
		}
	}
	if err := fill(f, body); err != nil {
		return err
	}
	up.written = append(up.written, Written{Path: abs, Name: filepath.Base(abs), Type: "file", Metadata: up.metadata})
	return nil
}

// copyBuffers are larger than io.Copy's: each write inside a sandbox is a trip to the host.
var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

func fill(f *os.File, body io.Reader) error {
	buf := copyBuffers.Get().(*[]byte)
	defer copyBuffers.Put(buf)
	in := &source{r: body}
	_, err := io.CopyBuffer(struct{ io.Writer }{f}, in, *buf)
	if in.err != nil {
		return invalid("the body broke off: %w", in.err)
	}
	return err
}

// source fills the whole buffer before it is written, and tells apart whose error it was.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var m int
		m, err = s.r.Read(b[n:])
		n += m
	}
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

func decode(r *http.Request) (io.Reader, error) {
	switch coding := strings.ToLower(strings.TrimSpace(r.Header.Get("Content-Encoding"))); coding {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		zr, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, invalid("body is not gzip as Content-Encoding says: %w", err)
		}
		return zr, nil
	default:
		return nil, invalid("content encoding %q is not supported; send gzip or none", coding)
	}
}

// metadataOf reads X-Metadata-<key> headers. Header names have no case: keys are lower.
func metadataOf(h http.Header) (map[string]string, error) {
	const prefix = "X-Metadata-"
	var meta map[string]string
	total := 0
	for name, values := range h {
		key, ok := strings.CutPrefix(name, prefix)
		if !ok || key == "" || len(values) == 0 {
			continue
		}
		if len(key) > maxMetadataKey {
			return nil, invalid("metadata key %q has %d bytes; at most %d fit", key, len(key), maxMetadataKey)
		}
		if total += len(key) + len(values[0]); total > maxMetadataTotal {
			return nil, invalid("metadata is larger than %d bytes; shorten it", maxMetadataTotal)
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[strings.ToLower(key)] = values[0]
	}
	return meta, nil
}
