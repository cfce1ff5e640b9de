package keys

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/holdfast-run/holdfast/sandbox"
)

func openDB(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), filepath.Join(dir, "keys"), openDB(t, filepath.Join(dir, "node.db")))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestKeyLivesInMemoryAndTable(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	s := open(t, dir)
	key, secret, err := s.Create(ctx, "acme", "ci")
	if err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(secret) {
		t.Fatalf("secret %q is not what E2B clients accept", secret)
	}
	if want := secret[4:6]; key.MaskPrefix != want || key.MaskSuffix != secret[40:] {
		t.Fatalf("mask %q…%q of %q", key.MaskPrefix, key.MaskSuffix, secret)
	}

	again := open(t, dir) // as after a restart
	for name, st := range map[string]*Store{"first": s, "restarted": again} {
		got, err := st.Verify(ctx, secret)
		if err != nil || got.Space != "acme" || got.ID != key.ID || got.Name != "ci" {
			t.Fatalf("%s: verify gives %+v, %v", name, got, err)
		}
	}

	raw, err := os.ReadFile(filepath.Join(dir, "node.db-wal"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(raw), secret[4:]) {
		t.Fatal("the secret is on disk in clear")
	}
	sum := sha256.Sum256([]byte(secret))
	if !strings.Contains(string(raw), hex.EncodeToString(sum[:])) {
		t.Fatal("the hash is not on disk: the check above proves nothing")
	}

	if err := s.Delete(ctx, "other", key.ID); !sandbox.IsKind(err, sandbox.NotFound) {
		t.Fatalf("another space deletes: %v", err)
	}
	if err := s.Delete(ctx, "acme", key.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Verify(ctx, secret); !sandbox.IsKind(err, sandbox.Authentication) {
		t.Fatalf("a deleted key opens: %v", err)
	}
	if _, err := open(t, dir).Verify(ctx, secret); !sandbox.IsKind(err, sandbox.Authentication) {
		t.Fatalf("a deleted key opens after a restart: %v", err)
	}
	if err := s.Delete(ctx, "acme", key.ID); !sandbox.IsKind(err, sandbox.NotFound) {
		t.Fatalf("second delete: %v", err)
	}
}

func TestVerifyRefuses(t *testing.T) {
	s := open(t, t.TempDir())
	_, secret, err := s.Create(t.Context(), "acme", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", "e2b_", secret[:43], secret + "0", strings.ToUpper(secret), " " + secret} {
		_, err := s.Verify(t.Context(), bad)
		if !sandbox.IsKind(err, sandbox.Authentication) {
			t.Errorf("%q: %v", bad, err)
		}
		if len(bad) > 8 && strings.Contains(err.Error(), bad) {
			t.Errorf("the error repeats the secret: %v", err)
		}
	}
}

func TestLocalKey(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	path := filepath.Join(dir, "keys", "local")
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("local key file: %v %v", st.Mode(), err)
	}
	got, err := s.Verify(t.Context(), s.Local())
	if err != nil || got.ID != LocalID || got.Space != sandbox.DefaultSpace {
		t.Fatalf("verify: %+v %v", got, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if again := open(t, dir); again.Local() != s.Local() {
		t.Fatal("the local key changed")
	}
	if st, _ := os.Stat(path); st.Mode().Perm() != 0o600 {
		t.Fatalf("a widened mode stays: %v", st.Mode())
	}
	if err := s.Delete(t.Context(), sandbox.DefaultSpace, LocalID); !sandbox.IsKind(err, sandbox.Conflict) {
		t.Fatalf("delete: %v", err)
	}
	if err := os.WriteFile(path, []byte("e2b_short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), filepath.Join(dir, "keys"), openDB(t, filepath.Join(dir, "node.db")))
	if err == nil || !strings.Contains(err.Error(), path) {
		t.Fatalf("damaged file: %v", err)
	}
}

func TestListIsPerSpace(t *testing.T) {
	s, ctx := open(t, t.TempDir()), t.Context()
	for i, space := range []string{"a", "b", "a"} {
		s.now = func() time.Time { return time.Unix(int64(1000+i), 0) }
		if _, _, err := s.Create(ctx, space, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.List(ctx, "a")
	if err != nil || len(list) != 2 || list[0].Name != "0" || list[1].Name != "2" {
		t.Fatalf("list of a: %+v %v", list, err)
	}
	if all, _ := s.List(ctx, ""); len(all) != 4 || all[0].ID != LocalID {
		t.Fatalf("list of all: %+v", all)
	}
}

func TestLastUseIsWrittenOncePerMinute(t *testing.T) {
	dir, ctx := t.TempDir(), t.Context()
	s := open(t, dir)
	now := time.Unix(1_700_000_000, 0).UTC()
	s.now = func() time.Time { return now }
	key, secret, err := s.Create(ctx, "acme", "")
	if err != nil {
		t.Fatal(err)
	}
	stored := func() time.Time {
		list, _ := open(t, dir).List(ctx, "acme")
		return list[0].LastUsedAt
	}
	verify := func() {
		if _, err := s.Verify(ctx, secret); err != nil {
			t.Fatal(err)
		}
	}
	if !key.LastUsedAt.IsZero() || !stored().IsZero() {
		t.Fatal("a new key was used already")
	}
	verify()
	first := now
	now = now.Add(59 * time.Second)
	verify()
	if got := stored(); !got.Equal(first) {
		t.Fatalf("stored %v, want %v", got, first)
	}
	now = now.Add(time.Second)
	verify()
	if got := stored(); !got.Equal(now) {
		t.Fatalf("stored %v, want %v", got, now)
	}
}

func TestSeed(t *testing.T) {
	dir := t.TempDir()
	var seeds [8]Seed
	var wg sync.WaitGroup
	for i := range seeds { // the first start may be two processes
		wg.Go(func() {
			s, err := OpenSeed(dir)
			if err != nil {
				t.Error(err)
			}
			seeds[i] = s
		})
	}
	wg.Wait()
	for _, s := range seeds {
		if s.AccessToken("i1") != seeds[0].AccessToken("i1") {
			t.Fatal("two first opens gave two seeds")
		}
	}
	raw, err := os.ReadFile(filepath.Join(dir, "seed"))
	if err != nil {
		t.Fatal(err)
	}
	seed, err := hex.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	mac := func(m string) string {
		h := hmac.New(sha256.New, seed)
		h.Write([]byte(m))
		return hex.EncodeToString(h.Sum(nil))
	}
	if got := seeds[0].AccessToken("iabc"); got != mac("iabc") {
		t.Fatalf("access token %s", got)
	}
	if got := seeds[0].TrafficToken("iabc"); got != mac("sandbox-traffic-iabc") {
		t.Fatalf("traffic token %s", got)
	}
	for _, s := range []string{fmt.Sprint(seeds[0]), fmt.Sprintf("%#v", seeds[0]), fmt.Sprintf("%+v", seeds[0])} {
		if s != "seed(hidden)" {
			t.Fatalf("the seed prints as %s", s)
		}
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Fatalf("leftovers: %v", entries)
	}
}

func TestNewerTableIsRefused(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	db := openDB(t, filepath.Join(dir, "node.db"))
	if _, err := db.Exec(`UPDATE keys_schema SET version = 99`); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), filepath.Join(dir, "keys"), db); err == nil || !strings.Contains(err.Error(), "version 99") {
		t.Fatalf("open: %v", err)
	}
}

func TestFromRequest(t *testing.T) {
	for _, c := range []struct{ key, auth, want string }{
		{"", "", ""},
		{"e2b_1", "", "e2b_1"},
		{"", "Bearer e2b_2", "e2b_2"},
		{"", "bearer  e2b_2 ", "e2b_2"},
		{"e2b_1", "Bearer e2b_2", "e2b_1"},
		{"", "Basic dXNlcjo=", ""},
	} {
		r := &http.Request{Header: http.Header{}}
		r.Header.Set("X-API-Key", c.key)
		r.Header.Set("Authorization", c.auth)
		if got := FromRequest(r); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestContext(t *testing.T) {
	if _, ok := FromContext(context.Background()); ok {
		t.Fatal("an empty context is authenticated")
	}
	if k, ok := FromContext(NewContext(context.Background(), Key{Space: "s"})); !ok || k.Space != "s" {
		t.Fatal("identity lost")
	}
}
