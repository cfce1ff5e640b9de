package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"connectrpc.com/connect"
	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/guest/account"
	pb "github.com/holdfast-run/holdfast/guest/proto/filesystempb"
)

// watch turns the kernel's notifications about one folder into events.
//
// inotify knows single folders only. A recursive watch therefore adds each new
// folder when it hears of it; what was created inside before that is found by a
// scan and reported as created, once: when the kernel tells of the same file as
// well (created between the new watch and the scan), that is dropped.
type watch struct {
	service   *Service
	user      account.User
	root      string
	recursive bool
	entries   bool // put an EntryInfo into each event

	notify *fsnotify.Watcher
	dirs   map[string]struct{} // watched
	found  map[string]struct{} // reported by a scan
}

// watchRequest is what WatchDirRequest and CreateWatcherRequest have in common.
type watchRequest interface {
	GetPath() string
	GetRecursive() bool
	GetIncludeEntry() bool
	GetAllowNetworkMounts() bool
}

// newWatch begins to watch; close it.
func (s *Service) newWatch(u account.User, req watchRequest) (*watch, error) {
	path, err := s.resolve(u, req.GetPath())
	if err != nil {
		return nil, err
	}
	w := &watch{
		service: s, user: u,
		recursive: req.GetRecursive(),
		entries:   req.GetIncludeEntry(),
		dirs:      map[string]struct{}{},
		found:     map[string]struct{}{},
	}
	err = u.Do(func() error {
		if w.root, err = directory(path); err != nil {
			return err
		}
		if !req.GetAllowNetworkMounts() && onNetwork(w.root) {
			return invalid("cannot watch '%s': it is on a network file system, whose changes elsewhere go unseen; set allow_network_mounts to watch it nevertheless", path)
		}
		if w.notify, err = fsnotify.NewWatcher(); err != nil {
			return err
		}
		if err := w.add(w.root); err != nil || !w.recursive {
			return err
		}
		w.scan(w.root, nil)
		return nil
	})
	if err != nil {
		w.close()
		return nil, classify(path, err)
	}
	return w, nil
}

func (w *watch) close() {
	if w.notify != nil {
		_ = w.notify.Close()
	}
}

func (w *watch) add(dir string) error {
	if err := w.notify.Add(dir); err != nil {
		return err
	}
	w.dirs[dir] = struct{}{}
	return nil
}

// scan watches all folders below dir and, with emit, reports what it finds.
func (w *watch) scan(dir string, emit func(path string)) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return nil //nolint:nilerr // gone again, or closed to the user
		}
		if d.IsDir() {
			if _, known := w.dirs[path]; !known && w.add(path) != nil {
				return fs.SkipDir
			}
		}
		if emit != nil {
			emit(path)
		}
		return nil
	})
}

// translate gives the events that ev means, in order.
func (w *watch) translate(ev fsnotify.Event) []*pb.FilesystemEvent {
	var events []*pb.FilesystemEvent
	report := func(path string, t pb.EventType) {
		events = append(events, w.event(path, t))
	}
	_ = w.user.Do(func() error {
		if ev.Has(fsnotify.Create) {
			w.created(ev.Name, report)
		}
		if ev.Has(fsnotify.Write) {
			report(ev.Name, pb.EventType_EVENT_TYPE_WRITE)
		}
		if ev.Has(fsnotify.Remove) {
			w.forget(ev.Name)
			report(ev.Name, pb.EventType_EVENT_TYPE_REMOVE)
		}
		if ev.Has(fsnotify.Rename) {
			w.forget(ev.Name)
			report(ev.Name, pb.EventType_EVENT_TYPE_RENAME)
		}
		if ev.Has(fsnotify.Chmod) {
			report(ev.Name, pb.EventType_EVENT_TYPE_CHMOD)
		}
		return nil
	})
	return events
}

func (w *watch) created(path string, report func(string, pb.EventType)) {
	if _, told := w.found[path]; told {
		delete(w.found, path)
	} else {
		report(path, pb.EventType_EVENT_TYPE_CREATE)
	}
	if !w.recursive {
		return
	}
	if fi, err := os.Lstat(path); err != nil || !fi.IsDir() {
		return
	}
	if _, known := w.dirs[path]; known || w.add(path) != nil {
		return // a scan came first, or it is gone again
	}
	w.scan(path, func(inner string) {
		w.found[inner] = struct{}{}
		report(inner, pb.EventType_EVENT_TYPE_CREATE)
	})
}

// forget drops what is known of path and below: the kernel's watch follows a
// renamed folder, and would go on to tell of it under its old name.
func (w *watch) forget(path string) {
	delete(w.found, path)
	if _, watched := w.dirs[path]; !watched || path == w.root {
		return
	}
	for dir := range w.dirs {
		if dir == path || strings.HasPrefix(dir, path+"/") {
			_ = w.notify.Remove(dir)
			delete(w.dirs, dir)
		}
	}
	for inner := range w.found {
		if strings.HasPrefix(inner, path+"/") {
			delete(w.found, inner)
		}
	}
}

func (w *watch) event(path string, t pb.EventType) *pb.FilesystemEvent {
	name, err := filepath.Rel(w.root, path)
	if err != nil {
		name = path
	}
	ev := &pb.FilesystemEvent{Name: name, Type: t}
	if w.entries && t != pb.EventType_EVENT_TYPE_REMOVE && t != pb.EventType_EVENT_TYPE_RENAME {
		if entry, err := w.service.lstat(path); err == nil {
			ev.Entry = entry
		}
	}
	return ev
}

// lost is the end of a watch after the kernel dropped events.
func lost(err error) error {
	if errors.Is(err, fsnotify.ErrEventOverflow) {
		return connect.NewError(connect.CodeDataLoss, errors.New("more changes at once than can be kept; list the folder and watch it again"))
	}
	return connect.NewError(connect.CodeInternal, fmt.Errorf("watch: %w", err))
}

// onNetwork tells whether path is on a file system that others change too.
func onNetwork(path string) bool {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return false
	}
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC:
		return true
	}
	return false
}
