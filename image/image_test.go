package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/layers"
	"github.com/holdfast-run/holdfast/sandbox"
)

var ctx = context.Background()

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func openStore(t testing.TB) *layers.Store {
	t.Helper()
	s, err := layers.Open(filepath.Join(t.TempDir(), "layers"))
	must(t, err)
	return s
}

// tarOf makes an archive; a name that ends in "/" is a folder, content that
// begins with "->" a symbolic link. Order: folders and parents first.
func tarOf(t testing.TB, files ...[2]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f[0], Mode: 0o755, Typeflag: tar.TypeReg, Size: int64(len(f[1]))}
		link, isLink := strings.CutPrefix(f[1], "->")
		switch {
		case strings.HasSuffix(f[0], "/"):
			h.Typeflag = tar.TypeDir
		case isLink:
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, link, 0
		}
		must(t, w.WriteHeader(h))
		if h.Size > 0 {
			_, err := io.WriteString(w, f[1])
			must(t, err)
		}
	}
	must(t, w.Close())
	return b.Bytes()
}

// debianLike is a root file system with what Prepare looks at.
var debianLike = [][2]string{
	{"etc/", ""}, {"bin/", ""}, {"bin/bash", "#!"}, {"usr/bin/", ""}, {"usr/bin/sudo", "#!"},
	{"etc/passwd", "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/usr/sbin/nologin\n"},
	{"etc/group", "root:x:0:\ndaemon:x:1:\n"}, {"etc/shadow", "root:*:1::::::\n"}, {"etc/gshadow", "root:*::\n"},
	{"etc/sudoers", "root ALL=(ALL:ALL) ALL\n@includedir /etc/sudoers.d\n"},
	{"etc/skel/", ""}, {"etc/skel/.bashrc", "# skel\n"},
	{"etc/resolv.conf", "->../run/systemd/resolve/stub-resolv.conf"}, {"etc/machine-id", "0123456789abcdef\n"},
}

// testImage is an image of two layers, the second of which removes a file.
func testImage(t testing.TB, change func(*v1.ConfigFile)) v1.Image {
	t.Helper()
	img := empty.Image
	for _, content := range [][]byte{
		tarOf(t, append([][2]string{{"old", "old"}, {"kept", "kept"}, {"tmp/", ""}}, debianLike...)...),
		tarOf(t, [2]string{".wh.old", ""}, [2]string{"app/run", "program"}),
	} {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
		must(t, err)
		img, err = mutate.AppendLayers(img, l)
		must(t, err)
	}
	config, err := img.ConfigFile()
	must(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", platform().Architecture
	config.Config = v1.Config{
		Env: []string{"PATH=/app:/bin", "EMPTY=", "EQ=a=b"}, User: "daemon", WorkingDir: "/app",
		Entrypoint: []string{"/app/run"}, Cmd: []string{"-v"}, Labels: map[string]string{"l": "1"},
	}
	if change != nil {
		change(config)
	}
	img, err = mutate.ConfigFile(img, config)
	must(t, err)
	return img
}

// mounted mounts a result and gives the folder.
func mounted(t testing.TB, s *layers.Store, lower []string) string {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(s.Dir()), "root-")
	must(t, err)
	r := layers.Root{Lower: lower, Upper: dir + "/upper", Work: dir + "/work", Target: dir + "/root"}
	must(t, s.Mount(ctx, r))
	t.Cleanup(func() { must(t, layers.Unmount(ctx, r.Target)) })
	return r.Target
}

func wantFile(t testing.TB, p, content string) {
	t.Helper()
	got, err := os.ReadFile(p)
	if err != nil || string(got) != content {
		t.Errorf("%s: got %q, %v; want %q", p, got, err, content)
	}
}

func wantAbsent(t testing.TB, p string) {
	t.Helper()
	if _, err := os.Lstat(p); !os.IsNotExist(err) {
		t.Errorf("%s is there (%v)", p, err)
	}
}

func wantMode(t testing.TB, p string, mode uint32, uid, gid uint32) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil || st.Mode&0o7777 != mode || st.Uid != uid || st.Gid != gid {
		t.Errorf("%s: %o %d:%d, %v; want %o %d:%d", p, st.Mode&0o7777, st.Uid, st.Gid, err, mode, uid, gid)
	}
}

func wantError(t testing.TB, err error, kind sandbox.Kind, words ...string) {
	t.Helper()
	if sandbox.KindOf(err) != kind {
		t.Fatalf("got kind %q (%v); want %q", sandbox.KindOf(err), err, kind)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not mention %q", err, w)
		}
	}
}

func importText(t testing.TB, s *layers.Store, source string, o Options) (Result, error) {
	t.Helper()
	src, err := ParseSource(source)
	must(t, err)
	return Import(ctx, s, src, o)
}

// checkTestImage checks that r is what testImage holds, set up for a sandbox.
func checkTestImage(t *testing.T, s *layers.Store, r Result) {
	t.Helper()
	if len(r.Layers) != 3 || !strings.HasPrefix(r.Digest, "sha256:") {
		t.Errorf("result %+v", r)
	}
	c := r.Config
	if c.User != "daemon" || c.Workdir != "/app" || len(c.Entrypoint) != 1 || len(c.Cmd) != 1 || c.Labels["l"] != "1" ||
		c.Env["PATH"] != "/app:/bin" || c.Env["EQ"] != "a=b" || c.Env["LANG"] != "C.UTF-8" {
		t.Errorf("config %+v", c)
	}
	root := mounted(t, s, r.Layers)
	wantFile(t, root+"/app/run", "program")
	wantFile(t, root+"/kept", "kept")
	wantAbsent(t, root+"/old")
	wantFile(t, root+"/etc/resolv.conf", "nameserver 192.0.0.1\n")
	wantMode(t, root+"/home/user", 0o755, 1000, 1000)
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	must(t, err)
	must(t, w.Close())
	return b.Bytes()
}
