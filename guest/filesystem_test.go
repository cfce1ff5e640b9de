package guest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/client"
	pb "github.com/holdfast-run/holdfast/guest/proto/filesystempb"
)

func TestStat(t *testing.T) {
	s := start(t)
	s.sh(t, "echo hello >f; chmod 640 f; mkdir d; ln -s f good; ln -s d dir; ln -s gone bad; chgrp 2000 f")
	protocols(t, s, func(t *testing.T, c services) {
		for path, want := range map[string]string{
			"f":    "f FILE_TYPE_FILE 6 640 -rw-r----- user extra <nil>",
			"~/f":  "f FILE_TYPE_FILE 6 640 -rw-r----- user extra <nil>",
			"d":    "d FILE_TYPE_DIRECTORY - 755 drwxr-xr-x user user <nil>",
			"good": "good FILE_TYPE_FILE - 640 Lrwxrwxrwx user user " + s.home + "/f",
			"dir":  "dir FILE_TYPE_DIRECTORY - 755 Lrwxrwxrwx user user " + s.home + "/d",
			"bad":  "bad FILE_TYPE_SYMLINK - 777 Lrwxrwxrwx user user gone",
			"/":    "/ FILE_TYPE_DIRECTORY - 755 drwxr-xr-x root root <nil>",
		} {
			resp, err := c.Stat(t.Context(), &pb.StatRequest{Path: path})
			must(t, err)
			e := resp.GetEntry()
			size, target := "-", "<nil>"
			if e.GetType() == pb.FileType_FILE_TYPE_FILE && e.SymlinkTarget == nil {
				size = fmt.Sprint(e.GetSize())
			}
			if e.SymlinkTarget != nil {
				target = e.GetSymlinkTarget()
			}
			got := fmt.Sprintf("%s %s %s %o %s %s %s %s", e.GetName(), e.GetType(), size, e.GetMode(), e.GetPermissions(), e.GetOwner(), e.GetGroup(), target)
			equal(t, path, got, want)
			if e.GetModifiedTime().AsTime().IsZero() || !filepath.IsAbs(e.GetPath()) {
				t.Errorf("%s: time or path is missing: %v", path, e)
			}
		}
		_, err := c.Stat(t.Context(), &pb.StatRequest{Path: "missing"})
		wantCode(t, err, connect.CodeNotFound)
		_, err = c.Stat(t.Context(), &pb.StatRequest{Path: "a\x00b"})
		wantCode(t, err, connect.CodeInvalidArgument)
		_, err = c.Stat(t.Context(), &pb.StatRequest{Path: "f/x"})
		wantCode(t, err, connect.CodeInvalidArgument)
	})
}

func TestMakeDir(t *testing.T) {
	s := start(t)
	fs := s.Filesystem
	resp, err := fs.MakeDir(t.Context(), &pb.MakeDirRequest{Path: "a/b/c"})
	must(t, err)
	equal(t, "path", resp.GetEntry().GetPath(), s.home+"/a/b/c")
	equal(t, "owners", s.sh(t, "stat -c %u a a/b a/b/c | uniq"), "1000")
	_, err = fs.MakeDir(t.Context(), &pb.MakeDirRequest{Path: "a/b"})
	wantCode(t, err, connect.CodeAlreadyExists)
	s.sh(t, "touch file")
	for path, code := range map[string]connect.Code{
		"file": connect.CodeInvalidArgument, "file/x": connect.CodeInvalidArgument, "x\x00": connect.CodeInvalidArgument,
		"/root/closed/x": connect.CodePermissionDenied, strings.Repeat("n", 300): connect.CodeInvalidArgument,
	} {
		must(t, os.Chmod("/root", 0o700))
		_, err = fs.MakeDir(t.Context(), &pb.MakeDirRequest{Path: path})
		wantCode(t, err, code)
	}
}

func TestMove(t *testing.T) {
	s := start(t)
	s.sh(t, "echo 1 >one; mkdir full; touch full/x; mkdir -p tree/sub; echo 2 >tree/sub/two; ln -s sub tree/link; chmod 750 tree/sub")
	move := func(from, to string) error {
		_, err := s.Filesystem.Move(t.Context(), &pb.MoveRequest{Source: from, Destination: to})
		return err
	}
	must(t, move("one", "new/place/one"))
	equal(t, "moved, parents made", s.sh(t, "cat new/place/one; stat -c %u new"), "1\n1000")
	s.sh(t, "echo other >two")
	must(t, move("two", "new/place/one"))
	equal(t, "what was there is replaced", s.sh(t, "cat new/place/one"), "other")
	wantCode(t, move("missing", "x"), connect.CodeNotFound)
	wantCode(t, move("tree", "full"), connect.CodeAlreadyExists)
	wantCode(t, move("new/place/one", "a\x00"), connect.CodeInvalidArgument)
	wantCode(t, move("/etc/hostname", "mine"), connect.CodePermissionDenied)

	other := filepath.Join(filepath.Dir(s.home), "other")
	must(t, os.Mkdir(other, 0o755))
	must(t, syscall.Mount("tmpfs", other, "tmpfs", 0, "mode=0777"))
	t.Cleanup(func() { must(t, syscall.Unmount(other, syscall.MNT_DETACH)) })
	must(t, move("tree", other+"/tree"))
	equal(t, "across file systems", s.sh(t, "cd "+other+"; cat tree/link/two; readlink tree/link; stat -c %u:%a tree/sub; ls -d ~/tree 2>&1 | wc -l"), "2\nsub\n1000:750\n1")
	must(t, move(other+"/tree/sub/two", "back"))
	equal(t, "a file", s.sh(t, "cat back; ls "+other+"/tree/sub | wc -l"), "2\n0")
}

func TestRemove(t *testing.T) {
	s := start(t)
	s.sh(t, "mkdir -p d/e; touch d/e/f; mkdir keep; touch keep/x; ln -s keep link")
	remove := func(path string) error {
		_, err := s.Filesystem.Remove(t.Context(), &pb.RemoveRequest{Path: path})
		return err
	}
	must(t, remove("d"))
	must(t, remove("d"))
	must(t, remove("never/was"))
	must(t, remove("link"))
	equal(t, "a link goes, what it led to stays", s.sh(t, "ls . keep"), ".:\nkeep\n\nkeep:\nx")
	wantCode(t, remove("/"), connect.CodeInvalidArgument)
	wantCode(t, remove("/etc/passwd"), connect.CodePermissionDenied)
}

func TestListDir(t *testing.T) {
	s := start(t)
	s.sh(t, "mkdir -p d/a/b/c d/z; touch d/f d/a/g; ln -s / d/link; ln -s d alias; mkdir d/shut; touch d/shut/x; chmod 0 d/shut")
	protocols(t, s, func(t *testing.T, c services) {
		for _, tc := range []struct {
			path  string
			depth uint32
			want  string
		}{
			{"d", 0, "a f link shut z"},
			{"d", 1, "a f link shut z"},
			{"d", 2, "a a/b a/g f link shut z"},
			{"d", 9, "a a/b a/b/c a/g f link shut z"},
			{"alias", 1, "a f link shut z"},
			{"d/z", 3, ""},
		} {
			resp, err := c.ListDir(t.Context(), &pb.ListDirRequest{Path: tc.path, Depth: tc.depth})
			must(t, err)
			var names []string
			for _, e := range resp.GetEntries() {
				rel, err := filepath.Rel(filepath.Join(s.home, tc.path), e.GetPath())
				must(t, err)
				names = append(names, rel)
			}
			equal(t, fmt.Sprint(tc.path, " to depth ", tc.depth), strings.Join(names, " "), tc.want)
		}
		for path, code := range map[string]connect.Code{"missing": connect.CodeNotFound, "d/f": connect.CodeInvalidArgument, "d/shut": connect.CodePermissionDenied} {
			_, err := c.ListDir(t.Context(), &pb.ListDirRequest{Path: path})
			wantCode(t, err, code)
		}
	})
}

// watching collects the events of a WatchDir stream.
func watching(t *testing.T, c services, req *pb.WatchDirRequest) (next func() *pb.FilesystemEvent) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := c.WatchDir(ctx, req)
	must(t, err)
	if !stream.Receive() || stream.Msg().GetStart() == nil {
		t.Fatalf("first event is %v, %v", stream.Msg(), stream.Err())
	}
	return func() *pb.FilesystemEvent {
		if !stream.Receive() {
			t.Fatalf("watch ended: %v", stream.Err())
		}
		return stream.Msg().GetFilesystem()
	}
}

// seen reads events up to the creation of the file last, and gives "name TYPE" of all before.
func seen(next func() *pb.FilesystemEvent, last string) []string {
	var all []string
	for {
		ev := next()
		if ev.GetName() == last {
			return all
		}
		all = append(all, ev.GetName()+" "+strings.TrimPrefix(ev.GetType().String(), "EVENT_TYPE_"))
	}
}

func TestWatchDir(t *testing.T) {
	s := start(t)
	protocols(t, s, func(t *testing.T, c services) {
		s.sh(t, "rm -rf w; mkdir -p w/sub")
		next := watching(t, c, &pb.WatchDirRequest{Path: "w"})
		s.sh(t, "cd w; echo x >f; chmod 600 f; mv f g; rm g; touch sub/unseen; touch last")
		got := slices.Compact(seen(next, "last"))
		want := []string{"f CREATE", "f WRITE", "f CHMOD", "f RENAME", "g CREATE", "g REMOVE"}
		if !slices.Equal(got, want) {
			t.Errorf("events are %v, want %v", got, want)
		}
	})
}

func TestWatchDirRecursive(t *testing.T) {
	s := start(t)
	c := services{s.Process, s.Filesystem}
	s.sh(t, "mkdir -p w/old/deep")
	next := watching(t, c, &pb.WatchDirRequest{Path: "w", Recursive: true})
	s.sh(t, "cd w; touch old/deep/a; mkdir -p n/e/w; touch n/e/w/b; touch last")
	created := func(events []string) string {
		events = slices.DeleteFunc(events, func(e string) bool { return !strings.HasSuffix(e, " CREATE") })
		sort.Strings(events)
		return strings.Join(events, ", ")
	}
	equal(t, "each creation is told once", created(seen(next, "last")), "n CREATE, n/e CREATE, n/e/w CREATE, n/e/w/b CREATE, old/deep/a CREATE")
	s.sh(t, "cd w; mv n m; touch last2")
	seen(next, "last2")
	s.sh(t, "cd w; touch m/e/w/c; rm m/e/w/b; touch m/e/w/b; touch last3")
	equal(t, "a renamed folder tells under its new name", created(seen(next, "last3")), "m/e/w/b CREATE, m/e/w/c CREATE")
	for i := range 20 { // a file may come before, between and after watch and scan
		s.sh(t, fmt.Sprintf("cd w; mkdir r%d; for i in 1 2 3 4 5 6 7 8; do : >r%d/$i; done; mkdir r%d/d; : >r%d/d/x; touch end%d", i, i, i, i, i))
		events := seen(next, fmt.Sprintf("end%d", i))
		got := slices.DeleteFunc(events, func(e string) bool {
			return !strings.HasSuffix(e, " CREATE") || !strings.HasPrefix(e, fmt.Sprintf("r%d", i))
		})
		// What lies deeper may be told after the top folder's next event.
		for len(got) < 11 {
			if ev := next(); ev.GetType() == pb.EventType_EVENT_TYPE_CREATE {
				got = append(got, ev.GetName())
			}
		}
		equal(t, fmt.Sprintf("creations in round %d", i), len(got), 11)
	}
}

func TestWatchDirWithEntries(t *testing.T) {
	s := start(t)
	c := services{s.Process, s.Filesystem}
	next := watching(t, c, &pb.WatchDirRequest{Path: "~", IncludeEntry: true})
	s.sh(t, "echo hello >f")
	ev := next()
	equal(t, "entry's path", ev.GetEntry().GetPath(), s.home+"/f")
	equal(t, "entry's owner", ev.GetEntry().GetOwner(), "user")
}

func TestWatchRefused(t *testing.T) {
	s := start(t)
	s.sh(t, "touch f; mkdir shut; chmod 0 shut")
	protocols(t, s, func(t *testing.T, c services) {
		for path, code := range map[string]connect.Code{
			"missing": connect.CodeNotFound, "f": connect.CodeInvalidArgument, "shut": connect.CodePermissionDenied, "\x00": connect.CodeInvalidArgument,
		} {
			stream, err := c.WatchDir(t.Context(), &pb.WatchDirRequest{Path: path})
			must(t, err)
			equal(t, "watch of "+path, stream.Receive(), false)
			wantCode(t, stream.Err(), code)
			_, err = c.CreateWatcher(t.Context(), &pb.CreateWatcherRequest{Path: path})
			wantCode(t, err, code)
		}
		_, err := c.GetWatcherEvents(t.Context(), &pb.GetWatcherEventsRequest{WatcherId: "none"})
		wantCode(t, err, connect.CodeNotFound)
		_, err = c.RemoveWatcher(t.Context(), &pb.RemoveWatcherRequest{WatcherId: "none"})
		wantCode(t, err, connect.CodeNotFound)
	})
}

func TestPolledWatcher(t *testing.T) {
	s := start(t)
	protocols(t, s, func(t *testing.T, c services) {
		s.sh(t, "rm -rf w; mkdir w")
		w, err := c.CreateWatcher(t.Context(), &pb.CreateWatcherRequest{Path: "w", Recursive: true})
		must(t, err)
		s.sh(t, "touch w/a; mkdir w/d; touch w/d/b")
		names := map[string]int{}
		eventually(t, "all events came", func() bool {
			got, err := c.GetWatcherEvents(t.Context(), &pb.GetWatcherEventsRequest{WatcherId: w.GetWatcherId()})
			must(t, err)
			for _, ev := range got.GetEvents() {
				if ev.GetType() == pb.EventType_EVENT_TYPE_CREATE {
					names[ev.GetName()]++
				}
			}
			return len(names) == 3
		})
		equal(t, "each once", fmt.Sprint(names), "map[a:1 d:1 d/b:1]")
		_, err = c.RemoveWatcher(t.Context(), &pb.RemoveWatcherRequest{WatcherId: w.GetWatcherId()})
		must(t, err)
		_, err = c.GetWatcherEvents(t.Context(), &pb.GetWatcherEventsRequest{WatcherId: w.GetWatcherId()})
		equal(t, "after removal", client.CodeOf(err), connect.CodeNotFound)
	})
}
