package process

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/holdfast-run/holdfast/guest/account"
	"github.com/holdfast-run/holdfast/guest/proto/processpb"
)

// launch starts what req asks for as user u. Its output waits in the pipes until run.
func (s *Service) launch(u account.User, req *processpb.StartRequest) (*process, error) {
	config := req.GetProcess()
	if config.GetCmd() == "" {
		return nil, invalid("process.cmd is empty; name the program to run")
	}
	env := s.environment(u, config.GetEnvs())
	cwd, err := s.workingDir(u, config.Cwd)
	if err != nil {
		return nil, err
	}
	path, err := lookPath(u, config.GetCmd(), cwd, env["PATH"])
	if err != nil {
		return nil, invalid("cannot start %q: %v", config.GetCmd(), err)
	}
	io, err := openStdio(u, req)
	if err != nil {
		return nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("cannot start %q: %w", config.GetCmd(), err))
	}
	defer io.closeChild()
	attr := &syscall.ProcAttr{
		Dir:   cwd,
		Env:   flatten(env),
		Files: []uintptr{io.child[0].Fd(), io.child[1].Fd(), io.child[2].Fd()},
		Sys: &syscall.SysProcAttr{
			Setpgid: req.Pty == nil,
			Setsid:  req.Pty != nil, // a terminal belongs to a session
			Setctty: req.Pty != nil,
		},
	}
	if os.Geteuid() == 0 {
		attr.Sys.Credential = &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
	}
	pid, exit, err := s.reaper.Start(path, append([]string{config.GetCmd()}, config.GetArgs()...), attr)
	if err != nil {
		io.closeParent()
		return nil, startError(config.GetCmd(), err)
	}
	return &process{
		pid: pid, config: config, tag: req.Tag,
		hub:     newHub(),
		input:   io.input,
		pty:     req.Pty != nil,
		writing: make(chan struct{}, 1),
		outputs: io.outputs,
		exit:    exit,
	}, nil
}

func startError(cmd string, err error) error {
	code := connect.CodeInvalidArgument
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) {
		code = connect.CodeResourceExhausted
	}
	return connect.NewError(code, fmt.Errorf("cannot start %q: %w", cmd, err))
}

// environment layers, weakest first: what follows from the user, what the host
// gave the sandbox, what the request says.
func (s *Service) environment(u account.User, request map[string]string) map[string]string {
	env := u.Env()
	maps.Copy(env, s.identity.Env())
	maps.Copy(env, request)
	return env
}

func flatten(env map[string]string) []string {
	list := make([]string, 0, len(env))
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

// workingDir is where the process starts. One that was asked for must be there;
// the defaults fall back from the sandbox's to the user's home to "/".
func (s *Service) workingDir(u account.User, asked *string) (string, error) {
	workdir := s.identity.Workdir()
	if asked != nil && *asked != "" {
		dir, err := u.Resolve(*asked, workdir)
		if err == nil {
			err = enterable(u, dir)
		}
		if err != nil {
			return "", invalid("cwd '%s' cannot be used: %v", *asked, err)
		}
		return dir, nil
	}
	for _, dir := range []string{workdir, u.Home} {
		if path, err := u.Resolve(dir, ""); dir != "" && err == nil && enterable(u, path) == nil {
			return path, nil
		}
	}
	return "/", nil
}

func enterable(u account.User, dir string) error {
	return u.Do(func() error {
		fi, err := os.Stat(dir)
		if errors.Is(err, os.ErrNotExist) {
			return errors.New("it does not exist; create it first")
		}
		if err != nil {
			return err
		}
		if !fi.IsDir() {
			return errors.New("it is not a directory")
		}
		return nil
	})
}

// lookPath finds the program: a name without a slash in path, another from cwd.
func lookPath(u account.User, cmd, cwd, path string) (string, error) {
	if strings.IndexByte(cmd, 0) >= 0 {
		return "", account.ErrNUL
	}
	if strings.Contains(cmd, "/") {
		if !filepath.IsAbs(cmd) {
			cmd = filepath.Join(cwd, cmd)
		}
		return cmd, nil // exec itself says what is wrong with it
	}
	found := ""
	err := u.Do(func() error {
		for _, dir := range filepath.SplitList(path) {
			file := filepath.Join(cwd, dir, cmd)
			if filepath.IsAbs(dir) {
				file = filepath.Join(dir, cmd)
			}
			if fi, err := os.Stat(file); err == nil && !fi.IsDir() && fi.Mode()&0o111 != 0 {
				found = file
				return nil
			}
		}
		return fmt.Errorf("no such program in PATH %s", path)
	})
	return found, err
}

// stdio is both sides of a process's standard streams.
type stdio struct {
	child   [3]*os.File
	input   *os.File
	outputs []output
}

func openStdio(u account.User, req *processpb.StartRequest) (*stdio, error) {
	if req.Pty != nil {
		return openTerminal(u, req.Pty)
	}
	return openPipes(req.Stdin == nil || *req.Stdin)
}

func openTerminal(u account.User, want *processpb.PTY) (*stdio, error) {
	master, tty, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("open a terminal: %w", err)
	}
	// Programs open their terminal by name: it must be the user's. Where devpts
	// does not let us, they still have it as standard input.
	_ = tty.Chown(int(u.UID), int(u.GID))
	size := want.GetSize()
	if size.GetCols() == 0 || size.GetRows() == 0 {
		size = &processpb.PTY_Size{Cols: 80, Rows: 24}
	}
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, winsize(size)); err != nil {
		_ = master.Close()
		_ = tty.Close()
		return nil, fmt.Errorf("set the terminal's size: %w", err)
	}
	return &stdio{
		child:   [3]*os.File{tty, tty, tty},
		input:   master,
		outputs: []output{{master, ptyChunk, wrapPTY}},
	}, nil
}

func openPipes(stdin bool) (s *stdio, err error) {
	s = &stdio{}
	defer func() {
		if err != nil {
			s.closeChild()
			s.closeParent()
		}
	}()
	if stdin {
		s.child[0], s.input, err = os.Pipe()
	} else {
		s.child[0], err = os.Open(os.DevNull)
	}
	if err != nil {
		return s, err
	}
	for i, wrap := range []wrapper{wrapStdout, wrapStderr} {
		r, w, err := os.Pipe()
		if err != nil {
			return s, err
		}
		s.child[i+1] = w
		s.outputs = append(s.outputs, output{r, pipeChunk, wrap})
	}
	return s, nil
}

func (s *stdio) closeChild() {
	for _, f := range s.child {
		_ = f.Close() // a terminal is there three times; closing nil or twice only errs
	}
}

func (s *stdio) closeParent() {
	if s.input != nil {
		_ = s.input.Close()
	}
	for _, o := range s.outputs {
		_ = o.file.Close()
	}
}

func invalid(format string, args ...any) error {
	return connect.NewError(connect.CodeInvalidArgument, fmt.Errorf(format, args...))
}
