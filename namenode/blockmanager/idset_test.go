package blockmanager

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gohops/hops/metadata"
)

func TestIDSetIsASortedSet(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var s idSet
	want := map[metadata.BlockID]struct{}{}
	for step := range 20_000 {
		id := metadata.BlockID(1<<30 + r.Int64N(30_000))
		if r.IntN(50) == 0 {
			id = -id // HDFS's ids of block groups
		}
		if r.IntN(2) == 0 {
			s.add(id)
			want[id] = struct{}{}
		} else {
			s.drop(id)
			delete(want, id)
		}
		if step%500 != 0 {
			continue
		}
		var got []metadata.BlockID
		for after := metadata.BlockID(-1 << 62); ; {
			page := s.after(after, nil, 700)
			got = append(got, page...)
			if len(page) < 700 {
				break
			}
			after = page[len(page)-1]
		}
		if !slices.Equal(got, sortedKeys(want)) || s.len() != len(want) || !slices.Equal(s.list(), got) || !slices.Equal(slices.Collect(s.all()), got) {
			t.Fatalf("step %d: %d ids, want %d", step, len(got), len(want))
		}
	}
	other := idSet{}
	var rest []metadata.BlockID
	for i, id := range s.list() {
		if i%3 == 0 {
			other.add(id)
		} else {
			rest = append(rest, id)
		}
	}
	if got := s.without(&other); !slices.Equal(got, rest) {
		t.Fatalf("%d ids of one are not in the other, want %d", len(got), len(rest))
	}
	var seen []metadata.BlockID
	for id := range s.all() { // which changes meanwhile
		if len(seen)%2 == 0 {
			s.drop(id + 1)
		}
		seen = append(seen, id)
		if !s.has(id) {
			t.Fatalf("%d is not there any more", id)
		}
	}
	if !slices.Equal(seen, s.list()) {
		t.Fatalf("%d were shown, %d are there", len(seen), s.len())
	}
}
