package account

import (
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// Do runs fn with the user's credentials, so that the kernel itself decides what
// fn may open, list or create and who owns the result. A descriptor opened
// within keeps its rights afterwards.
//
// Effective ids are switched on one locked thread by raw system calls: fsuid
// alone would be the smaller tool, but gVisor does not have it, and Go's own
// Setuid switches every thread. Dropping the effective uid drops the effective
// capabilities with it; the saved uid stays root, which is the way back. fn must
// not start goroutines that need the credentials.
func (u User) Do(fn func() error) error {
	if u.UID == 0 || os.Geteuid() != 0 {
		return fn()
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer leave()
	if err := u.enter(); err != nil {
		return os.NewSyscallError("become user "+u.Name, err)
	}
	return fn()
}

func (u User) enter() error {
	if err := setgroups(u.Groups); err != nil {
		return err
	}
	if err := raw(syscall.SYS_SETRESGID, unchanged, uintptr(u.GID), unchanged); err != nil {
		return err
	}
	return raw(syscall.SYS_SETRESUID, unchanged, uintptr(u.UID), unchanged)
}

// leave makes the thread root again. It cannot fail while the saved uid is 0; if
// it ever did, going on as a wrong user would be worse than ending.
func leave() {
	err := raw(syscall.SYS_SETRESUID, unchanged, 0, unchanged)
	if err == nil {
		err = raw(syscall.SYS_SETRESGID, unchanged, uintptr(ownGID), unchanged)
	}
	if err == nil {
		err = setgroups(ownGroups)
	}
	if err != nil {
		panic("account: cannot become root again: " + err.Error())
	}
}

const unchanged = ^uintptr(0)

var (
	ownGID    = os.Getegid()
	ownGroups = currentGroups()
)

func currentGroups() []uint32 {
	gids, err := syscall.Getgroups()
	if err != nil {
		return nil
	}
	groups := make([]uint32, len(gids))
	for i, g := range gids {
		groups[i] = uint32(g)
	}
	return groups
}

func setgroups(groups []uint32) error {
	var first unsafe.Pointer
	if len(groups) > 0 {
		first = unsafe.Pointer(&groups[0])
	}
	if _, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, uintptr(len(groups)), uintptr(first), 0); errno != 0 {
		return errno
	}
	return nil
}

func raw(nr, a, b, c uintptr) error {
	if _, _, errno := syscall.RawSyscall(nr, a, b, c); errno != 0 {
		return errno
	}
	return nil
}
