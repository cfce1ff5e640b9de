package bench

import (
	"slices"
	"testing"
)

func TestKept(t *testing.T) {
	row := func(name string, p50 float64, peer float64) Result {
		r := Result{Name: name, Summary: Summary{N: 1, P50: p50}}
		if peer > 0 {
			r.Peer = &Peer{Name: dockerName, P50: peer}
		}
		return r
	}
	base := row("pause_20mb", 100, 0)
	for _, c := range []struct {
		name      string
		r         Result
		all       []Result
		ok, known bool
	}{
		{"below its bound", row("exec_warm", 4, 0), nil, true, true},
		{"above its bound", row("exec_warm", 4.1, 0), nil, false, true},
		{"fast enough beside the peer", row("create_pool", 10, 120), nil, true, true},
		{"not fast enough beside the peer", row("create_pool", 10, 119), nil, false, true},
		{"no peer measured", row("create_pool", 10, 0), nil, true, true},
		{"more is better", row("upload", 200, 0), nil, true, true},
		{"too little", row("upload", 199, 0), nil, false, true},
		{"relative, kept", row("pause_20mb_1gb_files", 120, 0), []Result{base}, true, true},
		{"relative, broken", row("pause_20mb_1gb_files", 121, 0), []Result{base}, false, true},
		{"relative to nothing", row("pause_20mb_1gb_files", 1, 0), nil, false, false},
		{"without a budget", row("guest_memory", 1, 0), nil, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			ok, known := kept(c.r, c.all)
			if ok != c.ok || known != c.known {
				t.Errorf("kept %v, known %v; want %v, %v", ok, known, c.ok, c.known)
			}
		})
	}
}

func TestEveryBudgetIsOfSomethingMeasured(t *testing.T) {
	for name, g := range budgets {
		if !slices.Contains(Names(), name) {
			t.Errorf("budget of %q, which is not measured", name)
		}
		if g.relative != "" && !slices.Contains(Names(), g.relative) {
			t.Errorf("budget of %q is relative to %q, which is not measured", name, g.relative)
		}
		if g.String() == "" {
			t.Errorf("budget of %q shows as nothing", name)
		}
	}
}

func TestEveryNameOnce(t *testing.T) {
	names := Names()
	if sorted := slices.Sorted(slices.Values(names)); len(slices.Compact(sorted)) != len(names) {
		t.Errorf("a name is there twice: %v", names)
	}
}
