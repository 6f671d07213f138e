package search

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/training"
)

// models are the optimizers that learn, with what else they need.
var models = []string{`{"type": "tpe"}`, `{"type": "tpe", "multivariate": false}`, `{"type": "gp"}`, `{"type": "gp", "strategy": "thompson"}`, `{"type": "cmaes"}`}

// bowl has its minimum of 0 away from the middle.
func bowl(p training.Params) float64 {
	sum := 0.0
	for i, name := range []string{"a", "b", "c", "d"} {
		x, _ := p[name].Float()
		sum += float64(i+1) * (x - float64(i)) * (x - float64(i))
	}
	return sum
}

const bowlSpace = `{"a": {"type": "DOUBLE", "range": [-5, 5]}, "b": {"type": "DOUBLE", "range": [-5, 5]}, "c": {"type": "DOUBLE", "range": [-5, 5]}, "d": {"type": "DOUBLE", "range": [-5, 5]}}`

// mixed has its minimum of 0 at rbf, 10, 0.01, 5, 64.
func mixed(p training.Params) float64 {
	c, _ := p["c"].Float()
	gamma, _ := p["gamma"].Float()
	n, _ := p["n"].Float()
	batch, _ := p["batch"].Float()
	c, gamma = math.Log10(c)-1, math.Log10(gamma)+2
	sum := c*c + gamma*gamma + (n-5)*(n-5)/5 + math.Abs(math.Log2(batch)-6)/4
	if p["kernel"].String() != "rbf" {
		sum += 0.5
	}
	return sum
}

const mixedModelSpace = `{"kernel": {"type": "CATEGORICAL", "values": ["linear", "poly", "rbf", "sigmoid"]}, "c": {"type": "DOUBLE", "range": [0.001, 1000], "log": true},
	"gamma": {"type": "DOUBLE", "range": [0.00001, 10], "log": true}, "n": {"type": "INTEGER", "range": [1, 20]}, "batch": {"type": "DISCRETE", "values": [16, 32, 64, 128]}}`

// minimum runs a search with some workers, the oldest trial finishing first, and returns the least value.
func minimum(t testing.TB, s *training.Spec, workers int, f func(training.Params) float64) float64 {
	t.Helper()
	o := optimizer(t, s)
	best := math.Inf(1)
	var busy []Suggestion
	for {
		x, v := o.Next()
		if v == Suggest {
			if why := s.Space.Check(x.Params); len(why) > 0 {
				t.Fatalf("%v: %v", x.Params, why)
			}
			if busy = append(busy, x); len(busy) < workers {
				continue
			}
		}
		if len(busy) == 0 {
			return best
		}
		y := f(busy[0].Params)
		best = min(best, y)
		o.Observe(Event{Kind: Finished, Trial: busy[0].Trial, Epochs: 1, Value: y})
		busy = busy[1:]
	}
}

// Over a few seeds the median of what a model finds is nearer to the minimum than that of random search by far, with one worker and with
// several. Nothing here depends on time or chance: the same numbers come out in each run.
func TestModelsFindBetterThanRandom(t *testing.T) {
	for _, c := range []struct {
		name, space string
		f           func(training.Params) float64
	}{{"bowl", bowlSpace, bowl}, {"mixed", mixedModelSpace, mixed}} {
		regret := func(optimizer string, workers int) float64 {
			var found []float64
			trials := 40
			if strings.Contains(optimizer, "gp") {
				trials = 25
			}
			for seed := range 3 {
				s := spec(t, fmt.Sprintf(`{"entry": "m:f", "direction": "min", "optimizer": %s, "trials": %d, "seed": %d, "space": %s}`, optimizer, trials, seed, c.space))
				found = append(found, minimum(t, s, workers, c.f))
			}
			slices.Sort(found)
			return found[1]
		}
		random := regret(`{"type": "random"}`, 1)
		for _, m := range models {
			for _, workers := range []int{1, 4} {
				t.Run(fmt.Sprintf("%s %s %d", c.name, m, workers), func(t *testing.T) {
					t.Parallel()
					found := regret(m, workers)
					t.Logf("%.3g, random %.3g", found, random)
					limit := 0.6 * random
					if strings.Contains(m, "gp") {
						limit = 0.2 * random
					}
					if !(found < limit) {
						t.Errorf("found %.3g, want %.3g: random search has %.3g", found, limit, random)
					}
				})
			}
		}
	}
}

// Values that no model likes: huge ones, equal ones, failures only, the same point again. Nothing of it may panic or leave the space.
func TestModelsTolerateAnyValues(t *testing.T) {
	space := `{"a": {"type": "DOUBLE", "range": [-1e308, 1e308]}, "b": {"type": "INTEGER", "range": [-9007199254740992, 9007199254740992]}, "c": {"type": "DOUBLE", "range": [1e-300, 1e300], "log": true},
		"d": {"type": "DOUBLE", "range": [2, 2]}, "e": {"type": "CATEGORICAL", "values": ["only"]}, "f": {"type": "DISCRETE", "values": [1e300, -1e300, 0]}, "g": {"type": "INTEGER", "range": [1, 9000000000000000], "log": true}}`
	values := map[string]func(n int) float64{
		"huge":     func(n int) float64 { return []float64{1e300, -1e300, 1, 0, -1}[n%5] },
		"largest":  func(n int) float64 { return []float64{math.MaxFloat64, -math.MaxFloat64}[n%2] },
		"tiny":     func(n int) float64 { return 5e-324 * float64(n%3) },
		"constant": func(int) float64 { return 3 },
		"cliff":    func(n int) float64 { return []float64{1, 1, 1, 1, 1e12}[n%5] },
		"rising":   func(n int) float64 { return math.Pow(10, float64(n)) },
	}
	for _, m := range append(slices.Clone(models), `{"type": "gp", "acquisition": "pi"}`, `{"type": "gp", "acquisition": "lcb", "impute": "min"}`) {
		for name, value := range values {
			t.Run(m+" "+name, func(t *testing.T) {
				t.Parallel()
				s := spec(t, fmt.Sprintf(`{"entry": "m:f", "optimizer": %s, "trials": 18, "seed": 1, "space": %s}`, m, space))
				n := 0
				minimum(t, s, 2, func(training.Params) float64 { n++; return value(n) })
			})
		}
		t.Run(m+" failures", func(t *testing.T) {
			t.Parallel()
			for _, most := range []int{18, 3} { // all of them, all but some
				s := spec(t, fmt.Sprintf(`{"entry": "m:f", "optimizer": %s, "trials": 18, "seed": 1, "space": %s}`, m, space))
				o := optimizer(t, s)
				for x, v := o.Next(); v == Suggest; x, v = o.Next() {
					kind := Failed
					if int(x.Trial)%most == 1 {
						kind = Finished
					}
					o.Observe(Event{Kind: kind, Trial: x.Trial, Epochs: 1, Value: float64(x.Trial)})
				}
			}
		})
	}
}

// A finite space is tried to its end, nothing twice, whatever a model would like.
func TestModelsTryAFiniteSpaceOnce(t *testing.T) {
	for _, m := range models {
		s := spec(t, fmt.Sprintf(`{"entry": "m:f", "optimizer": %s, "trials": 100, "space": {"a": ["INTEGER", [1, 4]], "b": ["CATEGORICAL", ["x", "y", "z"]], "c": {"type": "DISCRETE", "values": [5, 1], "when": {"b": "y"}}}}`, m))
		seen := map[string]bool{}
		minimum(t, s, 1, func(p training.Params) float64 {
			if seen[p.Key()] {
				t.Errorf("%s: %s is tried twice", m, p.Key())
			}
			seen[p.Key()] = true
			a, _ := p["a"].Float()
			return a
		})
		if len(seen) != 16 {
			t.Errorf("%s: %d of 16 configurations were tried", m, len(seen))
		}
	}
}

// The bounds of a specification: 200 parameters, and a thousand trials that run. There is no limit here that a slow machine would
// miss; the test ends, or its deadline ends it.
func TestModelsCopeWithTheLargestSpaces(t *testing.T) {
	var parts []string
	for i := range training.MaxParameters {
		parts = append(parts, fmt.Sprintf(`"p%d": %s`, i, []string{`{"type": "DOUBLE", "range": [0, 1]}`, `{"type": "INTEGER", "range": [0, 9]}`, `{"type": "CATEGORICAL", "values": [1, 2, 3]}`}[i%3]))
	}
	for _, m := range models {
		t.Run(m, func(t *testing.T) {
			t.Parallel()
			s := spec(t, fmt.Sprintf(`{"entry": "m:f", "optimizer": %s, "trials": 13, "seed": 1, "space": {%s}}`, m, strings.Join(parts, ", ")))
			begin := time.Now()
			minimum(t, s, 3, func(p training.Params) float64 { v, _ := p["p0"].Float(); return v })
			t.Logf("%v a suggestion", time.Since(begin)/13)
		})
	}
}

// Of two objectives the search comes to the whole front.
func TestTPEFindsAFront(t *testing.T) {
	s := spec(t, `{"entry": "m:f", "objectives": [{"metric": "a", "direction": "min"}, {"metric": "b", "direction": "max"}], "optimizer": {"type": "tpe"}, "trials": 120, "seed": 3,
		"space": {"x": {"type": "DOUBLE", "range": [-10, 10]}, "y": {"type": "DOUBLE", "range": [-10, 10]}}}`)
	o := optimizer(t, s)
	on, left := 0, 0 // near the front, which is y = 0 and x from 0 to 2; of those nearer to 0
	for n := 0; ; n++ {
		c, v := o.Next()
		if v != Suggest {
			break
		}
		x, _ := c.Params["x"].Float()
		y, _ := c.Params["y"].Float()
		values := []float64{x*x + y*y, -(x-2)*(x-2) - y*y}
		o.Observe(Event{Kind: Finished, Trial: c.Trial, Value: values[0], Values: values})
		if n >= 60 && math.Abs(y) < 1.5 && x > -1 && x < 3 {
			if on++; x < 1 {
				left++
			}
		}
	}
	if on < 30 || left < 5 || left > on-5 { // random search would have 2 of 60 there
		t.Errorf("%d of the last 60 near the front, %d of them at its one end", on, left)
	}
}

// The best of several objectives against the definition: front by front, and of the last front the largest hypervolume.
func TestTheBestOfSeveralObjectives(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		n, m := 3+r.IntN(12), 2+r.IntN(4)
		done := make([]observation, n)
		for i := range done {
			for range m {
				done[i].losses = append(done[i].losses, float64(r.IntN(6)))
			}
		}
		k := 1 + r.IntN(n)
		got := best(done, k)
		if len(got) != k {
			t.Fatalf("%d of %d chosen", len(got), k)
		}
		for i := range done {
			for _, j := range got {
				if !slices.Contains(got, i) && dominates(done[i].losses, done[j].losses) {
					t.Fatalf("%v is left out and better than %v", done[i].losses, done[j].losses)
				}
			}
		}
	}
	points := map[int][]float64{0: {0.1, 0.9}, 1: {0.2, 0.85}, 2: {0.5, 0.5}, 3: {0.85, 0.2}, 4: {0.93, 0.12}}
	if got := spread(points, []int{0, 1, 2, 3, 4}, 3); !slices.Equal(got, greedy(points, 3)) {
		t.Errorf("%v are spread best, want %v", got, greedy(points, 3))
	}
	// A square of 1 at the corner (0.1, 0.1), another at (0.1, 0.1) again, one beside: volumes by hand.
	if v := hypervolume([][]float64{{0.1, 0.1}, {0.1, 0.1}}); math.Abs(v-1) > 1e-12 {
		t.Errorf("hypervolume %v, want 1", v)
	}
	if v := hypervolume([][]float64{{0.1, 0.6}, {0.6, 0.1}}); math.Abs(v-0.75) > 1e-12 {
		t.Errorf("hypervolume %v, want 0.75", v)
	}
	if v := hypervolume([][]float64{{0.1, 0.1, 0.6}, {0.6, 0.1, 0.1}, {0.1, 0.6, 0.1}}); math.Abs(v-0.75-0.125) > 1e-12 { // by inclusion and exclusion: 3·0.5 - 3·0.25 + 0.125
		t.Errorf("hypervolume %v, want 0.875", v)
	}
}

// greedy is the dumb form of spread.
func greedy(points map[int][]float64, k int) []int {
	var out []int
	var chosen [][]float64
	for range k {
		best, volume := -1, -1.0
		for i := range len(points) {
			if v := hypervolume(append(slices.Clone(chosen), points[i])); !slices.Contains(out, i) && v > volume+1e-12 {
				best, volume = i, v
			}
		}
		out, chosen = append(out, best), append(chosen, points[best])
	}
	return out
}

// Densities have the integral 1, over a continuum and over cells and choices together.
func TestParzenIsADensity(t *testing.T) {
	s := newAxes(spec(t, `{"entry": "m:f", "space": {"u": {"type": "DOUBLE", "range": [-3, 5]}, "n": {"type": "INTEGER", "range": [2, 20], "log": true}, "c": {"type": "CATEGORICAL", "values": [1, 2, 3]}}}`).Space)
	r := rand.New(rand.NewPCG(4, 4))
	for _, n := range []int{0, 1, 2, 30} {
		var points [][]float64
		for range n {
			points = append(points, s.random(r))
		}
		p := newParzen(s, []int{0, 1, 2}, points, rankWeights(n))
		const steps = 500
		sum := 0.0
		for k := range steps {
			for v := 2; v <= 20; v++ {
				for c := range 3 {
					x := []float64{(float64(k) + 0.5) / steps, s[1].encode(training.Int(int64(v))), float64(c)}
					sum += math.Exp(p.log(x)) / steps
				}
			}
		}
		if math.Abs(sum-1) > 5e-3 {
			t.Errorf("%d points: integral %v", n, sum)
		}
	}
}

// What a model reads from a configuration it writes as the same one.
func TestAxesKeepConfigurations(t *testing.T) {
	for _, doc := range []string{mixedModelSpace, `{"a": {"type": "CATEGORICAL", "values": ["x", "y"]}, "n": {"type": "INTEGER", "range": [-3, 700], "when": {"a": "y"}}, "l": {"type": "INTEGER", "range": [1, 100000], "log": true}, "d": {"type": "DISCRETE", "values": [3, 1, 2.5]}}`} {
		s := spec(t, fmt.Sprintf(`{"entry": "m:f", "space": %s, "optimizer": {"type": "random"}, "trials": 300}`, doc))
		a := newAxes(s.Space)
		minimum(t, s, 1, func(p training.Params) float64 {
			x := a.encode(p)
			back := a.decode(x)
			for name, v := range p {
				f, number := v.Float()
				g, _ := back[name].Float()
				if !number && v != back[name] || number && math.Abs(f-g) > 1e-9*math.Abs(f) {
					t.Errorf("%s: %v came back as %v", name, v, back[name])
				}
			}
			if len(back) != len(p) {
				t.Errorf("%v came back as %v", p, back)
			}
			for i := range x {
				if low, high := a[i].cell(x[i]); !a[i].nominal && !math.IsNaN(x[i]) && !(low <= x[i] && x[i] <= high) {
					t.Errorf("%s: %v is outside its cell %v to %v", a[i].Name, x[i], low, high)
				}
			}
			return 0
		})
	}
}
