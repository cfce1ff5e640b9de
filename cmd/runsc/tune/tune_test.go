package tune

import (
	"runtime"
	"testing"

	"gvisor.dev/gvisor/pkg/gomaxprocs"
)

// TestKeepProcs: with gVisor of the pinned version, its changes have no effect.
func TestKeepProcs(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	keepProcs()
	gomaxprocs.SetBase(before + 3)
	gomaxprocs.Add(128)
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("GOMAXPROCS went from %d to %d", before, now)
	}
	gomaxprocs.Add(-128)
	if now := runtime.GOMAXPROCS(0); now != before {
		t.Errorf("GOMAXPROCS went from %d to %d", before, now)
	}
}
