package gvisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/holdfast-run/holdfast/engine"
)

// A memory image restores only into a container of the same shape: mounts with
// their options, capabilities, limits, user and the name of pid 1 must be what
// they were at the checkpoint. So everything below is fixed for ever; only what
// the caller's Spec carries may differ between two instances.
//
// Of the mounts, only the root and the share come from the host. Note that gVisor
// itself mounts a tmpfs over /tmp when the root's /tmp is an empty folder, which
// would put the content of /tmp into every memory image: a root file system
// must hold something there (the layers have /tmp/.X11-unix).

// capabilities of pid 1. gVisor's own kernel checks them, none reaches the host,
// so pid 1 gets what a root on a machine of its own has: sudo, apt, mounts,
// ptrace, a host name, low ports, all work. It hands less to what it starts.
var capabilities = []string{
	"CAP_AUDIT_CONTROL", "CAP_AUDIT_READ", "CAP_AUDIT_WRITE", "CAP_BLOCK_SUSPEND", "CAP_BPF",
	"CAP_CHECKPOINT_RESTORE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER",
	"CAP_FSETID", "CAP_IPC_LOCK", "CAP_IPC_OWNER", "CAP_KILL", "CAP_LEASE", "CAP_LINUX_IMMUTABLE",
	"CAP_MAC_ADMIN", "CAP_MAC_OVERRIDE", "CAP_MKNOD", "CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE",
	"CAP_NET_BROADCAST", "CAP_NET_RAW", "CAP_PERFMON", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP",
	"CAP_SETUID", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_CHROOT", "CAP_SYS_MODULE", "CAP_SYS_NICE",
	"CAP_SYS_PACCT", "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_SYS_RESOURCE", "CAP_SYS_TIME",
	"CAP_SYS_TTY_CONFIG", "CAP_SYSLOG", "CAP_WAKE_ALARM",
}

var idPattern = regexp.MustCompile(`^[a-z0-9]{1,64}$`)

// restoredName is the host name of a restored instance until its guest names itself: a
// kernel that is booted beforehand cannot know a better one.
const restoredName = "sandbox"

// validate checks what the caller asks for.
func validate(s engine.Spec) error {
	switch {
	case !idPattern.MatchString(s.ID):
		return fmt.Errorf("instance %q: the id must be 1 to 64 of a-z and 0-9", s.ID)
	case !filepath.IsAbs(s.Root):
		return fmt.Errorf("instance %s: root %q is not an absolute path", s.ID, s.Root)
	case !filepath.IsAbs(s.Share):
		return fmt.Errorf("instance %s: share %q is not an absolute path", s.ID, s.Share)
	case !filepath.IsAbs(s.NetNS):
		return fmt.Errorf("instance %s: network namespace %q is not an absolute path", s.ID, s.NetNS)
	case len(s.Args) == 0 || !filepath.IsAbs(s.Args[0]):
		return fmt.Errorf("instance %s: arguments %q do not begin with an absolute path", s.ID, s.Args)
	case s.CPUMillis < 0 || s.MemoryBytes < 0 || s.PIDs < 0:
		return fmt.Errorf("instance %s: negative limit in %+v", s.ID, s.Resources)
	}
	for _, dir := range []string{s.Root, s.Share} {
		if fi, err := os.Stat(dir); err != nil {
			return fmt.Errorf("instance %s: %w", s.ID, err)
		} else if !fi.IsDir() {
			return fmt.Errorf("instance %s: %s is not a folder", s.ID, dir)
		}
	}
	if _, err := os.Stat(s.NetNS); err != nil {
		return fmt.Errorf("instance %s: network namespace: %w", s.ID, err)
	}
	return nil
}

// bundle writes the OCI configuration into dir.
func bundle(s engine.Spec, dir string) error {
	b, err := json.Marshal(ociSpec(s))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600)
}

func ociSpec(s engine.Spec) *specs.Spec {
	return &specs.Spec{
		Version:  "1.1.0",
		Hostname: s.Hostname,
		Root:     &specs.Root{Path: s.Root},
		Process: &specs.Process{
			Args: s.Args,
			Env:  s.Env,
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: capabilities, Effective: capabilities, Permitted: capabilities,
			},
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 65536, Hard: 1 << 20}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts"},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777"}},
			{Destination: engine.ShareMount, Type: "bind", Source: s.Share, Options: []string{"bind", "rw"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.NetworkNamespace, Path: s.NetNS},
			},
		},
	}
}
