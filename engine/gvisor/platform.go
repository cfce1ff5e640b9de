package gvisor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/holdfast-run/holdfast/runtimes"
)

// Platforms of gVisor that this engine uses.
const (
	systrap = "systrap" // everywhere, no hardware virtualisation
	kvm     = "kvm"     // needs /dev/kvm that works, which only a trial shows
)

// probeTimeout bounds the trial of kvm: where nested virtualisation is broken it
// hangs for ever.
const probeTimeout = 15 * time.Second

// choosePlatform resolves Options.Platform.
func choosePlatform(ctx context.Context, want string, r runtimes.Runtime, dir string) (string, error) {
	switch want {
	case "", systrap:
		return systrap, nil
	case kvm, "auto":
	default:
		return "", fmt.Errorf("unknown platform %q; it is one of systrap, kvm, auto", want)
	}
	err := probeKVM(ctx, r, dir)
	if err == nil {
		return kvm, nil
	}
	if want == "auto" {
		return systrap, nil
	}
	return "", fmt.Errorf("platform kvm does not work here: %w; use systrap", err)
}

// probe is the remembered outcome of a trial, good for one runtime and one boot.
type probe struct {
	Runtime string `json:"runtime"`
	Boot    string `json:"boot"`
	Problem string `json:"problem"`
}

// probeKVM runs a program in a small container on kvm, in a child process with a
// deadline, once for each runtime and boot.
func probeKVM(ctx context.Context, r runtimes.Runtime, dir string) error {
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return err
	}
	file := filepath.Join(dir, ".kvm.json")
	var p probe
	if b, err := os.ReadFile(file); err != nil || json.Unmarshal(b, &p) != nil || p.Runtime != r.SHA256 || p.Boot != bootID() {
		p = probe{Runtime: r.SHA256, Boot: bootID()}
		if err := tryKVM(ctx, r); err != nil {
			p.Problem = err.Error()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b, err := json.Marshal(p)
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, b, 0o600); err != nil {
			return err
		}
	}
	if p.Problem != "" {
		return fmt.Errorf("trial: %s", p.Problem)
	}
	return nil
}

func tryKVM(ctx context.Context, r runtimes.Runtime) error {
	root, err := os.MkdirTemp("", "holdfast-kvm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, r.Path, "--root="+root, "--platform=kvm", "--network=none", "--ignore-cgroups",
		"--gofer-network-namespace=new", "do", "--quiet", "--force-overlay=false", r.Path, "--version")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return fmt.Errorf("it did not answer within %s", probeTimeout)
	}
	if err != nil {
		return fmt.Errorf("%w: %.200s", err, out)
	}
	return nil
}
