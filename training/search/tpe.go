package search

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/gohops/hops/training"
)

// tpe is the tree-structured Parzen estimator (Bergstra et al., NeurIPS 2011; Falkner et al., ICML 2018 for the multivariate
// form; Watanabe, arXiv 2304.11127, for what each part is worth). It splits the observations into the best gamma of them and the
// rest, estimates a density of each, l and g, and chooses of some points drawn from l the one where l/g is greatest.
//
// Parameters with the same conditions form a group: their density is estimated from the observations in which they are active.
// A configuration that runs belongs to the rest, so that others do not go where it is (constant liar). Of several objectives
// the best are the first fronts of those that nothing dominates, the last front by its share of the hypervolume (Ozaki et al.,
// GECCO 2020).
type tpe struct {
	seed       uint64
	candidates int
	gamma      float64
	joint      bool // multivariate
	// byBudget takes the observations of the largest budget that has enough of them: the model of BOHB. Otherwise budgets are
	// not looked at, and there is one observation of each configuration.
	byBudget bool
	groups   [][]int // axes
}

// maxGood bounds how many observations count as good: with more, l only becomes blunt.
const maxGood = 25

// maxKernels bounds the rest, of which the newest stay, and with it the time of a suggestion.
const maxKernels = 1000

func newTPE(s *training.Spec) *modelled {
	o := s.Optimizer
	t := &tpe{seed: s.RandomSeed(), candidates: o.Candidates, gamma: o.Gamma, joint: *o.Multivariate, byBudget: o.Halving()}
	m := newModelled(s, *o.Startup, t)
	t.groups = m.history.axes.groups(t.joint)
	return m
}

// groups are the axes by their conditions, in the order of the space; one axis each if they are not joint.
func (s axes) groups(joint bool) [][]int {
	var out [][]int
	for i := range s {
		k := -1
		if joint {
			k = slices.IndexFunc(out, func(g []int) bool {
				return slices.EqualFunc(s[g[0]].parents, s[i].parents, func(a, b parent) bool {
					return a.axis == b.axis && slices.Equal(a.values, b.values)
				})
			})
		}
		if k < 0 {
			out = append(out, nil)
			k = len(out) - 1
		}
		out[k] = append(out[k], i)
	}
	return out
}

func (t *tpe) choose(n training.TrialID, h *history) []float64 {
	good, rest := t.split(h)
	if len(good) == 0 {
		return nil
	}
	r := dice(t.seed, n)
	x := make([]float64, len(h.axes))
	for i := range x {
		x[i] = math.NaN()
	}
	// One group: the best candidate that was not tried. Several: the best of each, since a candidate is whole only at the end.
	for _, g := range t.groups {
		if !h.axes.active(g[0], x) {
			continue
		}
		var accept func([]float64) bool
		if len(t.groups) == 1 {
			accept = func(c []float64) bool { return !h.taken(c) }
		}
		t.chooseGroup(h.axes, g, good, rest, x, accept, r)
	}
	return x
}

func (t *tpe) chooseGroup(s axes, group []int, good, rest [][]float64, x []float64, accept func([]float64) bool, r *rand.Rand) {
	here := func(points [][]float64) (out [][]float64) {
		for _, p := range points {
			if !math.IsNaN(p[group[0]]) {
				out = append(out, p)
			}
		}
		return out
	}
	l := newParzen(s, group, here(good), rankWeights(len(here(good))))
	g := newParzen(s, group, here(rest), ageWeights(len(here(rest))))
	type candidate struct {
		x     []float64
		ratio float64
	}
	all := make([]candidate, t.candidates)
	for i := range all {
		c := slices.Clone(x)
		l.draw(c, r)
		all[i] = candidate{c, l.log(c) - g.log(c)}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(b.ratio, a.ratio) })
	best := all[0]
	if accept != nil {
		if i := slices.IndexFunc(all, func(c candidate) bool { return accept(c.x) }); i >= 0 {
			best = all[i]
		}
	}
	copy(x, best.x)
}

// split parts the observations into good ones, the best first, and the rest, the newest last.
func (t *tpe) split(h *history) (good, rest [][]float64) {
	done := h.done
	if t.byBudget {
		done = atBudget(done, len(h.axes))
	}
	ok := 0
	for i := range done {
		if !done[i].failed() {
			ok++
		}
	}
	if ok == 0 {
		return nil, nil
	}
	k := min(int(math.Ceil(t.gamma*float64(len(done)))), maxGood, ok)
	isGood := make([]bool, len(done))
	for _, i := range best(done, k) {
		isGood[i] = true
		good = append(good, done[i].x)
	}
	for i := range done {
		if !isGood[i] {
			rest = append(rest, done[i].x)
		}
	}
	rest = append(rest, h.running...)
	bound := min(max(2_000_000/(t.candidates*len(h.axes)), 100), maxKernels)
	if len(rest) > bound {
		rest = rest[len(rest)-bound:]
	}
	return good, rest
}

// atBudget are the observations of the largest budget of which there are more than there are parameters, by two (Falkner et al.,
// section 3.1), of the one with most of them if there is none.
func atBudget(done []observation, parameters int) []observation {
	count := map[int]int{}
	var budgets []int
	for i := range done {
		if b := done[i].budget; !done[i].failed() {
			if count[b]++; count[b] == 1 {
				budgets = append(budgets, b)
			}
		}
	}
	slices.Sort(budgets)
	chosen := 0
	for _, b := range budgets {
		if count[b] > parameters+1 || count[chosen] <= parameters+1 && count[b] > count[chosen] {
			chosen = b
		}
	}
	return slices.DeleteFunc(slices.Clone(done), func(o observation) bool { return !o.failed() && o.budget != chosen })
}

// rankWeights are the weights of good points, the best first: they fall as those of the evolution strategy of Hansen (arXiv 1604.00772, equation
// 49), and are 1 on average.
func rankWeights(n int) []float64 {
	out := make([]float64, n)
	total := 0.0
	for i := range out {
		out[i] = math.Log(float64(n)+0.5) - math.Log(float64(i+1))
		total += out[i]
	}
	for i := range out {
		out[i] *= float64(n) / total
	}
	return out
}

// recent is how many of the newest points have full weight.
const recent = 25

// ageWeights are the weights of the rest, the newest last: before the newest they fall to next to nothing for the oldest, since what was chosen
// with a poor model says less.
func ageWeights(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		if out[i] = 1; i < n-recent {
			out[i] = 1/float64(n) + (1-1/float64(n))*float64(i)/float64(max(n-recent-1, 1))
		}
	}
	return out
}
