package guest

import (
	"math"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Metrics is the answer of GET /metrics. Sizes are in bytes unless named _mib.
type Metrics struct {
	TS          int64   `json:"ts"` // unix seconds
	CPUCount    int     `json:"cpu_count"`
	CPUUsedPct  float64 `json:"cpu_used_pct"` // of one core, since the last call
	MemTotal    uint64  `json:"mem_total"`
	MemUsed     uint64  `json:"mem_used"`
	MemCache    uint64  `json:"mem_cache"`
	MemTotalMiB uint64  `json:"mem_total_mib"`
	MemUsedMiB  uint64  `json:"mem_used_mib"`
	DiskUsed    uint64  `json:"disk_used"`
	DiskTotal   uint64  `json:"disk_total"`
}

func (s *Server) metrics(w http.ResponseWriter, _ *http.Request) {
	m := Metrics{
		TS:         time.Now().Unix(),
		CPUCount:   runtime.NumCPU(),
		CPUUsedPct: s.cpu.percent(),
	}
	mem := memInfo()
	m.MemTotal = mem["MemTotal"]
	m.MemCache = mem["Cached"]
	m.MemUsed = m.MemTotal - min(m.MemTotal, mem["MemAvailable"])
	m.MemTotalMiB, m.MemUsedMiB = m.MemTotal>>20, m.MemUsed>>20
	var st unix.Statfs_t
	if unix.Statfs("/", &st) == nil {
		m.DiskTotal = st.Blocks * uint64(st.Bsize)
		m.DiskUsed = (st.Blocks - st.Bfree) * uint64(st.Bsize)
	}
	reply(w, m)
}

// memInfo reads /proc/meminfo in bytes.
func memInfo() map[string]uint64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil
	}
	info := map[string]uint64{}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(line, ":")
		fields := strings.Fields(value)
		if len(fields) == 0 {
			continue
		}
		if n, err := strconv.ParseUint(fields[0], 10, 64); err == nil {
			info[name] = n << 10
		}
	}
	return info
}

// cpuMeter measures from call to call, so that nothing ticks while nobody asks.
type cpuMeter struct {
	mu   sync.Mutex
	last time.Time
	used time.Duration
}

func (c *cpuMeter) percent() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, used := time.Now(), cpuUsed()
	wall, busy := now.Sub(c.last), used-c.used
	first := c.last.IsZero()
	c.last, c.used = now, used
	if first || wall <= 0 || busy < 0 { // processes that ended take their time with them
		return 0
	}
	return math.Round(float64(busy)/float64(wall)*10000) / 100
}

const tick = 10 * time.Millisecond // of /proc, USER_HZ is 100 everywhere

// cpuUsed sums what all live processes and the collected children used: gVisor's
// /proc/stat has zeros where Linux has the sum.
func cpuUsed() time.Duration {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return 0
	}
	var ticks uint64
	for _, d := range dirs {
		if _, err := strconv.Atoi(d.Name()); err != nil {
			continue
		}
		if b, err := os.ReadFile("/proc/" + d.Name() + "/stat"); err == nil {
			ticks += processTicks(string(b), d.Name() == "1")
		}
	}
	return time.Duration(ticks) * tick
}

// processTicks adds utime and stime of a /proc/<pid>/stat line, and for pid 1
// cutime and cstime, where everything that ended finally arrives.
func processTicks(stat string, children bool) uint64 {
	_, rest, ok := strings.Cut(stat, ") ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 15 {
		return 0
	}
	last := 12
	if children {
		last = 14
	}
	var sum uint64
	for _, f := range fields[11 : last+1] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err == nil {
			sum += n
		}
	}
	return sum
}
