package files

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/account"
	pb "github.com/holdfast-run/holdfast/guest/proto/filesystempb"
	"github.com/holdfast-run/holdfast/guest/stream"
)

// WatchDir implements the service.
func (s *Service) WatchDir(ctx context.Context, req *pb.WatchDirRequest, out *connect.ServerStream[pb.WatchDirResponse]) error {
	w, err := s.newWatch(account.FromContext(ctx), req)
	if err != nil {
		return err
	}
	defer w.close()
	opts := stream.FromContext(ctx)
	if opts.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, opts.Timeout)
		defer cancel()
	}
	if err := out.Send(watchStarted); err != nil {
		return err
	}
	idle := time.NewTicker(opts.Keepalive)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-idle.C:
			if err := out.Send(watchKeepalive); err != nil {
				return err
			}
		case err := <-w.notify.Errors:
			return lost(err)
		case ev := <-w.notify.Events:
			for _, fe := range w.translate(ev) {
				if err := out.Send(&pb.WatchDirResponse{Event: &pb.WatchDirResponse_Filesystem{Filesystem: fe}}); err != nil {
					return err
				}
			}
			idle.Reset(opts.Keepalive)
		}
	}
}

var (
	watchStarted   = &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Start{Start: &pb.WatchDirResponse_StartEvent{}}}
	watchKeepalive = &pb.WatchDirResponse{Event: &pb.WatchDirResponse_Keepalive{Keepalive: &pb.WatchDirResponse_KeepAlive{}}}
)

const (
	keptEvents  = 16384 // of a polled watcher; then the poller is told that some were lost
	maxWatchers = 256   // polled ones; each holds kernel memory until it is removed
)

// watcher is a watch whose events wait to be polled.
type watcher struct {
	watch *watch
	stop  chan struct{}

	mu     sync.Mutex
	events []*pb.FilesystemEvent
	err    error
}

func (w *watcher) run() {
	defer w.watch.close()
	for {
		select {
		case <-w.stop:
			return
		case err := <-w.watch.notify.Errors:
			w.fail(lost(err))
			return
		case ev := <-w.watch.notify.Events:
			if !w.keep(w.watch.translate(ev)) {
				return
			}
		}
	}
}

func (w *watcher) keep(events []*pb.FilesystemEvent) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.events)+len(events) > keptEvents {
		w.events = nil
		w.err = connect.NewError(connect.CodeDataLoss, fmt.Errorf("more than %d events went unread; list the folder and create the watcher again", keptEvents))
		return false
	}
	w.events = append(w.events, events...)
	return true
}

func (w *watcher) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// CreateWatcher implements the service.
func (s *Service) CreateWatcher(ctx context.Context, req *pb.CreateWatcherRequest) (*pb.CreateWatcherResponse, error) {
	watch, err := s.newWatch(account.FromContext(ctx), req)
	if err != nil {
		return nil, err
	}
	w := &watcher{watch: watch, stop: make(chan struct{})}
	id := "w" + rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watchers) >= maxWatchers {
		watch.close()
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("%d watchers exist; remove some first", maxWatchers))
	}
	s.watchers[id] = w
	go w.run()
	return &pb.CreateWatcherResponse{WatcherId: id}, nil
}

// GetWatcherEvents implements the service: what happened since the last call.
func (s *Service) GetWatcherEvents(_ context.Context, req *pb.GetWatcherEventsRequest) (*pb.GetWatcherEventsResponse, error) {
	s.mu.Lock()
	w := s.watchers[req.GetWatcherId()]
	s.mu.Unlock()
	if w == nil {
		return nil, noWatcher(req.GetWatcherId())
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	events := w.events
	w.events = nil
	if len(events) == 0 && w.err != nil {
		return nil, w.err
	}
	return &pb.GetWatcherEventsResponse{Events: events}, nil
}

// RemoveWatcher implements the service.
func (s *Service) RemoveWatcher(_ context.Context, req *pb.RemoveWatcherRequest) (*pb.RemoveWatcherResponse, error) {
	s.mu.Lock()
	w := s.watchers[req.GetWatcherId()]
	delete(s.watchers, req.GetWatcherId())
	s.mu.Unlock()
	if w == nil {
		return nil, noWatcher(req.GetWatcherId())
	}
	close(w.stop)
	return &pb.RemoveWatcherResponse{}, nil
}

func noWatcher(id string) error {
	return connect.NewError(connect.CodeNotFound, fmt.Errorf("watcher with id %s not found; create one first", id))
}
