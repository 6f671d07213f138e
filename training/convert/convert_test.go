package convert

import (
	"bytes"
	"encoding/json"
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
	}
}

// check reads what was written: all of it is keys of a study, and the space is one.
func check(t interface{ Errorf(string, ...any) }, name string, r *Result) {
	document, err := yaml.ToJSON(name, r.YAML)
	if err != nil {
		t.Errorf("%s: %v\n%s", name, err, r.YAML)
		return
	}
	var study struct {
		Space     training.Space             `json:"space"`
		Arguments map[string]json.RawMessage `json:"arguments"`
		Keys      map[string]json.RawMessage `json:"-"`
	}
	if err := json.Unmarshal(document, &study); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	s := training.Spec{Entry: "m:f", Space: study.Space, Arguments: study.Arguments, Optimizer: training.Optimizer{Type: training.Random}}
	s.SetDefaults("ann")
	if err := s.Validate(); err != nil {
		t.Errorf("%s: %v\n%s", name, err, r.YAML)
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
