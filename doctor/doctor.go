// Package doctor looks at the machine: whether it can run sandboxes, and what
// is not as it should be. It changes nothing. What a node left behind is the
// node's own matter (sandbox.Doctor).
package doctor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/sandbox"
)

// Machine says where to look; the zero value is this machine.
type Machine struct {
	Root string // prefix of /proc and /sys; "" for /
	Data string // data folder, which may not exist yet
	UID  int    // effective user
	Arch string // as GOARCH
}

// This gives the machine that we run on.
func This(data string) Machine {
	return Machine{Data: data, UID: os.Geteuid(), Arch: runtime.GOARCH}
}

// Thresholds.
const (
	minKernelMajor = 5
	minKernelMinor = 10
	lowDiskMB      = 2048
	lowMemoryMB    = 1024
)

// Check gives a finding for each thing looked at, good ones too.
func (m Machine) Check() []sandbox.Finding {
	return []sandbox.Finding{
		m.user(), m.architecture(), m.kernel(), m.overlay(), m.namespaces(), m.forwarding(), m.cgroups(),
		m.data(), m.memory(), m.bootstrap(),
	}
}

func finding(check string, s sandbox.Severity, thing, next, format string, args ...any) sandbox.Finding {
	return sandbox.Finding{Check: check, Severity: s, Thing: thing, Next: next, Reason: fmt.Sprintf(format, args...)}
}

func (m Machine) read(path string) string {
	b, err := os.ReadFile(filepath.Join(m.Root, path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func (m Machine) user() sandbox.Finding {
	if m.UID != 0 {
		return finding("user", sandbox.Problem, "", "run it as root, e.g. by sudo", "is uid %d, but mounts, namespaces and cgroups need root", m.UID)
	}
	return finding("user", sandbox.OK, "", "", "root")
}

func (m Machine) architecture() sandbox.Finding {
	if m.Arch != "amd64" && m.Arch != "arm64" {
		return finding("architecture", sandbox.Problem, m.Arch, "use a machine with amd64 or arm64", "gVisor does not run on it")
	}
	return finding("architecture", sandbox.OK, m.Arch, "", "gVisor runs on it")
}

func (m Machine) kernel() sandbox.Finding {
	release := m.read("/proc/sys/kernel/osrelease")
	parts := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(parts) < 2 {
		return finding("kernel", sandbox.Warning, release, "look at uname -r", "version cannot be told; %d.%d or later is needed", minKernelMajor, minKernelMinor)
	}
	major, _ := strconv.Atoi(parts[0])
	minor, _ := strconv.Atoi(parts[1])
	if major < minKernelMajor || major == minKernelMajor && minor < minKernelMinor {
		return finding("kernel", sandbox.Problem, release, "upgrade the kernel", "is older than %d.%d", minKernelMajor, minKernelMinor)
	}
	return finding("kernel", sandbox.OK, release, "", "new enough")
}

func (m Machine) overlay() sandbox.Finding {
	if !slices.Contains(strings.Fields(m.read("/proc/filesystems")), "overlay") {
		return finding("overlayfs", sandbox.Problem, "", "load it: modprobe overlay", "the kernel does not offer it")
	}
	return finding("overlayfs", sandbox.OK, "", "", "offered by the kernel")
}

func (m Machine) namespaces() sandbox.Finding {
	for _, ns := range []string{"net", "mnt", "pid", "ipc", "uts"} {
		if _, err := os.Stat(filepath.Join(m.Root, "/proc/self/ns", ns)); err != nil {
			return finding("namespaces", sandbox.Problem, ns, "use a kernel with it", "the kernel does not offer it")
		}
	}
	return finding("namespaces", sandbox.OK, "", "", "offered by the kernel")
}

func (m Machine) forwarding() sandbox.Finding {
	if v := m.read("/proc/sys/net/ipv4/ip_forward"); v == "" {
		return finding("network", sandbox.Problem, "/proc/sys/net/ipv4", "use a kernel with IPv4", "IPv4 is not there")
	}
	return finding("network", sandbox.OK, "", "", "IPv4 is there; the daemon switches forwarding on")
}

// cgroups tells which limits can be enforced; none is needed to run.
func (m Machine) cgroups() sandbox.Finding {
	var missing []string
	unified := strings.Fields(m.read("/sys/fs/cgroup/cgroup.controllers"))
	var v1 []string
	for line := range strings.Lines(m.read("/proc/self/mountinfo")) {
		_, fs, ok := strings.Cut(line, " - cgroup ")
		if !ok {
			continue
		}
		f := strings.Fields(fs)
		v1 = append(v1, strings.Split(f[len(f)-1], ",")...)
	}
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(unified, c) && !slices.Contains(v1, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return finding("cgroups", sandbox.Warning, strings.Join(missing, ", "), "mount the cgroup controllers, or boot with systemd.unified_cgroup_hierarchy=1",
			"controllers are missing, so these limits of a sandbox are not enforced")
	}
	return finding("cgroups", sandbox.OK, "", "", "cpu, memory and pids can be limited")
}

func (m Machine) data() sandbox.Finding {
	dir := m.Data
	for {
		info, err := os.Stat(dir)
		if err == nil {
			if !info.IsDir() {
				return finding("data", sandbox.Problem, dir, "choose another with --data", "is not a folder")
			}
			break
		}
		if parent := filepath.Dir(dir); parent != dir {
			dir = parent
			continue
		}
		return finding("data", sandbox.Problem, m.Data, "choose another with --data", "cannot be read: %v", err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return finding("data", sandbox.Problem, m.Data, "choose another with --data", "cannot be read: %v", err)
	}
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC || st.Type == unix.NFS_SUPER_MAGIC {
		return finding("data", sandbox.Problem, m.Data, "put it on a local file system (ext4, xfs, btrfs) with --data",
			"is on a file system that cannot hold the writable part of an overlay")
	}
	free := int64(st.Bavail) * st.Bsize >> 20 //nolint:gosec // no disk has 2^63 blocks
	if free < lowDiskMB {
		return finding("data", sandbox.Warning, m.Data, "free some, or choose another with --data", "has only %d MiB free", free)
	}
	return finding("data", sandbox.OK, m.Data, "", "%d MiB free", free)
}

func (m Machine) memory() sandbox.Finding {
	for line := range strings.Lines(m.read("/proc/meminfo")) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "MemAvailable:" {
			continue
		}
		kb, _ := strconv.ParseInt(f[1], 10, 64)
		if kb>>10 < lowMemoryMB {
			return finding("memory", sandbox.Warning, "", "stop something, or pause sandboxes", "only %d MiB are available", kb>>10)
		}
		return finding("memory", sandbox.OK, "", "", "%d MiB available", kb>>10)
	}
	return finding("memory", sandbox.Warning, "/proc/meminfo", "look at free -m", "does not say how much is available")
}

// bootstrap looks for what makes the base template where no registry answers.
func (m Machine) bootstrap() sandbox.Finding {
	path, err := exec.LookPath("mmdebstrap")
	if err != nil {
		return finding("bootstrap", sandbox.Warning, "mmdebstrap", "apt-get install mmdebstrap",
			"is not installed; base and debootstrap:// templates can then only come from images")
	}
	return finding("bootstrap", sandbox.OK, path, "", "is installed")
}
