package driver

import (
	"flag"
	"fmt"
	"os"
	"sync"

	"gvisor.dev/gvisor/runsc/config"

	"github.com/holdfast-run/holdfast/cmd/runsc/filters"
)

// configs holds what is the same for all instances of one platform.
type configs struct {
	mu   sync.Mutex
	made map[string]*configuration
}

type configuration struct {
	*config.Config
	flags   []string // the same, for a command line
	filters *os.File // seccomp programs, nil if they could not be made
}

// settings of gVisor that differ from its defaults, or matter enough to be said.
//
//   - overlay2=none: the root is an overlayfs of the host already, so files never
//     enter a memory image.
//   - file-access=exclusive: only this instance writes below its root, so it may
//     cache. The share is shared, which is the default for mounts.
//   - allow-suid: without it sudo does not work.
//   - ignore-cgroups: the driver places the processes.
//   - no raw sockets and no host sockets.
var settings = map[string]string{
	"network":        "sandbox",
	"overlay2":       "none",
	"file-access":    "exclusive",
	"allow-suid":     "true",
	"net-raw":        "false",
	"host-uds":       "none",
	"ignore-cgroups": "true",
	"host-settings":  "ignore",
}

func (c *configs) get(platform string) (*configuration, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if made := c.made[platform]; made != nil {
		return made, nil
	}
	set := flag.NewFlagSet("runsc", flag.ContinueOnError)
	config.RegisterFlags(set)
	for name, value := range settings {
		if err := set.Set(name, value); err != nil {
			return nil, fmt.Errorf("set %s=%s: %w", name, value, err)
		}
	}
	if err := set.Set("platform", platform); err != nil {
		return nil, err
	}
	conf, err := config.NewFromFlags(set)
	if err != nil {
		return nil, err
	}
	made := &configuration{Config: conf, flags: conf.ToFlags()}
	if f, err := filters.Compile(platform); err == nil {
		made.filters = f
	} else {
		fmt.Fprintf(os.Stderr, "runsc driver: starts will be slower: %v\n", err)
	}
	if c.made == nil {
		c.made = map[string]*configuration{}
	}
	c.made[platform] = made
	return made, nil
}
