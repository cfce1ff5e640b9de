package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// transferBytes is the size of the file that is sent and fetched.
const transferBytes = 256 << 20

// transfer: bytes of one file divided by the time from the request until the
// answer (upload) or its last byte (download) is there, through the gateway.
// Docker's is `docker cp` of the same file to and from a container.
func transfer(ctx context.Context, b *run, m *measurement) error {
	content := make([]byte, transferBytes)
	_, _ = rand.Read(content) // never fails
	sb, err := b.create(ctx, false)
	if err != nil {
		return err
	}
	defer b.remove(ctx, sb)
	var container, file string
	if b.Docker != nil {
		if container, err = b.Docker.start(ctx); err != nil {
			return err
		}
		defer b.Docker.remove(ctx, container)
		dir, err := os.MkdirTemp("", "holdfast-bench-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		file = filepath.Join(dir, "content")
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return err
		}
	}
	files := sb.Files("")
	return b.each(m, func(int) error {
		start := time.Now()
		if err := files.Write(ctx, "/tmp/content", bytes.NewReader(content)); err != nil {
			return err
		}
		b.add("upload", rate(start))
		start = time.Now()
		body, err := files.Open(ctx, "/tmp/content")
		if err != nil {
			return err
		}
		defer body.Close()
		same := &comparison{want: content}
		if _, err := io.CopyBuffer(same, body, make([]byte, 1<<20)); err != nil {
			return err
		}
		b.add("download", rate(start))
		if len(same.want) > 0 {
			return fmt.Errorf("the file came back %d bytes short", len(same.want))
		}
		return nil
	}, func(int) error {
		start := time.Now()
		if _, err := b.Docker.command(ctx, "cp", file, container+":/tmp/content"); err != nil {
			return err
		}
		b.addPeer("upload", rate(start))
		start = time.Now()
		if _, err := b.Docker.command(ctx, "cp", container+":/tmp/content", file); err != nil {
			return err
		}
		b.addPeer("download", rate(start))
		return nil
	})
}

// rate gives MB/s of one transfer.
func rate(start time.Time) float64 {
	return transferBytes / 1e6 / time.Since(start).Seconds()
}

// comparison is a writer that insists on what is written.
type comparison struct{ want []byte }

func (c *comparison) Write(p []byte) (int, error) {
	if !bytes.HasPrefix(c.want, p) {
		return 0, fmt.Errorf("the file came back changed")
	}
	c.want = c.want[len(p):]
	return len(p), nil
}
