// Package early does what must not wait until the whole of gVisor is initialised.
//
// Every sandbox starts this program once more only to unmount its /proc after
// it has dropped the privilege to do so itself. Initialising some hundred packages
// for one system call costs more than 10 ms of cpu each time. This package depends
// on nothing but package syscall, so it is initialised before all of them, and
// answers that one call itself.
package early

import "syscall"

func init() {
	if dir, fd, ok := umountCall(commandLine()); ok {
		umount(dir, fd)
	}
}

// commandLine reads the arguments, which package os has not set up yet.
func commandLine() []string {
	fd, err := syscall.Open("/proc/self/cmdline", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	var buf [128]byte // a longer command line is not the call in question
	n, err := syscall.Read(fd, buf[:])
	if err != nil || n == len(buf) {
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
