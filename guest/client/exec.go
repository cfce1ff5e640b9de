package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/proto/processpb"
)

// ExecOptions say what to run.
type ExecOptions struct {
	Cmd  string
	Args []string
	Env  map[string]string
	Cwd  string // "" is the sandbox's default
	Tag  string
	// Timeout kills the process after that long; 0 never.
	Timeout time.Duration
	// Stdin is copied to the process until its end; nil is /dev/null.
	Stdin io.Reader
	// Stdout and Stderr get output as it comes; nil drops it. With a terminal all
	// output goes to Stdout.
	Stdout, Stderr io.Writer
	// Terminal runs it in a terminal of this size.
	Terminal *Size
	// Resize, with Terminal, delivers new sizes while it runs.
	Resize <-chan Size
	// Started is told the pid once it runs.
	Started func(pid uint32)
}

// Size of a terminal, in characters.
type Size struct{ Cols, Rows uint16 }

// Result says how a process ended.
type Result struct {
	PID      uint32
	ExitCode int    // -1 when a signal ended it
	Status   string // "exit status 3", "signal: killed"
}

// Exec runs a process to its end. A process that fails is a Result, not an error.
// When ctx ends or a writer fails, Exec returns and the process is killed.
func (c *Client) Exec(ctx context.Context, o ExecOptions) (Result, error) {
	// The library would send a deadline of ctx as Connect-Timeout-Ms, which is
	// o.Timeout's place; so the stream has a context without one.
	streamCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, cancel)()
	callCtx, info := connect.NewClientContext(streamCtx)
	if o.Timeout > 0 {
		info.RequestHeader().Set("Connect-Timeout-Ms", strconv.FormatInt(max(o.Timeout.Milliseconds(), 1), 10))
	}
	stdin := o.Stdin != nil && o.Terminal == nil
	req := &processpb.StartRequest{
		Process: &processpb.ProcessConfig{Cmd: o.Cmd, Args: o.Args, Envs: o.Env},
		Stdin:   &stdin,
	}
	if o.Cwd != "" {
		req.Process.Cwd = &o.Cwd
	}
	if o.Tag != "" {
		req.Tag = &o.Tag
	}
	if o.Terminal != nil {
		req.Pty = o.Terminal.proto()
	}
	stream, err := c.Process.Start(callCtx, req)
	if err != nil {
		return Result{}, fmt.Errorf("start %s: %w", o.Cmd, err)
	}
	defer stream.Close()
	run := &execution{client: c, options: o}
	res, err := run.follow(streamCtx, func() (*processpb.ProcessEvent, bool) {
		if !stream.Receive() {
			return nil, false
		}
		return stream.Msg().GetEvent(), true
	}, stream.Err)
	if res.PID != 0 && (ctx.Err() != nil || errors.Is(err, errOutput)) {
		c.abandon(res.PID)
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("process %d: %w", res.PID, ctx.Err())
	}
	return res, err
}

// errOutput says that the caller's writer failed.
var errOutput = errors.New("output was not taken")

// Attach follows a running process, e.g. one whose client was lost, to its end.
// Options that say what to run are ignored.
func (c *Client) Attach(ctx context.Context, pid uint32, o ExecOptions) (Result, error) {
	stream, err := c.Process.Connect(ctx, &processpb.ConnectRequest{Process: byPID(pid)})
	if err != nil {
		return Result{}, fmt.Errorf("attach to process %d: %w", pid, err)
	}
	defer stream.Close()
	ctx, endInput := context.WithCancel(ctx)
	defer endInput()
	run := &execution{client: c, options: o}
	return run.follow(ctx, func() (*processpb.ProcessEvent, bool) {
		if !stream.Receive() {
			return nil, false
		}
		return stream.Msg().GetEvent(), true
	}, stream.Err)
}

// Kill sends a signal to a process and its group.
func (c *Client) Kill(ctx context.Context, pid uint32, sig syscall.Signal) error {
	_, err := c.Process.SendSignal(ctx, &processpb.SendSignalRequest{Process: byPID(pid), Signal: processpb.Signal(sig)})
	return err
}

// abandon kills a process whose caller has given up; nobody is there to hear of errors.
func (c *Client) abandon(pid uint32) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = c.Kill(ctx, pid, syscall.SIGKILL)
}

type execution struct {
	client  *Client
	options ExecOptions
}

// follow handles events until the end event.
func (e *execution) follow(ctx context.Context, next func() (*processpb.ProcessEvent, bool), streamErr func() error) (Result, error) {
	var res Result
	for {
		ev, ok := next()
		if !ok {
			break
		}
		switch v := ev.GetEvent().(type) {
		case *processpb.ProcessEvent_Start:
			res.PID = v.Start.GetPid()
			e.started(ctx, res.PID)
		case *processpb.ProcessEvent_Data:
			if err := e.output(v.Data); err != nil {
				return res, fmt.Errorf("process %d: %w: %w", res.PID, errOutput, err)
			}
		case *processpb.ProcessEvent_End:
			res.ExitCode, res.Status = int(v.End.GetExitCode()), v.End.GetStatus()
			return res, nil
		}
	}
	err := streamErr()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return res, fmt.Errorf("process %d: %w", res.PID, err)
}

func (e *execution) started(ctx context.Context, pid uint32) {
	if e.options.Started != nil {
		e.options.Started(pid)
	}
	if e.options.Stdin != nil {
		go e.input(ctx, pid)
	}
	if e.options.Resize != nil && e.options.Terminal != nil {
		go e.resize(ctx, pid)
	}
}

func (e *execution) output(d *processpb.ProcessEvent_DataEvent) error {
	var err error
	switch v := d.GetOutput().(type) {
	case *processpb.ProcessEvent_DataEvent_Stdout:
		err = write(e.options.Stdout, v.Stdout)
	case *processpb.ProcessEvent_DataEvent_Pty:
		err = write(e.options.Stdout, v.Pty)
	case *processpb.ProcessEvent_DataEvent_Stderr:
		err = write(e.options.Stderr, v.Stderr)
	}
	return err
}

func write(w io.Writer, b []byte) error {
	if w == nil {
		return nil
	}
	_, err := w.Write(b)
	return err
}

// input copies Stdin to the process. An error means that the process has ended or
// closed its input, which its own end will tell.
func (e *execution) input(ctx context.Context, pid uint32) {
	buf := make([]byte, 32<<10)
	for {
		n, err := e.options.Stdin.Read(buf)
		if n > 0 {
			in := &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: buf[:n]}}
			if e.options.Terminal != nil {
				in.Input = &processpb.ProcessInput_Pty{Pty: buf[:n]}
			}
			if _, sendErr := e.client.Process.SendInput(ctx, &processpb.SendInputRequest{Process: byPID(pid), Input: in}); sendErr != nil {
				return
			}
		}
		if errors.Is(err, io.EOF) && e.options.Terminal == nil {
			_, _ = e.client.Process.CloseStdin(ctx, &processpb.CloseStdinRequest{Process: byPID(pid)})
		}
		if err != nil {
			return
		}
	}
}

func (e *execution) resize(ctx context.Context, pid uint32) {
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-e.options.Resize:
			if !ok {
				return
			}
			_, _ = e.client.Process.Update(ctx, &processpb.UpdateRequest{Process: byPID(pid), Pty: size.proto()})
		}
	}
}

func (s Size) proto() *processpb.PTY {
	return &processpb.PTY{Size: &processpb.PTY_Size{Cols: uint32(s.Cols), Rows: uint32(s.Rows)}}
}

func byPID(pid uint32) *processpb.ProcessSelector {
	return &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: pid}}
}
