package search

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gohops/hops/training"
)

// extremes are ranges at the ends of what a number can be.
var extremes = []training.Parameter{
	{Type: training.Double, Min: -1e308, Max: 1e308},
	{Type: training.Double, Min: -math.MaxFloat64, Max: math.MaxFloat64},
	{Type: training.Double, Min: 0, Max: 5e-324},
	{Type: training.Double, Min: 3, Max: 3},
	{Type: training.Double, Min: 1, Max: math.Nextafter(1, 2)},
	{Type: training.Double, Min: 5e-324, Max: math.MaxFloat64, Log: true},
	{Type: training.Double, Min: 1e10, Max: math.Nextafter(1e10, 2e10), Log: true},
	{Type: training.Double, Min: 2, Max: 2, Log: true},
	{Type: training.Integer, Min: -1 << 53, Max: 1 << 53},
	{Type: training.Integer, Min: 1<<53 - 1, Max: 1 << 53},
	{Type: training.Integer, Min: -1 << 53, Max: 1 - 1<<53},
	{Type: training.Integer, Min: 7, Max: 7},
	{Type: training.Integer, Min: 1, Max: 1 << 53, Log: true},
	{Type: training.Integer, Min: 1<<53 - 1, Max: 1 << 53, Log: true},
}

// Every place of every range is a value of it, and every value has a place; of a whole number it is one that leads back to it.
func TestPlacesOfExtremeRanges(t *testing.T) {
	for _, d := range extremes {
		d.Name = "x"
		a := newAxes(training.Space{d})
		check := func(what string, v training.Value) {
			t.Helper()
			if why := d.Check(v); why != "" {
				t.Fatalf("%+v: %s: %s", d, what, why)
			}
			for _, u := range []float64{toUnit(d, v), a[0].encode(v)} {
				if !(u >= 0 && u <= 1) {
					t.Fatalf("%+v: %v is at %v", d, v, u)
				}
			}
		}
		r := rand.New(rand.NewPCG(1, 1))
		low, high := 0, 0
		for k := range 1000 {
			u := []float64{0, math.Nextafter(1, 0), 1, r.Float64()}[min(k, 3)]
			check(fmt.Sprint("the value at ", u), fromUnit(d, u))
			check(fmt.Sprint("the model's value at ", u), a[0].decode(u))
			v := sample(d, r)
			check("a sample", v)
			if f, _ := v.Float(); f < d.Min/2+d.Max/2 {
				low++
			} else {
				high++
			}
		}
		if d.Type == training.Double && !d.Log && d.Max > 1 && d.Max > math.Nextafter(d.Min, d.Max) && (low < 400 || high < 400) {
			t.Errorf("%+v: of 1000 samples %d are in the lower half and %d in the upper", d, low, high)
		}
		if d.Type != training.Integer || d.Log {
			continue
		}
		for _, f := range []float64{d.Min, d.Max} {
			v := training.Int(int64(f))
			if back, model := fromUnit(d, toUnit(d, v)), a[0].decode(a[0].encode(v)); d.Max-d.Min < 1<<50 && (back != v || model != v) {
				t.Errorf("%+v: %v comes back as %v and %v", d, v, back, model)
			}
		}
	}
}

// Whole optimizers over all of those at once, so that nothing outside the space is suggested.
func TestOptimizersOverExtremeRanges(t *testing.T) {
	space := training.Space{}
	for i, d := range extremes {
		d.Name = fmt.Sprintf("p%d", i)
		space = append(space, d)
	}
	doc, err := space.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range append([]string{`{"type": "random"}`, `{"type": "sobol"}`, `{"type": "de"}`, `{"type": "pbt", "population": 6}`}, models...) {
		t.Run(o, func(t *testing.T) {
			t.Parallel()
			trials := ""
			if o != `{"type": "de"}` && o != `{"type": "pbt", "population": 6}` {
				trials = `"trials": 24, `
			}
			s := spec(t, fmt.Sprintf(`{"entry": "m:f", "direction": "min", "optimizer": %s, %s"max_epochs": 3, "seed": 3, "space": %s}`, o, trials, doc))
			x := optimizer(t, s)
			for n := 0; ; n++ {
				c, v := x.Next()
				if v != Suggest {
					break
				}
				if c.Params != nil {
					if why := s.Space.Check(c.Params); len(why) > 0 {
						t.Fatal(why)
					}
				}
				x.Observe(Event{Kind: Finished, Trial: c.Trial, Epochs: max(c.Budget, 1), Value: float64(n * 37 % 11)})
			}
		})
	}
}

// A range of more whole numbers than a probability has digits is searched as well as one of real numbers.
func TestTPESearchesHugeRangesOfWholeNumbers(t *testing.T) {
	regret := func(kind, optimizer string) float64 {
		var found []float64
		for seed := range 5 {
			s := spec(t, fmt.Sprintf(`{"entry": "m:f", "direction": "min", "optimizer": {"type": %q}, "trials": 60, "seed": %d, "space": {"a": {"type": %q, "range": [0, 1e15]}, "b": {"type": %q, "range": [0, 1e15]}}}`,
				optimizer, seed, kind, kind))
			found = append(found, minimum(t, s, 1, func(p training.Params) float64 {
				a, _ := p["a"].Float()
				b, _ := p["b"].Float()
				return math.Abs(a/1e15-0.31) + math.Abs(b/1e15-0.74)
			}))
		}
		slices.Sort(found)
		return found[2]
	}
	whole, real, random := regret("INTEGER", "tpe"), regret("DOUBLE", "tpe"), regret("INTEGER", "random")
	t.Logf("whole numbers %.3g, real ones %.3g, random %.3g", whole, real, random)
	if whole > random/2 || whole > 3*real {
		t.Errorf("whole numbers %.3g, real ones %.3g, random %.3g", whole, real, random)
	}
}

// The mass of a narrow cell is that of a wide one in the small.
func TestMassesOfCells(t *testing.T) {
	for _, mu := range []float64{0, 0.3, 1} {
		for _, at := range []float64{0.001, 0.31, 0.999} {
			for _, width := range []float64{1e-2, 1e-3, 1e-4, 1e-5} {
				low, high, sigma := at, at+width, 0.5
				got, want := logCellMass(low, high, mu, sigma), math.Log(normalMass((low-mu)/sigma, (high-mu)/sigma))
				if math.Abs(got-want) > 1e-6 {
					t.Errorf("cell at %v of %v around %v: %v, want %v", at, width, mu, got, want)
				}
			}
		}
	}
	if v := logCellMass(0.5, 0.5, 0, 0.1); math.IsInf(v, 0) || math.IsNaN(v) {
		t.Errorf("a cell without width has %v", v)
	}
}

// Of several runs of a configuration the mean is told, though their sum would be infinite; and one that was stopped and is resumed when all
// of them had ended is waited for, and ends.
func TestRepeatsAtTheEnd(t *testing.T) {
	s := spec(t, `{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 2, "repeats": 3, "seed": 1, "space": {"a": {"type": "DOUBLE", "range": [0, 1]}}}`)
	o := optimizer(t, s)
	for range 6 {
		if _, v := o.Next(); v != Suggest {
			t.Fatal(v)
		}
	}
	for id := range 5 {
		o.Observe(Event{Kind: Finished, Trial: training.TrialID(id + 1), Value: math.MaxFloat64})
		if _, err := o.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	o.Observe(Event{Kind: Stopped, Trial: 6})
	if _, v := o.Next(); v != Done {
		t.Fatalf("all have ended, and it is %v", v)
	}
	o.Observe(Event{Kind: Resumed, Trial: 6})
	if _, v := o.Next(); v != Idle {
		t.Fatalf("trial 6 runs again, and it is %v", v)
	}
	b, err := o.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	back := optimizer(t, s)
	if err := back.Restore(b, make([]training.Params, 6)); err != nil {
		t.Fatal(err)
	}
	for _, o := range []Optimizer{o, back} {
		o.Observe(Event{Kind: Finished, Trial: 6, Value: 1})
		if _, v := o.Next(); v != Done {
			t.Errorf("trial 6 has ended, and it is %v", v)
		}
	}
}

// A thousand who ask while nobody answers get a thousand different configurations.
func TestModelsAskedWithoutAnswers(t *testing.T) {
	for _, m := range models {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			asks := 1000
			if m != `{"type": "cmaes"}` {
				asks = 60 // it takes them longer
			}
			s := spec(t, fmt.Sprintf(`{"entry": "m:f", "direction": "min", "optimizer": %s, "trials": 2000, "seed": 1, "space": %s}`, m, bowlSpace))
			o := optimizer(t, s)
			seen := map[string]bool{}
			for n := range asks + 20 {
				c, v := o.Next()
				if v != Suggest || seen[c.Params.Key()] {
					t.Fatalf("ask %d: %v, %s", n, v, c.Params.Key())
				}
				seen[c.Params.Key()] = true
				if n < 20 {
					o.Observe(Event{Kind: Finished, Trial: c.Trial, Value: bowl(c.Params)})
				}
			}
		})
	}
}

// Rules that stop trials hold at the largest values: who is no worse goes on.
func TestMedianOfTheLargestValues(t *testing.T) {
	var finished []TrialView
	for i := range 4 {
		c := &Curve{}
		for step := range 3 {
			v := 1.0
			if i%2 == 0 {
				v = math.MaxFloat64
			}
			c.Put(int64(step), v)
		}
		finished = append(finished, TrialView{Trial: training.TrialID(i + 1), Curve: c})
	}
	c := &Curve{}
	for step := range 3 {
		c.Put(int64(step), 0.5)
	}
	e, err := NewEarlyStop(training.EarlyStop{Policy: training.Median, Min: new(1), Interval: 1})
	if err != nil {
		t.Fatal(err)
	}
	if d := e.Check(TrialView{Trial: 9, Curve: c}, finished, training.Min); d.Stop {
		t.Error(d.Reason)
	}
	bad := &Curve{}
	for step := range 3 {
		bad.Put(int64(step), math.MaxFloat64)
	}
	if d := e.Check(TrialView{Trial: 10, Curve: bad}, append(finished, TrialView{Trial: 5, Curve: c}), training.Min); !d.Stop {
		t.Error("the worst of all goes on")
	}
}

// A step that nothing is before replaces everything.
func TestCurveAtTheFirstStep(t *testing.T) {
	c := &Curve{}
	c.Put(1, 1)
	c.Put(2, 2)
	if n := c.Put(math.MinInt64, 3); n != 2 || c.Len() != 1 {
		t.Errorf("%d points were dropped, %d are there", n, c.Len())
	}
}

// The same point again and again, with values that contradict each other or are none, teaches nothing and breaks nothing; a search that is read
// back between goes on as the one that was written.
func TestModelsOfOnePoint(t *testing.T) {
	values := map[string][]float64{"equal": {3}, "contrary": {1, 2}, "none": {math.NaN(), math.Inf(1), math.Inf(-1)}, "one": {math.NaN(), 1, math.Inf(-1)}}
	for _, m := range models {
		for name, list := range values {
			t.Run(m+" "+name, func(t *testing.T) {
				t.Parallel()
				s := spec(t, fmt.Sprintf(`{"entry": "m:f", "direction": "min", "optimizer": %s, "trials": 60, "seed": 1, "space": %s}`, m, mixedModelSpace))
				o := optimizer(t, s)
				first, _ := o.Next()
				tried := []training.Params{first.Params}
				for n := 2; n <= 30; n++ {
					o.Adopt(Suggestion{Trial: training.TrialID(n), Params: first.Params, Last: true})
					tried = append(tried, first.Params)
				}
				for n := range 25 { // and five run
					o.Observe(Event{Kind: Finished, Trial: training.TrialID(n + 1), Value: list[n%len(list)]})
				}
				b, err := o.Snapshot()
				if err != nil {
					t.Fatal(err)
				}
				back := optimizer(t, s)
				if err := back.Restore(b, tried); err != nil {
					t.Fatal(err)
				}
				for range 3 {
					x, v := o.Next()
					y, _ := back.Next()
					if v != Suggest || x.Params.Key() != y.Params.Key() {
						t.Fatalf("%v: %s, and read back %s", v, x.Params.Key(), y.Params.Key())
					}
					if why := s.Space.Check(x.Params); len(why) > 0 {
						t.Fatal(why)
					}
				}
			})
		}
	}
}
