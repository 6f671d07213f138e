package search

import (
	"math"
	"slices"
)

// gaussian is a Gaussian process over points of a space (Rasmussen and Williams, 2006): a constant mean, the Matérn kernel of 5/2 with a
// length for each axis, and noise. The distance of two points adds, for each axis, the squared difference over the squared
// length, for a nominal axis one over it if the choices differ. An axis that is not active counts as its middle, as a choice
// of its own if it is nominal: the parameter that decides already tells such points apart.
type gaussian struct {
	dims    []int // axes
	nominal []bool
	theta   []float64 // logarithms of the lengths, the variance and the noise
	x       matrix    // reduced points
	l       matrix    // Cholesky's factor of the covariance
	mean    float64   // far from all observations
	alpha   []float64 // the covariance's inverse times y less the mean
}

// reduce makes the coordinates of a point that the kernel looks at.
func reduce(s axes, dims []int, x []float64) []float64 {
	out := make([]float64, len(dims))
	for k, i := range dims {
		switch {
		case !math.IsNaN(x[i]):
			out[k] = x[i]
		case s[i].nominal:
			out[k] = -1
		default:
			out[k] = 0.5
		}
	}
	return out
}

func newGaussian(s axes, dims []int, points [][]float64) *gaussian {
	g := &gaussian{dims: dims}
	for _, i := range dims {
		g.nominal = append(g.nominal, s[i].nominal)
	}
	for _, p := range points {
		g.x = append(g.x, reduce(s, dims, p))
	}
	return g
}

// inverseSquares are one over the squared lengths.
func (g *gaussian) inverseSquares() []float64 {
	w := make([]float64, len(g.dims))
	for k := range w {
		w[k] = math.Exp(-2 * g.theta[k])
	}
	return w
}

func (g *gaussian) variance() float64 { return math.Exp(g.theta[len(g.dims)]) }

func (g *gaussian) noise() float64 { return math.Exp(g.theta[len(g.dims)+1]) }

// distance is the squared one.
func (g *gaussian) distance(a, b, w []float64) float64 {
	sum := 0.0
	for k, v := range w {
		d := a[k] - b[k]
		if g.nominal[k] && d != 0 {
			d = 1
		}
		sum += v * d * d
	}
	return sum
}

// matern is the kernel at a squared distance, and its derivative by that, for variance 1.
func matern(square float64) (k, slope float64) {
	r := math.Sqrt(5 * square)
	e := math.Exp(-r)
	return (1 + r + r*r/3) * e, -5. / 6 * (1 + r) * e
}

// condition computes the posterior for values y. A covariance that is not positive definite, for which points that are there twice
// suffice, gets more noise; false if none helps.
func (g *gaussian) condition(y []float64) bool {
	n := len(g.x)
	w, s2 := g.inverseSquares(), g.variance()
	g.l = newMatrix(n, n)
	for jitter := 0.0; jitter <= 0.1*s2; jitter = max(jitter*10, 1e-9*s2) {
		for i := range n {
			for j := range i {
				k, _ := matern(g.distance(g.x[i], g.x[j], w))
				g.l[i][j] = s2 * k
			}
			g.l[i][i] = s2 + g.noise() + jitter
		}
		if cholesky(g.l) {
			g.mean, g.alpha, _ = solve(g.l, y)
			return true
		}
	}
	return false
}

// meanDeviation is that of the mean's prior, which is normal around 0.
const meanDeviation = 1

// solve finds the mean that is most probable given y, where l is the factor of the covariance, and the covariance's inverse times y less
// that mean. Observations that are close to each other, as those near the best one are, count as few: by the mean of y everything that
// nobody has looked at would be nearly as good as those. fit is minus the logarithm of the probability, as far as y and the mean decide.
func solve(l matrix, y []float64) (mean float64, alpha []float64, fit float64) {
	alpha, ones := slices.Clone(y), make([]float64, len(y))
	for i := range ones {
		ones[i] = 1
	}
	forward(l, alpha)
	forward(l, ones)
	mean = dot(ones, alpha) / (dot(ones, ones) + 1/(meanDeviation*meanDeviation))
	for i, v := range ones {
		alpha[i] -= mean * v
	}
	fit = (dot(alpha, alpha) + mean*mean/(meanDeviation*meanDeviation)) / 2
	backward(l, alpha)
	return mean, alpha, fit
}

// predict is the posterior's mean and standard deviation at a reduced point, without noise. work has room for two numbers for each
// observation. With slopes, it writes the derivatives of both by the coordinates.
func (g *gaussian) predict(x, w, work, meanSlope, deviationSlope []float64) (mean, deviation float64) {
	n := len(g.x)
	k, slope := work[:n], work[n:2*n]
	s2 := g.variance()
	mean = g.mean
	for i, p := range g.x {
		k[i], slope[i] = matern(g.distance(x, p, w))
		k[i] *= s2
		slope[i] *= 2 * s2
		mean += k[i] * g.alpha[i]
	}
	forward(g.l, k)
	deviation = math.Sqrt(max(s2-dot(k, k), 1e-12*s2))
	if meanSlope == nil {
		return mean, deviation
	}
	backward(g.l, k)
	clear(meanSlope)
	clear(deviationSlope)
	for i, p := range g.x {
		a, b := g.alpha[i]*slope[i], k[i]*slope[i]
		for j, v := range w {
			if d := x[j] - p[j]; d != 0 && !g.nominal[j] {
				meanSlope[j] += a * v * d
				deviationSlope[j] -= b * v * d
			}
		}
	}
	for j := range deviationSlope {
		deviationSlope[j] /= deviation
	}
	return mean, deviation
}

// The priors of the parameters' logarithms: normal, with mean and deviation; the mean of a length grows with the root of the
// number of axes, since distances do (Hvarfner et al., ICML 2024). Noise is expected to be small, and may be large.
const (
	lengthMean, lengthDeviation     = -0.7, 1.0
	varianceMean, varianceDeviation = 0.0, 1.0
	noiseMean, noiseDeviation       = -10.0, 3.0
)

// bounds of the parameters' logarithms.
func (g *gaussian) bounds() (low, high, mean, deviation []float64) {
	add := func(l, h, m, d float64) {
		low, high, mean, deviation = append(low, l), append(high, h), append(mean, m), append(deviation, d)
	}
	d := float64(len(g.dims))
	for range g.dims {
		add(math.Log(0.01), math.Log(1000), lengthMean+math.Log(d)/2, lengthDeviation)
	}
	add(math.Log(0.01), math.Log(1000), varianceMean, varianceDeviation)
	add(math.Log(1e-7), math.Log(1), noiseMean, noiseDeviation)
	return low, high, mean, deviation
}

// fit finds the parameters that are most probable given y, beginning at each of some starts, with so many evaluations for each. It
// returns the negative logarithm of the density of y and the parameters.
func (g *gaussian) fit(y []float64, starts [][]float64, evaluations int) float64 {
	low, high, mean, deviation := g.bounds()
	n := len(g.x)
	cov, work, inv := newMatrix(n, n), newMatrix(n, n), newMatrix(n, n)
	slopes := newMatrix(n, n)
	best, bestTheta := math.Inf(1), mean
	f := func(theta, gradient []float64) float64 {
		return g.likelihood(y, theta, gradient, mean, deviation, cov, work, inv, slopes)
	}
	for _, start := range starts {
		theta := slices.Clone(start)
		if v := minimize(f, theta, low, high, evaluations); v < best {
			best, bestTheta = v, theta
		}
	}
	g.theta = bestTheta
	return best
}

// prior are the parameters that are most probable before anything is known.
func (g *gaussian) prior() []float64 {
	_, _, mean, _ := g.bounds()
	return mean
}

// clearly is by how much the logarithm of the density has to be greater with noise for that to be believed. A fit that begins without noise
// often ends at a process that goes through all observations, however they scatter; and one that begins with noise takes narrow
// valleys for it.
const clearly = 8

// choose finds the parameters as fit does, and again with noise of a tenth of the variance to begin with: they are taken if they are
// clearly more probable.
func (g *gaussian) choose(y []float64, starts [][]float64, evaluations int) float64 {
	best := g.fit(y, starts, evaluations)
	plain, noisy := g.theta, g.prior()
	noisy[len(noisy)-1] = math.Log(0.1)
	if v := g.fit(y, [][]float64{noisy}, evaluations); v < best-clearly {
		return v
	}
	g.theta = plain
	return best
}

// impossible is the value of what cannot be computed; finite, so that a search goes back from it.
const impossible = 1e10

func (g *gaussian) likelihood(y, theta, gradient, mean, deviation []float64, cov, work, inv, slopes matrix) float64 {
	g.theta = theta
	n, d := len(y), len(g.dims)
	w, s2, noise := g.inverseSquares(), g.variance(), g.noise()
	for i := range n {
		for j := range i {
			k, slope := matern(g.distance(g.x[i], g.x[j], w))
			cov[i][j], slopes[i][j] = s2*k, s2*slope
		}
		cov[i][i] = s2 + noise
	}
	clear(gradient)
	if !cholesky(cov) {
		return impossible
	}
	mu, alpha, value := solve(cov, y)
	for i := range n {
		value += math.Log(cov[i][i])
	}
	value += float64(n) * halfLog2Pi
	inverse(cov, work, inv)
	trace, fitted := 0.0, 0.0
	for i := range n {
		trace += inv[i][i]
		fitted += alpha[i] * alpha[i]
		for j := range i {
			// twice a half: the matrix is symmetric
			c := (inv[i][j] - alpha[i]*alpha[j]) * slopes[i][j]
			a, b := g.x[i], g.x[j]
			for k, v := range w {
				q := a[k] - b[k]
				if g.nominal[k] && q != 0 {
					q = 1
				}
				gradient[k] -= 2 * c * v * q * q
			}
		}
	}
	gradient[d+1] = noise * (trace - fitted) / 2
	explained := dot(alpha, y)
	for _, a := range alpha {
		explained -= a * mu
	}
	gradient[d] = (float64(n)-explained)/2 - gradient[d+1] // K = s²·R + noise·1, and tr(K⁻¹·K) = n
	for k := range theta {
		z := (theta[k] - mean[k]) / deviation[k]
		value += z*z/2 + math.Log(deviation[k]) + halfLog2Pi
		gradient[k] += z / deviation[k]
	}
	return value
}
