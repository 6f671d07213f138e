package job

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/gohops/hops/metadata"
)

func TestArrays(t *testing.T) {
	for text, want := range map[string]*Array{
		"0-99%10": {To: 99, AtOnce: 10}, "1-9:3": {From: 1, To: 9, Step: 3}, "7": {From: 7, To: 7}, "2-8:2%4": {From: 2, To: 8, Step: 2, AtOnce: 4},
		"": nil, "1-": nil, "-3": nil, "1-5%0": nil, "1-5:0": nil, "1-5%": nil, "a-b": nil, "1,3": nil, "1-99999999999": nil, "+1-3": nil,
	} {
		got, err := ParseArray(text)
		if (err == nil) != (want != nil) || want != nil && !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v %v", text, got, err)
		}
	}
	for document, want := range map[string]string{
		`{"argv":["a"],"array":{"to":9},"gang":true}`:                   "members of an array run on their own",
		`{"argv":["a"],"array":{"to":9},"instances":3}`:                 "the array has 10, instances says 3",
		`{"argv":["a"],"array":{"from":9,"to":3}}`:                      "want numbers from 0",
		`{"argv":["a"],"array":{"from":-1,"to":3}}`:                     "want numbers from 0",
		`{"argv":["a"],"array":{"to":3,"step":-1}}`:                     "want numbers from 0",
		`{"argv":["a"],"array":{"to":10000}}`:                           "instances: 10001 is not between",
		`{"argv":["a"],"array":{"to":99999999999}}`:                     "want numbers from 0",
		`{"kind":"master","argv":["a"],"array":{"to":3}}`:               "only jobs of kind command have one",
		`{"argv":["a"],"array":{"from":1,"to":9,"step":3,"at_once":2}}`: "",
	} {
		s, err := Parse([]byte(document))
		switch {
		case want != "" && (!errors.Is(err, metadata.ErrInvalidArgument) || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %s", document, err, want)
		case want == "" && (err != nil || s.Instances != 3 || !reflect.DeepEqual(s.Numbers(), []int{1, 4, 7})):
			t.Errorf("%s: %v %+v", document, err, s)
		case want == "":
			if a, _ := s.Ask(); a.Count != 2 {
				t.Errorf("it asks for %d at first", a.Count)
			}
		}
	}
}
