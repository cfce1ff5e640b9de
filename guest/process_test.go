package guest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/holdfast-run/holdfast/guest/client"
	"github.com/holdfast-run/holdfast/guest/proto/processpb"
)

func bash(script string) *processpb.ProcessConfig {
	return &processpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"-c", script}}
}

func pid(n uint32) *processpb.ProcessSelector {
	return &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Pid{Pid: n}}
}

func tagged(s string) *processpb.ProcessSelector {
	return &processpb.ProcessSelector{Selector: &processpb.ProcessSelector_Tag{Tag: s}}
}

func stdin(s string) *processpb.ProcessInput {
	return &processpb.ProcessInput{Input: &processpb.ProcessInput_Stdin{Stdin: []byte(s)}}
}

// running is a process with its stream.
type running struct {
	pid    uint32
	out    strings.Builder // stdout and pty
	errs   strings.Builder
	end    *processpb.ProcessEvent_EndEvent
	err    error
	cancel context.CancelFunc
	next   func() bool
}

// launch starts a process and takes the start event, which must come first.
func launch(t *testing.T, c services, req *processpb.StartRequest, headers ...string) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	call, info := connect.NewClientContext(ctx)
	for i := 0; i < len(headers); i += 2 {
		info.RequestHeader().Set(headers[i], headers[i+1])
	}
	stream, err := c.Start(call, req)
	must(t, err)
	r := &running{cancel: cancel}
	r.next = func() bool {
		if !stream.Receive() {
			r.err = stream.Err()
			return false
		}
		r.take(stream.Msg().GetEvent())
		return true
	}
	if r.next() && r.pid == 0 {
		t.Fatal("first event is not start")
	}
	return r
}

func (r *running) take(ev *processpb.ProcessEvent) {
	switch v := ev.GetEvent().(type) {
	case *processpb.ProcessEvent_Start:
		r.pid = v.Start.GetPid()
	case *processpb.ProcessEvent_Data:
		r.out.Write(v.Data.GetStdout())
		r.out.Write(v.Data.GetPty())
		r.errs.Write(v.Data.GetStderr())
	case *processpb.ProcessEvent_End:
		r.end = v.End
	}
}

// wait reads to the end.
func (r *running) wait() *running {
	for r.next() {
	}
	return r
}

// until reads until the output holds the texts, one after the other.
func (r *running) until(t *testing.T, texts ...string) {
	t.Helper()
	for !inOrder(r.out.String(), texts) {
		if !r.next() {
			t.Fatalf("ended before %q: %v\n%s", texts, r.err, r.out.String())
		}
	}
}

func inOrder(s string, texts []string) bool {
	for _, text := range texts {
		_, after, found := strings.Cut(s, text)
		if !found {
			return false
		}
		s = after
	}
	return true
}

func TestProcessEndsAsItSays(t *testing.T) {
	s := start(t)
	protocols(t, s, func(t *testing.T, c services) {
		for _, tc := range []struct {
			script         string
			stdout, stderr string
			code           int32
			exited         bool
			status, fault  string
		}{
			{"echo out; echo err >&2", "out\n", "err\n", 0, true, "exit status 0", ""},
			{"exit 3", "", "", 3, true, "exit status 3", "exit status 3"},
			{"kill -KILL $$", "", "", -1, false, "signal: killed", "signal: killed"},
			{"kill -TERM $$", "", "", -1, false, "signal: terminated", "signal: terminated"},
			{`printf '\377\000x'`, "\xff\x00x", "", 0, true, "exit status 0", ""},
		} {
			r := launch(t, c, &processpb.StartRequest{Process: bash(tc.script)}).wait()
			if r.err != nil {
				t.Fatalf("%s: %v", tc.script, r.err)
			}
			equal(t, tc.script+" stdout", r.out.String(), tc.stdout)
			equal(t, tc.script+" stderr", r.errs.String(), tc.stderr)
			equal(t, tc.script+" exit code", r.end.GetExitCode(), tc.code)
			equal(t, tc.script+" exited", r.end.GetExited(), tc.exited)
			equal(t, tc.script+" status", r.end.GetStatus(), tc.status)
			equal(t, tc.script+" error", r.end.GetError(), tc.fault)
		}
	})
}

func TestProcessStartRefused(t *testing.T) {
	s := start(t)
	str := func(s string) *string { return &s }
	protocols(t, s, func(t *testing.T, c services) {
		for name, config := range map[string]*processpb.ProcessConfig{
			"no config":              nil,
			"no program":             {},
			"program missing":        {Cmd: "/no/such/program"},
			"program not in PATH":    {Cmd: "no-such-program"},
			"program not executable": {Cmd: "/etc/passwd"},
			"cwd missing":            {Cmd: "true", Cwd: str("/no/such/dir")},
			"cwd is a file":          {Cmd: "true", Cwd: str("/etc/passwd")},
			"cwd with NUL":           {Cmd: "true", Cwd: str("/tmp\x00x")},
			"argument with NUL":      {Cmd: "true", Args: []string{"a\x00b"}},
		} {
			stream, err := c.Start(t.Context(), &processpb.StartRequest{Process: config})
			must(t, err)
			if stream.Receive() {
				t.Errorf("%s: got %v", name, stream.Msg())
			}
			if code := client.CodeOf(stream.Err()); code != connect.CodeInvalidArgument {
				t.Errorf("%s: error is %v", name, stream.Err())
			}
			must(t, stream.Close())
		}
	})
}

func TestProcessEnvironment(t *testing.T) {
	s := start(t, func(o *options) { o.init.EnvVars = map[string]string{"A": "sandbox", "B": "sandbox", "HOME": "/tmp"} })
	run := func(c *client.Client, env map[string]string, script string) string {
		var out strings.Builder
		_, err := c.Exec(t.Context(), client.ExecOptions{Cmd: "/bin/sh", Args: []string{"-c", script}, Env: env, Stdout: &out})
		must(t, err)
		return strings.TrimSpace(out.String())
	}
	equal(t, "request over sandbox over user", run(s.Client, map[string]string{"B": "request"}, "echo $A $B $HOME"), "sandbox request /tmp")
	equal(t, "user's", run(s.Client, nil, "echo $USER $LOGNAME $SHELL $PATH"), "user user /bin/bash /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	equal(t, "pid 1's own environment", run(s.Client, nil, "echo $LEAKED$GODEBUG"), "")
	equal(t, "PATH of the request finds the program", run(s.Client, map[string]string{"PATH": "/bin"}, "echo $PATH"), "/bin")
}

func TestProcessUser(t *testing.T) {
	s := start(t)
	equal(t, "default user", s.sh(t, "id -u; id -g; id -G"), "1000\n1000\n1000 2000")
	equal(t, "root", sh(t, s.WithUser("root"), "id -u; id -G"), "0\n0")
	equal(t, "uid without account", sh(t, s.WithUser("4321"), "id -u; id -g"), "4321\n0")
	_, err := s.WithUser("nobody-there").Exec(t.Context(), client.ExecOptions{Cmd: "true"})
	wantCode(t, err, connect.CodeUnauthenticated)
	if !strings.Contains(err.Error(), "invalid username: 'nobody-there'") {
		t.Errorf("error is %v", err)
	}
}

func TestProcessWorkingDirectory(t *testing.T) {
	s := start(t)
	work := filepath.Join(s.home, "work")
	equal(t, "home is the default", s.sh(t, "pwd"), s.home)
	s.sh(t, "mkdir -p work/sub")
	must(t, s.Init(t.Context(), client.InitRequest{AccessToken: token, DefaultUser: "user", DefaultWorkdir: work}))
	equal(t, "the sandbox's", s.sh(t, "pwd"), work)
	for cwd, want := range map[string]string{"sub": work + "/sub", "~": s.home, "~/work": work, "/": "/"} {
		var out strings.Builder
		_, err := s.Exec(t.Context(), client.ExecOptions{Cmd: "pwd", Cwd: cwd, Stdout: &out})
		must(t, err)
		equal(t, "cwd "+cwd, strings.TrimSpace(out.String()), want)
	}
	must(t, os.RemoveAll(work))
	equal(t, "a default that is gone falls back", s.sh(t, "pwd"), s.home)
	must(t, os.Mkdir(work, 0o700)) // root's
	_, err := s.Exec(t.Context(), client.ExecOptions{Cmd: "pwd", Cwd: work + "/x"})
	wantCode(t, err, connect.CodeInvalidArgument)
}

func TestProcessInput(t *testing.T) {
	s := start(t)
	no := false
	protocols(t, s, func(t *testing.T, c services) {
		r := launch(t, c, &processpb.StartRequest{Process: bash("cat")})
		_, err := c.SendInput(t.Context(), &processpb.SendInputRequest{Process: pid(r.pid), Input: stdin("one ")})
		must(t, err)
		in, err := c.StreamInput(t.Context())
		must(t, err)
		must(t, in.Send(&processpb.StreamInputRequest{Event: &processpb.StreamInputRequest_Start{
			Start: &processpb.StreamInputRequest_StartEvent{Process: pid(r.pid)}}}))
		must(t, in.Send(&processpb.StreamInputRequest{Event: &processpb.StreamInputRequest_Keepalive{}}))
		must(t, in.Send(&processpb.StreamInputRequest{Event: &processpb.StreamInputRequest_Data{
			Data: &processpb.StreamInputRequest_DataEvent{Input: stdin("two")}}}))
		_, err = in.CloseAndReceive()
		must(t, err)
		_, err = c.CloseStdin(t.Context(), &processpb.CloseStdinRequest{Process: pid(r.pid)})
		must(t, err)
		equal(t, "output", r.wait().out.String(), "one two")

		r = launch(t, c, &processpb.StartRequest{Process: bash("cat; sleep 1000"), Stdin: &no})
		_, err = c.SendInput(t.Context(), &processpb.SendInputRequest{Process: pid(r.pid), Input: stdin("x")})
		wantCode(t, err, connect.CodeFailedPrecondition)
		_, err = c.CloseStdin(t.Context(), &processpb.CloseStdinRequest{Process: pid(r.pid)})
		wantCode(t, err, connect.CodeFailedPrecondition)
		_, err = c.SendInput(t.Context(), &processpb.SendInputRequest{Process: pid(r.pid)})
		wantCode(t, err, connect.CodeInvalidArgument)
		_, err = c.SendSignal(t.Context(), &processpb.SendSignalRequest{Process: pid(r.pid), Signal: processpb.Signal_SIGNAL_SIGKILL})
		must(t, err)
		r.wait()
	})
}

func TestInputWaitsForAProcessThatDoesNotRead(t *testing.T) {
	s := start(t)
	c := services{s.Process, s.Filesystem}
	r := launch(t, c, &processpb.StartRequest{Process: bash("read -r x; sleep 1000")})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.SendInput(ctx, &processpb.SendInputRequest{Process: pid(r.pid), Input: stdin(strings.Repeat("x", 1<<20))})
	wantCode(t, err, connect.CodeDeadlineExceeded)
	// The one who gave up does not block the next, nor the end.
	_, err = c.CloseStdin(t.Context(), &processpb.CloseStdinRequest{Process: pid(r.pid)})
	must(t, err)
	must(t, s.Kill(t.Context(), r.pid, syscall.SIGKILL))
	equal(t, "status", r.wait().end.GetStatus(), "signal: killed")
}

func TestSignalReachesTheGroup(t *testing.T) {
	s := start(t)
	c := services{s.Process, s.Filesystem}
	r := launch(t, c, &processpb.StartRequest{Process: bash("sleep 1000 & echo $! ready; wait")})
	r.until(t, "ready")
	child := strings.Fields(r.out.String())[0]
	must(t, s.Kill(t.Context(), r.pid, syscall.SIGTERM))
	equal(t, "status", r.wait().end.GetStatus(), "signal: terminated")
	eventually(t, "the shell's child is gone", func() bool {
		return s.sh(t, "kill -0 "+child+" 2>/dev/null && echo alive || echo gone") == "gone"
	})
	err := s.Kill(t.Context(), r.pid, syscall.SIGTERM)
	wantCode(t, err, connect.CodeNotFound)
	_, err = c.SendSignal(t.Context(), &processpb.SendSignalRequest{Process: tagged("none"), Signal: 9})
	wantCode(t, err, connect.CodeNotFound)
	_, err = c.SendSignal(t.Context(), &processpb.SendSignalRequest{})
	wantCode(t, err, connect.CodeInvalidArgument)
}

func TestTimeoutKillsTheProcess(t *testing.T) {
	s := start(t)
	protocols(t, s, func(t *testing.T, c services) {
		r := launch(t, c, &processpb.StartRequest{Process: bash("echo before; sleep 1000")}, "Connect-Timeout-Ms", "200").wait()
		wantCode(t, r.err, connect.CodeDeadlineExceeded)
		equal(t, "output before the end", r.out.String(), "before\n")
		r = launch(t, c, &processpb.StartRequest{Process: bash("sleep 0.05; echo done")}, "Connect-Timeout-Ms", "0").wait()
		equal(t, "with 0, which is none", r.out.String(), "done\n")
	})
	stream, err := s.Process.Start(withHeader(t.Context(), "Connect-Timeout-Ms", "-1"), &processpb.StartRequest{Process: bash("true")})
	must(t, err)
	equal(t, "a negative one starts something", stream.Receive(), false)
	wantCode(t, stream.Err(), connect.CodeInvalidArgument)
}

func withHeader(ctx context.Context, name, value string) context.Context {
	ctx, info := connect.NewClientContext(ctx)
	info.RequestHeader().Set(name, value)
	return ctx
}

func TestDisconnectDoesNotKill(t *testing.T) {
	s := start(t)
	tag := "job"
	protocols(t, s, func(t *testing.T, c services) {
		r := launch(t, c, &processpb.StartRequest{Process: bash("echo started; read -r line; echo got $line; exit 7"), Tag: &tag})
		r.until(t, "started")
		r.cancel()
		r.wait()
		list, err := c.List(t.Context(), &processpb.ListRequest{})
		must(t, err)
		if len(list.GetProcesses()) != 1 || list.GetProcesses()[0].GetTag() != tag || list.GetProcesses()[0].GetConfig().GetCmd() != "/bin/bash" {
			t.Fatalf("list is %v", list)
		}
		again, err := c.Connect(t.Context(), &processpb.ConnectRequest{Process: tagged(tag)})
		must(t, err)
		equal(t, "first event", again.Receive() && again.Msg().GetEvent().GetStart().GetPid() == r.pid, true)
		_, err = c.SendInput(t.Context(), &processpb.SendInputRequest{Process: tagged(tag), Input: stdin("it\n")})
		must(t, err)
		got := &running{}
		for again.Receive() {
			got.take(again.Msg().GetEvent())
		}
		must(t, again.Err())
		equal(t, "output after attaching", got.out.String(), "got it\n")
		equal(t, "exit code", got.end.GetExitCode(), 7)

		late, err := c.Connect(t.Context(), &processpb.ConnectRequest{Process: pid(r.pid)})
		must(t, err)
		got = &running{}
		for late.Receive() {
			got.take(late.Msg().GetEvent())
		}
		equal(t, "exit code for a late caller", got.end.GetExitCode(), 7)
		list, err = c.List(t.Context(), &processpb.ListRequest{})
		must(t, err)
		equal(t, "processes listed after the end", len(list.GetProcesses()), 0)
		none, err := c.Connect(t.Context(), &processpb.ConnectRequest{Process: pid(999999)})
		must(t, err)
		equal(t, "unknown pid", none.Receive(), false)
		wantCode(t, none.Err(), connect.CodeNotFound)
	})
}

func TestTimeoutHoldsAfterDisconnect(t *testing.T) {
	s := start(t)
	c := services{s.Process, s.Filesystem}
	r := launch(t, c, &processpb.StartRequest{Process: bash("echo up; sleep 1000")}, "Connect-Timeout-Ms", "300")
	r.until(t, "up")
	r.cancel()
	eventually(t, "the process is gone", func() bool {
		list, err := c.List(t.Context(), &processpb.ListRequest{})
		must(t, err)
		return len(list.GetProcesses()) == 0
	})
}

func TestOutputIsNeverLostForASlowReader(t *testing.T) {
	s := start(t)
	const size = 24 << 20
	pr, pw := io.Pipe()
	var total int64
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		buf := make([]byte, 300<<10)
		for {
			time.Sleep(time.Millisecond)
			n, err := pr.Read(buf)
			total += int64(n)
			if err != nil {
				return
			}
		}
	}()
	res, err := s.Exec(t.Context(), client.ExecOptions{Cmd: "head", Args: []string{"-c", fmt.Sprint(size), "/dev/zero"}, Stdout: pw})
	must(t, err)
	must(t, pw.Close())
	<-counted
	equal(t, "exit code", res.ExitCode, 0)
	equal(t, "bytes", total, size)
}

func TestOutputDoesNotBlockWithoutAReader(t *testing.T) {
	s := start(t)
	c := services{s.Process, s.Filesystem}
	r := launch(t, c, &processpb.StartRequest{Process: bash("read -r go; head -c 16777216 /dev/zero; touch finished")})
	r.cancel()
	r.wait()
	_, err := c.SendInput(t.Context(), &processpb.SendInputRequest{Process: pid(r.pid), Input: stdin("go\n")})
	must(t, err)
	eventually(t, "it came past its output", func() bool {
		_, err := os.Stat(filepath.Join(s.home, "finished"))
		return err == nil
	})
}

func TestBackgroundChildDoesNotHoldTheCaller(t *testing.T) {
	s := start(t)
	out := s.sh(t, "(while :; do echo noise; sleep 0.01; done) & echo $! >child; echo said")
	equal(t, "what was said before the end came", strings.Contains(out, "said"), true)
	child := s.sh(t, "cat child")
	equal(t, "the child", s.sh(t, "sleep 0.2; kill -0 "+child+" && echo alive"), "alive")
	s.sh(t, "kill "+child)
}

func TestOrphansAreReaped(t *testing.T) {
	s := start(t)
	s.sh(t, "for i in 1 2 3 4 5 6 7 8; do (sleep 0.01 &) ; done")
	eventually(t, "no child of pid 1 is left", func() bool {
		children := read(t, fmt.Sprintf("/proc/%d/task/%d/children", s.cmd.Process.Pid, s.cmd.Process.Pid))
		return strings.TrimSpace(children) == ""
	})
}

func TestManyAtOnceKeepTheirOwnStatus(t *testing.T) {
	s := start(t)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			res, err := s.Exec(t.Context(), client.ExecOptions{Cmd: "/bin/sh", Args: []string{"-c", fmt.Sprintf("(true &); exit %d", i)}})
			if err != nil || res.ExitCode != i {
				t.Errorf("process %d: %v %v", i, res, err)
			}
		})
	}
	all.Wait()
}

func TestTerminal(t *testing.T) {
	s := start(t)
	size := func(cols, rows uint32) *processpb.PTY {
		return &processpb.PTY{Size: &processpb.PTY_Size{Cols: cols, Rows: rows}}
	}
	typed := func(s string) *processpb.ProcessInput {
		return &processpb.ProcessInput{Input: &processpb.ProcessInput_Pty{Pty: []byte(s)}}
	}
	protocols(t, s, func(t *testing.T, c services) {
		r := launch(t, c, &processpb.StartRequest{
			Process: &processpb.ProcessConfig{Cmd: "/bin/bash", Args: []string{"--norc", "-i"}, Envs: map[string]string{"TERM": "xterm-256color", "PS1": "> "}},
			Pty:     size(100, 30),
		})
		say := func(text string) {
			_, err := c.SendInput(t.Context(), &processpb.SendInputRequest{Process: pid(r.pid), Input: typed(text)})
			must(t, err)
		}
		say("stty size; test -t 0 && test -O $(tty) && echo mine=$((1+1))\n")
		r.until(t, "30 100")
		r.until(t, "mine=2")
		_, err := c.Update(t.Context(), &processpb.UpdateRequest{Process: pid(r.pid), Pty: size(50, 20)})
		must(t, err)
		say("stty size\n")
		r.until(t, "20 50")
		say("echo rea''dy; cat\n")
		r.until(t, "ready") // the shell has left its line editor; what is typed before is lost
		say("ping\n")
		r.until(t, "ping\r\nping") // once echoed, once by cat, which therefore runs
		say("\x03")
		r.until(t, "^C", "> ") // what is typed before the prompt is back may be lost
		say("echo code=$?\n")
		r.until(t, "code=130") // Ctrl+C works: it is the controlling terminal
		_, err = c.SendInput(t.Context(), &processpb.SendInputRequest{Process: pid(r.pid), Input: stdin("x")})
		wantCode(t, err, connect.CodeFailedPrecondition)
		_, err = c.CloseStdin(t.Context(), &processpb.CloseStdinRequest{Process: pid(r.pid)})
		wantCode(t, err, connect.CodeFailedPrecondition)
		say("exit 5\n")
		equal(t, "exit code", r.wait().end.GetExitCode(), 5)

		plain := launch(t, c, &processpb.StartRequest{Process: bash("cat")})
		_, err = c.Update(t.Context(), &processpb.UpdateRequest{Process: pid(plain.pid), Pty: size(1, 1)})
		wantCode(t, err, connect.CodeFailedPrecondition)
		_, err = c.SendInput(t.Context(), &processpb.SendInputRequest{Process: pid(plain.pid), Input: typed("x")})
		wantCode(t, err, connect.CodeFailedPrecondition)
		must(t, s.Kill(t.Context(), plain.pid, syscall.SIGKILL))
		plain.wait()
	})
}

func TestKeepaliveOnAnIdleStream(t *testing.T) {
	s := start(t)
	stream, err := s.Process.Start(withHeader(t.Context(), "Keepalive-Ping-Interval", "1"), &processpb.StartRequest{Process: bash("cat")})
	must(t, err)
	defer stream.Close()
	for stream.Receive() {
		if stream.Msg().GetEvent().GetKeepalive() != nil {
			return
		}
	}
	t.Errorf("no keepalive: %v", stream.Err())
}

func TestExecStopsWithItsContext(t *testing.T) {
	s := start(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Exec(ctx, client.ExecOptions{Cmd: "sleep", Args: []string{"1000"}, Started: func(uint32) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v", err)
	}
	eventually(t, "the process is gone", func() bool {
		list, err := s.Process.List(t.Context(), &processpb.ListRequest{})
		must(t, err)
		return len(list.GetProcesses()) == 0
	})
}

func TestExecInputAndAttach(t *testing.T) {
	s := start(t)
	var out strings.Builder
	res, err := s.Exec(t.Context(), client.ExecOptions{Cmd: "wc", Args: []string{"-c"}, Stdin: strings.NewReader(strings.Repeat("x", 200_000)), Stdout: &out})
	must(t, err)
	equal(t, "result", fmt.Sprint(res.ExitCode, strings.TrimSpace(out.String())), "0200000")
	c := services{s.Process, s.Filesystem}
	r := launch(t, c, &processpb.StartRequest{Process: bash("read -r x; echo $x; exit 4")})
	out.Reset()
	res, err = s.Attach(t.Context(), r.pid, client.ExecOptions{Stdin: strings.NewReader("hello\n"), Stdout: &out})
	must(t, err)
	equal(t, "attached", fmt.Sprint(res.ExitCode, out.String()), "4hello\n")
}

func TestTerminateEndsEverything(t *testing.T) {
	s := start(t)
	c := services{s.Process, s.Filesystem}
	r := launch(t, c, &processpb.StartRequest{Process: bash("trap 'echo bye >bye; exit' TERM; echo up; while :; do sleep 0.01; done")})
	r.until(t, "up")
	must(t, s.cmd.Process.Signal(syscall.SIGTERM))
	r.wait()
	s.logs <- <-s.logs // it has closed its log: it has ended
	must(t, s.cmd.Wait())
	equal(t, "the process had its last word", read(t, filepath.Join(s.home, "bye")), "bye\n")
}
