package job

import (
	"errors"
	"testing"

	"github.com/gohops/hops/metadata"
)

func TestWordsAboutPlacement(t *testing.T) {
	s, err := Parse([]byte(`{"argv":["a"],"placement":{"attributes":{"zone":"a, b","gpu_driver":"!570"},"exclusive":true,"tags":["y","x"],
		"constraints":[{"tag":"x","max":0},{"tag":"y","scope":"rack","min":1},{"tag":"y","scope":"2","min":1,"max":3}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	a, _ := s.Ask()
	if got := a.Attributes.String(); got != "gpu_driver=!570;zone=a,b" || !a.Exclusive || len(a.Placement.Tags.List()) != 2 {
		t.Errorf("%+v", a.Placement)
	}
	const want = "0 others at most with tag x on one node, 1 others at least with tag y in one rack, 1 to 3 others with tag y in one part of level 2 of the network"
	if got := a.Constraints.String(); got != want {
		t.Error(got)
	}
	for _, bad := range []string{
		`"attributes":{"a b":"c"}`, `"attributes":{"a":"b c,"}`, `"attributes":{"a":""}`, `"attributes":{"a":"*,b"}`, `"attributes":{"a":"!"}`, `"tags":["a b"]`,
		`"tags":["1","2","3","4","5","6","7","8","9"]`, `"constraints":[{"tag":"x"}]`, `"constraints":[{"tag":"x","min":2,"max":1}]`, `"constraints":[{"tag":"x","min":-1,"max":1}]`,
		`"constraints":[{"tag":"","max":1}]`, `"constraints":[{"tag":"x","scope":"site","max":1}]`, `"constraints":[{"tag":"x","scope":"17","max":1}]`, `"other":1`,
	} {
		if _, err := Parse([]byte(`{"argv":["a"],"placement":{` + bad + `}}`)); !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := Parse([]byte(`{"argv":["a"],"kind":"master","placement":{"exclusive":true}}`)); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Error("of a master:", err)
	}
}
