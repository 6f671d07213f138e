package search

import (
	"math"
	"math/rand/v2"
)

// drawn is a function drawn from the posterior of a Gaussian process (Wilson et al., ICML 2020): one drawn from the prior, made of
// random waves (Rahimi and Recht, NeurIPS 2007), and the kernel's correction by which it goes through the observations.
type drawn struct {
	p          *gaussian
	w          []float64
	cells      []int // of a nominal dimension
	waves      matrix
	choices    [][][]float64 // for each wave and each nominal dimension, what each choice adds to the phase
	phases     []float64
	amplitudes []float64
	correction []float64
}

const waves = 300

func newDrawn(p *gaussian, s axes, y []float64, r *rand.Rand) *drawn {
	d := len(p.dims)
	f := &drawn{p: p, w: p.inverseSquares(), waves: newMatrix(waves, d), choices: make([][][]float64, waves), phases: make([]float64, waves), amplitudes: make([]float64, waves)}
	for _, i := range p.dims {
		f.cells = append(f.cells, int(s[i].cells))
	}
	for k := range f.waves {
		// The spectrum of the kernel of 5/2 is Student's distribution with 5 degrees of freedom.
		chi := 0.0
		for range 5 {
			z := r.NormFloat64()
			chi += z * z
		}
		spread := math.Sqrt(5 / chi)
		f.choices[k] = make([][]float64, d)
		for j, w := range f.w {
			if p.nominal[j] {
				// Two choices are as far apart as two corners of a simplex, one coordinate each.
				f.choices[k][j] = make([]float64, f.cells[j]+1)
				for c := range f.choices[k][j] {
					f.choices[k][j][c] = spread * r.NormFloat64() * math.Sqrt(w/2)
				}
				continue
			}
			f.waves[k][j] = spread * r.NormFloat64() * math.Sqrt(w)
		}
		f.phases[k] = 2 * math.Pi * r.Float64()
		f.amplitudes[k] = math.Sqrt(2*p.variance()/waves) * r.NormFloat64()
	}
	f.correction = make([]float64, len(y))
	for i, x := range p.x {
		f.correction[i] = y[i] - p.mean - f.prior(x, nil) - math.Sqrt(p.noise())*r.NormFloat64()
	}
	forward(p.l, f.correction)
	backward(p.l, f.correction)
	return f
}

// prior is the function without observations.
func (f *drawn) prior(x, gradient []float64) float64 {
	sum := 0.0
	for k, wave := range f.waves {
		phase := f.phases[k]
		for j, v := range wave {
			if f.p.nominal[j] {
				phase += f.choices[k][j][int(x[j])+1]
			} else {
				phase += v * x[j]
			}
		}
		sin, cos := math.Sincos(phase)
		sum += f.amplitudes[k] * cos
		for j := range gradient {
			gradient[j] -= f.amplitudes[k] * sin * wave[j]
		}
	}
	return sum
}

func (f *drawn) at(x, gradient []float64) float64 {
	clear(gradient)
	value := f.p.mean + f.prior(x, gradient)
	s2 := f.p.variance()
	for i, p := range f.p.x {
		k, slope := matern(f.p.distance(x, p, f.w))
		value += f.correction[i] * s2 * k
		for j := range gradient {
			if !f.p.nominal[j] {
				gradient[j] += f.correction[i] * 2 * s2 * slope * f.w[j] * (x[j] - p[j])
			}
		}
	}
	return value
}

func (f *drawn) cost(gradient bool) int {
	n := (waves + len(f.p.x)) * (len(f.w) + 20)
	if gradient {
		n *= 2
	}
	return n
}
