package bench

import (
	"math"
	"testing"

	"pgregory.net/rapid"
)

func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		name    string
		samples []float64
		want    Summary
	}{
		{"nothing", nil, Summary{}},
		{"one", []float64{7}, Summary{N: 1, Min: 7, P50: 7, P95: 7, P99: 7, Max: 7}},
		{"odd count, unsorted", []float64{3, 1, 2}, Summary{N: 3, Min: 1, P50: 2, P95: 2.9, P99: 2.98, Max: 3}},
		{"even count", []float64{1, 2, 3, 4}, Summary{N: 4, Min: 1, P50: 2.5, P95: 3.85, P99: 3.97, Max: 4}},
		{"hundred and one", ramp(101), Summary{N: 101, Min: 0, P50: 50, P95: 95, P99: 99, Max: 100}},
		{"rounded", []float64{1.00049, 1.00051}, Summary{N: 2, Min: 1, P50: 1.001, P95: 1.001, P99: 1.001, Max: 1.001}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Summarize(c.samples); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestSummarizeLeavesItsInputAlone(t *testing.T) {
	in := []float64{3, 1, 2}
	Summarize(in)
	if in[0] != 3 || in[1] != 1 || in[2] != 2 {
		t.Errorf("samples were reordered: %v", in)
	}
}

func TestSummaryIsOrdered(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Float64Range(0, 1e6), 1, 200).Draw(t, "samples")
		s := Summarize(samples)
		if s.Min > s.P50 || s.P50 > s.P95 || s.P95 > s.P99 || s.P99 > s.Max {
			t.Errorf("not ordered: %+v", s)
		}
		lowest, highest := math.Inf(1), math.Inf(-1)
		for _, v := range samples {
			lowest, highest = min(lowest, v), max(highest, v)
		}
		if s.N != len(samples) || s.Min != round(lowest) || s.Max != round(highest) {
			t.Errorf("%+v does not describe %v", s, samples)
		}
	})
}

func ramp(n int) []float64 {
	s := make([]float64, n)
	for i := range s {
		s[i] = float64(i)
	}
	return s
}
