package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/sandbox"
)

const archiveKey = "/usr/share/keyrings/debian-archive-keyring.gpg"

func TestAptSources(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Mkdir(dir+"/sources.list.d", 0o755))
	for name, text := range map[string]string{
		"sources.list": `# comment
deb http://m/debian bookworm main contrib # trailing
deb-src http://m/debian bookworm main
deb [ arch=amd64 signed-by=` + archiveKey + ` ] http://m/debian bookworm-updates main
deb http://m/flat ./
`,
		"sources.list.d/debian.sources": `Types: deb deb-src
# comment
URIs: http://m/security http://n/security
Suites: bookworm-security
Components: main
Signed-By: ` + archiveKey + `

Types: deb
URIs: http://off/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: http://inline/debian
Suites: bookworm trixie
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
`,
		"sources.list.d/vendor.list":    "deb [signed-by=/etc/apt/keyrings/vendor.gpg] http://vendor/ bookworm main\ndeb http://vendor/ bookworm stable\n",
		"sources.list.d/ignored.backup": "deb http://bad/ bookworm main\n",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	all, err := aptSources(dir)
	must(t, err)
	lines := func(list []aptSource) []string {
		var out []string
		for _, s := range list {
			out = append(out, s.line())
		}
		slices.Sort(out)
		return out
	}
	want := []string{
		"deb [signed-by=" + archiveKey + "] http://m/debian bookworm-updates main",
		"deb [signed-by=" + archiveKey + "] http://m/security bookworm-security main",
		"deb [signed-by=" + archiveKey + "] http://n/security bookworm-security main",
		"deb http://inline/debian bookworm main",
		"deb http://m/debian bookworm main contrib",
	}
	if got := lines(sourcesFor(all, "bookworm", "bookworm")); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := lines(sourcesFor(all, "trixie", "bookworm")); !reflect.DeepEqual(got, []string{"deb http://inline/debian trixie main"}) {
		t.Errorf("got %q", got)
	}
	for i := range want {
		want[i] = strings.Replace(want[i], " bookworm", " sid", 1)
	}
	if got := lines(sourcesFor(all, "sid", "bookworm")); !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := sourcesFor(all, "sid", ""); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestOSRelease(t *testing.T) {
	p := filepath.Join(t.TempDir(), "os-release")
	must(t, os.WriteFile(p, []byte("NAME=\"X\"\nVERSION_CODENAME=bookworm\nID='debian'\n"), 0o644))
	for field, want := range map[string]string{"VERSION_CODENAME": "bookworm", "ID": "debian", "NAME": "X", "NONE": ""} {
		if got, err := osRelease(p, field); err != nil || got != want {
			t.Errorf("%s: %q, %v", field, got, err)
		}
	}
	if _, err := osRelease(p+"x", "ID"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestReportKeepsTheReason(t *testing.T) {
	var steps []string
	o := Options{Progress: func(s Step) { steps = append(steps, s.Detail) }}
	got := report(strings.NewReader("I: download\nnoise\rmore\nE: first\nW: w\nE: second\nlast\n"), o)
	if !slices.Equal(got, []string{"E: first", "E: second"}) || !slices.Equal(steps, []string{"download"}) {
		t.Errorf("got %q, steps %q", got, steps)
	}
	got = report(strings.NewReader("1\n2\n3\n4\n5\n6\n"), Options{})
	if !slices.Equal(got, []string{"2", "3", "4", "5", "6"}) {
		t.Errorf("got %q", got)
	}
}

// The real thing, from the machine's own mirror, with one small package.
func TestBootstrap(t *testing.T) {
	s := openStore(t)
	base, err := BaseSource()
	must(t, err)
	source := Source{Kind: Bootstrap, Suite: base.Suite, Packages: []string{"sudo"}}.String()
	var steps []string
	r, err := importText(t, s, source, Options{Progress: func(s Step) { steps = append(steps, s.Detail) }})
	must(t, err)
	if len(steps) < 5 {
		t.Errorf("progress %q", steps)
	}
	root := mounted(t, s, r.Layers)
	for _, p := range []string{"bin/bash", "usr/bin/dpkg", "usr/bin/apt-get", "usr/bin/sudo"} {
		if _, err := os.Stat(filepath.Join(root, p)); err != nil {
			t.Error(err)
		}
	}
	wantMode(t, root+"/usr/bin/sudo", 0o4755, 0, 0)
	wantMode(t, root+"/home/user", 0o755, 1000, 1000)
	wantFile(t, root+"/etc/sudoers.d/holdfast", "user ALL=(ALL:ALL) NOPASSWD: ALL\n")
	wantFile(t, root+"/etc/resolv.conf", "nameserver 192.0.0.1\n")
	wantFile(t, root+"/etc/machine-id", "")
	list, err := os.ReadFile(root + "/etc/apt/sources.list")
	if err != nil || !strings.Contains(string(list), " "+base.Suite+" main") {
		t.Errorf("sources.list %q, %v", list, err)
	}
	for _, gone := range []string{"etc/apt/apt.conf.d/99mmdebstrap", "usr/share/man/man1/bash.1.gz", "var/lib/apt/lists/lock", "var/log/dpkg.log"} {
		wantAbsent(t, filepath.Join(root, gone))
	}
	if debs, err := filepath.Glob(root + "/var/cache/apt/archives/*.deb"); err != nil || len(debs) > 0 {
		t.Errorf("packages left: %v, %v", debs, err)
	}

	again, err := importText(t, s, source, Options{})
	if err != nil || !reflect.DeepEqual(again, r) {
		t.Errorf("again: %+v, %v; want %+v", again, err, r)
	}
	_, err = importText(t, s, source+"-absent-package", Options{})
	wantError(t, err, sandbox.Unavailable, "sudo-absent-package", "check the suite and package names")
	canceled, cancel := context.WithCancel(ctx)
	_, err = importContext(canceled, s, source, Options{Refresh: true, Progress: func(Step) { cancel() }})
	wantError(t, err, sandbox.Timeout)
	if n := len(s.List()); n != 2 {
		t.Errorf("%d layers left, want 2", n)
	}
	if entries, err := os.ReadDir(s.Dir()); err != nil || len(entries) != 2 {
		t.Errorf("left in the store: %v, %v", entries, err)
	}
}

func importContext(ctx context.Context, s *layers.Store, source string, o Options) (Result, error) {
	src, err := ParseSource(source)
	if err != nil {
		return Result{}, err
	}
	return Import(ctx, s, src, o)
}

func TestBootstrapNeedsATool(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := importText(t, openStore(t), "debootstrap://bookworm?mirror=http://mirror.example/debian", Options{})
	wantError(t, err, sandbox.Unavailable, "mmdebstrap", "apt-get install mmdebstrap")
}

func TestBaseIsMadeOnce(t *testing.T) {
	s := openStore(t)
	src, err := BaseSource()
	must(t, err)
	// Stands for the files, so that the test need not fetch them: Base must find it by its key.
	p := filepath.Join(t.TempDir(), "rootfs.tar")
	must(t, os.WriteFile(p, tarOf(t, debianLike...), 0o600))
	f, err := os.Open(p)
	must(t, err)
	defer f.Close()
	l, err := s.Extract(ctx, f, layers.ExtractOptions{Digest: bootstrapKey(src)})
	must(t, err)
	r, err := Base(ctx, s, Options{})
	must(t, err)
	if r.Layers[0] != l.ID || r.Config.User != "user" || r.Config.Workdir != "/home/user" || !strings.Contains(r.Source, "python3") {
		t.Errorf("got %+v", r)
	}
}
