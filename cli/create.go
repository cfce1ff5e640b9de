package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "github.com/holdfast-run/holdfast/api/v1"
)

// createFlags are what create and run share.
type createFlags struct {
	req      v1.CreateRequest
	timeout  time.Duration
	metadata []string
	env      []string
	offline  bool
	private  bool
	filesOff bool // --drop-memory
	noWake   bool
}

func (f *createFlags) add(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.StringVarP(&f.req.Template, "template", "t", "base", "`template` or snapshot to start from")
	fs.StringVarP(&f.req.Name, "name", "n", "", "`name` to use instead of the id")
	fs.DurationVar(&f.timeout, "timeout", 0, "`time` until it is paused, counted anew by each command (default 5m)")
	fs.StringVar(&f.req.OnTimeout, "on-timeout", "pause", "what happens then: pause or kill")
	fs.BoolVar(&f.filesOff, "drop-memory", false, "keep files only when paused by timeout")
	fs.BoolVar(&f.noWake, "no-wake", false, "do not resume when traffic comes in")
	fs.IntVar(&f.req.Resources.CPUs, "cpus", 0, "cores (default: the template's)")
	fs.IntVar(&f.req.Resources.MemoryMB, "memory", 0, "memory in `MiB` (default: the template's)")
	fs.IntVar(&f.req.Resources.DiskMB, "disk", 0, "disk in `MiB` above the template (default: the template's)")
	fs.StringArrayVarP(&f.env, "env", "e", nil, "environment variable `KEY=VALUE`, or KEY to pass this shell's; may be repeated")
	fs.StringArrayVarP(&f.metadata, "metadata", "m", nil, "label `key=value`; may be repeated")
	fs.BoolVar(&f.offline, "offline", false, "no way out to the internet")
	fs.StringSliceVar(&f.req.Network.AllowOut, "allow-out", nil, "`addresses` or networks it may reach in any case")
	fs.StringSliceVar(&f.req.Network.DenyOut, "deny-out", nil, "`addresses` or networks it may not reach")
	fs.BoolVar(&f.private, "private", false, "its ports need the traffic token")
}

func (f *createFlags) request(environ []string) (v1.CreateRequest, error) {
	r := f.req
	var err error
	if r.Metadata, err = pairs("--metadata", f.metadata); err != nil {
		return r, err
	}
	if r.Env, err = environment(f.env, environ); err != nil {
		return r, err
	}
	if f.timeout < 0 {
		return r, usagef("--timeout %v must not be negative", f.timeout)
	}
	r.TimeoutSeconds = f.timeout.Seconds()
	r.KeepMemory = unless(f.filesOff)
	r.AutoResume = unless(f.noWake)
	r.Network.AllowInternet = unless(f.offline)
	r.Network.AllowPublicTraffic = unless(f.private)
	return r, nil
}

// unless gives false when set, and otherwise leaves the daemon's default.
func unless(set bool) *bool {
	if !set {
		return nil
	}
	no := false
	return &no
}

// environment parses -e arguments; a KEY alone takes its value from environ.
func environment(args, environ []string) (map[string]string, error) {
	out := map[string]string{}
	for _, arg := range args {
		k, v, ok := strings.Cut(arg, "=")
		if k == "" {
			return nil, usagef("--env %q is not KEY=VALUE or KEY", arg)
		}
		if !ok {
			for _, e := range environ {
				if name, value, _ := strings.Cut(e, "="); name == k {
					v, ok = value, true
				}
			}
			if !ok {
				continue // as docker does: nothing to pass
			}
		}
		out[k] = v
	}
	return out, nil
}

func (a *app) create() *cobra.Command {
	f := &createFlags{}
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a sandbox and print its id",
		Long: `Create a sandbox that runs, and print its id.

After its timeout it is paused: it keeps everything and uses no memory. Any
command, or traffic to one of its ports, brings it back.`,
		Example: `  holdfast create --name dev
  holdfast create -t base --cpus 4 --memory 2048 -e TOKEN
  id=$(holdfast create --offline)`,
		Args: cobra.NoArgs,
	}
	f.add(cmd)
	asJSON := jsonFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		req, err := f.request(a.env)
		if err != nil {
			return err
		}
		c, err := a.connect(cmd)
		if err != nil {
			return err
		}
		p := a.progress("creating")
		sb, err := c.Create(cmd.Context(), req)
		p.Done()
		if err != nil {
			return err
		}
		if *asJSON {
			return a.printJSON(sb.Sandbox)
		}
		fmt.Fprintln(a.out, sb.ID)
		return nil
	}
	complete(a, cmd, nil, map[string]completer{"template": completeTemplates})
	return cmd
}
