package search

import (
	"encoding/json"

	"github.com/gohops/hops/training"
)

// sequence runs one configuration after the other to its end: random search, grid search, no search, and models.
type sequence struct {
	spec    *training.Spec
	from    proposer
	budget  int
	trials  int
	issued  int
	running map[training.TrialID]bool
}

func newSequence(s *training.Spec, from proposer, budget int) *sequence {
	return &sequence{spec: s, from: from, budget: budget, trials: min(s.Trials, from.size()), running: map[training.TrialID]bool{}}
}

func (s *sequence) Next() (Suggestion, Verdict) {
	if s.issued < s.trials {
		id := training.TrialID(s.issued + 1)
		p, label := s.from.propose(id)
		x := Suggestion{Trial: id, Params: p, Budget: s.budget, Last: true, Label: label}
		s.Adopt(x)
		return x, Suggest
	}
	if len(s.running) > 0 {
		return Suggestion{}, Idle
	}
	return Suggestion{}, Done
}

func (s *sequence) Adopt(x Suggestion) {
	s.running[x.Trial] = true
	if int(x.Trial) > s.issued {
		s.issued = int(x.Trial)
		s.from.take(x.Trial, x.Params)
	}
}

func (s *sequence) Observe(e Event) Answer {
	if e.Trial < 1 || int(e.Trial) > s.issued {
		return Answer{}
	}
	switch e.Kind {
	case Reported:
		return Answer{}
	case Resumed:
		s.running[e.Trial] = true
	default:
		delete(s.running, e.Trial)
	}
	s.from.learn(resultOf(e, s.spec, e.Trial))
	return Answer{}
}

func (s *sequence) Outlook() int { return s.trials - s.issued }

func (s *sequence) Planned() int { return s.trials }

type sequenceState struct {
	Issued  int                       `json:"issued"`
	Running map[training.TrialID]bool `json:"running"`
	Model   json.RawMessage           `json:"model,omitempty"`
}

func (s *sequence) Snapshot() ([]byte, error) {
	model, err := s.from.snapshot()
	if err != nil {
		return nil, err
	}
	return json.Marshal(sequenceState{s.issued, s.running, model})
}

func (s *sequence) Restore(data []byte, tried []training.Params) error {
	state := sequenceState{Running: map[training.TrialID]bool{}}
	if err := json.Unmarshal(data, &state); err != nil {
		return err
	}
	s.issued, s.running = state.Issued, state.Running
	return s.from.restore(state.Model, tried)
}
