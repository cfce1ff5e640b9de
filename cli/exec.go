package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/sandbox"
)

// execFlags say how a command is run inside.
type execFlags struct {
	stdin bool
	tty   bool
	user  string
	dir   string
	env   []string
}

func (a *app) exec() *cobra.Command {
	var x execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX [--] COMMAND [ARG...]",
		Short: "Run a command in a sandbox",
		Long: `Run a command in a sandbox, resuming it when it is paused, and exit with the
command's code (125 when Holdfast itself failed, 127 when there is no such
command). The sandbox's timeout counts from the end of the command.`,
		Example: `  holdfast exec dev -- ls -l /workspace
  holdfast exec -u root dev -- apt-get install -y jq
  tar c src | holdfast exec -i dev -- tar x -C /workspace
  holdfast exec -it dev -- python3`,
		Args: cobra.MinimumNArgs(2),
	}
	cmd.Flags().SetInterspersed(false)
	cmd.Flags().BoolVarP(&x.stdin, "interactive", "i", false, "pass standard input")
	cmd.Flags().BoolVarP(&x.tty, "tty", "t", false, "run it on a terminal")
	cmd.Flags().StringVarP(&x.user, "user", "u", "", "`user` inside (default: the sandbox's)")
	cmd.Flags().StringVarP(&x.dir, "workdir", "w", "", "`folder` inside (default: the sandbox's)")
	cmd.Flags().StringArrayVarP(&x.env, "env", "e", nil, "environment variable `KEY=VALUE`, or KEY to pass this shell's; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		sb, err := a.wake(cmd, args[0])
		if err != nil {
			return err
		}
		args = args[1:]
		if args[0] == "--" {
			args = args[1:]
		}
		if len(args) == 0 {
			return usagef("no command given; see `holdfast exec --help`")
		}
		return a.execute(cmd.Context(), sb, args, x)
	}
	complete(a, cmd, completeSandboxes, nil)
	return cmd
}

// wake connects to a sandbox, which resumes a paused one, and says so when
// something of it was lost.
func (a *app) wake(cmd *cobra.Command, ref string) (*client.Sandbox, error) {
	c, err := a.connect(cmd)
	if err != nil {
		return nil, err
	}
	p := a.progress("resuming")
	sb, resumed, err := c.Connect(cmd.Context(), ref, 0)
	p.Done()
	if err != nil {
		return nil, err
	}
	if resumed {
		a.tellRecovery(sb)
	}
	return sb, nil
}

func (a *app) tellRecovery(sb *client.Sandbox) {
	if sb.Recovered != "" && sb.Recovered != string(sandbox.DepthMemory) {
		fmt.Fprintf(a.err, "holdfast: note: sandbox %s came back from its %s, not from memory: %s\n", shortID(sb.ID), sb.Recovered, orDash(sb.Reason))
	}
}

// execute runs args inside and gives the code of its end as an error.
func (a *app) execute(ctx context.Context, sb *client.Sandbox, args []string, x execFlags) error {
	env, err := environment(x.env, a.env)
	if err != nil {
		return err
	}
	// A signal to us is passed on to the command first; only a second one breaks off.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	c := sb.Command(ctx, args[0], args[1:]...)
	c.Env, c.Dir, c.User, c.Stdout, c.Stderr = env, x.dir, x.user, a.out, a.err
	if x.stdin {
		c.Stdin = a.in
	}
	fd := -1
	if x.tty {
		var restore func()
		if fd, restore, err = a.attachTerminal(c); err != nil {
			return err
		}
		defer restore()
	}
	if err := c.Start(); err != nil {
		// With no folder of ours to be wrong, it is the command that is.
		if sandbox.IsKind(err, sandbox.InvalidRequest) && x.dir == "" {
			return codeError{exitNotFound, err}
		}
		return err
	}
	if fd >= 0 {
		go followSize(ctx, fd, c)
	}
	go passSignals(signals, c, cancel)
	go keepAlive(ctx, sb)
	return exitCode(c.Wait())
}

// passSignals asks the command to end at the first signal and lets go at the
// second. Some senders signal a whole process group and us besides, which is one.
func passSignals(signals <-chan os.Signal, c *client.Cmd, cancel func()) {
	if _, ok := <-signals; !ok {
		return
	}
	first := time.Now()
	if c.Terminate() != nil {
		cancel()
		return
	}
	for range signals {
		if time.Since(first) > sameSignal {
			cancel()
			return
		}
	}
}

// sameSignal is how close two signals count as one.
const sameSignal = 500 * time.Millisecond

// keepAlive moves the deadline on while a command is attached, so that the
// timeout counts from its end.
func keepAlive(ctx context.Context, sb *client.Sandbox) {
	d := time.Duration(sb.Lifecycle.TimeoutSeconds * float64(time.Second))
	if d <= 0 {
		d = sandbox.DefaultTimeout
	}
	extended := *sb // Extend updates the description it is called on
	tick := time.NewTicker(max(time.Second, min(d/3, time.Minute)))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			_ = extended.Extend(ctx, d) // paused by hand meanwhile: the command's stream will say it
		}
	}
}

// exitCode makes the end of a command the end of this process.
func exitCode(err error) error {
	var exit *client.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	if exit.Code > 0 {
		return codeError{code: exit.Code}
	}
	name, isSignal := strings.CutPrefix(exit.Status, "signal: ")
	for s := syscall.Signal(1); isSignal && s < 65; s++ {
		if n, _, _ := strings.Cut(name, " (core dumped)"); s.String() == n {
			return codeError{code: 128 + int(s)}
		}
	}
	return codeError{exitFailed, fmt.Errorf("command ended: %s", exit.Status)}
}

// attachTerminal makes c run on a terminal like ours and ours raw. It gives our
// terminal's descriptor, -1 when it is not to be followed, and what undoes it.
// Where ours is none, a usual size is taken.
func (a *app) attachTerminal(c *client.Cmd) (fd int, restore func(), err error) {
	c.TTY = &client.Size{Cols: 80, Rows: 24}
	if c.Env["TERM"] == "" {
		c.Env["TERM"] = "xterm-256color"
		if t := os.Getenv("TERM"); t != "" && t != "dumb" {
			c.Env["TERM"] = t
		}
	}
	in, ok := a.in.(*os.File)
	if !ok || !isTerminal(in) {
		return -1, func() {}, nil
	}
	fd = int(in.Fd()) //nolint:gosec // a file descriptor fits
	if w, h, err := term.GetSize(fd); err == nil {
		c.TTY = &client.Size{Cols: w, Rows: h}
	}
	if c.Stdin == nil { // output on a terminal without input: leave ours alone
		return fd, func() {}, nil
	}
	before, err := term.MakeRaw(fd)
	if err != nil {
		return -1, nil, fmt.Errorf("terminal cannot be made raw: %w", err)
	}
	return fd, func() { _ = term.Restore(fd, before) }, nil // nothing more can be done
}

// followSize hands changes of our terminal's size on until ctx is done.
func followSize(ctx context.Context, fd int, c *client.Cmd) {
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	for {
		select {
		case <-ctx.Done():
			return
		case <-resized:
			if w, h, err := term.GetSize(fd); err == nil {
				_ = c.Resize(client.Size{Cols: w, Rows: h}) // it may have ended just now
			}
		}
	}
}
