package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPatchesFit: they apply to the version that go.mod names, leave the module cache
// alone, and say why they are there.
func TestPatchesFit(t *testing.T) {
	module, err := output("go", "list", "-m", "-f", "{{.Dir}}", gvisorModule)
	if err != nil {
		t.Fatal(err)
	}
	root, err := output("go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		t.Fatal(err)
	}
	module, root = strings.TrimSpace(module), strings.TrimSpace(root)
	dir := t.TempDir()
	mod, err := patched(root, module, dir)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(mod); err != nil || !strings.Contains(string(b), "replace "+gvisorModule+" => "+dir) {
		t.Errorf("go.mod is %s, %v", b, err)
	}
	for _, p := range patches {
		if p.why == "" {
			t.Errorf("the patch of %s does not say why", p.file)
		}
		if b, err := os.ReadFile(filepath.Join(dir, "gvisor", p.file)); err != nil || !strings.Contains(string(b), p.new) {
			t.Errorf("%s is not patched: %v", p.file, err)
		}
		if b, err := os.ReadFile(filepath.Join(module, p.file)); err != nil || !strings.Contains(string(b), p.old) {
			t.Errorf("%s of the module itself was changed: %v", p.file, err)
		}
	}
}

func TestPatchThatDoesNotFit(t *testing.T) {
	module := t.TempDir()
	for _, p := range patches {
		path := filepath.Join(module, p.file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("package other"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := patched(t.TempDir(), module, t.TempDir()); err == nil || !strings.Contains(err.Error(), "occurs 0 times") {
		t.Errorf("err = %v", err)
	}
}
