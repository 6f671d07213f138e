package search

import (
	"encoding/json"
	"slices"
	"sort"

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
type asha struct {
	sampler   *sampler
	direction training.Direction
	eta       int
	trials    int
	budgets   []int // of each rung
	rungs     []rung
	at        map[training.TrialID]int // the rung that a trial works on
	issued    int
	running   map[training.TrialID]bool
}

// rung holds who finished it, the best first.
type rung struct {
	Done []placed `json:"done"`
}

// placed is a trial's result in a rung. Score is the metric, turned so that more is better.
type placed struct {
	Trial    training.TrialID `json:"trial"`
	Score    float64          `json:"score"`
	Promoted bool             `json:"promoted,omitempty"`
}

func newASHA(s *training.Spec) *asha {
	a := &asha{
		sampler: newSampler(s.Space, s.RandomSeed()), direction: s.Direction, eta: s.Optimizer.Eta, budgets: s.Optimizer.Rungs(),
		at: map[training.TrialID]int{}, running: map[training.TrialID]bool{},
	}
	a.trials = min(s.Trials, a.sampler.size())
	a.rungs = make([]rung, len(a.budgets))
	return a
}

// promotable finds the trial of a rung that goes on next, -1 if none does.
func (a *asha) promotable(k int) int {
	done := a.rungs[k].Done
	for i := range len(done) / a.eta {
		if !done[i].Promoted {
			return i
		}
	}
	return -1
}

func (a *asha) Next() (Suggestion, Verdict) {
	for k := len(a.rungs) - 2; k >= 0; k-- {
		if i := a.promotable(k); i >= 0 {
			p := &a.rungs[k].Done[i]
			p.Promoted = true
			a.at[p.Trial] = k + 1
			a.running[p.Trial] = true
			return a.suggestion(p.Trial, nil, k+1), Suggest
		}
	}
	if a.issued < a.trials {
		id := training.TrialID(a.issued + 1)
		if params, ok := a.sampler.draw(id); ok {
			a.issued++
			a.at[id] = 0
			a.running[id] = true
			return a.suggestion(id, params, 0), Suggest
		}
	}
	if len(a.running) > 0 {
		return Suggestion{}, Idle
	}
	return Suggestion{}, Done
}

func (a *asha) suggestion(id training.TrialID, p training.Params, k int) Suggestion {
	return Suggestion{Trial: id, Params: p, Budget: a.budgets[k], Last: k == len(a.budgets)-1, Promotion: k > 0}
}

func (a *asha) Adopt(s Suggestion) {
	a.running[s.Trial] = true
	if !s.Promotion {
		a.issued = max(a.issued, int(s.Trial))
		a.at[s.Trial] = 0
		a.sampler.take(s.Trial, s.Params)
		return
	}
	k := slices.Index(a.budgets, s.Budget)
	if k < 1 {
		k = min(a.at[s.Trial]+1, len(a.rungs)-1)
	}
	a.at[s.Trial] = k
	if k == 0 { // there is one rung only
		return
	}
	for i := range a.rungs[k-1].Done {
		if p := &a.rungs[k-1].Done[i]; p.Trial == s.Trial {
			p.Promoted = true
		}
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
	if e.Kind != Finished {
		return Answer{} // it does not take part any more
	}
	r := &a.rungs[a.at[e.Trial]]
	p := placed{Trial: e.Trial, Score: a.direction.Score(e.Value)}
	i := sort.Search(len(r.Done), func(i int) bool {
		return r.Done[i].Score < p.Score || r.Done[i].Score == p.Score && r.Done[i].Trial > p.Trial
	})
	r.Done = slices.Insert(r.Done, i, p)
	return Answer{}
}

func (a *asha) Outlook() int {
	n := a.trials - a.issued
	for k := range len(a.rungs) - 1 {
		done := a.rungs[k].Done
		for i := range len(done) / a.eta {
			if !done[i].Promoted {
				n++
			}
		}
	}
	return n
}

func (a *asha) Planned() int { return a.trials }

type ashaState struct {
	Issued  int                       `json:"issued"`
	Running map[training.TrialID]bool `json:"running"`
	At      map[training.TrialID]int  `json:"at"`
	Rungs   []rung                    `json:"rungs"`
}

func (a *asha) Snapshot() ([]byte, error) {
	return json.Marshal(ashaState{a.issued, a.running, a.at, a.rungs})
}

func (a *asha) Restore(data []byte, tried []training.Params) error {
	s := ashaState{Running: map[training.TrialID]bool{}, At: map[training.TrialID]int{}}
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	rungs := make([]rung, len(a.budgets))
	copy(rungs, s.Rungs)
	a.issued, a.running, a.at, a.rungs = s.Issued, s.Running, s.At, rungs
	takeAll(a.sampler, tried)
	return nil
}
