package main

import (
	"fmt"
	"os"
	"strings"
)

// cgroupEnv lists the cgroup.procs files, separated by colons, that this process
// joins before it does anything else. Whatever it starts is then inside from its
// first instruction, so no process of an instance escapes its limits.
const cgroupEnv = "HOLDFAST_CGROUPS"

func joinCgroups() {
	list := os.Getenv(cgroupEnv)
	if list == "" {
		return
	}
	os.Unsetenv(cgroupEnv)
	for _, file := range strings.Split(list, ":") {
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			fmt.Fprintf(os.Stderr, "join cgroup %s: %v\n", file, err)
			os.Exit(128)
		}
	}
}
