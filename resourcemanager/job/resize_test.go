package job

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	rm "github.com/gohops/hops/resourcemanager"
)

func TestSizes(t *testing.T) {
	for text, want := range map[string][2]int{"4": {0, 4}, "2..8": {2, 8}, "3..3": {3, 3}} {
		if least, most, err := ParseSize(text); err != nil || [2]int{least, most} != want {
			t.Errorf("%s: %d, %d, %v", text, least, most, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "x", "4..2", "0..2", "2..", "..2", "1..2..3"} {
		if _, _, err := ParseSize(text); err == nil {
			t.Errorf("%q is a size", text)
		}
	}
	for _, c := range []struct {
		document    string
		now         rm.Size
		least, most int
		want        rm.Size
		err         string
	}{
		{`"instances":4`, rm.Size{}, 0, 8, rm.Size{Max: 8}, ""},
		{`"instances":4`, rm.Size{}, 1, 2, rm.Size{Max: 2}, ""},
		{`"instances":4`, rm.Size{}, 2, 4, rm.Size{}, "each on its own"},
		{`"gang":"2..8"`, rm.Size{}, 0, 4, rm.Size{Min: 2, Max: 4}, ""},
		{`"gang":"2..8"`, rm.Size{}, 0, 1, rm.Size{Min: 1, Max: 1}, ""},
		{`"gang":"2..8"`, rm.Size{}, 4, 12, rm.Size{Min: 4, Max: 12}, ""},
		{`"gang":"2..8"`, rm.Size{Min: 1, Max: 1}, 0, 8, rm.Size{Min: 1, Max: 8}, ""},
		{`"gang":2,"instances":4`, rm.Size{}, 0, 6, rm.Size{Min: 2, Max: 6}, ""},
		{`"gang":true,"instances":4`, rm.Size{}, 0, 6, rm.Size{}, "submit the job with gang: MIN..MAX"},
		{`"gang":4,"instances":4`, rm.Size{}, 0, 6, rm.Size{}, "submit the job with gang: MIN..MAX"},
		{`"array":{"to":9}`, rm.Size{}, 0, 4, rm.Size{}, "array"},
		{`"kind":"master"`, rm.Size{}, 0, 4, rm.Size{}, "its master decides"},
		{`"instances":4`, rm.Size{}, 0, MaxInstances + 1, rm.Size{}, "want 1 to 10000"},
		{`"instances":4`, rm.Size{}, 0, 0, rm.Size{}, "want 1 to"},
		{`"gang":"2..8"`, rm.Size{}, 5, 4, rm.Size{}, "between"},
		{`"gang":"2..8"`, rm.Size{}, 1001, 4000, rm.Size{}, "at most 1000"},
	} {
		s, err := Parse([]byte(`{"argv":["x"],` + c.document + `}`))
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Resize(s.SizeOf(&rm.Application{Size: c.now}), c.least, c.most)
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) || c.err == "" && (err != nil || got != c.want) {
			t.Errorf("%s to %d..%d: %v, %v", c.document, c.least, c.most, got, err)
		}
	}
}

func TestNamesOfMembers(t *testing.T) {
	for text, want := range map[string][2]string{
		"application_1_0001": {"application_1_0001", ""}, "application_1_0001_7": {"application_1_0001", "7"}, "application_1_0001[1,3-9]": {"application_1_0001", "1,3-9"},
		"application_1_0001_3-9": {"application_1_0001", "3-9"}, "application_1_0001[7": {"application_1_0001[7", ""}, "[7]": {"", "7"}, "": {"", ""},
	} {
		if id, members := ParseMembers(text); [2]string{id, members} != want {
			t.Errorf("%s: %q %q", text, id, members)
		}
	}
	numbers := []int{2, 4, 6, 8}
	for text, want := range map[string]string{"4": "[4]", "3-6": "[4 6]", "8,2,2-4": "[2 4 8]", "3": "there is no member 3: they have 4 numbers from 2 to 8", "9-20": "there is no member 9-20", "2,5": "no member 5"} {
		ranges, err := ParseRanges(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := In(ranges, numbers)
		if said := fmt.Sprint(got); err == nil && said != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-", "3-", "-3", "4-3", "a", "+1", "01", "1,,2", "1-2-3", strings.Repeat("1,", MaxRanges) + "1"} {
		if got, err := ParseRanges(text); err == nil {
			t.Errorf("%.20q: %v", text, got)
		}
	}
	if got, err := In([]Range{{0, 3}}, nil); err == nil || !slices.Equal(got, nil) {
		t.Errorf("of none: %v, %v", got, err)
	}
}
