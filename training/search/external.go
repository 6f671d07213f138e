package search

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/gohops/hops/training"
)

// External is an optimizer whose suggestions are made elsewhere: by a program that its user wrote. They wait here until they are
// run. It knows no more than what it was given, so that it costs nothing to read back.
type External struct {
	trials  int
	issued  int          // the highest number that was suggested
	queue   []Suggestion // suggested, not run yet
	running map[training.TrialID]bool
	done    bool
}

func newExternal(s *training.Spec) *External {
	return &External{trials: s.Trials, running: map[training.TrialID]bool{}}
}

// Check says what is wrong with suggestions. paused says whether a trial waits to go on.
func (x *External) Check(list []Suggestion, space training.Space, paused func(training.TrialID) bool) error {
	next := x.issued + 1
	waits := map[training.TrialID]bool{}
	for _, q := range x.queue {
		waits[q.Trial] = true
	}
	for i, s := range list {
		promoted := int(s.Trial) <= x.issued
		switch {
		case x.done:
			return fmt.Errorf("suggestion %d: it was said that there are no more", i)
		case s.Trial < 1 || !promoted && int(s.Trial) != next:
			return fmt.Errorf("suggestion %d is of trial %v; the next new one is %v", i, s.Trial, training.TrialID(next))
		case promoted && (!paused(s.Trial) || waits[s.Trial]):
			return fmt.Errorf("suggestion %d: trial %v is not paused", i, s.Trial)
		case s.Budget < 0:
			return fmt.Errorf("suggestion %d: budget %d is negative", i, s.Budget)
		case next > training.MaxTrials:
			return fmt.Errorf("suggestion %d is beyond %d trials", i, training.MaxTrials)
		}
		waits[s.Trial] = true
		if !promoted {
			next++
		}
		if s.Params == nil && promoted || len(space) == 0 {
			continue
		}
		if wrong := space.Check(s.Params); len(wrong) > 0 {
			return fmt.Errorf("suggestion of trial %v: %s", s.Trial, wrong[0])
		}
	}
	return nil
}

// Suggest takes suggestions in; they were checked. done: there are no further ones.
func (x *External) Suggest(list []Suggestion, done bool) {
	for _, s := range list {
		s.Promotion = int(s.Trial) <= x.issued
		x.issued = max(x.issued, int(s.Trial))
		x.queue = append(x.queue, s)
	}
	x.done = x.done || done
}

// Open reports whether more may be suggested.
func (x *External) Open() bool { return !x.done }

// Issued is the highest number of a trial that was suggested.
func (x *External) Issued() int { return x.issued }

// Next is what waits longest.
func (x *External) Next() (Suggestion, Verdict) {
	if len(x.queue) > 0 {
		s := x.queue[0]
		x.Adopt(s)
		return s, Suggest
	}
	if len(x.running) > 0 || !x.done {
		return Suggestion{}, Idle
	}
	return Suggestion{}, Done
}

// Adopt takes it as run.
func (x *External) Adopt(s Suggestion) {
	x.queue = slices.DeleteFunc(x.queue, func(q Suggestion) bool { return q.Trial == s.Trial })
	x.issued = max(x.issued, int(s.Trial))
	x.running[s.Trial] = true
}

// Observe keeps who runs. Answers come from elsewhere, too.
func (x *External) Observe(e Event) Answer {
	switch {
	case e.Trial < 1 || int(e.Trial) > x.issued || e.Kind == Reported:
	case e.Kind == Resumed:
		x.running[e.Trial] = true
	default:
		delete(x.running, e.Trial)
	}
	return Answer{}
}

// Outlook is how many wait.
func (x *External) Outlook() int { return len(x.queue) }

// Planned is what the user asked for, or more if more were suggested; fewer once it is known that there are no more.
func (x *External) Planned() int {
	if x.done {
		return x.issued
	}
	return max(x.trials, x.issued)
}

type externalState struct {
	Issued  int                       `json:"issued"`
	Queue   []Suggestion              `json:"queue,omitempty"`
	Running map[training.TrialID]bool `json:"running"`
	Done    bool                      `json:"done,omitempty"`
}

// Snapshot encodes the state.
func (x *External) Snapshot() ([]byte, error) {
	return json.Marshal(externalState{x.issued, x.queue, x.running, x.done})
}

// Restore decodes it.
func (x *External) Restore(data []byte, _ []training.Params) error {
	s := externalState{}
	if err := json.Unmarshal(data, &s); err != nil {
		return err
	}
	x.issued, x.queue, x.done = s.Issued, s.Queue, s.Done
	x.running = map[training.TrialID]bool{}
	maps.Copy(x.running, s.Running)
	return nil
}
