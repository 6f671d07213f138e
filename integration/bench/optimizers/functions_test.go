package main

import (
	"fmt"
	"math"
	"os/exec"
	"strings"
	"testing"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/search"
)

func named(t *testing.T, name string) function {
	t.Helper()
	for _, f := range functions {
		if f.name == name {
			return f
		}
	}
	t.Fatalf("there is no function %s", name)
	return function{}
}

// reals are x1, x2, …
func reals(x ...float64) point {
	p := point{}
	for i, v := range x {
		p[fmt.Sprintf("x%d", i+1)] = training.Float(v)
	}
	return p
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(b)) }

// The values of the reference.
func TestValues(t *testing.T) {
	for _, c := range []struct {
		name string
		x    point
		want float64
	}{
		{"branin", reals(2.5, 7.5), 24.1299644136223},
		{"branin", reals(-5, 0), 308.129096011607},
		{"hartmann6", reals(0.5, 0.5, 0.5, 0.5, 0.5, 0.5), -0.505314991702233},
		{"hartmann6", reals(0.1, 0.2, 0.3, 0.4, 0.5, 0.6), -1.40691057613853},
		{"rosenbrock5", reals(0, 0, 0, 0, 0), 4},
		{"rosenbrock5", reals(-1.5, 2, 0.5, 3, -4), 18899},
		{"ackley5", reals(1, 1, 1, 1, 1), 3.62538493844036},
		{"ackley5", reals(-20, 3.3, 0.1, 15, 32), 20.1816115274097},
	} {
		if got := named(t, c.name).f(c.x); !near(got, c.want) {
			t.Errorf("%s at %v: %.15g, want %.15g", c.name, c.x, got, c.want)
		}
	}
}

// Nothing is below the optimum, which is reached.
func TestOptima(t *testing.T) {
	optimal := map[string]point{
		"branin": reals(math.Pi, 2.275), "hartmann6": reals(0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573), "rosenbrock5": reals(1, 1, 1, 1, 1),
		"ackley5": reals(0, 0, 0, 0, 0), "styblinski5": reals(-2.903534, -2.903534, -2.903534, -2.903534, -2.903534),
		"hartmann3": reals(0.114614, 0.555649, 0.852547),
		"svm":       {"kernel": training.String("rbf"), "C": training.Float(math.Pow(10, 1.2)), "gamma": training.Float(math.Pow(10, -2.1)), "degree": training.Int(2)},
		"cnn": {
			"lr": training.Float(math.Pow(10, -2.5)), "momentum": training.Float(0.9), "layers": training.Int(4), "units": training.Int(128), "batch": training.Int(64),
			"act": training.String("relu"), "dropout": training.Float(0.3),
		},
		"michalewicz5": reals(2.2029055199529126, math.Pi/2, 1.284991570272413, 1.9230584696163617, 1.7204697722211917),
		"shekel4":      reals(4.00074687, 3.99950949, 4.00074687, 3.99950949), "schwefel3": reals(420.96874635, 420.96874635, 420.96874635),
		"griewank5": reals(100*shift(1), 100*shift(2), 100*shift(3), 100*shift(4), 100*shift(5)),
		"boostn": {
			"rate": training.Float(0.2), "trees": training.Int(100), "depth": training.Int(6), "child": training.Float(math.Pow(10, 0.4)), "rows": training.Float(0.8),
			"columns": training.Float(0.6), "grow": training.String("depth"),
		},
		"conditional": {"optimizer": training.String("adam"), "lr": training.Float(1e-3), "beta": training.Float(0.9), "warmup": training.Int(4)},
		"pipeline": {
			"scale": training.String("standard"), "model": training.String("net"), "rate": training.Float(1e-3), "width": training.Int(256), "layers": training.Int(2),
			"second": training.Int(64),
		},
		"netn": {
			"rate": training.Float(math.Pow(10, -2.7)), "decay": training.Float(1e-4), "dropout": training.Float(0.35), "width": training.Int(128), "act": training.String("gelu"),
		},
		"ellipsoid10": {},
	}
	for i := range 10 {
		optimal["ellipsoid10"][fmt.Sprintf("x%d", i+1)] = training.Float(3 * math.Sin(1.7*float64(i+1)+1))
	}
	for _, name := range []string{"sphere10", "levy4", "levy10", "rastrigin4"} {
		p := point{}
		for i := range 10 {
			p[fmt.Sprintf("x%d", i+1)] = training.Float(shift(i + 1))
		}
		optimal[name] = p
	}
	optimal["int6"], optimal["log4"] = point{}, point{}
	for i := range 6 {
		name := fmt.Sprintf("x%d", i+1)
		optimal["int6"][name] = training.Int(int64(math.Round(40 * math.Sin(1.7*float64(i+1)))))
		optimal["log4"][name] = training.Float(math.Pow(10, shift(i+1)-2))
	}
	for name, p := range optimal {
		f := named(t, name)
		if f.clean != nil {
			f.f = f.clean
		}
		if math.Abs(f.f(p)-f.optimum) > 2e-6*max(1, math.Abs(f.optimum)) {
			t.Errorf("%s at %v: %v, want %v", name, training.Params(p), f.f(p), f.optimum)
		}
	}
	least := math.Inf(1)
	for n := range 390_625 { // all of cat8
		p := point{}
		for i := 1; i <= 8; i++ {
			p[fmt.Sprintf("x%d", i)] = cat8Values[n%5]
			n /= 5
		}
		least = min(least, cat8(p))
	}
	if least != named(t, "cat8").optimum {
		t.Errorf("the least of cat8 is %v", least)
	}
}

var cat8Values = []training.Value{training.String("v0"), training.String("v1"), training.String("v2"), training.String("v3"), training.String("v4")}

// peer.py computes the same values, at some points of each space.
func TestThePeersFunctionsAreTheSame(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Fatal("python3 is needed: ", err)
	}
	var script strings.Builder
	script.WriteString("import sys, json; sys.dont_write_bytecode = True; import peer\n")
	type asked struct {
		function
		at point
	}
	var all []asked
	for _, f := range functions {
		s, err := training.ParseSpec(fmt.Appendf(nil, `{"entry": "m:f", "optimizer": {"type": "random"}, "trials": 3, "space": %s}`, f.space), "bench")
		if err != nil {
			t.Fatal(f.name, err)
		}
		o, err := search.New(s)
		if err != nil {
			t.Fatal(err)
		}
		for x, v := o.Next(); v == search.Suggest; x, v = o.Next() {
			all = append(all, asked{f, point(x.Params)})
			fmt.Fprintf(&script, "v = peer.FUNCTIONS[%q][0](peer.Fixed(json.loads(%q))); print(repr(v[0] if isinstance(v, tuple) else v), peer.FUNCTIONS[%q][1])\n", f.name, x.Params.Key(), f.name)
		}
	}
	out, err := exec.Command(python, "-c", script.String()).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(all) {
		t.Fatalf("%d answers to %d questions:\n%s", len(lines), len(all), out)
	}
	for i, a := range all {
		var value, optimum float64
		if _, err := fmt.Sscan(lines[i], &value, &optimum); err != nil {
			t.Fatalf("%s: %q: %v", a.name, lines[i], err)
		}
		if got := a.f(a.at); !near(got, value) || optimum != a.optimum {
			t.Errorf("%s at %v: %.15g and optimum %v here, %.15g and %v there", a.name, a.at, got, a.optimum, value, optimum)
		}
	}
}

// The chances of tosses of which one in four falls so.
func TestChance(t *testing.T) {
	for _, c := range []struct {
		worse, n int
		want     float64
	}{{0, 5, 1}, {5, 5, math.Pow(0.25, 5)}, {1, 2, 7. / 16}, {2, 3, 10. / 64}, {1, 1, 0.25}} {
		if got := chance(c.worse, c.n); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%d of %d: %v, want %v", c.worse, c.n, got, c.want)
		}
	}
}
