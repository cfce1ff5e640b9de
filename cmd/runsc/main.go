// Command runsc is the gVisor runtime of the pinned module. It is built
// statically, stamped with the module's version and embedded in holdfast (see
// package embedded), so nothing has to be downloaded and a memory image can name
// the very runtime that made it.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() {
	joinCgroups()
	maincli.Main()
}
