// Command build makes the programs that holdfast embeds: it compiles cmd/runsc
// and cmd/guest statically, compresses them and writes them with a description
// into embedded/assets. A program whose sources, module versions and Go version
// are unchanged is not built again. Run it from anywhere inside the module:
//
//	go run ./embedded/build [-only runsc,guest]
package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/holdfast-run/holdfast/embedded"
)

const gvisorModule = "gvisor.dev/gvisor"

func main() {
	only := flag.String("only", embedded.Runsc+","+embedded.Guest, "programs to build, separated by commas")
	flag.Parse()
	root, err := output("go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		fail(err)
	}
	for _, name := range strings.Split(*only, ",") {
		if err := build(strings.TrimSpace(root), name); err != nil {
			fail(fmt.Errorf("build %s: %w", name, err))
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "embedded/build:", err)
	os.Exit(1)
}

func build(root, name string) error {
	began := time.Now()
	pkg := "./cmd/" + name
	ldflags := "-s -w -buildid="
	version := ""
	if name == embedded.Runsc {
		v, err := output("go", "list", "-C", root, "-m", "-f", "{{.Version}}", gvisorModule)
		if err != nil {
			return err
		}
		version = strings.TrimSpace(v)
		// A memory image restores only under the identical version string, so it
		// has to name the module version; unstamped, all versions would be equal.
		ldflags += " -X " + gvisorModule + "/runsc/version.version=" + version
	}
	key, err := sourceKey(root, pkg, ldflags)
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "embedded", "assets")
	if current(dir, name, key) {
		fmt.Printf("embedded/build: %s is up to date\n", name)
		return nil
	}
	tmp, err := os.MkdirTemp("", "holdfast-build-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	bin := filepath.Join(tmp, name)
	cmd := exec.Command("go", "build", "-C", root, "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", bin, pkg)
	cmd.Env = buildEnv()
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("compile %s: %w", pkg, err)
	}
	a, err := pack(bin, filepath.Join(dir, name+".zst"))
	if err != nil {
		return err
	}
	a.Name, a.Key, a.Version = name, key, version
	if version == "" {
		a.Version = a.SHA256[:12]
	}
	b, err := json.MarshalIndent(a, "", "  ")
	if err != nil {
		return err
	}
	// The description goes last: an interrupted build leaves an old or no key.
	if err := replace(filepath.Join(dir, name+".json"), append(b, '\n')); err != nil {
		return err
	}
	fmt.Printf("embedded/build: %s %s, %d MB, %s\n", name, a.Version, a.Size>>20, time.Since(began).Round(100*time.Millisecond))
	return nil
}

func buildEnv() []string { return append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOFLAGS=") }

// sourceKey digests everything a program is made from: the Go version, the
// flags, the versions of the modules it uses and the files of our own packages.
func sourceKey(root, pkg, ldflags string) (string, error) {
	cmd := exec.Command("go", "list", "-C", root, "-deps", "-f",
		`{{if not .Standard}}{{if .Module.Main}}{{.Dir}}{{else}}{{.Module.Path}}@{{.Module.Version}}{{end}}{{end}}`, pkg)
	cmd.Env = buildEnv()
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go list %s: %w", pkg, err)
	}
	lines := strings.Fields(string(out))
	slices.Sort(lines)
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOARCH, ldflags)
	for _, l := range slices.Compact(lines) {
		if !filepath.IsAbs(l) {
			fmt.Fprintln(h, l)
			continue
		}
		entries, err := os.ReadDir(l)
		if err != nil {
			return "", err
		}
		for _, e := range entries {
			if e.IsDir() || strings.HasSuffix(e.Name(), "_test.go") {
				continue
			}
			b, err := os.ReadFile(filepath.Join(l, e.Name()))
			if err != nil {
				return "", err
			}
			rel, err := filepath.Rel(root, l)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "%s/%s %d\n", rel, e.Name(), len(b))
			h.Write(b)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// current tells whether the asset was built from key and is whole.
func current(dir, name, key string) bool {
	var a embedded.Asset
	b, err := os.ReadFile(filepath.Join(dir, name+".json"))
	if err != nil || json.Unmarshal(b, &a) != nil || a.Key != key {
		return false
	}
	fi, err := os.Stat(filepath.Join(dir, name+".zst"))
	return err == nil && fi.Size() > 0
}

func pack(bin, dst string) (embedded.Asset, error) {
	var a embedded.Asset
	b, err := os.ReadFile(bin)
	if err != nil {
		return a, err
	}
	sum := sha256.Sum256(b)
	a.SHA256, a.Size = hex.EncodeToString(sum[:]), int64(len(b))
	var packed bytes.Buffer
	w, err := zstd.NewWriter(&packed, zstd.WithEncoderLevel(zstd.SpeedBetterCompression), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return a, err
	}
	if _, err := io.Copy(w, bytes.NewReader(b)); err != nil {
		return a, err
	}
	if err := w.Close(); err != nil {
		return a, err
	}
	return a, replace(dst, packed.Bytes())
}

func replace(path string, b []byte) error {
	if err := os.WriteFile(path+".tmp", b, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return string(b), nil
}
