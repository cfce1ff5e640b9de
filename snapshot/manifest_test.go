package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var ctx = context.Background()

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// complete makes a snapshot with the given files and returns its folder.
func complete(t testing.TB, files map[string][]byte) (string, Manifest) {
	t.Helper()
	dir := t.TempDir()
	m := Manifest{
		ID: "snap1", Created: time.Unix(1700000000, 5).UTC(), Layers: []string{"aaaaaaaaaaaa", "bbbbbbbbbbbb"}, Guest: "g",
		Config: json.RawMessage(`{"user":"user","env":{"A":"<b>"}}`),
		Memory: &Memory{Runtime: strings.Repeat("ab", 32), CPUFeatures: []string{"avx2"}},
	}
	for name, data := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700))
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
		m.Memory.Files = append(m.Memory.Files, File{Name: name})
	}
	m, err := Write(ctx, dir, m)
	must(t, err)
	return dir, m
}

// writeRaw writes a manifest that Write would not make.
func writeRaw(t testing.TB, dir string, m Manifest) {
	t.Helper()
	body, err := json.Marshal(m)
	must(t, err)
	must(t, write(dir, Manifest{}, body))
}

func random(n int) []byte {
	b := make([]byte, n)
	if _, err := rand.NewChaCha8([32]byte{1}).Read(b); err != nil {
		panic(err) // it never fails
	}
	return b
}

func standard() map[string][]byte {
	return map[string][]byte{"memory/pages": random(2*chunkSize + 17), "memory/state": random(1000), "memory/empty": nil}
}

func TestRoundTrip(t *testing.T) {
	dir, m := complete(t, standard())
	got, err := Load(dir)
	must(t, err)
	if !reflect.DeepEqual(got, m) {
		t.Fatalf("got %+v\nwant %+v", got, m)
	}
	must(t, Verify(ctx, dir, got))
	if got.Memory.Bytes() != 2*chunkSize+17+1000 {
		t.Fatalf("bytes %d", got.Memory.Bytes())
	}
	if _, err := os.Lstat(filepath.Join(dir, Name+".tmp")); !os.IsNotExist(err) {
		t.Fatalf("temporary manifest left: %v", err)
	}
}

func TestFilesOnly(t *testing.T) {
	dir := t.TempDir()
	_, err := Write(ctx, dir, Manifest{ID: "a", Layers: []string{"aaaaaaaaaaaa"}})
	must(t, err)
	m, err := Load(dir)
	must(t, err)
	if m.Memory != nil {
		t.Fatalf("got %+v", m.Memory)
	}
	must(t, Verify(ctx, dir, m))
}

func TestDamageIsFound(t *testing.T) {
	change := func(name string, f func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			p := filepath.Join(dir, name)
			data, err := os.ReadFile(p)
			must(t, err)
			must(t, os.WriteFile(p, f(data), 0o600))
		}
	}
	flip := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[(at+len(b))%len(b)] ^= 1; return b }
	}
	cut := func(b []byte) []byte { return b[:len(b)-1] }
	for name, c := range map[string]struct {
		damage    func(*testing.T, string)
		file, why string
	}{
		"first byte of pages":  {change("memory/pages", flip(0)), "memory/pages", "hashes to"},
		"last byte of pages":   {change("memory/pages", flip(-1)), "memory/pages", "hashes to"},
		"byte in second chunk": {change("memory/pages", flip(chunkSize)), "memory/pages", "hashes to"},
		"byte of state":        {change("memory/state", flip(500)), "memory/state", "hashes to"},
		"pages truncated":      {change("memory/pages", cut), "memory/pages", "has 16777232 bytes, expected 16777233"},
		"byte added":           {change("memory/empty", func([]byte) []byte { return []byte{0} }), "memory/empty", "has 1 bytes, expected 0"},
		"state missing":        {func(t *testing.T, dir string) { must(t, os.Remove(dir+"/memory/state")) }, "memory/state", "is missing"},
		"folder instead": {func(t *testing.T, dir string) {
			must(t, os.Remove(dir+"/memory/empty"))
			must(t, os.Mkdir(dir+"/memory/empty", 0o700))
		}, "memory/empty", "not a regular file"},
		"manifest truncated":   {change(Name, func(b []byte) []byte { return b[:len(b)/2] }), Name, "not readable"},
		"manifest empty":       {change(Name, func([]byte) []byte { return nil }), Name, "not readable"},
		"manifest all zero":    {change(Name, func(b []byte) []byte { clear(b); return b }), Name, "not readable"},
		"layer id in manifest": {change(Name, func(b []byte) []byte { return bytes.Replace(b, []byte("aaaaaaaaaaaa"), []byte("aaaaaaaaaaab"), 1) }), Name, "own hash"},
		"chunks of pages moved": {change("memory/pages", func(b []byte) []byte {
			return append(append(b[chunkSize:2*chunkSize:2*chunkSize], b[:chunkSize]...), b[2*chunkSize:]...)
		}), "memory/pages", "hashes to"},
	} {
		t.Run(name, func(t *testing.T) {
			dir, _ := complete(t, standard())
			c.damage(t, dir)
			m, err := Load(dir)
			if err == nil {
				err = Verify(ctx, dir, m)
			}
			var torn *TornError
			if !errors.Is(err, ErrTorn) || !errors.As(err, &torn) || torn.File != c.file || !strings.Contains(torn.Why, c.why) {
				t.Fatalf("got %v; want %s %s", err, c.file, c.why)
			}
		})
	}
}

func TestNoManifest(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, Name+".tmp"), []byte("{"), 0o600))
	if _, err := Load(dir); !errors.Is(err, ErrMissing) || errors.Is(err, ErrTorn) {
		t.Fatalf("got %v", err)
	}
}

func TestUnknownVersion(t *testing.T) {
	for _, v := range []int{-1, 0, Version + 1, 99} {
		dir := t.TempDir()
		writeRaw(t, dir, Manifest{Version: v, ID: "a"})
		_, err := Load(dir)
		if !errors.Is(err, ErrVersion) || errors.Is(err, ErrTorn) {
			t.Fatalf("version %d: got %v", v, err)
		}
	}
}

func TestConfigSurvives(t *testing.T) {
	_, m := complete(t, nil)
	var config struct{ Env map[string]string }
	must(t, json.Unmarshal(m.Config, &config))
	if config.Env["A"] != "<b>" {
		t.Fatalf("got %s", m.Config)
	}
}

func TestWriteRefuses(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/folder", 0o700))
	for _, name := range []string{"../x", "/etc/passwd", "", "absent", "folder"} {
		_, err := Write(ctx, dir, Manifest{Memory: &Memory{Files: []File{{Name: name}}}})
		if err == nil {
			t.Fatalf("file %q accepted", name)
		}
		if _, err := Load(dir); !errors.Is(err, ErrMissing) {
			t.Fatalf("after file %q: %v", name, err)
		}
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	must(t, os.WriteFile(dir+"/f", []byte("x"), 0o600))
	if _, err := Write(canceled, dir, Manifest{Memory: &Memory{Files: []File{{Name: "f"}}}}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

// A name that leaves the folder is damage even where the hash of the manifest is right.
func TestVerifyStaysInside(t *testing.T) {
	dir := t.TempDir()
	writeRaw(t, dir, Manifest{Version: Version, Memory: &Memory{Files: []File{{Name: "../x"}}}})
	m, err := Load(dir)
	must(t, err)
	if err := Verify(ctx, dir, m); !errors.Is(err, ErrTorn) {
		t.Fatalf("got %v", err)
	}
}

// The file shrinks between the look at its size and the read of its pages.
func TestShrinkingFileIsAnError(t *testing.T) {
	p := filepath.Join(t.TempDir(), "f")
	must(t, os.WriteFile(p, random(chunkSize), 0o600))
	f, err := os.Open(p)
	must(t, err)
	defer f.Close()
	must(t, os.Truncate(p, 10))
	if _, err := hashChunk(f, 0, chunkSize); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Fatalf("got %v", err)
	}
}

func TestAnyChangedByteIsFound(t *testing.T) {
	dir, want := complete(t, map[string][]byte{"pages": random(5000), "state": random(300)})
	names := []string{"pages", "state", Name}
	rapid.Check(t, func(t *rapid.T) {
		p := filepath.Join(dir, rapid.SampledFrom(names).Draw(t, "file"))
		data, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		at := rapid.IntRange(0, len(data)-1).Draw(t, "at")
		bad := bytes.Clone(data)
		bad[at] ^= rapid.ByteRange(1, 255).Draw(t, "mask")
		if err := os.WriteFile(p, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Load(dir)
		if err == nil {
			err = Verify(ctx, dir, m)
		}
		if werr := os.WriteFile(p, data, 0o600); werr != nil {
			t.Fatal(werr)
		}
		// A change that leaves the same manifest (the case of a key, a space) is no damage.
		if err == nil && (filepath.Base(p) != Name || !reflect.DeepEqual(m, want)) {
			t.Fatalf("changed byte %d of %s was not found", at, p)
		}
		if err != nil && !errors.Is(err, ErrTorn) {
			t.Fatalf("got %v", err)
		}
	})
}

func BenchmarkWrite200MB(b *testing.B) {
	dir, m := complete(b, map[string][]byte{"pages": random(200 << 20)})
	b.SetBytes(200 << 20)
	for b.Loop() {
		if _, err := Write(ctx, dir, m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify200MB(b *testing.B) {
	dir, m := complete(b, map[string][]byte{"pages": random(200 << 20)})
	b.SetBytes(200 << 20)
	for b.Loop() {
		if err := Verify(ctx, dir, m); err != nil {
			b.Fatal(err)
		}
	}
}
