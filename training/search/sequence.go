package search

import (
	"encoding/json"

	"github.com/gohops/hops/training"
)

// sequence runs one configuration after the other to its end: random search, grid search, and no search.
type sequence struct {
	source  source
	trials  int
	budget  int
	issued  int
	running map[training.TrialID]bool
}

func newSequence(from source, trials, budget int) *sequence {
	return &sequence{source: from, trials: min(trials, from.size()), budget: budget, running: map[training.TrialID]bool{}}
}

func (s *sequence) Next() (Suggestion, Verdict) {
	if s.issued < s.trials {
		id := training.TrialID(s.issued + 1)
		if p, ok := s.source.draw(id); ok {
			s.issued++
			s.running[id] = true
			return Suggestion{Trial: id, Params: p, Budget: s.budget, Last: true}, Suggest
		}
	}
	if len(s.running) > 0 {
		return Suggestion{}, Idle
	}
	return Suggestion{}, Done
}

func (s *sequence) Adopt(x Suggestion) {
	s.issued = max(s.issued, int(x.Trial))
	s.running[x.Trial] = true
	s.source.take(x.Trial, x.Params)
}

func (s *sequence) Observe(e Event) Answer {
	switch e.Kind {
	case Reported:
	case Resumed:
		s.running[e.Trial] = true
	default:
		delete(s.running, e.Trial)
	}
	return Answer{}
}

func (s *sequence) Outlook() int { return s.trials - s.issued }

func (s *sequence) Planned() int { return s.trials }

type sequenceState struct {
	Issued  int                       `json:"issued"`
	Running map[training.TrialID]bool `json:"running"`
}

func (s *sequence) Snapshot() ([]byte, error) {
	return json.Marshal(sequenceState{s.issued, s.running})
}

func (s *sequence) Restore(data []byte, tried []training.Params) error {
	state := sequenceState{Running: map[training.TrialID]bool{}}
	if err := json.Unmarshal(data, &state); err != nil {
		return err
	}
	s.issued, s.running = state.Issued, state.Running
	takeAll(s.source, tried)
	return nil
}
