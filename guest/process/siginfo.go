package process

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// siginfoPID reads si_pid, the first field of the union that follows the three
// leading ints. On 64-bit machines the union is aligned to 8 bytes.
func siginfoPID(info *unix.Siginfo) int32 {
	offset := uintptr(12)
	if unsafe.Sizeof(uintptr(0)) == 8 {
		offset = 16
	}
	return *(*int32)(unsafe.Add(unsafe.Pointer(info), offset))
}
