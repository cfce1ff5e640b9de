// Command holdfast is the one binary: command line and daemon.
package main

import (
	"os"

	"github.com/holdfast-run/holdfast/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:])) }
