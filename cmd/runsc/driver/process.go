package driver

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/hostos"
	"gvisor.dev/gvisor/runsc/donation"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/holdfast-run/holdfast/cmd/runsc/filters"
	"github.com/holdfast-run/holdfast/engine/gvisor/wire"
)

// The command lines below are those of gVisor's sandbox.createSandboxProcess and
// container.createGoferProcess, for our configuration.
//
// One thing is left out: gVisor has the gofer tell the kernel where in the root it
// has found the mount points. Our only one is fixed, and its name is part of every
// image; a user who put a link in its place would make the image useless.

// mounts that the gofer serves, in the order of the OCI configuration: the root
// and the share.
var mounts = specutils.GoferMountConfFlags{
	{Lower: specutils.Lisafs, Upper: specutils.NoOverlay},
	{Lower: specutils.Lisafs, Upper: specutils.NoOverlay},
}

// panicName is what failing processes of an instance print into, in its folder.
const panicName = "panic.log"

// goferProcs is enough for a gofer, which opens files now and then.
const goferProcs = 2

// opener opens files until one fails.
type opener struct {
	files []*os.File
	err   error
}

func (o *opener) keep(f *os.File, err error) *os.File {
	if err != nil {
		if o.err == nil {
			o.err = err
		}
		return nil
	}
	o.files = append(o.files, f)
	return f
}

func (o *opener) open(dir, name string, flags int) *os.File {
	return o.keep(os.OpenFile(filepath.Join(dir, name), flags, 0o600))
}

func (o *opener) sockets() (a, b *os.File) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return o.keep(nil, err), nil
	}
	return o.keep(os.NewFile(uintptr(fds[0]), "socket"), nil), o.keep(os.NewFile(uintptr(fds[1]), "socket"), nil)
}

const appending = os.O_CREATE | os.O_WRONLY | os.O_APPEND

// newKernel makes ready a kernel whose folder is dir.
func newKernel(conf *configuration, dir string, p wire.LaunchParams) (*kernel, error) {
	host, err := hostos.TotalSystemMemory()
	if err != nil {
		return nil, err
	}
	var o opener
	var io, gofers []*os.File
	for range mounts {
		a, b := o.sockets()
		io, gofers = append(io, a), append(gofers, b)
	}
	booted, boots, err := os.Pipe()
	o.keep(booted, err)
	o.keep(boots, err)
	socket := o.keep(controlSocket(dir))
	panics := o.open(dir, panicName, appending)
	printed := o.open(dir, "guest.log", appending)
	nothing := o.keep(os.Open(os.DevNull))
	spec := o.open(dir, "config.json", os.O_RDONLY)
	if o.err != nil {
		closeAll(o.files)
		return nil, o.err
	}
	procs := runtime.NumCPU()
	if p.CPUs > 0 {
		procs = min(procs, p.CPUs)
	}
	memory := p.Memory
	if memory == 0 {
		memory = host
	}
	var before, after donation.Agency
	before.Donate("panic-log-fd", panics)
	after.Donate("io-fds", io...)
	after.Donate("start-sync-fd", boots)
	after.Donate("controller-fd", socket)
	after.Donate("spec-fd", spec)
	after.Donate("stdio-fds", nothing, printed, printed)
	cmd := conf.command("runsc-sandbox", procs)
	next := before.Transfer(cmd, 3)
	cmd.Args = append(cmd.Args, "boot", "--bundle="+dir, "--gofer-mount-confs="+mounts.String(), "--apply-caps", "--setup-root",
		"--total-host-memory="+strconv.FormatUint(host, 10), "--total-memory="+strconv.FormatUint(memory, 10))
	if p.CPUs > 0 {
		cmd.Args = append(cmd.Args, "--cpu-num="+strconv.Itoa(p.CPUs))
	}
	conf.donateFilters(cmd, after.Transfer(cmd, next))
	cmd.Args = append(cmd.Args, p.ID)
	return &kernel{cmd: cmd, booted: booted, files: gofers}, nil
}

// goferProcess makes ready a gofer for the kernel that has the other ends of files.
func goferProcess(conf *configuration, dir, id string, files []*os.File) (*exec.Cmd, error) {
	var o opener
	spec := o.open(dir, "config.json", os.O_RDONLY)
	panics := o.open(dir, panicName, appending)
	unheard := o.keep(os.OpenFile(os.DevNull, os.O_WRONLY, 0)) // where it found the mount points
	unasked, asker := o.sockets()                              // to have files opened that it may not: none
	if o.err != nil {
		closeAll(o.files)
		return nil, o.err
	}
	unasked.Close()
	var donations donation.Agency
	donations.Donate("spec-fd", spec)
	donations.Donate("mounts-fd", unheard)
	donations.Donate("rpc-fd", asker)
	donations.Donate("io-fds", files...)
	cmd := conf.command("runsc-gofer", goferProcs)
	cmd.ExtraFiles = []*os.File{panics} // to be closed with the rest
	cmd.Stderr = panics
	cmd.Args = append(cmd.Args, "gofer", "--bundle="+dir, "--gofer-mount-confs="+mounts.String())
	conf.donateFilters(cmd, donations.Transfer(cmd, 3+len(cmd.ExtraFiles)))
	cmd.Args = append(cmd.Args, id)
	return cmd, nil
}

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
