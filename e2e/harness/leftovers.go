package harness

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/holdfast-run/holdfast/network"
)

// Leftovers lists what still exists of the daemon with that data folder on this
// machine: processes, mounts, namespaces, links, nftables tables and control
// groups. It asks the kernel and no code of the daemon, but for its name.
func Leftovers(data string) []string {
	instance := network.InstanceOf(data)
	var left []string
	for _, p := range Processes(data) {
		left = append(left, "process "+p)
	}
	for _, m := range mounts() {
		if inside(m, data) || inside(m, "/run/holdfast/"+instance) {
			left = append(left, "mount "+m)
		}
	}
	if names, err := os.ReadDir("/run/holdfast/" + instance + "/netns"); err == nil {
		for _, n := range names {
			left = append(left, "namespace "+n.Name())
		}
	}
	if links, err := net.Interfaces(); err == nil {
		for _, l := range links {
			if strings.HasPrefix(l.Name, "hf"+instance) {
				left = append(left, "link "+l.Name)
			}
		}
	}
	if out, err := exec.Command("nft", "list", "tables").Output(); err == nil {
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "holdfast_"+instance) {
				left = append(left, "nftables "+strings.TrimSpace(line))
			}
		}
	}
	for _, g := range groups() {
		if strings.Contains(g+"/", "/holdfast-"+instance+"/") {
			left = append(left, "control group "+g)
		}
	}
	return left
}

// Processes lists the processes that run out of the data folder, but for the
// daemon itself: "pid command line".
func Processes(data string) []string {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil
	}
	var found []string
	for _, dir := range dirs {
		exe, err := os.Readlink(dir + "/exe")
		if err != nil || exe == Binary() {
			continue // gone meanwhile, a kernel thread, or the daemon
		}
		cmdline, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			continue
		}
		words := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
		ours := inside(exe, data) || slices.ContainsFunc(words, func(w string) bool {
			_, value, _ := strings.Cut(w, "=")
			return inside(w, data) || inside(value, data)
		})
		if ours && strings.Contains(exe, "runsc") {
			found = append(found, filepath.Base(dir)+" "+strings.Join(words, " "))
		}
	}
	return found
}

func mounts() []string {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	var places []string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 4 {
			places = append(places, fields[4])
		}
	}
	return places
}

// groups lists control groups of Holdfast in every hierarchy.
func groups() []string {
	var found []string
	roots, err := filepath.Glob("/sys/fs/cgroup/*")
	if err != nil {
		return nil
	}
	for _, root := range append(roots, "/sys/fs/cgroup") {
		for _, pattern := range []string{"/*holdfast*", "/*holdfast*/*", "/*/*holdfast*/*"} {
			if dirs, err := filepath.Glob(root + pattern); err == nil {
				for _, d := range dirs {
					if fi, err := os.Stat(d); err == nil && fi.IsDir() {
						found = append(found, d)
					}
				}
			}
		}
	}
	return found
}

func inside(path, folder string) bool {
	return path == folder || strings.HasPrefix(path, folder+"/")
}
