// Package tune makes starting and restoring cheaper for the Go runtime of a
// sandbox and its gofer.
package tune

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
	_ "unsafe" // for go:linkname
)

// SpareEnv is set for a process that boots now and gets its work later.
const SpareEnv = "HOLDFAST_SPARE"

const (
	// settled is when a start or restore is surely over.
	settled = 10 * time.Second
	// bound is how much may be allocated until then without collection: an image of
	// very many processes.
	bound = 256 << 20
	// work is more than a process that only waits allocates in a second, and less than
	// any restore does.
	work = 1 << 20
)

// Process tunes this process. Call it before any goroutine of gVisor's runs.
func Process() {
	deferCollection(os.Getenv(SpareEnv) != "")
	keepProcs()
}

// deferCollection switches the garbage collector off for the time of starting or
// restoring: what that allocates, some MB, is mostly kept, and looking through it
// on the way costs a tenth of the time.
func deferCollection(spare bool) {
	percent := debug.SetGCPercent(-1)
	limit := debug.SetMemoryLimit(bound)
	go func() {
		time.Sleep(settled)
		if spare {
			awaitWork()
			time.Sleep(settled)
		}
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
	}()
}

// awaitWork returns when the process has begun to do something.
func awaitWork() {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	for {
		before := sample[0].Value.Uint64()
		time.Sleep(time.Second)
		metrics.Read(sample)
		if sample[0].Value.Uint64() > before+work {
			return
		}
	}
}

// temporary is what gVisor adds to GOMAXPROCS for a while: 128 for each file of
// pages that it reads, for as many goroutines in system calls. That stops the
// world twice and leaves 128 processors' worth of caches in memory for good.
//
//go:linkname temporary gvisor.dev/gvisor/pkg/gomaxprocs.temp
var temporary int

// keepProcs makes gVisor's changes of GOMAXPROCS come out negative, in which case
// the Go runtime ignores them. The driver has set it in the environment.
//
// Once it is set explicitly, the runtime no longer looks every second for a new
// number of cpus, which the seccomp filter answers with death.
func keepProcs() {
	temporary = math.MinInt32
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
}
