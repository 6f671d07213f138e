package search

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/training"
)

// The brackets of the paper's table for r_max 81 and eta 3: how many configurations train how long.
func TestHyperbandRunsTheBracketsOfThePaper(t *testing.T) {
	o := optimizer(t, spec(t, `{"entry": "m:f", "optimizer": {"type": "hyperband", "r_max": 81}, "space": {"x": ["DOUBLE", [0, 1]]}}`))
	trained := map[string]map[int]int{}
	var order []string
	for {
		s, v := o.Next()
		if v != Suggest {
			break
		}
		if trained[s.Label] == nil {
			trained[s.Label] = map[int]int{}
			order = append(order, s.Label)
		}
		trained[s.Label][s.Budget]++
		o.Observe(Event{Kind: Finished, Trial: s.Trial, Epochs: s.Budget, Value: float64(s.Trial)})
	}
	want := map[string]map[int]int{
		"bracket 1": {1: 81, 3: 27, 9: 9, 27: 3, 81: 1},
		"bracket 2": {3: 34, 9: 11, 27: 3, 81: 1},
		"bracket 3": {9: 15, 27: 5, 81: 1},
		"bracket 4": {27: 8, 81: 2},
		"bracket 5": {81: 5},
	}
	if diff := cmp.Diff(want, trained); diff != "" {
		t.Error(diff)
	}
	if !slices.IsSorted(order) {
		t.Error(order)
	}
}

// While a rung is not complete nobody goes on in its bracket, and the next bracket begins.
func TestHyperbandDoesNotWaitForARung(t *testing.T) {
	for _, d := range []training.Direction{training.Max, training.Min} {
		o := optimizer(t, spec(t, fmt.Sprintf(`{"entry": "m:f", "direction": %q, "optimizer": {"type": "hyperband", "eta": 2, "r_max": 4}, "trials": 7, "space": {"x": ["DOUBLE", [0, 1]]}}`, d)))
		next := func(want training.TrialID, budget int, promotion bool) {
			t.Helper()
			if s, v := o.Next(); v != Suggest || s.Trial != want || s.Budget != budget || s.Promotion != promotion {
				t.Fatalf("%s: got %+v %v, want trial %v to %d", d, s, v, want, budget)
			}
		}
		end := func(kind Kind, id training.TrialID, epochs int) {
			o.Observe(Event{Kind: kind, Trial: id, Epochs: epochs, Value: d.Score(float64(id))})
		}
		for id := training.TrialID(1); id <= 4; id++ { // bracket 1 begins with four
			next(id, 1, false)
		}
		end(Finished, 1, 1)
		end(Finished, 2, 1)
		end(Failed, 3, 0)
		next(5, 2, false) // bracket 2: three at rung 1
		end(Finished, 4, 1)
		next(4, 2, true) // two of four, the failed one counted
		next(2, 2, true)
		next(6, 2, false)
		next(7, 2, false)
		if _, v := o.Next(); v != Idle || o.Outlook() != 0 {
			t.Fatalf("%v", v)
		}
		end(Finished, 4, 2)
		end(Failed, 2, 1)
		next(4, 4, true)
		for id := training.TrialID(5); id <= 7; id++ {
			end(Failed, id, 0) // a whole bracket
		}
		end(Finished, 4, 4)
		if _, v := o.Next(); v != Done {
			t.Fatalf("at the end: %v", v)
		}
	}
}
