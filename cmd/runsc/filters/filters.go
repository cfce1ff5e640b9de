// Package filters hands the seccomp programs that confine a sandbox and its gofer
// from the driver to them, ready made. gVisor has a place for programs that were
// compiled beforehand, but its Go module comes without any, and compiling one
// costs every start some 20 ms. The driver compiles those of our configuration
// once, with gVisor's own rules, and passes them in a file descriptor.
package filters

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	sentry "gvisor.dev/gvisor/runsc/boot/filter"
	sentryconfig "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
	goferconfig "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

// Env names the file descriptor that holds the programs.
const Env = "HOLDFAST_FILTERS_FD"

// programs is the content of that file.
type programs struct {
	Sentry []precompiledseccomp.Program
	Gofer  []precompiledseccomp.Program
}

// Compile makes the programs for a platform and gives them in a sealed memory file.
func Compile(platformName string) (*os.File, error) {
	constructor, err := platform.Lookup(platformName)
	if err != nil {
		return nil, err
	}
	var all programs
	for _, info := range constructor.PrecompiledSeccompInfo() {
		opt := sentryconfig.Options{Platform: info, HostFilesystem: true}
		p, err := compile(opt.ConfigKey(), opt.Vars(), sentryconfig.SeccompOptions(opt), func(v precompiledseccomp.Values) (seccomp.SyscallRules, seccomp.SyscallRules) {
			return sentryRules(opt, v)
		})
		if err != nil {
			return nil, err
		}
		all.Sentry = append(all.Sentry, p)
	}
	opt := goferconfig.Options{DirectFS: true}
	p, err := compile(opt.ConfigKey(), opt.Vars(), seccomp.ProgramOptions{}, func(v precompiledseccomp.Values) (seccomp.SyscallRules, seccomp.SyscallRules) {
		return goferRules(opt, v)
	})
	if err != nil {
		return nil, err
	}
	all.Gofer = append(all.Gofer, p)
	b, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	return memoryFile("holdfast-filters", b)
}

func compile(key string, vars precompiledseccomp.Values, o seccomp.ProgramOptions, rules func(precompiledseccomp.Values) (seccomp.SyscallRules, seccomp.SyscallRules)) (precompiledseccomp.Program, error) {
	var names []string
	for name := range vars {
		names = append(names, name)
	}
	p, err := precompiledseccomp.Precompile(key, names, func(v precompiledseccomp.Values) *seccomp.Program {
		allow, deny := rules(v)
		return &seccomp.Program{
			RuleSets: []seccomp.RuleSet{{Rules: deny.Copy()}, {Rules: allow.Copy(), Action: seccomp.Allow}},
			Options:  o,
		}
	})
	if err != nil {
		return p, fmt.Errorf("compile seccomp program %q: %w", key, err)
	}
	return p, nil
}

func memoryFile(name string, b []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	if _, err := f.Write(b); err != nil {
		f.Close()
		return nil, err
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_WRITE|unix.F_SEAL_SEAL); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Load registers the programs that the driver passed, if it did. Without them
// gVisor compiles its own, so a failure costs time and nothing else.
func Load() {
	fd, err := strconv.Atoi(os.Getenv(Env))
	if err != nil {
		return
	}
	os.Unsetenv(Env)
	defer unix.Close(fd)
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Size == 0 {
		return
	}
	b := make([]byte, st.Size)
	// All processes share the open file: read at a place, not from the position.
	if n, err := unix.Pread(fd, b, 0); err != nil || n != len(b) {
		return
	}
	var all programs
	if json.Unmarshal(b, &all) != nil {
		return
	}
	sentry.ListPrecompiled() // makes the (empty) maps
	gofer.ListPrecompiled()
	for _, p := range all.Sentry {
		sentryPrograms[p.Name] = p
	}
	for _, p := range all.Gofer {
		goferPrograms[p.Name] = p
	}
	runtime.KeepAlive(all)
}
