// Package cli is Holdfast's command line: one file for each verb. Verbs talk to
// a daemon through package client; only up, down, doctor and daemon touch the
// machine itself.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/holdfast-run/holdfast/bench"
	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/config"
	"github.com/holdfast-run/holdfast/embedded"
)

// version is stamped by the build.
var version = "dev"

// Exit codes of the command line itself. run and exec give the command's own.
const (
	exitUsage    = 2   // the command line is wrong
	exitFailed   = 125 // Holdfast could not do it
	exitNotFound = 127 // run, exec: no such command inside
)

// app is what all verbs share.
type app struct {
	in     io.Reader
	out    io.Writer
	err    io.Writer
	env    []string
	file   string // --config
	outTTY bool   // out is a terminal
	errTTY bool
	color  bool
}

// Main runs the command line and gives the exit code.
func Main(args []string) int {
	a := &app{in: os.Stdin, out: os.Stdout, err: os.Stderr, env: os.Environ()}
	a.outTTY, a.errTTY = isTerminal(os.Stdout), isTerminal(os.Stderr)
	a.color = a.outTTY && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return a.main(ctx, args)
}

func (a *app) main(ctx context.Context, args []string) int {
	root := a.root()
	root.SetArgs(args)
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	return a.report(root.ExecuteContext(ctx))
}

// codeError ends the process with a code; without an error it is silent.
type codeError struct {
	code int
	err  error
}

func (e codeError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e codeError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return codeError{exitUsage, fmt.Errorf(format, args...)}
}

// report prints an error as "holdfast: …" and gives the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	var coded codeError
	if errors.As(err, &coded) {
		if coded.err != nil {
			a.complain(coded.err)
		}
		return coded.code
	}
	if errors.Is(err, context.Canceled) {
		a.complain(errors.New("interrupted"))
		return 130
	}
	a.complain(err)
	if strings.HasPrefix(err.Error(), "unknown command ") {
		return exitUsage
	}
	return exitFailed
}

func (a *app) complain(err error) {
	for line := range strings.SplitSeq(err.Error(), "\n") {
		fmt.Fprintf(a.err, "holdfast: %s\n", line)
	}
}

// note tells something beside the answer, to a person only.
func (a *app) note(format string, args ...any) {
	if a.errTTY {
		fmt.Fprintf(a.err, format+"\n", args...)
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "holdfast",
		Short: "Sandboxes for agents that keep their files, processes and memory",
		Long: `Holdfast runs sandboxes: isolated Linux environments with a kernel of their
own (gVisor). A sandbox keeps what is in it: files, installed packages, running
processes and their memory survive pauses, crashes and restarts.

Start with:
  holdfast up                     start the daemon and prepare the base template
  holdfast run -- uname -a        run a command in a new sandbox
  holdfast shell                  open a terminal in a new sandbox
  holdfast ps                     see what there is`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate(versionText() + "\n")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w; see `%s --help`", err, cmd.CommandPath())
	})
	pf := root.PersistentFlags()
	pf.StringVar(&a.file, "config", "", "configuration `file` (default <data>/holdfast.yaml, then /etc/holdfast/holdfast.yaml)")
	keyFlags(pf, true)
	root.AddGroup(
		&cobra.Group{ID: "daemon", Title: "The daemon:"},
		&cobra.Group{ID: "sandbox", Title: "Sandboxes:"},
		&cobra.Group{ID: "keep", Title: "Keeping and copying:"},
		&cobra.Group{ID: "manage", Title: "Templates and keys:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("daemon", a.up(), a.down(), a.status(), a.doctor(), a.environ(), bench.Command(a.connect))
	add("sandbox", a.run(), a.create(), a.ps(), a.inspect(), a.exec(), a.shell(), a.logs(), a.cp(), a.remove())
	add("keep", a.pause(), a.resume(), a.snapshot(), a.fork(), a.rollback())
	add("manage", a.template(), a.key())
	root.AddCommand(a.daemon())
	strict(root)
	return root
}

// strict makes wrong arguments exit with the code for wrong usage.
func strict(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return usagef("%w; see `%s --help`", err, c.CommandPath())
			}
			return nil
		}
	}
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
}

// versionText is what --version prints: ours and gVisor's.
func versionText() string {
	return fmt.Sprintf("holdfast %s (gVisor %s, %s, %s/%s)", version, gvisorVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

func gvisorVersion() string {
	a, err := embedded.Describe(embedded.Runsc)
	if err != nil {
		return "missing: " + err.Error()
	}
	return a.Version
}

// configure loads the configuration with the flags that the verb was given.
func (a *app) configure(cmd *cobra.Command) (*config.Config, error) {
	given := map[string]string{}
	for _, k := range config.Keys {
		if f := cmd.Flags().Lookup(k.FlagName()); f != nil && f.Changed {
			given[k.Name] = f.Value.String()
		}
	}
	return config.Load(config.Sources{File: a.file, Environ: a.env, Flags: given})
}

// keyFlags adds a flag for every key that only a daemon reads, or that clients
// read too.
func keyFlags(fs *pflag.FlagSet, ofClient bool) {
	for _, k := range config.Keys {
		if k.Client == ofClient {
			fs.String(k.FlagName(), "", k.Doc+" ["+k.EnvName()+"]")
		}
	}
}

// connect gives a client of the daemon that the configuration points to.
func (a *app) connect(cmd *cobra.Command) (*client.Client, error) {
	c, err := a.configure(cmd)
	if err != nil {
		return nil, err
	}
	return dial(c)
}

func dial(c *config.Config) (*client.Client, error) {
	return client.New(client.Options{URL: c.URL, APIKey: c.APIKey, Socket: c.Socket(), Agent: "holdfast-cli/" + version})
}
