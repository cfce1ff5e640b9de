package bench

import "fmt"

// budget is what a median has to keep on a machine of two cores.
type budget struct {
	most   float64 // 0: no upper bound
	least  float64 // 0: no lower bound
	factor float64 // how many times better than the peer; 0: any
	// relative names another row whose median times most is the bound.
	relative string
}

var budgets = map[string]budget{
	"create_pool":          {most: 15, factor: 12},
	"create_cold":          {most: 110, factor: 2},
	"create_burst20":       {most: 1500},
	"exec_warm":            {most: 4},
	"pause_20mb":           {most: 150},
	"pause_200mb":          {most: 400},
	"pause_20mb_1gb_files": {most: 1.2, relative: "pause_20mb"},
	"resume_20mb":          {most: 110},
	"resume_200mb":         {most: 200},
	"snapshot_20mb":        {most: 250},
	"fork10":               {most: 1200},
	"rollback":             {most: 300},
	"idle_memory":          {most: 10},
	"upload":               {least: 200},
	"download":             {least: 200},
}

// String is the budget as a table shows it.
func (g budget) String() string {
	switch {
	case g.relative != "":
		return fmt.Sprintf("≤ %g × %s", g.most, g.relative)
	case g.least > 0:
		return fmt.Sprintf("≥ %g", g.least)
	case g.factor > 0:
		return fmt.Sprintf("≤ %g, %g× docker", g.most, g.factor)
	case g.most > 0:
		return fmt.Sprintf("≤ %g", g.most)
	}
	return ""
}

// kept tells whether a result keeps its budget; known is false when it has none
// or the row it is relative to is missing.
func kept(r Result, all []Result) (ok, known bool) {
	g, has := budgets[r.Name]
	if !has {
		return false, false
	}
	most := g.most
	if g.relative != "" {
		base, found := 0.0, false
		for _, other := range all {
			if other.Name == g.relative {
				base, found = other.P50, true
			}
		}
		if !found {
			return false, false
		}
		most *= base
	}
	ok = (most == 0 || r.P50 <= most) && r.P50 >= g.least
	if g.factor > 0 && r.Peer != nil {
		ok = ok && r.P50*g.factor <= r.Peer.P50
	}
	return ok, true
}
