package experiment

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// run runs all trials, one after the other, on one executor; what they return is by number.
func run(t *testing.T, x *Experiment, outputs func(id training.TrialID) map[string]float64) {
	t.Helper()
	for !x.Over() {
		n, _, err := x.Next(x.Now+1, "e0001", 0)
		if err != nil || n.Trial == nil {
			t.Fatal(n, err)
		}
		f := protocol.Final{Status: training.Completed, Outputs: map[string]json.RawMessage{}}
		for name, v := range outputs(n.Trial.Trial) {
			if name == x.Spec.Metric {
				f.Metric = new(training.M(v))
			}
			f.Outputs[name], _ = json.Marshal(training.M(v))
		}
		if _, _, err := x.Final(x.Now+1, "c1", n.Trial.Trial, 1, f); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheFrontOfSeveralObjectives(t *testing.T) {
	x, _ := begun(t, `{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 4, "seed": 1, "space": {"x": ["DOUBLE", [0, 1]]},
		"objectives": [{"metric": "acc", "direction": "max"}, {"metric": "size", "direction": "min"}]}`, "n1")
	of := [][2]float64{{0.9, 100}, {0.8, 10}, {0.7, 50}, {0.9, 200}}
	run(t, x, func(id training.TrialID) map[string]float64 {
		return map[string]float64{"acc": of[id-1][0], "size": of[id-1][1]}
	})
	r := x.Result()
	if diff := cmp.Diff([]training.TrialID{1, 2}, r.Pareto); diff != "" || *r.BestID != 1 {
		t.Errorf("%s best %v", diff, *r.BestID)
	}
	if diff := cmp.Diff([]float64{0.8, 10}, r.Trials[1].Values); diff != "" {
		t.Error(diff)
	}
}

// The best configuration is the one with the best mean, not the one with the best run.
func TestConfigurationsThatRunSeveralTimes(t *testing.T) {
	x, _ := begun(t, `{"entry": "m:f", "optimizer": {"type": "none"}, "metric": "acc", "repeats": 3, "configurations": [{"x": 1}, {"x": 2}]}`, "n1")
	of := []float64{0.5, 0.5, 0.8, 0.7, 0.6, 0.65}
	seeds := map[uint64]bool{}
	run(t, x, func(id training.TrialID) map[string]float64 {
		seeds[x.seedOf(id)] = true
		return map[string]float64{"acc": of[id-1]}
	})
	r := x.Result()
	if len(r.Configurations) != 2 || len(seeds) != 6 || r.Configurations[1].N != 3 {
		t.Fatalf("%+v, %d seeds", r.Configurations, len(seeds))
	}
	c := r.Configurations[1]
	if math.Abs(*c.Mean-0.65) > 1e-12 || math.Abs(*c.Std-0.05) > 1e-12 || math.Abs(*c.CI95-4.3027*0.05/math.Sqrt(3)) > 1e-12 {
		t.Errorf("mean %v std %v ci %v", *c.Mean, *c.Std, *c.CI95)
	}
	if *r.BestID != 4 || *r.BestValue != *c.Mean || r.BestConfig.Key() != c.Params.Key() || x.optimizer.Planned() != 6 {
		t.Errorf("best %v %v %s", *r.BestID, *r.BestValue, r.BestConfig.Key())
	}
	b, err := x.Snapshot(0)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Restore(b); err != nil {
		t.Fatal(err)
	}
}
