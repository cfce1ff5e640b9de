package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-run/holdfast/config"
	"github.com/holdfast-run/holdfast/e2e/harness"
)

func document(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(harness.Repository(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDocsMatchTheProgram wants every setting and verb documented, and every
// test and file that a document names to exist.
func TestDocsMatchTheProgram(t *testing.T) {
	t.Parallel()
	settings := document(t, "docs/configuration.md")
	for _, k := range config.Keys {
		if !strings.Contains(settings, "| `"+k.Name+"` | `"+k.EnvName()+"` |") {
			t.Errorf("docs/configuration.md has no row for %s (%s)", k.Name, k.EnvName())
		}
	}
	commands := document(t, "docs/cli.md")
	for _, verb := range verbs {
		if !strings.Contains(commands, "`"+verb+"`") {
			t.Errorf("docs/cli.md does not name %q", verb)
		}
	}
	sources, err := filepath.Glob(filepath.Join(harness.Repository(), "e2e", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, s := range sources {
		b, err := os.ReadFile(s)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(b)
	}
	for _, m := range regexp.MustCompile("`(Test[A-Za-z]+)`").FindAllStringSubmatch(document(t, "docs/faults.md"), -1) {
		if !strings.Contains(code.String(), "func "+m[1]+"(") {
			t.Errorf("docs/faults.md names %s, which does not exist", m[1])
		}
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "docs/install.md", "docs/cli.md", "docs/STATUS.md", "docs/faults.md", "docs/network.md"} {
		for _, m := range regexp.MustCompile(`\]\(([^)#:]+)\)`).FindAllStringSubmatch(document(t, name), -1) {
			if _, err := os.Stat(filepath.Join(harness.Repository(), filepath.Dir(name), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			}
		}
	}
}
