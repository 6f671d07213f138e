package search

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// How many trials a second go through Next and Observe, each from its first suggestion to its end: 100,000 of a search, with 64
// at work.
func BenchmarkTrials(b *testing.B) {
	const trials = 100_000
	space := `"space": {"x": ["DOUBLE", [0, 1]], "y": ["INTEGER", [1, 1000000]], "c": ["CATEGORICAL", ["a", "b"]]}`
	for _, doc := range []string{
		`"optimizer": {"type": "grid"}, "space": {"a": ["INTEGER", [1, 100]], "c": ["CATEGORICAL", ["a", "b"]], "d": {"type": "INTEGER", "range": [1, 900], "when": {"c": "a"}}, "e": {"type": "INTEGER", "range": [1, 100], "when": {"c": "b"}}}`,
		`"optimizer": {"type": "random"}`, `"optimizer": {"type": "asha", "r_max": 81}`, `"optimizer": {"type": "asha", "r_max": 81, "variant": "stopping"}`,
		`"optimizer": {"type": "hyperband", "r_max": 81}`, `"optimizer": {"type": "sobol"}`,
	} {
		if !strings.Contains(doc, "space") {
			doc += ", " + space
		}
		s := spec(b, fmt.Sprintf(`{"entry": "m:f", "trials": %d, "seed": 1, %s}`, trials, doc))
		b.Run(strings.TrimSuffix(strings.ReplaceAll(doc, " ", ""), ","+strings.ReplaceAll(space, " ", "")), func(b *testing.B) {
			begin := cpu()
			for b.Loop() {
				o := optimizer(b, s)
				var busy []Suggestion
				for n := 0; ; n++ {
					for len(busy) < 64 {
						got, v := o.Next()
						if v != Suggest {
							break
						}
						busy = append(busy, got)
					}
					if len(busy) == 0 {
						break
					}
					i := n * 7 % len(busy)
					got := busy[i]
					busy[i] = busy[len(busy)-1]
					busy = busy[:len(busy)-1]
					value := float64(uint32(got.Trial)*2654435761) / (1 << 32)
					o.Observe(Event{Kind: Reported, Trial: got.Trial, Epochs: 1, Value: value})
					o.Observe(Event{Kind: Finished, Trial: got.Trial, Epochs: got.Budget, Value: value})
					if o.Outlook() < 0 {
						b.Fatal("outlook")
					}
				}
			}
			b.ReportMetric(float64(trials)*float64(b.N)/(cpu()-begin).Seconds(), "trials/cpu-s")
		})
	}
}

// cpu is the time that the process has worked: on a busy machine the clock on the wall says nothing.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
