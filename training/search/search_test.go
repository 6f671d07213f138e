package search

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/training"
)

func spec(t testing.TB, doc string) *training.Spec {
	t.Helper()
	s, err := training.ParseSpec([]byte(doc), "ann")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func optimizer(t testing.TB, s *training.Spec) Optimizer {
	t.Helper()
	o, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

const mixedSpace = `"space": {"lr": {"type": "DOUBLE", "range": [0.0001, 1], "log": true}, "hidden": {"type": "INTEGER", "range": [4, 64], "log": true},
	"drop": {"type": "DOUBLE", "range": [0, 0.7]}, "act": {"type": "CATEGORICAL", "values": ["relu", "tanh"]}, "batch": {"type": "DISCRETE", "values": [16, 32]}}`

func TestRandomStaysInsideItsSpace(t *testing.T) {
	s := spec(t, `{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 500, "seed": 3, `+mixedSpace+`}`)
	o := optimizer(t, s)
	low := 0
	for range 500 {
		got, v := o.Next()
		if v != Suggest {
			t.Fatal(v)
		}
		if why := s.Space.Check(got.Params); len(why) > 0 {
			t.Fatalf("trial %v %v: %v", got.Trial, got.Params, why)
		}
		if lr, _ := got.Params["lr"].Float(); lr < 0.01 {
			low++
		}
	}
	if low < 200 || low > 300 { // the middle of the logarithm
		t.Errorf("%d of 500 learning rates below 0.01, want about half", low)
	}
	if _, v := o.Next(); v != Idle {
		t.Errorf("500 running: %v, want Idle", v)
	}
}

func TestRandomTriesEveryPointOfAFiniteSpaceOnce(t *testing.T) {
	s := spec(t, `{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 1000, "space": {"a": ["INTEGER", [1, 9]], "b": ["CATEGORICAL", ["x", "y", "z"]], "c": {"type": "INTEGER", "range": [1, 4], "log": true}}}`)
	o := optimizer(t, s)
	seen := map[string]bool{}
	for {
		got, v := o.Next()
		if v != Suggest {
			break
		}
		if seen[got.Params.Key()] {
			t.Fatalf("%v suggested twice", got.Params)
		}
		seen[got.Params.Key()] = true
		o.Observe(Event{Kind: Finished, Trial: got.Trial})
	}
	if len(seen) != 9*3*4 || o.Planned() != 9*3*4 {
		t.Errorf("%d tried, %d planned, want 108", len(seen), o.Planned())
	}
	if _, v := o.Next(); v != Done {
		t.Errorf("verdict %v, want Done", v)
	}
}

func TestGridRunsTheProductInOrder(t *testing.T) {
	o := optimizer(t, spec(t, `{"entry": "m:f", "optimizer": {"type": "grid"}, "space": {"b": ["DISCRETE", [1, 2]], "a": ["CATEGORICAL", ["x", "y"]]}}`))
	var got []string
	for s, v := o.Next(); v == Suggest; s, v = o.Next() {
		got = append(got, fmt.Sprint(s.Params["b"], s.Params["a"]))
	}
	if diff := cmp.Diff([]string{"1 x", "1 y", "2 x", "2 y"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestNoneRunsTheConfigurationsGiven(t *testing.T) {
	o := optimizer(t, spec(t, `{"entry": "m:f", "configurations": [{"a": 1, "b": 5}, {"a": 2, "b": 3}]}`))
	var got []string
	for s, v := o.Next(); v == Suggest; s, v = o.Next() {
		got = append(got, s.Params.Key())
	}
	if diff := cmp.Diff([]string{`{"a":1,"b":5}`, `{"a":2,"b":3}`}, got); diff != "" {
		t.Error(diff)
	}
	single := optimizer(t, spec(t, `{"entry": "m:f"}`))
	if s, v := single.Next(); v != Suggest || len(s.Params) != 0 {
		t.Errorf("single run: %v %v", s, v)
	}
	if _, v := single.Next(); v != Idle {
		t.Errorf("one trial is all: %v", v)
	}
}

// world runs an optimizer in virtual time with a synthetic learning curve.
type world struct {
	o       Optimizer
	d       training.Direction
	workers int
	budget  int // epochs of all workers together
	order   *rand.Rand
	trace   []string
	best    float64 // final score of the best trial
	epochs  int
	started int
}

// value of a configuration after n epochs: good ones are good early, with some noise that fades.
func value(p training.Params, epoch int) float64 {
	lr, _ := p["lr"].Float()
	quality := 1 - math.Abs(math.Log10(lr)+2)/3 // best at 0.01
	noise := 0.1 * math.Sin(1e4*lr) / float64(epoch)
	return quality * (1 - math.Exp(-float64(epoch)/4)) * (1 + noise)
}

type active struct {
	s      Suggestion
	from   int
	epochs int
}

// run gives free workers to the optimizer and finishes a random one of those working.
func (w *world) run() {
	params := map[training.TrialID]training.Params{}
	done := map[training.TrialID]int{}
	var busy []active
	w.best = math.Inf(-1)
	for {
		for len(busy) < w.workers && (w.budget == 0 || w.epochs < w.budget) {
			sug, verdict := w.o.Next()
			if verdict != Suggest {
				break
			}
			if sug.Params != nil {
				params[sug.Trial] = sug.Params
				w.started++
			}
			w.trace = append(w.trace, fmt.Sprintf("%v to %d %s", sug.Trial, sug.Budget, params[sug.Trial].Key()))
			busy = append(busy, active{s: sug, from: done[sug.Trial], epochs: sug.Budget})
			w.epochs += sug.Budget - done[sug.Trial]
		}
		if len(busy) == 0 {
			return
		}
		i := w.order.IntN(len(busy))
		a := busy[i]
		busy = slices.Delete(busy, i, i+1)
		v := value(params[a.s.Trial], a.epochs)
		if w.d == training.Min {
			v = -v
		}
		done[a.s.Trial] = a.epochs
		kind := Finished
		if w.order.IntN(20) == 0 {
			kind = []Kind{Stopped, Failed}[w.order.IntN(2)]
		} else {
			w.best = max(w.best, w.d.Score(v))
		}
		w.o.Observe(Event{Kind: kind, Trial: a.s.Trial, Epochs: a.epochs, Value: v})
	}
}

var docs = map[string]string{
	"random": `{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 40, "max_epochs": 9, "seed": %d, "space": {"lr": {"type": "DOUBLE", "range": [0.00001, 1], "log": true}}}`,
	"finite": `{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 40, "max_epochs": 9, "seed": %d, "space": {"lr": {"type": "DISCRETE", "values": [0.1, 0.2, 0.3, 0.4]}, "k": ["INTEGER", [1, 9]]}}`,
	"grid":   `{"entry": "m:f", "optimizer": {"type": "grid"}, "max_epochs": 9, "seed": %d, "space": {"lr": {"type": "DISCRETE", "values": [0.1, 0.2, 0.3, 0.4]}, "k": ["INTEGER", [1, 9]]}}`,
	"asha":   `{"entry": "m:f", "optimizer": {"type": "asha", "eta": 3, "r_max": 27}, "trials": 40, "seed": %d, "space": {"lr": {"type": "DOUBLE", "range": [0.00001, 1], "log": true}}}`,
	"asha-finite": `{"entry": "m:f", "direction": "min", "optimizer": {"type": "asha", "eta": 2, "r_max": 8}, "trials": 40, "seed": %d,
		"space": {"lr": {"type": "DISCRETE", "values": [0.1, 0.2, 0.3, 0.4]}, "k": ["INTEGER", [1, 9]]}}`,
}

// What was tried is not tried again, also if this version of the sampler would not have drawn it.
func TestWhatWasAdoptedIsNotTriedAgain(t *testing.T) {
	for _, doc := range []string{docs["finite"], docs["asha-finite"]} {
		s := spec(t, fmt.Sprintf(doc, 1))
		a := optimizer(t, s)
		var tried []training.Params
		for i, lr := range []float64{0.4, 0.1, 0.2} {
			p := training.Params{"lr": training.Float(lr), "k": training.Int(int64(i + 1))}
			a.Adopt(Suggestion{Trial: training.TrialID(i + 1), Params: p, Budget: 1})
			tried = append(tried, p)
		}
		b, err := a.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		restored := optimizer(t, s)
		if err := restored.Restore(b, tried); err != nil {
			t.Fatal(err)
		}
		for _, o := range []Optimizer{a, restored} {
			seen := map[string]bool{}
			for _, p := range tried {
				seen[p.Key()] = true
			}
			for {
				n, v := o.Next()
				if v != Suggest {
					break
				}
				if seen[n.Params.Key()] {
					t.Fatalf("%s is tried twice", n.Params.Key())
				}
				seen[n.Params.Key()] = true
			}
			if len(seen) != 36 {
				t.Errorf("%d of 36 configurations were tried", len(seen))
			}
		}
	}
}

// The seed is what decides: another one draws other configurations, in every kind of space and search that draws.
func TestTheSeedDecidesWhatIsDrawn(t *testing.T) {
	for _, name := range []string{"random", "finite", "asha", "asha-finite"} {
		draw := func(seed int) (out []string) {
			o := optimizer(t, spec(t, fmt.Sprintf(docs[name], seed)))
			for range 10 {
				s, v := o.Next()
				if v != Suggest {
					t.Fatal(v)
				}
				out = append(out, s.Params.Key())
			}
			return out
		}
		one := draw(1)
		if diff := cmp.Diff(one, draw(1)); diff != "" {
			t.Errorf("%s: the same seed draws otherwise: %s", name, diff)
		}
		if slices.Equal(one, draw(2)) {
			t.Errorf("%s: seeds 1 and 2 draw the same: %v", name, one)
		}
	}
}

// The configurations do not depend on who finishes first (pain 8 of the reference).
func TestConfigurationsDoNotDependOnTheOrderOfEvents(t *testing.T) {
	s := spec(t, fmt.Sprintf(docs["asha"], 5))
	configs := func(order uint64) map[string]bool {
		w := world{o: optimizer(t, s), d: s.Direction, workers: 4, order: rand.New(rand.NewPCG(order, 1))}
		w.run()
		out := map[string]bool{}
		for _, line := range w.trace {
			if line[5:9] == "to 1" {
				out[line] = true
			}
		}
		return out
	}
	if diff := cmp.Diff(configs(1), configs(2)); diff != "" {
		t.Error(diff)
	}
}

func TestASHAFindsBetterThanRandomWithEqualBudget(t *testing.T) {
	wins, ties := 0, 0
	for seed := range uint64(20) {
		play := func(name string) float64 {
			s := spec(t, fmt.Sprintf(docs[name], seed))
			s.Trials = 300
			w := world{d: s.Direction, workers: 8, budget: 8 * 27 / 2, order: rand.New(rand.NewPCG(seed, 2))}
			if name == "random" {
				s.MaxEpochs = 27
			}
			w.o = optimizer(t, s)
			w.run()
			return w.best
		}
		switch a, r := play("asha"), play("random"); {
		case a > r:
			wins++
		case a == r:
			ties++
		}
	}
	if wins < 15 {
		t.Errorf("ASHA better in %d (equal in %d) of 20 searches of equal budget, want 15", wins, ties)
	}
}

func TestEveryPointOfAConditionalGridOnce(t *testing.T) {
	var space training.Space
	if err := json.Unmarshal([]byte(`{"a":{"type":"CATEGORICAL","values":["x","y"]},"n":{"type":"INTEGER","range":[3,5],"when":{"a":"y"}},`+
		`"b":{"type":"DISCRETE","values":[1,2],"when":{"a":["x"]}},"c":{"type":"CATEGORICAL","values":[true,false],"when":{"b":[2]}}}`), &space); err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	n, _ := space.Size()
	points := newEnumeration(space)
	for i := range n {
		p := points.nth(i)
		if why := space.Check(p); len(why) > 0 || seen[p.Key()] {
			t.Errorf("point %d is %s: %v, seen %v", i, p.Key(), why, seen[p.Key()])
		}
		seen[p.Key()] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d points: %v", len(seen), seen)
	}
}
