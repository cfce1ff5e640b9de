// Command guest is pid 1 of every sandbox.
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/holdfast-run/holdfast/guest"
	"github.com/holdfast-run/holdfast/guest/process"
)

func main() {
	listen := flag.String("listen", fmt.Sprintf("0.0.0.0:%d", guest.Port), "address to serve on")
	host := flag.String("init-from", "192.0.0.1", "the only address that may call the host's routes")
	etc := flag.String("etc", "/etc", "folder of passwd, group, hostname, hosts and machine-id")
	flag.Parse()
	clobberGarbage()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := run(*listen, *host, *etc, log); err != nil {
		log.Error("guest ends", "error", err)
		os.Exit(1)
	}
}

func run(listen, host, etc string, log *slog.Logger) error {
	// There is one guest per sandbox and hundreds of sandboxes per machine: give
	// memory back early, and do not spread over all cores.
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(48 << 20)
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))

	peer, err := netip.ParseAddr(host)
	if err != nil {
		return fmt.Errorf("flag -init-from: %w", err)
	}
	first := os.Getpid() == 1
	if first {
		guest.LinkDevices()
	}
	reaper := process.NewReaper()
	server := guest.New(guest.Config{
		Host:      peer,
		Passwd:    etc + "/passwd",
		Group:     etc + "/group",
		Etc:       etc,
		SetKernel: first,
		Log:       log,
	}, reaper)
	l, err := net.Listen("tcp4", listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", listen, err)
	}
	log.Info("guest serves", "address", l.Addr().String())
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	signal.Ignore(syscall.SIGHUP)
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	select {
	case err = <-failed:
	case <-stop:
	}
	server.Shutdown()
	return err
}

// clobberGarbage starts the program anew with the collector told to overwrite
// what it frees, so that tokens do not linger in memory that goes into an image.
// The runtime reads that setting only at the start; who sets it in the
// environment already saves the second start.
func clobberGarbage() {
	const setting = "clobberfree=1"
	if strings.Contains(os.Getenv("GODEBUG"), setting) {
		return
	}
	if err := os.Setenv("GODEBUG", setting); err != nil {
		return
	}
	_ = syscall.Exec("/proc/self/exe", os.Args, os.Environ()) // goes on without if it fails
}
