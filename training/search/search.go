// Package search decides what an experiment tries next and which trials it ends early. Everything in it is pure: no
// clock, no goroutine, no randomness but the seed of the specification. The same seed and the same events in the same
// order give the same suggestions, and a search restored from a snapshot goes on as the one that was saved: on processors of one
// kind. Those of another may round a last digit otherwise (Go fuses a product and a sum on some), and a search goes its own way from there;
// one that moves goes on by what was suggested, which its journal has.
//
// The loop around an optimizer:
//
//	o, err := search.New(spec)
//	for {
//		s, verdict := o.Next()        // when an executor is free
//		…run s.Trial with s.Params up to s.Budget epochs, from its checkpoint if it has one…
//		o.Observe(search.Event{Kind: search.Finished, Trial: s.Trial, Epochs: s.Budget, Value: metric})
//	}
//
// Where nothing is learned from results (random, grid, sobol, asha but its restart type, hyperband), parameters of trial k depend
// on the seed and k alone, not on the order in which other trials finish: what a person sees as "trial 7" is the same
// configuration in every run.
package search

import (
	"fmt"

	"github.com/gohops/hops/training"
)

// Verdict is the answer to "what next?".
type Verdict int

// The verdicts.
const (
	Suggest Verdict = iota // the suggestion is to be run
	Idle                   // nothing now; ask again after the next event
	Done                   // nothing ever again
)

// Suggestion is a trial to run.
type Suggestion struct {
	// Trial is the next number for a new configuration, an old one for a promotion.
	Trial training.TrialID `json:"trial"`
	// Params of a new configuration. A promotion keeps its own where they are nil, and gets these otherwise.
	Params training.Params `json:"params,omitempty"`
	// Budget is the number of epochs after which the run ends, in all; 0: when the function returns.
	Budget int `json:"budget"`
	// Last: reaching the budget completes the trial. Otherwise the trial pauses there, and may be suggested again.
	Last bool `json:"last"`
	// Promotion: the trial was paused and goes on.
	Promotion bool `json:"promotion,omitempty"`
	// Source is whose checkpoint the run begins from, if not from the trial's own.
	Source *Source `json:"source,omitempty"`
	// Label says where the suggestion came from, for people: "random", "model", "bracket 2".
	Label string `json:"label,omitempty"`
}

// Source names a checkpoint of another trial: the newest at or before Step, the newest of all if there is none so early. If it has
// none, the run begins as it would without a source.
type Source struct {
	Trial training.TrialID `json:"trial"`
	Step  int64            `json:"step"`
}

// Kind says what happened to a trial.
type Kind int

// The kinds of events. Every suggestion is answered by exactly one of Finished, Stopped, Failed.
const (
	Reported Kind = iota // a value at an epoch
	Finished             // the budget was reached, or the function returned, with Value
	Stopped              // ended early
	Failed               // failed or invalid, not tried again
	Resumed              // ended early, and now runs or waits again: the experiment was resumed
)

// Event is what an optimizer learns.
type Event struct {
	Kind  Kind
	Trial training.TrialID
	// Epochs done when it happened.
	Epochs int
	// Value of the searched metric, finite.
	Value float64
	// Values of all objectives in the order of the specification, of which Value is the first; nil where there is one only, or
	// where the trial has not all of them.
	Values []float64
}

// Op is what a trial that reported is to do.
type Op int

// The ops.
const (
	Continue Op = iota
	Stop        // it ends, as one that was stopped early
	Pause       // it ends for now with the value that it reported, is Finished, and may be suggested again
)

// Answer is what follows from an event for its trial. Only that of a Reported event counts. The zero Answer lets it go on.
type Answer struct {
	Op     Op     `json:"op"`
	Reason string `json:"reason,omitempty"`
}

// Optimizer chooses configurations. One goroutine uses it.
type Optimizer interface {
	// Next suggests what to run. Only Suggest changes the state: asking again after Idle or Done costs nothing.
	Next() (Suggestion, Verdict)
	// Adopt takes over a suggestion that was made before, as if Next had just given it: by another process, perhaps by
	// another version of this program. It is how a search is read back from its journal.
	Adopt(s Suggestion)
	// Observe tells what happened. Events of trials that were not suggested are ignored. The answer is a decision: it is written
	// into the journal, and where that is read back, what was decided then counts, not the answer.
	Observe(Event) Answer
	// Outlook is how many suggestions Next has to give before it would say Idle or Done; Next suggests exactly while it
	// is above 0.
	Outlook() int
	// Planned is how many trials the search begins in all; of ASHA's restart type, as far as it is known.
	Planned() int
	// Snapshot encodes the state; Restore, on a new optimizer of the same specification, continues from it. tried are the
	// configurations suggested so far, that of trial n at n-1.
	Snapshot() ([]byte, error)
	Restore(data []byte, tried []training.Params) error
}

// New makes the optimizer that a specification names. The specification must be valid.
func New(s *training.Spec) (Optimizer, error) {
	o, err := choose(s)
	if err != nil {
		return nil, err
	}
	return newRepeated(o, s.Repeats), nil
}

func choose(s *training.Spec) (Optimizer, error) {
	random := newSampler(s.Space, s.RandomSeed())
	switch o := s.Optimizer; o.Type {
	case training.Random:
		return newSequence(s, unlearning{random}, s.MaxEpochs), nil
	case training.Sobol:
		random.quasi = newSobol(s.Space, s.RandomSeed())
		return newSequence(s, unlearning{random}, s.MaxEpochs), nil
	case training.Grid:
		return newSequence(s, unlearning{newGrid(s.Space)}, s.MaxEpochs), nil
	case training.None:
		return newSequence(s, unlearning{list{s.Configurations}}, s.MaxEpochs), nil
	case training.ASHA:
		if o.Variant == training.Stopping {
			return newASHAStopping(s), nil
		}
		return newASHA(s), nil
	case training.Hyperband:
		return newHyperband(s, unlearning{random}), nil
	case training.DE:
		return newEvolution(s), nil
	case training.PBT:
		return newPBT(s), nil
	case training.TPE:
		return newSequence(s, newTPE(s), s.MaxEpochs), nil
	case training.GP:
		return newSequence(s, newGP(s), s.MaxEpochs), nil
	case training.CMAES:
		return newSequence(s, newCMAES(s), s.MaxEpochs), nil
	case training.BOHB:
		return newHyperband(s, newTPE(s)), nil
	case training.External:
		return newExternal(s), nil
	}
	return nil, fmt.Errorf("optimizer %q is not supported", s.Optimizer.Type)
}
