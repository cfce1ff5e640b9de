package filters

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/platform"
	sentry "gvisor.dev/gvisor/runsc/boot/filter"
	sentryconfig "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter"
	goferconfig "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

// TestPassed: what the driver compiles is what gVisor asks for in a sandbox and in a
// gofer of our configuration.
func TestPassed(t *testing.T) {
	f, err := Compile("systrap")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	constructor, err := platform.Lookup("systrap")
	if err != nil {
		t.Fatal(err)
	}
	s := sentryconfig.Options{Platform: constructor.PrecompiledSeccompInfo()[0], HostFilesystem: true, ControllerFD: 9}
	g := goferconfig.Options{DirectFS: true}
	if _, ok := sentry.GetPrecompiled(s.ConfigKey()); ok {
		t.Fatal("gVisor has its own program now; this package is not needed any more")
	}
	for range 2 { // every process reads the same open file
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(Env, strconv.Itoa(fd))
		Load()
		if os.Getenv(Env) != "" {
			t.Error("the variable is still set")
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			t.Error("the descriptor is still open")
		}
	}
	p, ok := sentry.GetPrecompiled(s.ConfigKey())
	if !ok {
		t.Fatalf("no program for a sandbox, %s", s.ConfigKey())
	}
	if insns, err := p.RenderInstructions(s.Vars()); err != nil || len(insns) < 100 {
		t.Errorf("program of %d instructions, %v", len(insns), err)
	}
	if p, ok = gofer.GetPrecompiled(g.ConfigKey()); !ok {
		t.Fatalf("no program for a gofer, %s", g.ConfigKey())
	}
	if insns, err := p.RenderInstructions(g.Vars()); err != nil || len(insns) < 100 {
		t.Errorf("program of %d instructions, %v", len(insns), err)
	}
}

// TestUnreadable: without programs gVisor makes its own.
func TestUnreadable(t *testing.T) {
	for _, content := range []string{"", "{", "[]"} {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(content); err != nil {
			t.Fatal(err)
		}
		fd, err := unix.Dup(int(f.Fd()))
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(Env, strconv.Itoa(fd))
		Load()
	}
	t.Setenv(Env, "none")
	Load()
}
