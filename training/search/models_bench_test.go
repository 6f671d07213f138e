package search

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gohops/hops/training"
)

// What a suggestion costs when so many results are known, of 6 numbers of Hartmann's kind: the state's loop waits for it.
func BenchmarkSuggestion(b *testing.B) {
	for _, m := range models {
		for _, n := range []int{100, 500, 10_000} {
			b.Run(fmt.Sprintf("%s/%d", m, n), func(b *testing.B) {
				s := spec(b, fmt.Sprintf(`{"entry": "m:f", "direction": "min", "optimizer": %s, "trials": 100000, "seed": 1, "space": {"a": {"type": "DOUBLE", "range": [0, 1]}, "b": {"type": "DOUBLE", "range": [0, 1]},
					"c": {"type": "DOUBLE", "range": [0, 1]}, "d": {"type": "DOUBLE", "range": [0, 1]}, "e": {"type": "DOUBLE", "range": [0, 1]}, "f": {"type": "DOUBLE", "range": [0, 1]}}}`, m))
				o := optimizer(b, s)
				r := rand.New(rand.NewPCG(1, 2))
				value := func(p training.Params) float64 {
					sum := 0.0
					for i, name := range []string{"a", "b", "c", "d", "e", "f"} {
						v, _ := p[name].Float()
						sum += float64(i+1) * (v - 0.3) * (v - 0.3)
					}
					return sum
				}
				feed := func(x Suggestion) {
					o.Observe(Event{Kind: Finished, Trial: x.Trial, Value: value(x.Params)})
				}
				for i := range n {
					p := training.Params{}
					for _, q := range s.Space {
						p[q.Name] = training.Float(r.Float64())
					}
					x := Suggestion{Trial: training.TrialID(i + 1), Params: p, Last: true}
					o.Adopt(x)
					feed(x)
				}
				for b.Loop() {
					x, _ := o.Next()
					feed(x)
				}
			})
		}
	}
}
