package search

import (
	"math"
	"slices"
)

// warp turns losses into what a Gaussian process can model: mean 0, deviation 1, and by a logarithm where they range over orders of
// magnitude. offset is how far below the best loss the logarithm has its pole, as a share of the distance from the best to the
// median; infinite: no logarithm. Which one fits is a question for the data: see fitted.
type warp struct{ offset float64 }

// warps are those that are tried, in this order.
var warps = []warp{{math.Inf(1)}, {1}, {0.1}, {0.01}, {0.001}}

// farthest is how many times the median's distance from the best a loss may have; beyond, it counts as that.
const farthest = 1e6

// apply also returns the logarithm of the density's change, by which likelihoods of different warps are compared: that of y is the
// one of out times its exponential.
func (w warp) apply(y []float64) (out []float64, jacobian float64) {
	out = slices.Clone(y)
	for i := range out {
		out[i] /= 4 // so that differences of the largest numbers are finite
	}
	sorted := slices.Sorted(slices.Values(out))
	low, n := sorted[0], len(sorted)
	scale := sorted[n/2] - low
	if scale == 0 {
		scale = (sorted[n-1] - low) / float64(n)
	}
	if scale == 0 {
		clear(out)
		return out, 0
	}
	inside := 0.0 // how many are not cut
	for i, v := range out {
		z := (v - low) / scale
		if z < farthest {
			inside++
		}
		z = min(z, farthest)
		if math.IsInf(w.offset, 1) {
			out[i] = z
			continue
		}
		out[i] = math.Log(z + w.offset)
		if z < farthest {
			jacobian -= out[i]
		}
	}
	mean, squares := 0.0, 0.0
	for _, v := range out {
		mean += v / float64(n)
	}
	for _, v := range out {
		squares += (v - mean) * (v - mean) / float64(n)
	}
	deviation := max(math.Sqrt(squares), 1e-12)
	for i := range out {
		out[i] = (out[i] - mean) / deviation
	}
	return out, jacobian - inside*math.Log(deviation)
}
