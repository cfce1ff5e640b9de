// Package bench measures a running daemon the way its clients see it: over its
// HTTP API and gateway, with nothing taken from inside the daemon. Where Docker
// has the same operation it is measured in the same run, sample by sample in turn.
//
// Every measurement states in its doc comment where its clock starts and stops.
package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-run/holdfast/client"
	"github.com/holdfast-run/holdfast/sandbox"
)

// Result is one row: what was measured, and the peer's median of the same.
type Result struct {
	Name string `json:"name"`
	Unit string `json:"unit"` // "ms", "MB" or "MB/s"
	Summary
	Peer *Peer `json:"peer,omitempty"`

	err error
}

// Peer is the same operation of another runtime in the same run.
type Peer struct {
	Name string  `json:"name"`
	P50  float64 `json:"p50"`
}

// Options say what to measure.
type Options struct {
	Only     []string // names; empty: all
	Template string
	Local    bool    // the daemon is on this machine
	Samples  int     // of each measurement; 0: each one's own number
	Docker   *Docker // nil: no peer
	// Progress is told what is being measured. May be nil.
	Progress func(name string)
	// Done is given each result as it is there. May be nil.
	Done func(Result)
}

// measurement is one or several rows that come of one procedure.
type measurement struct {
	names   []string
	samples int // in a run of its own, when Options say nothing
	run     func(ctx context.Context, b *run, m *measurement) error
}

// run is one run of the benchmark.
type run struct {
	Options
	c       *client.Client
	samples map[string][]float64
	peers   map[string][]float64
}

// measurements are all there are, in the order of the report.
var measurements = []*measurement{
	{[]string{"create_pool"}, 30, createPool},
	{[]string{"create_cold"}, 20, createCold},
	{[]string{"create_burst20"}, 5, createBurst},
	{[]string{"exec_warm"}, 200, execWarm},
	{[]string{"pause_20mb", "resume_20mb"}, 20, pauseAndResume(20, 0)},
	{[]string{"pause_200mb", "resume_200mb"}, 10, pauseAndResume(200, 0)},
	{[]string{"pause_20mb_1gb_files"}, 10, pauseAndResume(20, 1024)},
	{[]string{"snapshot_20mb"}, 10, snapshotStill},
	{[]string{"fork10"}, 5, fork},
	{[]string{"rollback"}, 10, rollback},
	{[]string{"idle_memory"}, 3, idleMemory},
	{[]string{"guest_memory"}, 3, guestMemory},
	{[]string{"upload", "download"}, 6, transfer},
}

// Names lists everything that can be measured.
func Names() []string {
	var names []string
	for _, m := range measurements {
		names = append(names, m.names...)
	}
	return names
}

// Run measures and gives the results in the order of Names. A measurement that
// fails does not keep the others from being made; the error joins all failures.
func Run(ctx context.Context, c *client.Client, o Options) ([]Result, error) {
	for _, name := range o.Only {
		if !slices.Contains(Names(), name) {
			return nil, sandbox.Errorf(sandbox.InvalidRequest, fmt.Sprintf("measurement %q", name), "is not known").
				WithNext("known are %s", strings.Join(Names(), ", "))
		}
	}
	var results []Result
	var failed []string
	for _, m := range measurements {
		wanted := slices.DeleteFunc(slices.Clone(m.names), func(n string) bool {
			return len(o.Only) > 0 && !slices.Contains(o.Only, n)
		})
		if len(wanted) == 0 {
			continue
		}
		b := &run{Options: o, c: c, samples: map[string][]float64{}, peers: map[string][]float64{}}
		if o.Progress != nil {
			o.Progress(strings.Join(wanted, ", "))
		}
		err := m.run(ctx, b, m)
		if ctx.Err() != nil {
			return results, context.Cause(ctx)
		}
		for _, name := range wanted {
			r := b.result(name, err)
			if r.err != nil {
				failed = append(failed, fmt.Sprintf("%s: %v", name, r.err))
			} else {
				results = append(results, r)
			}
			if o.Done != nil {
				o.Done(r)
			}
		}
	}
	if len(failed) > 0 {
		return results, fmt.Errorf("not measured: %s", strings.Join(failed, "\nnot measured: "))
	}
	return results, nil
}

func (b *run) result(name string, err error) Result {
	r := Result{Name: name, Unit: unit(name), Summary: Summarize(b.samples[name]), err: err}
	if peers := b.peers[name]; len(peers) > 0 {
		r.Peer = &Peer{Name: dockerName, P50: Summarize(peers).P50}
	}
	if err == nil && r.N == 0 {
		r.err = fmt.Errorf("no sample was taken")
	}
	return r
}

func unit(name string) string {
	switch {
	case strings.HasSuffix(name, "_memory"):
		return "MB"
	case name == "upload" || name == "download":
		return "MB/s"
	}
	return "ms"
}

// each runs one sample after the other: ours, then the peer's where there is
// one. The first sample of a new process often pays for cold caches on both
// sides; it is counted like any other.
func (b *run) each(m *measurement, ours, peer func(i int) error) error {
	n := m.samples
	if b.Samples > 0 {
		n = b.Samples
	}
	for i := range n {
		if err := ours(i); err != nil {
			return fmt.Errorf("sample %d: %w", i+1, err)
		}
		if b.Docker == nil || peer == nil {
			continue
		}
		if err := peer(i); err != nil {
			return fmt.Errorf("sample %d of docker: %w", i+1, err)
		}
	}
	return nil
}

// add records one sample.
func (b *run) add(name string, v float64) { b.samples[name] = append(b.samples[name], v) }

// addPeer records one sample of the peer.
func (b *run) addPeer(name string, v float64) { b.peers[name] = append(b.peers[name], v) }

// since gives the milliseconds since start.
func since(start time.Time) float64 { return float64(time.Since(start).Nanoseconds()) / 1e6 }
