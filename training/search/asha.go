package search

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gohops/hops/training"
)

// asha is asynchronous successive halving (Li et al., MLSys 2020, arXiv 1810.05934, algorithm 2), the promotion type:
//
//	rung 0  r_min epochs     every configuration starts here
//	rung 1  r_min·eta        the best 1/eta of those that finished rung 0
//	…
//	last    r_max
//
// A trial pauses at the end of a rung. Whenever an executor is free, the highest rung with a promotable trial gives it:
// one of the best floor(n/eta) of the n that finished the rung, not promoted yet. Otherwise a new configuration starts,
// so that nobody ever waits for a rung to fill. A promoted trial goes on from its checkpoint.
//
// It ends when all configurations are started, nothing runs and nothing is promotable; the trials still paused then
// were not good enough.
//
// The restart type is Maggy's: every rung's run is a trial of its own that completes, and a promotion is a new one with the
// same parameters from the beginning.
type asha struct {
	sampler   *sampler
	direction training.Direction
	restart   bool
	trials    int   // configurations in all
	budgets   []int // of each rung
	rungs     []*ranking
	at        map[training.TrialID]int // the rung that a trial works on
	issued    int                      // configurations
	running   map[training.TrialID]bool

	// Of the restart type.
	params map[training.TrialID]training.Params
	newest map[string]training.TrialID // the trial that ran a configuration last, by its key
}

func newASHA(s *training.Spec) *asha {
	a := &asha{
		sampler: newSampler(s.Space, s.RandomSeed()), direction: s.Direction, restart: s.Optimizer.Variant == training.Restart,
		budgets: s.Optimizer.Rungs(), at: map[training.TrialID]int{}, running: map[training.TrialID]bool{},
		params: map[training.TrialID]training.Params{}, newest: map[string]training.TrialID{},
	}
	a.trials = min(s.Trials, a.sampler.size())
	for range a.budgets {
		a.rungs = append(a.rungs, newRanking(s.Optimizer.Eta, 0))
	}
	return a
}

func (a *asha) Next() (Suggestion, Verdict) {
	s, ok := a.suggest()
	switch {
	case ok:
		a.Adopt(s)
		return s, Suggest
	case len(a.running) > 0:
		return Suggestion{}, Idle
	}
	return Suggestion{}, Done
}

func (a *asha) suggest() (Suggestion, bool) {
	top := len(a.rungs) - 1
	for k := top - 1; k >= 0; k-- {
		id, ok := a.rungs[k].promotable()
		if !ok {
			continue
		}
		s := Suggestion{Trial: id, Budget: a.budgets[k+1], Last: k+1 == top, Promotion: true, Label: fmt.Sprintf("rung %d", k+1)}
		if a.restart {
			s.Trial, s.Params, s.Last, s.Promotion = training.TrialID(len(a.at)+1), a.params[id], true, false
			s.Label += fmt.Sprintf(", trial %v again", id)
		}
		return s, true
	}
	if a.issued == a.trials {
		return Suggestion{}, false
	}
	p, ok := a.sampler.draw(training.TrialID(a.issued + 1))
	return Suggestion{Trial: training.TrialID(len(a.at) + 1), Params: p, Budget: a.budgets[0], Last: a.restart || top == 0}, ok
}

func (a *asha) Adopt(s Suggestion) {
	a.running[s.Trial] = true
	k := max(slices.Index(a.budgets, s.Budget), 0)
	if s.Promotion {
		if k == 0 { // of another version, with other rungs
			k = min(a.at[s.Trial]+1, len(a.rungs)-1)
		}
		a.at[s.Trial] = k
		a.rungs[max(k-1, 0)].promote(s.Trial)
		return
	}
	a.at[s.Trial] = k
	if a.restart {
		key := s.Params.Key()
		if k > 0 {
			a.rungs[k-1].promote(a.newest[key])
		}
		a.newest[key], a.params[s.Trial] = s.Trial, s.Params
	}
	if k == 0 {
		a.issued++
		a.sampler.take(training.TrialID(a.issued), s.Params)
	}
}

func (a *asha) Observe(e Event) Answer {
	if _, suggested := a.at[e.Trial]; e.Kind == Resumed && suggested {
		a.running[e.Trial] = true
		return Answer{}
	}
	if e.Kind == Reported || !a.running[e.Trial] {
		return Answer{}
	}
	delete(a.running, e.Trial)
	if e.Kind == Finished { // otherwise it does not take part any more
		a.rungs[a.at[e.Trial]].put(placed{Trial: e.Trial, Score: a.direction.Score(e.Value)})
	}
	return Answer{}
}

func (a *asha) Outlook() int {
	n := a.trials - a.issued
	for _, r := range a.rungs[:len(a.rungs)-1] {
		n += r.open
	}
	return n
}

func (a *asha) Planned() int {
	if a.restart {
		return len(a.at) + a.trials - a.issued
	}
	return a.trials
}

type ashaState struct {
	Running map[training.TrialID]bool `json:"running"`
	At      map[training.TrialID]int  `json:"at"`
	Rungs   []rung                    `json:"rungs"`
}

// rung is who finished it, the best first.
type rung struct {
	Done []placed `json:"done"`
}

func (a *asha) Snapshot() ([]byte, error) {
	s := ashaState{Running: a.running, At: a.at}
	for _, r := range a.rungs {
		s.Rungs = append(s.Rungs, rung{r.list()})
	}
	return json.Marshal(s)
}

func (a *asha) Restore(data []byte, tried []training.Params) error {
	s := ashaState{Running: map[training.TrialID]bool{}, At: map[training.TrialID]int{}}
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	a.running, a.at = s.Running, s.At
	for k, r := range s.Rungs[:min(len(s.Rungs), len(a.rungs))] {
		for _, p := range r.Done {
			a.rungs[k].put(p)
		}
	}
	for i, p := range tried {
		id := training.TrialID(i + 1)
		if a.restart {
			a.newest[p.Key()], a.params[id] = id, p
			if a.at[id] > 0 {
				continue
			}
		}
		a.issued++
		a.sampler.take(training.TrialID(a.issued), p)
	}
	return nil
}

// ashaStopping is the stopping type of the same: a trial runs to r_max unless, at the end of a rung, it is not among the best
// 1/eta of those that came so far. The first is: there is nobody to compare it with. Nothing pauses, so it needs no checkpoints.
type ashaStopping struct {
	*sequence
	budgets []int
	rungs   []*ranking // promoted are those that went on
}

func newASHAStopping(s *training.Spec) *ashaStopping {
	a := &ashaStopping{sequence: newSequence(s, unlearning{newSampler(s.Space, s.RandomSeed())}, s.Optimizer.RMax), budgets: s.Optimizer.Rungs()}
	for range a.budgets[1:] {
		a.rungs = append(a.rungs, newRanking(s.Optimizer.Eta, 1))
	}
	return a
}

func (a *ashaStopping) Observe(e Event) Answer {
	k := slices.Index(a.budgets, e.Epochs)
	if e.Kind != Reported || k < 0 || k >= len(a.rungs) || !a.running[e.Trial] {
		return a.sequence.Observe(e)
	}
	r := a.rungs[k]
	if r.entries[e.Trial] == nil { // an attempt that does the epoch again gets the same answer
		r.put(placed{Trial: e.Trial, Score: a.spec.Direction.Score(e.Value)})
		if r.entries[e.Trial].isBest {
			r.promote(e.Trial)
		}
	}
	if r.entries[e.Trial].Promoted {
		return Answer{}
	}
	return Answer{Op: Stop, Reason: fmt.Sprintf("rung of %d epochs: %.6g is not among the best %d of %d", e.Epochs, e.Value, len(r.best.list), len(r.entries))}
}

type ashaStoppingState struct {
	Sequence json.RawMessage `json:"sequence"`
	Rungs    []rung          `json:"rungs"`
}

func (a *ashaStopping) Snapshot() ([]byte, error) {
	b, err := a.sequence.Snapshot()
	if err != nil {
		return nil, err
	}
	s := ashaStoppingState{Sequence: b}
	for _, r := range a.rungs {
		s.Rungs = append(s.Rungs, rung{r.list()})
	}
	return json.Marshal(s)
}

func (a *ashaStopping) Restore(data []byte, tried []training.Params) error {
	var s ashaStoppingState
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	for k, r := range s.Rungs[:min(len(s.Rungs), len(a.rungs))] {
		for _, p := range r.Done {
			a.rungs[k].put(p)
		}
	}
	return a.sequence.Restore(s.Sequence, tried)
}
