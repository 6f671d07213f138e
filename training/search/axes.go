package search

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gohops/hops/training"
)

// axis is one parameter as a model sees it. A range, and the sorted numbers of a DISCRETE parameter, become the unit interval, in
// which a whole number or a number of a list is a cell; a CATEGORICAL parameter stays an index.
type axis struct {
	training.Parameter
	nominal bool
	// cells is how many values there are; 0: a continuum.
	cells float64
	// sorted are the indices of a DISCRETE parameter's values in rising order.
	sorted []int
	// parents are the axes that decide whether this one is active, with the indices of the values that let it be.
	parents []parent
}

type parent struct {
	axis   int
	values []int // indices into Values
}

// axes is a space for models. A point of it has a number for each axis: in [0, 1], an index for a nominal axis, NaN for a
// parameter that is not active.
type axes []axis

func newAxes(space training.Space) axes {
	out := make(axes, len(space))
	for i, p := range space {
		a := axis{Parameter: p, nominal: p.Type == training.Categorical}
		switch p.Type {
		case training.Double:
			if p.Min == p.Max {
				a.cells = 1
			}
		case training.Integer:
			a.cells = p.Max - p.Min + 1
		default:
			a.cells = float64(len(p.Values))
			for k := range p.Values {
				a.sorted = append(a.sorted, k)
			}
			if !a.nominal {
				slices.SortStableFunc(a.sorted, func(x, y int) int {
					f, _ := p.Values[x].Float()
					g, _ := p.Values[y].Float()
					switch {
					case f < g:
						return -1
					case f > g:
						return 1
					}
					return 0
				})
			}
		}
		for _, w := range p.When {
			d := parent{axis: slices.IndexFunc(space[:i], func(q training.Parameter) bool { return q.Name == w.Parameter })}
			for k, v := range space[d.axis].Values {
				if slices.ContainsFunc(w.Values, v.Equal) {
					d.values = append(d.values, k)
				}
			}
			a.parents = append(a.parents, d)
		}
		out[i] = a
	}
	return out
}

// encode is the number of a value; what is outside the space comes to its edge.
func (a *axis) encode(v training.Value) float64 {
	switch a.Type {
	case training.Double, training.Integer:
		f, ok := v.Float()
		if !ok || a.cells == 1 {
			return 0.5
		}
		return place(a.Parameter, f)
	}
	k := max(slices.IndexFunc(a.Values, v.Equal), 0)
	if a.nominal {
		return float64(k)
	}
	return (float64(slices.Index(a.sorted, k)) + 0.5) / a.cells
}

// decode is the value at a number.
func (a *axis) decode(u float64) training.Value {
	switch a.Type {
	case training.Double:
		if a.Log {
			return training.Float(min(max(math.Exp((1-u)*math.Log(a.Min)+u*math.Log(a.Max)), a.Min), a.Max))
		}
		return training.Float(min(max((1-u)*a.Min+u*a.Max, a.Min), a.Max))
	case training.Integer:
		v := a.Min + math.Floor(u*a.cells)
		if a.Log {
			v = math.Floor(math.Exp((1-u)*math.Log(a.Min) + u*math.Log(a.Max+1)))
		}
		return training.Int(int64(min(max(v, a.Min), a.Max)))
	}
	return a.Values[a.index(u)]
}

// index is that of the value of a list at a number.
func (a *axis) index(u float64) int {
	if a.nominal {
		return int(u)
	}
	return a.sorted[int(min(u*a.cells, a.cells-1))]
}

// snap moves a number to the middle of its cell.
func (a *axis) snap(u float64) float64 {
	if a.nominal || a.cells == 0 {
		return u
	}
	return a.encode(a.decode(u))
}

// cell is the interval of the numbers that mean the same value; it has no width on a continuum.
func (a *axis) cell(u float64) (low, high float64) {
	if a.cells == 0 {
		return u, u
	}
	if a.Type == training.Integer && a.Log {
		v, _ := a.decode(u).Float()
		base, width := math.Log(a.Min), math.Log(a.Max+1)-math.Log(a.Min)
		return (math.Log(v) - base) / width, (math.Log(v+1) - base) / width
	}
	k := min(math.Floor(u*a.cells), a.cells-1)
	return k / a.cells, (k + 1) / a.cells
}

// fixed reports whether there is nothing to choose.
func (a *axis) fixed() bool { return a.cells == 1 }

// random is a number, evenly distributed over values as the space says.
func (a *axis) random(r *rand.Rand) float64 {
	if a.nominal {
		return float64(r.IntN(len(a.Values)))
	}
	return a.snap(r.Float64())
}

// decides reports whether it depends on axis i which others are active.
func (s axes) decides(i int) bool {
	return slices.ContainsFunc(s, func(a axis) bool {
		return slices.ContainsFunc(a.parents, func(p parent) bool { return p.axis == i })
	})
}

// active reports whether axis i is part of a point, as far as the axes before it decide that.
func (s axes) active(i int, x []float64) bool {
	for _, p := range s[i].parents {
		if math.IsNaN(x[p.axis]) || !slices.Contains(p.values, s[p.axis].index(x[p.axis])) {
			return false
		}
	}
	return true
}

// settle makes a point of the space of any numbers: cells are snapped to, what is not active has none, what has become active
// gets a random one.
func (s axes) settle(x []float64, r *rand.Rand) {
	for i := range s {
		switch a := &s[i]; {
		case !s.active(i, x):
			x[i] = math.NaN()
		case math.IsNaN(x[i]):
			x[i] = a.random(r)
		default:
			x[i] = a.snap(x[i])
		}
	}
}

func (s axes) encode(p training.Params) []float64 {
	x := make([]float64, len(s))
	for i := range s {
		if v, ok := p[s[i].Name]; ok {
			x[i] = s[i].encode(v)
		} else {
			x[i] = math.NaN()
		}
	}
	return x
}

func (s axes) decode(x []float64) training.Params {
	p := make(training.Params, len(s))
	for i := range s {
		if !math.IsNaN(x[i]) {
			p[s[i].Name] = s[i].decode(x[i])
		}
	}
	return p
}

// random is a point of the space.
func (s axes) random(r *rand.Rand) []float64 {
	x := make([]float64, len(s))
	for i := range x {
		x[i] = math.NaN()
	}
	s.settle(x, r)
	return x
}

// stratified is the k-th of n points of a latin hypercube: each of n equal parts of each axis has one of them.
func (s axes) stratified(seed uint64, k, n int) []float64 {
	x := make([]float64, len(s))
	for i := range s {
		r := rand.New(rand.NewPCG(seed, uint64(i)<<32|0xface))
		places := r.Perm(n)
		at := rand.New(rand.NewPCG(seed, uint64(i)<<32|uint64(k)<<16|0xcafe)).Float64()
		x[i] = (float64(places[k]) + at) / float64(n)
		if s[i].nominal {
			x[i] = math.Floor(x[i] * s[i].cells)
		}
	}
	s.settle(x, rand.New(rand.NewPCG(seed, uint64(k))))
	return x
}
