package search

import (
	"slices"

	"github.com/gohops/hops/training"
)

// Front is the Pareto front: the places in values of those that no other dominates, in rising order. One dominates another if it
// is as good in every objective and better in one; equals are on the front together. values has one number per objective for
// each trial; a trial with another number of them takes no part.
func Front(values [][]float64, objectives []training.Objective) []int {
	scores := make([][]float64, len(values))
	var order []int
	for i, v := range values {
		if len(v) != len(objectives) {
			continue
		}
		scores[i] = make([]float64, len(v))
		for k, o := range objectives {
			scores[i][k] = o.Direction.Score(v[k])
		}
		order = append(order, i)
	}
	// Whoever dominates another stands before it in this order, so that each is compared with the front so far alone.
	slices.SortStableFunc(order, func(a, b int) int { return slices.Compare(scores[b], scores[a]) })
	var front []int
	for _, i := range order {
		if !slices.ContainsFunc(front, func(j int) bool { return outdoes(scores[j], scores[i]) }) {
			front = append(front, i)
		}
	}
	slices.Sort(front)
	return front
}

func outdoes(a, b []float64) bool {
	better := false
	for k := range a {
		if a[k] < b[k] {
			return false
		}
		better = better || a[k] > b[k]
	}
	return better
}
