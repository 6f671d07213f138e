package convert

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/internal/yaml"
	"github.com/gohops/hops/training"
)

var update = flag.Bool("update", false, "rewrite testdata/*.yaml")

// Each testdata/*.in comes out as the .yaml beside it, whose comments are the warnings, and is a study with a space that can be searched.
func TestDescriptionsOfOthers(t *testing.T) {
	sources, err := filepath.Glob("testdata/*.in")
	if err != nil || len(sources) < 9 {
		t.Fatal(sources, err)
	}
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Base(source)
		r, err := Convert(name, text, "auto", "train.py:train")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if want, _, _ := strings.Cut(strings.TrimSuffix(name, ".in"), "-"); r.From != want {
			t.Errorf("%s is taken for %s", name, r.From)
		}
		golden := strings.TrimSuffix(source, ".in") + ".yaml"
		if *update {
			if err := os.WriteFile(golden, r.YAML, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || !bytes.Equal(want, r.YAML) {
			t.Errorf("%s comes out as\n%s\n%v", name, r.YAML, err)
		}
		check(t, name, r)
		if bytes.Contains(r.YAML, []byte("cannot run as it is")) {
			t.Errorf("%s: an example that cannot run\n%s", name, r.YAML)
		}
	}
}

// check reads what was written as `hops experiment run` would.
func check(t interface{ Errorf(string, ...any) }, name string, r *Result) {
	document, err := yaml.ToJSON(name, r.YAML)
	if err != nil {
		t.Errorf("%s: %v\n%s", name, err, r.YAML)
		return
	}
	_, err = training.ParseSpec(document, "ann")
	told := slices.ContainsFunc(r.Warnings, func(w Warning) bool { return strings.Contains(w.Message, "cannot run as it is") })
	if (err != nil) != told {
		t.Errorf("%s: %v, told %v\n%s", name, err, told, r.YAML)
	}
}

// Every optimizer with every setting that is taken over becomes one that is there, with options that it has.
func TestEveryOptimizerIsOneOfOurs(t *testing.T) {
	katib := func(algorithm, settings, objective string) string {
		return `{"apiVersion": "kubeflow.org/v1beta1", "kind": "Experiment", "spec": {"objective": {"type": "maximize"` + objective + `}, "maxTrialCount": 12,
			"algorithm": {"algorithmName": "` + algorithm + `", "algorithmSettings": [` + settings + `]},
			"parameters": [{"name": "lr", "parameterType": "double", "feasibleSpace": {"min": "0.01", "max": "0.1"}}, {"name": "n", "parameterType": "int", "feasibleSpace": {"min": "1", "max": "3"}}]}}`
	}
	ray := func(tune string) string {
		return `{"param_space": {"lr": {"uniform": [0, 1]}}, "tune_config": {"num_samples": 9, ` + tune + `}}`
	}
	for _, text := range []string{
		katib("random", "", ""), katib("grid", "", ""), katib("sobol", "", ""), katib("unknown", "", ""),
		katib("bayesianoptimization", `{"name": "n_initial_points", "value": "4"}, {"name": "base_estimator", "value": "GP"}`, ""),
		katib("tpe", `{"name": "n_EI_candidates", "value": "24"}, {"name": "gamma", "value": "0.25"}`, ""),
		katib("multivariate-tpe", `{"name": "n_ei_candidates", "value": "24.0"}, {"name": "n_startup_trials", "value": "0"}`, ""),
		katib("tpe", `{"name": "gamma", "value": "7"}`, ""),
		katib("hyperband", `{"name": "r_l", "value": "9"}, {"name": "eta", "value": "3"}, {"name": "resource_name", "value": "epochs"}`, ""),
		katib("hyperband", `{"name": "r_l", "value": "9"}, {"name": "eta", "value": "3.5"}`, ""),
		katib("cmaes", `{"name": "sigma", "value": "0.1"}, {"name": "restart_strategy", "value": "ipop"}`, ""), katib("cmaes", `{"name": "sigma", "value": "-3"}`, ""),
		katib("pbt", `{"name": "n_population", "value": "40"}, {"name": "truncation_threshold", "value": "0.4"}, {"name": "resample_probability", "value": "0.3"}, {"name": "suggestion_trial_dir", "value": "/x"}`, ""),
		katib("pbt", `{"name": "n_population", "value": "2"}, {"name": "truncation_threshold", "value": "0.9"}`, ""),
		ray(`"search_alg": "optuna"`), ray(`"search_alg": {"type": "bohb"}`), ray(`"search_alg": "bayesopt"`),
		ray(`"scheduler": "asha"`), ray(`"scheduler": {"type": "ASHAScheduler", "max_t": 1, "grace_period": 5}`), ray(`"scheduler": {"type": "asha", "reduction_factor": 2.5}`),
		ray(`"scheduler": "hyperband"`), ray(`"scheduler": {"type": "hb_bohb", "max_t": 27}`), ray(`"scheduler": "median_stopping_rule"`),
		ray(`"scheduler": {"type": "pbt", "perturbation_interval": 4, "quantile_fraction": 0.25, "resample_probability": 0.25}`), ray(`"scheduler": {"type": "pbt", "quantile_fraction": 0.7}`),
		`{"ParameterRanges": {"ContinuousParameterRanges": [{"Name": "lr", "MinValue": "0", "MaxValue": "1"}]}, "Strategy": "Hyperband"}`,
		`{"ParameterRanges": {"ContinuousParameterRanges": [{"Name": "lr", "MinValue": "0", "MaxValue": "1"}]}, "Strategy": "Hyperband", "StrategyConfig": {"HyperbandStrategyConfig": {"MinResource": 9, "MaxResource": 3}}}`,
		`{"ParameterRanges": {"ContinuousParameterRanges": [{"Name": "lr", "MinValue": "0", "MaxValue": "1"}]}, "Strategy": "Grid"}`,
		`{"studySpec": {"metrics": [{"metricId": "a", "goal": "MAXIMIZE"}, {"metricId": "b", "goal": "MINIMIZE"}], "algorithm": "CMA_ES", "parameters": [{"parameterId": "lr", "doubleValueSpec": {"minValue": 0, "maxValue": 1}}]}}`,
		`{"studySpec": {"algorithm": "GRID_SEARCH", "medianAutomatedStoppingSpec": {}, "parameters": [{"parameterId": "lr", "doubleValueSpec": {"minValue": 0, "maxValue": 1}}]}}`,
		`{"trainingInput": {"hyperparameters": {"goal": "MINIMIZE", "algorithm": "GRID_SEARCH", "enableTrialEarlyStopping": true, "params": [{"parameterName": "a", "type": "DOUBLE", "minValue": 0, "maxValue": 1}]}}}`,
	} {
		r, err := Convert("x", []byte(text), "auto", "train.py:train")
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		check(t, text, r)
	}
}

func TestWhatIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"from ray import tune\nconfig = {'lr': tune.loguniform(1e-4, 1e-1)}": "is Python",
		"space = {\"lr\": tune.uniform(0, 1)}":                               "is Python",
		"space: {lr: {type: DOUBLE, range: [0, 1]}}":                         "a study as it is",
		"a: 1":                          "name one of cloudml, vizier, sagemaker, katib, ray with --from",
		"[1]":                           "no description of a search",
		"{\"param_space\": {\"a\": 1}}": "has no parameters as ray writes them",
		"a: {b":                         "x:",
		strings.Repeat("a", MaxBytes+1): "at most",
		"params: " + strings.Repeat("[", 60) + strings.Repeat("]", 60): "deep",
	} {
		if _, err := Convert("x", []byte(text), "auto", ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v; want %q", text, err, want)
		}
	}
	if _, err := Convert("x", []byte("a: 1"), "hyperopt", ""); err == nil || !strings.Contains(err.Error(), "one of auto, cloudml") {
		t.Error(err)
	}
}

func TestNothingIsDroppedInSilence(t *testing.T) {
	if r, err := Convert("x", []byte(`{"lr": {"uniform": [0, 1]}}`), "ray", ""); err != nil || len(r.Warnings) != 1 || !strings.Contains(r.Warnings[0].Message, "--entry") {
		t.Errorf("%v, %v", r, err)
	}
	r, err := Convert("x", []byte(`{"trainingInput": {"brandNew": {"a": 1}, "hyperparameters": {"goal": "MINIMIZE", "other": 2,
		"params": [{"parameterName": "a", "type": "DOUBLE", "minValue": 0, "maxValue": 1, "hint": 3}]}}, "labels": {}}`), "auto", "m.py:f")
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, w := range r.Warnings {
		keys = append(keys, w.Key)
	}
	if want := []string{"trainingInput.brandNew", "trainingInput.hyperparameters.other", "trainingInput.hyperparameters.params[0].hint", "labels"}; !slices.Equal(keys, want) {
		t.Errorf("%q, want %q", keys, want)
	}
}

// Whatever stands in a description of Ray's, it is told or it is in the study; nothing panics and what comes out can be read.
func TestAnyDescriptionIsAStudyOrAnError(t *testing.T) {
	scalar := rapid.OneOf(
		rapid.Just("null"), rapid.Just("true"), rapid.Just(`"x y"`), rapid.Just(`"# : {"`), rapid.Just("-1.5e-7"), rapid.Just("3"), rapid.Just("1e400"),
		rapid.Just(`"7"`), rapid.Just(`"\u0007\n"`),
	)
	rapid.Check(t, func(t *rapid.T) {
		var parts []string
		for i := range rapid.IntRange(1, 4).Draw(t, "parameters") {
			list := "[" + strings.Join(rapid.SliceOfN(scalar, 0, 4).Draw(t, "values"), ",") + "]"
			kind := rapid.SampledFrom(distributions).Draw(t, "kind")
			name := rapid.SampledFrom([]string{"a", "b-c", "1x", "", "é", "true", "a b"}).Draw(t, "name")
			parts = append(parts, `"`+name+string(rune('0'+i))+`": {"`+kind+`": `+list+`}`)
		}
		text := "{" + strings.Join(parts, ",") + "}"
		r, err := Convert("x", []byte(text), "ray", "m.py:f")
		if err != nil {
			return
		}
		if len(r.Warnings) == 0 && strings.Contains(text, "randn") {
			t.Fatalf("%s: no warning", text)
		}
		check(t, text, r)
	})
}
