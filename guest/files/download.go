package files

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/guest/account"
)

// Download serves GET /files: the bytes of one file.
func (s *Service) Download(w http.ResponseWriter, r *http.Request) {
	u, ok := s.userOf(w, r, r.URL.Query().Get("username"))
	if !ok {
		return
	}
	path, err := s.resolve(u, r.URL.Query().Get("path"))
	if err != nil {
		fail(w, r.URL.Query().Get("path"), err)
		return
	}
	coding := chooseCoding(r.Header.Get("Accept-Encoding"))
	if coding == codingNone {
		Fail(w, http.StatusNotAcceptable, "no acceptable encoding; accept gzip or identity")
		return
	}
	f, fi, err := openRegular(u, path)
	if err != nil {
		fail(w, path, err)
		return
	}
	defer f.Close()
	h := w.Header()
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": filepath.Base(path)}))
	h.Set("Vary", "Accept-Encoding")
	sized := fi.Size() > 0 && !synthetic(f)
	if coding == codingGzip && r.Header.Get("Range") == "" {
		h.Set("Content-Encoding", "gzip")
		h.Set("Content-Type", contentType(f, sized))
		zw, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // only a wrong level fails
		if _, err := io.Copy(zw, f); err == nil {
			_ = zw.Close()
		} else {
			panic(http.ErrAbortHandler) // the client must not take it for the whole
		}
		return
	}
	h.Set("Content-Type", contentType(f, sized))
	if sized {
		http.ServeContent(w, r, "", fi.ModTime(), f)
		return
	}
	// The kernel makes these up while they are read, whatever size it states.
	if _, err := io.Copy(w, f); err != nil {
		panic(http.ErrAbortHandler)
	}
}

func openRegular(u account.User, path string) (f *os.File, fi os.FileInfo, err error) {
	err = u.Do(func() (err error) {
		// Opening a FIFO would wait for a writer without O_NONBLOCK.
		f, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	fi, err = f.Stat()
	switch {
	case err != nil:
	case fi.IsDir():
		err = invalid("path '%s' is a directory", path)
	case !fi.Mode().IsRegular():
		err = invalid("path '%s' is not a regular file", path)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, err
	}
	return f, fi, nil
}

// synthetic tells whether f is of a file system whose stated sizes mean nothing.
func synthetic(f *os.File) bool {
	var st unix.Statfs_t
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	if ctl := conn.Control(func(fd uintptr) { err = unix.Fstatfs(int(fd), &st) }); ctl != nil || err != nil {
		return false
	}
	switch uint32(st.Type) {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC:
		return true
	}
	return false
}

// contentType looks at the beginning. By name would be the other way, but that
// reads the system's whole table of types into memory that never gets free.
func contentType(f *os.File, sized bool) string {
	if !sized {
		return "application/octet-stream"
	}
	head := make([]byte, 512)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "application/octet-stream"
	}
	return http.DetectContentType(head[:n])
}

type coding int

const (
	codingNone coding = iota
	codingIdentity
	codingGzip
)

// chooseCoding decides by Accept-Encoding. A client that lists gzip among other
// compressions did not ask: its HTTP stack always does, and on the way from a
// sandbox next door compressing takes longer than sending. One that names gzip
// alone, as E2B's SDKs do for their gzip option, gets it, and so does one that
// forbids anything else.
func chooseCoding(accept string) coding {
	if strings.TrimSpace(accept) == "" {
		return codingIdentity
	}
	gzipOK, others, identity, star := false, false, "", ""
	for item := range strings.SplitSeq(accept, ",") {
		name, params, _ := strings.Cut(strings.TrimSpace(item), ";")
		q := quality(params)
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "gzip", "x-gzip":
			gzipOK = q > 0
		case "identity":
			identity = fmt.Sprint(q > 0)
		case "*":
			star = fmt.Sprint(q > 0)
		default:
			others = others || q > 0
		}
	}
	identityOK := identity == "true" || identity == "" && star != "false"
	switch {
	case gzipOK && (!others && star == "" || !identityOK):
		return codingGzip
	case identityOK:
		return codingIdentity
	case star == "true":
		return codingGzip
	}
	return codingNone
}

// quality reads "q=0.5"; 1 when absent or unreadable.
func quality(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		k, v, _ := strings.Cut(strings.TrimSpace(p), "=")
		if strings.EqualFold(strings.TrimSpace(k), "q") {
			if q, err := strconv.ParseFloat(strings.TrimSpace(v), 64); err == nil {
				return q
			}
		}
	}
	return 1
}
