package checkpoint

import (
	"slices"

	"github.com/gohops/hops/training"
)

// Needs are reasons for which checkpoints stay that a trial's own list does not show.
type Needs struct {
	// Rungs are the budgets of the search's rungs, for a retention that keeps those.
	Rungs []int
	// Copies are the steps at which other trials may yet become copies of this one.
	Copies []int
	// Others has the URIs of checkpoints from which other trials go on.
	Others map[string]bool
}

// Keep marks the checkpoints to keep; those given are of one trial in order of commit. The newest one always is: a trial
// that runs, waits or is paused goes on from it.
func Keep(r training.Retention, all []training.Checkpoint, d training.Direction, needs Needs) []bool {
	keep := make([]bool, len(all))
	for i := range all {
		newest := len(all) - i
		keep[i] = r.Last < 0 || newest <= max(r.Last, 1) || r.Every > 0 && all[i].Step%int64(r.Every) == 0 || needs.Others[all[i].URI] ||
			r.Best > 0 && better(all, i, d) < r.Best
	}
	budgets := needs.Copies
	if r.Rungs {
		budgets = slices.Concat(needs.Rungs, budgets)
	}
	for _, budget := range budgets {
		at := -1
		for i := range all { // of the same step, what a later attempt saved
			if all[i].Step <= int64(budget) && (at < 0 || all[i].Step >= all[at].Step) {
				at = i
			}
		}
		if at >= 0 {
			keep[at] = true
		}
	}
	return keep
}

// better counts the checkpoints with a better metric than number i; of equal ones the newer is. One without a metric is
// worse than any number of others.
func better(all []training.Checkpoint, i int, d training.Direction) int {
	m := all[i].Metric
	if m == nil || !m.Finite() {
		return len(all)
	}
	n := 0
	for j := range all {
		if o := all[j].Metric; j != i && o != nil && o.Finite() && (d.Better(o.Value, m.Value) || o.Value == m.Value && j > i) {
			n++
		}
	}
	return n
}
