package process

import (
	"errors"
	"sync"
	"time"

	"github.com/holdfast-run/holdfast/guest/proto/processpb"
)

const (
	// queueLimit is how many bytes of output wait for one subscriber before the
	// process's pipe is no longer read.
	queueLimit = 256 << 10
	// stallLimit is how long a subscriber may take nothing while the process
	// waits for it; then it is cut off, and the process goes on.
	stallLimit = time.Minute
)

// errStalled ends the stream of a subscriber that stopped reading.
var errStalled = errors.New("reader took no output for a minute while the process waited; attach again with Connect")

// hub hands a process's output to everyone attached. With nobody attached output
// is dropped, so the process never blocks; while someone is attached nothing is
// lost, because reading the pipe waits for the slowest subscriber.
type hub struct {
	mu    sync.Mutex
	space *sync.Cond // a queue got shorter, or a subscriber left
	subs  map[*subscriber]struct{}
	end   *processpb.ProcessEvent // set once, when the process is over
	stall time.Duration           // stallLimit
}

// subscriber is one attached reader.
type subscriber struct {
	hub   *hub
	ready chan struct{} // has one element when there is something to take
	cut   chan struct{} // closed when the subscriber was cut off

	// guarded by hub.mu
	queue []*processpb.ProcessEvent
	size  int
	taken uint64
	over  bool
	err   error
}

func newHub() *hub {
	h := &hub{subs: map[*subscriber]struct{}{}, stall: stallLimit}
	h.space = sync.NewCond(&h.mu)
	return h
}

// subscribe attaches a reader from now on. After the end it gets just the end.
func (h *hub) subscribe() *subscriber {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &subscriber{hub: h, ready: make(chan struct{}, 1), cut: make(chan struct{})}
	if h.end != nil {
		s.queue, s.over = []*processpb.ProcessEvent{h.end}, true
		s.wake()
		return s
	}
	h.subs[s] = struct{}{}
	return s
}

// awaitSpace returns once every subscriber can take more. A reader of the pipe
// calls it before each read.
func (h *hub) awaitSpace() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		full := h.fullest()
		if full == nil {
			return
		}
		seen := full.taken
		stall := time.AfterFunc(h.stall, func() { full.cutOff(seen) })
		h.space.Wait()
		stall.Stop()
	}
}

func (h *hub) fullest() *subscriber {
	for s := range h.subs {
		if s.size >= queueLimit {
			return s
		}
	}
	return nil
}

// publish queues output for every subscriber. b is copied, if anyone wants it.
func (h *hub) publish(b []byte, wrap wrapper) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.subs) == 0 {
		return
	}
	ev := wrap(append([]byte(nil), b...))
	for s := range h.subs {
		s.queue = append(s.queue, ev)
		s.size += len(b)
		s.wake()
	}
}

// finish ends the hub. Those attached get the end event, or cause instead of it;
// later subscribers always get the end event.
func (h *hub) finish(end *processpb.ProcessEvent, cause error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end = end
	for s := range h.subs {
		if cause == nil {
			s.queue = append(s.queue, end)
		}
		s.over, s.err = true, cause
		s.wake()
	}
	clear(h.subs)
	h.space.Broadcast()
}

// take empties the queue. over says that nothing will follow, err why.
func (s *subscriber) take() (events []*processpb.ProcessEvent, over bool, err error) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	events, s.queue, s.size = s.queue, nil, 0
	s.taken++
	s.hub.space.Broadcast()
	return events, s.over, s.err
}

// close detaches the reader.
func (s *subscriber) close() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	delete(s.hub.subs, s)
	s.hub.space.Broadcast()
}

// cutOff detaches a reader that took nothing since it was seen at taken.
func (s *subscriber) cutOff(taken uint64) {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	if _, attached := s.hub.subs[s]; !attached || s.taken != taken {
		return
	}
	delete(s.hub.subs, s)
	s.queue, s.over, s.err = nil, true, errStalled
	close(s.cut)
	s.wake()
	s.hub.space.Broadcast()
}

func (s *subscriber) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
}

// wrapper makes the event of one kind of output.
type wrapper func([]byte) *processpb.ProcessEvent

func wrapStdout(b []byte) *processpb.ProcessEvent {
	return dataEvent(&processpb.ProcessEvent_DataEvent{Output: &processpb.ProcessEvent_DataEvent_Stdout{Stdout: b}})
}

func wrapStderr(b []byte) *processpb.ProcessEvent {
	return dataEvent(&processpb.ProcessEvent_DataEvent{Output: &processpb.ProcessEvent_DataEvent_Stderr{Stderr: b}})
}

func wrapPTY(b []byte) *processpb.ProcessEvent {
	return dataEvent(&processpb.ProcessEvent_DataEvent{Output: &processpb.ProcessEvent_DataEvent_Pty{Pty: b}})
}

func dataEvent(d *processpb.ProcessEvent_DataEvent) *processpb.ProcessEvent {
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_Data{Data: d}}
}
