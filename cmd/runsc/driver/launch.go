package driver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostos"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/donation"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/holdfast-run/holdfast/cmd/runsc/filters"
	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
)

// mounts that the gofer serves, in the order of the OCI configuration: the root
// and the share.
var mounts = specutils.GoferMountConfFlags{
	{Lower: specutils.Lisafs, Upper: specutils.NoOverlay},
	{Lower: specutils.Lisafs, Upper: specutils.NoOverlay},
}

// pair is the two processes of an instance that the host sees.
type pair struct {
	sandbox, gofer *exec.Cmd
	booted         *os.File // one byte when the sandbox listens, end of file when it failed
}

// launch begins an instance and returns when its processes run. On error both of
// its processes are dead.
func (d *driver) launch(dir string, p wire.LaunchParams) (sandbox, gofer int, err error) {
	conf, err := d.configs.get(p.Platform)
	if err != nil {
		return 0, 0, err
	}
	c, err := prepare(conf, dir, p)
	if err != nil {
		return 0, 0, err
	}
	defer c.booted.Close()
	defer func() {
		if err != nil {
			kill(c.sandbox, c.gofer)
			d.forget(c.sandbox)
			err = explain(dir, err)
		}
	}()
	if err := d.begin(c, p.NetNS); err != nil {
		return 0, 0, err
	}
	pids := []int{c.sandbox.Process.Pid, c.gofer.Process.Pid}
	// Joining a cgroup waits for the kernel; meanwhile the sandbox boots. User code
	// runs only after both.
	var ready errgroup.Group
	ready.Go(func() error { return join(p.Cgroups, pids) })
	ready.Go(func() error {
		if n, err := c.booted.Read(make([]byte, 1)); n != 1 {
			return fmt.Errorf("the sandbox's kernel failed to boot: %w", err)
		}
		return nil
	})
	if err := ready.Wait(); err != nil {
		return 0, 0, err
	}
	if err := joinChildren(p.Cgroups, pids); err != nil {
		return 0, 0, err
	}
	ctl, err := connect(dir)
	if err != nil {
		return 0, 0, err
	}
	defer ctl.Close()
	if err := network(ctl, conf.Config, p.NetNS, p.Image != ""); err != nil {
		return 0, 0, fmt.Errorf("network: %w", err)
	}
	if p.Image != "" {
		err = restore(ctl, p.Image)
	} else {
		err = ctl.Call(boot.ContMgrRootContainerStart, &p.ID, nil)
	}
	if err != nil {
		return 0, 0, err
	}
	return pids[0], pids[1], nil
}

// begin starts both processes side by side.
func (d *driver) begin(c *pair, netns string) error {
	namespaces := []specs.LinuxNamespace{
		{Type: specs.UserNamespace}, {Type: specs.IPCNamespace}, {Type: specs.MountNamespace},
		{Type: specs.UTSNamespace}, {Type: specs.PIDNamespace},
	}
	var both errgroup.Group
	both.Go(func() error {
		if err := specutils.StartInNS(c.sandbox, append(namespaces[:5:5], specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: netns})); err != nil {
			return fmt.Errorf("start sandbox: %w", err)
		}
		go d.reap(c.sandbox.Process, true)
		return nil
	})
	both.Go(func() error {
		// The gofer needs no network: an empty namespace of its own.
		if err := specutils.StartInNS(c.gofer, append(namespaces[:5:5], specs.LinuxNamespace{Type: specs.NetworkNamespace})); err != nil {
			return fmt.Errorf("start gofer: %w", err)
		}
		go d.reap(c.gofer.Process, false)
		return nil
	})
	err := both.Wait()
	for _, cmd := range []*exec.Cmd{c.sandbox, c.gofer} {
		for _, f := range cmd.ExtraFiles {
			f.Close() // the child has its own
		}
	}
	return err
}

// prepare makes the command lines of both processes and what connects them. The
// flags are those of gVisor's container.createGoferProcess and
// sandbox.createSandboxProcess.
func prepare(conf *configuration, dir string, p wire.LaunchParams) (_ *pair, err error) {
	var opened []io.Closer
	defer func() {
		if err != nil {
			for _, f := range opened {
				f.Close()
			}
		}
	}()
	keep := func(f *os.File, e error) *os.File {
		if e != nil {
			err = errors.Join(err, e)
			return nil
		}
		opened = append(opened, f)
		return f
	}
	pipe := func() (*os.File, *os.File) {
		r, w, e := os.Pipe()
		return keep(r, e), keep(w, e)
	}
	sockets := func() (*os.File, *os.File) {
		fds, e := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		return keep(os.NewFile(uintptr(fds[0]), "sandbox end"), e), keep(os.NewFile(uintptr(fds[1]), "gofer end"), e)
	}
	var sandboxIO, goferIO []*os.File
	for range mounts {
		s, g := sockets()
		sandboxIO, goferIO = append(sandboxIO, s), append(goferIO, g)
	}
	resolved, resolver := pipe() // the gofer tells the mounts as it found them
	booted, boots := pipe()
	unasked, asker := sockets() // for mounts that the gofer may not open itself: none
	socket := keep(controlSocket(dir))
	panics := keep(os.OpenFile(filepath.Join(dir, "panic.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))
	printed := keep(os.OpenFile(filepath.Join(dir, "guest.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))
	nothing := keep(os.OpenFile(os.DevNull, os.O_RDONLY, 0))
	goferSpec := keep(os.Open(filepath.Join(dir, "config.json")))
	sandboxSpec := keep(os.Open(filepath.Join(dir, "config.json")))
	if err != nil {
		return nil, err
	}
	host, err := hostos.TotalSystemMemory()
	if err != nil {
		return nil, err
	}
	unasked.Close()

	var gofer, before, after donation.Agency
	gofer.Donate("spec-fd", goferSpec)
	gofer.Donate("mounts-fd", resolver)
	gofer.Donate("rpc-fd", asker)
	gofer.Donate("io-fds", goferIO...)
	g := conf.command("runsc-gofer", goferProcs)
	g.Stderr = panics
	g.Args = append(g.Args, "gofer", "--bundle="+dir, "--gofer-mount-confs="+mounts.String())
	conf.donateFilters(g, gofer.Transfer(g, 3))
	g.Args = append(g.Args, p.ID)

	before.Donate("panic-log-fd", panics)
	after.Donate("io-fds", sandboxIO...)
	after.Donate("mounts-fd", resolved)
	after.Donate("start-sync-fd", boots)
	after.Donate("controller-fd", socket)
	after.Donate("spec-fd", sandboxSpec)
	after.Donate("stdio-fds", nothing, printed, printed)
	procs := runtime.NumCPU()
	if p.CPUs > 0 {
		procs = min(procs, p.CPUs)
	}
	s := conf.command("runsc-sandbox", procs)
	next := before.Transfer(s, 3)
	s.Args = append(s.Args, "boot", "--bundle="+dir, "--gofer-mount-confs="+mounts.String(), "--apply-caps", "--setup-root",
		"--total-host-memory="+strconv.FormatUint(host, 10), "--total-memory="+strconv.FormatUint(nonzero(p.Memory, host), 10))
	if p.CPUs > 0 {
		s.Args = append(s.Args, "--cpu-num="+strconv.Itoa(p.CPUs))
	}
	conf.donateFilters(s, after.Transfer(s, next))
	s.Args = append(s.Args, p.ID)
	return &pair{sandbox: s, gofer: g, booted: booted}, nil
}

func nonzero(n, otherwise uint64) uint64 {
	if n == 0 {
		return otherwise
	}
	return n
}

// goferProcs is enough for a gofer, which opens files now and then.
const goferProcs = 2

// command gives this program to be run as the root of a user namespace in which
// every user is himself, on so many cpus at a time.
func (c *configuration) command(name string, procs int) *exec.Cmd {
	cmd := exec.Command(specutils.ExePath, c.flags...)
	cmd.Args[0] = name
	cmd.Env = []string{"GOMAXPROCS=" + strconv.Itoa(procs)}
	everybody := []syscall.SysProcIDMap{{Size: 1<<32 - 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:      true, // instances outlive the driver and get none of its signals
		Credential:  &syscall.Credential{},
		UidMappings: everybody,
		GidMappings: everybody,
	}
	return cmd
}

// donateFilters passes the seccomp programs as file descriptor fd.
func (c *configuration) donateFilters(cmd *exec.Cmd, fd int) {
	if c.filters == nil {
		return
	}
	dup, err := unix.FcntlInt(c.filters.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return
	}
	cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(dup), "filters"))
	cmd.Env = append(cmd.Env, filters.Env+"="+strconv.Itoa(fd))
}

// kill ends whatever was started and waits until it is gone.
func kill(cmds ...*exec.Cmd) {
	for _, cmd := range cmds {
		if cmd.Process != nil {
			_ = cmd.Process.Kill()
		}
	}
	for _, cmd := range cmds {
		if cmd.Process != nil {
			_, _ = cmd.Process.Wait() // or the reaper has
		}
	}
}

// explain adds what a failed kernel printed.
func explain(dir string, err error) error {
	b, rerr := os.ReadFile(filepath.Join(dir, "panic.log"))
	if rerr != nil || len(b) == 0 {
		return err
	}
	if len(b) > 1024 {
		b = b[len(b)-1024:]
	}
	return fmt.Errorf("%w; it printed: %s", err, b)
}
