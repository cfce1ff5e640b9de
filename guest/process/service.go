// Package process runs programs for clients: E2B's process.Process service.
//
// A process belongs to the sandbox, not to the request that started it: it goes
// on when the client leaves, anyone may attach to it later, and only its own
// timeout (the start request's Connect-Timeout-Ms) or a signal ends it.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/account"
	"github.com/holdfast-run/holdfast/guest/identity"
	"github.com/holdfast-run/holdfast/guest/proto/processpb"
	"github.com/holdfast-run/holdfast/guest/proto/processpb/processpbconnect"
	"github.com/holdfast-run/holdfast/guest/stream"
)

// keptExits is how many ended processes Connect still knows.
const keptExits = 128

// Service is the process service.
type Service struct {
	reaper   *Reaper
	identity *identity.Store

	mu    sync.Mutex
	alive map[int]*process
	ended []*process // oldest first
}

// NewService makes the service; processes are started and reaped through r.
func NewService(r *Reaper, id *identity.Store) *Service {
	return &Service{reaper: r, identity: id, alive: map[int]*process{}}
}

// Start implements the service.
func (s *Service) Start(ctx context.Context, req *processpb.StartRequest, out *connect.ServerStream[processpb.StartResponse]) error {
	p, err := s.launch(account.FromContext(ctx), req)
	if err != nil {
		return err
	}
	sub := p.hub.subscribe() // before the first byte is read
	s.mu.Lock()
	s.alive[p.pid] = p
	s.mu.Unlock()
	p.run(s.reaper, stream.FromContext(ctx).Timeout, func() { s.retire(p) })
	return follow(ctx, p, sub, func(ev *processpb.ProcessEvent) error {
		return out.Send(&processpb.StartResponse{Event: ev})
	})
}

// Connect implements the service.
func (s *Service) Connect(ctx context.Context, req *processpb.ConnectRequest, out *connect.ServerStream[processpb.ConnectResponse]) error {
	p, err := s.find(req.GetProcess(), true)
	if err != nil {
		return err
	}
	if d := stream.FromContext(ctx).Timeout; d > 0 {
		// Here the timeout is the stream's: the process has its own.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	return follow(ctx, p, p.hub.subscribe(), func(ev *processpb.ProcessEvent) error {
		return out.Send(&processpb.ConnectResponse{Event: ev})
	})
}

// follow sends a process's events until its end, or until the client leaves.
func follow(ctx context.Context, p *process, sub *subscriber, send func(*processpb.ProcessEvent) error) error {
	defer sub.close()
	opts := stream.FromContext(ctx)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-sub.cut: // the reader is stuck in send; only the connection's end frees it
			opts.Abort()
		case <-done:
		}
	}()
	if err := send(startEvent(p.pid)); err != nil {
		return err
	}
	idle := time.NewTicker(opts.Keepalive)
	defer idle.Stop()
	for {
		select {
		case <-sub.ready:
		case <-ctx.Done():
			return ctx.Err()
		case <-idle.C:
			if err := send(keepalive); err != nil {
				return err
			}
			continue
		}
		events, over, err := sub.take()
		for _, ev := range events {
			if err := send(ev); err != nil {
				return err
			}
		}
		if over {
			return stalledError(err)
		}
		idle.Reset(opts.Keepalive)
	}
}

func stalledError(err error) error {
	if errors.Is(err, errStalled) {
		return connect.NewError(connect.CodeAborted, err)
	}
	return err
}

var keepalive = &processpb.ProcessEvent{Event: &processpb.ProcessEvent_Keepalive{Keepalive: &processpb.ProcessEvent_KeepAlive{}}}

func startEvent(pid int) *processpb.ProcessEvent {
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_Start{
		Start: &processpb.ProcessEvent_StartEvent{Pid: uint32(pid)},
	}}
}

// retire moves an ended process to those that Connect still knows.
func (s *Service) retire(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alive[p.pid] == p { // the pid may be in use again
		delete(s.alive, p.pid)
	}
	p.config, p.outputs = nil, nil
	s.ended = append(s.ended, p)
	if len(s.ended) > keptExits {
		s.ended = append([]*process(nil), s.ended[len(s.ended)-keptExits:]...)
	}
}

// find gives the selected process; with ended also one that is over. Of several
// with one tag the newest counts.
func (s *Service) find(sel *processpb.ProcessSelector, ended bool) (*process, error) {
	var match func(*process) bool
	var name string
	switch v := sel.GetSelector().(type) {
	case *processpb.ProcessSelector_Pid:
		match = func(p *process) bool { return p.pid == int(v.Pid) }
		name = fmt.Sprintf("process with pid %d", v.Pid)
	case *processpb.ProcessSelector_Tag:
		match = func(p *process) bool { return p.tag != nil && *p.tag == v.Tag }
		name = fmt.Sprintf("process with tag %q", v.Tag)
	default:
		return nil, invalid("process selector is empty; give a pid or a tag")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var found *process
	for _, p := range s.alive {
		if match(p) && (found == nil || p.pid > found.pid) {
			found = p
		}
	}
	if found != nil {
		return found, nil
	}
	for i := len(s.ended) - 1; ended && i >= 0; i-- {
		if match(s.ended[i]) {
			return s.ended[i], nil
		}
	}
	return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("%s not found; list shows those that run", name))
}

// List implements the service.
func (s *Service) List(context.Context, *processpb.ListRequest) (*processpb.ListResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*processpb.ProcessInfo, 0, len(s.alive))
	for _, p := range s.alive {
		list = append(list, &processpb.ProcessInfo{Config: p.config, Pid: uint32(p.pid), Tag: p.tag})
	}
	sort.Slice(list, func(i, j int) bool { return list[i].Pid < list[j].Pid })
	return &processpb.ListResponse{Processes: list}, nil
}

// Update implements the service: it resizes a terminal.
func (s *Service) Update(_ context.Context, req *processpb.UpdateRequest) (*processpb.UpdateResponse, error) {
	p, err := s.find(req.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if size := req.GetPty().GetSize(); size != nil {
		if !p.pty {
			return nil, failed("process %d has no terminal to resize", p.pid)
		}
		if err := p.resize(size); err != nil {
			return nil, inputError(p, err)
		}
	}
	return &processpb.UpdateResponse{}, nil
}

// SendInput implements the service.
func (s *Service) SendInput(ctx context.Context, req *processpb.SendInputRequest) (*processpb.SendInputResponse, error) {
	p, err := s.find(req.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if err := p.feed(ctx, req.GetInput()); err != nil {
		return nil, err
	}
	return &processpb.SendInputResponse{}, nil
}

// StreamInput implements the service.
func (s *Service) StreamInput(ctx context.Context, in *connect.ClientStream[processpb.StreamInputRequest]) (*processpb.StreamInputResponse, error) {
	var p *process
	for in.Receive() {
		switch ev := in.Msg().GetEvent().(type) {
		case *processpb.StreamInputRequest_Start:
			found, err := s.find(ev.Start.GetProcess(), false)
			if err != nil {
				return nil, err
			}
			p = found
		case *processpb.StreamInputRequest_Data:
			if p == nil {
				return nil, invalid("input came before the start event; name the process first")
			}
			if err := p.feed(ctx, ev.Data.GetInput()); err != nil {
				return nil, err
			}
		}
	}
	if err := in.Err(); err != nil {
		return nil, err
	}
	return &processpb.StreamInputResponse{}, nil
}

func (p *process) feed(ctx context.Context, in *processpb.ProcessInput) error {
	var b []byte
	switch v := in.GetInput().(type) {
	case *processpb.ProcessInput_Stdin:
		if p.pty {
			return failed("process %d has a terminal; send pty input instead of stdin", p.pid)
		}
		b = v.Stdin
	case *processpb.ProcessInput_Pty:
		if !p.pty {
			return failed("process %d has no terminal; send stdin instead of pty input", p.pid)
		}
		b = v.Pty
	default:
		return invalid("input is empty; give stdin or pty bytes")
	}
	if p.input == nil {
		return failed("process %d was started without stdin", p.pid)
	}
	if err := p.write(ctx, b); err != nil {
		return inputError(p, err)
	}
	return nil
}

// CloseStdin implements the service.
func (s *Service) CloseStdin(_ context.Context, req *processpb.CloseStdinRequest) (*processpb.CloseStdinResponse, error) {
	p, err := s.find(req.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	switch {
	case p.pty:
		return nil, failed("process %d has a terminal; send it Ctrl+D (0x04) instead", p.pid)
	case p.input == nil:
		return nil, failed("process %d was started without stdin", p.pid)
	}
	p.closeInput()
	return &processpb.CloseStdinResponse{}, nil
}

// SendSignal implements the service. The signal goes to the whole process group.
func (s *Service) SendSignal(_ context.Context, req *processpb.SendSignalRequest) (*processpb.SendSignalResponse, error) {
	p, err := s.find(req.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	sig := syscall.Signal(req.GetSignal())
	if sig < 1 || sig > 64 {
		return nil, invalid("signal %d is not one; use SIGNAL_SIGTERM or SIGNAL_SIGKILL", sig)
	}
	if err := s.reaper.Signal(p.pid, sig); err != nil {
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("signal process %d: %w", p.pid, err))
	}
	return &processpb.SendSignalResponse{}, nil
}

// KillAll ends every process that clients started, with all their groups.
func (s *Service) KillAll(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pid := range s.alive {
		_ = s.reaper.Signal(pid, sig) // gone already: good
	}
}

// Count is how many processes of clients are alive.
func (s *Service) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.alive)
}

func failed(format string, args ...any) error {
	return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf(format, args...))
}

func inputError(p *process, err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EIO):
		return failed("process %d no longer reads its input: %w", p.pid, err)
	}
	return connect.NewError(connect.CodeInternal, fmt.Errorf("input of process %d: %w", p.pid, err))
}

var _ processpbconnect.ProcessHandler = (*Service)(nil)
