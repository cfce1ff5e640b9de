// Package e2e runs real clients and real faults against real daemons: the
// program as built, gVisor, namespaces, mounts. Nothing is replaced by a fake.
package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/holdfast-run/holdfast/e2e/harness"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := harness.Finish(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		code = 1
	}
	os.Exit(code)
}
