package tree

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// open gives a root with etc/name ("inside") beside a folder outside of it.
func open(t *testing.T) (*Root, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "root")
	must(t, os.MkdirAll(filepath.Join(dir, "etc"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "etc/name"), []byte("inside"), 0o644))
	r, err := Open(dir)
	must(t, err)
	t.Cleanup(func() { must(t, r.Close()) })
	return r, dir
}

func TestClean(t *testing.T) {
	for name, want := range map[string]string{"": ".", "/": ".", ".": ".", "..": ".", "/a/": "a", "./a/../../b": "b", "../../a/b": "a/b"} {
		if got := Clean(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestLinksStayInside(t *testing.T) {
	r, dir := open(t)
	a := Attr{Mode: 0o644}
	must(t, r.Symlink("/etc", "absolute", a))
	must(t, r.Symlink("../../../../etc", "upwards", a))
	must(t, r.Symlink("/proc/self/root/etc", "magic", a))
	for _, name := range []string{"etc/name", "absolute/name", "upwards/name", "/../etc/name"} {
		data, err := r.ReadFile(name, 100)
		if err != nil || string(data) != "inside" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if _, err := r.Stat("magic/name"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	must(t, r.Create("absolute/new", a, strings.NewReader("x")))
	if _, err := os.Stat(filepath.Join(dir, "etc/new")); err != nil {
		t.Error(err)
	}
	if text, err := r.Readlink("absolute"); err != nil || text != "/etc" {
		t.Errorf("%q, %v", text, err)
	}
	names, err := r.ReadDir("upwards")
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{"name", "new"}) {
		t.Errorf("%q, %v", names, err)
	}
}

func TestReplaceAndRemoveDoNotFollow(t *testing.T) {
	r, dir := open(t)
	must(t, r.Symlink("etc/name", "link", Attr{}))
	must(t, r.Replace("link", Attr{Mode: 0o600}, strings.NewReader("own")))
	must(t, r.Symlink("etc", "folder", Attr{}))
	must(t, r.RemoveAll("folder"))
	must(t, r.RemoveAll("folder"))
	must(t, r.RemoveAll("no/such/folder"))
	if data, err := os.ReadFile(filepath.Join(dir, "etc/name")); err != nil || string(data) != "inside" {
		t.Errorf("%q, %v", data, err)
	}
	must(t, r.RemoveAll("etc"))
	if _, err := r.Lstat("etc"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := r.Create("link", Attr{}, strings.NewReader("")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v", err)
	}
}

func TestOnlyRegularFilesAreRead(t *testing.T) {
	r, _ := open(t)
	must(t, r.Mknod("fifo", unix.S_IFIFO, 0, Attr{Mode: 0o600}))
	for _, name := range []string{"fifo", "etc", "."} { // a fifo without writer must not hang either
		if f, err := r.Open(name); err == nil {
			f.Close()
			t.Errorf("%s was opened", name)
		}
	}
	if _, err := r.ReadFile("etc/name", 5); err == nil || !strings.Contains(err.Error(), "larger than 5 bytes") {
		t.Errorf("got %v", err)
	}
}

func TestAttributes(t *testing.T) {
	r, dir := open(t)
	when := time.Unix(1234, 567)
	must(t, r.MkdirAll("a/b", Attr{Mode: 0o2770, UID: 3, GID: 4, ModTime: when}))
	must(t, r.MkdirAll("a", Attr{Mode: 0o700})) // there already: stays
	must(t, r.SetXattr("a", "user.k", []byte("v")))
	if v, err := r.Xattr("a", "user.k"); err != nil || string(v) != "v" {
		t.Errorf("%q, %v", v, err)
	}
	if _, err := r.Xattr("a", "user.none"); !errors.Is(err, unix.ENODATA) {
		t.Errorf("got %v", err)
	}
	st, err := r.Stat("a/b")
	must(t, err)
	if st.Mode&0o7777 != 0o2770 || st.Uid != 3 || st.Gid != 4 || st.Mtim.Sec != 1234 || st.Mtim.Nsec != 567 {
		t.Errorf("%+v", st)
	}
	must(t, r.Symlink("a", "l", Attr{UID: 9}))
	must(t, r.SetAttr("l", Attr{Mode: 0o777, UID: 8}))
	if info, err := os.Stat(filepath.Join(dir, "a")); err != nil || info.Mode().Perm() != 0o770 {
		t.Errorf("the link's target changed: %v, %v", info.Mode(), err)
	}
	if err := r.MkdirAll("etc/name/x", Attr{}); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("got %v", err)
	}
}
