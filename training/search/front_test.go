package search

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gohops/hops/training"
)

func TestFrontIsWhatNoOtherDominates(t *testing.T) {
	objectives := []training.Objective{{Metric: "acc", Direction: training.Max}, {Metric: "ms", Direction: training.Min}, {Metric: "mb", Direction: training.Min}}
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		k := 1 + r.IntN(3)
		values := make([][]float64, r.IntN(30))
		for i := range values {
			if r.IntN(8) == 0 {
				continue // it has no values
			}
			for range k {
				values[i] = append(values[i], float64(r.IntN(5)))
			}
		}
		var want []int // by comparing each with each
		for i, v := range values {
			if v == nil {
				continue
			}
			if !slices.ContainsFunc(values, func(w []float64) bool {
				if w == nil {
					return false
				}
				better := false
				for j, o := range objectives[:k] {
					if o.Direction.Better(v[j], w[j]) {
						return false
					}
					better = better || o.Direction.Better(w[j], v[j])
				}
				return better
			}) {
				want = append(want, i)
			}
		}
		if got := Front(values, objectives[:k]); !slices.Equal(got, want) {
			t.Fatalf("front of %v: %v, want %v", values, got, want)
		}
	}
}
