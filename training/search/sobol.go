package search

import (
	"math/bits"

	"github.com/gohops/hops/training"
)

// sobol is the sequence of Sobol' (1967): point n has in each dimension the digits of n in base 2, multiplied by the matrix of
// direction numbers of that dimension. Any 2^m successive points starting at a multiple of 2^m are spread evenly over each
// dimension, and nearly so over pairs of them. A dimension is a parameter of the space.
//
// Dimension d > 0 has the d-th primitive polynomial over GF(2) of its own; they are computed here, as are the free first
// direction numbers: of some random ones those whose projections with earlier dimensions are best (Joe and Kuo, 2008, choose by
// the same quantity, the t-value). The points are scrambled digit by digit (Owen, 1995) with the seed.
type sobol struct {
	space training.Space
	seed  uint64
	v     [][32]uint32 // direction numbers of each dimension, the first in the highest bit
}

func newSobol(space training.Space, seed uint64) *sobol {
	return &sobol{space, seed, directions(len(space))}
}

// at is configuration n. Every parameter has its dimension, also where it is not active.
func (s *sobol) at(n training.TrialID) training.Params {
	p := make(training.Params, len(s.space))
	for d, q := range s.space {
		if q.Active(p) {
			p[q.Name] = fromUnit(q, s.coordinate(uint32(n-1), d))
		}
	}
	return p
}

// coordinate is in [0, 1).
func (s *sobol) coordinate(n uint32, dimension int) float64 {
	x := uint32(0)
	for j := range 32 {
		if n>>j&1 == 1 {
			x ^= s.v[dimension][j]
		}
	}
	x = scramble(x, mix(s.seed, uint64(dimension)))
	return (float64(x) + 0.5) / (1 << 32)
}

// scramble is nested uniform scrambling: each digit is turned over or not, as a hash of those above it says.
func scramble(x uint32, seed uint64) uint32 {
	out := uint32(0)
	for k := range 32 {
		above := uint64(1)<<k | uint64(x>>(32-k)) // a prefix of k digits; k 0: x>>32 is 0
		flip := uint32(mix(seed, above)) & 1
		out |= (x>>(31-k)&1 ^ flip) << (31 - k)
	}
	return out
}

// mix is a hash of two numbers: the finalizer of SplitMix64 (Steele et al., 2014), twice.
func mix(a, b uint64) uint64 {
	for _, x := range []uint64{b, 0} {
		a += x*0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15
		a = (a ^ a>>30) * 0xbf58476d1ce4e5b9
		a = (a ^ a>>27) * 0x94d049bb133111eb
		a ^= a >> 31
	}
	return a
}

const (
	directionChoices = 12 // random starts of a dimension, of which the best is taken
	directionsBack   = 8  // earlier dimensions that it is compared with
)

// directions computes the direction numbers of n dimensions. The first is van der Corput's sequence.
func directions(n int) [][32]uint32 {
	v := make([][32]uint32, 0, n)
	polynomial := uint32(0b11) // the first primitive one, x+1
	for d := range n {
		var own [32]uint32
		if d == 0 {
			for j := range own {
				own[j] = 1 << (31 - j)
			}
			v = append(v, own)
			continue
		}
		least := -1
		for choice := range directionChoices {
			c := direction(polynomial, uint64(d)<<8|uint64(choice))
			t := 0
			for back := 1; back <= min(d, directionsBack); back++ {
				for _, m := range []int{4, 7, 10} {
					t += defect(&v[d-back], &c, m)
				}
			}
			if least < 0 || t < least {
				least, own = t, c
			}
		}
		v = append(v, own)
		for polynomial++; !primitive(polynomial); polynomial++ {
		}
	}
	return v
}

// direction continues random first direction numbers by the recurrence of a polynomial.
func direction(polynomial uint32, choice uint64) (v [32]uint32) {
	degree := bits.Len32(polynomial) - 1
	for j := range v {
		if j < degree { // any odd number below 2^(j+1)
			v[j] = (uint32(mix(choice, uint64(j)))&(1<<j-1)<<1 | 1) << (31 - j)
			continue
		}
		v[j] = v[j-degree] ^ v[j-degree]>>degree
		for k := 1; k < degree; k++ {
			if polynomial>>(degree-k)&1 == 1 {
				v[j] ^= v[j-k]
			}
		}
	}
	return v
}

// primitive reports whether a polynomial over GF(2), its bits the coefficients, generates all nonzero residues: x has the order
// 2^degree-1.
func primitive(p uint32) bool {
	if p&1 == 0 {
		return false
	}
	degree := bits.Len32(p) - 1
	order := uint32(1)<<degree - 1
	x := uint32(1)
	for i := uint32(1); i <= order; i++ {
		x <<= 1
		if x>>degree&1 == 1 {
			x ^= p
		}
		if x == 1 {
			return i == order
		}
	}
	return false
}

// defect is the t-value of two dimensions' first 2^m points: m minus the largest q such that every box of volume 2^-q with
// sides of powers of two holds its share. 0 is best.
func defect(a, b *[32]uint32, m int) int {
	for q := m; q > 0; q-- {
		all := true
		for i := 0; i <= q && all; i++ {
			all = independent(a, b, i, q-i, m)
		}
		if all {
			return m - q
		}
	}
	return m
}

// independent reports whether the first i rows of one matrix and the first j of another are.
func independent(a, b *[32]uint32, i, j, m int) bool {
	var basis [32]uint32 // by highest bit
	add := func(v *[32]uint32, row int) bool {
		x := uint32(0)
		for col := range m {
			x |= v[col] >> (31 - row) & 1 << col
		}
		for x != 0 {
			h := bits.Len32(x) - 1
			if basis[h] == 0 {
				basis[h] = x
				return true
			}
			x ^= basis[h]
		}
		return false
	}
	for r := range i {
		if !add(a, r) {
			return false
		}
	}
	for r := range j {
		if !add(b, r) {
			return false
		}
	}
	return true
}
