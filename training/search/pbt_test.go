package search

import (
	"fmt"
	"testing"

	"github.com/gohops/hops/training"
)

// Four members, two steps: the worst is a copy of the best, with varied parameters and from its checkpoint.
func TestPBTReplacesTheWorstByACopyOfTheBest(t *testing.T) {
	for _, d := range []training.Direction{training.Max, training.Min} {
		o := optimizer(t, spec(t, fmt.Sprintf(`{"entry": "m:f", "direction": %q, "max_epochs": 5, "optimizer": {"type": "pbt", "population": 4, "interval": 3, "resample": 0},
			"space": {"lr": {"type": "DOUBLE", "range": [1e-9, 1], "log": true}, "act": ["CATEGORICAL", ["relu", "tanh"]]}}`, d)))
		params := map[training.TrialID]training.Params{}
		for id := training.TrialID(1); id <= 4; id++ {
			s, v := o.Next()
			if v != Suggest || s.Trial != id || s.Budget != 3 || s.Last {
				t.Fatalf("%+v %v", s, v)
			}
			params[id] = s.Params
		}
		end := func(id training.TrialID, epochs int) {
			o.Observe(Event{Kind: Finished, Trial: id, Epochs: epochs, Value: d.Score(float64(id))})
		}
		end(1, 3)
		if _, v := o.Next(); v != Idle {
			t.Fatalf("the first is compared with nobody: %v", v)
		}
		end(4, 3) // half of them: too few to be in a worst quarter
		for _, id := range []training.TrialID{1, 4} {
			if s, v := o.Next(); v != Suggest || s.Trial != id || s.Source != nil || s.Params != nil || s.Budget != 5 || !s.Last {
				t.Fatalf("%s: %+v %v", d, s, v)
			}
		}
		end(3, 3)
		o.Observe(Event{Kind: Failed, Trial: 2})
		s, v := o.Next() // of three, a quarter is none
		if v != Suggest || s.Trial != 3 || s.Source != nil {
			t.Fatalf("%s: %+v %v", d, s, v)
		}

		o = optimizer(t, spec(t, fmt.Sprintf(`{"entry": "m:f", "direction": %q, "max_epochs": 9, "optimizer": {"type": "pbt", "population": 4, "interval": 3, "resample": 0},
			"space": {"lr": {"type": "DOUBLE", "range": [1e-9, 1], "log": true}, "act": ["CATEGORICAL", ["relu", "tanh"]]}}`, d)))
		for range 4 {
			o.Next()
		}
		for id := training.TrialID(4); id >= 1; id-- {
			end(id, 3)
		}
		s, v = o.Next()
		if v != Suggest || s.Trial != 1 || s.Source == nil || s.Source.Trial != 4 || s.Label != "copy of 0004" || !s.Promotion {
			t.Fatalf("%s: %+v %v", d, s, v)
		}
		was, _ := params[4]["lr"].Float()
		is, _ := s.Params["lr"].Float()
		if q := is / was; (q < 0.799 || q > 0.801) && (q < 1.199 || q > 1.201) && is != 1 || s.Params["act"] != params[4]["act"] {
			t.Errorf("%s: %v becomes %v", d, params[4], s.Params)
		}
		for _, id := range []training.TrialID{2, 3, 4} {
			if s, v := o.Next(); v != Suggest || s.Trial != id || s.Source != nil {
				t.Fatalf("%s: %+v %v", d, s, v)
			}
		}
	}
}

func TestPBTMovesNumbersAndKeepsCategories(t *testing.T) {
	if v := neighbour([]training.Value{training.Int(32), training.Int(8), training.Int(16)}, training.Int(16), true); v != training.Int(32) {
		t.Errorf("above 16 is %v", v)
	}
	if v := neighbour([]training.Value{training.Int(32), training.Int(8)}, training.Int(8), false); v != training.Int(8) {
		t.Errorf("below the least is %v", v)
	}
}

// A member that the experiment's end had stopped goes on like the others when it is resumed.
func TestPBTResumesItsMembers(t *testing.T) {
	o := optimizer(t, spec(t, `{"entry": "m:f", "max_epochs": 9, "optimizer": {"type": "pbt", "population": 2, "interval": 3}, "space": {"x": ["DOUBLE", [0, 1]]}}`))
	for range 2 {
		o.Next()
	}
	for id := training.TrialID(1); id <= 2; id++ {
		o.Observe(Event{Kind: Stopped, Trial: id, Epochs: 1, Value: 1})
	}
	if _, v := o.Next(); v != Done {
		t.Fatalf("all were stopped: %v", v)
	}
	for id := training.TrialID(1); id <= 2; id++ {
		o.Observe(Event{Kind: Resumed, Trial: id, Epochs: 1})
	}
	for id := training.TrialID(1); id <= 2; id++ {
		o.Observe(Event{Kind: Finished, Trial: id, Epochs: 3, Value: 1})
	}
	for id := training.TrialID(1); id <= 2; id++ {
		if s, v := o.Next(); v != Suggest || s.Trial != id || s.Budget != 6 {
			t.Fatalf("%+v %v", s, v)
		}
	}
}
