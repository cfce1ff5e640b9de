package layers

import (
	"bufio"
	"bytes"
	"compress/bzip2"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Decompress looks at the first bytes and gives what r holds in the clear: gzip,
// zstd, xz and bzip2 are recognised, anything else is passed through.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	b := bufio.NewReaderSize(r, 256<<10)
	head, err := b.Peek(6)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		return gzip.NewReader(b)
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		// Two threads at most, and a bound on what a hostile header may ask for.
		z, err := zstd.NewReader(b, zstd.WithDecoderConcurrency(2), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case bytes.HasPrefix(head, []byte{0xfd, '7', 'z', 'X', 'Z', 0}):
		x, err := xz.NewReader(b)
		if err != nil {
			return nil, err
		}
		return io.NopCloser(x), nil
	case bytes.HasPrefix(head, []byte("BZh")):
		return io.NopCloser(bzip2.NewReader(b)), nil
	}
	return io.NopCloser(b), nil
}
