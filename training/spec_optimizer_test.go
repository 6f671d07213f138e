package training

import (
	"encoding/json"
	"strings"
	"testing"
)

// Every option of every optimizer: which are refused elsewhere, and which of its values.
func TestOptionsOfOptimizers(t *testing.T) {
	const space = `"space": {"x": ["DOUBLE", [0, 1]]}`
	for doc, want := range map[string]string{
		`"optimizer": {"type": "random", "population": 4}`:                                                         "optimizer.population: is an option of differential_evolution, cmaes, pbt, not of random",
		`"optimizer": {"type": "hyperband", "r_max": 9, "variant": "stopping"}`:                                    "optimizer.variant: is an option of asha, not of hyperband",
		`"optimizer": {"type": "asha", "r_max": 9, "variant": "stoping"}, "trials": 9`:                             `optimizer.variant: unknown variant "stoping"; did you mean "stopping"?`,
		`"optimizer": {"type": "de", "population": 3}`:                                                             "optimizer.population: 3 is below 4: a mutant is made of three others",
		`"optimizer": {"type": "de", "generations": 1}`:                                                            "optimizer.generations: 1 is below 2: the first is random",
		`"optimizer": {"type": "de", "mutation": 3}`:                                                               "optimizer.mutation: 3 is outside 0 … 2",
		`"optimizer": {"type": "de", "mutation": 0}`:                                                               "optimizer.mutation: is 0: mutants would be copies",
		`"optimizer": {"type": "de", "crossover": -0.5}`:                                                           "optimizer.crossover: -0.5 is outside 0 … 1",
		`"optimizer": {"type": "pbt"}`:                                                                             "max_epochs: missing: how many epochs each member of pbt trains in all",
		`"optimizer": {"type": "pbt", "population": 1, "quantile": 0.6}, "max_epochs": 9`:                          "optimizer.population: 1 is outside 2 … 10000: members copy each other; optimizer.quantile: 0.6 is outside 0 … 0.5",
		`"optimizer": {"type": "pbt"}, "max_epochs": 99999`:                                                        "optimizer.interval: 1 makes more than 10000 steps of 99999 epochs",
		`"optimizer": {"type": "pbt", "resample": 2, "interval": -1}, "max_epochs": 9`:                             "optimizer.interval: -1 is below 1; optimizer.resample: 2 is outside 0 … 1",
		`"optimizer": {"type": "asha", "reduction_factor": 4, "eta": 3, "max_t": 9}, "trials": 9`:                  "optimizer.reduction_factor: is another name of eta, which is there as well",
		`"optimizer": {"type": "hyperbant"}`:                                                                       `optimizer.type: unknown optimizer "hyperbant"; did you mean "hyperband"?`,
		`"optimizer": {"type": "asha", "r_max": 9, "entry": "m:f"}, "trials": 9`:                                   "optimizer.entry: is an option of external, not of asha",
		`"early_stop": {"policy": "percentile"}`:                                                                   "early_stop.percentile: missing: policy percentile needs it",
		`"early_stop": {"policy": "percentile", "percentile": 100}`:                                                "early_stop.percentile: want a number above 0 and below 100",
		`"early_stop": {"policy": "threshold"}`:                                                                    "early_stop.threshold: missing: policy threshold needs it",
		`"early_stop": {"policy": "median", "threshold": 1, "warmup": -1}`:                                         "early_stop.warmup: -1 is below 0; early_stop.threshold: is an option of threshold, not of median",
		`"early_stop": {"policy": "median", "entry": "m:f"}`:                                                       "early_stop.entry: is an option of external, not of median",
		`"optimizer": {"type": "asha", "r_max": 9}, "trials": 9, "objectives": [{"metric": "a"}, {"metric": "b"}]`: "optimizer.type: asha decides by one metric; for 2 objectives there are random, grid, sobol",
		`"objectives": [{"metric": "a"}, {"metric": "a", "direction": "up"}, {"metrik": "c"}]`:                     `objectives[2].metrik: unknown key; did you mean "metric"?; objectives[1].metric: "a" is there twice; objectives[1].direction: "up" is neither "max" nor "min"; objectives[2].metric: missing`,
		`"objectives": [{"metric": "a"}, {"metric": "b"}], "metric": "b"`:                                          `metric: "b" is not the first of the objectives, "a"; leave metric away`,
		`"objectives": [{"metric": "a"}, {"metric": "b"}], "early_stop": {"policy": "median"}`:                     "early_stop.policy: median compares one metric, and there are 2 objectives",
		`"objectives": {"metric": "a"}`:                                                                            "objectives: is object, want a list",
	} {
		_, err := ParseSpec([]byte(`{"entry": "m:f", `+space+`, `+doc+`}`), "ann")
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s\ngot  %v\nwant %s", doc, err, want)
		}
	}
}

func TestNamesFromElsewhereAreRead(t *testing.T) {
	const space = `"space": {"x": ["DOUBLE", [0, 1]]}`
	for doc, want := range map[string]string{
		`"optimizer": {"name": "AsyncHyperBand", "reduction_factor": 4, "grace_period": 2, "max_t": 8}, "trials": 9`: `{"type":"asha","eta":4,"r_min":2,"r_max":8,"variant":"promotion"}`,
		`"optimizer": {"type": "Differential-Evolution", "popsize": 5}`:                                              `{"type":"differential_evolution","population":5,"generations":4,"mutation":0.5,"crossover":0.7}`,
		`"optimizer": {"type": "PopulationBasedTraining", "perturbation_interval": 3}, "max_epochs": 9`:              `{"type":"pbt","population":10,"interval":3,"quantile":0.25,"resample":0.25}`,
		`"optimizer": {"type": "hyperband"}, "max_epochs": 9`:                                                        `{"type":"hyperband","eta":3,"r_min":1,"r_max":9}`,
		`"optimizer": {"type": "QMCSampler"}`:                                                                        `{"type":"sobol"}`,
	} {
		s, err := ParseSpec([]byte(`{"entry": "m:f", `+space+`, `+doc+`}`), "ann")
		if err != nil {
			t.Errorf("%s: %v", doc, err)
		} else if got := jsonOf(t, s.Optimizer); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", doc, got, want)
		}
	}
	s, err := ParseSpec([]byte(`{"entry": "m:f", `+space+`, "early_stop": {"es_policy": "PercentilePruner", "percentile": 25, "n_startup_trials": 3, "n_warmup_steps": 5, "interval_steps": 2}}`), "ann")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := jsonOf(t, s.EarlyStop), `{"policy":"percentile","es_min":3,"interval":2,"warmup":5,"percentile":25}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	var o Optimizer // by itself, as a YAML file is read
	if err := json.Unmarshal([]byte(`{"type": "asha", "reduction_factor": 4}`), &o); err != nil || o.Eta != 4 {
		t.Errorf("%+v %v", o, err)
	}
	if err := json.Unmarshal([]byte(`{"type": "asha", "eta": 3, "reduction_factor": 4}`), &o); err == nil || !strings.Contains(err.Error(), "optimizer.reduction_factor: is another name of eta") {
		t.Errorf("%v", err)
	}
	if err := json.Unmarshal([]byte(`{"type": "asha", "of_a_later_version": 4}`), &o); err != nil { // in a journal
		t.Error(err)
	}
}

func TestTrialsThatFollowFromTheOptimizer(t *testing.T) {
	for doc, want := range map[string]int{
		`"optimizer": {"type": "de"}, "trials": 3`:                                             24,
		`"optimizer": {"type": "pbt", "population": 7}, "max_epochs": 3, "trials": 100`:        7,
		`"optimizer": {"type": "hyperband", "r_max": 81}`:                                      81 + 34 + 15 + 8 + 5,
		`"optimizer": {"type": "hyperband", "r_max": 81}, "trials": 100`:                       100,
		`"objectives": [{"metric": "acc"}, {"metric": "ms", "direction": "min"}], "trials": 3`: 3,
	} {
		s, err := ParseSpec([]byte(`{"entry": "m:f", "space": {"x": ["DOUBLE", [0, 1]]}, `+doc+`}`), "ann")
		if err != nil {
			t.Errorf("%s: %v", doc, err)
			continue
		}
		if s.Trials != want {
			t.Errorf("%s: %d trials, want %d", doc, s.Trials, want)
		}
		if n := len(s.Objectives); n > 0 && (n != 2 || s.Metric != "acc" || s.Direction != Max || s.Objectives[0].Direction != Max) {
			t.Errorf("%s: %+v", doc, s)
		}
	}
	s, err := ParseSpec([]byte(`{"entry": "m:f", "objectives": [{"metric": "loss", "direction": "min"}]}`), "ann")
	if err != nil || s.Metric != "loss" || s.Direction != Min || s.Objectives != nil {
		t.Errorf("one objective: %+v %v", s, err)
	}
}
