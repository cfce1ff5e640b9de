package early

import "testing"

func TestUmountCall(t *testing.T) {
	for _, c := range []struct {
		args []string
		dir  string
		fd   int
		ok   bool
	}{
		{[]string{"runsc", "umount", "--sync-fd=3", "/proc"}, "/proc", 3, true},
		{[]string{"/proc/self/exe", "umount", "--sync-fd=9", "/p"}, "/p", 9, true},
		{[]string{"runsc", "umount", "--sync-fd=13", "/proc"}, "", 0, false},
		{[]string{"runsc", "umount", "--sync-fd=x", "/proc"}, "", 0, false},
		{[]string{"runsc", "umount", "/proc"}, "", 0, false},
		{[]string{"runsc", "boot", "--sync-fd=3", "/proc"}, "", 0, false},
		{nil, "", 0, false},
	} {
		dir, fd, ok := umountCall(c.args)
		if dir != c.dir || fd != c.fd || ok != c.ok {
			t.Errorf("%q: %q %d %v, want %q %d %v", c.args, dir, fd, ok, c.dir, c.fd, c.ok)
		}
	}
}

func TestCommandLine(t *testing.T) {
	// This test's own is longer than the buffer or not the call: both are harmless.
	for _, a := range commandLine() {
		if a == "umount" {
			t.Error("took a test for the call")
		}
	}
}
