package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestChoosePlatform(t *testing.T) {
	r, err := sharedStore.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for want, expected := range map[string]string{"": systrap, systrap: systrap} {
		if got, err := choosePlatform(t.Context(), want, r, dir); err != nil || got != expected {
			t.Errorf("%q: %q, %v", want, got, err)
		}
	}
	if _, err := choosePlatform(t.Context(), "ptrace", r, dir); err == nil || !strings.Contains(err.Error(), "systrap, kvm, auto") {
		t.Errorf("unknown: %v", err)
	}
	// Auto never fails, and kvm is chosen exactly where it works.
	auto, err := choosePlatform(t.Context(), "auto", r, dir)
	if err != nil {
		t.Fatal(err)
	}
	explicit, err := choosePlatform(t.Context(), kvm, r, dir)
	if (auto == kvm) != (err == nil && explicit == kvm) {
		t.Errorf("auto chose %s; kvm asked for gives %q, %v", auto, explicit, err)
	}
	if err != nil && !strings.Contains(err.Error(), "use systrap") {
		t.Errorf("no next step in: %v", err)
	}
	// The outcome is remembered.
	_, err = os.Stat(filepath.Join(dir, ".kvm.json"))
	if _, device := os.Stat("/dev/kvm"); device == nil && err != nil {
		t.Errorf("a trial was made and not remembered: %v", err)
	}
}

// TestProbeRemembered: a trial is not repeated within one boot and runtime.
func TestProbeRemembered(t *testing.T) {
	if _, err := os.Stat("/dev/kvm"); errors.Is(err, os.ErrNotExist) {
		t.Log("without /dev/kvm there is no trial to remember")
		return
	}
	r, err := sharedStore.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	note := `{"runtime":"` + r.SHA256 + `","boot":"` + bootID() + `","problem":"remembered"}`
	if err := os.WriteFile(filepath.Join(dir, ".kvm.json"), []byte(note), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := probeKVM(t.Context(), r, dir); err == nil || !strings.Contains(err.Error(), "remembered") {
		t.Errorf("err = %v", err)
	}
}
