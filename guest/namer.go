package guest

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// namer sets the host name and the machine id.
type namer struct {
	etc    string
	kernel bool // set the kernel's host name too

	mu   sync.Mutex
	last [2]string // what is in the files; survives in a memory image just as they do
}

var (
	hostnamePattern  = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9.-]{0,62}[a-zA-Z0-9])?$`)
	machineIDPattern = regexp.MustCompile(`^[0-9a-f]{32}$`)
)

func (n *namer) check(hostname, machineID string) error {
	if hostname != "" && !hostnamePattern.MatchString(hostname) {
		return fmt.Errorf("hostname %q is not one; use at most 64 letters, digits, dots and hyphens", hostname)
	}
	if machineID != "" && !machineIDPattern.MatchString(machineID) {
		return fmt.Errorf("machineId %q is not one; give 32 lower-case hex digits", machineID)
	}
	return nil
}

func (n *namer) apply(hostname, machineID string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if machineID == "" {
		machineID = newMachineID(hostname)
	}
	var errs []error
	if hostname != "" && n.kernel {
		// A restore may have put another name there; asking costs as much as setting.
		errs = append(errs, os.NewSyscallError("sethostname", unix.Sethostname([]byte(hostname))))
	}
	if n.last == [2]string{hostname, machineID} {
		return errors.Join(errs...)
	}
	if hostname != "" {
		errs = append(errs,
			os.WriteFile(filepath.Join(n.etc, "hostname"), []byte(hostname+"\n"), 0o644),
			n.writeHosts(hostname))
	}
	errs = append(errs, os.WriteFile(filepath.Join(n.etc, "machine-id"), []byte(machineID+"\n"), 0o444))
	err := errors.Join(errs...)
	if err == nil {
		n.last = [2]string{hostname, machineID}
	}
	return err
}

// ownAddress is where the sandbox's own name leads, as Debian has it.
const ownAddress = "127.0.1.1"

// writeHosts gives the own name its line in hosts and leaves the others alone.
func (n *namer) writeHosts(hostname string) error {
	path := filepath.Join(n.etc, "hosts")
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var b strings.Builder
	local := false
	for line := range strings.Lines(string(old)) {
		fields := strings.Fields(line)
		if len(fields) > 0 && fields[0] == ownAddress {
			continue
		}
		local = local || len(fields) > 1 && fields[0] == "127.0.0.1"
		b.WriteString(strings.TrimRight(line, "\n") + "\n")
	}
	if !local {
		b.WriteString("127.0.0.1\tlocalhost\n")
	}
	b.WriteString(ownAddress + "\t" + hostname + "\n")
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

func newMachineID(hostname string) string {
	id := make([]byte, 16)
	if hostname == "" {
		_, _ = rand.Read(id) // never fails
	} else {
		sum := sha256.Sum256([]byte("holdfast machine " + hostname))
		copy(id, sum[:])
	}
	return hex.EncodeToString(id)
}
