// Command runsc is the gVisor runtime of the pinned module. It is built
// statically, stamped with the module's version and embedded in holdfast (see
// package embedded), so nothing has to be downloaded and a memory image can name
// the very runtime that made it.
//
// Beside gVisor's own commands it has `runsc driver`, which holdfast talks to.
package main

import (
	"os"

	"gvisor.dev/gvisor/runsc/cli/maincli"

	"github.com/holdfast-run/holdfast/cmd/runsc/driver"
	_ "github.com/holdfast-run/holdfast/cmd/runsc/early"
	"github.com/holdfast-run/holdfast/cmd/runsc/filters"
	"github.com/holdfast-run/holdfast/cmd/runsc/tune"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "driver" {
		driver.Main()
		return
	}
	tune.Process()
	filters.Load()
	maincli.Main()
}
