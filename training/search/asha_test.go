package search

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/training"
)

// A story: eta 3, rungs 1, 3, 9, nine configurations; the value of trial n is n/10.
func TestASHAPromotesTheBestThirdOfEachRung(t *testing.T) {
	for _, d := range []training.Direction{training.Max, training.Min} {
		t.Run(string(d), func(t *testing.T) {
			s := spec(t, `{"entry": "m:f", "direction": "`+string(d)+`", "optimizer": {"type": "asha", "eta": 3, "r_max": 9}, "trials": 9, "space": {"x": ["DOUBLE", [0, 1]]}}`)
			o := optimizer(t, s)
			val := func(id training.TrialID) float64 {
				if d == training.Min {
					return -float64(id) / 10
				}
				return float64(id) / 10
			}
			next := func(want training.TrialID, budget int, promotion, last bool) {
				t.Helper()
				got, v := o.Next()
				if v != Suggest || got.Trial != want || got.Budget != budget || got.Promotion != promotion || got.Last != last {
					t.Fatalf("got %+v %v, want trial %v to %d", got, v, want, budget)
				}
				if promotion == (got.Params != nil) {
					t.Fatalf("params %v", got.Params)
				}
			}
			end := func(id training.TrialID, epochs int) {
				o.Observe(Event{Kind: Finished, Trial: id, Epochs: epochs, Value: val(id)})
			}
			for id := training.TrialID(1); id <= 3; id++ {
				next(id, 1, false, false)
			}
			end(1, 1)
			end(2, 1)
			next(4, 1, false, false) // two of three done: nobody is in the best third yet, and nobody waits
			end(3, 1)
			next(3, 3, true, false)
			for id := training.TrialID(5); id <= 9; id++ {
				next(id, 1, false, false)
			}
			if _, v := o.Next(); v != Idle {
				t.Fatalf("all started, %v", v)
			}
			for id := training.TrialID(4); id <= 9; id++ {
				end(id, 1)
			}
			next(9, 3, true, false) // three of nine: 9, 8, 7; 3 had gone before them
			next(8, 3, true, false)
			next(7, 3, true, false)
			end(3, 3)
			end(9, 3)
			end(8, 3)
			next(9, 9, true, true) // best of the three that finished rung 1
			o.Observe(Event{Kind: Failed, Trial: 7})
			if _, v := o.Next(); v != Idle {
				t.Fatalf("9 still runs, %v", v)
			}
			end(9, 9)
			if _, v := o.Next(); v != Done {
				t.Fatalf("at the end: %v", v)
			}
		})
	}
}

// With promotable trials in two rungs the highest rung goes first (algorithm 2 of the paper).
func TestASHAPromotesFromTheHighestRungFirst(t *testing.T) {
	o := optimizer(t, spec(t, `{"entry": "m:f", "optimizer": {"type": "asha", "eta": 2, "r_max": 4}, "trials": 8, "space": {"x": ["DOUBLE", [0, 1]]}}`))
	for id := training.TrialID(1); id <= 8; id++ {
		if s, v := o.Next(); v != Suggest || s.Trial != id {
			t.Fatal(s, v)
		}
	}
	end := func(id training.TrialID, epochs int) {
		o.Observe(Event{Kind: Finished, Trial: id, Epochs: epochs, Value: float64(id)})
	}
	promoted := func(id training.TrialID, budget int) {
		t.Helper()
		if s, v := o.Next(); v != Suggest || s.Trial != id || s.Budget != budget || !s.Promotion {
			t.Fatalf("got %+v %v, want trial %v to %d", s, v, id, budget)
		}
	}
	for id := training.TrialID(1); id <= 4; id++ {
		end(id, 1)
	}
	promoted(4, 2)
	promoted(3, 2)
	end(4, 2)
	end(3, 2) // rung 1: 4 may go on
	for id := training.TrialID(5); id <= 8; id++ {
		end(id, 1) // rung 0: 8 and 7 may go on
	}
	promoted(4, 4)
	promoted(8, 2)
	promoted(7, 2)
}

// Of equal values the trial that was started first goes on, whoever finished first: the same in every run.
func TestASHAPromotesTheEarlierOfEquals(t *testing.T) {
	for _, order := range [][]training.TrialID{{1, 2}, {2, 1}} {
		o := optimizer(t, spec(t, `{"entry": "m:f", "optimizer": {"type": "asha", "eta": 2, "r_max": 2}, "trials": 2, "space": {"x": ["DOUBLE", [0, 1]]}}`))
		o.Next()
		o.Next()
		for _, id := range order {
			o.Observe(Event{Kind: Finished, Trial: id, Epochs: 1, Value: 0.5})
		}
		if s, v := o.Next(); v != Suggest || s.Trial != 1 {
			t.Errorf("finished in the order %v: %v %v goes on", order, s.Trial, v)
		}
	}
}

func TestASHAWithOneRungIsRandomSearch(t *testing.T) {
	o := optimizer(t, spec(t, `{"entry": "m:f", "optimizer": {"type": "asha", "r_min": 4, "r_max": 4}, "trials": 2, "space": {"x": ["DOUBLE", [0, 1]]}}`))
	for range 2 {
		s, v := o.Next()
		if v != Suggest || !s.Last || s.Budget != 4 {
			t.Fatal(s, v)
		}
		o.Observe(Event{Kind: Finished, Trial: s.Trial})
	}
	if _, v := o.Next(); v != Done {
		t.Fatal(v)
	}
}

// Stopping type: at the end of a rung a trial stops that is not among the best 1/eta so far, in both directions, and says the same
// when it does the epoch again.
func TestASHAStopsThoseThatAreNotAmongTheBest(t *testing.T) {
	for _, d := range []training.Direction{training.Max, training.Min} {
		o := optimizer(t, spec(t, `{"entry": "m:f", "direction": "`+string(d)+`", "optimizer": {"type": "asha", "eta": 3, "r_max": 9, "variant": "stopping"}, "trials": 6, "space": {"x": ["DOUBLE", [0, 1]]}}`))
		for id := training.TrialID(1); id <= 6; id++ {
			if s, v := o.Next(); v != Suggest || s.Trial != id || s.Budget != 9 || !s.Last {
				t.Fatal(s, v)
			}
		}
		report := func(id training.TrialID, epochs int, value float64, want Op) {
			t.Helper()
			if got := o.Observe(Event{Kind: Reported, Trial: id, Epochs: epochs, Value: d.Score(value)}); got.Op != want || (want == Stop) != (got.Reason != "") {
				t.Errorf("%s: trial %v with %v at %d: %+v, want %v", d, id, value, epochs, got, want)
			}
		}
		report(1, 1, .5, Continue) // nobody to compare with
		report(2, 1, .4, Stop)
		report(3, 1, .6, Continue) // the best of three
		report(4, 1, .55, Stop)
		report(2, 1, .9, Stop) // another attempt; its first value counts
		report(3, 1, .1, Continue)
		report(5, 1, .3, Stop)
		report(6, 1, .58, Continue) // of six, two go on
		report(3, 2, 0, Continue)   // no rung ends here
		report(6, 3, .9, Continue)
		report(1, 3, .8, Stop)
		report(6, 9, 0, Continue) // the last rung ends by itself
	}
}

// Restart type: a promotion is a new trial with the same parameters, and what ran before has completed.
func TestASHARestartsPromotedTrialsAsNewOnes(t *testing.T) {
	o := optimizer(t, spec(t, `{"entry": "m:f", "optimizer": {"type": "asha", "eta": 2, "r_max": 4, "variant": "restart"}, "trials": 4, "space": {"x": ["DOUBLE", [0, 1]]}}`))
	var made []Suggestion
	for {
		s, v := o.Next()
		if v != Suggest {
			break
		}
		made = append(made, s)
		x, _ := s.Params["x"].Float()
		o.Observe(Event{Kind: Finished, Trial: s.Trial, Epochs: s.Budget, Value: x})
	}
	again := 0
	for i, s := range made {
		if int(s.Trial) != i+1 || !s.Last || s.Promotion || s.Source != nil {
			t.Errorf("%+v", s)
		}
		if s.Budget > 1 {
			again++
			before := made[:i]
			if n := len(slices.DeleteFunc(slices.Clone(before), func(b Suggestion) bool { return b.Params.Key() != s.Params.Key() || b.Budget*2 != s.Budget })); n != 1 {
				t.Errorf("%+v repeats %d trials of the rung below", s, n)
			}
		}
	}
	if again < 3 || len(made) != o.Planned() || len(made) != 4+again {
		t.Errorf("%d trials of which %d are again, %d planned", len(made), again, o.Planned())
	}
}

// The fast ranking against one that sorts.
func TestRankingFindsWhatSortingFinds(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		eta, least := 2+r.IntN(3), r.IntN(2)
		fast := newRanking(eta, least)
		var slow []placed
		for n := range 60 {
			p := placed{Trial: training.TrialID(n + 1), Score: float64(r.IntN(20))}
			fast.put(p)
			slow = append(slow, p)
			slices.SortFunc(slow, byRank)
			for r.IntN(3) == 0 {
				want, open := training.TrialID(0), 0
				for _, q := range slow[:min(max(least, len(slow)/eta), len(slow))] {
					if !q.Promoted {
						if open++; want == 0 {
							want = q.Trial
						}
					}
				}
				got, ok := fast.promotable()
				if got != want || ok != (want != 0) || fast.open != open {
					t.Fatalf("seed %d: %v of %d, want %v of %d", seed, got, fast.open, want, open)
				}
				if r.IntN(10) == 0 && !ok { // one that is not among the best, as another version might have
					got = slow[r.IntN(len(slow))].Trial
				}
				fast.promote(got)
				for i := range slow {
					if slow[i].Trial == got {
						slow[i].Promoted = true
					}
				}
			}
		}
		if diff := cmp.Diff(slow, fast.list()); diff != "" {
			t.Fatal(diff)
		}
	}
}
