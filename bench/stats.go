package bench

import (
	"math"
	"slices"
)

// Summary describes samples of one measurement, in its unit.
type Summary struct {
	N   int     `json:"n"`
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// Summarize sorts a copy of samples and describes them. Values are rounded to
// three decimals: a microsecond, where the unit is a millisecond.
func Summarize(samples []float64) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	s := slices.Sorted(slices.Values(samples))
	return Summary{
		N: len(s), Min: round(s[0]), Max: round(s[len(s)-1]),
		P50: round(percentile(s, 50)), P95: round(percentile(s, 95)), P99: round(percentile(s, 99)),
	}
}

// percentile gives the p-th percentile of sorted samples, interpolated linearly
// between the two nearest ranks.
func percentile(sorted []float64, p float64) float64 {
	rank := p / 100 * float64(len(sorted)-1)
	low := int(math.Floor(rank))
	high := int(math.Ceil(rank))
	return sorted[low] + (sorted[high]-sorted[low])*(rank-float64(low))
}

func round(f float64) float64 { return math.Round(f*1000) / 1000 }
