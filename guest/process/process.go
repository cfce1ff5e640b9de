package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/guest/proto/processpb"
)

const (
	pipeChunk = 32 << 10 // most bytes of one stdout or stderr event
	ptyChunk  = 16 << 10 // most bytes of one pty event

	// afterExit is how long a process that has ended is waited for while something
	// it left running still holds its output. Whatever was written before is
	// delivered in any case; a server started with "&" does not hold the caller.
	afterExit = 100 * time.Millisecond
	// afterExitBytes bounds what is still read then: the largest a pipe can hold.
	afterExitBytes = 1 << 20
)

// process is one that a client started.
type process struct {
	pid    int
	config *processpb.ProcessConfig
	tag    *string
	hub    *hub

	input   *os.File // write end of stdin, or the pty's master; nil without
	pty     bool
	writing chan struct{} // semaphore: one writer of input at a time
	closed  atomic.Bool   // input was closed by CloseStdin or the end

	outputs []output
	exit    <-chan syscall.WaitStatus
	expired atomic.Bool // its deadline killed it
}

type output struct {
	file  *os.File
	chunk int
	wrap  wrapper
}

// run reads the output and waits for the end. done is called once, with the hub finished.
func (p *process) run(r *Reaper, timeout time.Duration, done func()) {
	var deadline *time.Timer
	if timeout > 0 {
		deadline = time.AfterFunc(timeout, func() {
			p.expired.Store(true)
			_ = r.Signal(p.pid, syscall.SIGKILL) // gone already: it made it
		})
	}
	var readers sync.WaitGroup
	for _, o := range p.outputs {
		readers.Go(func() { p.pump(o) })
	}
	go func() {
		status := <-p.exit
		if deadline != nil {
			deadline.Stop()
		}
		for _, o := range p.outputs {
			_ = o.file.SetReadDeadline(time.Now().Add(afterExit))
		}
		if !p.pty {
			p.closeInput()
		}
		readers.Wait()
		p.closeInput()
		var cause error
		if p.expired.Load() && status.Signaled() {
			cause = connect.NewError(connect.CodeDeadlineExceeded,
				fmt.Errorf("process %d was killed: it outlived its timeout of %s", p.pid, timeout))
		}
		p.hub.finish(endEvent(status), cause)
		done()
	}()
}

var buffers = sync.Pool{New: func() any { b := make([]byte, pipeChunk); return &b }}

// pump reads one output to its end.
func (p *process) pump(o output) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	b := (*buf)[:o.chunk]
	for {
		p.hub.awaitSpace()
		n, err := o.file.Read(b)
		if n > 0 {
			p.hub.publish(b[:n], o.wrap)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			p.drain(o, b)
			return
		}
		if err != nil { // EOF; EIO is a pty's
			p.release(o)
			return
		}
	}
}

// drain takes what is in the pipe of a process that has ended and whose output
// is still open in something it left behind, then lets that go on unheard.
func (p *process) drain(o output, b []byte) {
	for total := 0; total < afterExitBytes; {
		p.hub.awaitSpace()
		n, err := readNow(o.file, b)
		if n > 0 {
			p.hub.publish(b[:n], o.wrap)
			total += n
			continue
		}
		if err == nil || !errors.Is(err, syscall.EAGAIN) { // end of file
			p.release(o)
			return
		}
		break
	}
	if p.pty {
		return // the master is closed with the input; the terminal hangs up
	}
	// Closing our end would kill the writer with SIGPIPE; leaving the pipe unread
	// would block it.
	_ = o.file.SetReadDeadline(time.Time{})
	go func() {
		_, _ = io.Copy(discard{}, o.file)
		_ = o.file.Close()
	}()
}

// discard is io.Discard without its ReadFrom, which would hold 8 KiB per pipe for ever.
type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

func (p *process) release(o output) {
	if !p.pty { // the master is the input too, closed with it
		_ = o.file.Close()
	}
}

// readNow reads without waiting; EAGAIN when there is nothing.
func readNow(f *os.File, b []byte) (n int, err error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	ctlErr := conn.Control(func(fd uintptr) { n, err = syscall.Read(int(fd), b) })
	if ctlErr != nil {
		return 0, ctlErr
	}
	return max(n, 0), err
}

// write gives b to the process's input. It waits while the process does not read.
func (p *process) write(ctx context.Context, b []byte) error {
	select {
	case p.writing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-p.writing }()
	if p.closed.Load() {
		return os.ErrClosed
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = p.input.SetWriteDeadline(time.Unix(1, 0))
	})
	_, err := p.input.Write(b)
	if !stop() {
		<-interrupted // or its deadline would hit the next writer
		_ = p.input.SetWriteDeadline(time.Time{})
		if err != nil {
			return ctx.Err()
		}
	}
	return err
}

// closeInput ends the process's input; it is safe to call again. A write in
// progress ends with an error.
func (p *process) closeInput() {
	if p.input != nil && p.closed.CompareAndSwap(false, true) {
		_ = p.input.Close()
	}
}

// resize sets the terminal's size.
func (p *process) resize(size *processpb.PTY_Size) error {
	conn, err := p.input.SyscallConn()
	if err != nil {
		return err
	}
	var ioErr error
	err = conn.Control(func(fd uintptr) {
		ioErr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, winsize(size))
	})
	return errors.Join(err, ioErr)
}

func winsize(size *processpb.PTY_Size) *unix.Winsize {
	return &unix.Winsize{Col: clamp(size.GetCols()), Row: clamp(size.GetRows())}
}

func clamp(n uint32) uint16 { return uint16(min(n, 0xffff)) }

// endEvent says how a process ended, in the words of os.ProcessState.
func endEvent(ws syscall.WaitStatus) *processpb.ProcessEvent {
	end := &processpb.ProcessEvent_EndEvent{Exited: ws.Exited()}
	switch {
	case ws.Exited():
		end.ExitCode = int32(ws.ExitStatus())
		end.Status = fmt.Sprintf("exit status %d", ws.ExitStatus())
	case ws.Signaled():
		end.ExitCode = -1
		end.Status = "signal: " + ws.Signal().String()
		if ws.CoreDump() {
			end.Status += " (core dumped)"
		}
	}
	if end.ExitCode != 0 {
		end.Error = &end.Status
	}
	return &processpb.ProcessEvent{Event: &processpb.ProcessEvent_End{End: end}}
}
