package driver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/holdfast-run/holdfast/cmd/runsc/tune"
	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
)

// launch begins an instance and returns when its processes run. On error both of
// its processes are dead.
//
// What can go side by side does: the kernel boots (or has done so already, in a
// spare), the gofer starts, the network's addresses are taken over, and processes
// join cgroups, for which the host's kernel takes its time.
func (d *driver) launch(dir string, p wire.LaunchParams) (sandbox, gofer int, err error) {
	conf, err := d.configs.get(p.Platform)
	if err != nil {
		return 0, 0, err
	}
	s, err := d.kernel(conf, dir, p)
	if err != nil {
		return 0, 0, err
	}
	g, err := goferProcess(conf, dir, p.ID, s.files)
	if err != nil {
		s.end(d)
		return 0, 0, err
	}
	var links *boot.CreateLinksAndRoutesArgs
	var ready, served errgroup.Group
	served.Go(func() error {
		return d.startIn(g, specs.LinuxNamespace{Type: specs.NetworkNamespace}, false, p.Cgroups)
	})
	ready.Go(func() error { return s.boot(d, p) })
	ready.Go(func() error {
		var err error
		if links, err = takeLinks(conf.Config, p.NetNS); err != nil {
			return fmt.Errorf("network: %w", err)
		}
		return nil
	})
	err = ready.Wait()
	if links != nil {
		defer closeAll(links.Files)
	}
	if err == nil {
		err = run(dir, p, links) // needs the gofer late: it may still be starting
	}
	if err = errors.Join(err, served.Wait()); err != nil {
		s.end(d)
		kill(g)
		return 0, 0, explain(dir, err)
	}
	return s.cmd.Process.Pid, g.Process.Pid, nil
}

// run has a booted kernel take over the network and start or restore processes.
func run(dir string, p wire.LaunchParams, links *boot.CreateLinksAndRoutesArgs) error {
	ctl, err := connect(dir)
	if err != nil {
		return err
	}
	defer ctl.Close()
	links.IsRestore = p.Image != ""
	if err := ctl.Call(boot.ContMgrSetNetworkArgs, links, nil); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	if p.Image != "" {
		return restore(ctl, p.Image)
	}
	return ctl.Call(boot.ContMgrRootContainerStart, &p.ID, nil)
}

// kernel gives the kernel for an instance: a spare that has booted, or one that is
// yet to boot.
func (d *driver) kernel(conf *configuration, dir string, p wire.LaunchParams) (*kernel, error) {
	if p.Spare == "" {
		return newKernel(conf, dir, p)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.spares[p.Spare]
	if s == nil {
		return nil, fmt.Errorf("there is no spare kernel %s", p.Spare)
	}
	delete(d.spares, p.Spare)
	return s, nil
}

// prepare boots a spare kernel, which a later launch takes.
func (d *driver) prepare(dir string, p wire.LaunchParams) (sandbox int, err error) {
	conf, err := d.configs.get(p.Platform)
	if err != nil {
		return 0, err
	}
	s, err := newKernel(conf, dir, p)
	if err != nil {
		return 0, err
	}
	s.cmd.Env = append(s.cmd.Env, tune.SpareEnv+"=1")
	if err := s.boot(d, p); err != nil {
		s.end(d)
		return 0, explain(dir, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spares[p.ID] = s
	return s.cmd.Process.Pid, nil
}

// discard ends a spare kernel.
func (d *driver) discard(id string) {
	d.mu.Lock()
	s := d.spares[id]
	delete(d.spares, id)
	d.mu.Unlock()
	if s != nil {
		s.end(d)
	}
}

// kernel is a sandbox process and what its gofer will need of it.
type kernel struct {
	cmd    *exec.Cmd
	booted *os.File   // one byte when it listens, end of file when it failed
	files  []*os.File // the gofer's ends, one for each mount
	ready  bool
}

// boot starts a kernel's process and returns when it has booted and is in its
// cgroups with all its children. User code runs only later.
func (s *kernel) boot(d *driver, p wire.LaunchParams) error {
	if s.ready {
		return nil
	}
	defer s.booted.Close()
	var g errgroup.Group
	g.Go(func() error {
		// It has no use for a network namespace: packet sockets come from outside.
		return d.startIn(s.cmd, specs.LinuxNamespace{Type: specs.NetworkNamespace}, true, p.Cgroups)
	})
	if n, err := s.booted.Read(make([]byte, 1)); n != 1 {
		return errors.Join(fmt.Errorf("the sandbox's kernel failed to boot: %w", err), g.Wait())
	}
	s.ready = true
	return g.Wait()
}

// end kills a kernel and forgets it.
func (s *kernel) end(d *driver) {
	closeAll(s.files)
	if s.cmd.Process == nil {
		closeAll(s.cmd.ExtraFiles)
		s.booted.Close()
		return
	}
	kill(s.cmd)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.ended, s.cmd.Process.Pid)
}

// startIn starts a process in namespaces of its own, with the network namespace
// given, and moves it into cgroups. The files that it inherits are closed here.
func (d *driver) startIn(cmd *exec.Cmd, network specs.LinuxNamespace, remember bool, cgroups []string) error {
	err := func() error {
		// One at a time: the Go library writes the id maps of a new process through
		// descriptors that one started at the same moment would inherit.
		d.starting.Lock()
		defer d.starting.Unlock()
		return specutils.StartInNS(cmd, []specs.LinuxNamespace{
			{Type: specs.UserNamespace}, {Type: specs.IPCNamespace}, {Type: specs.MountNamespace},
			{Type: specs.UTSNamespace}, {Type: specs.PIDNamespace}, network,
		})
	}()
	closeAll(cmd.ExtraFiles)
	if err != nil {
		return fmt.Errorf("start %s: %w", cmd.Args[0], err)
	}
	go d.reap(cmd.Process, remember)
	if err := join(cgroups, []int{cmd.Process.Pid}); err != nil {
		return err
	}
	return joinChildren(cgroups, []int{cmd.Process.Pid})
}

// kill ends a process, if it was started, and waits until it is gone.
func kill(cmd *exec.Cmd) {
	if cmd.Process != nil {
		_ = cmd.Process.Kill()
		_, _ = cmd.Process.Wait() // or the reaper has
	}
}

// explain adds what a failed process printed.
func explain(dir string, err error) error {
	b, rerr := os.ReadFile(filepath.Join(dir, panicName))
	if rerr != nil || len(b) == 0 {
		return err
	}
	if len(b) > 1024 {
		b = b[len(b)-1024:]
	}
	return fmt.Errorf("%w; it printed: %s", err, b)
}
