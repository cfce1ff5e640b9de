package layers

import (
	"archive/tar"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// file is one entry of an archive in a test; the zero mode is 0644, or 0755 for a folder.
type file struct {
	name, content, link string
	kind                byte
	mode                int64
	uid, gid            int
	mtime               int64
	major, minor        int64
	xattrs              map[string]string
}

func archive(t testing.TB, files ...file) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{
			Name: f.name, Linkname: f.link, Typeflag: f.kind, Mode: f.mode, Uid: f.uid, Gid: f.gid,
			Size: int64(len(f.content)), ModTime: time.Unix(f.mtime, 0), Devmajor: f.major, Devminor: f.minor, Format: tar.FormatPAX,
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Mode == 0 {
			h.Mode = 0o644
			if h.Typeflag == tar.TypeDir {
				h.Mode = 0o755
			}
		}
		for k, v := range f.xattrs {
			if h.PAXRecords == nil {
				h.PAXRecords = map[string]string{}
			}
			h.PAXRecords["SCHILY.xattr."+k] = v
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func openStore(t testing.TB) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "layers"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func extract(t testing.TB, s *Store, o ExtractOptions, files ...file) Layer {
	t.Helper()
	l, err := s.Extract(context.Background(), archive(t, files...), o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// mountRoot mounts a stack at a fresh place beside the store until the test ends.
func mountRoot(t testing.TB, s *Store, lower ...string) Root {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(s.Dir()), "sandbox-")
	if err != nil {
		t.Fatal(err)
	}
	r := Root{Lower: lower, Upper: filepath.Join(dir, "upper"), Work: filepath.Join(dir, "work"), Target: filepath.Join(dir, "root")}
	if err := s.Mount(context.Background(), r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unmount(t, r.Target) })
	return r
}

func unmount(t testing.TB, target string) {
	t.Helper()
	if err := Unmount(context.Background(), target); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, p, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// wantFile fails unless p holds content; content "" means p must not exist.
func wantFile(t testing.TB, p, content string) {
	t.Helper()
	got, err := os.ReadFile(p)
	if content == "" {
		if !os.IsNotExist(err) {
			t.Fatalf("%s: want absent, got %q, %v", p, got, err)
		}
		return
	}
	if err != nil || string(got) != content {
		t.Fatalf("%s: got %q, %v; want %q", p, got, err, content)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func lstat(t testing.TB, p string) unix.Stat_t {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		t.Fatalf("%s: %v", p, err)
	}
	return st
}

func wantError(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Fatalf("error %q does not mention %q", err, w)
		}
	}
}
