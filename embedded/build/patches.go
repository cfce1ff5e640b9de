package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// patch is a small change of gVisor's source for the runtime that is embedded. Each
// only makes it faster: built without them, as `go build ./cmd/runsc` does, it works
// the same.
type patch struct {
	file string // within the module
	old  string // must occur exactly once
	new  string
	why  string
}

var patches = []patch{{
	file: "pkg/sentry/state/stateio/pagesfile.go",
	old:  "pagesFileFDDefaultMaxParallel = 128",
	new:  "pagesFileFDDefaultMaxParallel = 2",
	why: "While the kernel's state is loaded, its memory is read in the background by this many threads. " +
		"128 of them leave the one that everybody waits for hardly any processor, and stay for good.",
}}

// patched makes a copy of gVisor's module in dir with the patches applied, and
// files for go's -modfile flag that put it in the place of the original. It gives the
// name of the go.mod.
func patched(root, module, dir string) (string, error) {
	copied := filepath.Join(dir, "gvisor")
	if err := link(module, copied); err != nil {
		return "", fmt.Errorf("copy %s: %w", module, err)
	}
	for _, p := range patches {
		path := filepath.Join(copied, p.file)
		b, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("patch: %w", err)
		}
		if n := strings.Count(string(b), p.old); n != 1 {
			return "", fmt.Errorf("patch %s: %q occurs %d times instead of once; adapt embedded/build/patches.go to this version of gVisor", p.file, p.old, n)
		}
		// Not in place: the file is the module cache's own.
		if err := os.Remove(path); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, []byte(strings.Replace(string(b), p.old, p.new, 1)), 0o644); err != nil {
			return "", err
		}
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		return "", err
	}
	sum, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		return "", err
	}
	mod = fmt.Appendf(mod, "\nreplace %s => %s\n", gvisorModule, copied)
	file := filepath.Join(dir, "go.mod")
	if err := os.WriteFile(file, mod, 0o644); err != nil {
		return "", err
	}
	return file, os.WriteFile(filepath.Join(dir, "go.sum"), sum, 0o644)
}

// link copies a tree by hard links where possible.
func link(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		if os.Link(path, target) == nil {
			return nil
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	defer dst.Close()
	if _, err := io.Copy(dst, src); err != nil {
		return err
	}
	return dst.Close()
}

// patchKey is what the patches add to the key of what is built with them.
func patchKey() string {
	var b strings.Builder
	for _, p := range patches {
		fmt.Fprintf(&b, "%s\n%s\n%s\n", p.file, p.old, p.new)
	}
	return b.String()
}
