package process

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-run/holdfast/guest/proto/processpb"
)

func TestStalledReaderIsCutOff(t *testing.T) {
	h := newHub()
	h.stall = 10 * time.Millisecond
	dead, live := h.subscribe(), h.subscribe()
	got := 0
	drained := make(chan error)
	go func() {
		for {
			<-live.ready
			events, over, err := live.take()
			for _, ev := range events {
				got += len(ev.GetData().GetStdout())
			}
			if over {
				drained <- err
				return
			}
		}
	}()
	chunk := make([]byte, 32<<10)
	const chunks = 100
	for range chunks {
		h.awaitSpace() // returns, although dead never takes
		h.publish(chunk, wrapStdout)
	}
	h.finish(endEvent(0), nil)
	if err := <-drained; err != nil || got != chunks*len(chunk) {
		t.Errorf("the reader that reads got %d bytes and %v", got, err)
	}
	<-dead.cut
	if _, over, err := dead.take(); !over || !errors.Is(err, errStalled) {
		t.Errorf("the reader that does not: over %v, %v", over, err)
	}
}

func TestLeavingFreesTheProcess(t *testing.T) {
	h := newHub()
	s := h.subscribe()
	h.publish(make([]byte, queueLimit), wrapStdout)
	free := make(chan struct{})
	go func() { h.awaitSpace(); close(free) }()
	s.close()
	<-free
}

func TestLateSubscriberGetsTheEndOnly(t *testing.T) {
	h := newHub()
	h.publish([]byte("early"), wrapStdout)
	h.finish(endEvent(syscall.WaitStatus(3<<8)), nil)
	events, over, err := h.subscribe().take()
	if len(events) != 1 || events[0].GetEnd().GetExitCode() != 3 || !over || err != nil {
		t.Errorf("got %v %v %v", events, over, err)
	}
}

func TestCauseReplacesTheEndForThoseAttached(t *testing.T) {
	h := newHub()
	s := h.subscribe()
	cause := errors.New("deadline")
	h.finish(endEvent(syscall.WaitStatus(syscall.SIGKILL)), cause)
	if events, over, err := s.take(); len(events) != 0 || !over || !errors.Is(err, cause) {
		t.Errorf("attached: %v %v %v", events, over, err)
	}
	if events, _, err := h.subscribe().take(); len(events) != 1 || events[0].GetEnd().GetStatus() != "signal: killed" || err != nil {
		t.Errorf("late: %v %v", events, err)
	}
}

func TestEndEvent(t *testing.T) {
	for status, want := range map[syscall.WaitStatus]*processpb.ProcessEvent_EndEvent{
		0:                     {ExitCode: 0, Exited: true, Status: "exit status 0"},
		42 << 8:               {ExitCode: 42, Exited: true, Status: "exit status 42"},
		syscall.WaitStatus(9): {ExitCode: -1, Status: "signal: killed"},
		6 | 0x80:              {ExitCode: -1, Status: "signal: aborted (core dumped)"},
	} {
		got := endEvent(status).GetEnd()
		if got.GetExitCode() != want.GetExitCode() || got.GetExited() != want.GetExited() || got.GetStatus() != want.GetStatus() {
			t.Errorf("status %#x gives %v, want %v", int(status), got, want)
		}
	}
}
