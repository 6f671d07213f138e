package training

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAllMistakesOfASpecAreToldAtOnce(t *testing.T) {
	_, err := ParseSpec([]byte(`{
		"name": 5, "entry": "train", "project": "../etc", "trails": 3,
		"code": {"uri": "", "sha256": "xyz"},
		"space": {
			"a": {"type": "DOUBLE", "range": [1, 0]},
			"b": {"type": "DOUBLE", "range": [0, 1], "log": true},
			"c": {"type": "INTEGER", "range": [0.5, 2]},
			"d": {"type": "DISCRETE", "values": ["x", 1, 1.0]},
			"e": {"type": "CATEGORICAL", "values": []},
			"f": {"type": "FLOAT", "range": [0, 1]},
			"g": {"type": "DOUBLE", "range": [0]},
			"h": ["INTEGER", [1]],
			"9z": ["INTEGER", [1, 2]],
			"i": {"type": "DOUBLE", "rnage": [0, 1]}
		},
		"arguments": {"a": 1},
		"optimizer": {"type": "asha", "eta": 1, "r_mim": 2, "r_max": 27},
		"early_stop": {"policy": "meddian", "interval": "often"},
		"direction": "up", "trials": 2.5, "executors": 0, "resources": {"memory": "lots", "gpus": -1},
		"executor_mode": "thread", "timeout": "soon", "metric": "`+strings.Repeat("m", MaxMetricName+1)+`"
	}`), "ann")
	m, ok := err.(Mistakes)
	if !ok {
		t.Fatalf("%T %v", err, err)
	}
	want := []string{
		"name: is number, want text",
		"code.uri: missing", "code.sha256: not 64 hexadecimal digits",
		`trails: unknown key; did you mean "trials"?`,
		`optimizer.r_mim: unknown key; did you mean "r_min"?`,
		`early_stop.interval: is string, want a whole number`,
		`trials: is number 2.5, want a whole number`,
		`resources.memory: "lots" is not a size (examples: 134217728, 128MiB, 1g)`,
		`timeout: "soon" is not a duration like "90s" or "2h"`,
		`project: "../etc" cannot be a directory name`,
		`entry: "train" is not "module:function"`,
		"space.a: the range [1, 0] is empty",
		"arguments.a: is a parameter of the space as well",
		"space.b: log needs a range above 0, not from 0",
		"space.c: range end 0.5 is not a whole number",
		"space.d: DISCRETE value x is not a number", "space.d: value 1.0 is there twice",
		"space.e: the list of values is empty",
		`space.f: unknown type "FLOAT"`,
		"space.g: range has 1 ends, want [low, high]",
		"space.h: range has 1 ends",
		`space.9z: "9z" cannot be an argument of a Python function`,
		`space.i: unknown field "rnage"`,
		"optimizer.eta: 1 is below 2",
		`early_stop.policy: unknown policy "meddian"; did you mean "median"?`,
		`direction: "up" is neither "max" nor "min"`,
		"resources.gpus: -1 is below 0",
		`executor_mode: unknown mode "thread"`,
		"metric: the name has 129 bytes, at most 128",
	}
	text := m.Error()
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("lacks %q", w)
		}
	}
	if len(m) != len(want) {
		t.Errorf("%d mistakes, want %d:\n%s", len(m), len(want), strings.ReplaceAll(text, "; ", "\n"))
	}
}

func TestDefaultsAndAliases(t *testing.T) {
	s, err := ParseSpec([]byte(`{"entry": "digits:train", "optimizer": {"type": "RandomSearch"}, "direction": "MIN", "trials": 8, "early_stop": {"policy": "median"},
		"space": {"lr": ["DOUBLE", [1e-4, 1]], "b": ["DISCRETE", [16, 32]]}, "resources": {"memory": "2GiB"}, "stop_grace": 2.5}`), "ann")
	if err != nil {
		t.Fatal(err)
	}
	if s.Optimizer.Type != Random || s.Direction != Min || s.Project != "ann" || s.Metric != "metric" || *s.EarlyStop.Min != 10 || s.Executors != 1 ||
		s.Resources != (Resources{2 << 30, 1, 0}) || s.ReportTimeout.D() != 10*time.Minute || s.StopGrace.D() != 2500*time.Millisecond || *s.Retention != (Retention{Last: 1, Best: 1}) {
		t.Errorf("%+v", s)
	}
	for doc, want := range map[string]string{
		`{"entry": "m:f", "space": {"x": ["INTEGER", [1, 3]], "y": ["CATEGORICAL", [true, null]]}, "optimizer": {"type": "grid"}, "trials": 2}`: "6 trials",
		`{"entry": "m:f", "configurations": [{"a": 1}, {"a": 2}]}`:                                                                              "2 trials",
		`{"entry": "m:f"}`: "1 trials",
		`{"entry": "m:f", "space": {"x": ["DOUBLE", [1, 3]]}, "optimizer": {"type": "grid"}}`:                                          "space.x: a grid cannot be laid over a DOUBLE range; list the values as DISCRETE",
		`{"entry": "m:f", "space": {"x": ["DOUBLE", [1, 3]]}, "optimizer": {"type": "asha"}, "trials": 9}`:                             "optimizer.r_max: missing: how many epochs a trial trains that is promoted to the end (or set max_epochs)",
		`{"entry": "m:f", "space": {"x": ["DOUBLE", [1, 3]]}, "optimizer": {"type": "asha", "r_max": 27}, "trials": 24}`:               "trials: 24 are too few for one to reach the last of the rungs [1 3 9 27]: at least 27 (eta^3), or a smaller r_max",
		`{"entry": "m:f", "space": {"x": ["DOUBLE", [1, 3]]}, "optimizer": {"type": "random", "eta": 3}}`:                              "optimizer.eta: is an option of asha, hyperband, bohb, not of random",
		`{"entry": "m:f", "space": {"x": ["INTEGER", [1, 3]]}, "configurations": [{"x": 4}, {"y": 1}]}`:                                "configurations: are for optimizer none, not random",
		`{"entry": "m:f", "space": {"x": ["INTEGER", [1, 3]]}, "optimizer": {"type": "none"}, "configurations": [{"x": 4}, {"y": 1}]}`: `configurations[0]: parameter "x": 4 is outside [1, 3]; configurations[1]: parameter "x" has no value; configurations[1]: parameter "y" is not in the space`,
		`{"entry": "m:f", "space": {"x": ["INTEGER", [1, 1000]], "y": ["INTEGER", [1, 1000]]}, "optimizer": {"type": "grid"}}`:         "space: the grid has 1000000 points, at most 100000",
		`{"entry": "m:f", "optimizer": {"type": "tpe"}}`:                                                                               `space: is empty; tpe needs something to search`,
		`[]`: "the experiment is not a JSON object; entry: missing: the training function, FILE.py:FUNCTION in a study, module:function in a job",
	} {
		s, err := ParseSpec([]byte(doc), "ann")
		got := ""
		if err != nil {
			got = err.Error()
		} else {
			got = strings.TrimSpace(strings.Join([]string{jsonOf(t, s.Trials), "trials"}, " "))
		}
		if got != want {
			t.Errorf("%s\ngot  %s\nwant %s", doc, got, want)
		}
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestASpecSurvivesItsJSON(t *testing.T) {
	s, err := ParseSpec([]byte(`{"entry": "m:f", "optimizer": {"type": "asha", "r_max": 9}, "trials": 30, "timeout": "1h30m", "arguments": {"x": [1, {"y": null}]},
		"space": {"z": ["INTEGER", [1, 3]], "a": {"type": "DOUBLE", "range": [1e-7, 1], "log": true}, "m": {"type": "categorical", "values": ["<&>", 1, 2.0, true, null]}}}`), "ann")
	if err != nil {
		t.Fatal(err)
	}
	first := jsonOf(t, s)
	again, err := ParseSpec([]byte(first), "bob")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, jsonOf(t, again)); diff != "" {
		t.Error(diff)
	}
	if s.Space[0].Name != "z" || again.Space[0].Name != "z" {
		t.Error("the order of the space is lost")
	}
}

func TestValuesKeepTheirKind(t *testing.T) {
	for in, want := range map[string]string{
		"2": "2", "2.0": "2.0", "1e-05": "1e-05", "0.1": "0.1", "-3": "-3", `"2"`: `"2"`, "true": "true", "null": "null", `"<ü>"`: `"<ü>"`, "1E3": "1000.0", "12345678901234567890": "1.2345678901234567e+19",
	} {
		var v Value
		if err := json.Unmarshal([]byte(in), &v); err != nil {
			t.Fatal(in, err)
		}
		if b, _ := v.MarshalJSON(); string(b) != want {
			t.Errorf("%s became %s, want %s", in, b, want)
		}
	}
	var v Value
	if err := json.Unmarshal([]byte(`[1]`), &v); err == nil {
		t.Error("a list is no value")
	}
	if !Int(2).Equal(Float(2)) || Int(2) == Float(2) || Int(2).Equal(String("2")) {
		t.Error("2 equals 2.0 as a number only")
	}
}

func TestMetricsKeepWhatIsNotANumber(t *testing.T) {
	for in, want := range map[string]string{"1": "1", "0.25": "0.25", `"NaN"`: `"NaN"`, `"-inf"`: `"-Infinity"`, `"high"`: `"high"`, `[1]`: `"[1]"`, "null": `"null"`, "true": `"true"`} {
		var m Metric
		if err := json.Unmarshal([]byte(in), &m); err != nil && in != "null" {
			t.Fatal(in, err)
		}
		if in == "null" {
			if err := m.UnmarshalJSON([]byte(in)); err != nil {
				t.Fatal(err)
			}
		}
		b, _ := m.MarshalJSON()
		if string(b) != want || m.Finite() != (in == "1" || in == "0.25") {
			t.Errorf("%s became %s, want %s", in, b, want)
		}
		var again Metric
		if err := again.UnmarshalJSON(b); err != nil || again.String() != m.String() {
			t.Errorf("%s became %v", b, again)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	f.Add([]byte(`{"entry": "m:f", "space": {"x": ["INTEGER", [1, 3]]}, "optimizer": {"type": "asha", "r_max": 9}, "trials": 9}`))
	f.Add([]byte(`{"entry": "m:f", "space": {"x": {"type": "DISCRETE", "values": [1, 2]}}, "optimizer": {"type": "grid"}, "code": {"uri": "/x"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSpec(b, "ann")
		if err != nil {
			return
		}
		out, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseSpec(out, "ann"); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
	})
}
