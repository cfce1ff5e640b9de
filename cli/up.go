package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/holdfast-run/holdfast/api/v1"
	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/config"
	"github.com/holdfast-run/holdfast/daemon"
	"github.com/holdfast-run/holdfast/doctor"
	"github.com/holdfast-run/holdfast/sandbox"
)

// startPatience is how long a daemon may take to serve: it reconciles what an
// earlier one left first.
const startPatience = 2 * time.Minute

func (a *app) up() *cobra.Command {
	var demo, noInstall, noBase bool
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Start the daemon and prepare what it needs",
		Long: `Check the machine, start the daemon in the background, and make the base template
when there is none yet (about a minute, once). Running it again is quick and
changes nothing; sandboxes of an earlier daemon are taken over.`,
		Example: `  holdfast up
  holdfast up --demo
  holdfast up --data /srv/holdfast --listen 0.0.0.0:7070`,
		Args: cobra.NoArgs,
	}
	keyFlags(cmd.Flags(), false)
	cmd.Flags().BoolVar(&demo, "demo", false, "then show what a sandbox can do, with times")
	cmd.Flags().BoolVar(&noInstall, "no-install", false, "do not install the Debian bootstrap tool when it is needed")
	cmd.Flags().BoolVar(&noBase, "no-base", false, "do not make the base template")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := a.configure(cmd)
		if err != nil {
			return err
		}
		cfg.URL = "" // it is this machine's daemon
		c, err := dial(cfg)
		if err != nil {
			return err
		}
		if err := a.ensureDaemon(cmd, cfg, c); err != nil {
			return err
		}
		if !noBase {
			if err := a.ensureBase(cmd.Context(), cfg, c, !noInstall); err != nil {
				return err
			}
		}
		if demo {
			if err := a.demo(cmd.Context(), c); err != nil {
				return err
			}
		}
		return a.printNext(cmd.Context(), cfg, c)
	}
	complete(a, cmd, nil, nil)
	return cmd
}

// ensureDaemon starts a daemon unless one answers.
func (a *app) ensureDaemon(cmd *cobra.Command, cfg *config.Config, c *client.Client) error {
	ctx := cmd.Context()
	if c.Healthy(ctx) == nil {
		st, err := c.Status(ctx)
		if err != nil {
			return err
		}
		fmt.Fprintf(a.out, "daemon runs already (pid %d) on %s\n", st.PID, st.Listen)
		if cmd.Flags().Changed("listen") && st.Listen != cfg.Listen {
			fmt.Fprintf(a.out, "note: it does not listen on %s; `holdfast down` first, then `holdfast up` with the new settings\n", cfg.Listen)
		}
		return nil
	}
	var wrong []error
	for _, f := range doctor.This(cfg.Data).Check() {
		if f.Severity == sandbox.Problem {
			wrong = append(wrong, &sandbox.Error{Kind: sandbox.Unsupported, Thing: strings.TrimSpace(f.Check + " " + f.Thing), Reason: f.Reason, Next: f.Next})
		}
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	p := a.progress("starting the daemon")
	pid, err := a.startDaemon(ctx, cmd.Flags(), cfg, c)
	p.Done()
	if err != nil {
		return err
	}
	fmt.Fprintf(a.out, "daemon started (pid %d), log in %s\n", pid, cfg.LogFile())
	return nil
}

// startDaemon starts this program again as a daemon of its own session, whose
// parent is soon gone, and waits until it serves.
func (a *app) startDaemon(ctx context.Context, flags *pflag.FlagSet, cfg *config.Config, c *client.Client) (pid int, err error) {
	if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
		return 0, fmt.Errorf("data folder: %w", err)
	}
	log, err := os.OpenFile(cfg.LogFile(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return 0, fmt.Errorf("daemon log: %w", err)
	}
	defer log.Close()
	from, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, fmt.Errorf("daemon log: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("daemon: %w", err)
	}
	child := exec.Command(self, daemonArgs(flags, cfg)...) //nolint:noctx // it outlives us
	child.Stdout, child.Stderr, child.Dir = log, log, "/"
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		return 0, fmt.Errorf("daemon: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		_ = child.Wait() // its log says more than its exit code
		close(ended)
	}()

	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if c.Healthy(ctx) == nil {
			return child.Process.Pid, nil
		}
		select {
		case <-ended:
			if c.Healthy(ctx) == nil { // another `up` was quicker, and its daemon holds the folder
				return daemon.Holder(cfg.Data)
			}
			return 0, fmt.Errorf("the daemon did not start:\n%s", lastLines(cfg.LogFile(), from, 5))
		case <-ctx.Done():
			return 0, fmt.Errorf("the daemon (pid %d) does not serve yet: %w; its log is %s", child.Process.Pid, ctx.Err(), cfg.LogFile())
		case <-tick.C:
		}
	}
}

// daemonArgs hands on what this command was told. Variables are inherited.
func daemonArgs(flags *pflag.FlagSet, cfg *config.Config) []string {
	args := []string{"daemon", "--data=" + cfg.Data}
	if f := flags.Lookup("config"); f != nil && f.Changed {
		if abs, err := filepath.Abs(f.Value.String()); err == nil {
			args = append(args, "--config="+abs)
		}
	}
	for _, k := range config.Keys {
		if f := flags.Lookup(k.FlagName()); f != nil && f.Changed && !k.Client {
			args = append(args, "--"+k.FlagName()+"="+f.Value.String())
		}
	}
	return args
}

// lastLines gives the last n lines of a file after an offset.
func lastLines(path string, from int64, n int) string {
	f, err := os.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, from, 1<<20))
	if err != nil {
		return err.Error()
	}
	text := strings.TrimSpace(string(b))
	if _, why, ok := strings.Cut(text, "panic: "); ok {
		return "panic: " + firstLine(why, 500)
	}
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		lines[i] = strings.TrimPrefix(l, "holdfast: ")
	}
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// ensureBase makes the base template unless it is there.
func (a *app) ensureBase(ctx context.Context, cfg *config.Config, c *client.Client, install bool) error {
	switch _, err := c.Template(ctx, sandbox.DefaultTemplate); {
	case err == nil:
		return nil
	case !sandbox.IsKind(err, sandbox.NotFound):
		return err
	}
	if cfg.Templates.Base == "" || strings.HasPrefix(cfg.Templates.Base, "debootstrap://") {
		if err := a.ensureBootstrap(ctx, install); err != nil {
			return err
		}
	}
	fmt.Fprintln(a.out, "making the base template, which takes about a minute")
	start := time.Now()
	t, err := a.importTemplate(ctx, c, v1.ImportRequest{Name: sandbox.DefaultTemplate}, nil)
	if err != nil {
		return fmt.Errorf("base template: %w", err)
	}
	fmt.Fprintf(a.out, "base template ready after %s: %s of files, %s of memory\n",
		time.Since(start).Round(100*time.Millisecond), size(t.FilesBytes), size(t.ImageBytes))
	return nil
}

// ensureBootstrap installs the tool that makes the base template on Debian.
func (a *app) ensureBootstrap(ctx context.Context, install bool) error {
	if _, err := exec.LookPath("mmdebstrap"); err == nil {
		return nil
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return nil // not a Debian: the import says what else is possible
	}
	if !install {
		return errors.New("mmdebstrap is missing, which makes the base template; apt-get install mmdebstrap, or set templates.base to an image")
	}
	fmt.Fprintln(a.out, "installing mmdebstrap, which makes the base template")
	p := a.progress("installing mmdebstrap")
	defer p.Done()
	cmd := exec.CommandContext(ctx, apt, "install", "-y", "--no-install-recommends", "mmdebstrap")
	cmd.Env = append(a.env, "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mmdebstrap cannot be installed: %w\n%s\nrun apt-get update and try again, or set templates.base to an image", err, lastOf(string(out), 3))
	}
	return nil
}

func lastOf(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// printNext tells how to go on.
func (a *app) printNext(ctx context.Context, cfg *config.Config, c *client.Client) error {
	vars, err := variables(ctx, c, cfg)
	if err != nil {
		return err
	}
	value := map[string]string{}
	for _, v := range vars {
		value[v.Name] = v.Value
	}
	holdfast := "holdfast"
	if cfg.Data != config.DefaultData && os.Getenv("HOLDFAST_DATA") != cfg.Data {
		holdfast += " --data " + shellQuote(cfg.Data)
	}
	fmt.Fprintf(a.out, `
API      %s
API key  %s

For the E2B and Cube SDKs in this shell:
  eval "$(%s env)"
Next:
  %s run -- python3 -c 'print(6*7)'
  %s shell
  %s ps
`, value["E2B_API_URL"], value["E2B_API_KEY"], holdfast, holdfast, holdfast, holdfast)
	return nil
}
