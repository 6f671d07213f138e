package search

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gohops/hops/training"
)

// evolution is differential evolution (Storn and Price, 1997; rand/1/bin), as hops-util-py has it: a random population, then
// generations in which each member is challenged by a mutant and replaced by one that is not worse. The first generation counts.
//
// Within a generation nothing waits for anything; the next one begins when all of this one have ended, since its mutants are
// made of the survivors. A challenger that fails or is stopped early has lost.
//
// Numbers are mutated on the unit interval that a range, in its logarithm if it says so, or a sorted list is laid on, and are
// reflected at the ends. A category of the first parent changes to one in which the other two differ, with the probability
// of the mutation.
type evolution struct {
	spec    *training.Spec
	space   training.Space // with the values of DISCRETE parameters in order
	sampler *sampler
	tried   []training.Params // trial n's at n-1
	seen    map[string]bool   // their keys
	state   evolutionState
}

type evolutionState struct {
	Generation int          `json:"generation"` // the one that is suggested
	Issued     int          `json:"issued"`     // of it
	Ended      int          `json:"ended"`
	Members    []individual `json:"members"`     // the survivors of the generations before
	Challenged []individual `json:"challengers"` // the trials of this generation, by member
}

// individual is a trial with its score.
type individual struct {
	Trial   training.TrialID `json:"trial"`
	Running bool             `json:"running,omitempty"`
	// Score is nil for one that did not end with a value.
	Score *float64 `json:"score"`
}

func newEvolution(s *training.Spec) *evolution {
	e := &evolution{spec: s, space: slices.Clone(s.Space), sampler: newSampler(s.Space, s.RandomSeed()), seen: map[string]bool{}}
	for i := range e.space {
		if d := &e.space[i]; d.Type == training.Discrete {
			d.Values = slices.Clone(d.Values)
			slices.SortStableFunc(d.Values, func(v, w training.Value) int {
				a, _ := v.Float()
				b, _ := w.Float()
				return cmp.Compare(a, b)
			})
		}
	}
	return e
}

// turn begins the next generation if this one has ended.
func (e *evolution) turn() {
	s := &e.state
	if s.Issued < e.spec.Optimizer.Population || s.Ended < s.Issued {
		return
	}
	s.Members = e.survivors()
	s.Challenged, s.Issued, s.Ended = nil, 0, 0
	s.Generation++
}

func (e *evolution) survivors() []individual {
	if e.state.Generation == 0 {
		return e.state.Challenged
	}
	out := make([]individual, len(e.state.Members))
	for i, m := range e.state.Members {
		out[i] = m
		if c := e.state.Challenged[i]; c.Score != nil && (m.Score == nil || *c.Score >= *m.Score) {
			out[i] = c
		}
	}
	return out
}

func (e *evolution) Outlook() int {
	s, n := &e.state, e.spec.Optimizer.Population
	switch {
	case s.Issued < n:
		return n - s.Issued
	case s.Ended == n && s.Generation+1 < e.spec.Optimizer.Generations:
		return n
	}
	return 0
}

func (e *evolution) Next() (Suggestion, Verdict) {
	if e.Outlook() == 0 {
		if e.state.Ended < e.state.Issued {
			return Suggestion{}, Idle
		}
		return Suggestion{}, Done
	}
	e.turn()
	id := training.TrialID(len(e.tried) + 1)
	s := Suggestion{Trial: id, Params: e.challenger(id), Budget: e.spec.MaxEpochs, Last: true, Label: fmt.Sprintf("generation.%d", e.state.Generation)}
	e.Adopt(s)
	return s, Suggest
}

func (e *evolution) Adopt(s Suggestion) {
	e.turn()
	e.tried = append(e.tried, s.Params)
	e.seen[s.Params.Key()] = true
	e.sampler.take(s.Trial, s.Params)
	e.state.Issued++
	e.state.Challenged = append(e.state.Challenged, individual{Trial: s.Trial, Running: true})
}

func (e *evolution) challenger(id training.TrialID) training.Params {
	if e.state.Generation == 0 {
		if p, ok := e.sampler.draw(id); ok {
			return p
		}
		return e.sampler.at(id, 0) // a space smaller than the population
	}
	var p training.Params
	for try := range uint64(tries) { // what was tried already teaches nothing
		p = e.mutant(rand.New(rand.NewPCG(e.spec.RandomSeed(), uint64(id)<<16|1<<15|try)))
		if !e.seen[p.Key()] {
			break
		}
	}
	return p
}

// mutant challenges the member whose turn it is.
func (e *evolution) mutant(r *rand.Rand) training.Params {
	o, members, target := e.spec.Optimizer, e.state.Members, e.state.Issued
	var parents [3]training.Params
	chosen := map[int]bool{target: true}
	for i := range parents {
		k := r.IntN(len(members))
		for chosen[k] {
			k = r.IntN(len(members))
		}
		chosen[k] = true
		parents[i] = e.params(members[k])
	}
	own := e.params(members[target])
	sure := r.IntN(len(e.space)) // one parameter at least is the mutant's
	p := make(training.Params, len(e.space))
	for i, d := range e.space {
		// Parameters that are not active in a parent have a random place there. All are drawn, so that what follows does not
		// depend on which are active.
		var places [3]float64
		var values [3]training.Value
		for k, parent := range parents {
			places[k] = r.Float64()
			values[k] = fromUnit(d, places[k])
			if v, ok := parent[d.Name]; ok {
				values[k], places[k] = v, toUnit(d, v)
			}
		}
		cross, change, which := r.Float64() < *o.Crossover || i == sure, r.Float64() < *o.Mutation, 1+r.IntN(2)
		if !d.Active(p) {
			continue
		}
		v, has := own[d.Name]
		switch {
		case has && !cross:
			p[d.Name] = v
		case d.Type != training.Categorical:
			p[d.Name] = fromUnit(d, reflect(places[0]+*o.Mutation*(places[1]-places[2])))
		case change && values[1] != values[2]:
			p[d.Name] = values[which]
		default:
			p[d.Name] = values[0]
		}
	}
	return p
}

func (e *evolution) params(m individual) training.Params { return e.tried[m.Trial-1] }

// reflect folds a number into the unit interval.
func reflect(x float64) float64 {
	x = math.Abs(math.Mod(x, 2))
	if x > 1 {
		return 2 - x
	}
	return x
}

func (e *evolution) Observe(ev Event) Answer {
	s := &e.state
	first := len(e.tried) - s.Issued + 1
	i := int(ev.Trial) - first
	if ev.Kind == Reported || i < 0 || i >= len(s.Challenged) || s.Challenged[i].Running == (ev.Kind == Resumed) {
		return Answer{} // of a generation before, if it was resumed
	}
	c := &s.Challenged[i]
	c.Running, c.Score = !c.Running, nil
	if c.Running {
		s.Ended--
		return Answer{}
	}
	s.Ended++
	if ev.Kind == Finished {
		c.Score = new(e.spec.Direction.Score(ev.Value))
	}
	return Answer{}
}

func (e *evolution) Planned() int { return e.spec.Trials }

func (e *evolution) Snapshot() ([]byte, error) { return json.Marshal(e.state) }

func (e *evolution) Restore(data []byte, tried []training.Params) error {
	e.state = evolutionState{}
	if err := json.Unmarshal(data, &e.state); err != nil {
		return err
	}
	for i, p := range tried {
		e.tried = append(e.tried, p)
		e.seen[p.Key()] = true
		e.sampler.take(training.TrialID(i+1), p)
	}
	return nil
}
