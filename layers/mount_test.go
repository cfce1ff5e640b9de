package layers

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMountShowsLayersAndKeepsThemUnchanged(t *testing.T) {
	s := openStore(t)
	bottom := extract(t, s, ExtractOptions{}, file{name: "a", content: "bottom"}, file{name: "b", content: "bottom"}, file{name: "d/x", content: "1"})
	top := extract(t, s, ExtractOptions{}, file{name: "b", content: "top"}, file{name: "d/.wh.x"}, file{name: "d/y", content: "2"})
	r := mountRoot(t, s, bottom.ID, top.ID)

	wantFile(t, r.Target+"/a", "bottom")
	wantFile(t, r.Target+"/b", "top")
	wantFile(t, r.Target+"/d/x", "")
	wantFile(t, r.Target+"/d/y", "2")

	write(t, r.Target+"/a", "changed")
	must(t, os.Remove(r.Target+"/b"))
	wantFile(t, s.Path(bottom.ID)+"/a", "bottom")
	wantFile(t, s.Path(top.ID)+"/b", "top")
	wantFile(t, r.Upper+"/a", "changed")
}

func TestMountIsIdempotentAndRefusesAnotherRoot(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	one := extract(t, s, ExtractOptions{}, file{name: "a", content: "1"})
	two := extract(t, s, ExtractOptions{}, file{name: "a", content: "2"})
	r := mountRoot(t, s, one.ID)
	must(t, s.Mount(ctx, r))

	other := r
	other.Lower = []string{one.ID, two.ID}
	wantError(t, s.Mount(ctx, other), r.Target, "another root", "unmount it first")
	other = r
	other.Upper += "2"
	wantError(t, s.Mount(ctx, other), "another root")

	unmount(t, r.Target)
	unmount(t, r.Target)
	list, err := Mounts(filepath.Dir(s.Dir()))
	if err != nil || len(list) != 0 {
		t.Fatalf("left mounted: %v, %v", list, err)
	}
	unmount(t, filepath.Join(s.Dir(), "never", "there"))
}

func TestMountNamesWhatIsWrong(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	dir := t.TempDir()
	l := extract(t, s, ExtractOptions{}, file{name: "a", content: "1"})
	good := Root{Lower: []string{l.ID}, Upper: dir + "/u", Work: dir + "/w", Target: dir + "/t"}

	r := good
	r.Lower = nil
	wantError(t, s.Mount(ctx, r), dir+"/t", "at least one layer")
	r = good
	r.Lower = []string{"aaaaaaaaaaaa"}
	if err := s.Mount(ctx, r); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v", err)
	}
	r = good
	r.Upper = "u"
	wantError(t, s.Mount(ctx, r), `"u" is not an absolute path`)
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	if err := s.Mount(canceled, good); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	must(t, os.Mkdir(dir+"/t", 0o755))
	must(t, unix.Mount("tmpfs", dir+"/t", "tmpfs", 0, ""))
	t.Cleanup(func() { unmount(t, dir+"/t") })
	wantError(t, s.Mount(ctx, good), "something else is mounted")
}

func TestMountDeepStack(t *testing.T) {
	s := openStore(t)
	for len(s.Dir()) < 200 { // a data folder with a long name must not make stacks shallower
		must(t, os.MkdirAll(s.Dir(), 0o700))
		var err error
		s, err = Open(filepath.Join(s.Dir(), "a-folder-with-quite-a-long-name"))
		must(t, err)
	}
	var ids []string
	for i := range MaxDepth {
		ids = append(ids, extract(t, s, ExtractOptions{}, file{name: fmt.Sprint("f", i), content: "x"}, file{name: "last", content: fmt.Sprint(i)}).ID)
	}
	r := mountRoot(t, s, ids...)
	wantFile(t, r.Target+"/last", fmt.Sprint(MaxDepth-1))
	wantFile(t, r.Target+"/f0", "x")
	wantFile(t, r.Target+"/f63", "x")

	for range 200 {
		ids = append(ids, ids[0])
	}
	r.Lower, r.Target = ids, r.Target+"2"
	wantError(t, s.Mount(context.Background(), r), "too many")
}

func TestMountPathsWithOptionCharacters(t *testing.T) {
	s := openStore(t)
	l := extract(t, s, ExtractOptions{}, file{name: "a", content: "1"})
	dir := filepath.Join(t.TempDir(), `a,b:c\d e`)
	must(t, os.Mkdir(dir, 0o755))
	r := Root{Lower: []string{l.ID}, Upper: dir + "/upper", Work: dir + "/work", Target: dir + "/root"}
	must(t, s.Mount(context.Background(), r))
	t.Cleanup(func() { unmount(t, r.Target) })
	write(t, r.Target+"/b", "2")
	wantFile(t, r.Upper+"/b", "2")
	must(t, s.Mount(context.Background(), r)) // recognised in the mount table
	list, err := Mounts(dir)
	if err != nil || !slices.Equal(list, []string{r.Target}) {
		t.Fatalf("got %q, %v", list, err)
	}
}

func TestUnmountOfBusyMountDetaches(t *testing.T) {
	s := openStore(t)
	l := extract(t, s, ExtractOptions{}, file{name: "a", content: "1"})
	r := mountRoot(t, s, l.ID)
	f, err := os.Open(r.Target + "/a")
	must(t, err)
	defer f.Close()
	unmount(t, r.Target)
	if list, err := Mounts(r.Target); err != nil || len(list) != 0 {
		t.Fatalf("left mounted: %v, %v", list, err)
	}
}

// The cycle of a long-lived sandbox: write, freeze, go on above, again and again.
func TestFreezeAndGoOn(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	base := extract(t, s, ExtractOptions{}, file{name: "dir/keep", content: "k"}, file{name: "dir/sub/deep", content: "d"},
		file{name: "gone", content: "g"}, file{name: "full/a", content: "a"}, file{name: "tool", content: "t", mode: 0o4755})
	stack := []string{base.ID}
	freeze := func(r Root) {
		t.Helper()
		unmount(t, r.Target)
		l, err := s.Freeze(ctx, NewID(), r.Upper)
		must(t, err)
		stack = append(stack, l.ID)
	}

	r := mountRoot(t, s, stack...)
	must(t, os.Rename(r.Target+"/dir", r.Target+"/moved")) // a folder of a layer
	must(t, os.Remove(r.Target+"/gone"))
	must(t, os.RemoveAll(r.Target+"/full"))
	must(t, os.Mkdir(r.Target+"/full", 0o755)) // hides what was there
	write(t, r.Target+"/full/b", "b")
	freeze(r)

	r = mountRoot(t, s, stack...)
	wantFile(t, r.Target+"/moved/keep", "k")
	must(t, os.Rename(r.Target+"/moved", r.Target+"/again")) // what was renamed before
	must(t, os.Rename(r.Target+"/again/sub", r.Target+"/sub"))
	write(t, r.Target+"/again/keep", "k2")
	must(t, os.Mkdir(r.Target+"/dir", 0o755)) // the old name, anew
	write(t, r.Target+"/dir/new", "n")
	freeze(r)

	r = mountRoot(t, s, stack...)
	wantFile(t, r.Target+"/again/keep", "k2")
	wantFile(t, r.Target+"/again/sub", "")
	wantFile(t, r.Target+"/sub/deep", "d")
	wantFile(t, r.Target+"/moved", "")
	wantFile(t, r.Target+"/dir/new", "n")
	wantFile(t, r.Target+"/dir/keep", "")
	wantFile(t, r.Target+"/gone", "")
	wantFile(t, r.Target+"/full/a", "")
	wantFile(t, r.Target+"/full/b", "b")
	if st := lstat(t, r.Target+"/tool"); st.Mode&0o7777 != 0o4755 {
		t.Fatalf("mode %o", st.Mode)
	}
}

func TestSameUpperMountsAgainElsewhere(t *testing.T) {
	s := openStore(t)
	l := extract(t, s, ExtractOptions{}, file{name: "d/a", content: "1"})
	r := mountRoot(t, s, l.ID)
	must(t, os.Rename(r.Target+"/d", r.Target+"/e"))
	unmount(t, r.Target)
	moved := filepath.Dir(r.Upper) + "-moved"
	must(t, os.Rename(filepath.Dir(r.Upper), moved))
	r = Root{Lower: r.Lower, Upper: moved + "/upper", Work: moved + "/work", Target: moved + "/elsewhere"}
	must(t, s.Mount(context.Background(), r))
	t.Cleanup(func() { unmount(t, r.Target) })
	wantFile(t, r.Target+"/e/a", "1")
}

func TestWorkingFolderOfProcessStays(t *testing.T) {
	before, err := os.Getwd()
	must(t, err)
	s := openStore(t)
	l := extract(t, s, ExtractOptions{}, file{name: "a", kind: tar.TypeDir})
	mountRoot(t, s, l.ID)
	if after, err := os.Getwd(); err != nil || after != before {
		t.Fatalf("got %s, %v; want %s", after, err, before)
	}
}

func TestParseMountinfo(t *testing.T) {
	for line, want := range map[string]overlay{
		`36 35 0:36 / /a\040b rw,nodev shared:1 - overlay overlay rw,lowerdir=y/fs:x/fs,upperdir=/u\134\0541,workdir=/w`: {"/a b", []string{"y/fs", "x/fs"}, "/u,1"},
		`36 35 0:36 / /m rw - overlay none rw,lowerdir+=/y,lowerdir+=/x,upperdir=/u`:                                     {"/m", []string{"/y", "/x"}, "/u"},
	} {
		o, ok := parseMountinfo(line)
		if !ok || o.target != want.target || o.upper != want.upper || !slices.Equal(o.lower, want.lower) {
			t.Errorf("%s: got %+v, %v", line, o, ok)
		}
	}
	for _, line := range []string{"", "36 35 0:36 / /m rw - ext4 /dev/x rw", "36 35 - overlay", "nonsense"} {
		if _, ok := parseMountinfo(line); ok {
			t.Errorf("%q taken for an overlay", line)
		}
	}
}

func TestDiscard(t *testing.T) {
	ctx := context.Background()
	s := openStore(t)
	l := extract(t, s, ExtractOptions{}, file{name: "a", content: "1"})
	r := mountRoot(t, s, l.ID)
	write(t, r.Target+"/b", "2")
	must(t, Discard(ctx, r.Target))
	must(t, Discard(ctx, r.Target))
	must(t, Discard(ctx, r.Target+"/absent"))
	if list, err := Mounts(r.Target); err != nil || len(list) != 0 {
		t.Fatalf("left mounted: %v, %v", list, err)
	}
	// What follows at once on the same place, as a rollback does.
	must(t, os.RemoveAll(r.Upper))
	must(t, os.RemoveAll(r.Work))
	must(t, s.Mount(ctx, r))
	wantFile(t, r.Target+"/a", "1")
	wantFile(t, r.Target+"/b", "")
}

// BenchmarkUnmount compares the two ends of a root with 100 MB just written.
func BenchmarkUnmount(b *testing.B) {
	ctx := context.Background()
	for name, end := range map[string]func(context.Context, string) error{"unmount": Unmount, "discard": Discard} {
		b.Run(name, func(b *testing.B) {
			s := openStore(b)
			l := extract(b, s, ExtractOptions{}, file{name: "a", content: "1"})
			data := make([]byte, 100<<20)
			for b.Loop() {
				b.StopTimer()
				r := mountRoot(b, s, l.ID)
				must(b, os.WriteFile(r.Target+"/big", data, 0o600))
				b.StartTimer()
				must(b, end(ctx, r.Target))
				b.StopTimer()
				must(b, os.RemoveAll(r.Upper))
				b.StartTimer()
			}
		})
	}
}
