// Package enginetest is the conformance suite of engine.Engine: every
// implementation runs it. It uses real instances, processes, mounts and network
// namespaces, so it needs root.
package enginetest

import (
	"testing"

	"github.com/holdfast-run/holdfast/engine"
)

// Run runs the suite. open gives an engine whose state is in dir; called again
// with the same dir after Close of the first, it gives one that finds what the
// first left, as a restarted daemon does.
func Run(t *testing.T, open func(t testing.TB, dir string) engine.Engine) {
	for _, c := range []struct {
		name string
		test func(*world)
	}{
		{"Start", testStart},
		{"StartBad", testStartBad},
		{"Exists", testExists},
		{"Unknown", testUnknown},
		{"Suid", testFiles},
		{"Kill", testKill},
		{"Ended", testEnded},
		{"Failed", testFailed},
		{"SandboxKilled", testSandboxKilled},
		{"Adopt", testAdopt},
		{"AdoptDead", testAdoptDead},
		{"Close", testClose},
		{"LogBounded", testPrint},
		{"Checkpoint", testCheckpoint},
		{"Thaw", testThaw},
		{"ThawAdopted", testThawAdopted},
		{"RestoreTwice", testRestoreTwice},
		{"RestoreElsewhere", testRestoreElsewhere},
		{"CheckpointAfterRestore", testCheckpointAfterRestore},
		{"CheckpointAdopted", testCheckpointAdopted},
		{"CheckpointNoSpace", testNoSpace},
		{"CheckpointBadFolder", testBadFolder},
		{"TornImage", testTorn},
		{"ForeignImage", testForeign},
		{"RestoreBurst", testBurst},
		{"LimitCPU", testLimitCPU},
		{"LimitMemory", testLimitMemory},
		{"LimitPIDs", testLimitPIDs},
		{"Update", testUpdate},
		{"Stats", testStats},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(newWorld(t, open)) })
	}
}

// One is an instance for a test of one implementation's own promises.
type One struct {
	Engine engine.Engine
	Spec   engine.Spec
	Begun  engine.Instance
	w      *world
	g      *guest
}

// StartOne starts an instance. It answers when StartOne returns and is killed at the
// end of the test.
func StartOne(t testing.TB, open func(t testing.TB, dir string) engine.Engine) *One {
	w := newWorld(t, open)
	g := w.start(w.spec(w.root()))
	return &One{w.Engine, g.Spec, g.Instance, w, g}
}

// Refresh gives the network its addresses back before another start.
func (o *One) Refresh() { refresh(o.w, o.Spec) }

// Answer waits until pid 1 inside answers.
func (o *One) Answer() {
	eventually(o.w.TB, "pid 1 answers", func() error { _, err := o.g.try("/count"); return err })
}

// Reopen puts a new engine in the place of one that the test has cut off, calling
// before just before that.
func (o *One) Reopen(before func()) {
	before()
	o.w.Engine = o.w.open(o.w.TB, o.w.dir)
	o.Engine = o.w.Engine
}
