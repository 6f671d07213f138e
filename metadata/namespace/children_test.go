package namespace

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Entries that come and go are found, counted and listed as those of a map are, below the size at which they become a tree
// and above it.
func TestChildrenAgreeWithModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c children
		model := map[string]*inode{}
		most := rapid.SampledFrom([]int{4, fewChildren, 3 * fewChildren}).Draw(t, "most")
		name := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("%s%d", rapid.SampledFrom([]string{"", "f", "part-0000"}).Draw(t, "prefix"), rapid.IntRange(0, most).Draw(t, "n"))
		})
		for range rapid.IntRange(1, 4*most).Draw(t, "steps") {
			s := name.Draw(t, "name")
			if rapid.IntRange(0, 2).Draw(t, "what") > 0 {
				n := &inode{name: s}
				c.add(n)
				model[s] = n
			} else {
				c.remove(s)
				delete(model, s)
			}
			if got := c.get(s); got != model[s] {
				t.Fatalf("%q is %v, want %v", s, got, model[s])
			}
			if c.count() != len(model) {
				t.Fatalf("%d entries, want %d", c.count(), len(model))
			}
		}
		names := make([]string, 0, len(model))
		for s := range model {
			names = append(names, s)
			if c.get(s) != model[s] {
				t.Fatalf("%q is not there", s)
			}
		}
		slices.Sort(names)
		if first := c.first(); (first == nil) != (len(names) == 0) || first != nil && first.name != names[0] {
			t.Fatalf("the first is %v of %q", first, names)
		}
		behind := rapid.OneOf(rapid.Just(""), name).Draw(t, "behind")
		at := 0
		for at < len(names) && behind != "" && names[at] <= behind {
			at++
		}
		if behind != "" && c.after(behind) != at {
			t.Fatalf("%d entries up to %q, want %d", c.after(behind), behind, at)
		}
		var got []string
		limit := rapid.IntRange(1, most+1).Draw(t, "limit")
		c.each(behind, func(n *inode) bool {
			got = append(got, n.name)
			return len(got) < limit
		})
		if want := names[at:min(at+limit, len(names))]; !slices.Equal(got, want) {
			t.Fatalf("behind %q are %q, want %q", behind, got, want)
		}
	})
}
