package runtimes

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-run/holdfast/embedded"
)

func store(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "runtimes"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// put unpacks a program of the given content under the hash it claims.
func put(t *testing.T, s *Store, content, sha string) error {
	t.Helper()
	return s.unpack(t.Context(), strings.NewReader(content), Runtime{Name: "runsc", SHA256: sha, Version: "v1", Size: int64(len(content))})
}

func hash(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func TestEmbedded(t *testing.T) {
	want, err := embedded.Describe(embedded.Runsc)
	if err != nil {
		t.Fatal(err)
	}
	s := store(t)
	r, err := s.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(r.Path)
	if err != nil {
		t.Fatal(err)
	}
	if r.SHA256 != want.SHA256 || hash(string(b)) != want.SHA256 || r.Version != want.Version {
		t.Errorf("unpacked %+v of %d bytes, want %+v", r, len(b), want)
	}
	fi, err := os.Stat(r.Path)
	if err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	again, err := s.Ensure(t.Context())
	if err != nil || again != r {
		t.Errorf("again: %+v, %v", again, err)
	}
	if now, err := os.Stat(r.Path); err != nil || !os.SameFile(fi, now) {
		t.Errorf("it was unpacked again: %v", err)
	}
}

func TestGetListRemove(t *testing.T) {
	s := store(t)
	a, b := hash("program a"), hash("program b")
	for content, sha := range map[string]string{"program a": a, "program b": b} {
		if err := put(t, s, content, sha); err != nil {
			t.Fatal(err)
		}
	}
	r, err := s.Get(a)
	if err != nil || r.Name != "runsc" || r.Version != "v1" || !filepath.IsAbs(r.Path) {
		t.Fatalf("get: %+v, %v", r, err)
	}
	if list, err := s.List(); err != nil || len(list) != 2 {
		t.Errorf("list: %v, %v", list, err)
	}
	for range 2 {
		if err := s.Remove(a); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if _, err := s.Get(a); !errors.Is(err, ErrNotFound) {
		t.Errorf("get a removed one: %v", err)
	}
	if _, err := s.Get(b); err != nil {
		t.Errorf("the other one: %v", err)
	}
	for _, bad := range []string{"", "..", "../../etc", strings.Repeat("A", 64), strings.Repeat("0", 63)} {
		if _, err := s.Get(bad); !errors.Is(err, ErrNotFound) {
			t.Errorf("get %q: %v", bad, err)
		}
		if err := s.Remove(bad); err == nil {
			t.Errorf("removed %q", bad)
		}
	}
}

// TestDamaged: what is not whole is no runtime, and is replaced.
func TestDamaged(t *testing.T) {
	content := "a program"
	for name, damage := range map[string]func(dir string) error{
		"short file":     func(dir string) error { return os.Truncate(filepath.Join(dir, "runsc"), 3) },
		"no file":        func(dir string) error { return os.Remove(filepath.Join(dir, "runsc")) },
		"no description": func(dir string) error { return os.Remove(filepath.Join(dir, description)) },
	} {
		s, sha := store(t), hash(content)
		if err := put(t, s, content, sha); err != nil {
			t.Fatal(err)
		}
		if err := damage(filepath.Join(s.dir, sha)); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get(sha); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: get: %v", name, err)
		}
		if list, err := s.List(); err != nil || len(list) > 0 {
			t.Errorf("%s: list: %v, %v", name, list, err)
		}
		if err := put(t, s, content, sha); err != nil {
			t.Errorf("%s: replace: %v", name, err)
		}
		if _, err := s.Get(sha); err != nil {
			t.Errorf("%s: after replacing: %v", name, err)
		}
	}
}

func TestWrongContent(t *testing.T) {
	s := store(t)
	sha := hash("what it should be")
	if err := put(t, s, "what it is", sha); err == nil || !strings.Contains(err.Error(), "sha256") {
		t.Errorf("err = %v", err)
	}
	if entries, _ := os.ReadDir(s.dir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestInterrupted(t *testing.T) {
	s := store(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.unpack(ctx, bytes.NewReader(make([]byte, 1<<20)), Runtime{Name: "runsc", SHA256: hash("x")})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	// What a killed process leaves is swept by the next Open.
	if err := os.MkdirAll(filepath.Join(s.dir, unpacking+"123"), 0o755); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(s.dir); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(s.dir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
}
