package search

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// parzen is a density over a group of axes: the mean of kernels, one around each point and one over the whole space. A kernel is
// a product over the axes, of normal distributions cut to [0, 1], of their masses in cells, and of distributions over choices.
type parzen struct {
	axes    axes
	group   []int
	points  [][]float64 // the last kernel, the prior, has none
	weights []float64   // logarithms, for each point and the prior
	sigma   matrix      // for each kernel and each of the group
	apart   []float64   // of each of the group that is nominal: how much of a kernel lies on each choice, where 1 more lies on its point's
	mass    [][]float64 // for each kernel and each of the group: the logarithm of what of the normal is inside [0, 1]
}

// newParzen estimates a density with a weight for each point; one for the prior is put beside them.
func newParzen(s axes, group []int, points [][]float64, weights []float64) *parzen {
	p := &parzen{axes: s, group: group, points: points, sigma: newMatrix(len(points)+1, len(group))}
	total := 1.0
	for _, w := range weights {
		total += w
	}
	for _, w := range weights {
		p.weights = append(p.weights, math.Log(w/total))
	}
	p.weights = append(p.weights, -math.Log(total))
	nominal := 0
	for j, i := range group {
		if s[i].nominal {
			nominal++
		}
		p.widths(j)
	}
	for _, i := range group {
		// Of many axes each changes less often. A choice that others depend on changes more often: what it is worth is not known before
		// those have been searched as well.
		apart := 2 / math.Sqrt(float64(max(nominal, 1)))
		if s.decides(i) {
			apart = 4
		}
		p.apart = append(p.apart, apart/float64(len(points)+1))
	}
	p.mass = make([][]float64, len(points)+1)
	for k := range p.mass {
		row := make([]float64, len(group))
		for j, i := range group {
			if !s[i].nominal {
				mu, sigma := p.kernel(k, j)
				row[j] = math.Log(normalMass((0-mu)/sigma, (1-mu)/sigma))
			}
		}
		p.mass[k] = row
	}
	return p
}

// widths makes each kernel of an axis as wide as it is far to its farther neighbour (Bergstra et al., section 4.2; the prior in the
// middle is one too), but not narrower than a share of the space that shrinks with the number of points, or than half a cell.
func (p *parzen) widths(j int) {
	i, n := p.group[j], len(p.points)
	a := &p.axes[i]
	if a.nominal {
		return
	}
	order := make([]int, n+1)
	for k := range order {
		order[k] = k
	}
	at := func(k int) float64 {
		if k == n {
			return 0.5
		}
		return p.points[k][i]
	}
	slices.SortStableFunc(order, func(k, l int) int { return cmp.Compare(at(k), at(l)) })
	narrow := 1 / min(100, 1+float64(n+1))
	if a.cells > 0 {
		narrow = max(narrow, 0.5/a.cells)
	}
	for place, k := range order {
		w := 0.0
		if place > 0 {
			w = at(k) - at(order[place-1])
		}
		if place < n {
			w = max(w, at(order[place+1])-at(k))
		}
		p.sigma[k][j] = min(max(w, narrow), 1)
	}
	p.sigma[n][j] = 1
}

// kernel is the normal distribution of the k-th kernel on the j-th axis of the group.
func (p *parzen) kernel(k, j int) (mu, sigma float64) {
	if k == len(p.points) {
		return 0.5, p.sigma[k][j]
	}
	return p.points[k][p.group[j]], p.sigma[k][j]
}

// choice is the probability of a choice of a nominal axis in the k-th kernel.
func (p *parzen) choice(k, j int, c float64) float64 {
	m := p.axes[p.group[j]].cells
	if k == len(p.points) {
		return 1 / m
	}
	if p.points[k][p.group[j]] == c {
		return (1 + p.apart[j]) / (1 + m*p.apart[j])
	}
	return p.apart[j] / (1 + m*p.apart[j])
}

// draw fills in the group's numbers of a point.
func (p *parzen) draw(x []float64, r *rand.Rand) {
	k, u := 0, r.Float64()
	for ; k < len(p.points); k++ {
		if u -= math.Exp(p.weights[k]); u < 0 {
			break
		}
	}
	for j, i := range p.group {
		a := &p.axes[i]
		if a.nominal {
			u, c := r.Float64(), 0.0
			for ; c < a.cells-1; c++ {
				if u -= p.choice(k, j, c); u < 0 {
					break
				}
			}
			x[i] = c
			continue
		}
		mu, sigma := p.kernel(k, j)
		x[i] = a.snap(normalWithin(mu, sigma, r))
	}
}

// log is the logarithm of the density at a point; of the probability on axes of cells.
func (p *parzen) log(x []float64) float64 {
	terms := make([]float64, len(p.mass))
	for k := range p.mass {
		t := p.weights[k]
		for j, i := range p.group {
			a := &p.axes[i]
			if a.nominal {
				t += math.Log(p.choice(k, j, x[i]))
				continue
			}
			mu, sigma := p.kernel(k, j)
			if a.cells == 0 {
				z := (x[i] - mu) / sigma
				t += -z*z/2 - math.Log(sigma) - halfLog2Pi - p.mass[k][j]
			} else {
				low, high := a.cell(x[i])
				t += logCellMass(low, high, mu, sigma) - p.mass[k][j]
			}
		}
		terms[k] = t
	}
	return logSum(terms)
}

const halfLog2Pi = 0.91893853320467274178

// logSum is log Σ exp(terms).
func logSum(terms []float64) float64 {
	top := math.Inf(-1)
	for _, t := range terms {
		top = max(top, t)
	}
	if math.IsInf(top, -1) {
		return top
	}
	sum := 0.0
	for _, t := range terms {
		sum += math.Exp(t - top)
	}
	return top + math.Log(sum)
}

// logCellMass is the logarithm of a normal distribution's mass in a cell. Of one that is narrow, as those of a range of billions of whole
// numbers, it is density times width: a difference of two probabilities would have no digits left.
func logCellMass(low, high, mu, sigma float64) float64 {
	if width := (high - low) / sigma; width < 1e-3 {
		z := ((low+high)/2 - mu) / sigma
		return -z*z/2 - halfLog2Pi + math.Log(max(width, 1e-300))
	}
	return math.Log(normalMass((low-mu)/sigma, (high-mu)/sigma))
}

// normalMass is the probability of a standard normal number between two, at least a tiny one.
func normalMass(low, high float64) float64 {
	if low > 0 {
		low, high = -high, -low // the lower tail has the better precision
	}
	return max(normalCDF(high)-normalCDF(low), 1e-300)
}

func normalCDF(z float64) float64 { return math.Erfc(-z/math.Sqrt2) / 2 }

// normalWithin draws of a normal distribution cut to [0, 1], whose mean lies in it.
func normalWithin(mu, sigma float64, r *rand.Rand) float64 {
	for range 100 {
		if x := mu + sigma*r.NormFloat64(); x >= 0 && x <= 1 {
			return x
		}
	}
	return mu
}
