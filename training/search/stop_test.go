package search

import (
	"strings"
	"testing"

	"github.com/gohops/hops/training"
)

func line(values ...float64) *Curve {
	var c Curve
	for i, v := range values {
		c.Put(int64(i+1), v)
	}
	return &c
}

func stopper(t *testing.T, min, interval int) EarlyStop {
	t.Helper()
	e, err := NewEarlyStop(training.EarlyStop{Policy: training.Median, Min: &min, Interval: interval})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The rule stops a trial and would not have stopped a better one, in both directions.
func TestMedianStopsTheWorseHalfOnly(t *testing.T) {
	curves := [][]float64{{.125, .25, .375, .5}, {.25, .5, .75, .9}, {.5, .625, .75, .9}}
	for _, d := range []training.Direction{training.Max, training.Min} {
		turn := func(vs ...float64) *Curve {
			out := make([]float64, len(vs))
			for i, v := range vs {
				out[i] = d.Score(v)
			}
			return line(out...)
		}
		var finished []TrialView
		for i, c := range curves {
			finished = append(finished, TrialView{training.TrialID(i + 1), turn(c...)})
		}
		e := stopper(t, 2, 1)
		// Running means at step 3: .25, .5, .625; median .5.
		if got := e.Check(TrialView{4, turn(.1, .2, .49)}, finished, d); !got.Stop || !strings.Contains(got.Reason, "median 0.5 of 3 trials") && !strings.Contains(got.Reason, "median -0.5 of 3 trials") {
			t.Errorf("%s: best .49 goes on: %+v", d, got)
		}
		if got := e.Check(TrialView{4, turn(.1, .2, .51)}, finished, d); got.Stop {
			t.Errorf("%s: best .51 is stopped: %s", d, got.Reason)
		}
		if got := e.Check(TrialView{4, turn(.1, .55, .1)}, finished, d); got.Stop {
			t.Errorf("%s: the best so far counts, not the last: %s", d, got.Reason)
		}
		if got := e.Check(TrialView{4, turn(.1, .2, .5)}, finished, d); got.Stop {
			t.Errorf("%s: the median itself is not worse: %s", d, got.Reason)
		}
	}
}

func TestMedianComparesAtEqualSteps(t *testing.T) {
	e := stopper(t, 0, 1)
	short := TrialView{1, line(.9, .9)}
	if got := e.Check(TrialView{2, line(.1, .1, .1)}, []TrialView{short}, training.Max); got.Stop {
		t.Errorf("a trial that ended at step 2 judges step 3: %s", got.Reason)
	}
	// The same finished list grows; what was remembered is extended.
	long := TrialView{3, line(.5, .5, .5)}
	if got := e.Check(TrialView{4, line(.1, .1, .1)}, []TrialView{short, long}, training.Max); !got.Stop {
		t.Error("worse than the only one that reached step 3, and not stopped")
	}
}

func TestMedianWaitsForEnoughTrialsAndItsInterval(t *testing.T) {
	good := func(n int) (out []TrialView) {
		for i := range n {
			out = append(out, TrialView{training.TrialID(i + 1), line(.9, .9, .9, .9)})
		}
		return out
	}
	if got := stopper(t, 3, 1).Check(TrialView{9, line(.1)}, good(3), training.Max); got.Stop {
		t.Error("es_min 3: stopped after 3 completed trials, wants more than 3")
	}
	if got := stopper(t, 3, 1).Check(TrialView{9, line(.1)}, good(4), training.Max); !got.Stop {
		t.Error("es_min 3: not stopped after 4")
	}
	e := stopper(t, 0, 2)
	if e.Check(TrialView{9, line(.1)}, good(1), training.Max).Stop || !e.Check(TrialView{9, line(.1, .1)}, good(1), training.Max).Stop {
		t.Error("interval 2: looks at every second step")
	}
}

func TestCurveReplacesFromAStepOn(t *testing.T) {
	c := line(1, 2, 3, 4)
	if n := c.Put(3, 9); n != 2 {
		t.Errorf("dropped %d, want 2", n)
	}
	if mean, _ := c.Mean(3); mean != 4 || c.Len() != 3 {
		t.Errorf("mean %v of %d points, want 4 of 3", mean, c.Len())
	}
	b, _ := c.MarshalJSON()
	var d Curve
	if err := d.UnmarshalJSON(b); err != nil || d.Len() != 3 || string(b) != "[[1,1],[2,2],[3,9]]" {
		t.Errorf("%s: %v", b, err)
	}
}

// In both directions: of four means the best quarter is bounded by a value between the two best.
func TestPercentileLetsTheBestGoOn(t *testing.T) {
	for _, d := range []training.Direction{training.Max, training.Min} {
		var finished []TrialView
		for i := range 5 {
			finished = append(finished, TrialView{training.TrialID(i + 1), line(d.Score(float64(i)), d.Score(float64(i)))})
		}
		for percent, bar := range map[float64]float64{25: 3, 50: 2, 75: 1, 12.5: 3.5} {
			e, err := NewEarlyStop(training.EarlyStop{Policy: training.Percentile, Min: new(4), Interval: 1, Percentile: &percent})
			if err != nil {
				t.Fatal(err)
			}
			if e.Check(TrialView{9, line(d.Score(bar))}, finished, d).Stop || !e.Check(TrialView{9, line(d.Score(bar - .01))}, finished, d).Stop {
				t.Errorf("%s, the best %v %%: the bar is not %v", d, percent, bar)
			}
		}
	}
}

func TestThresholdStopsWhatIsWorse(t *testing.T) {
	for _, d := range []training.Direction{training.Max, training.Min} {
		e, err := NewEarlyStop(training.EarlyStop{Policy: training.Threshold, Min: new(10), Interval: 2, Warmup: 3, Threshold: new(d.Score(.5))})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			values []float64
			stop   bool
		}{{[]float64{.1}, false}, {[]float64{.1, .1}, false}, {[]float64{.1, .1, .1}, false}, {[]float64{.1, .1, .1, .1}, true}, {[]float64{.1, .5, .1, .1}, false}, {[]float64{.1, .1, .1, .1, .1}, false}} {
			var turned []float64
			for _, v := range c.values {
				turned = append(turned, d.Score(v))
			}
			if got := e.Check(TrialView{1, line(turned...)}, nil, d); got.Stop != c.stop {
				t.Errorf("%s: %v: %+v", d, c.values, got)
			}
		}
	}
}
