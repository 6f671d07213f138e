package search

import (
	"fmt"
	"math"
	"testing"

	"github.com/gohops/hops/training"
)

// evolved runs an optimizer on a function, one trial at a time, and returns the best value of each generation.
func evolved(t *testing.T, doc string, f func(training.Params) float64) (best []float64) {
	t.Helper()
	s := spec(t, doc)
	o := optimizer(t, s)
	for {
		x, v := o.Next()
		if v != Suggest {
			return best
		}
		value := f(x.Params)
		if (int(x.Trial)-1)%s.Optimizer.Population == 0 {
			best = append(best, math.Inf(1))
			if n := len(best); n > 1 {
				best[n-1] = best[n-2]
			}
		}
		best[len(best)-1] = min(best[len(best)-1], value)
		o.Observe(Event{Kind: Finished, Trial: x.Trial, Epochs: 1, Value: value})
	}
}

func TestEvolutionFindsTheMinimum(t *testing.T) {
	sphere := func(p training.Params) float64 {
		x, _ := p["x"].Float()
		lr, _ := p["lr"].Float()
		n, _ := p["n"].Float()
		sum := (x-3)*(x-3) + math.Pow(math.Log10(lr)+2, 2) + (n-7)*(n-7)/10
		if p["kind"].String() != "good" {
			sum++
		}
		return sum
	}
	best := evolved(t, `{"entry": "m:f", "direction": "min", "seed": 4, "optimizer": {"type": "de", "population": 15, "generations": 30}, "space": {"x": ["DOUBLE", [-10, 10]],
		"lr": {"type": "DOUBLE", "range": [1e-5, 1], "log": true}, "n": ["INTEGER", [1, 50]], "kind": ["CATEGORICAL", ["bad", "good", "ugly"]]}}`, sphere)
	if n := len(best); n != 30 || best[n-1] > 0.05 || best[n-1] > best[0]/10 {
		t.Errorf("%d generations: %v", len(best), best)
	}
}

// A generation's mutants are made of survivors: a challenger that is worse, failed or was stopped is none.
func TestEvolutionKeepsTheBetterOfMemberAndChallenger(t *testing.T) {
	s := spec(t, `{"entry": "m:f", "optimizer": {"type": "de", "population": 4, "generations": 3}, "space": {"x": ["DOUBLE", [0, 1]]}}`)
	o := optimizer(t, s).(*evolution)
	values := []float64{5, 6, 7, 8}
	for range 4 {
		x, _ := o.Next()
		o.Observe(Event{Kind: Finished, Trial: x.Trial, Value: values[x.Trial-1]})
	}
	for i := range 4 {
		x, v := o.Next()
		if v != Suggest || x.Label != "generation.1" || int(x.Trial) != 5+i {
			t.Fatalf("%+v %v", x, v)
		}
	}
	if _, v := o.Next(); v != Idle {
		t.Fatalf("the next generation begins before this one has ended: %v", v)
	}
	o.Observe(Event{Kind: Finished, Trial: 5, Value: 5}) // as good as 1
	o.Observe(Event{Kind: Finished, Trial: 6, Value: 5.9})
	o.Observe(Event{Kind: Failed, Trial: 7})
	o.Observe(Event{Kind: Stopped, Trial: 8, Epochs: 1, Value: 100})
	if x, v := o.Next(); v != Suggest || x.Label != "generation.2" {
		t.Fatalf("%+v %v", x, v)
	}
	for i, want := range []training.TrialID{5, 2, 3, 4} {
		if got := o.state.Members[i].Trial; got != want {
			t.Errorf("member %d is trial %v, want %v", i, got, want)
		}
	}
}

func TestUnitsAndBack(t *testing.T) {
	for _, d := range []training.Parameter{
		{Type: training.Double, Min: -3, Max: 5},
		{Type: training.Double, Min: 1e-4, Max: 1, Log: true},
		{Type: training.Integer, Min: 1, Max: 9},
		{Type: training.Integer, Min: 1, Max: 512, Log: true},
		{Type: training.Discrete, Values: []training.Value{training.Int(4), training.Int(8)}},
		{Type: training.Double, Min: 2, Max: 2},
	} {
		seen := map[training.Value]bool{}
		for i := range 1001 {
			v := fromUnit(d, float64(i)/1000)
			seen[v] = true
			if why := d.Check(v); why != "" {
				t.Errorf("%+v: %s", d, why)
			}
			again := fromUnit(d, toUnit(d, v))
			a, _ := v.Float()
			b, _ := again.Float()
			if d.Type == training.Double && math.Abs(a-b) > 1e-9*math.Abs(a) || d.Type != training.Double && a != b {
				t.Errorf("%+v: %v comes back as %v", d, v, again)
			}
		}
		if n, finite := d.Size(); finite && n < 20 && len(seen) != int(n) {
			t.Errorf("%+v: %d values of %d", d, len(seen), n)
		}
	}
	for x, want := range map[float64]float64{0.3: 0.3, -0.3: 0.3, 1.25: 0.75, 2.5: 0.5, -1.25: 0.75} {
		if got := reflect(x); math.Abs(got-want) > 1e-12 {
			t.Errorf("reflect %v: %v, want %v", x, got, want)
		}
	}
}

// Mutants and copies are drawn with the seed too: from the same configurations and values, another seed goes another way.
func TestTheSeedDecidesWhatBecomesOfAPopulation(t *testing.T) {
	for _, doc := range []string{`"optimizer": {"type": "de", "population": 8}`, `"optimizer": {"type": "pbt", "population": 8}, "max_epochs": 9`} {
		var first []Suggestion
		next := map[string]bool{}
		for seed := range 5 {
			o := optimizer(t, spec(t, fmt.Sprintf(`{"entry": "m:f", "seed": %d, %s, "space": {"x": ["DOUBLE", [0, 1]], "y": ["DOUBLE", [0, 1]]}}`, seed, doc)))
			for i := range 8 {
				if seed == 0 {
					s, _ := o.Next()
					first = append(first, s)
				} else {
					o.Adopt(first[i])
				}
			}
			for i := range 8 {
				o.Observe(Event{Kind: Finished, Trial: training.TrialID(i + 1), Epochs: 1, Value: float64(i)})
			}
			s, _ := o.Next()
			next[s.Params.Key()] = true
		}
		if len(next) != 5 {
			t.Errorf("%s: five seeds go %d ways", doc, len(next))
		}
	}
}
