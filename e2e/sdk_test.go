package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/e2e/harness"
)

// TestE2BClients runs the suite in node/ with the official e2b packages, which
// npm installs as they were published, against the shared daemon.
func TestE2BClients(t *testing.T) {
	for _, version := range []string{"latest", "v2.50"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			dir := install(t, version)
			files, err := filepath.Glob(filepath.Join(dir, "..", "suite", "*.test.mjs"))
			if err != nil || len(files) == 0 {
				t.Fatalf("no suite: %v", err)
			}
			if version == "latest" {
				files = append(files, filepath.Join(dir, "..", "cli", "cli.test.mjs"))
			}
			for _, file := range files {
				t.Run(strings.TrimSuffix(filepath.Base(file), ".test.mjs"), func(t *testing.T) {
					t.Parallel()
					runSuite(t, dir, file)
				})
			}
		})
	}
}

// install gives the folder of a version with its packages as the lock file has them.
func install(t *testing.T, version string) string {
	t.Helper()
	dir := filepath.Join(harness.Repository(), "e2e", "node", version)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	npm := exec.CommandContext(ctx, "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline")
	npm.Dir = dir
	npm.Env = nodeEnvironment()
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci in %s: %v\n%s", dir, err, out)
	}
	return dir
}

var counts = regexp.MustCompile(`(?m)^# (tests|pass|fail|cancelled|skipped|todo) (\d+)$`)

func runSuite(t *testing.T, dir, file string) {
	d := harness.Shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	node := exec.CommandContext(ctx, "node", "--test", "--test-reporter=tap", file) //nolint:gosec // a file of ours
	node.Dir = dir
	node.Env = append(nodeEnvironment(), "E2B_API_URL="+d.URL, "E2B_SANDBOX_URL="+d.URL, "E2B_API_KEY="+d.Key())
	out, err := node.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got := map[string]string{}
	for _, m := range counts.FindAllStringSubmatch(string(out), -1) {
		got[m[1]] = m[2]
	}
	// A file that is not found or registers nothing also ends with code 0.
	if got["tests"] == "" || got["tests"] == "0" || got["pass"] != got["tests"] {
		t.Fatalf("not every test ran and passed: %v\n%s", got, out)
	}
	t.Logf("%s tests passed", got["pass"])
}

// nodeEnvironment finds the pinned Node first, where set-up had to fetch one.
func nodeEnvironment() []string {
	env := []string{"PATH=" + filepath.Join(harness.Repository(), "bin", "tools", "node", "bin") + ":" + os.Getenv("PATH")}
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "PATH=") && !strings.HasPrefix(e, "E2B_") {
			env = append(env, e)
		}
	}
	return append(env, fmt.Sprintf("NODE_OPTIONS=--max-old-space-size=%d", 1024))
}
