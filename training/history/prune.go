package history

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gohops/hops/training"
)

// Rules say which experiments may go. All that are given have to hold of one that goes.
type Rules struct {
	// OlderThan: it ended longer ago than that; 0: whenever.
	OlderThan time.Duration
	// States it may be in; none: any. One that runs never goes.
	States []string
	// KeepBest keeps the so-many best by their metric among those of the same project, name, metric and direction.
	KeepBest int
	// Models that refer to an experiment, by its id; it stays, unless Force.
	Models map[string]string
	Force  bool
	Now    time.Time
}

// Victim is an experiment that goes.
type Victim struct {
	*Record
	// Warning says what refers to it, with Force.
	Warning string
}

// Running is the state of an experiment that is not over.
const Running = "RUNNING"

// Prune chooses, oldest first. Kept are those that the rules would have taken but for a model.
func Prune(all []*Record, rules Rules) (victims []Victim, kept []string) {
	best := map[*Record]bool{}
	if rules.KeepBest > 0 {
		groups := map[string][]*Record{}
		for _, r := range all {
			if r.Best != nil {
				key := fmt.Sprintf("%q %q %q %s", r.Project, r.Name, r.Metric, r.Direction)
				groups[key] = append(groups[key], r)
			}
		}
		for _, g := range groups {
			slices.SortStableFunc(g, func(a, b *Record) int {
				return cmp.Or(cmp.Compare(b.Direction.Score(b.Best.Metric), a.Direction.Score(a.Best.Metric)), cmp.Compare(a.ID, b.ID))
			})
			for _, r := range g[:min(rules.KeepBest, len(g))] {
				best[r] = true
			}
		}
	}
	for _, r := range all {
		ended := r.Finished
		if ended == 0 {
			ended = r.Started
		}
		switch {
		case r.State == Running, best[r]:
		case len(rules.States) > 0 && !slices.Contains(rules.States, r.State):
		case rules.OlderThan > 0 && training.MillisOf(rules.Now.Add(-rules.OlderThan)) < ended:
		case rules.Models[r.ID] != "" && !rules.Force:
			kept = append(kept, fmt.Sprintf("%s stays: %s is made of it", r.ID, rules.Models[r.ID]))
		default:
			v := Victim{Record: r}
			if m := rules.Models[r.ID]; m != "" {
				v.Warning = m + " is made of it"
			}
			victims = append(victims, v)
		}
	}
	slices.SortStableFunc(victims, func(a, b Victim) int {
		return cmp.Or(cmp.Compare(a.Started, b.Started), cmp.Compare(a.ID, b.ID))
	})
	return victims, kept
}
