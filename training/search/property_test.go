package search

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/training"
)

// property is an optimizer that has to keep what every optimizer promises, over random spaces and random stories.
type property struct {
	name  string
	doc   string // of the specification, beside seed, direction and space
	small bool   // the space is finite and small
	runs  int    // 0: 20
	// unseeded: the seed decides nothing.
	unseeded bool
	// undirected: what is suggested does not depend on values at all.
	undirected bool
}

// properties has one line at least for each optimizer and variant.
var properties = []property{
	{name: "random", doc: `"optimizer": {"type": "random"}, "trials": 30, "max_epochs": 4`, undirected: true},
	{name: "grid", doc: `"optimizer": {"type": "grid"}, "max_epochs": 2`, small: true, unseeded: true, undirected: true},
	{name: "random, few", doc: `"optimizer": {"type": "random"}, "trials": 100`, small: true, undirected: true},
	{name: "sobol, few", doc: `"optimizer": {"type": "sobol"}, "trials": 20`, small: true, undirected: true},
	{name: "asha, few", doc: `"optimizer": {"type": "asha", "eta": 2, "r_max": 8}, "trials": 30`, small: true},
	{name: "hyperband, few", doc: `"optimizer": {"type": "hyperband", "eta": 2, "r_max": 8}`, small: true},
	{name: "differential evolution, few", doc: `"optimizer": {"type": "de", "population": 5, "generations": 5}, "max_epochs": 2`, small: true},
	{name: "random, repeated", doc: `"optimizer": {"type": "random"}, "trials": 12, "repeats": 3, "max_epochs": 4`, undirected: true},
	{name: "sobol", doc: `"optimizer": {"type": "sobol"}, "trials": 30, "max_epochs": 4`, undirected: true},
	{name: "asha", doc: `"optimizer": {"type": "asha", "eta": 2, "r_max": 8}, "trials": 30`},
	{name: "asha eta 3", doc: `"optimizer": {"type": "asha", "eta": 3, "r_max": 7}, "trials": 30`},
	{name: "asha stopping", doc: `"optimizer": {"type": "asha", "eta": 2, "r_max": 8, "variant": "stopping"}, "trials": 30`},
	{name: "asha restart", doc: `"optimizer": {"type": "asha", "eta": 2, "r_max": 8, "variant": "restart"}, "trials": 30`},
	{name: "hyperband", doc: `"optimizer": {"type": "hyperband", "eta": 2, "r_max": 8}`},
	{name: "hyperband cut", doc: `"optimizer": {"type": "hyperband", "eta": 3, "r_max": 9}, "trials": 40`},
	{name: "differential evolution", doc: `"optimizer": {"type": "de", "population": 5, "generations": 5}, "max_epochs": 2`},
	{name: "tpe", doc: `"optimizer": {"type": "tpe"}, "trials": 30, "max_epochs": 1`, runs: 8},
	{name: "tpe univariate", doc: `"optimizer": {"type": "tpe", "multivariate": false, "startup": 3, "candidates": 5, "gamma": 0.3}, "trials": 20, "max_epochs": 1`, runs: 6},
	{name: "tpe objectives", doc: `"optimizer": {"type": "tpe"}, "objectives": [{"metric": "a", "direction": "max"}, {"metric": "b", "direction": "min"}], "metric": "a", "trials": 20, "max_epochs": 1`, runs: 6},
	{name: "bohb", doc: `"optimizer": {"type": "bohb", "eta": 2, "r_max": 8}`, runs: 6},
	{name: "gp", doc: `"optimizer": {"type": "gp"}, "trials": 16, "max_epochs": 1`, runs: 3},
	{name: "gp lcb", doc: `"optimizer": {"type": "gp", "acquisition": "lcb", "impute": "max", "startup": 4}, "trials": 9, "max_epochs": 1`, runs: 2},
	{name: "gp pi", doc: `"optimizer": {"type": "gp", "acquisition": "pi", "impute": "mean", "startup": 4}, "trials": 9, "max_epochs": 1`, runs: 2},
	{name: "gp thompson", doc: `"optimizer": {"type": "gp", "strategy": "thompson", "startup": 4}, "trials": 9, "max_epochs": 1`, runs: 2},
	{name: "cmaes", doc: `"optimizer": {"type": "cmaes"}, "trials": 40, "max_epochs": 1`, runs: 6},
	{name: "pbt", doc: `"optimizer": {"type": "pbt", "population": 7, "interval": 2}, "max_epochs": 9`},
}

func TestPropertiesOfEveryOptimizer(t *testing.T) {
	for _, p := range properties {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			runs := p.runs
			if runs == 0 {
				runs = 12
			}
			differ := 0
			for run := range uint64(runs) {
				r := rand.New(rand.NewPCG(run, 77))
				space := randomSpace(r, p.small)
				doc := func(direction string, seed uint64) *training.Spec {
					if strings.Contains(p.doc, "objectives") {
						direction = "max" // that of the first
					}
					return spec(t, fmt.Sprintf(`{"entry": "m:f", "direction": %q, "seed": %d, %s, "space": %s}`, direction, seed, p.doc, space))
				}
				up := story{t: t, name: fmt.Sprintf("run %d over %s", run, space), spec: doc("max", run), order: run}
				first := up.play()
				down := story{t: t, name: up.name + ", min", spec: doc("min", run), order: run}
				if diff := cmp.Diff(first, down.play()); diff != "" && len(up.spec.Objectives) == 0 {
					t.Fatalf("%s: values turned over and searched for the least differ:\n%s", up.name, diff)
				}
				other := story{t: t, name: up.name + ", another seed", spec: doc("max", run+1000), order: run}
				if !slices.Equal(first, other.play()) {
					differ++
				}
				if !p.undirected && run == 0 {
					inverse := story{t: t, name: up.name + ", inverse", spec: doc("max", run), order: run, inverse: true}
					if slices.Equal(first, inverse.play()) {
						t.Errorf("%s: the values do not matter", up.name)
					}
				}
			}
			if p.unseeded == (differ > 0) || !p.unseeded && differ < runs*8/10 {
				t.Errorf("another seed made another search in %d of %d", differ, runs)
			}
		})
	}
}

// randomSpace writes a space with two to six parameters, some with conditions on those before.
func randomSpace(r *rand.Rand, small bool) string {
	var parts []string
	var deciding []string // names of categorical parameters with values a, b, …
	n := 2 + r.IntN(5)
	if small {
		n = 2 + r.IntN(2)
	}
	for i := range n {
		name := fmt.Sprintf("p%d", i)
		kind := r.IntN(6)
		if small && kind < 2 {
			kind = 5
		}
		var p string
		switch {
		case kind == 0:
			p = `"type": "DOUBLE", "range": [-1, 2]`
		case kind == 1:
			p = `"type": "DOUBLE", "range": [0.0001, 1], "log": true`
		case kind == 2:
			p = fmt.Sprintf(`"type": "INTEGER", "range": [1, %d]`, 3+r.IntN(3))
		case kind == 3 && !small:
			p = `"type": "INTEGER", "range": [2, 512], "log": true`
		case kind == 3 || kind == 4:
			p = `"type": "DISCRETE", "values": [32, 8, 16.5]`
		default:
			p = `"type": "CATEGORICAL", "values": ["a", "b", "c"]`
		}
		if len(deciding) > 0 && r.IntN(2) == 0 {
			p += fmt.Sprintf(`, "when": {%q: ["a", "b"]}`, deciding[r.IntN(len(deciding))])
		}
		if kind == 5 {
			deciding = append(deciding, name)
		}
		parts = append(parts, fmt.Sprintf("%q: {%s}", name, p))
	}
	if !small { // so that there are enough configurations
		parts = append(parts, `"x": {"type": "DOUBLE", "range": [0, 1]}`)
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// story plays an optimizer with random workers, orders of events, failures, and ends of the experiment that it is resumed from.
// Beside it go one that is replaced by its own snapshot again and again, and one that adopts all suggestions.
type story struct {
	t       *testing.T
	name    string
	spec    *training.Spec
	order   uint64
	inverse bool

	plain, restored, adopting Optimizer
	tried                     []training.Params
	trials                    map[training.TrialID]*acted
	trace                     []string
}

// acted is a trial on the stage.
type acted struct {
	params training.Params
	epochs int
	budget int
	last   bool
	state  string // busy, paused, ended
}

func (s *story) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s: after %d suggestions: %s", s.name, len(s.trace), fmt.Sprintf(format, args...))
}

func (s *story) play() []string {
	s.plain, s.restored, s.adopting = optimizer(s.t, s.spec), optimizer(s.t, s.spec), optimizer(s.t, s.spec)
	s.trials = map[training.TrialID]*acted{}
	r := rand.New(rand.NewPCG(s.order, 5))
	workers := 1 + r.IntN(9)
	var busy []training.TrialID
	for steps := 0; ; steps++ {
		if steps > 20_000 {
			s.fatalf("it does not end")
		}
		for len(busy) < workers {
			id, ok := s.next()
			if !ok {
				break
			}
			busy = append(busy, id)
		}
		if len(busy) == 0 {
			s.end()
			return s.trace
		}
		if r.IntN(60) == 0 { // the experiment ends, and is resumed
			kind := []Kind{Stopped, Failed}[r.IntN(2)]
			for _, id := range busy {
				s.observe(Event{Kind: kind, Trial: id, Epochs: s.trials[id].epochs, Value: s.value(id)})
			}
			for _, id := range busy {
				s.observe(Event{Kind: Resumed, Trial: id, Epochs: s.trials[id].epochs})
			}
		}
		i := r.IntN(len(busy))
		id := busy[i]
		if s.advance(id, r) {
			busy = slices.Delete(busy, i, i+1)
		}
		if r.IntN(12) == 0 {
			s.snapshot()
		}
	}
}

// next asks all three for a suggestion.
func (s *story) next() (training.TrialID, bool) {
	outlook := s.plain.Outlook()
	got, verdict := s.plain.Next()
	if (verdict == Suggest) != (outlook > 0) {
		s.fatalf("verdict %v with an outlook of %d", verdict, outlook)
	}
	again, v := s.restored.Next()
	if diff := cmp.Diff(got, again, cmp.AllowUnexported(training.Value{})); diff != "" || v != verdict {
		s.fatalf("the one restored suggests otherwise (%v, %v): %s", verdict, v, diff)
	}
	if verdict == Done {
		for id, a := range s.trials {
			if a.state == "busy" {
				s.fatalf("Done while %v runs", id)
			}
		}
	}
	if verdict != Suggest {
		return 0, false
	}
	s.adopting.Adopt(got)
	s.trace = append(s.trace, fmt.Sprintf("%v to %d %v %v", got.Trial, got.Budget, got.Params.Key(), got.Source))
	a := s.trials[got.Trial]
	if got.Params != nil {
		if why := s.spec.Space.Check(got.Params); len(why) > 0 {
			s.fatalf("%+v: %v", got, why)
		}
	}
	if got.Promotion {
		switch {
		case a == nil || a.state != "paused":
			s.fatalf("%+v goes on, and is not paused", got)
		case got.Budget <= a.budget:
			s.fatalf("%+v goes on to no more than %d", got, a.budget)
		case got.Source != nil && (s.trials[got.Source.Trial] == nil || got.Source.Trial == got.Trial || s.trials[got.Source.Trial].epochs == 0):
			s.fatalf("%+v begins from a trial that has nothing", got)
		}
		if got.Params != nil {
			a.params = got.Params
		}
	} else {
		if got.Params == nil || int(got.Trial) != len(s.tried)+1 {
			s.fatalf("%+v follows trial %d", got, len(s.tried))
		}
		s.tried = append(s.tried, got.Params)
		a = &acted{params: got.Params}
		s.trials[got.Trial] = a
	}
	a.budget, a.last, a.state = got.Budget, got.Last, "busy"
	return got.Trial, true
}

// value is the metric of a trial now.
func (s *story) value(id training.TrialID) float64 {
	a := s.trials[id]
	h := fnv.New64a()
	h.Write([]byte(a.params.Key()))
	v := float64(h.Sum64()%10_007)/10_007 + 0.1*float64(a.epochs)
	if s.inverse {
		v = -v
	}
	return s.spec.Direction.Score(v)
}

// advance does an epoch of a trial; it reports whether the trial runs no more.
func (s *story) advance(id training.TrialID, r *rand.Rand) bool {
	a := s.trials[id]
	if r.IntN(40) == 0 {
		a.state = "ended"
		s.observe(Event{Kind: []Kind{Stopped, Failed}[r.IntN(2)], Trial: id, Epochs: a.epochs, Value: s.value(id)})
		return true
	}
	a.epochs++
	answer := s.observe(Event{Kind: Reported, Trial: id, Epochs: a.epochs, Value: s.value(id)})
	e := Event{Kind: Finished, Trial: id, Epochs: a.epochs, Value: s.value(id)}
	if answer.Op != Continue {
		s.trace = append(s.trace, fmt.Sprintf("%v at %d: %v", id, a.epochs, answer.Op))
	}
	switch {
	case answer.Op == Stop:
		e.Kind = Stopped
	case answer.Op == Pause:
	case a.budget > 0 && a.epochs < a.budget:
		return false
	}
	a.state = "paused"
	if a.last || e.Kind == Stopped {
		a.state = "ended"
	}
	s.observe(e)
	return true
}

func (s *story) observe(e Event) Answer {
	if n := len(s.spec.Objectives); n > 1 {
		e.Values = make([]float64, n)
		for i := range e.Values {
			e.Values[i] = e.Value * float64(1-2*(i%2))
		}
	}
	answer := s.plain.Observe(e)
	for _, o := range []Optimizer{s.restored, s.adopting} {
		if got := o.Observe(e); got != answer {
			s.fatalf("%+v is answered %v by one and %v by another", e, answer, got)
		}
	}
	return answer
}

// snapshot compares the states, and goes on with one that was read back.
func (s *story) snapshot() {
	var all [][]byte
	for _, o := range []Optimizer{s.plain, s.restored, s.adopting} {
		b, err := o.Snapshot()
		if err != nil {
			s.fatalf("%v", err)
		}
		all = append(all, b)
	}
	if !bytes.Equal(all[0], all[1]) || !bytes.Equal(all[0], all[2]) {
		s.fatalf("the states differ:\n%s\nrestored\n%s\nadopting\n%s", all[0], all[1], all[2])
	}
	s.restored = optimizer(s.t, s.spec)
	if err := s.restored.Restore(all[0], s.tried); err != nil {
		s.fatalf("%v", err)
	}
	// As many suggestions as the outlook says, and no more.
	ahead := optimizer(s.t, s.spec)
	if err := ahead.Restore(all[0], s.tried); err != nil {
		s.fatalf("%v", err)
	}
	n := 0
	for ; n <= ahead.Planned(); n++ {
		if _, v := ahead.Next(); v != Suggest {
			break
		}
	}
	if outlook := s.plain.Outlook(); n != outlook && n <= ahead.Planned() {
		s.fatalf("the outlook was %d, and %d were suggested", outlook, n)
	}
	if again, err := s.plain.Snapshot(); err != nil || !bytes.Equal(all[0], again) {
		s.fatalf("another optimizer's suggestions changed this one: %v", err)
	}
}

func (s *story) end() {
	if _, v := s.plain.Next(); v != Done {
		s.fatalf("nothing runs, nothing is suggested, and it is %v", v)
	}
	if n := s.plain.Planned(); n != len(s.tried) {
		s.fatalf("%d configurations were planned, %d tried", n, len(s.tried))
	}
	s.snapshot()
}
