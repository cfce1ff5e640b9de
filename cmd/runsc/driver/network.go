package driver

import (
	"fmt"

	"os"
	"runtime"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/specutils"
)

// takeLinks collects what is in a namespace, for the kernel of an instance to take
// over: addresses, routes, permanent neighbours, and a packet socket on each link. It
// takes the addresses away there, so that the host's kernel does not answer in the
// instance's place.
//
// It is gVisor's sandbox.setupNetwork but for one thing: that makes sockets which
// a process started at the same moment inherits, and the process started at the
// same moment here is another instance's. Every descriptor of this program must
// close on exec.
func takeLinks(conf *config.Config, netns string) (_ *boot.CreateLinksAndRoutesArgs, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	back, err := specutils.ApplyNS(specs.LinuxNamespace{Type: specs.NetworkNamespace, Path: netns})
	if err != nil {
		return nil, err
	}
	defer func() {
		if berr := back(); berr != nil {
			panic("runsc driver: a thread is lost in a network namespace: " + berr.Error())
		}
	}()
	args, err := collectLinksAndRoutes(conf, false)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			closeAll(args.Files)
		}
	}()
	for i := range args.FDBasedLinks {
		l := &args.FDBasedLinks[i]
		if err := removeLinkAddresses(l.Name, l.Addresses); err != nil {
			return nil, err
		}
		link, err := netlink.LinkByName(l.Name)
		if err != nil {
			return nil, err
		}
		for range l.NumChannels {
			f, gso, err := packetSocket(link, conf.HostGSO)
			if err != nil {
				return nil, fmt.Errorf("packet socket on %s: %w", l.Name, err)
			}
			l.GSOMaxSize = gso
			args.Files = append(args.Files, f)
		}
	}
	return &args, nil
}

// packetBuffer is what a packet socket may hold in either direction.
const packetBuffer = 4 << 20

// packetSocket opens a link, with segmentation offload if the link has it. The
// second result is the largest segment then.
func packetSocket(link netlink.Link, offload bool) (_ *os.File, gso uint32, err error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // no protocol yet: a quick bind
	if err != nil {
		return nil, 0, err
	}
	f := os.NewFile(uintptr(fd), "packet socket")
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8 // in network byte order
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index}); err != nil {
		return nil, 0, err
	}
	if offload {
		has, err := isGSOEnabled(fd, link.Attrs().Name)
		if err != nil {
			return nil, 0, err
		}
		if has {
			if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1); err != nil {
				return nil, 0, err
			}
			gso = link.Attrs().GSOMaxSize
		}
	}
	// Beyond the limit for everybody; smaller ones only drop packets earlier.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, packetBuffer)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, packetBuffer)
	return f, gso, nil
}
