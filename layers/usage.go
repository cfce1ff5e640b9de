package layers

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Usage gives what a folder takes on disk: bytes of allocated blocks and number
// of inodes, a file with several names counted once. Entries that disappear
// meanwhile are left out, so it may run on the upper of a running sandbox.
func Usage(dir string) (bytes, inodes int64, err error) {
	type inode struct{ dev, ino uint64 }
	seen := map[inode]bool{}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil {
			err = unix.Lstat(p, &st)
		}
		if errors.Is(err, fs.ErrNotExist) && p != dir {
			return nil
		}
		if err != nil {
			return fmt.Errorf("usage of %s: %w", p, err)
		}
		if st.Nlink > 1 && st.Mode&unix.S_IFMT != unix.S_IFDIR {
			key := inode{st.Dev, st.Ino}
			if seen[key] {
				return nil
			}
			seen[key] = true
		}
		bytes += st.Blocks * 512 // st_blocks counts 512-byte units on every file system
		inodes++
		return nil
	})
	return bytes, inodes, err
}

// Sync writes everything of the file system that holds path to stable storage
// and returns when it is there. It flushes the whole file system, not only path:
// one call costs less than an fsync for each file of an upper.
func Sync(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", path, err)
	}
	return nil
}
