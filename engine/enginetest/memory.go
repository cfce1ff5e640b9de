package enginetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/engine"
)

// refresh gives the network its addresses back, which a started instance took.
func refresh(w *world, s engine.Spec) {
	w.Helper()
	name := filepath.Base(s.NetNS)
	slot, err := strconv.Atoi(name[len("hft"):])
	if err != nil {
		w.Fatal(err)
	}
	if err := giveAddress(name, slot); err != nil {
		w.Fatalf("refresh network: %v", err)
	}
}

// freeze checkpoints an instance and leaves it frozen.
func (w *world) freeze(g *guest) (string, engine.Image) {
	w.Helper()
	dir := w.TempDir()
	img, err := w.Checkpoint(w.Context(), g.Spec.ID, dir)
	if err != nil {
		w.Fatalf("checkpoint: %v", err)
	}
	return dir, img
}

// checkpoint ends an instance and gives its image's folder.
func (w *world) checkpoint(g *guest) (string, engine.Image) {
	w.Helper()
	dir, img := w.freeze(g)
	if err := w.Kill(w.Context(), g.Spec.ID); err != nil {
		w.Fatalf("kill after checkpoint: %v", err)
	}
	return dir, img
}

// testThaw: a checkpoint leaves the instance frozen, Thaw lets it go on, and the
// image shows it as it was at the checkpoint.
func testThaw(w *world) {
	g := w.start(w.spec(w.root()))
	if err := w.Thaw(w.Context(), g.Spec.ID); err != nil {
		w.Errorf("thaw of a running one: %v", err)
	}
	moving(w, g)
	for range 2 {
		dir, _ := w.freeze(g)
		standing(w, g)
		for range 2 { // the second finds it running
			if err := w.Thaw(w.Context(), g.Spec.ID); err != nil {
				w.Fatalf("thaw: %v", err)
			}
			moving(w, g)
		}
		r := w.restore(w.spec(copyTree(w, g.Root)), dir)
		moving(w, r)
		if err := w.Kill(w.Context(), r.Spec.ID); err != nil {
			w.Error(err)
		}
	}
}

// testThawAdopted: a daemon that died between checkpoint and decision leaves a
// frozen instance, which the next one can let go on or end.
func testThawAdopted(w *world) {
	g, other := w.start(w.spec(w.root())), w.start(w.spec(w.root()))
	dir, _ := w.freeze(g)
	w.freeze(other)
	w.reopen()
	if _, err := w.Adopt(w.Context(), g.Spec.ID); err != nil {
		w.Fatalf("adopt: %v", err)
	}
	standing(w, g)
	if err := w.Thaw(w.Context(), g.Spec.ID); err != nil {
		w.Fatalf("thaw: %v", err)
	}
	moving(w, g)
	r := w.restore(w.spec(copyTree(w, g.Root)), dir)
	moving(w, r)
	if err := w.Kill(w.Context(), other.Spec.ID); err != nil {
		w.Errorf("kill a frozen one: %v", err)
	}
	if alive(other.PID()) {
		w.Error("a frozen one outlived its kill")
	}
}

// standing checks that pid 1 does not answer.
func standing(w *world, g *guest) {
	w.Helper()
	c := *g.client
	c.Timeout = 200 * time.Millisecond
	frozen := *g
	frozen.client = &c
	if n, err := frozen.try("/count"); err == nil {
		w.Errorf("a frozen instance answers %s", n)
	}
}

func testCheckpoint(w *world) {
	g := w.start(w.spec(w.root()))
	digest := g.ask("/fill", "mb", "20")
	g.ask("/keep", "data", "a file without a name")
	before := g.count()
	dir, img := w.checkpoint(g)
	if alive(g.PID()) {
		w.Error("the instance runs after its checkpoint")
	}
	if list, _ := w.List(w.Context()); len(list) > 0 {
		w.Errorf("left over after checkpoint: %v", list)
	}
	w.noExit()
	checkFiles(w, dir, img)
	if img.Runtime != g.Runtime() || img.Bytes < 20<<20 || img.Frozen <= 0 || len(img.CPUFeature) == 0 {
		w.Errorf("image is %d bytes of runtime %s, frozen %s, features %v", img.Bytes, img.Runtime, img.Frozen, img.CPUFeature)
	}

	s := g.Spec
	refresh(w, s)
	g = w.restore(s, dir)
	if err := os.RemoveAll(dir); err != nil { // no longer needed, whether or not all pages are loaded
		w.Error(err)
	}
	if after := g.count(); after < before {
		w.Errorf("count went from %d to %d", before, after)
	}
	if got := g.ask("/sum"); got != digest {
		w.Errorf("memory has digest %s, want %s", got, digest)
	}
	if got := g.ask("/kept"); got != "a file without a name" {
		w.Errorf("deleted file holds %q", got)
	}
	moving(w, g)
}

// moving checks that pid 1 goes on.
func moving(w *world, g *guest) {
	w.Helper()
	from := g.count()
	eventually(w.TB, "count goes on", func() error {
		if n := g.count(); n <= from {
			return fmt.Errorf("it stands at %d", n)
		}
		return nil
	})
}

// checkFiles checks that an image describes exactly what is in its folder.
func checkFiles(w *world, dir string, img engine.Image) {
	w.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		w.Fatal(err)
	}
	var names []string
	var bytes int64
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			w.Fatal(err)
		}
		names = append(names, e.Name())
		bytes += fi.Size()
	}
	if files := slices.Sorted(slices.Values(img.Files)); !slices.Equal(files, names) || bytes != img.Bytes {
		w.Errorf("image names %v of %d bytes, folder holds %v of %d", files, img.Bytes, names, bytes)
	}
}

// testRestoreTwice: one image, two instances at once, each on files of its own.
func testRestoreTwice(w *world) {
	g := w.start(w.spec(w.root()))
	digest := g.ask("/fill", "mb", "4")
	dir, _ := w.checkpoint(g)
	var guests []*guest
	for range 2 {
		guests = append(guests, w.restore(w.spec(copyTree(w, g.Root)), dir))
	}
	for i, g := range guests {
		if got := g.ask("/sum"); got != digest {
			w.Errorf("instance %d: memory has digest %s, want %s", i, got, digest)
		}
		g.ask("/write", "path", "/who", "data", g.Spec.ID)
	}
	for i, g := range guests {
		if got := g.ask("/read", "path", "/who"); got != g.Spec.ID {
			w.Errorf("instance %d reads %q", i, got)
		}
	}
}

// testRestoreElsewhere: another id, root, share and network than at the checkpoint.
func testRestoreElsewhere(w *world) {
	g := w.start(w.spec(w.root()))
	g.ask("/keep", "data", "kept")
	g.ask("/write", "path", "/file", "data", "as it was")
	before := g.count()
	dir, _ := w.checkpoint(g)
	s := w.spec(copyTree(w, g.Root))
	s.Env = []string{"GREETING=other"}
	if err := os.WriteFile(filepath.Join(s.Share, "note"), []byte("new share"), 0o644); err != nil {
		w.Fatal(err)
	}
	r := w.restore(s, dir)
	if n := r.count(); n < before {
		w.Errorf("count went from %d to %d", before, n)
	}
	for _, x := range []struct{ ask, path, want string }{
		{"/kept", "", "kept"},
		{"/read", "/file", "as it was"},
		{"/read", engine.ShareMount + "/note", "new share"},
	} {
		if got := r.ask(x.ask, "path", x.path); got != x.want {
			w.Errorf("%s %s is %q, want %q", x.ask, x.path, got, x.want)
		}
	}
	moving(w, r)
}

func testCheckpointAfterRestore(w *world) {
	g := w.start(w.spec(w.root()))
	digest := g.ask("/fill", "mb", "8")
	for range 3 {
		dir, _ := w.checkpoint(g)
		refresh(w, g.Spec)
		// At once, while pages may still be loading.
		in, err := w.Restore(w.Context(), g.Spec, dir)
		if err != nil {
			w.Fatalf("restore: %v", err)
		}
		g = &guest{TB: w.TB, Spec: g.Spec, Instance: in, client: g.client, base: g.base}
	}
	if got := g.ask("/sum"); got != digest {
		w.Errorf("memory has digest %s, want %s", got, digest)
	}
}

func testCheckpointAdopted(w *world) {
	g := w.start(w.spec(w.root()))
	digest := g.ask("/fill", "mb", "4")
	w.reopen()
	if _, err := w.Adopt(w.Context(), g.Spec.ID); err != nil {
		w.Fatalf("adopt: %v", err)
	}
	dir, _ := w.checkpoint(g)
	w.reopen()
	refresh(w, g.Spec)
	if got := w.restore(g.Spec, dir).ask("/sum"); got != digest {
		w.Errorf("memory has digest %s, want %s", got, digest)
	}
}

// testNoSpace: a full disk is reported and the instance goes on.
func testNoSpace(w *world) {
	g := w.start(w.spec(w.root()))
	digest := g.ask("/fill", "mb", "32")
	for _, size := range []string{"64k", "256k", "20m"} {
		dir := w.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
			w.Fatal(err)
		}
		_, err := w.Checkpoint(w.Context(), g.Spec.ID, dir)
		var fs unix.Statfs_t
		if serr := unix.Statfs(dir, &fs); serr != nil || fs.Bfree != fs.Blocks {
			w.Errorf("a failed checkpoint holds %d of %d blocks, %v", fs.Blocks-fs.Bfree, fs.Blocks, serr)
		}
		if uerr := unix.Unmount(dir, unix.MNT_DETACH); uerr != nil {
			w.Error(uerr)
		}
		if !errors.Is(err, engine.ErrNoSpace) {
			w.Fatalf("checkpoint into %s: %v, want ErrNoSpace", size, err)
		}
		moving(w, g)
	}
	w.noExit()
	// With room it works, with nothing lost.
	dir, _ := w.checkpoint(g)
	refresh(w, g.Spec)
	if got := w.restore(g.Spec, dir).ask("/sum"); got != digest {
		w.Errorf("memory has digest %s, want %s", got, digest)
	}
}

func testBadFolder(w *world) {
	g := w.start(w.spec(w.root()))
	full := w.TempDir()
	if err := os.WriteFile(filepath.Join(full, "x"), nil, 0o644); err != nil {
		w.Fatal(err)
	}
	for name, dir := range map[string]string{"missing": filepath.Join(full, "missing"), "not empty": full} {
		if _, err := w.Checkpoint(w.Context(), g.Spec.ID, dir); err == nil {
			w.Fatalf("%s: checkpoint succeeded", name)
		}
		moving(w, g)
	}
	if entries, _ := os.ReadDir(full); len(entries) != 1 {
		w.Errorf("folder holds %v", entries)
	}
}

// testTorn: a damaged image is told apart from other failures, and nothing is
// left behind.
func testTorn(w *world) {
	g := w.start(w.spec(w.root()))
	g.ask("/fill", "mb", "2")
	dir, img := w.checkpoint(g)
	for _, name := range img.Files {
		for how, damage := range map[string]func(string) error{
			"missing": os.Remove,
			"empty":   func(p string) error { return os.Truncate(p, 0) },
			"short":   func(p string) error { return shorten(p) },
		} {
			broken := copyTree(w, dir)
			if err := damage(filepath.Join(broken, name)); err != nil {
				w.Fatal(err)
			}
			_, err := w.Restore(w.Context(), w.spec(g.Root), broken)
			if !errors.Is(err, engine.ErrImage) {
				w.Errorf("%s %s: %v, want ErrImage", name, how, err)
			}
			if list, _ := w.List(w.Context()); len(list) > 0 {
				w.Fatalf("%s %s: left behind %v", name, how, list)
			}
		}
	}
	if _, err := w.Restore(w.Context(), w.spec(g.Root), w.TempDir()); !errors.Is(err, engine.ErrImage) {
		w.Errorf("empty folder: %v, want ErrImage", err)
	}
	w.noExit()
}

func shorten(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	return os.Truncate(path, fi.Size()/2)
}

// testForeign: an image of another runtime, or of other content at the same size.
func testForeign(w *world) {
	g := w.start(w.spec(w.root()))
	dir, img := w.checkpoint(g)
	s := w.spec(g.Root)
	s.Runtime = "0000000000000000000000000000000000000000000000000000000000000000"
	if _, err := w.Restore(w.Context(), s, dir); !errors.Is(err, engine.ErrImage) {
		w.Errorf("other runtime: %v, want ErrImage", err)
	}
	var largest string
	var size int64
	for _, name := range img.Files {
		if filepath.Base(name) == "pages.img" {
			continue // pages carry no structure; their content is the caller's to hash
		}
		if fi, err := os.Stat(filepath.Join(dir, name)); err == nil && fi.Size() > size {
			largest, size = name, fi.Size()
		}
	}
	b := make([]byte, size)
	for i := range b {
		b[i] = 0xa5
	}
	if err := os.WriteFile(filepath.Join(dir, largest), b, 0o644); err != nil {
		w.Fatal(err)
	}
	if _, err := w.Restore(w.Context(), w.spec(g.Root), dir); !errors.Is(err, engine.ErrImage) {
		w.Errorf("garbage in %s: %v, want ErrImage", largest, err)
	}
	if list, _ := w.List(w.Context()); len(list) > 0 {
		w.Errorf("left behind: %v", list)
	}
	w.noExit()
}

// testBurst: many restores of one image at once.
func testBurst(w *world) {
	g := w.start(w.spec(w.root()))
	digest := g.ask("/fill", "mb", "1")
	dir, _ := w.checkpoint(g)
	const n = 20
	specs := make([]engine.Spec, n)
	for i := range specs {
		specs[i] = w.spec(copyTree(w, g.Root))
	}
	errs := make([]error, n)
	started := make([]engine.Instance, n)
	var wg sync.WaitGroup
	for i := range specs {
		wg.Go(func() { started[i], errs[i] = w.Restore(w.Context(), specs[i], dir) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		w.Fatal(err)
	}
	for i := range specs {
		if got := w.guest(specs[i], started[i]).ask("/sum"); got != digest {
			w.Errorf("instance %d: digest %s, want %s", i, got, digest)
		}
	}
	for i := range specs {
		wg.Go(func() { errs[i] = w.Kill(w.Context(), specs[i].ID) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		w.Error(err)
	}
}

// copyTree copies a folder as a snapshot would carry it.
func copyTree(w *world, from string) string {
	w.Helper()
	to := w.TempDir()
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		w.Fatalf("copy %s: %v\n%s", from, err, out)
	}
	return to
}
