package driver

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"
	_ "gvisor.dev/gvisor/runsc/sandbox" // has these
)

//go:linkname collectLinksAndRoutes gvisor.dev/gvisor/runsc/sandbox.collectLinksAndRoutes
func collectLinksAndRoutes(conf *config.Config, disableIPv6 bool) (boot.CreateLinksAndRoutesArgs, error)

//go:linkname removeLinkAddresses gvisor.dev/gvisor/runsc/sandbox.removeLinkAddresses
func removeLinkAddresses(link string, addresses []boot.IPWithPrefix) error

//go:linkname isGSOEnabled gvisor.dev/gvisor/runsc/sandbox.isGSOEnabled
func isGSOEnabled(fd int, link string) (bool, error)
