package cli

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/config"
)

func TestParsePlace(t *testing.T) {
	for s, want := range map[string]place{
		"dev:/a/b":  {"dev", "/a/b"},
		"dev:a:b":   {"dev", "a:b"},
		"dev:":      {"dev", ""},
		"dev":       {"", "dev"},
		"-":         {"", "-"},
		"/a:b":      {"", "/a:b"},
		"./a:b":     {"", "./a:b"},
		"../a:b":    {"", "../a:b"},
		"a/b:c":     {"", "a/b:c"},
		":x":        {"", ":x"},
		".hidden:x": {"", ".hidden:x"},
	} {
		if got := parsePlace(s); got != want {
			t.Errorf("%q is %+v, want %+v", s, got, want)
		}
	}
}

func TestExitCodeOfCommands(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{&client.ExitError{Code: 1, Status: "exit status 1"}, 1},
		{&client.ExitError{Code: 255, Status: "exit status 255"}, 255},
		{&client.ExitError{Code: -1, Status: "signal: killed"}, 137},
		{&client.ExitError{Code: -1, Status: "signal: terminated"}, 143},
		{&client.ExitError{Code: -1, Status: "signal: interrupt"}, 130},
		{&client.ExitError{Code: -1, Status: "signal: segmentation fault (core dumped)"}, 139},
		{&client.ExitError{Code: -1, Status: "lost"}, 125},
		{errors.New("broken"), 125},
	} {
		var errs bytes.Buffer
		if got := (&app{err: &errs}).report(exitCode(tt.err)); got != tt.want {
			t.Errorf("%v gives %d, want %d", tt.err, got, tt.want)
		}
		if silent := tt.want != 125; silent == (errs.Len() > 0) {
			t.Errorf("%v says %q", tt.err, &errs)
		}
	}
}

func TestShellQuote(t *testing.T) {
	for _, s := range []string{"", "plain-1.2/x", "a b", "it's", `$HOME "x" \ ;|&`, "new\nline", "ümlaut", "*"} {
		out, err := exec.Command("sh", "-c", "printf %s "+shellQuote(s)).Output()
		if err != nil || string(out) != s {
			t.Errorf("%q becomes %q in a shell, %v", s, out, err)
		}
	}
}

func TestTableIgnoresColours(t *testing.T) {
	var b bytes.Buffer
	a := &app{color: true}
	if err := table(&b, []string{"STATE", "X"}, [][]string{{a.paint(good, "ok"), "1"}, {"longer", ""}, {"ä", "2"}}); err != nil {
		t.Fatal(err)
	}
	want := "STATE    X\n\x1b[32mok\x1b[0m       1\nlonger\nä        2\n"
	if b.String() != want {
		t.Errorf("got\n%q\nwant\n%q", b.String(), want)
	}
	if got := (&app{}).paint(good, "x"); got != "x" {
		t.Errorf("colour without a terminal: %q", got)
	}
}

func TestLeft(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		d    time.Duration
		on   string
		want string
	}{
		{90 * time.Second, "pause", "pause in 1m"}, {59 * time.Second, "kill", "remove in 59s"}, {-time.Hour, "pause", "pause in 0s"},
		{3 * time.Hour, "pause", "pause in 3h"}, {100 * time.Hour, "kill", "remove in 4d"},
	} {
		s := &v1.Sandbox{State: "running", EndAt: now.Add(tt.d), Lifecycle: v1.Lifecycle{OnTimeout: tt.on}}
		if got := left(s, now); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.d, got, tt.want)
		}
	}
	if got := left(&v1.Sandbox{State: "paused"}, now); got != "-" {
		t.Errorf("paused: %q", got)
	}
}

func TestFoldersSurviveTheWay(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	write := func(name string, mode fs.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(from, name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range []string{"sub", "empty"} {
		if err := os.Mkdir(filepath.Join(from, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	write("plain", 0o640)
	write("sub/run.sh", 0o755)
	write("sub/"+strings.Repeat("long", 50), 0o600)
	if err := os.Symlink("../plain", filepath.Join(from, "sub/link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, "plain"), []byte("old and longer"), 0o600); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := packFolder(&archive, from); err != nil {
		t.Fatal(err)
	}
	if err := unpackFolder(&archive, to); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("diff", "-r", "--no-dereference", from, to).CombinedOutput(); err != nil {
		t.Errorf("they differ: %s", out)
	}
	info, err := os.Stat(filepath.Join(to, "sub/run.sh"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

// What comes out of a sandbox may be made to get out of the folder it is
// unpacked into.
func TestArchivesStayInside(t *testing.T) {
	for name, entries := range map[string][]tar.Header{
		"parent":             {{Name: "../evil", Typeflag: tar.TypeReg, Mode: 0o644}},
		"absolute":           {{Name: "/evil", Typeflag: tar.TypeReg, Mode: 0o644}},
		"parent folder":      {{Name: "../evil/", Typeflag: tar.TypeDir, Mode: 0o755}},
		"through a link":     {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/evil", Typeflag: tar.TypeReg, Mode: 0o644}},
		"onto a link":        {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../evil"}, {Name: "l", Typeflag: tar.TypeReg, Mode: 0o644}},
		"hard link outwards": {{Name: "l", Typeflag: tar.TypeLink, Linkname: "../victim"}, {Name: "l", Typeflag: tar.TypeReg, Mode: 0o644}},
	} {
		t.Run(name, func(t *testing.T) {
			parent := t.TempDir()
			inside := filepath.Join(parent, "inside")
			if err := os.Mkdir(inside, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(parent, "victim"), []byte("intact"), 0o600); err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range entries {
				if h.Typeflag == tar.TypeReg {
					h.Size = 4
				}
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
				if h.Typeflag == tar.TypeReg {
					if _, err := w.Write([]byte("evil")); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			err := unpackFolder(&b, inside)
			if name != "onto a link" && err == nil {
				t.Error("it was unpacked without a word")
			}
			if _, err := os.Lstat(filepath.Join(parent, "evil")); err == nil {
				t.Error("it got out")
			}
			if _, err := os.Lstat("/evil"); err == nil {
				t.Error("it got to the root")
			}
			if got, _ := os.ReadFile(filepath.Join(parent, "victim")); string(got) != "intact" {
				t.Errorf("it changed a file outside: %q", got)
			}
		})
	}
}

func TestDaemonIsToldWhatUpWasTold(t *testing.T) {
	fs := pflag.NewFlagSet("up", pflag.ContinueOnError)
	fs.String("config", "", "")
	keyFlags(fs, true)
	keyFlags(fs, false)
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if err := fs.Parse([]string{"--config", "x.yaml", "--listen=:1", "--limits-cpus", "4", "--pool=", "--url", "http://x", "--api-key", "secret"}); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(daemonArgs(fs, &config.Config{Data: "/d"}), " ")
	want := "daemon --data=/d --config=" + here + "/x.yaml --listen=:1 --pool= --limits-cpus=4"
	if got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

func TestLastLines(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte("before\na\nb\nholdfast: c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := lastLines(file, 7, 2); got != "b\nc" {
		t.Errorf("%q", got)
	}
	if got := lastLines(file, 0, 9); got != "before\na\nb\nc" {
		t.Errorf("%q", got)
	}
	if err := os.WriteFile(file, []byte("a\npanic: no way\n\ngoroutine 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := lastLines(file, 0, 1); got != "panic: no way" {
		t.Errorf("%q", got)
	}
}

func TestVersionNamesBoth(t *testing.T) {
	if got := versionText(); !strings.HasPrefix(got, "holdfast "+version+" (gVisor ") {
		t.Errorf("%q", got)
	}
}
