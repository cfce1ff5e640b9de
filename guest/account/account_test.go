package account

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
)

func database(t *testing.T, passwd, group string) *Database {
	t.Helper()
	dir := t.TempDir()
	p, g := filepath.Join(dir, "passwd"), filepath.Join(dir, "group")
	for path, text := range map[string]string{p: passwd, g: group} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return NewDatabase(p, g)
}

func TestLookup(t *testing.T) {
	d := database(t,
		"root:x:0:0:root:/root:/bin/bash\n# comment\nbroken\nbad:x:many:0::/:/bin/sh\nann:x:1000:1000:Ann:/home/ann:\nbob:x:1001:5:::/bin/zsh\n",
		"root:x:0:\nann:x:1000:\ndev:x:50:bob,ann\nops:x:51:bob\nempty:x:52:\nbad:x:y:ann\n")
	for name, want := range map[string]User{
		"ann":  {Name: "ann", UID: 1000, GID: 1000, Groups: []uint32{1000, 50}, Home: "/home/ann", Shell: "/bin/sh"},
		"bob":  {Name: "bob", UID: 1001, GID: 5, Groups: []uint32{5, 50, 51}, Home: "", Shell: "/bin/zsh"},
		"root": {Name: "root", Groups: []uint32{0}, Home: "/root", Shell: "/bin/bash"},
		"1000": {Name: "ann", UID: 1000, GID: 1000, Groups: []uint32{1000, 50}, Home: "/home/ann", Shell: "/bin/sh"},
		"7":    {Name: "7", UID: 7, Groups: []uint32{0}, Home: "/", Shell: "/bin/sh"},
	} {
		got, err := d.Lookup(name)
		if err != nil || got.Name != want.Name || got.UID != want.UID || got.GID != want.GID || got.Home != want.Home ||
			got.Shell != want.Shell || !slices.Equal(got.Groups, want.Groups) {
			t.Errorf("%s is %+v, %v; want %+v", name, got, err, want)
		}
	}
	for _, name := range []string{"", "eve", "bad", "broken", "-1", "4294967296"} {
		if _, err := d.Lookup(name); !errors.Is(err, ErrUnknown) || err.Error() != "invalid username: '"+name+"'" {
			t.Errorf("%q: %v", name, err)
		}
	}
	if d.UserName(1001) != "bob" || d.UserName(9) != "9" || d.GroupName(50) != "dev" || d.GroupName(9) != "9" {
		t.Error("names of ids are wrong")
	}
}

func TestLookupSeesChanges(t *testing.T) {
	d := database(t, "", "")
	if _, err := d.Lookup("new"); err == nil {
		t.Fatal("known before it was added")
	}
	if err := os.WriteFile(d.passwd, []byte("new:x:5:5::/:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if u, err := d.Lookup("new"); err != nil || u.UID != 5 {
		t.Errorf("after it was added: %+v, %v", u, err)
	}
	if u, err := NewDatabase("/none", "/none").Lookup("root"); err != nil || u.UID != 0 {
		t.Errorf("root without files: %+v, %v", u, err)
	}
}

func TestResolve(t *testing.T) {
	u := User{Home: "/home/u"}
	for _, tc := range []struct{ path, workdir, want string }{
		{"", "", "/home/u"},
		{"", "/w", "/w"},
		{"a/b", "", "/home/u/a/b"},
		{"a/b", "/w", "/w/a/b"},
		{"a", "~/w", "/home/u/w/a"},
		{"a", "w", "/w/a"},
		{"~", "/w", "/home/u"},
		{"~/a", "/w", "/home/u/a"},
		{"~a", "/w", "/w/~a"},
		{"/a/../b/./c/", "/w", "/b/c"},
		{"../../../..", "/w", "/"},
	} {
		if got, err := u.Resolve(tc.path, tc.workdir); err != nil || got != tc.want {
			t.Errorf("%q from %q is %q, %v; want %q", tc.path, tc.workdir, got, err, tc.want)
		}
	}
	if _, err := u.Resolve("a\x00b", ""); !errors.Is(err, ErrNUL) {
		t.Errorf("NUL: %v", err)
	}
	if got, _ := (User{}).Resolve("a", ""); got != "/a" {
		t.Errorf("without a home: %q", got)
	}
}

func TestDoHasTheUsersCredentialsAndGivesThemBack(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	u := User{Name: "u", UID: 4242, GID: 4243, Groups: []uint32{4243, 4244}}
	err := u.Do(func() error {
		groups, err := syscall.Getgroups()
		if err != nil || !slices.Equal(groups, []int{4243, 4244}) {
			t.Errorf("groups are %v, %v", groups, err)
		}
		if os.Geteuid() != 4242 || os.Getegid() != 4243 {
			t.Errorf("ids are %d %d", os.Geteuid(), os.Getegid())
		}
		_, err = os.ReadFile(secret)
		return err
	})
	if !errors.Is(err, os.ErrPermission) {
		t.Errorf("root's file: %v", err)
	}
	if _, err := os.ReadFile(secret); err != nil || os.Geteuid() != 0 {
		t.Errorf("afterwards: %v as %d", err, os.Geteuid())
	}
}
