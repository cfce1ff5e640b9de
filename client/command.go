package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/proto/processpb"
	"github.com/holdfast-run/holdfast/guest/proto/processpb/processpbconnect"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Size is a terminal's.
type Size struct{ Cols, Rows int }

// Cmd is a command in a sandbox, used like exec.Cmd: once. When the context it
// was made with ends, the process is killed.
type Cmd struct {
	Path string
	Args []string // without the path
	Env  map[string]string
	Dir  string // "" for the sandbox's default
	User string // "" for the sandbox's default
	Tag  string // a name by which other clients may find it

	Stdin  io.Reader // nil: empty
	Stdout io.Writer // nil: discarded
	Stderr io.Writer
	// TTY runs it on a terminal of that size; everything it prints goes to Stdout.
	TTY *Size

	PID int // inside; after Start

	sb     *Sandbox
	ctx    context.Context // as exec.CommandContext
	client processpbconnect.ProcessClient
	stream *connect.ServerStreamForClient[processpb.StartResponse]
	cancel context.CancelFunc
	done   chan struct{} // closed when the stream has ended
	mu     sync.Mutex
	inputs sync.Mutex // keeps stdin in order
	err    error
}

// ExitError is the end of a command with a code other than 0, or by a signal.
type ExitError struct {
	Code   int    // -1 when a signal ended it
	Status string // "exit status 3" or "signal: killed"
	Stderr []byte // what Output collected
}

func (e *ExitError) Error() string { return e.Status }

// Command gives a command that runs name with args, found in the sandbox's PATH.
func (s *Sandbox) Command(ctx context.Context, name string, args ...string) *Cmd {
	return &Cmd{Path: name, Args: args, sb: s, ctx: ctx}
}

// Run starts the command and waits for it.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs it and gives what it printed.
func (c *Cmd) Output() ([]byte, error) {
	var out, errs bytes.Buffer
	if c.Stdout != nil {
		return nil, errors.New("client: Stdout already set")
	}
	c.Stdout = &out
	collect := c.Stderr == nil
	if collect {
		c.Stderr = &errs
	}
	err := c.Run()
	var exit *ExitError
	if collect && errors.As(err, &exit) {
		exit.Stderr = errs.Bytes()
	}
	return out.Bytes(), err
}

// CombinedOutput runs it and gives what it printed to either.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("client: Stdout or Stderr already set")
	}
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// Start starts it; PID is known when it returns.
func (c *Cmd) Start() error {
	if c.done != nil {
		return errors.New("client: already started")
	}
	c.client = c.sb.processes(c.User)
	req := &processpb.StartRequest{Process: &processpb.ProcessConfig{Cmd: c.Path, Args: c.Args, Envs: c.Env}}
	if c.Dir != "" {
		req.Process.Cwd = &c.Dir
	}
	if c.Tag != "" {
		req.Tag = &c.Tag
	}
	if c.TTY != nil {
		req.Pty = pty(*c.TTY)
	}
	stdin := c.Stdin != nil
	req.Stdin = &stdin

	ctx, cancel := context.WithCancel(c.ctx)
	c.cancel, c.done = cancel, make(chan struct{})
	stream, err := c.client.Start(ctx, req)
	if err == nil && !stream.Receive() {
		if err = stream.Err(); err == nil {
			err = io.ErrUnexpectedEOF
		}
		_ = stream.Close() // the error is known already
	}
	if err != nil {
		cancel()
		close(c.done)
		return c.sb.guestError("command "+strconv.Quote(c.Path), err)
	}
	c.stream = stream
	c.PID = int(stream.Msg().GetEvent().GetStart().GetPid())
	go c.receive()
	if stdin {
		go c.feed()
	}
	return nil
}

// Wait waits for the end: nil for code 0, else *ExitError. It does not wait for
// Stdin to end.
func (c *Cmd) Wait() error {
	if c.stream == nil {
		return errors.New("client: not started")
	}
	select {
	case <-c.done:
	case <-c.ctx.Done():
		// Breaking off the stream does not end the process.
		c.killOnCancel()
		c.cancel()
		<-c.done
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctxErr := c.ctx.Err(); ctxErr != nil && c.err != nil {
		return fmt.Errorf("command %q in %s: %w", c.Path, c.sb.thing(), context.Cause(c.ctx))
	}
	return c.err
}

// receive copies output until the end event.
func (c *Cmd) receive() {
	err := c.copyOutput()
	c.mu.Lock()
	c.err = err
	c.mu.Unlock()
	_ = c.stream.Close() // the end was seen, or the error is known
	c.cancel()
	close(c.done)
}

func (c *Cmd) copyOutput() error {
	for c.stream.Receive() {
		ev := c.stream.Msg().GetEvent()
		if end := ev.GetEnd(); end != nil {
			return exitError(end)
		}
		data := ev.GetData()
		if data == nil {
			continue
		}
		for _, out := range []struct {
			to io.Writer
			b  []byte
		}{{c.Stdout, data.GetStdout()}, {c.Stdout, data.GetPty()}, {c.Stderr, data.GetStderr()}} {
			if len(out.b) == 0 || out.to == nil {
				continue
			}
			if _, err := out.to.Write(out.b); err != nil {
				return fmt.Errorf("write output of %q: %w", c.Path, err)
			}
		}
	}
	err := c.stream.Err()
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	var ce *connect.Error
	if errors.As(err, &ce) && ce.Code() == connect.CodeDeadlineExceeded {
		return c.sb.guestError("command "+strconv.Quote(c.Path), err)
	}
	return sandbox.Errorf(sandbox.Unavailable, "connection to command "+strconv.Quote(c.Path), "was lost: %w", err).
		WithNext("the sandbox was paused, removed, or its daemon stopped; the process may go on as pid %d", c.PID)
}

func exitError(end *processpb.ProcessEvent_EndEvent) error {
	code := int(end.GetExitCode())
	if code == 0 && end.GetError() == "" {
		return nil
	}
	status := end.GetStatus()
	if status == "" {
		status = end.GetError()
	}
	if status == "" {
		status = "exit status " + strconv.Itoa(code)
	}
	return &ExitError{Code: code, Status: status}
}

// How much of stdin one message carries. What comes from a person is sent at
// once, a terminal's message by message, so that its echo comes at once too.
const inputChunk = 256 << 10

// feed sends Stdin; its end becomes the command's end of input. Errors end it:
// the command has ended, or its own stream will say why not.
func (c *Cmd) feed() {
	if c.TTY != nil {
		if c.copyInput(c.Input) == nil {
			_ = c.Input([]byte{4}) // a terminal's end of input is ^D
		}
		return
	}
	stream, err := c.client.StreamInput(c.ctx)
	if err != nil {
		return
	}
	err = stream.Send(&processpb.StreamInputRequest{Event: &processpb.StreamInputRequest_Start{
		Start: &processpb.StreamInputRequest_StartEvent{Process: c.selector()},
	}})
	if err == nil {
		err = c.copyInput(func(b []byte) error {
			return stream.Send(&processpb.StreamInputRequest{Event: &processpb.StreamInputRequest_Data{
				Data: &processpb.StreamInputRequest_DataEvent{Input: c.input(b)},
			}})
		})
	}
	if _, closeErr := stream.CloseAndReceive(); err == nil && closeErr == nil {
		_, _ = c.client.CloseStdin(c.ctx, &processpb.CloseStdinRequest{Process: c.selector()})
	}
}

// copyInput hands Stdin to send until its end, which is no error.
func (c *Cmd) copyInput(send func([]byte) error) error {
	buf := make([]byte, inputChunk)
	for {
		n, err := c.Stdin.Read(buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return nil //nolint:nilerr // an input that breaks is an input that ends, as a pipe's
		}
	}
}

func (c *Cmd) input(b []byte) *processpb.ProcessInput {
	if c.TTY != nil {
		return &processpb.ProcessInput{Input: &processpb.ProcessInput_Pty{Pty: b}}
	}
	return &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: b}}
}

// Input writes to the command's terminal or stdin. For a command with Stdin set
// it happens by itself.
func (c *Cmd) Input(b []byte) error {
	c.inputs.Lock()
	defer c.inputs.Unlock()
	_, err := c.client.SendInput(c.ctx, &processpb.SendInputRequest{Process: c.selector(), Input: c.input(b)})
	return c.sb.guestError("input to command "+strconv.Quote(c.Path), err)
}

// Resize changes the terminal's size.
func (c *Cmd) Resize(size Size) error {
	_, err := c.client.Update(c.ctx, &processpb.UpdateRequest{Process: c.selector(), Pty: pty(size)})
	return c.sb.guestError("resize of command "+strconv.Quote(c.Path), err)
}

// Terminate asks it to end (SIGTERM).
func (c *Cmd) Terminate() error { return c.signal(c.ctx, processpb.Signal_SIGNAL_SIGTERM) }

// Kill ends it (SIGKILL).
func (c *Cmd) Kill() error { return c.signal(c.ctx, processpb.Signal_SIGNAL_SIGKILL) }

func (c *Cmd) signal(ctx context.Context, sig processpb.Signal) error {
	_, err := c.client.SendSignal(ctx, &processpb.SendSignalRequest{Process: c.selector(), Signal: sig})
	return c.sb.guestError("signal to command "+strconv.Quote(c.Path), err)
}

func (c *Cmd) killOnCancel() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), killPatience)
	defer cancel()
	_ = c.signal(ctx, processpb.Signal_SIGNAL_SIGKILL) // gone already, or out of reach
}

func (c *Cmd) selector() *processpb.ProcessSelector {
	return &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: uint32(c.PID)}} //nolint:gosec // the guest gave it as uint32
}

func pty(s Size) *processpb.PTY {
	return &processpb.PTY{Size: &processpb.PTY_Size{Cols: uint32(max(1, s.Cols)), Rows: uint32(max(1, s.Rows))}} //nolint:gosec // not negative
}
