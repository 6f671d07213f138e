package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/gohops/hops/training"
)

// function is a problem with a known minimum. peer.py has the same ones.
type function struct {
	name    string
	space   string // JSON
	optimum float64
	f       func(point) float64
	// clean is the value without noise, of which the regret is taken; nil: f.
	clean func(point) float64
}

// point is a configuration.
type point training.Params

func (p point) num(name string) float64 {
	f, ok := training.Params(p)[name].Float()
	if !ok {
		panic(fmt.Sprintf("%s of %v is not a number", name, training.Params(p)))
	}
	return f
}

func (p point) log10(name string) float64 { return math.Log10(p.num(name)) }

func (p point) word(name string) string { return training.Params(p)[name].String() }

// xs are x1 … xn.
func (p point) xs(n int) []float64 {
	out := make([]float64, n)
	for i := range out {
		out[i] = p.num(fmt.Sprintf("x%d", i+1))
	}
	return out
}

// box is a space of n parameters of one kind.
func box(n int, parameter string) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"x%d": %s`, i+1, parameter))
	}
	return "{" + strings.Join(all, ", ") + "}"
}

func double(low, high float64) string {
	return fmt.Sprintf(`{"type": "DOUBLE", "range": [%v, %v]}`, low, high)
}

// shift moves optima away from the middle of their spaces.
func shift(i int) float64 { return 2.1 * math.Sin(1.7*float64(i)) }

var (
	hartmannAlpha = []float64{1, 1.2, 3, 3.2}
	hartmann6A    = [][]float64{{10, 3, 17, 3.5, 1.7, 8}, {0.05, 10, 17, 0.1, 8, 14}, {3, 3.5, 1.7, 10, 17, 8}, {17, 8, 0.05, 10, 0.1, 14}}
	hartmann6P    = [][]float64{
		{0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886},
		{0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991},
		{0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650},
		{0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381},
	}
	hartmann3A = [][]float64{{3, 10, 30}, {0.1, 10, 35}, {3, 10, 30}, {0.1, 10, 35}}
	hartmann3P = [][]float64{{0.3689, 0.1170, 0.2673}, {0.4699, 0.4387, 0.7470}, {0.1091, 0.8732, 0.5547}, {0.0381, 0.5743, 0.8828}}
)

func hartmann(x []float64, a, p [][]float64) float64 {
	sum := 0.0
	for i, alpha := range hartmannAlpha {
		e := 0.0
		for j := range x {
			e += a[i][j] * (x[j] - p[i][j]) * (x[j] - p[i][j])
		}
		sum -= alpha * math.Exp(-e)
	}
	return sum
}

func hartmann6(p point) float64 { return hartmann(p.xs(6), hartmann6A, hartmann6P) }

func branin(p point) float64 {
	x1, x2 := p.num("x1"), p.num("x2")
	v := x2 - 5.1/(4*math.Pi*math.Pi)*x1*x1 + 5/math.Pi*x1 - 6
	return v*v + 10*(1-1/(8*math.Pi))*math.Cos(x1) + 10
}

func rosenbrock5(p point) float64 {
	x, sum := p.xs(5), 0.0
	for i := range 4 {
		d := x[i+1] - x[i]*x[i]
		sum += 100*d*d + (x[i]-1)*(x[i]-1)
	}
	return sum
}

func ackley5(p point) float64 {
	squares, cosines := 0.0, 0.0
	for _, v := range p.xs(5) {
		squares += v * v / 5
		cosines += math.Cos(2*math.Pi*v) / 5
	}
	return -20*math.Exp(-0.2*math.Sqrt(squares)) - math.Exp(cosines) + 20 + math.E
}

func sphere10(p point) float64 {
	sum := 0.0
	for i, v := range p.xs(10) {
		sum += (v - shift(i+1)) * (v - shift(i+1))
	}
	return sum
}

func levy(n int) func(point) float64 {
	return func(p point) float64 {
		w := p.xs(n)
		for i := range w {
			w[i] = 1 + (w[i]-shift(i+1))/4
		}
		square := func(x float64) float64 { return x * x }
		last := w[n-1]
		sum := square(math.Sin(math.Pi*w[0])) + square(last-1)*(1+square(math.Sin(2*math.Pi*last)))
		for _, v := range w[:n-1] {
			sum += square(v-1) * (1 + 10*square(math.Sin(math.Pi*v+1)))
		}
		return sum
	}
}

func styblinski5(p point) float64 {
	sum := 0.0
	for _, v := range p.xs(5) {
		sum += (v*v*v*v - 16*v*v + 5*v) / 2
	}
	return sum
}

func rastrigin4(p point) float64 {
	sum := 0.0
	for i, v := range p.xs(4) {
		v -= shift(i + 1)
		sum += 10 + v*v - 10*math.Cos(2*math.Pi*v)
	}
	return sum
}

func log4(p point) float64 {
	sum, total := 0.0, 0.0
	for i := 1; i <= 4; i++ {
		z := p.log10(fmt.Sprintf("x%d", i)) + 2 - shift(i)
		sum += float64(i) * z * z
		total += z
	}
	return sum + total*total
}

func svm(p point) float64 {
	c, g, degree := p.log10("C"), p.log10("gamma"), p.num("degree")
	switch p.word("kernel") {
	case "linear":
		return 0.12 + 0.01*(c+0.5)*(c+0.5)
	case "rbf":
		return 0.03 + 0.02*(c-1.2)*(c-1.2) + 0.03*(g+2.1)*(g+2.1) + 0.01*(c-1.2)*(g+2.1)
	}
	return 0.06 + 0.015*(c-0.3)*(c-0.3) + 0.02*(g+1.4)*(g+1.4) + 0.01*(degree-3)*(degree-3)
}

func cnn(p point) float64 {
	lr := p.log10("lr") + 2.5 - 0.3*(math.Log2(p.num("batch"))-6)
	momentum, layers, dropout := p.num("momentum")-0.9, p.num("layers")-4, p.num("dropout")-0.3
	units := math.Log2(p.num("units")) - 7
	act := map[string]float64{"relu": 0, "tanh": 0.03, "sigmoid": 0.08, "elu": 0.01}[p.word("act")]
	return 0.05 + 0.04*lr*lr + 0.1*momentum*momentum + 0.01*layers*layers + 0.02*units*units + act + 0.15*dropout*dropout
}

func conditional(p point) float64 {
	lr := p.log10("lr")
	switch p.word("optimizer") {
	case "sgd":
		m, nesterov := p.num("momentum")-0.85, 0.02
		if p.word("nesterov") == "true" {
			nesterov = 0
		}
		return 0.08 + 0.05*(lr+1)*(lr+1) + 0.3*m*m + nesterov
	case "adam":
		b, w := p.num("beta")-0.9, p.num("warmup")-4
		return 0.04 + 0.05*(lr+3)*(lr+3) + 0.5*b*b + 0.002*w*w
	}
	b := p.num("beta") - 0.95
	return 0.06 + 0.05*(lr+2.5)*(lr+2.5) + 0.5*b*b
}

func int6(p point) float64 {
	sum, total := 0.0, 0.0
	for i, v := range p.xs(6) {
		z := v - math.Round(40*math.Sin(1.7*float64(i+1)))
		sum += float64(i+1) * z * z
		total += z
	}
	return (sum + total*total) / 100
}

func cat8(p point) float64 {
	sum, before := 0.0, -1
	for i := 1; i <= 8; i++ {
		v := int(p.word(fmt.Sprintf("x%d", i))[1] - '0')
		sum += float64((3*i+2*v)%5) / 5
		if v == before {
			sum += 0.3
		}
		before = v
	}
	return sum
}

// griewank5 is a wide bowl with ripples whose depth is a thousandth of it.
func griewank5(p point) float64 {
	sum, product := 0.0, 1.0
	for i, v := range p.xs(5) {
		z := v - 100*shift(i+1)
		sum += z * z / 4000
		product *= math.Cos(z / math.Sqrt(float64(i+1)))
	}
	return sum - product + 1
}

// michalewicz5 is flat but for steep valleys.
func michalewicz5(p point) float64 {
	sum := 0.0
	for i, v := range p.xs(5) {
		sum -= math.Sin(v) * math.Pow(math.Sin(float64(i+1)*v*v/math.Pi), 20)
	}
	return sum
}

var (
	michalewiczLeast = -4.687658179088147
	shekelLeast      = -10.53644315348353
	shekelBeta       = []float64{1, 2, 2, 4, 4, 6, 3, 7, 5, 5}
	shekelC          = [][]float64{
		{4, 4, 4, 4},
		{1, 1, 1, 1},
		{8, 8, 8, 8},
		{6, 6, 6, 6},
		{3, 7, 3, 7},
		{2, 9, 2, 9},
		{5, 3, 5, 3},
		{8, 1, 8, 1},
		{6, 2, 6, 2},
		{7, 3.6, 7, 3.6},
	}
)

// shekel4 is flat but for ten holes.
func shekel4(p point) float64 {
	x, sum := p.xs(4), 0.0
	for i, c := range shekelC {
		square := shekelBeta[i] / 10
		for j, v := range c {
			square += (x[j] - v) * (x[j] - v)
		}
		sum -= 1 / square
	}
	return sum
}

// schwefel3 has its minimum near a corner, far from the second one.
func schwefel3(p point) float64 {
	sum := 0.0
	for _, v := range p.xs(3) {
		sum += 418.9828872724339 - v*math.Sin(math.Sqrt(math.Abs(v)))
	}
	return sum
}

// boost is like the error of boosted trees: of the number of them and the rate together, with a floor.
func boost(p point) float64 {
	rate := p.log10("rate") + math.Log10(p.num("trees")) - 1.3
	depth, child, rows, columns := p.num("depth")-6-0.5*rate, p.log10("child")-0.4, p.num("rows")-0.8, p.num("columns")-0.6
	grow := 0.0
	if p.word("grow") == "leaf" {
		grow = 0.02 + 0.01*math.Abs(p.num("depth")-9)
	}
	return 0.1 + 0.05*math.Log1p(4*rate*rate) + 0.004*depth*depth + 0.01*child*child + 0.2*rows*rows + 0.1*columns*columns + grow
}

// ellipsoid10 is a long narrow valley: axes of 1 to 1000 to each other, turned so that none is a parameter's.
func ellipsoid10(p point) float64 {
	x, mean := p.xs(10), 0.0
	for i := range x {
		x[i] -= 3 * math.Sin(1.7*float64(i+1)+1)
		mean += x[i] / 10
	}
	sum := 0.0
	for i, v := range x { // mirrored at the plane across (1, …, 1)
		sum += math.Pow(10, float64(i)/3) * (v - 2*mean) * (v - 2*mean)
	}
	return sum
}

// pipeline is a choice of models of which each has parameters of its own, and those some of their own again.
func pipeline(p point) float64 {
	scale := map[string]float64{"none": 0.03, "standard": 0, "robust": 0.01}[p.word("scale")]
	switch p.word("model") {
	case "linear":
		alpha := p.log10("alpha") + 2
		penalty := map[string]float64{"l1": 0.02, "l2": 0.01, "both": 0}[p.word("penalty")]
		if p.word("penalty") == "both" {
			penalty += 0.1 * (p.num("ratio") - 0.7) * (p.num("ratio") - 0.7)
		}
		return 0.15 + 0.01*alpha*alpha + penalty + scale
	case "forest":
		trees, depth := p.log10("trees")-2.3, p.num("depth")-11
		return 0.09 + 0.03*trees*trees + 0.001*depth*depth + scale/3
	}
	rate, width := p.log10("rate")+3, math.Log2(p.num("width"))-8
	more := 0.02
	if layers := p.num("layers"); layers > 1 {
		second := math.Log2(p.num("second")) - 6
		more = 0.004*second*second + 0.01*(layers-2)
	}
	return 0.05 + 0.04*(rate+0.1*width)*(rate+0.1*width) + 0.004*width*width + more + 2*scale
}

// net has noise as large as what there is to gain near the optimum.
func net(p point) float64 {
	rate, decay, dropout, width := p.log10("rate")+2.7, p.log10("decay")+4, p.num("dropout")-0.35, math.Log2(p.num("width"))-7
	act := map[string]float64{"relu": 0.01, "gelu": 0, "tanh": 0.05}[p.word("act")]
	return 0.08 + 0.05*math.Sqrt(0.1+rate*rate+0.3*rate*decay+0.2*decay*decay) - 0.05*math.Sqrt(0.1) + 0.1*dropout*dropout + 0.006*width*width + act
}

// noise is the same for the same configuration, and nobody can see what it comes from: normal, of 12 even ones.
func noise(sum float64) float64 {
	total := -6.0
	for i := range 12 {
		v := math.Sin(sum*12.9898+float64(i)*78.233) * 43758.5453
		total += v - math.Floor(v)
	}
	return total
}

// functions are those of the reference, then those that options were chosen on, then those that were only looked at in the end.
var functions = []function{
	{"branin", `{"x1": ` + double(-5, 10) + `, "x2": ` + double(0, 15) + `}`, 0.39788735772973816, branin, nil},
	{"hartmann6", box(6, double(0, 1)), -3.3223680114155, hartmann6, nil},
	{"rosenbrock5", box(5, double(-5, 10)), 0, rosenbrock5, nil},
	{"ackley5", box(5, double(-32.768, 32.768)), 0, ackley5, nil},

	{"sphere10", box(10, double(-5, 5)), 0, sphere10, nil},
	{"levy4", box(4, double(-10, 10)), 0, levy(4), nil},
	{"svm", `{"kernel": {"type": "CATEGORICAL", "values": ["linear", "rbf", "poly"]}, "C": {"type": "DOUBLE", "range": [1e-3, 1e3], "log": true},
		"gamma": {"type": "DOUBLE", "range": [1e-5, 10], "log": true}, "degree": {"type": "INTEGER", "range": [2, 5]}}`, 0.03, svm, nil},
	{"cnn", `{"lr": {"type": "DOUBLE", "range": [1e-5, 1], "log": true}, "momentum": {"type": "DOUBLE", "range": [0, 0.99]},
		"layers": {"type": "INTEGER", "range": [1, 8]}, "units": {"type": "INTEGER", "range": [8, 512], "log": true},
		"batch": {"type": "DISCRETE", "values": [16, 32, 64, 128, 256]}, "act": {"type": "CATEGORICAL", "values": ["relu", "tanh", "sigmoid", "elu"]},
		"dropout": {"type": "DOUBLE", "range": [0, 0.8]}}`, 0.05, cnn, nil},
	{"log4", box(4, `{"type": "DOUBLE", "range": [1e-6, 100], "log": true}`), 0, log4, nil},

	{"styblinski5", box(5, double(-5, 5)), -5 * 39.16616570377142, styblinski5, nil},
	{"hartmann3", box(3, double(0, 1)), -3.862779787332663, func(p point) float64 { return hartmann(p.xs(3), hartmann3A, hartmann3P) }, nil},
	{"hartmann6n", box(6, double(0, 1)), -3.3223680114155, func(p point) float64 {
		total := 0.0
		for _, v := range p.xs(6) {
			total += v
		}
		return hartmann6(p) + 0.2*math.Sin(1e5*total)
	}, hartmann6},
	{"levy10", box(10, double(-10, 10)), 0, levy(10), nil},
	{"rastrigin4", box(4, double(-5.12, 5.12)), 0, rastrigin4, nil},
	{"conditional", `{"optimizer": {"type": "CATEGORICAL", "values": ["sgd", "adam", "rmsprop"]}, "lr": {"type": "DOUBLE", "range": [1e-5, 1], "log": true},
		"momentum": {"type": "DOUBLE", "range": [0, 1], "when": {"optimizer": "sgd"}},
		"nesterov": {"type": "CATEGORICAL", "values": [true, false], "when": {"optimizer": "sgd"}},
		"beta": {"type": "DOUBLE", "range": [0.5, 0.999], "when": {"optimizer": ["adam", "rmsprop"]}},
		"warmup": {"type": "INTEGER", "range": [0, 10], "when": {"optimizer": "adam"}}}`, 0.04, conditional, nil},
	{"int6", box(6, `{"type": "INTEGER", "range": [-100, 100]}`), 0, int6, nil},
	{"cat8", box(8, `{"type": "CATEGORICAL", "values": ["v0", "v1", "v2", "v3", "v4"]}`), 0, cat8, nil},

	{"griewank5", box(5, double(-600, 600)), 0, griewank5, nil},
	{"michalewicz5", box(5, double(0, math.Pi)), michalewiczLeast, michalewicz5, nil},
	{"shekel4", box(4, double(0, 10)), shekelLeast, shekel4, nil},
	{"schwefel3", box(3, double(-500, 500)), 0, schwefel3, nil},
	{
		"boostn", `{"rate": {"type": "DOUBLE", "range": [1e-3, 1], "log": true}, "trees": {"type": "INTEGER", "range": [10, 1000], "log": true},
		"depth": {"type": "INTEGER", "range": [2, 12]}, "child": {"type": "DOUBLE", "range": [0.1, 100], "log": true}, "rows": {"type": "DOUBLE", "range": [0.4, 1]},
		"columns": {"type": "DOUBLE", "range": [0.3, 1]}, "grow": {"type": "CATEGORICAL", "values": ["depth", "leaf"]}}`, 0.1,
		func(p point) float64 { return boost(p) + 0.005*noise(p.log10("rate")+p.num("rows")+p.num("columns")) }, boost,
	},

	{"ellipsoid10", box(10, double(-5, 5)), 0, ellipsoid10, nil},
	{
		"pipeline", `{"scale": {"type": "CATEGORICAL", "values": ["none", "standard", "robust"]}, "model": {"type": "CATEGORICAL", "values": ["linear", "forest", "net"]},
		"alpha": {"type": "DOUBLE", "range": [1e-5, 10], "log": true, "when": {"model": "linear"}},
		"penalty": {"type": "CATEGORICAL", "values": ["l1", "l2", "both"], "when": {"model": "linear"}},
		"ratio": {"type": "DOUBLE", "range": [0, 1], "when": {"penalty": "both"}},
		"trees": {"type": "INTEGER", "range": [10, 500], "log": true, "when": {"model": "forest"}}, "depth": {"type": "INTEGER", "range": [2, 20], "when": {"model": "forest"}},
		"rate": {"type": "DOUBLE", "range": [1e-5, 0.1], "log": true, "when": {"model": "net"}},
		"width": {"type": "INTEGER", "range": [16, 1024], "log": true, "when": {"model": "net"}},
		"layers": {"type": "DISCRETE", "values": [1, 2, 3], "when": {"model": "net"}},
		"second": {"type": "INTEGER", "range": [16, 1024], "log": true, "when": {"layers": [2, 3]}}}`, 0.05, pipeline, nil,
	},
	{
		"netn", `{"rate": {"type": "DOUBLE", "range": [1e-5, 1], "log": true}, "decay": {"type": "DOUBLE", "range": [1e-7, 0.1], "log": true},
		"dropout": {"type": "DOUBLE", "range": [0, 0.8]}, "width": {"type": "INTEGER", "range": [16, 1024], "log": true},
		"act": {"type": "CATEGORICAL", "values": ["relu", "gelu", "tanh"]}}`, 0.08,
		func(p point) float64 { return net(p) + 0.02*noise(p.log10("rate")+p.log10("decay")+p.num("dropout")) }, net,
	},
}
