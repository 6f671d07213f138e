package search

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gohops/hops/training"
)

// gp is Bayesian optimization with a Gaussian process (Snoek et al., NeurIPS 2012): of the points of the space it takes the one of
// which the process hopes for most.
//
// Trials that run are taken for done, with the loss that the process expects (the kriging believer of Ginsbourger et al., 2010), so that
// others go elsewhere; or with the best, the worst or the mean loss so far (the constant liar), by which the process is misled:
// DESIGN.md has the numbers. Thompson's strategy needs no such thing: each suggestion is the minimum of another function drawn from
// the posterior.
//
// The time of a suggestion is bounded: by how many observations the process has (maxObserved), of how many its parameters are fitted
// (maxFitted) and how often (refit), and by how many points are looked at, the fewer the more observations there are. Parameters
// are fitted to the first observations up to a number, beginning with those of some 2/3 of them, and so on down: so they are the same
// in a search that was read back, which computes them again for a few numbers only.
type gp struct {
	seed     uint64
	axes     axes
	dims     []int // axes that are not fixed
	acquire  acquisition
	augment  bool // by logRest
	thompson bool
	impute   string

	fits     map[int]fitted // by the number of observations
	revision int
}

// fitted is a choice of parameters.
type fitted struct {
	warp  warp
	theta []float64
}

const (
	// maxObserved bounds the observations of the process: beyond, it has the best third and the newest of the others.
	maxObserved = 500
	// maxRunning bounds how many running trials, the newest, it takes for done.
	maxRunning = 100
	// maxFitted bounds the observations that parameters are fitted to: half of them the best, the others evenly of the rest.
	maxFitted = 120
	// maxWarped bounds the observations that a warp is chosen by where there are more than maxFitted.
	maxWarped = 60
	// fitSteps are the evaluations of the likelihood from one start, about 0.5 ms each for 100 observations.
	fitSteps = 30
	// pointWork bounds the multiplications spent on points without gradients, about 1 ns each.
	pointWork = 15_000_000
	// localWork bounds those spent on climbing from the best of them, and again those on moves between cells.
	localWork = 25_000_000
)

func newGP(s *training.Spec) *modelled {
	o := s.Optimizer
	g := &gp{seed: s.RandomSeed(), acquire: acquisitions[o.Acquisition], augment: o.Acquisition == "ei", thompson: o.Strategy == "thompson", impute: o.Impute, fits: map[int]fitted{}}
	m := newModelled(s, *o.Startup, g)
	g.axes = m.history.axes
	for i := range g.axes {
		if !g.axes[i].fixed() {
			g.dims = append(g.dims, i)
		}
	}
	return m
}

func (g *gp) choose(n training.TrialID, h *history) []float64 {
	if len(g.dims) == 0 {
		return nil
	}
	if h.revision != g.revision {
		g.revision = h.revision
		clear(g.fits)
	}
	fit := g.parameters(h.done)
	points, losses := observed(h.done)
	y, _ := fit.warp.apply(losses)
	if !g.thompson {
		running := h.running
		if len(running) > maxRunning {
			running = running[len(running)-maxRunning:]
		}
		lies := g.lies(points, y, fit.theta, running)
		points, y = append(points, running...), append(y, lies...)
	}
	p := newGaussian(g.axes, g.dims, points)
	p.theta = fit.theta
	if !p.condition(y) {
		return nil
	}
	r := dice(g.seed, n)
	if g.thompson {
		return g.search(newDrawn(p, g.axes, y, r), points, y, h, r)
	}
	return g.search(newHope(p, y, g.acquire, g.augment), points, y, h, r)
}

// lies are what running trials are taken to have found.
func (g *gp) lies(points [][]float64, y, theta []float64, running [][]float64) []float64 {
	out := make([]float64, len(running))
	if len(running) == 0 {
		return out
	}
	var lie float64 // the mean: y is standardised
	switch g.impute {
	case "min":
		lie = slices.Min(y)
	case "max":
		lie = slices.Max(y)
	case "believer":
		p := newGaussian(g.axes, g.dims, points)
		p.theta = theta
		if p.condition(y) {
			w, work := p.inverseSquares(), make([]float64, 2*len(points))
			for i, x := range running {
				out[i], _ = p.predict(reduce(g.axes, g.dims, x), w, work, nil, nil)
			}
			return out
		}
	}
	for i := range out {
		out[i] = lie
	}
	return out
}

// observed are the points and losses that the process is conditioned on.
func observed(done []observation) ([][]float64, []float64) {
	losses := lossesOf(done)
	keep := thin(losses, maxObserved, maxObserved/3, func(left []int, n int) []int { return left[len(left)-n:] })
	points, y := make([][]float64, len(keep)), make([]float64, len(keep))
	for k, i := range keep {
		points[k], y[k] = done[i].x, losses[i]
	}
	return points, y
}

// thin chooses at most so many of losses, in their order: the best ones, and of the others what rest does.
func thin(losses []float64, most, best int, rest func(left []int, n int) []int) []int {
	all := make([]int, len(losses))
	for i := range all {
		all[i] = i
	}
	if len(all) <= most {
		return all
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(losses[a], losses[b]) })
	keep, left := slices.Clone(all[:best]), slices.Sorted(slices.Values(all[best:]))
	keep = append(keep, rest(left, most-best)...)
	slices.Sort(keep)
	return keep
}

// refit is the number of observations that parameters are fitted to when there are n: each of the first 40, then at steps of a
// twentieth.
func refit(n int) int {
	m := min(n, 40)
	for m+max(m/20, 1) <= n {
		m += max(m/20, 1)
	}
	return m
}

// parameters are those for the observations so far.
func (g *gp) parameters(done []observation) fitted {
	m := refit(len(done))
	if f, known := g.fits[m]; known {
		return f
	}
	anchor := 8
	for anchor+(anchor+1)/2 < m {
		anchor += (anchor + 1) / 2
	}
	var f fitted
	if anchor < m {
		base := g.anchor(done, anchor)
		p, losses := g.subset(done[:m], maxFitted)
		y, _ := base.warp.apply(losses)
		p.choose(y, [][]float64{base.theta, p.prior()}, fitSteps)
		f = fitted{base.warp, p.theta}
	} else {
		f = g.anchor(done, m)
	}
	g.fits[m] = f
	return f
}

// anchor fits parameters to the first m observations under each warp, and takes the warp under which the losses are most probable.
func (g *gp) anchor(done []observation, m int) fitted {
	if f, known := g.fits[-m]; known { // beside those of parameters, by a negative number
		return f
	}
	done, most := done[:min(m, len(done))], maxFitted
	if len(done) > maxFitted {
		most = maxWarped
	}
	p, losses := g.subset(done, most)
	var out fitted
	best := math.Inf(1)
	start := [][]float64{p.prior()}
	for _, w := range warps {
		y, jacobian := w.apply(losses)
		v := p.choose(y, start, fitSteps) - jacobian
		start = [][]float64{p.theta}
		if v < best {
			best, out = v, fitted{w, p.theta}
		} else if !math.IsInf(w.offset, 1) {
			break // it gets worse from here
		}
	}
	if len(done) > maxFitted {
		p, losses := g.subset(done, maxFitted)
		y, _ := out.warp.apply(losses)
		p.fit(y, [][]float64{out.theta}, fitSteps)
		out.theta = p.theta
	}
	g.fits[-m] = out
	return out
}

// subset is an unconditioned process over at most so many observations, for a fit.
func (g *gp) subset(done []observation, most int) (*gaussian, []float64) {
	losses := lossesOf(done)
	keep := thin(losses, most, most/2, func(left []int, n int) []int {
		out := make([]int, n)
		for i := range out {
			out[i] = left[i*len(left)/n]
		}
		return out
	})
	points, y := make([][]float64, len(keep)), make([]float64, len(keep))
	for k, i := range keep {
		points[k], y[k] = done[i].x, losses[i]
	}
	return newGaussian(g.axes, g.dims, points), y
}

// objective is what a suggestion minimizes.
type objective interface {
	// at is the value at a reduced point; with a gradient, its derivatives by the axes that are not nominal are written to it.
	at(x, gradient []float64) float64
	// cost is about how many multiplications that takes.
	cost(gradient bool) int
}

// hope is an acquisition, turned.
type hope struct {
	p       *gaussian
	w       []float64
	acquire acquisition
	noise   float64 // 0: the acquisition does not heed it
	best    float64
	work    []float64
	slopes  matrix
}

func newHope(p *gaussian, y []float64, a acquisition, augment bool) *hope {
	o := &hope{p: p, w: p.inverseSquares(), acquire: a, best: math.Inf(1), work: make([]float64, 2*len(p.x)), slopes: newMatrix(2, len(p.dims))}
	for i, v := range y { // the best mean at an observation: of a noisy one the value says less
		o.best = min(o.best, v-p.noise()*p.alpha[i])
	}
	if augment {
		o.noise = p.noise()
	}
	return o
}

func (o *hope) at(x, gradient []float64) float64 {
	if gradient == nil {
		mean, deviation := o.p.predict(x, o.w, o.work, nil, nil)
		v, _, _ := o.acquire(mean, deviation, o.best)
		rest, _ := logRest(deviation, o.noise)
		return -v - rest
	}
	mean, deviation := o.p.predict(x, o.w, o.work, o.slopes[0], o.slopes[1])
	v, byMean, byDeviation := o.acquire(mean, deviation, o.best)
	rest, by := logRest(deviation, o.noise)
	v += rest
	byDeviation += by
	for k := range gradient {
		gradient[k] = -byMean*o.slopes[0][k] - byDeviation*o.slopes[1][k]
	}
	return -v
}

func (o *hope) cost(gradient bool) int {
	n := len(o.p.x)
	if gradient {
		return n*n + n*(2*len(o.w)+20)
	}
	return n*n/2 + n*(len(o.w)+20)
}

// search looks for the point of the space where an objective is least that was not tried. It looks at random points and at
// neighbours of the best observations, climbs from the best of those, and moves along the axes of cells and choices.
func (g *gp) search(o objective, points [][]float64, y []float64, h *history, r *rand.Rand) []float64 {
	type candidate struct {
		x     []float64
		value float64
	}
	var all []candidate
	look := func(x []float64) {
		all = append(all, candidate{x, o.at(reduce(g.axes, g.dims, x), nil)})
	}
	order := make([]int, len(points))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(y[a], y[b]) })
	looks := min(max(pointWork/o.cost(false), 60), 1000)
	for range looks * 2 / 3 {
		look(g.axes.random(r))
	}
	for k := range looks / 3 {
		look(g.neighbour(points[order[k%min(len(order), 5)]], r))
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.value, b.value) })
	climbs := min(5, len(all))
	steps := min(max(localWork/(climbs*o.cost(true)), 4), 40)
	for k := range climbs {
		c := &all[k*k] // 0, 1, 4, 9, 16: the very best are often close to each other
		x := slices.Clone(c.x)
		v := g.climb(o, x, c.value, steps, r)
		all = append(all, candidate{x, v})
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.value, b.value) })
	for _, c := range all {
		if !h.taken(c.x) {
			return c.x
		}
	}
	return nil
}

// neighbour changes some axes of a point, by a step that is large or small.
func (g *gp) neighbour(x []float64, r *rand.Rand) []float64 {
	out := slices.Clone(x)
	step := math.Pow(10, -0.5-2.5*r.Float64())
	share := max(1/float64(len(g.dims)), r.Float64())
	for _, i := range g.dims {
		if math.IsNaN(out[i]) || r.Float64() > share {
			continue
		}
		a := &g.axes[i]
		if a.nominal {
			if r.IntN(2) == 0 {
				out[i] = a.random(r)
			}
			continue
		}
		if _, high := a.cell(out[i]); a.cells > 0 && step < high-out[i] {
			out[i] += 2 * (high - out[i]) * float64(r.IntN(3)-1)
		}
		out[i] = min(max(out[i]+step*r.NormFloat64(), 0), 1)
	}
	g.axes.settle(out, r)
	return out
}

// climb improves a point in place: by gradients along the axes that have them, then by moves along the others, until nothing is won.
func (g *gp) climb(o objective, x []float64, value float64, steps int, r *rand.Rand) float64 {
	moves := max(localWork/(5*o.cost(false)), 40)
	for round := range 3 {
		before := value
		value = g.slide(o, x, value, steps, round > 0, r)
		discrete := false
		first := r.IntN(len(g.dims)) // another one each time, since there may be more than there is time for
		for k := range g.dims {
			i := g.dims[(first+k)%len(g.dims)]
			a := &g.axes[i]
			if a.cells == 0 || math.IsNaN(x[i]) || moves <= 0 {
				continue
			}
			discrete = true
			for _, u := range a.moves(x[i], r) {
				moves--
				next := slices.Clone(x)
				next[i] = u
				g.axes.settle(next, r)
				if v := o.at(reduce(g.axes, g.dims, next), nil); v < value {
					value = v
					copy(x, next)
				}
			}
		}
		if !discrete || before-value < 1e-6 {
			break
		}
	}
	return value
}

// moves are the numbers that may take the place of one on an axis of cells: all choices, or the neighbouring cells.
func (a *axis) moves(u float64, r *rand.Rand) []float64 {
	var out []float64
	if a.nominal {
		for c := range min(len(a.Values), 20) {
			if len(a.Values) > 20 {
				c = r.IntN(len(a.Values))
			}
			if float64(c) != u {
				out = append(out, float64(c))
			}
		}
		return out
	}
	low, high := a.cell(u)
	if low > 0 {
		out = append(out, a.snap(low-(high-low)/2))
	}
	if high < 1 {
		out = append(out, a.snap(high+(high-low)/2))
	}
	return out
}

// slide is a search by gradients along the axes that are not nominal; with settled, not along those of cells either.
func (g *gp) slide(o objective, x []float64, value float64, steps int, settled bool, r *rand.Rand) float64 {
	var free []int // places in dims
	for k, i := range g.dims {
		if a := &g.axes[i]; !a.nominal && !math.IsNaN(x[i]) && (a.cells == 0 || !settled) {
			free = append(free, k)
		}
	}
	if len(free) == 0 {
		return value
	}
	full := reduce(g.axes, g.dims, x)
	slopes := make([]float64, len(g.dims))
	at, low, high := make([]float64, len(free)), make([]float64, len(free)), make([]float64, len(free))
	for j, k := range free {
		at[j], high[j] = full[k], 1
	}
	minimize(func(u, gradient []float64) float64 {
		for j, k := range free {
			full[k] = u[j]
		}
		v := o.at(full, slopes)
		for j, k := range free {
			gradient[j] = slopes[k]
		}
		return v
	}, at, low, high, steps)
	next := slices.Clone(x)
	for j, k := range free {
		next[g.dims[k]] = at[j]
	}
	g.axes.settle(next, r)
	if v := o.at(reduce(g.axes, g.dims, next), nil); v < value {
		copy(x, next)
		return v
	}
	return value
}
