package snapshot

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"

	"github.com/zeebo/xxh3"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// A file's hash is the xxh3-128 of the xxh3-128 of its chunks, in order, so that
// chunks are hashed in parallel. It finds damage; it is no protection against
// somebody who forges. Measured on two cores of a 2020s server: 200 MB in 14 ms
// this way, 41 ms by read and one stream, 188 ms with crc64.
const (
	chunkSize  = 8 << 20
	hashPrefix = "xxh3-8m:"
)

// hashFiles gives size and hash of the named files, in the same order.
func hashFiles(ctx context.Context, dir string, files []File) ([]File, error) {
	found := make([]File, len(files))
	sums := make([][]byte, len(files)) // 16 bytes a chunk
	open := make([]*os.File, len(files))
	defer func() {
		for _, f := range open {
			if f != nil {
				f.Close()
			}
		}
	}()
	for i, file := range files {
		if !filepath.IsLocal(file.Name) {
			return nil, fmt.Errorf("file %q is not a name inside the folder", file.Name)
		}
		f, err := os.Open(filepath.Join(dir, file.Name))
		if err != nil {
			return nil, err
		}
		open[i] = f
		st, err := f.Stat()
		if err != nil {
			return nil, err
		}
		if !st.Mode().IsRegular() {
			return nil, fmt.Errorf("file %q is not a regular file", file.Name)
		}
		found[i] = File{Name: file.Name, Size: st.Size()}
		sums[i] = make([]byte, (st.Size()+chunkSize-1)/chunkSize*16)
	}

	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, f := range open {
		for at := int64(0); at < found[i].Size; at += chunkSize {
			g.Go(func() error {
				if err := ctx.Err(); err != nil {
					return err
				}
				sum, err := hashChunk(f, at, int(min(chunkSize, found[i].Size-at)))
				if err != nil {
					return fmt.Errorf("read %s at byte %d: %w", found[i].Name, at, err)
				}
				copy(sums[i][at/chunkSize*16:], sum[:])
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i := range found {
		sum := xxh3.Hash128(sums[i]).Bytes()
		found[i].Hash = hashPrefix + hex.EncodeToString(sum[:])
	}
	return found, nil
}

// hashChunk maps the bytes instead of copying them, which is twice as fast. A
// file that shrinks or a disk that fails meanwhile is then a memory fault, which
// is turned into an error here.
func hashChunk(f *os.File, at int64, size int) (sum [16]byte, err error) {
	m, err := unix.Mmap(int(f.Fd()), at, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return sum, fmt.Errorf("map: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Munmap(m)) }()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("the file cannot be read: %v", fault)
		}
	}()
	return xxh3.Hash128(m).Bytes(), nil
}
