package resourcemanager

import (
	"errors"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
)

func TestAttributesAreSortedAndComparable(t *testing.T) {
	a, err := NewAttributes(map[string]string{"zone": "a", "gpu_driver": "570.10", "nm.yarn.io/ssd": "", "a": "1", "a-b": "2"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := a.String(), "a=1,a-b=2,gpu_driver=570.10,nm.yarn.io/ssd=,zone=a"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if b, err := NewAttributes(a.Map()); err != nil || a != b {
		t.Errorf("there and back: %v, %v", b, err)
	}
	if v, ok := a.Get("nm.yarn.io/ssd"); v != "" || !ok {
		t.Errorf("an attribute without a value: %q, %v", v, ok)
	}
	if _, ok := a.Get("gpu"); ok {
		t.Error("an attribute that is not there")
	}
	if none, err := NewAttributes(nil); err != nil || none != (Attributes{}) || !none.IsZero() || none.Map() != nil {
		t.Errorf("none: %v, %v", none, err)
	}
}

func TestAttributesThatAreNone(t *testing.T) {
	many := map[string]string{}
	for i := range MaxAttributes + 1 {
		many[strings.Repeat("x", i+1)] = ""
	}
	for _, bad := range []map[string]string{
		{"": "a"},
		{"a b": "c"},
		{"a=b": "c"},
		{"x": "a,b"},
		{"x": "a=b"},
		{"x": "a b"},
		{"x": "ä"},
		{"x": strings.Repeat("y", maxAttributeValue+1)},
		{strings.Repeat("x", 65): ""},
		many,
	} {
		if _, err := NewAttributes(bad); !errors.Is(err, metadata.ErrInvalidArgument) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
