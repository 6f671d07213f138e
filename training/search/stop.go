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
	case training.NoStop, training.ExternalStop: // what is decided elsewhere is in the journal
		return noStop{}, nil
	case training.Median:
		return newPercentile(e, 50), nil
	case training.Percentile:
		return newPercentile(e, *e.Percentile), nil
	case training.Threshold:
		return &threshold{interval: e.Interval, warmup: e.Warmup, value: *e.Threshold}, nil
	}
	return nil, fmt.Errorf("unknown early stopping policy %q", e.Policy)
}

type noStop struct{}

func (noStop) Check(TrialView, []TrialView, training.Direction) Decision { return Decision{} }

// percentile with a share of half is the median rule of Vizier (Golovin et al., KDD 2017, section 3.1) and Maggy: a trial ends at step s if its best
// value so far is strictly worse than the median of the finished trials' running means up to step s. Unlike Maggy's it
// compares at equal steps, not at equal numbers of heartbeats, and trials that ended before s take no part.
//
// Those that the rule has ended take part up to the step at which they were, as in Maggy's final store. With survivors
// alone the bar would rise with each trial that it stops, until it stops nearly all.
//
// With another share than half it is the percentile rule: a trial goes on that is among the best so many percent.
type percentile struct {
	min, interval, warmup int

	best  float64            // percent
	means map[int64]*meansAt // a memory of what was computed, by step; finished curves do not change
}

type meansAt struct {
	seen   int       // finished trials looked at
	scores []float64 // their running means, sorted, more is better
}

func newPercentile(e training.EarlyStop, best float64) *percentile {
	return &percentile{min: *e.Min, interval: e.Interval, warmup: e.Warmup, best: best, means: map[int64]*meansAt{}}
}

func (m *percentile) Check(t TrialView, finished []TrialView, d training.Direction) Decision {
	if len(finished) <= m.min || t.Curve.Len()%m.interval != 0 || t.Curve.Len() < m.warmup {
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
	// Between the two values that the share falls between; the middle one or the mean of the middle two for half.
	place := (1 - m.best/100) * float64(n-1)
	low := int(place)
	bar := at.scores[low]
	if low+1 < n {
		if f := place - float64(low); f > 0 { // not by the difference: that of the largest numbers is infinite
			bar = (1-f)*bar + f*at.scores[low+1]
		}
	}
	best, _ := t.Curve.Best(d)
	if !(d.Score(best) < bar) {
		return Decision{}
	}
	rule, what := "median", "the median"
	if m.best != 50 {
		rule, what = "percentile", fmt.Sprintf("the best %.4g %%, from", m.best)
	}
	return Decision{Stop: true, Reason: fmt.Sprintf("%s: best %.6g until step %d is worse than %s %.6g of %d trials", rule, best, step, what, d.Score(bar), n)}
}

// threshold ends trials whose best value is worse than a given one.
type threshold struct {
	interval, warmup int
	value            float64
}

func (r *threshold) Check(t TrialView, _ []TrialView, d training.Direction) Decision {
	n := t.Curve.Len()
	best, ok := t.Curve.Best(d)
	if !ok || n%r.interval != 0 || n < r.warmup || !d.Better(r.value, best) {
		return Decision{}
	}
	step, _, _ := t.Curve.Last()
	return Decision{Stop: true, Reason: fmt.Sprintf("threshold: best %.6g until step %d is worse than %.6g", best, step, r.value)}
}
