package search

import (
	"cmp"
	"math"
	"slices"
)

// best are the indices of the k best observations, the best first. Of several objectives: front by front, the front that has to be
// cut by how much hypervolume each point adds to those chosen before it. Failed ones are never among them.
func best(done []observation, k int) []int {
	var order []int
	for i := range done {
		if !done[i].failed() {
			order = append(order, i)
		}
	}
	k = min(k, len(order))
	if k == 0 {
		return nil
	}
	if len(done[order[0]].losses) == 1 {
		slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(done[a].losses[0], done[b].losses[0]) })
		return order[:k]
	}
	points := ranked(done, order)
	var out []int
	for len(out) < k {
		front, rest := frontOf(points, order)
		if len(out)+len(front) > k {
			front = spread(points, front, k-len(out))
		}
		out, order = append(out, front...), rest
	}
	return out
}

// ranked replaces losses by their ranks as shares, so that no objective counts more for its unit.
func ranked(done []observation, which []int) map[int][]float64 {
	out := make(map[int][]float64, len(which))
	for _, i := range which {
		out[i] = make([]float64, len(done[i].losses))
	}
	for m := range done[which[0]].losses {
		sorted := slices.Clone(which)
		slices.SortStableFunc(sorted, func(a, b int) int { return cmp.Compare(done[a].losses[m], done[b].losses[m]) })
		rank := 0
		for k, i := range sorted {
			if k > 0 && done[sorted[k-1]].losses[m] < done[i].losses[m] {
				rank = k
			}
			out[i][m] = float64(rank) / float64(len(sorted))
		}
	}
	return out
}

func dominates(a, b []float64) bool { return covers(a, b) && !covers(b, a) }

// frontOf parts indices into those that none of them dominates, and the rest.
func frontOf(points map[int][]float64, which []int) (front, rest []int) {
	// Who dominates another stands before it in this order, so that each is compared with the front so far alone.
	order := slices.Clone(which)
	slices.SortStableFunc(order, func(a, b int) int { return slices.Compare(points[a], points[b]) })
	for _, i := range order {
		if slices.ContainsFunc(front, func(j int) bool { return dominates(points[j], points[i]) }) {
			rest = append(rest, i)
		} else {
			front = append(front, i)
		}
	}
	return front, rest
}

// measured is up to how many objectives hypervolumes are computed, which takes time that grows with a power of their number. Beyond,
// a front is spread by distances.
const measured = 3

// spread chooses k of a front, each time the one that adds most to the hypervolume of those chosen before.
func spread(points map[int][]float64, front []int, k int) []int {
	var out []int
	var chosen [][]float64
	left := slices.Clone(front)
	gains := make([]float64, len(left)) // what each added at most, since it adds less the more are chosen
	for i := range gains {
		gains[i] = math.Inf(1)
	}
	for len(out) < k {
		top := 0
		for fresh := -1; ; fresh = top { // the best by an old gain gets its new one; if it stays the best it is
			for i, g := range gains {
				if g > gains[top] {
					top = i
				}
			}
			if top == fresh {
				break
			}
			gains[top] = gain(points[left[top]], chosen)
		}
		chosen = append(chosen, points[left[top]])
		out = append(out, left[top])
		left, gains = slices.Delete(left, top, top+1), slices.Delete(gains, top, top+1)
	}
	return out
}

// gain is what a point adds to others: hypervolume, or the squared distance from the nearest of them.
func gain(p []float64, others [][]float64) float64 {
	if len(p) <= measured {
		return exclusive(p, others)
	}
	least := math.Inf(1)
	for _, o := range others {
		d := 0.0
		for m := range p {
			d += (p[m] - o[m]) * (p[m] - o[m])
		}
		least = min(least, d)
	}
	return min(least, float64(len(p))) // finite for the first
}

// reference is the corner up to which hypervolumes of shares are measured.
const reference = 1.1

// exclusive is the volume that a point dominates and the others do not: its own less what it has in common with them (While,
// Bradstreet and Barone, IEEE TEVC 2012).
func exclusive(p []float64, others [][]float64) float64 {
	own := 1.0
	for _, v := range p {
		own *= reference - v
	}
	common := make([][]float64, 0, len(others))
	for _, o := range others {
		c := make([]float64, len(p))
		for m := range c {
			c[m] = max(p[m], o[m])
		}
		common = append(common, c)
	}
	return own - hypervolume(common)
}

// hypervolume is the volume that points dominate together.
func hypervolume(points [][]float64) float64 {
	sum := 0.0
	for i, p := range points {
		if slices.ContainsFunc(points[i+1:], func(q []float64) bool { return covers(q, p) }) {
			continue
		}
		sum += exclusive(p, points[i+1:])
	}
	return sum
}

// covers reports whether a is as good as b in each objective.
func covers(a, b []float64) bool {
	for m := range a {
		if a[m] > b[m] {
			return false
		}
	}
	return true
}
