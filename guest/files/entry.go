package files

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/holdfast-run/holdfast/guest/proto/filesystempb"
)

// lstat describes path itself. Call it with the user's credentials.
func (s *Service) lstat(path string) (*pb.EntryInfo, error) {
	fi, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	return s.entry(path, fi), nil
}

// entry describes path. A symbolic link has its own size, times and permissions
// string, and the type and mode of what it leads to, with the place it leads to.
func (s *Service) entry(path string, fi fs.FileInfo) *pb.EntryInfo {
	e := &pb.EntryInfo{
		Name:         fi.Name(),
		Path:         path,
		Type:         fileType(fi.Mode()),
		Size:         fi.Size(),
		Mode:         uint32(fi.Mode().Perm()),
		Permissions:  fi.Mode().String(),
		ModifiedTime: timestamppb.New(fi.ModTime()),
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		e.Owner = s.accounts.UserName(st.Uid)
		e.Group = s.accounts.GroupName(st.Gid)
	}
	if fi.Mode()&fs.ModeSymlink != 0 {
		target, err := filepath.EvalSymlinks(path)
		if err != nil {
			target, _ = os.Readlink(path) // leads nowhere: what it says
		} else if to, err := os.Stat(target); err == nil {
			e.Type, e.Mode = fileType(to.Mode()), uint32(to.Mode().Perm())
		}
		e.SymlinkTarget = &target
		return e
	}
	if fi.Mode().IsRegular() || fi.IsDir() {
		e.Metadata = readMetadata(path)
	}
	return e
}

func fileType(m fs.FileMode) pb.FileType {
	switch {
	case m.IsRegular():
		return pb.FileType_FILE_TYPE_FILE
	case m.IsDir():
		return pb.FileType_FILE_TYPE_DIRECTORY
	case m&fs.ModeSymlink != 0:
		return pb.FileType_FILE_TYPE_SYMLINK
	}
	return pb.FileType_FILE_TYPE_UNSPECIFIED
}

const (
	xattrPrefix      = "user.e2b."
	maxMetadataKey   = 246  // so that prefix and key fit the kernel's 255
	maxMetadataTotal = 4096 // bytes of keys and values of one file
)

// readMetadata gives a file's metadata; one that cannot be read has none.
func readMetadata(path string) map[string]string {
	size, err := unix.Llistxattr(path, nil)
	if err != nil || size == 0 {
		return nil
	}
	names := make([]byte, size)
	if size, err = unix.Llistxattr(path, names); err != nil {
		return nil
	}
	var meta map[string]string
	for name := range bytes.SplitSeq(names[:size], []byte{0}) {
		key, ours := strings.CutPrefix(string(name), xattrPrefix)
		if !ours {
			continue
		}
		value := make([]byte, maxMetadataTotal)
		n, err := unix.Lgetxattr(path, string(name), value)
		if err != nil {
			continue
		}
		if meta == nil {
			meta = map[string]string{}
		}
		meta[key] = string(value[:n])
	}
	return meta
}

// writeMetadata makes meta the open file's metadata; old says that it may have some already.
func writeMetadata(f *os.File, meta map[string]string, old bool) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = conn.Control(func(fd uintptr) {
		if old {
			for key := range readMetadata(f.Name()) {
				if _, kept := meta[key]; !kept {
					_ = unix.Fremovexattr(int(fd), xattrPrefix+key)
				}
			}
		}
		for key, value := range meta {
			if err := unix.Fsetxattr(int(fd), xattrPrefix+key, []byte(value), 0); err != nil {
				setErr = os.NewSyscallError("store metadata "+key, err)
				return
			}
		}
	})
	if err != nil {
		return err
	}
	return setErr
}
