package search

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gohops/hops/training"
)

// cmaes is the evolution strategy with covariance matrix adaptation (Hansen, arXiv 1604.00772, with negative weights), in the unit
// cube of the numeric parameters. As soon as a population of results is there the distribution learns from them, in the order
// in which they came: who asks while others run gets a sample of the distribution as it is, and nobody waits. A sample that is
// far from the distribution that has moved on counts with a bounded length (Hansen, arXiv 1110.4181).
//
// The first population is a latin hypercube over the whole cube, and the mean of its better half is where the distribution begins:
// one around the middle, which is usual, sees no corner before it has shrunk. Of each distribution the mean itself is tried first: it is
// where the strategy believes the minimum to be, and better than most samples around it.
//
// Two trials after one another are mirrored in the mean, which makes small populations more even (Brockhoff et al., PPSN 2010).
// Samples outside the cube are drawn again, some times, and then brought to its side. Whole numbers and numbers of lists are the
// cells of the cube; the distribution is kept wide enough to leave a cell now and then (after Hamano et al., GECCO 2022).
// Categorical parameters are chosen by tpe, all of them together. When it has converged it starts again elsewhere with a
// population twice as large (IPOP; Auger and Hansen, CEC 2005).
type cmaes struct {
	seed       uint64
	population int
	sigma      float64
	numeric    []int // axes
	choices    *tpe  // of the nominal axes; nil: there are none

	// What follows is computed from the first seen of the observations of a revision of the history.
	seen     int
	revision int
	worst    float64 // loss
	at       distribution
}

// distribution is the state of the strategy: normal with the mean, and with the covariance sigma²·c.
type distribution struct {
	strategy
	mean       []float64
	sigma      float64
	c          matrix
	vectors    matrix    // of c, in columns
	lengths    []float64 // roots of its eigenvalues
	pathC      []float64
	pathS      []float64
	generation int
	restarts   int
	recent     []float64 // the best loss of each of the last generations
}

// strategy are the constants of a population in n dimensions.
type strategy struct {
	lambda, mu                           int
	weights                              []float64 // of the sorted population
	muEff, cc, cs, c1, cMu, damping, chi float64
}

func newStrategy(n, lambda int) strategy {
	d, mu := float64(n), lambda/2
	s := strategy{lambda: lambda, mu: mu, weights: make([]float64, lambda)}
	var sum, squares, lost, lostSquares float64
	for i := range s.weights {
		w := math.Log(float64(lambda+1)/2) - math.Log(float64(i+1))
		s.weights[i] = w
		if i < mu {
			sum, squares = sum+w, squares+w*w
		} else {
			lost, lostSquares = lost+w, lostSquares+w*w
		}
	}
	s.muEff = sum * sum / squares
	s.cc = (4 + s.muEff/d) / (d + 4 + 2*s.muEff/d)
	s.c1 = 2 / ((d+1.3)*(d+1.3) + s.muEff)
	s.cMu = min(1-s.c1, 2*(0.25+s.muEff+1/s.muEff-2)/((d+2)*(d+2)+s.muEff))
	s.cs = (s.muEff + 2) / (d + s.muEff + 5)
	s.damping = 1 + 2*max(0, math.Sqrt((s.muEff-1)/(d+1))-1) + s.cs
	s.chi = math.Sqrt(d) * (1 - 1/(4*d) + 1/(21*d*d))
	negative := min(1+s.c1/s.cMu, 1+2*(lost*lost/max(lostSquares, 1e-300))/(s.muEff+2), (1-s.c1-s.cMu)/(d*s.cMu))
	for i, w := range s.weights {
		if i < mu {
			s.weights[i] = w / sum
		} else {
			s.weights[i] = negative * w / max(-lost, 1e-300)
		}
	}
	return s
}

func newCMAES(s *training.Spec) *modelled {
	c := &cmaes{seed: s.RandomSeed(), population: s.Optimizer.Population, sigma: s.Optimizer.Sigma}
	m := newModelled(s, c.population, c)
	var nominal []int
	for i := range m.history.axes {
		switch a := &m.history.axes[i]; {
		case a.nominal:
			nominal = append(nominal, i)
		case !a.fixed():
			c.numeric = append(c.numeric, i)
		}
	}
	if len(nominal) > 0 {
		c.choices = &tpe{seed: c.seed, candidates: 24, gamma: 0.15}
		for _, g := range m.history.axes.groups(true) {
			if g = slices.DeleteFunc(g, func(i int) bool { return !m.history.axes[i].nominal }); len(g) > 0 {
				c.choices.groups = append(c.choices.groups, g)
			}
		}
	}
	return m
}

func (c *cmaes) choose(n training.TrialID, h *history) []float64 {
	r := dice(c.seed, n)
	x := make([]float64, len(h.axes))
	for i := range x {
		x[i] = math.NaN()
	}
	for try := range 20 {
		if try == 0 && c.choices != nil {
			x = c.choices.choose(n, h)
		}
		if len(c.numeric) > 0 {
			if c.catchUp(h); try > 0 || !c.center(h, x) {
				c.sample(h.axes, x, dice(c.seed+uint64(try), n/2), float64(1-2*(int(n)%2)))
			}
		}
		h.axes.settle(x, r)
		if !h.taken(x) {
			break
		}
	}
	return x
}

// catchUp learns from what has come.
func (c *cmaes) catchUp(h *history) {
	if c.at.mean == nil || h.revision != c.revision {
		c.seen, c.revision, c.worst, c.at = 0, h.revision, math.Inf(-1), distribution{}
		c.begin()
	}
	for c.seen+c.at.lambda <= len(h.done) {
		end := c.seen + c.at.lambda
		population := h.done[c.seen:end]
		var losses []float64
		losses, c.worst = lossesAfter(population, c.worst)
		first := c.seen == 0
		c.seen = end
		if first {
			c.at.settle(c.numeric, population, losses)
		} else if c.at.learn(c.numeric, population, losses); c.at.converged() {
			c.begin()
		}
	}
}

// center puts the mean into a point, unless it is the middle that nothing is known of, or runs, or was tried since the distribution is as
// it is.
func (c *cmaes) center(h *history, x []float64) bool {
	if c.seen == 0 {
		return false
	}
	mean := make([]float64, len(c.numeric))
	for k, i := range c.numeric {
		mean[k] = h.axes[i].snap(c.at.mean[k])
	}
	tried := func(p []float64) bool {
		for k, i := range c.numeric {
			if math.Abs(p[i]-mean[k]) > 1e-9 { // less: it was a value in between
				return false
			}
		}
		return true
	}
	if slices.ContainsFunc(h.running, tried) || slices.ContainsFunc(h.done[c.seen:], func(o observation) bool { return tried(o.x) }) {
		return false
	}
	for k, i := range c.numeric {
		x[i] = mean[k]
	}
	return true
}

// begin starts in the middle, and again at random places.
func (c *cmaes) begin() {
	n := len(c.numeric)
	d := distribution{sigma: c.sigma, restarts: c.at.restarts}
	lambda := max(c.population, 2)
	d.mean = make([]float64, n)
	for i := range d.mean {
		d.mean[i] = 0.5
	}
	if c.at.mean != nil {
		d.restarts++
		lambda = min(lambda<<min(d.restarts, 6), 10_000)
		r := rand.New(rand.NewPCG(c.seed, uint64(d.restarts)<<32|0xd1ce))
		for i := range d.mean {
			d.mean[i] = r.Float64()
		}
	}
	d.strategy = newStrategy(n, lambda)
	d.c, d.vectors = newMatrix(n, n), newMatrix(n, n)
	d.lengths, d.pathC, d.pathS = make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range n {
		d.c[i][i], d.vectors[i][i], d.lengths[i] = 1, 1, 1
	}
	c.at = d
}

// sample draws the numeric axes of a point.
func (c *cmaes) sample(s axes, x []float64, r *rand.Rand, sign float64) {
	d := &c.at
	z := make([]float64, len(d.mean))
	for try := range 50 {
		for i := range z {
			z[i] = sign * d.lengths[i] * r.NormFloat64()
		}
		inside := true
		for k, i := range c.numeric {
			step := d.sigma * dot(d.vectors[k], z)
			if a := &s[i]; a.cells > 0 {
				low, high := a.cell(d.mean[k])
				if deviation, least := d.sigma*math.Sqrt(d.c[k][k]), 0.3*(high-low); deviation < least {
					step *= least / deviation
				}
			}
			x[i] = d.mean[k] + step
			inside = inside && x[i] >= 0 && x[i] <= 1
		}
		if inside || try == 49 {
			break
		}
	}
	for _, i := range c.numeric {
		x[i] = min(max(x[i], 0), 1)
	}
}

// settle puts the mean among the better ones of a population that was drawn of the whole cube; its steps say nothing of the distribution.
func (d *distribution) settle(numeric []int, population []observation, losses []float64) {
	order := ascending(losses)
	for j, i := range numeric {
		sum, total := 0.0, 0.0
		for k, w := range d.weights[:d.mu] {
			if u := population[order[k]].x[i]; !math.IsNaN(u) {
				sum, total = sum+w*u, total+w
			}
		}
		if total > 0 {
			d.mean[j] = sum / total
		}
	}
}

// ascending are the places of losses, the least first.
func ascending(losses []float64) []int {
	order := make([]int, len(losses))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(losses[a], losses[b]) })
	return order
}

// learn moves the distribution to the better ones of a population.
func (d *distribution) learn(numeric []int, population []observation, losses []float64) {
	order := ascending(losses)
	n := len(d.mean)
	steps := newMatrix(d.lambda, n)
	lengths := make([]float64, d.lambda) // squared, as the covariance measures
	longest := math.Sqrt(float64(n)) + 2*float64(n)/float64(n+2)
	for k, at := range order {
		for j, i := range numeric {
			if u := population[at].x[i]; !math.IsNaN(u) { // an inactive one says nothing of the axis
				steps[k][j] = (u - d.mean[j]) / d.sigma
			}
		}
		w := d.whiten(steps[k], false)
		if lengths[k] = dot(w, w); lengths[k] > longest*longest {
			shorter := longest / math.Sqrt(lengths[k])
			for j := range steps[k] {
				steps[k][j] *= shorter
			}
			lengths[k] = longest * longest
		}
	}
	move := make([]float64, n)
	for k, w := range d.weights[:d.mu] {
		for j, v := range steps[k] {
			move[j] += w * v
		}
	}
	for j, v := range move {
		d.mean[j] = min(max(d.mean[j]+d.sigma*v, 0), 1)
	}
	d.generation++
	white := d.whiten(move, true)
	for j := range white {
		d.pathS[j] = (1-d.cs)*d.pathS[j] + math.Sqrt(d.cs*(2-d.cs)*d.muEff)*white[j]
	}
	length := math.Sqrt(dot(d.pathS, d.pathS))
	slow := 0.0 // the path is not so long that the step grows: no heaviside stop
	if length/math.Sqrt(1-math.Pow(1-d.cs, 2*float64(d.generation+1))) < (1.4+2/float64(n+1))*d.chi {
		slow = 1
	}
	for j := range d.pathC {
		d.pathC[j] = (1-d.cc)*d.pathC[j] + slow*math.Sqrt(d.cc*(2-d.cc)*d.muEff)*move[j]
	}
	total := 0.0
	for _, w := range d.weights {
		total += w
	}
	keep := 1 - d.c1 - d.cMu*total + (1-slow)*d.c1*d.cc*(2-d.cc)
	for i := range n {
		for j := range i + 1 {
			v := keep*d.c[i][j] + d.c1*d.pathC[i]*d.pathC[j]
			for k, w := range d.weights {
				if w < 0 {
					w *= float64(n) / max(lengths[k], 1e-20)
				}
				v += d.cMu * w * steps[k][i] * steps[k][j]
			}
			d.c[i][j] = v
			d.c[j][i] = v
		}
	}
	d.sigma *= math.Exp(min(d.cs/d.damping*(length/d.chi-1), 1))
	d.sigma = min(d.sigma, 1)
	d.recent = append(d.recent, losses[order[0]])
	if most := 10 + 30*n/d.lambda; len(d.recent) > most {
		d.recent = d.recent[len(d.recent)-most:]
	}
	d.decompose()
}

func (d *distribution) decompose() {
	n := len(d.mean)
	work := newMatrix(n, n)
	for i := range work {
		copy(work[i], d.c[i])
	}
	values, vectors := eigen(work)
	for i, v := range values {
		d.lengths[i] = math.Sqrt(max(v, 1e-20))
	}
	d.vectors = vectors
}

// whiten is C^(-1/2)·y, or as long a vector in the coordinates of the eigenvectors where that is enough.
func (d *distribution) whiten(y []float64, back bool) []float64 {
	n := len(y)
	inner := make([]float64, n)
	for k := range n {
		for j, v := range y {
			inner[k] += d.vectors[j][k] * v
		}
		inner[k] /= d.lengths[k]
	}
	if !back {
		return inner
	}
	out := make([]float64, n)
	for j := range out {
		out[j] = dot(d.vectors[j], inner)
	}
	return out
}

// converged reports whether there is nothing more to gain here: steps too small to matter, a distribution that has lost a
// dimension, or the same best value for many generations.
func (d *distribution) converged() bool {
	longest, shortest := slices.Max(d.lengths), slices.Min(d.lengths)
	if !(d.sigma*longest > 1e-11) || longest > 1e7*shortest {
		return true
	}
	low, high := slices.Min(d.recent), slices.Max(d.recent)
	return len(d.recent) >= 10+30*len(d.mean)/d.lambda && high-low <= 1e-12*max(math.Abs(low), math.Abs(high))
}
