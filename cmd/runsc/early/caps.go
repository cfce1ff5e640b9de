package early

import (
	"syscall"
	"unsafe"
)

// Capabilities, linux/capability.h.
const (
	chown         = 1 << 0
	dacOverride   = 1 << 1
	dacReadSearch = 1 << 2
	fowner        = 1 << 3
	fsetid        = 1 << 4
	setpcap       = 1 << 8
	sysChroot     = 1 << 18
	sysPtrace     = 1 << 19
	sysAdmin      = 1 << 21
)

// bounding is what gVisor leaves in the bounding set of each kind of process; see
// its sentrycmd.Boot and cmd.Gofer.
var bounding = [...]struct {
	name string
	set  uint64
}{
	{"runsc-sandbox", chown | dacOverride | dacReadSearch | fowner | fsetid | sysPtrace},
	{"runsc-gofer", chown | dacOverride | dacReadSearch | fowner | fsetid | sysChroot},
}

// confine trims the bounding set of a sandbox or gofer, as gVisor does later, and
// then gives up the right to trim it, by which gVisor sees that there is nothing
// left to do. CAP_SYS_ADMIN stays inheritable for the process that unmounts
// /proc; gVisor clears it with the rest.
//
// When anything here fails, gVisor does it all in its own way.
func confine(name string) {
	for _, b := range bounding {
		if b.name == name {
			trim(b.set)
		}
	}
}

type capHeader struct {
	version uint32
	pid     int32
}

type capData struct{ effective, permitted, inheritable uint32 }

// At fixed addresses, for every thread reads them.
var (
	header = capHeader{version: 0x20080522}
	data   [2]capData
)

const prCapbsetDrop = 24

func trim(keep uint64) {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_CAPGET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0); errno != 0 {
		return
	}
	if data[0].effective&setpcap == 0 || data[0].permitted&sysAdmin == 0 {
		return
	}
	// First, for only what is in the bounding set may become inheritable.
	data[0].inheritable |= sysAdmin
	if !capset() {
		return
	}
	for c := uintptr(0); c < 64; c++ {
		if keep&(1<<c) != 0 {
			continue
		}
		if _, _, errno := syscall.AllThreadsSyscall(syscall.SYS_PRCTL, prCapbsetDrop, c, 0); errno == syscall.EINVAL {
			break // the first number that the kernel has no capability for
		} else if errno != 0 {
			return
		}
	}
	data[0].effective &^= setpcap
	data[0].permitted &^= setpcap
	capset()
}

// capset gives every thread the capabilities in data.
func capset() bool {
	_, _, errno := syscall.AllThreadsSyscall(syscall.SYS_CAPSET, uintptr(unsafe.Pointer(&header)), uintptr(unsafe.Pointer(&data[0])), 0)
	return errno == 0
}
