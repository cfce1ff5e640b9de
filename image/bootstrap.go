package image

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/layers/tree"
	"github.com/holdfast-run/holdfast/sandbox"
)

// bootstrapVersion is part of the key of bootstrapped layers: raise it when the
// same suite and packages are to give other files.
const bootstrapVersion = "1"

// The machine's own files that a bootstrap reads.
const (
	aptFolder     = "/etc/apt"
	osReleaseFile = "/etc/os-release"
)

// dpkgConfig keeps sandboxes small and their package installs quick. What is
// installed need not survive a power cut during the install: a pause writes all.
const dpkgConfig = `force-unsafe-io
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/lintian/*
path-exclude=/usr/share/locale/*
path-include=/usr/share/locale/locale.alias
`

// aptConfig: no translations, which double what apt-get update fetches.
const aptConfig = `Acquire::Languages "none";
`

func importBootstrap(ctx context.Context, store *layers.Store, src Source, o Options) (Result, error) {
	key := bootstrapKey(src)
	digest := key
	if o.Refresh {
		digest = ""
	}
	if l, ok := store.Find(digest); ok {
		o.step("bootstrap", "%s is there already", src.Suite)
		return Result{Layers: []string{l.ID}, Digest: key}, nil
	}
	sources, err := bootstrapSources(src)
	if err != nil {
		return Result{}, err
	}
	tool, err := bootstrapTool(src)
	if err != nil {
		return Result{}, err
	}
	l, err := store.Build(ctx, digest, func(root *tree.Root) error {
		if err := tool(ctx, root.Dir(), src, sources, o); err != nil {
			return err
		}
		o.step("bootstrap", "tidy up")
		return tidy(root, sources)
	})
	if err != nil {
		return Result{}, err
	}
	return Result{Layers: []string{l.ID}, Digest: key}, nil
}

func bootstrapKey(src Source) string {
	return "bootstrap:" + bootstrapVersion + ":" + sha256Hex(runtime.GOARCH+" "+src.String())
}

// bootstrapSources gives where the packages come from: the mirror that was asked
// for or what the machine itself uses.
func bootstrapSources(src Source) ([]aptSource, error) {
	if src.Mirror != "" {
		return []aptSource{{uri: src.Mirror, suite: src.Suite, components: []string{"main"}}}, nil
	}
	all, err := aptSources(aptFolder)
	if err != nil {
		return nil, fmt.Errorf("read the machine's package sources: %w", err)
	}
	own, err := osRelease(osReleaseFile, "VERSION_CODENAME")
	if err != nil {
		return nil, fmt.Errorf("read the machine's distribution: %w", err)
	}
	list := sourcesFor(all, src.Suite, own)
	if len(list) == 0 {
		return nil, invalid(src.String(), "needs a package mirror and %s names none for %s", aptFolder, src.Suite).
			WithNext("name one, as in debootstrap://%s?mirror=http://MIRROR/debian, or import a container image", src.Suite)
	}
	return list, nil
}

type bootstrapFunc func(ctx context.Context, dir string, src Source, sources []aptSource, o Options) error

// bootstrapTool finds what is installed; mmdebstrap is several times quicker.
func bootstrapTool(src Source) (bootstrapFunc, error) {
	if _, err := exec.LookPath("mmdebstrap"); err == nil {
		return mmdebstrap, nil
	}
	if _, err := exec.LookPath("debootstrap"); err == nil {
		return debootstrap, nil
	}
	return nil, sandbox.Errorf(sandbox.Unavailable, fmt.Sprintf("image source %q", src), "needs mmdebstrap, which is not installed").
		WithNext("run apt-get install mmdebstrap, or import a container image")
}

func mmdebstrap(ctx context.Context, dir string, src Source, sources []aptSource, o Options) error {
	args := []string{
		"--mode=root", "--variant=minbase", "--format=directory", "--skip=output/dev",
		"--aptopt=Acquire::Languages \"none\"", "--aptopt=Acquire::Retries \"3\"",
	}
	for _, p := range proxies(ctx) {
		args = append(args, "--aptopt="+p)
	}
	for line := range strings.Lines(dpkgConfig) {
		args = append(args, "--dpkgopt="+strings.TrimSpace(line))
	}
	if len(src.Packages) > 0 {
		args = append(args, "--include="+strings.Join(src.Packages, ","))
	}
	var list strings.Builder
	for _, s := range sources {
		list.WriteString(s.line() + "\n")
	}
	return run(ctx, o, src, list.String(), "mmdebstrap", append(args, src.Suite, dir, "-")...)
}

func debootstrap(ctx context.Context, dir string, src Source, sources []aptSource, o Options) error {
	main := sources[0]
	for _, s := range sources {
		if s.suite == src.Suite {
			main = s
			break
		}
	}
	args := []string{"--variant=minbase", "--components=" + strings.Join(main.components, ",")}
	if main.signedBy != "" {
		args = append(args, "--keyring="+main.signedBy)
	}
	if len(src.Packages) > 0 {
		args = append(args, "--include="+strings.Join(src.Packages, ","))
	}
	return run(ctx, o, src, "", "debootstrap", append(args, src.Suite, dir, main.uri)...)
}

// proxies gives the machine's apt proxies as options. The environment's are
// inherited anyway.
func proxies(ctx context.Context) []string {
	out, err := exec.CommandContext(ctx, "apt-config", "dump", "--no-empty").Output()
	if err != nil {
		return nil // no apt-config: nothing configured
	}
	var list []string
	for line := range strings.Lines(string(out)) {
		line = strings.TrimSuffix(strings.TrimSpace(line), ";")
		if k, _, _ := strings.Cut(line, " "); strings.HasPrefix(k, "Acquire::http") && strings.Contains(k, "::Proxy") {
			list = append(list, line)
		}
	}
	return list
}

// run runs a bootstrap tool in mount and process namespaces of its own: whatever
// it mounts into the new root is gone with it, however it ends, before anybody
// could remove that folder and all that is mounted there.
func run(ctx context.Context, o Options, src Source, stdin, tool string, args ...string) error {
	cmd := exec.CommandContext(ctx, tool, args...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "SOURCE_DATE_EPOCH=0", "TMPDIR="+os.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID, Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL,
	}
	// The death signal follows the thread that started the process, so keep it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pr, pw := io.Pipe()
	cmd.Stdout, cmd.Stderr = pw, pw
	tail := make(chan []string)
	go func() { tail <- report(pr, o) }()
	err := cmd.Run()
	pw.Close()
	last := <-tail
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return sandbox.Errorf(sandbox.Unavailable, fmt.Sprintf("image source %q", src), "cannot be bootstrapped: %s failed (%w): %s", tool, err, strings.Join(last, "; ")).
			WithNext("check the suite and package names, and that apt-get update works on this machine")
	}
	return nil
}

// report turns what a tool says into progress and keeps the lines that tell why
// it failed: its errors, or the last ones.
func report(r io.Reader, o Options) []string {
	const keep = 5
	var last, failed []string
	scan := bufio.NewScanner(r)
	scan.Split(scanProgress)
	for scan.Scan() {
		line := strings.TrimSpace(scan.Text())
		if line == "" {
			continue
		}
		if info, ok := strings.CutPrefix(line, "I: "); ok {
			o.step("bootstrap", "%s", info)
		}
		if strings.HasPrefix(line, "E: ") {
			failed = append(failed, line)
		}
		last = append(last, line)
		if len(last) > keep {
			last = slices.Delete(last, 0, 1)
		}
	}
	if _, err := io.Copy(io.Discard, r); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		last = append(last, err.Error())
	}
	if len(failed) > 0 {
		return failed[:min(keep, len(failed))]
	}
	return last
}

// scanProgress cuts at carriage returns as well: progress bars are drawn with them.
func scanProgress(data []byte, atEOF bool) (int, []byte, error) {
	if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
		return i + 1, data[:i], nil
	}
	if len(data) >= 4096 || (atEOF && len(data) > 0) {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// tidy leaves configuration that is right inside a sandbox and nothing that was
// only of use during the bootstrap.
func tidy(root *tree.Root, sources []aptSource) error {
	for _, name := range []string{
		"etc/apt/apt.conf.d/99mmdebstrap", // this machine's proxies
		"etc/dpkg/dpkg.cfg.d/99mmdebstrap",
		"etc/hostname",
		"var/log/apt", "var/log/bootstrap.log", "var/log/dpkg.log", "var/log/alternatives.log",
		"var/cache/apt", "var/cache/debconf/config.dat-old", "var/cache/debconf/templates.dat-old", "var/cache/ldconfig/aux-cache",
		"var/lib/dpkg/status-old", "var/lib/dpkg/available-old",
	} {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	folder := tree.Attr{Mode: 0o755, ModTime: epoch}
	for _, d := range []string{"var/cache/apt/archives/partial", "var/log/apt", "etc/dpkg/dpkg.cfg.d", "etc/apt/apt.conf.d"} {
		if err := root.MkdirAll(d, folder); err != nil {
			return err
		}
	}
	if err := emptyFolder(root, "var/lib/apt/lists"); err != nil {
		return err
	}
	var list strings.Builder
	for _, s := range sources {
		// A key file that the new system does not have would make apt refuse the source.
		if _, err := root.Stat(s.signedBy); s.signedBy != "" && err != nil {
			s.signedBy = ""
		}
		list.WriteString(s.line() + "\n")
	}
	file := tree.Attr{Mode: 0o644, ModTime: epoch}
	for _, f := range []struct{ name, text string }{
		{"etc/apt/sources.list", list.String()},
		{"etc/apt/apt.conf.d/90holdfast", aptConfig},
		{"etc/dpkg/dpkg.cfg.d/90holdfast", dpkgConfig},
	} {
		if err := root.Replace(f.name, file, strings.NewReader(f.text)); err != nil {
			return err
		}
	}
	return nil
}

// emptyFolder removes what is in a folder and keeps the folder.
func emptyFolder(root *tree.Root, dir string) error {
	names, err := root.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		if err := root.RemoveAll(filepath.Join(dir, n)); err != nil {
			return err
		}
	}
	return nil
}
