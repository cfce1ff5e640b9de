// Package early does what is better done before the whole of gVisor is initialised:
// it depends on nothing but package syscall, so its init runs before those of some
// hundred other packages, while the process still has two or three threads.
//
//   - Every sandbox starts this program once more only to unmount its /proc after
//     it has dropped the privilege to do so itself. Initialising everything for
//     one system call costs more than 10 ms of cpu each time, so that call is
//     answered here.
//   - A sandbox and its gofer drop capabilities from the bounding set of every
//     thread, one by one, which stops all threads each time: 10 ms of cpu once
//     there are ten of them. Here it is less than one.
package early

import "syscall"

func init() {
	args := commandLine()
	if dir, fd, ok := umountCall(args); ok {
		umount(dir, fd)
	}
	if len(args) > 0 {
		confine(args[0])
	}
}

// commandLine reads the first arguments, which package os has not set up yet. The
// last one may be cut off.
func commandLine() []string {
	fd, err := syscall.Open("/proc/self/cmdline", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	var buf [256]byte
	n, err := syscall.Read(fd, buf[:])
	if err != nil {
		return nil
	}
	var args []string
	begin := 0
	for i := range n {
		if buf[i] == 0 {
			args = append(args, string(buf[begin:i]))
			begin = i + 1
		}
	}
	if begin < n {
		args = append(args, string(buf[begin:n]))
	}
	return args
}

// umountCall recognises `runsc umount --sync-fd=<one digit> <folder>`.
func umountCall(args []string) (dir string, fd int, ok bool) {
	const flag = "--sync-fd="
	if len(args) != 4 || args[1] != "umount" || len(args[2]) != len(flag)+1 || args[2][:len(flag)] != flag {
		return "", 0, false
	}
	digit := args[2][len(flag)]
	if digit < '0' || digit > '9' {
		return "", 0, false
	}
	return args[3], int(digit - '0'), true
}

// umount waits for one byte, unmounts lazily and ends the process: 0 on success.
func umount(dir string, fd int) {
	var b [1]byte
	for {
		n, err := syscall.Read(fd, b[:])
		if err == syscall.EINTR {
			continue
		}
		if n != 1 || err != nil || syscall.Unmount(dir, syscall.MNT_DETACH) != nil {
			syscall.Exit(128)
		}
		syscall.Exit(0)
	}
}
