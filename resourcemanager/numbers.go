package resourcemanager

import (
	"math"
	"slices"
	"sort"
)

// MaxNumbers bounds how many are in a Numbers: a command has no more instances.
const MaxNumbers = 10_000

// Run is the numbers from First to Last.
type Run struct{ First, Last int32 }

// Numbers is a set of up to MaxNumbers numbers from 0 on, however large they are: runs in order, between any two of which a number is missing. Nil is
// empty. It is not changed in place.
type Numbers []Run

// find is the first run that does not end before a number.
func (s Numbers) find(n int) int {
	return sort.Search(len(s), func(i int) bool { return int(s[i].Last) >= n })
}

// Has reports whether a number is in the set.
func (s Numbers) Has(n int) bool {
	i := s.find(n)
	return i < len(s) && int(s[i].First) <= n
}

// Len is how many numbers are in the set.
func (s Numbers) Len() int {
	count := 0
	for _, r := range s {
		count += int(r.Last-r.First) + 1
	}
	return count
}

// With returns the set with one number more; one that is out of range is left out, and so is one too many.
func (s Numbers) With(n int) Numbers {
	if n < 0 || n >= math.MaxInt32 || s.Has(n) || s.Len() >= MaxNumbers {
		return s
	}
	from := s.find(n)
	to, run := from, Run{int32(n), int32(n)}
	if from > 0 && int(s[from-1].Last) == n-1 {
		from--
		run.First = s[from].First
	}
	if to < len(s) && int(s[to].First) == n+1 {
		run.Last = s[to].Last
		to++
	}
	return slices.Concat(s[:from], Numbers{run}, s[to:])
}

// List lists the numbers, the smallest first.
func (s Numbers) List() []int32 {
	var out []int32
	for _, r := range s {
		for n := r.First; n <= r.Last; n++ {
			out = append(out, n)
		}
	}
	return out
}

// Gaps is the set as pairs: how many numbers are left out before a run, and how many are in it.
func (s Numbers) Gaps() []uint32 {
	var out []uint32
	next := int32(0)
	for _, r := range s {
		out = append(out, uint32(r.First-next), uint32(r.Last-r.First)+1)
		next = r.Last + 1
	}
	return out
}

// NumbersOf is the set of such pairs. What does not belong to one is left out.
func NumbersOf(gaps []uint32) Numbers {
	var out Numbers
	next, count := int64(0), int64(0)
	for i := 0; i+1 < len(gaps); i += 2 {
		first, n := next+int64(gaps[i]), int64(gaps[i+1])
		if next, count = first+n, count+n; n == 0 || i > 0 && gaps[i] == 0 || next > math.MaxInt32 || count > MaxNumbers {
			break
		}
		out = append(out, Run{int32(first), int32(next - 1)})
	}
	return out
}
