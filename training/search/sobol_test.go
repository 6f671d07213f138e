package search

import (
	"fmt"
	"testing"

	"github.com/gohops/hops/training"
)

// The first polynomials, as every table of them has it, and how many there are of each degree: φ(2^n-1)/n.
func TestPrimitivePolynomials(t *testing.T) {
	of := map[int]int{}
	var first []uint32
	for p := uint32(2); p < 1<<12; p++ {
		if primitive(p) {
			degree := 0
			for x := p; x > 1; x >>= 1 {
				degree++
			}
			of[degree]++
			if len(first) < 6 {
				first = append(first, p)
			}
		}
	}
	if got, want := fmt.Sprintf("%b", first), "[11 111 1011 1101 10011 11001]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for degree, want := range []int{0, 1, 1, 2, 2, 6, 6, 18, 16, 48, 60, 176} {
		if of[degree] != want {
			t.Errorf("degree %d: %d, want %d", degree, of[degree], want)
		}
	}
}

// Every dimension by itself has one of any 2^m points in each of 2^m equal parts: also scrambled, for every parameter that a space may
// have.
func TestSobolIsEvenInEveryDimension(t *testing.T) {
	var space training.Space
	for i := range training.MaxParameters {
		space = append(space, training.Parameter{Name: fmt.Sprint("p", i), Type: training.Double, Max: 1})
	}
	s := newSobol(space, 7)
	for d := range space {
		for _, m := range []int{4, 8} {
			for _, start := range []uint32{0, 3 << m} {
				seen := map[int]bool{}
				for n := range uint32(1 << m) {
					seen[int(s.coordinate(start+n, d)*float64(int(1)<<m))] = true
				}
				if len(seen) != 1<<m {
					t.Fatalf("dimension %d: points %d to %d are in %d of %d parts", d, start, start+1<<m, len(seen), 1<<m)
				}
			}
		}
	}
}

// Neighbouring dimensions fill the square: of 256 points, no box of 1/16 of it is without a point.
func TestSobolFillsPairsOfDimensions(t *testing.T) {
	v := directions(40)
	worst := 0
	for d := 1; d < len(v); d++ {
		for back := 1; back <= min(d, directionsBack); back++ {
			worst = max(worst, defect(&v[d-back], &v[d], 10))
		}
	}
	if worst > 6 {
		t.Errorf("2^10 points of two dimensions leave boxes of volume 2^-%d empty", 10-worst)
	}
	if t2 := defect(&v[0], &v[1], 10); t2 != 0 {
		t.Errorf("the first two dimensions: t = %d, want 0", t2)
	}
}

func BenchmarkDirections(b *testing.B) {
	for b.Loop() {
		directions(training.MaxParameters)
	}
}

func BenchmarkDirections8(b *testing.B) {
	for b.Loop() {
		directions(8)
	}
}
