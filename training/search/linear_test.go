package search

import (
	"math"
	"math/rand/v2"
	"testing"
)

// definite is a random positive definite matrix.
func definite(n int, r *rand.Rand) matrix {
	b, a := newMatrix(n, n), newMatrix(n, n)
	for i := range b {
		for j := range b[i] {
			b[i][j] = r.NormFloat64()
		}
	}
	for i := range a {
		for j := range a {
			a[i][j] = dot(b[i], b[j])
		}
		a[i][i] += 0.1
	}
	return a
}

func clone(a matrix) matrix {
	out := newMatrix(len(a), len(a))
	for i := range a {
		copy(out[i], a[i])
	}
	return out
}

func TestLinearAlgebraAgainstItsDefinitions(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-8*(1+math.Abs(want)) {
			t.Fatalf("%s: %v, want %v", what, got, want)
		}
	}
	for _, n := range []int{1, 2, 3, 7, 20} {
		a := definite(n, r)
		l := clone(a)
		if !cholesky(l) {
			t.Fatal("a positive definite matrix has no factor")
		}
		x := make([]float64, n)
		for i := range x {
			x[i] = r.NormFloat64()
		}
		b := make([]float64, n)
		for i := range b {
			b[i] = dot(a[i], x)
		}
		forward(l, b)
		backward(l, b)
		for i := range x {
			near("solution", b[i], x[i])
		}
		inv := newMatrix(n, n)
		inverse(l, newMatrix(n, n), inv)
		for i := range n {
			for j := range i {
				inv[j][i] = inv[i][j]
			}
		}
		for i := range n {
			for j := range n {
				want := 0.0
				if i == j {
					want = 1
				}
				near("inverse", dot(a[i], inv[j]), want)
			}
		}
		values, v := eigen(clone(a))
		for i := range n {
			for j := range n {
				sum := 0.0
				for k := range n {
					sum += v[i][k] * values[k] * v[j][k]
				}
				near("eigenvectors", sum, a[i][j])
			}
		}
	}
	for _, bad := range []matrix{{{0}}, {{-1}}, {{1, 0}, {1, 1}}, {{math.NaN()}}, {{1, 0}, {math.Inf(1), 1}}, {{math.Inf(1)}}} {
		if cholesky(bad) {
			t.Errorf("%v has a factor", bad)
		}
	}
}

// slope is a derivative by differences.
func slope(f func(float64) float64, x float64) float64 {
	const h = 1e-5
	return (f(x+h) - f(x-h)) / (2 * h)
}

func TestGradientsAgainstDifferences(t *testing.T) {
	s := newAxes(spec(t, `{"entry": "m:f", "space": {"a": {"type": "DOUBLE", "range": [0, 1]}, "b": {"type": "DOUBLE", "range": [0, 1]}, "c": {"type": "CATEGORICAL", "values": [1, 2, 3]}}}`).Space)
	r := rand.New(rand.NewPCG(8, 8))
	var points [][]float64
	var y []float64
	for range 15 {
		p := s.random(r)
		points = append(points, p)
		y = append(y, math.Sin(5*p[0])+p[1]*p[1]+p[2]/3)
	}
	p := newGaussian(s, []int{0, 1, 2}, points)
	_, _, mean, deviation := p.bounds()
	n := len(points)
	theta := []float64{-0.3, 0.2, 0.1, 0.3, -4}
	f := func(theta, gradient []float64) float64 {
		return p.likelihood(y, theta, gradient, mean, deviation, newMatrix(n, n), newMatrix(n, n), newMatrix(n, n), newMatrix(n, n))
	}
	check := func(what string, at []float64, gradient []float64, f func() float64) {
		t.Helper()
		for k, got := range gradient {
			before := at[k]
			want := slope(func(v float64) float64 { at[k] = v; return f() }, before)
			at[k] = before
			if math.Abs(got-want) > 1e-4*(1+math.Abs(want)) {
				t.Errorf("%s by %d: %v, by differences %v", what, k, got, want)
			}
		}
	}
	gradient := make([]float64, len(theta))
	f(theta, gradient)
	check("likelihood", theta, gradient, func() float64 { return f(theta, make([]float64, len(theta))) })
	p.theta = theta
	if !p.condition(y) {
		t.Fatal("not positive definite")
	}
	x := []float64{0.4, 0.7, 1}
	for name, a := range acquisitions {
		for _, augment := range []bool{false, true} {
			o := newHope(p, y, a, augment)
			gradient := make([]float64, 3)
			o.at(x, gradient)
			check(name, x, gradient[:2], func() float64 { return o.at(x, nil) })
		}
	}
	drawn := newDrawn(p, s, y, r)
	o := make([]float64, 3)
	drawn.at(x, o)
	check("drawn function", x, o[:2], func() float64 { return drawn.at(x, nil) })
	for i, q := range p.x { // what is drawn goes through the observations
		if v := drawn.at(q, nil); math.Abs(v-y[i]) > 5*math.Sqrt(p.noise()) {
			t.Errorf("a drawn function is %v where %v was observed", v, y[i])
		}
	}
}

// Losses that scatter are taken for noisy ones, and losses without noise are not.
func TestNoiseIsFoundWhereItIs(t *testing.T) {
	s := newAxes(spec(t, `{"entry": "m:f", "space": {"a": {"type": "DOUBLE", "range": [0, 1]}, "b": {"type": "DOUBLE", "range": [0, 1]}, "c": {"type": "CATEGORICAL", "values": [1, 2]}}}`).Space)
	for seed := range uint64(5) {
		for _, noise := range []float64{0, 0.3} {
			r := rand.New(rand.NewPCG(seed, 3))
			var points [][]float64
			var losses []float64
			for range 60 {
				p := s.random(r)
				points = append(points, p)
				losses = append(losses, math.Cos(3*p[0])+p[1]+0.2*p[2]+noise*r.NormFloat64())
			}
			p := newGaussian(s, []int{0, 1, 2}, points)
			y, _ := warps[0].apply(losses)
			p.choose(y, [][]float64{p.prior()}, fitSteps)
			if found := p.noise() > 0.03; found != (noise > 0) {
				t.Errorf("seed %d: noise of deviation %v, and its variance is taken to be %.3g of the losses'", seed, noise, p.noise())
			}
		}
	}
}

// Many drawn functions have the posterior's mean and deviation.
func TestDrawnFunctionsHaveThePosteriorsMoments(t *testing.T) {
	s := newAxes(spec(t, `{"entry": "m:f", "space": {"a": {"type": "DOUBLE", "range": [0, 1]}, "c": {"type": "CATEGORICAL", "values": [1, 2]}}}`).Space)
	p := newGaussian(s, []int{0, 1}, [][]float64{{0.1, 0}, {0.5, 1}, {0.6, 0}})
	p.theta = []float64{math.Log(0.4), math.Log(1.5), 0, math.Log(0.01)}
	y := []float64{1, -1, 0.5}
	p.condition(y)
	r := rand.New(rand.NewPCG(1, 9))
	x := []float64{0.8, 1}
	mean, deviation := p.predict(x, p.inverseSquares(), make([]float64, 6), nil, nil)
	sum, squares := 0.0, 0.0
	const n = 3000
	for range n {
		v := newDrawn(p, s, y, r).at(x, nil)
		sum, squares = sum+v/n, squares+v*v/n
	}
	if got := math.Sqrt(squares - sum*sum); math.Abs(sum-mean) > 0.05 || math.Abs(got-deviation) > 0.05 {
		t.Errorf("mean %v and deviation %v, want %v and %v", sum, got, mean, deviation)
	}
}

// A crowd of good observations counts as few: far from all of them the process expects what the others say, and there all it knows is
// that mean and the variance.
func TestTheMeanIsNotThatOfTheCrowd(t *testing.T) {
	s := newAxes(spec(t, `{"entry": "m:f", "space": {"a": {"type": "DOUBLE", "range": [0, 1]}}}`).Space)
	var points [][]float64
	var y []float64
	add := func(a, v float64) { points, y = append(points, []float64{a}), append(y, v) }
	for i := range 40 {
		add(0.5+float64(i)/40000, -1)
	}
	for _, a := range []float64{0, 0.1, 0.2, 0.3, 0.7, 0.8, 0.9} {
		add(a, 2)
	}
	p := newGaussian(s, []int{0}, points)
	p.theta = []float64{math.Log(0.02), 0, math.Log(1e-4)}
	if !p.condition(y) {
		t.Fatal("not positive definite")
	}
	mean, deviation := p.predict([]float64{1}, p.inverseSquares(), make([]float64, 2*len(y)), nil, nil)
	// The crowd is about one observation, the others are seven, the prior is one of 0: 13 of 9.
	if math.Abs(mean-13./9) > 0.05 || math.Abs(deviation-1) > 1e-3 {
		t.Errorf("far from all observations %v ± %v, want 1.44 ± 1", mean, deviation)
	}
	// By the definition: the mean is most probable where the derivative of fit by it is none.
	m, alpha, fit := solve(p.l, y)
	sum := 0.0
	for _, a := range alpha {
		sum += a
	}
	if math.Abs(m/(meanDeviation*meanDeviation)-sum) > 1e-9 {
		t.Errorf("the derivative by the mean %v is %v", m, m/(meanDeviation*meanDeviation)-sum)
	}
	left := 0.0
	for i, a := range alpha {
		left += a * (y[i] - m) / 2
	}
	if want := left + m*m/(2*meanDeviation*meanDeviation); math.Abs(fit-want) > 1e-6*want {
		t.Errorf("fit %v, want %v", fit, want)
	}
}

// Points that are there many times make a covariance singular but for its noise.
func TestAProcessTakesDuplicates(t *testing.T) {
	s := newAxes(spec(t, `{"entry": "m:f", "space": {"a": {"type": "DOUBLE", "range": [0, 1]}}}`).Space)
	points, y := make([][]float64, 40), make([]float64, 40)
	for i := range points {
		points[i], y[i] = []float64{0.5}, float64(i%2)
	}
	p := newGaussian(s, []int{0}, points)
	p.theta = []float64{5, 0, math.Log(1e-300)}
	if !p.condition(y) {
		t.Fatal("no jitter helps")
	}
	if mean, _ := p.predict([]float64{0.5}, p.inverseSquares(), make([]float64, 80), nil, nil); math.Abs(mean-0.5) > 0.1 {
		t.Errorf("the mean of zeros and ones is %v", mean)
	}
}

func TestAcquisitionsAgainstTheirDefinitions(t *testing.T) {
	for _, z := range []float64{3, 0.5, -0.99, -1.01, -3, -6} {
		want := math.Exp(-z*z/2-halfLog2Pi) + z*normalCDF(z)
		if v, _, _ := logEI(-z, 1, 0); math.Abs(v-math.Log(want)) > 1e-6 {
			t.Errorf("log EI at %v: %v, want %v", z, v, math.Log(want))
		}
		if v, _, _ := logPI(-z-piMargin, 1, 0); math.Abs(v-math.Log(normalCDF(z))) > 1e-9 {
			t.Errorf("log PI at %v: %v, want %v", z, v, math.Log(normalCDF(z)))
		}
	}
	before := math.Inf(1)
	for z := -1.0; z > -1e9; z *= 1.3 { // falls all the way, where EI itself is 0
		v, m, s := logEI(-z, 1, 0)
		if !(v < before) || math.IsInf(v, 0) || math.IsNaN(m) || !(m < 0) || !(s > 0) {
			t.Fatalf("log EI at %v: %v, %v, %v; before %v", z, v, m, s, before)
		}
		before = v
	}
}

func TestMinimizeStaysInItsBox(t *testing.T) {
	rosenbrock := func(x, g []float64) float64 {
		a, b := 1-x[0], x[1]-x[0]*x[0]
		g[0], g[1] = -2*a-400*x[0]*b, 200*b
		return a*a + 100*b*b
	}
	x := []float64{-1.2, 1}
	if v := minimize(rosenbrock, x, []float64{-2, -2}, []float64{2, 2}, 200); v > 1e-6 {
		t.Errorf("%v at %v, want 0 at 1, 1", v, x)
	}
	x = []float64{-1.2, 1}
	if v := minimize(rosenbrock, x, []float64{-2, -2}, []float64{0.5, 2}, 200); math.Abs(v-0.25) > 1e-3 || x[0] > 0.5 {
		t.Errorf("%v at %v, want 0.25 at 0.5, 0.25", v, x)
	}
}

// A warp keeps the order, and what is far away does not take the rest's differences.
func TestWarpsKeepOrder(t *testing.T) {
	y := []float64{3, -1e300, 1e300, 0, 5, 4, -2, math.MaxFloat64, -math.MaxFloat64}
	for _, w := range warps {
		out, _ := w.apply(y)
		for i := range y {
			for j := range y {
				if math.IsNaN(out[i]) || math.IsInf(out[i], 0) || y[i] < y[j] && out[i] > out[j] {
					t.Errorf("%v: %v and %v became %v and %v", w, y[i], y[j], out[i], out[j])
				}
			}
		}
		if out, _ := w.apply([]float64{2, 2, 2}); out[0] != 0 || out[2] != 0 {
			t.Errorf("equal losses became %v", out)
		}
	}
}
