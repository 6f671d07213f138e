package training

import (
	"encoding/json"
	"strings"
	"testing"
)

func conditional(t *testing.T, text string) Space {
	t.Helper()
	var s Space
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

const optimizers = `{"optimizer":{"type":"CATEGORICAL","values":["sgd","momentum","adam"]},` +
	`"momentum":{"type":"DISCRETE","values":[0.5,0.9],"when":{"optimizer":["momentum"]}},` +
	`"nesterov":{"type":"CATEGORICAL","values":[true,false],"when":{"momentum":[0.9]}},` +
	`"layers":{"type":"INTEGER","range":[1,4]}}`

func TestConditions(t *testing.T) {
	s := conditional(t, optimizers)
	data, err := json.Marshal(s)
	if err != nil || string(data) != optimizers {
		t.Fatalf("%s, %v; want %s", data, err, optimizers)
	}
	// sgd and adam: 4 each; momentum 0.5: 4; momentum 0.9: 2·4.
	if n, ok := s.Size(); !ok || n != 20 {
		t.Errorf("%d configurations, %v; want 20", n, ok)
	}
	for text, want := range map[string]string{
		`{"optimizer":"sgd","layers":2}`:                                     "",
		`{"optimizer":"momentum","momentum":0.9,"nesterov":true,"layers":2}`: "",
		`{"optimizer":"momentum","layers":2}`:                                `"momentum" has no value`,
		`{"optimizer":"sgd","momentum":0.5,"layers":2}`:                      "its conditions do not hold",
	} {
		var p Params
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(s.Check(p), "; "); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestConditionsThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		`{"a":{"type":"DISCRETE","values":[1],"when":{"b":[1]}},"b":{"type":"DISCRETE","values":[1]}}`: "stand before it",
		`{"a":{"type":"DISCRETE","values":[1],"when":{"x":[1]}}}`:                                      "not in the space",
		`{"b":{"type":"INTEGER","range":[1,2]},"a":{"type":"DISCRETE","values":[1],"when":{"b":[1]}}}`: "only DISCRETE and CATEGORICAL",
		`{"b":{"type":"DISCRETE","values":[1]},"a":{"type":"DISCRETE","values":[1],"when":{"b":[2]}}}`: "is not one of",
		`{"b":{"type":"DISCRETE","values":[1]},"a":{"type":"DISCRETE","values":[1],"when":{"b":[]}}}`:  "none of its values",
		`{"b":{"type":"DISCRETE","values":[1]},"a":{"type":"DISCRETE","values":[1],"when":7}}`:         "when is an object",
	} {
		s := Spec{Entry: "m:f", Space: conditional(t, text), Trials: 1}
		s.SetDefaults("ann")
		if err := s.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
