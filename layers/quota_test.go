package layers

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// quotaFS mounts a small ext4 with project quotas, or without them where the
// kernel has none.
func quotaFS(t *testing.T) (dir string, quota bool) {
	t.Helper()
	tmp := t.TempDir()
	dir = filepath.Join(tmp, "mnt")
	must(t, os.Mkdir(dir, 0o755))
	for _, features := range []string{"quota,project", "none"} {
		img := filepath.Join(tmp, features)
		must(t, os.WriteFile(img, nil, 0o600))
		must(t, os.Truncate(img, 64<<20))
		make := []string{"-q", "-O", features, img}
		options := "loop"
		if quota = features != "none"; quota {
			make = append([]string{"-E", "quotatype=prjquota"}, make...)
			options += ",prjquota"
		} else {
			make = []string{"-q", img}
		}
		if out, err := exec.Command("mkfs.ext4", make...).CombinedOutput(); err != nil {
			t.Fatalf("mkfs.ext4: %v: %s", err, out)
		}
		out, err := exec.Command("mount", "-o", options, img, dir).CombinedOutput()
		if err == nil {
			t.Cleanup(func() { unmount(t, dir) })
			return dir, quota
		}
		t.Logf("mount -o %s: %s", options, out)
	}
	t.Fatal("no ext4 can be mounted")
	return "", false
}

// Kernels built without project quotas must be told apart from those with; both
// halves check what holds on this one.
func TestQuotaBindsAnUpperWhereTheKernelCan(t *testing.T) {
	ctx := context.Background()
	mnt, can := quotaFS(t)
	s, err := Open(filepath.Join(mnt, "layers"))
	must(t, err)
	q, err := OpenQuota(mnt)
	if !can {
		if !errors.Is(err, ErrNoQuota) {
			t.Fatalf("got %v", err)
		}
		return
	}
	must(t, err)
	defer q.Close()
	l := extract(t, s, ExtractOptions{}, file{name: "a", content: "1"})
	dir := filepath.Join(mnt, "sandbox")
	r := Root{Lower: []string{l.ID}, Upper: dir + "/upper", Work: dir + "/work", Target: dir + "/root"}
	for _, d := range []string{dir, r.Upper, r.Work} {
		must(t, os.Mkdir(d, 0o755))
	}
	const project, limit = 7, 4 << 20
	must(t, q.Assign(r.Upper, project))
	must(t, q.Assign(r.Work, project))
	must(t, q.Limit(project, limit, 0))
	must(t, s.Mount(ctx, r))
	t.Cleanup(func() { unmount(t, r.Target) })

	must(t, os.WriteFile(r.Target+"/fits", make([]byte, limit/2), 0o644))
	must(t, os.Rename(r.Target+"/a", r.Target+"/b")) // copied up within the project
	if err := os.WriteFile(r.Target+"/more", make([]byte, limit), 0o644); !errors.Is(err, unix.EDQUOT) {
		t.Fatalf("writing past the limit: %v", err)
	}
	bytes, inodes, err := q.Usage(project)
	if err != nil || bytes < limit/2 || bytes > limit || inodes < 4 {
		t.Fatalf("usage %d bytes, %d inodes, %v", bytes, inodes, err)
	}
	unmount(t, r.Target)
	_, err = s.Freeze(ctx, NewID(), r.Upper)
	must(t, err)
}

func TestNoQuotaSaysSo(t *testing.T) {
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { unmount(t, dir) })
	_, err := OpenQuota(dir)
	if !errors.Is(err, ErrNoQuota) {
		t.Fatalf("got %v", err)
	}
	wantError(t, err, dir, "mount it with prjquota")
}

// The kernel reads and writes these by offset.
func TestQuotaStructSizes(t *testing.T) {
	if a, b, c := unsafe.Sizeof(diskQuota{}), unsafe.Sizeof(quotaState{}), unsafe.Sizeof(fileAttr{}); a != 72 || b != 80 || c != 28 {
		t.Fatalf("sizes %d, %d, %d; want 72, 80, 28", a, b, c)
	}
}
