package layers

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNoQuota says that a file system cannot bind a folder's size.
var ErrNoQuota = errors.New("no project quota")

// Quota binds what folders may hold, by the project quotas of ext4 and xfs. It
// needs a file system mounted with the option prjquota (ext4: and made with the
// features quota and project). Where there is none, measure with Usage now and
// then: a limit is then noticed late.
//
// A project is a number of the caller's, one for each sandbox. A frozen upper
// keeps its project, so give the upper that follows a fresh one.
type Quota struct {
	dir *os.File
}

// OpenQuota tells whether the file system that holds dir binds folders. If not,
// the error wraps ErrNoQuota and the kernel's reason.
func OpenQuota(dir string) (*Quota, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open quota: %w", err)
	}
	q := &Quota{dir: f}
	var s quotaState
	if err = q.call(quotaGetState, 0, unsafe.Pointer(&s)); err == nil && s.Flags&quotaEnforced == 0 {
		err = errors.New("limits are not enforced")
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("file system of %s: %w (%w); mount it with prjquota to bind the size of sandboxes", dir, ErrNoQuota, err)
	}
	return q, nil
}

// Close releases the folder; limits stay.
func (q *Quota) Close() error { return q.dir.Close() }

// Limit binds a project to bytes and inodes; 0 leaves one unbound.
func (q *Quota) Limit(project uint32, bytes, inodes int64) error {
	const blockSize = 1024 // the unit of limits, whatever the file system's blocks
	b := diskQuota{
		BlockHard: uint64(bytes+blockSize-1) / blockSize,
		InodeHard: uint64(inodes),
		Valid:     quotaBlockLimits | quotaInodeLimits,
	}
	if err := q.call(quotaSet, project, unsafe.Pointer(&b)); err != nil {
		return fmt.Errorf("limit project %d: %w", project, err)
	}
	return nil
}

// Usage gives what a project takes: bytes and inodes, at once and exactly.
func (q *Quota) Usage(project uint32) (bytes, inodes int64, err error) {
	var b diskQuota
	if err := q.call(quotaGet, project, unsafe.Pointer(&b)); err != nil {
		return 0, 0, fmt.Errorf("usage of project %d: %w", project, err)
	}
	return int64(b.Space), int64(b.Inodes), nil
}

// Assign puts an empty folder, and what will be made in it, into a project. An
// upper and its work folder must be in one: overlayfs moves files between them.
func (q *Quota) Assign(dir string, project uint32) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("assign project %d: %w", project, err)
	}
	defer f.Close()
	var a fileAttr
	if err := ioctl(f, ioctlGetAttr, unsafe.Pointer(&a)); err != nil {
		return fmt.Errorf("assign project %d to %s: %w", project, dir, err)
	}
	a.Flags |= attrProjectInherit
	a.Project = project
	if err := ioctl(f, ioctlSetAttr, unsafe.Pointer(&a)); err != nil {
		return fmt.Errorf("assign project %d to %s: %w", project, dir, err)
	}
	return nil
}

// Kernel interfaces: linux/quota.h, linux/dqblk_xfs.h, linux/fs.h.
const (
	quotaGet           = 0x800007
	quotaSet           = 0x800008
	quotaGetState      = 0x5805 // Q_XGETQSTAT
	quotaProject       = 2
	quotaEnforced      = 1 << 5
	quotaBlockLimits   = 1
	quotaInodeLimits   = 4
	ioctlGetAttr       = 0x801c581f
	ioctlSetAttr       = 0x401c5820
	attrProjectInherit = 0x200
)

// diskQuota is struct if_dqblk.
type diskQuota struct {
	BlockHard, BlockSoft, Space  uint64
	InodeHard, InodeSoft, Inodes uint64
	BlockTime, InodeTime         uint64
	Valid                        uint32
	_                            uint32
}

// quotaState is struct fs_quota_stat, of which one field counts here.
type quotaState struct {
	_     int8
	Flags uint16
	_     [76]byte
}

// fileAttr is struct fsxattr.
type fileAttr struct {
	Flags, ExtentSize, Extents, Project, CowExtentSize uint32
	_                                                  [8]byte
}

func (q *Quota) call(command, project uint32, arg unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, q.dir.Fd(), uintptr(command<<8|quotaProject), uintptr(project), uintptr(arg), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

func ioctl(f *os.File, request uintptr, arg unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(arg)); errno != 0 {
		return errno
	}
	return nil
}

// bindable gives up, on this thread, the capability to exceed quotas. Overlayfs
// writes with the credentials of whoever mounted it.
func bindable() error {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if err := unix.Capget(&h, &d[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	const bit = 1 << unix.CAP_SYS_RESOURCE
	d[0].Effective &^= bit
	d[0].Permitted &^= bit
	if err := unix.Capset(&h, &d[0]); err != nil {
		return fmt.Errorf("drop capability: %w", err)
	}
	return nil
}
