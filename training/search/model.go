package search

import (
	"encoding/json"

	"github.com/gohops/hops/training"
)

// proposer makes configurations and may learn from what became of them. It is the part of an optimizer that knows the space;
// the other part, the schedule (sequence, hyperband), knows budgets and who runs. So any model goes with any schedule: TPE
// alone is a sequence, in Hyperband's brackets it is BOHB.
//
// What it proposes depends on the seed, the number, and what it has taken and learned in that order: on nothing else. A proposal
// alone changes nothing, the take that follows does.
type proposer interface {
	// size bounds how many configurations there are: propose answers for every n up to it.
	size() int
	// propose makes configuration n, with a word for people on where it came from. All before n have been taken. label may be
	// empty. It changes nothing that propose or snapshot would tell: whoever suggests it calls take.
	propose(n training.TrialID) (p training.Params, label string)
	// take notes that configuration n is this one and now runs, whoever proposed it. Called once for each n, in order.
	take(n training.TrialID, p training.Params)
	// learn notes a result. One of the same configuration and budget replaces the one before it.
	learn(r result)
	// snapshot encodes what was learned; nil if that is nothing. restore, on a new proposer of the same specification, takes all
	// configurations so far and continues from it.
	snapshot() (json.RawMessage, error)
	restore(learned json.RawMessage, tried []training.Params) error
}

// result is what became of a configuration at a budget.
type result struct {
	// N is the configuration.
	N training.TrialID `json:"n"`
	// Budget is how many epochs it was trained.
	Budget int `json:"budget"`
	// Kind is Finished, Stopped, Failed, or Resumed: it was stopped, and now runs after all.
	Kind Kind `json:"kind"`
	// Scores are the values of the objectives, turned so that more is better; nil where there are none.
	Scores []float64 `json:"scores,omitempty"`
}

// resultOf translates an event. A trial that was stopped before it reported anything has no scores, nor has one that lacks the value of
// an objective.
func resultOf(e Event, s *training.Spec, n training.TrialID) result {
	r := result{N: n, Budget: e.Epochs, Kind: e.Kind}
	if e.Kind != Finished && (e.Kind != Stopped || e.Epochs == 0) {
		return r
	}
	r.Scores = []float64{s.Direction.Score(e.Value)}
	if n := len(s.Objectives); n > 1 {
		r.Scores = nil
		if len(e.Values) == n {
			for i, o := range s.Objectives {
				r.Scores = append(r.Scores, o.Direction.Score(e.Values[i]))
			}
		}
	}
	return r
}

// unlearning proposes what a source draws.
type unlearning struct{ source }

func (u unlearning) propose(n training.TrialID) (training.Params, string) {
	p, ok := u.draw(n)
	if !ok {
		panic("search: a configuration beyond the size of its source")
	}
	return p, ""
}

func (unlearning) learn(result) {}

func (unlearning) snapshot() (json.RawMessage, error) { return nil, nil }

func (u unlearning) restore(_ json.RawMessage, tried []training.Params) error {
	for i, p := range tried {
		u.take(training.TrialID(i+1), p)
	}
	return nil
}
