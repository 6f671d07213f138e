package resourcemanager

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestNumbers(t *testing.T) {
	var s Numbers
	with := func(numbers ...int) {
		t.Helper()
		for _, n := range numbers {
			before := slices.Clone(s)
			next := s.With(n)
			if !slices.Equal(before, s) {
				t.Errorf("%d changes the set in place", n)
			}
			s = next
		}
	}
	with(9, 0, 9, 7, 8, MaxNumbers-1, MaxNumbers, -1, 1<<30, 1<<30-2, 1<<40, math.MaxInt32)
	if got, want := s.List(), []int32{0, 7, 8, 9, MaxNumbers - 1, MaxNumbers, 1<<30 - 2, 1 << 30}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := s.Len(); got != 8 {
		t.Errorf("%d numbers", got)
	}
	if want := (Numbers{{0, 0}, {7, 9}, {MaxNumbers - 1, MaxNumbers}, {1<<30 - 2, 1<<30 - 2}, {1 << 30, 1 << 30}}); !slices.Equal(s, want) {
		t.Errorf("%v, want %v", s, want)
	}
	for n, want := range map[int]bool{-1: false, 0: true, 1: false, 8: true, MaxNumbers: true, MaxNumbers + 1: false, 1 << 30: true, 1<<30 - 1: false, 1 << 40: false} {
		if s.Has(n) != want {
			t.Errorf("has %d: %v", n, !want)
		}
	}
}

// The numbers of an array are known wherever they begin and whatever lies between them, in any order.
func TestNumbersOfArrays(t *testing.T) {
	for _, a := range []struct{ from, to, step, runs int }{{20_000, 20_099, 1, 1}, {0, MaxNumbers - 1, 1, 1}, {1 << 20, 1 << 21, 1000, 1049}, {1<<30 - 9, 1 << 30, 1, 1}} {
		var want []int32
		for n := a.from; n <= a.to; n += a.step {
			want = append(want, int32(n))
		}
		var s Numbers
		for _, i := range rand.Perm(len(want)) {
			s = s.With(int(want[i]))
		}
		if !slices.Equal(s.List(), want) || len(s) != a.runs || s.Len() != len(want) {
			t.Errorf("%+v: %d numbers in %d runs", a, s.Len(), len(s))
		}
		if again := NumbersOf(s.Gaps()); !slices.Equal(again, s) {
			t.Errorf("%+v: written and read again it is %v", a, again)
		}
		for _, n := range want {
			if !s.Has(int(n)) || s.Has(int(n)+1) != slices.Contains(want, n+1) {
				t.Errorf("%+v: %d", a, n)
			}
		}
	}
}

func TestNumbersAreBounded(t *testing.T) {
	var s Numbers
	for n := range MaxNumbers + 10 {
		s = s.With(3 * n)
	}
	if s.Len() != MaxNumbers || s.Has(3*MaxNumbers) {
		t.Errorf("%d numbers", s.Len())
	}
	for _, bad := range [][]uint32{{1}, {0, 0}, {0, MaxNumbers + 1}, {math.MaxUint32, 1}, {math.MaxInt32, 1}, {5, math.MaxUint32}} {
		if got := NumbersOf(bad); len(got) != 0 {
			t.Errorf("%v is %v", bad, got)
		}
	}
	if got := NumbersOf([]uint32{2, 3, 0, 1, 7, 1}); !slices.Equal(got, Numbers{{2, 4}}) {
		t.Errorf("runs that are one: %v", got)
	}
}
