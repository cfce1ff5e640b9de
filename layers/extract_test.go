package layers

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/layers/tree"
)

func TestExtractKeepsAttributes(t *testing.T) {
	s := openStore(t)
	l := extract(t, s, ExtractOptions{},
		file{name: "./", kind: tar.TypeDir, mode: 0o750, uid: 3, mtime: 50},
		file{name: "d/", kind: tar.TypeDir, mode: 0o3770, uid: 1, gid: 2, mtime: 100},
		file{name: "d/f", content: "hello", mode: 0o6755, uid: 1000, gid: 2000, mtime: 200,
			xattrs: map[string]string{"user.note": "x\x00y", "security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}},
		file{name: "d/hard", kind: tar.TypeLink, link: "d/f"},
		file{name: "d/soft", kind: tar.TypeSymlink, link: "/etc/passwd", uid: 5, mtime: 300},
		file{name: "d/fifo", kind: tar.TypeFifo, mode: 0o600},
		file{name: "d/null", kind: tar.TypeChar, mode: 0o666, major: 1, minor: 3},
		file{name: "d/disk", kind: tar.TypeBlock, mode: 0o660, gid: 6, major: 259, minor: 300},
		file{name: "space in name/ü", content: "u"},
	)
	fs := s.Path(l.ID)
	for name, want := range map[string]struct {
		mode     uint32
		uid, gid uint32
		mtime    int64 // 0: not checked
	}{
		".":      {unix.S_IFDIR | 0o750, 3, 0, 50},
		"d":      {unix.S_IFDIR | 0o3770, 1, 2, 100},
		"d/f":    {unix.S_IFREG | 0o6755, 1000, 2000, 200},
		"d/soft": {unix.S_IFLNK | 0o777, 5, 0, 300},
		"d/fifo": {unix.S_IFIFO | 0o600, 0, 0, 0},
		"d/null": {unix.S_IFCHR | 0o666, 0, 0, 0},
		"d/disk": {unix.S_IFBLK | 0o660, 0, 6, 0},
	} {
		st := lstat(t, filepath.Join(fs, name))
		if st.Mode != want.mode || st.Uid != want.uid || st.Gid != want.gid || (want.mtime != 0 && st.Mtim.Sec != want.mtime) {
			t.Errorf("%s: mode %o owner %d:%d time %d; want %+v", name, st.Mode, st.Uid, st.Gid, st.Mtim.Sec, want)
		}
	}
	if a, b := lstat(t, fs+"/d/f"), lstat(t, fs+"/d/hard"); a.Ino != b.Ino {
		t.Error("hard link is a copy")
	}
	if st := lstat(t, fs+"/d/disk"); unix.Major(st.Rdev) != 259 || unix.Minor(st.Rdev) != 300 {
		t.Errorf("device %d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	buf := make([]byte, 64)
	n, err := unix.Lgetxattr(fs+"/d/f", "user.note", buf)
	if err != nil || string(buf[:n]) != "x\x00y" {
		t.Errorf("user.note: %q, %v", buf[:max(n, 0)], err)
	}
	if n, err = unix.Lgetxattr(fs+"/d/f", "security.capability", buf); err != nil || n != 20 {
		t.Errorf("security.capability: %d bytes, %v", n, err)
	}
	wantFile(t, fs+"/space in name/ü", "u")
	if l.Inodes != 9 || l.Bytes <= 0 {
		t.Errorf("accounted %d inodes, %d bytes", l.Inodes, l.Bytes)
	}
}

func TestExtractCompressed(t *testing.T) {
	plain := archive(t, file{name: "a", content: strings.Repeat("content ", 10000)}).Bytes()
	sum := sha256.Sum256(plain)
	diff := "sha256:" + hex.EncodeToString(sum[:])
	pack := func(open func(io.Writer) (io.WriteCloser, error)) []byte {
		var b bytes.Buffer
		w, err := open(&b)
		must(t, err)
		_, err = w.Write(plain)
		must(t, err)
		must(t, w.Close())
		return b.Bytes()
	}
	for name, data := range map[string][]byte{
		"plain": plain,
		"gzip":  pack(func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriter(w), nil }),
		"zstd":  pack(func(w io.Writer) (io.WriteCloser, error) { return zstd.NewWriter(w) }),
		"xz":    pack(func(w io.Writer) (io.WriteCloser, error) { return xz.NewWriter(w) }),
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			l, err := s.Extract(context.Background(), bytes.NewReader(data), ExtractOptions{DiffID: diff})
			must(t, err)
			wantFile(t, s.Path(l.ID)+"/a", strings.Repeat("content ", 10000))

			_, err = s.Extract(context.Background(), bytes.NewReader(data), ExtractOptions{DiffID: "sha256:00"})
			wantError(t, err, diff, "damaged")
			_, err = s.Extract(context.Background(), bytes.NewReader(data[:len(data)*2/3]), ExtractOptions{DiffID: diff})
			wantError(t, err, "archive")
			wantOnly(t, s, l.ID)
		})
	}
}

// wantOnly fails if the store's folder holds anything but these layers.
func wantOnly(t *testing.T, s *Store, ids ...string) {
	t.Helper()
	entries, err := os.ReadDir(s.Dir())
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if len(got) != len(ids) || len(s.List()) != len(ids) {
		t.Fatalf("store holds %v and lists %v; want %v", got, s.List(), ids)
	}
}

func TestWhiteouts(t *testing.T) {
	base := []file{{name: "d/a", content: "a"}, {name: "d/b", content: "b"}, {name: "e/x", content: "x"}, {name: "f", content: "f"}}
	for name, c := range map[string]struct {
		top    []file
		absent []string
		want   map[string]string
	}{
		"file":               {[]file{{name: "d/.wh.a"}}, []string{"d/a"}, map[string]string{"d/b": "b"}},
		"folder":             {[]file{{name: ".wh.d"}}, []string{"d"}, map[string]string{"f": "f"}},
		"opaque":             {[]file{{name: "d/.wh..wh..opq"}, {name: "d/c", content: "c"}}, []string{"d/a", "d/b"}, map[string]string{"d/c": "c"}},
		"opaque last":        {[]file{{name: "d/c", content: "c"}, {name: "d/.wh..wh..opq"}}, []string{"d/a", "d/b"}, map[string]string{"d/c": "c"}},
		"then a file":        {[]file{{name: ".wh.f"}, {name: "f", content: "new"}}, nil, map[string]string{"f": "new"}},
		"after the file":     {[]file{{name: "f", content: "new"}, {name: ".wh.f"}}, nil, map[string]string{"f": "new"}},
		"then a folder":      {[]file{{name: ".wh.d"}, {name: "d", kind: tar.TypeDir}, {name: "d/c", content: "c"}}, []string{"d/a"}, map[string]string{"d/c": "c"}},
		"after the folder":   {[]file{{name: "d/c", content: "c"}, {name: ".wh.d"}}, []string{"d/a"}, map[string]string{"d/c": "c"}},
		"then a file below":  {[]file{{name: ".wh.e"}, {name: "e/y", content: "y"}}, nil, map[string]string{"e/y": "y"}},
		"of nothing":         {[]file{{name: ".wh.none"}}, []string{"none"}, map[string]string{"f": "f"}},
		"bookkeeping":        {[]file{{name: ".wh..wh.plnk"}, {name: ".wh..wh.aufs"}}, []string{".wh..wh.plnk"}, map[string]string{"f": "f"}},
		"file over a folder": {[]file{{name: "d", content: "file"}}, nil, map[string]string{"d": "file"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			bottom := extract(t, s, ExtractOptions{}, base...)
			top := extract(t, s, ExtractOptions{}, c.top...)
			r := mountRoot(t, s, bottom.ID, top.ID)
			for _, p := range c.absent {
				if _, err := os.Lstat(filepath.Join(r.Target, p)); !os.IsNotExist(err) {
					t.Errorf("%s is still there (%v)", p, err)
				}
			}
			for p, content := range c.want {
				wantFile(t, filepath.Join(r.Target, p), content)
			}
			entries, err := os.ReadDir(r.Target)
			must(t, err)
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), ".wh.") {
					t.Errorf("%s shows", e.Name())
				}
			}
		})
	}
}

func TestPlainArchiveKeepsWhiteoutNames(t *testing.T) {
	s := openStore(t)
	l := extract(t, s, ExtractOptions{Plain: true}, file{name: ".wh.a", content: "x"})
	wantFile(t, s.Path(l.ID)+"/.wh.a", "x")
}

func TestFoldersNotDescribedLookAsBelow(t *testing.T) {
	s := openStore(t)
	below := extract(t, s, ExtractOptions{}, file{name: "tmp", kind: tar.TypeDir, mode: 0o1777, gid: 9}, file{name: "home/u", kind: tar.TypeDir, mode: 0o700, uid: 1000})
	top := extract(t, s, ExtractOptions{Below: []string{below.ID}}, file{name: "tmp/a", content: "a"}, file{name: "home/u/b", content: "b"}, file{name: "new/c", content: "c"})
	r := mountRoot(t, s, below.ID, top.ID)
	for name, want := range map[string][3]uint32{"tmp": {0o1777, 0, 9}, "home/u": {0o700, 1000, 0}, "new": {0o755, 0, 0}} {
		if st := lstat(t, r.Target+"/"+name); st.Mode&0o7777 != want[0] || st.Uid != want[1] || st.Gid != want[2] {
			t.Errorf("%s: %o %d:%d", name, st.Mode, st.Uid, st.Gid)
		}
	}
	_, err := s.Extract(context.Background(), archive(t), ExtractOptions{Below: []string{"aaaaaaaaaaaa"}})
	if !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestExtractStaysInside(t *testing.T) {
	outside := t.TempDir()
	write(t, outside+"/victim", "untouched")
	for name, files := range map[string][]file{
		"dots":                 {{name: "../../../../../../../.." + outside + "/new", content: "x"}},
		"absolute":             {{name: outside + "/new", content: "x"}},
		"link up":              {{name: "up", kind: tar.TypeSymlink, link: "../../../../../../../.." + outside}, {name: "up/new", content: "x"}},
		"absolute link":        {{name: "abs", kind: tar.TypeSymlink, link: outside}, {name: "abs/new", content: "x"}},
		"link to a link":       {{name: "a", kind: tar.TypeSymlink, link: "/b"}, {name: "b", kind: tar.TypeSymlink, link: outside}, {name: "a/new", content: "x"}},
		"write through a link": {{name: "l", kind: tar.TypeSymlink, link: outside + "/victim"}, {name: "l", content: "x"}},
		"hard link out":        {{name: "h", kind: tar.TypeLink, link: outside + "/victim"}},
		"hard link by a link":  {{name: "d", kind: tar.TypeSymlink, link: outside}, {name: "h", kind: tar.TypeLink, link: "d/victim"}, {name: "h", content: "x"}},
		"whiteout by a link":   {{name: "d", kind: tar.TypeSymlink, link: outside}, {name: "d/.wh.victim"}},
		"opaque by a link":     {{name: "d", kind: tar.TypeSymlink, link: outside}, {name: "d/.wh..wh..opq"}},
		"folder over a link":   {{name: "d", kind: tar.TypeSymlink, link: outside}, {name: "d", kind: tar.TypeDir, mode: 0o777}},
		"remove by a link":     {{name: "d", kind: tar.TypeSymlink, link: outside}, {name: "d/victim", kind: tar.TypeDir}, {name: "d/victim", content: "x"}},
		"whiteout of dots":     {{name: "a/.wh..."}, {name: ".wh..", content: "x"}},
		"proc":                 {{name: "p", kind: tar.TypeSymlink, link: "/proc/self/root"}, {name: "p/" + outside + "/new", content: "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			before := lstat(t, outside)
			_, err := s.Extract(context.Background(), archive(t, files...), ExtractOptions{})
			t.Log("extract:", err) // refused or redirected inside, both are right
			wantFile(t, outside+"/victim", "untouched")
			entries, err := os.ReadDir(outside)
			must(t, err)
			after := lstat(t, outside)
			victim := lstat(t, outside+"/victim")
			if len(entries) != 1 || after.Mode != before.Mode || after.Mtim != before.Mtim || victim.Nlink != 1 {
				t.Fatalf("changed outside: %v", entries)
			}
			if n, err := unix.Lgetxattr(outside, opaqueXattr, nil); err == nil {
				t.Fatalf("attribute set outside (%d bytes)", n)
			}
		})
	}
}

func TestExtractIgnoresAttributesThatSteerOverlays(t *testing.T) {
	s := openStore(t)
	l := extract(t, s, ExtractOptions{}, file{name: "d", kind: tar.TypeDir, xattrs: map[string]string{"trusted.overlay.redirect": "/etc", "user.overlay.opaque": "y", "user.ok": "1"}})
	for attr, want := range map[string]bool{"trusted.overlay.redirect": false, "user.overlay.opaque": false, "user.ok": true} {
		if _, err := unix.Lgetxattr(s.Path(l.ID)+"/d", attr, make([]byte, 8)); (err == nil) != want {
			t.Errorf("%s: %v", attr, err)
		}
	}
}

func TestExtractBadArchives(t *testing.T) {
	good := archive(t, file{name: "a", content: strings.Repeat("x", 5000)}).Bytes()
	for name, c := range map[string]struct {
		data []byte
		o    ExtractOptions
		why  string
	}{
		"text":            {[]byte(strings.Repeat("this is no archive ", 100)), ExtractOptions{}, "extract archive"},
		"empty":           {nil, ExtractOptions{Plain: true}, "holds no files"},
		"cut in a file":   {good[:2000], ExtractOptions{}, `entry "a"`},
		"cut between":     {good[:len(good)-1024], ExtractOptions{Plain: true}, "cut off"},
		"cut in a header": {good[:300], ExtractOptions{}, "extract archive"},
		"bad gzip":        {[]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3}, ExtractOptions{}, "archive"},
		"link to nothing": {archive(t, file{name: "h", kind: tar.TypeLink, link: "none"}).Bytes(), ExtractOptions{}, `entry "h"`},
		"owner":           {archive(t, file{name: "o", uid: 1 << 32}).Bytes(), ExtractOptions{}, "out of range"},
		"below a file":    {archive(t, file{name: "a", content: "x"}, file{name: "a/b", content: "y"}).Bytes(), ExtractOptions{}, `entry "a/b"`},
		"link loop":       {archive(t, file{name: "a", kind: tar.TypeSymlink, link: "b"}, file{name: "b", kind: tar.TypeSymlink, link: "a"}, file{name: "a/c", content: "y"}).Bytes(), ExtractOptions{}, `entry "a/c"`},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t)
			_, err := s.Extract(context.Background(), bytes.NewReader(c.data), c.o)
			wantError(t, err, c.why)
			wantOnly(t, s)
		})
	}
}

func TestExtractEndsWithItsContext(t *testing.T) {
	s := openStore(t)
	ctx, cancel := context.WithCancel(context.Background())
	r := io.MultiReader(archive(t, file{name: "a", content: "1"}), readerFunc(func(p []byte) (int, error) {
		cancel()
		return len(p), nil // an archive without end
	}))
	if _, err := s.Extract(ctx, r, ExtractOptions{}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	wantOnly(t, s)
}

// FuzzExtract: whatever an archive holds, nothing outside its folder changes.
func FuzzExtract(f *testing.F) {
	f.Add(archive(f, file{name: "a", content: "x"}, file{name: "../b", content: "y"}).Bytes())
	f.Add(archive(f, file{name: "l", kind: tar.TypeSymlink, link: "/"}, file{name: "l/etc/x", content: "y"}, file{name: "d/.wh..wh..opq"}, file{name: ".wh.l"}).Bytes())
	f.Add(archive(f, file{name: "h", kind: tar.TypeLink, link: "../../canary"}, file{name: "h", content: "z"}).Bytes())
	dir := f.TempDir()
	write(f, dir+"/canary", "alive")
	f.Fuzz(func(t *testing.T, data []byte) {
		in := filepath.Join(dir, "in")
		must(t, os.Mkdir(in, 0o755))
		root, err := tree.Open(in)
		must(t, err)
		err = unpack(context.Background(), root, bytes.NewReader(data), ExtractOptions{}, nil)
		t.Log(err)
		must(t, root.Close())
		must(t, os.RemoveAll(in)) // also fails if the folder itself was replaced or moved
		wantFile(t, dir+"/canary", "alive")
		if st := lstat(t, dir+"/canary"); st.Nlink != 1 {
			t.Fatal("linked outside")
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Fatalf("outside: %v, %v", entries, err)
		}
	})
}
