package driver

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// join moves processes into cgroups. The first write of a while waits for an RCU
// grace period of the kernel, up to 20 ms; those beside it and soon after it are
// quick. So each hierarchy has its own goroutine.
func join(files []string, pids []int) error {
	var g errgroup.Group
	for _, file := range files {
		g.Go(func() error {
			f, err := os.OpenFile(file, os.O_WRONLY, 0)
			if err != nil {
				return fmt.Errorf("join cgroup: %w", err)
			}
			defer f.Close()
			for _, pid := range pids {
				// A child may have ended already.
				if _, err := f.WriteString(strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
					return fmt.Errorf("join cgroup: process %d: %w", pid, err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// joinChildren moves what processes had started before they were in the cgroups
// themselves: whatever they start afterwards is inside from the beginning.
func joinChildren(files []string, parents []int) error {
	if len(files) == 0 {
		return nil
	}
	var all []int
	for len(parents) > 0 {
		var next []int
		for _, pid := range parents {
			next = append(next, children(pid)...)
		}
		all = append(all, next...)
		parents = next
	}
	if len(all) == 0 {
		return nil
	}
	return join(files, all)
}

// children gives the children of all threads of a process.
func children(pid int) []int {
	dir := "/proc/" + strconv.Itoa(pid) + "/task"
	tasks, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []int
	for _, t := range tasks {
		b, err := os.ReadFile(dir + "/" + t.Name() + "/children")
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}
