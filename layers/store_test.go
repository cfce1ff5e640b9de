package layers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/layers/tree"
)

func reopen(t *testing.T, s *Store) *Store {
	t.Helper()
	again, err := Open(s.Dir())
	must(t, err)
	return again
}

func TestStoreRemembers(t *testing.T) {
	s := openStore(t)
	a := extract(t, s, ExtractOptions{Digest: "k1"}, file{name: "a", content: "1"})
	b := extract(t, s, ExtractOptions{}, file{name: "b", content: "2"})
	s = reopen(t, s)
	if got := s.List(); len(got) != 2 || got[0] != a || got[1] != b {
		t.Fatalf("got %+v; want %+v, %+v", got, a, b)
	}
	if got, ok := s.Find("k1"); !ok || got != a {
		t.Fatalf("got %+v, %v", got, ok)
	}
	if _, ok := s.Find(""); ok {
		t.Fatal("a layer without digest was found by it")
	}
	if _, err := s.Get("zzzzzzzzzzzz"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v", err)
	}
}

func TestOpenSweepsWhatWasInterrupted(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	l := extract(t, s, ExtractOptions{}, file{name: "a", content: "1"})
	// A Derive that was killed while its root was mounted.
	tmp := filepath.Join(s.Dir(), tmpPrefix+NewID())
	must(t, os.Mkdir(tmp, 0o700))
	must(t, s.Mount(ctx, Root{Lower: []string{l.ID}, Upper: tmp + "/fs", Work: tmp + "/work", Target: tmp + "/root"}))
	t.Cleanup(func() { unmount(t, tmp+"/root") })
	write(t, tmp+"/root/b", "2")
	write(t, filepath.Join(s.Dir(), trashPrefix+NewID(), "fs", "x"), "3")
	must(t, os.Mkdir(filepath.Join(s.Dir(), NewID()), 0o700)) // a Freeze before its rename
	write(t, filepath.Join(s.Dir(), "notes.txt"), "of somebody else")

	s = reopen(t, s)
	must(t, os.Remove(filepath.Join(s.Dir(), "notes.txt")))
	wantOnly(t, s, l.ID)
	if list, err := Mounts(s.Dir()); err != nil || len(list) != 0 {
		t.Fatalf("left mounted: %v, %v", list, err)
	}
}

func TestOpenLeavesARunningBuildAlone(t *testing.T) {
	s := openStore(t)
	_, err := s.Build(context.Background(), "", func(root *tree.Root) error {
		other := reopen(t, s)
		if len(other.List()) != 0 {
			t.Error("an unfinished layer is listed")
		}
		return root.Create("a", tree.Attr{Mode: 0o644}, strings.NewReader("1"))
	})
	must(t, err)
}

func TestFreezeSurvivesACrashAtEveryStep(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	for name, crash := range map[string]func(dir, upper string){
		"before anything": func(string, string) {},
		"folder made":     func(dir, _ string) { must(t, os.Mkdir(dir, 0o700)) },
		"renamed":         func(dir, upper string) { must(t, os.Mkdir(dir, 0o700)); must(t, os.Rename(upper, dir+"/fs")) },
		"half a layer.json": func(dir, upper string) {
			must(t, os.Mkdir(dir, 0o700))
			must(t, os.Rename(upper, dir+"/fs"))
			write(t, dir+"/layer.json", "{")
		},
	} {
		t.Run(name, func(t *testing.T) {
			id, upper := NewID(), filepath.Join(filepath.Dir(s.Dir()), "upper")
			write(t, upper+"/a", "kept")
			crash(filepath.Join(s.Dir(), id), upper)
			s = reopen(t, s)
			for range 2 { // and once more, as a caller who missed the answer would
				l, err := s.Freeze(ctx, id, upper)
				must(t, err)
				if l.ID != id {
					t.Fatalf("got %+v", l)
				}
				wantFile(t, s.Path(id)+"/a", "kept")
			}
			s = reopen(t, s)
			wantFile(t, s.Path(id)+"/a", "kept")
			if _, err := s.Get(id); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestFreezeRefuses(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	upper := filepath.Join(filepath.Dir(s.Dir()), "upper")
	_, err := s.Freeze(ctx, "../escape", upper)
	wantError(t, err, "not a layer id")
	_, err = s.Freeze(ctx, NewID(), upper)
	wantError(t, err, upper, "no such file")
	l := extract(t, s, ExtractOptions{}, file{name: "a", content: "1"})
	write(t, upper+"/a", "2")
	_, err = s.Freeze(ctx, l.ID, upper)
	wantError(t, err, l.ID, "exists already")
	wantFile(t, upper+"/a", "2")

	other := t.TempDir()
	must(t, unix.Mount("tmpfs", other, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { unmount(t, other) })
	write(t, other+"/upper/a", "3")
	_, err = s.Freeze(ctx, NewID(), other+"/upper")
	wantError(t, err, other+"/upper", s.Dir(), "different file systems")
	wantFile(t, other+"/upper/a", "3")
	wantOnly(t, s, l.ID)
}

func TestMeasureFrozenLayer(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	upper := filepath.Join(filepath.Dir(s.Dir()), "upper")
	write(t, upper+"/a", strings.Repeat("x", 100_000))
	must(t, os.Link(upper+"/a", upper+"/b"))
	l, err := s.Freeze(ctx, NewID(), upper)
	must(t, err)
	if l.Bytes != -1 || l.Inodes != -1 {
		t.Fatalf("got %+v", l)
	}
	l, err = s.Measure(ctx, l.ID)
	must(t, err)
	if l.Inodes != 2 || l.Bytes < 100_000 || l.Bytes > 150_000 { // the folder and one file with two names
		t.Fatalf("got %+v", l)
	}
	if got, err := reopen(t, s).Get(l.ID); err != nil || got != l {
		t.Fatalf("got %+v, %v", got, err)
	}
	if _, err := s.Measure(ctx, "zzzzzzzzzzzz"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v", err)
	}
}

func TestRemove(t *testing.T) {
	s := openStore(t)
	a := extract(t, s, ExtractOptions{}, file{name: "a", content: "1"})
	b := extract(t, s, ExtractOptions{}, file{name: "b", content: "2"})
	r := mountRoot(t, s, a.ID)
	err := s.Remove(a.ID)
	if !errors.Is(err, ErrInUse) {
		t.Fatalf("got %v", err)
	}
	wantError(t, err, a.ID, r.Target)
	must(t, s.Remove(b.ID))
	must(t, s.Remove(b.ID))
	must(t, s.Remove("../../etc"))
	unmount(t, r.Target)
	must(t, s.Remove(a.ID))
	wantOnly(t, s)
}

func TestOneDigestIsBuiltOnce(t *testing.T) {
	s := openStore(t)
	var built sync.Map
	var wg sync.WaitGroup
	ids := make([]string, 8)
	for i := range ids {
		wg.Go(func() {
			l, err := s.Build(context.Background(), "same", func(root *tree.Root) error {
				built.Store(i, true)
				return root.Create("a", tree.Attr{Mode: 0o644}, strings.NewReader("1"))
			})
			if err != nil {
				t.Error(err)
			}
			ids[i] = l.ID
		})
	}
	wg.Wait()
	count := 0
	built.Range(func(any, any) bool { count++; return true })
	for _, id := range ids {
		if id != ids[0] || count != 1 {
			t.Fatalf("built %d times: %v", count, ids)
		}
	}
}

func TestFailedBuildLeavesNothingAndMayBeTriedAgain(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	broken := errors.New("broken")
	_, err := s.Build(ctx, "k", func(root *tree.Root) error {
		must(t, root.Mkdir("d", tree.Attr{Mode: 0o000}))
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	wantOnly(t, s)
	l, err := s.Build(ctx, "k", func(*tree.Root) error { return nil })
	must(t, err)
	wantOnly(t, s, l.ID)
}

func TestDerive(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	base := extract(t, s, ExtractOptions{}, file{name: "etc/a", content: "1"}, file{name: "etc/b", content: "2"}, file{name: "old", content: "3"})
	l, err := s.Derive(ctx, "k", []string{base.ID}, func(root *tree.Root) error {
		data, err := root.ReadFile("etc/a", 100)
		if err != nil || string(data) != "1" {
			t.Errorf("read %q, %v", data, err)
		}
		if err := root.RemoveAll("old"); err != nil {
			return err
		}
		return root.Replace("etc/a", tree.Attr{Mode: 0o600}, bytes.NewReader([]byte("changed")))
	})
	must(t, err)
	wantOnly(t, s, base.ID, l.ID)
	if entries, err := os.ReadDir(filepath.Join(s.Dir(), l.ID)); err != nil || len(entries) != 2 {
		t.Fatalf("left beside the files: %v, %v", entries, err)
	}
	wantFile(t, s.Path(l.ID)+"/etc/b", "") // only what changed
	r := mountRoot(t, s, base.ID, l.ID)
	wantFile(t, r.Target+"/etc/a", "changed")
	wantFile(t, r.Target+"/etc/b", "2")
	wantFile(t, r.Target+"/old", "")

	broken := errors.New("broken")
	if _, err := s.Derive(ctx, "", []string{base.ID}, func(*tree.Root) error { return broken }); !errors.Is(err, broken) {
		t.Fatalf("got %v", err)
	}
	wantOnly(t, s, base.ID, l.ID)
}

func TestGuestLayer(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	guest := filepath.Join(t.TempDir(), "guest")
	must(t, os.WriteFile(guest, []byte("program"), 0o600))
	l, err := s.Guest(ctx, guest)
	must(t, err)
	again, err := s.Guest(ctx, guest)
	if err != nil || again != l {
		t.Fatalf("got %+v, %v; want %+v", again, err, l)
	}
	for name, mode := range map[string]uint32{
		".holdfast/guest": unix.S_IFREG | 0o755, ".holdfast/host": unix.S_IFDIR | 0o755, "tmp": unix.S_IFDIR | 0o1777, "tmp/.X11-unix": unix.S_IFDIR | 0o1777,
	} {
		if st := lstat(t, s.Path(l.ID)+"/"+name); st.Mode != mode || st.Uid != 0 {
			t.Errorf("%s: mode %o", name, st.Mode)
		}
	}
	must(t, os.WriteFile(guest, []byte("newer"), 0o600))
	newer, err := s.Guest(ctx, guest)
	must(t, err)
	wantFile(t, s.Path(newer.ID)+"/.holdfast/guest", "newer")
	_, err = s.Guest(ctx, guest+"-absent")
	wantError(t, err, "guest layer", "no such file")
}

func TestFromDir(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	dir := t.TempDir()
	write(t, dir+"/d/a", "1")
	must(t, os.Chmod(dir+"/d", 0o1770))
	must(t, os.Chown(dir+"/d/a", 11, 12))
	must(t, os.Chmod(dir+"/d/a", 0o4711))
	must(t, os.Link(dir+"/d/a", dir+"/z"))
	must(t, os.Symlink("/etc/passwd", dir+"/link"))
	must(t, unix.Mkfifo(dir+"/fifo", 0o600))
	must(t, unix.UtimesNano(dir+"/d", []unix.Timespec{{Sec: 7}, {Sec: 8}}))
	l, err := s.FromDir(ctx, dir, "")
	must(t, err)
	for _, name := range []string{"d", "d/a", "z", "link", "fifo"} {
		a, b := lstat(t, filepath.Join(dir, name)), lstat(t, filepath.Join(s.Path(l.ID), name))
		if a.Mode != b.Mode || a.Uid != b.Uid || a.Gid != b.Gid || a.Mtim != b.Mtim || (a.Mode&unix.S_IFMT != unix.S_IFDIR && a.Nlink != b.Nlink) {
			t.Errorf("%s: %+v\nbecame %+v", name, a, b)
		}
	}
	wantFile(t, s.Path(l.ID)+"/z", "1")
	_, err = s.FromDir(ctx, dir+"/absent", "")
	wantError(t, err, dir+"/absent")
}

func TestLayerFileIsReadable(t *testing.T) {
	s := openStore(t)
	l := extract(t, s, ExtractOptions{Digest: "k"}, file{name: "a", content: "1"})
	data, err := os.ReadFile(filepath.Join(s.Dir(), l.ID, "layer.json"))
	must(t, err)
	var got map[string]any
	must(t, json.Unmarshal(data, &got))
	for _, key := range []string{"id", "digest", "created", "bytes", "inodes"} {
		if _, ok := got[key]; !ok {
			t.Errorf("layer.json has no %s: %s", key, data)
		}
	}
}

func TestNewIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		id := NewID()
		if !ValidID(id) || seen[id] {
			t.Fatalf("id %q", id)
		}
		seen[id] = true
	}
}
