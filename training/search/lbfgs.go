package search

import "math"

// minimize looks for a local minimum of f in a box, beginning at x, by L-BFGS on the variables that are not held at a bound
// (Nocedal and Wright, algorithm 7.5), with at most so many evaluations. f writes its gradient. x becomes the best point.
func minimize(f func(x, gradient []float64) float64, x, low, high []float64, evaluations int) float64 {
	const memory = 8
	n := len(x)
	type pair struct {
		s, y []float64
		rho  float64
	}
	var pairs []pair
	for i := range x {
		x[i] = min(max(x[i], low[i]), high[i])
	}
	g := make([]float64, n)
	value := f(x, g)
	evaluations--
	direction, next, nextG := make([]float64, n), make([]float64, n), make([]float64, n)
	held := make([]bool, n)
	for evaluations > 0 {
		steepest := 0.0
		for i := range x {
			held[i] = x[i] <= low[i] && g[i] >= 0 || x[i] >= high[i] && g[i] <= 0
			direction[i] = -g[i]
			if held[i] {
				direction[i] = 0
			}
			steepest = max(steepest, math.Abs(direction[i]))
		}
		if !(steepest > 1e-7) {
			break
		}
		alphas := make([]float64, len(pairs))
		for k := len(pairs) - 1; k >= 0; k-- {
			p := pairs[k]
			alphas[k] = p.rho * dot(p.s, direction)
			for i, v := range p.y {
				direction[i] -= alphas[k] * v
			}
		}
		if k := len(pairs) - 1; k >= 0 {
			scale := 1 / (pairs[k].rho * dot(pairs[k].y, pairs[k].y))
			for i := range direction {
				direction[i] *= scale
			}
		}
		for k, p := range pairs {
			beta := p.rho * dot(p.y, direction)
			for i, v := range p.s {
				direction[i] += (alphas[k] - beta) * v
			}
		}
		slope := 0.0
		for i := range direction {
			if held[i] {
				direction[i] = 0
			}
			slope += direction[i] * g[i]
		}
		if !(slope < 0) { // not downhill: begin again with the gradient
			if len(pairs) == 0 {
				break
			}
			pairs = nil
			continue
		}
		step := 1.0
		if len(pairs) == 0 {
			step = min(1, 0.1/steepest)
		}
		moved := false
		for ; evaluations > 0; step *= 0.3 {
			for i := range x {
				next[i] = min(max(x[i]+step*direction[i], low[i]), high[i])
			}
			nextValue := f(next, nextG)
			evaluations--
			if nextValue <= value+1e-4*step*slope {
				s, y := make([]float64, n), make([]float64, n)
				for i := range x {
					s[i], y[i] = next[i]-x[i], nextG[i]-g[i]
				}
				gain := value - nextValue
				copy(x, next)
				copy(g, nextG)
				value = nextValue
				moved = gain > 1e-9*(1+math.Abs(value))
				if sy := dot(s, y); sy > 1e-12*dot(y, y) {
					if len(pairs) == memory {
						pairs = pairs[1:]
					}
					pairs = append(pairs, pair{s, y, 1 / sy})
				}
				break
			}
			if step < 1e-8 {
				break
			}
		}
		if !moved {
			if len(pairs) == 0 {
				break
			}
			pairs = nil
			if step < 1e-8 {
				break
			}
			continue
		}
	}
	return value
}
