package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/sandbox"
)

// crowd is how many idle sandboxes are made to tell what one costs.
const crowd = 20

// settle is how long memory is given to come to rest before it is read.
const settle = 2 * time.Second

// idleMemory: by how much the machine's available memory shrinks with 20 idle
// sandboxes, for each. Page cache that can be given back counts as available.
// Docker's is the same with `docker run -d … sleep`.
func idleMemory(ctx context.Context, b *run, m *measurement) error {
	if !b.Local {
		return sandbox.Errorf(sandbox.Unsupported, "idle_memory", "reads the memory of the daemon's machine").WithNext("run the benchmark there")
	}
	return b.each(m, func(int) error {
		boxes := make([]*client.Sandbox, crowd)
		defer func() { b.remove(ctx, boxes...) }()
		return b.marginal("idle_memory", b.add, func() error {
			return together(crowd, func(i int) error {
				sb, err := b.create(ctx, true)
				boxes[i] = sb
				return err
			})
		})
	}, func(i int) error {
		if i > 0 {
			return nil // twenty containers take long to come and go
		}
		ids := make([]string, crowd)
		defer func() { b.Docker.remove(ctx, ids...) }()
		return b.marginal("idle_memory", b.addPeer, func() error {
			return together(crowd, func(i int) error {
				id, err := b.Docker.start(ctx)
				ids[i] = id
				return err
			})
		})
	})
}

// marginal records what one of the crowd that fill makes costs, in MB.
func (b *run) marginal(name string, add func(string, float64), fill func() error) error {
	time.Sleep(settle)
	before, err := available()
	if err != nil {
		return err
	}
	if err := fill(); err != nil {
		return err
	}
	time.Sleep(settle)
	after, err := available()
	if err != nil {
		return err
	}
	add(name, (before-after)/crowd)
	return nil
}

// available gives the machine's available memory in MB.
func available() (float64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return field(bufio.NewScanner(f), "MemAvailable:")
}

// field finds "name   123 kB" and gives it in MB.
func field(lines *bufio.Scanner, name string) (float64, error) {
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || words[0] != name {
			continue
		}
		kb, err := strconv.ParseFloat(words[1], 64)
		if err != nil {
			return 0, fmt.Errorf("%s %q: %w", name, words[1], err)
		}
		return kb * 1024 / 1e6, nil
	}
	return 0, fmt.Errorf("no line %s", name)
}

// guestMemory: resident memory of the guest program inside, after its first
// commands.
func guestMemory(ctx context.Context, b *run, m *measurement) error {
	return b.each(m, func(int) error {
		sb, err := b.create(ctx, true)
		if err != nil {
			return err
		}
		defer b.remove(ctx, sb)
		for range 10 {
			if err := hello(ctx, sb); err != nil {
				return err
			}
		}
		cmd := sb.Command(ctx, "/bin/cat", "/proc/1/status")
		cmd.User = "root"
		out, err := cmd.Output()
		if err != nil {
			return err
		}
		mb, err := field(bufio.NewScanner(strings.NewReader(string(out))), "VmRSS:")
		if err != nil {
			return err
		}
		b.add("guest_memory", mb)
		return nil
	}, nil)
}
