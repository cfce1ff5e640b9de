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

// panicName is what failing processes of an instance print into, in its folder.
const panicName = "panic.log"

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
	var links *boot.CreateLinksAndRoutesArgs
	var net errgroup.Group
	net.Go(func() error {
		var err error
		links, err = takeLinks(conf.Config, p.NetNS)
		return err
	})
	err = d.begin(c, p)
	if nerr := net.Wait(); nerr != nil {
		return 0, 0, errors.Join(err, fmt.Errorf("network: %w", nerr))
	}
	defer closeAll(links.Files)
	if err != nil {
		return 0, 0, err
	}
	if err := run(dir, p, links); err != nil {
		return 0, 0, err
	}
	return c.sandbox.Process.Pid, c.gofer.Process.Pid, nil
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

// begin starts both processes and returns when the sandbox's kernel has booted and
// all of them are in their cgroups. Joining those waits for the host's kernel, so it
// goes beside the booting; user code runs only after both.
func (d *driver) begin(c *pair, p wire.LaunchParams) error {
	own := []specs.LinuxNamespace{
		{Type: specs.UserNamespace}, {Type: specs.IPCNamespace}, {Type: specs.MountNamespace},
		{Type: specs.UTSNamespace}, {Type: specs.PIDNamespace},
	}
	var g errgroup.Group
	begin := func(cmd *exec.Cmd, network specs.LinuxNamespace, remember bool) {
		g.Go(func() error {
			err := d.start(cmd, append(own[:len(own):len(own)], network))
			closeAll(cmd.ExtraFiles) // the child has its own
			if err != nil {
				return fmt.Errorf("start %s: %w", cmd.Args[0], err)
			}
			go d.reap(cmd.Process, remember)
			if err := join(p.Cgroups, []int{cmd.Process.Pid}); err != nil {
				return err
			}
			return joinChildren(p.Cgroups, []int{cmd.Process.Pid})
		})
	}
	begin(c.sandbox, specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: p.NetNS}, true)
	// The gofer needs no network: an empty namespace of its own.
	begin(c.gofer, specs.LinuxNamespace{Type: specs.NetworkNamespace}, false)
	if n, err := c.booted.Read(make([]byte, 1)); n != 1 {
		return errors.Join(fmt.Errorf("the sandbox's kernel failed to boot: %w", err), g.Wait())
	}
	return g.Wait()
}

// start starts a process, one at a time: the Go library writes the id maps of a
// new one through descriptors that one started at the same moment would inherit.
func (d *driver) start(cmd *exec.Cmd, namespaces []specs.LinuxNamespace) error {
	d.starting.Lock()
	defer d.starting.Unlock()
	return specutils.StartInNS(cmd, namespaces)
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
	panics := keep(os.OpenFile(filepath.Join(dir, panicName), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))
	goferPanics := keep(os.OpenFile(filepath.Join(dir, panicName), os.O_WRONLY|os.O_APPEND, 0))
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
	g.ExtraFiles = append(g.ExtraFiles, goferPanics)
	g.Stderr = goferPanics
	g.Args = append(g.Args, "gofer", "--bundle="+dir, "--gofer-mount-confs="+mounts.String())
	conf.donateFilters(g, gofer.Transfer(g, 3+len(g.ExtraFiles)))
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
	b, rerr := os.ReadFile(filepath.Join(dir, panicName))
	if rerr != nil || len(b) == 0 {
		return err
	}
	if len(b) > 1024 {
		b = b[len(b)-1024:]
	}
	return fmt.Errorf("%w; it printed: %s", err, b)
}
