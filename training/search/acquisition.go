package search

import "math"

// acquisition says how much is hoped for from a point whose loss is normal with a mean and a deviation, given the best loss: more is
// better. It returns the derivatives by mean and deviation too.
type acquisition func(mean, deviation, best float64) (value, byMean, byDeviation float64)

// acquisitions by their names in a specification.
var acquisitions = map[string]acquisition{
	"ei": logEI, "pi": logPI, "lcb": lowerBound,
}

// logEI is the logarithm of the expected improvement, as it is computed so that it is neither 0 nor flat far from improvement
// (Ament et al., NeurIPS 2023).
func logEI(mean, deviation, best float64) (value, byMean, byDeviation float64) {
	z := (best - mean) / deviation
	if z > -1 {
		density, mass := math.Exp(-z*z/2-halfLog2Pi), normalCDF(z)
		h := density + z*mass
		return math.Log(deviation) + math.Log(h), -mass / h / deviation, density / h / deviation
	}
	m := mills(z)
	rest := 1 + z*m // h = density·rest
	if z < -1e3 {   // 1 + z·m loses its digits: the first of its series
		rest = 1 / (z * z)
	}
	return math.Log(deviation) - z*z/2 - halfLog2Pi + math.Log(rest), -m / rest / deviation, 1 / rest / deviation
}

// exact is the variance of noise, where that of the losses is 1, below which an observation counts as exact.
const exact = 1e-3

// logRest is the logarithm of the share of an expected improvement that one more noisy observation can show: next to nothing where the
// process knows the mean better than an observation would tell it (augmented expected improvement; Huang et al., Journal of Global
// Optimization 34, 2006). It returns the derivative by the deviation too.
func logRest(deviation, noise float64) (value, byDeviation float64) {
	if noise < exact {
		return 0, 0
	}
	q, t := math.Sqrt(deviation*deviation+noise), math.Sqrt(noise)
	rest := deviation * deviation / (q * (q + t)) // 1 - t/q
	return math.Log(rest), t * deviation / (q * q * q * rest)
}

// piMargin is by how much, in deviations of all losses, logPI wants the best to be improved on: else it would look beside it only.
const piMargin = 0.01

// logPI is the logarithm of the probability of an improvement.
func logPI(mean, deviation, best float64) (value, byMean, byDeviation float64) {
	z := (best - piMargin - mean) / deviation
	if z > -1 {
		mass := normalCDF(z)
		value, byMean = math.Log(mass), math.Exp(-z*z/2-halfLog2Pi)/mass
	} else {
		m := mills(z)
		value, byMean = -z*z/2-halfLog2Pi+math.Log(m), 1/m
	}
	return value, -byMean / deviation, -z * byMean / deviation
}

// lowerBound is the bound below which the loss is with a probability of 2.5 %, turned.
func lowerBound(mean, deviation, _ float64) (value, byMean, byDeviation float64) {
	return 1.96*deviation - mean, -1, 1.96
}

// mills is the ratio of the normal distribution's mass below z to its density at z, for z ≤ 0.
func mills(z float64) float64 {
	if z > -20 {
		return normalCDF(z) / math.Exp(-z*z/2-halfLog2Pi)
	}
	i := 1 / (z * z)
	return -(1 - i*(1-3*i*(1-5*i))) / z
}
