package resourcemanager

import (
	"slices"
	"testing"
)

func TestNumbers(t *testing.T) {
	var s Numbers
	for _, n := range []int{9, 0, 9, 7, 8, MaxNumber - 1, MaxNumber, -1} {
		before := slices.Clone(s)
		next := s.With(n)
		if !slices.Equal(before, s) {
			t.Errorf("%d changes the set in place", n)
		}
		s = next
	}
	if got, want := s.List(), []int32{0, 7, 8, 9, MaxNumber - 1}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for n, want := range map[int]bool{-1: false, 0: true, 1: false, 8: true, MaxNumber - 1: true, MaxNumber: false, 1 << 30: false} {
		if s.Has(n) != want {
			t.Errorf("has %d: %v", n, !want)
		}
	}
	if len(s) != MaxNumber/8 {
		t.Errorf("%d bytes", len(s))
	}
}
