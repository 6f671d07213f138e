package search

import (
	"fmt"
	"slices"
	"sort"

	"github.com/gohops/hops/training"
)

// Decision is an early stopper's answer. The zero Decision lets the trial go on.
type Decision struct {
	Stop   bool
	Reason string
}

// TrialView is what an early stopper sees of a trial.
type TrialView struct {
	Trial training.TrialID
	Curve *Curve
}

// EarlyStop ends trials that do worse than others did.
type EarlyStop interface {
	// Check is asked after each report of t. finished are the trials that completed or were ended by this policy, in the order
	// in which they ended; from one call to the next it only grows.
	Check(t TrialView, finished []TrialView, d training.Direction) Decision
}

// NewEarlyStop makes the stopper that a specification names. The specification must be valid.
func NewEarlyStop(e training.EarlyStop) (EarlyStop, error) {
	switch e.Policy {
	case training.NoStop:
		return noStop{}, nil
	case training.Median:
		return &median{min: *e.Min, interval: e.Interval, means: map[int64]*meansAt{}}, nil
	}
	return nil, fmt.Errorf("unknown early stopping policy %q", e.Policy)
}

type noStop struct{}

func (noStop) Check(TrialView, []TrialView, training.Direction) Decision { return Decision{} }

// median is the rule of Vizier (Golovin et al., KDD 2017, section 3.1) and Maggy: a trial ends at step s if its best
// value so far is strictly worse than the median of the finished trials' running means up to step s. Unlike Maggy's it
// compares at equal steps, not at equal numbers of heartbeats, and trials that ended before s take no part.
//
// Those that the rule has ended take part up to the step at which they were, as in Maggy's final store. With survivors
// alone the bar would rise with each trial that it stops, until it stops nearly all.
type median struct {
	min, interval int
	means         map[int64]*meansAt // a memory of what was computed, by step; finished curves do not change
}

type meansAt struct {
	seen   int       // finished trials looked at
	scores []float64 // their running means, sorted, more is better
}

func (m *median) Check(t TrialView, finished []TrialView, d training.Direction) Decision {
	if len(finished) <= m.min || t.Curve.Len()%m.interval != 0 {
		return Decision{}
	}
	step, _, ok := t.Curve.Last()
	if !ok {
		return Decision{}
	}
	at := m.means[step]
	if at == nil || at.seen > len(finished) {
		at = &meansAt{}
		m.means[step] = at
	}
	for ; at.seen < len(finished); at.seen++ {
		c := finished[at.seen].Curve
		if last, _, ok := c.Last(); !ok || last < step {
			continue
		}
		mean, ok := c.Mean(step)
		if !ok {
			continue
		}
		score := d.Score(mean)
		at.scores = slices.Insert(at.scores, sort.SearchFloat64s(at.scores, score), score)
	}
	n := len(at.scores)
	if n == 0 {
		return Decision{}
	}
	middle := (at.scores[(n-1)/2] + at.scores[n/2]) / 2
	best, _ := t.Curve.Best(d)
	if d.Score(best) >= middle {
		return Decision{}
	}
	return Decision{Stop: true, Reason: fmt.Sprintf("median: best %.6g until step %d is worse than the median %.6g of %d trials", best, step, d.Score(middle), n)}
}
