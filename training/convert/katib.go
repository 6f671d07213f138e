package convert

import (
	"strings"

	"github.com/gohops/hops/training"
)

// katibOptimizers are Katib's algorithms by name, and which of their settings have a counterpart.
var katibOptimizers = map[string]struct {
	name     string
	settings map[string]string
}{
	"random":               {training.Random, nil},
	"grid":                 {training.Grid, nil},
	"bayesianoptimization": {"gp", map[string]string{"n_initial_points": "startup"}},
	"tpe":                  {"tpe", map[string]string{"n_EI_candidates": "candidates", "gamma": "gamma"}},
	"multivariate-tpe":     {"tpe", map[string]string{"n_ei_candidates": "candidates", "n_startup_trials": "startup"}},
	"hyperband":            {"hyperband", map[string]string{"r_l": "r_max", "eta": "eta"}},
	"cmaes":                {"cmaes", map[string]string{"sigma": "sigma"}},
	"sobol":                {"sobol", nil},
	"pbt":                  {"pbt", map[string]string{"n_population": "population", "truncation_threshold": "quantile", "resample_probability": "resample"}},
}

// katib reads an Experiment of kubeflow.org/v1beta1.
func (s *study) katib(n *node) {
	n.get("apiVersion")
	if kind := n.get("kind"); !kind.null() && kind.text() != "Experiment" {
		s.warn(kind.path, "it is read as an Experiment, not as %s", kind.text())
	}
	s.name = n.get("metadata").get("name").text()
	spec := n.get("spec")
	if spec == nil {
		return
	}
	if o := spec.get("objective"); o != nil {
		s.goal(o.get("type"))
		s.metric = o.get("objectiveMetricName").text()
	}
	s.trials = s.whole(spec.get("maxTrialCount"), 1)
	s.executors = s.whole(spec.get("parallelTrialCount"), 1)
	s.optimizer = training.Random
	if a := spec.get("algorithm"); a != nil {
		name := a.get("algorithmName")
		known, ok := katibOptimizers[name.text()]
		if ok {
			s.optimizer = known.name
		} else {
			s.warn(name.path, "%s has no counterpart: random is written", name.text())
		}
		if name.text() == "multivariate-tpe" {
			s.option("multivariate", "true")
		}
		for key, value := range settings(a.get("algorithmSettings")) {
			switch to := known.settings[key]; {
			case key == "random_state":
				s.seed = s.whole(value, 0)
			case key == "resource_name" && s.optimizer == "hyperband": // epochs are what is counted here
			case to == "":
				s.warn(value.path, "setting %s of %s has no counterpart, left out", key, name.text())
			case to == "gamma", to == "sigma", to == "quantile", to == "resample":
				s.option(to, s.real(value))
			default:
				s.option(to, s.whole(value, 0))
			}
		}
	}
	if e := spec.get("earlyStopping"); e != nil {
		if name := e.get("algorithmName"); name.text() != "medianstop" {
			s.warn(name.path, "%s has no counterpart, left out", name.text())
		} else {
			s.stop = []setting{{"policy", training.Median}}
		}
		for key, value := range settings(e.get("algorithmSettings")) {
			if text := s.whole(value, 0); key == "min_trials_required" && text != "" {
				s.stop = append(s.stop, setting{"es_min", text})
			} else {
				s.warn(value.path, "setting %s of the early stopping has no counterpart, left out", key)
			}
		}
	}
	params := spec.get("parameters")
	if params == nil {
		return
	}
	for _, p := range params.items {
		s.katibParameter(p)
	}
}

// settings are a list of {name, value}, in its order.
func settings(n *node) func(yield func(string, *node) bool) {
	return func(yield func(string, *node) bool) {
		if n == nil {
			return
		}
		for _, item := range n.items {
			if v := item.get("value"); v != nil && !yield(item.get("name").text(), v) {
				return
			}
		}
	}
}

func (s *study) katibParameter(p *node) {
	x := parameter{name: p.get("name").text()}
	space := p.get("feasibleSpace")
	switch kind := p.get("parameterType"); kind.text() {
	case "double", "int":
		if x.kind = training.Double; kind.text() == "int" {
			x.kind = training.Integer
		}
		x.min, _ = space.get("min").number()
		x.max, _ = space.get("max").number()
		switch d := space.get("distribution"); strings.ToLower(d.text()) {
		case "", "uniform":
		case "loguniform":
			x.log = true
		default:
			s.warn(d.path, "parameter %s: %s has no counterpart: it is even between its bounds", x.name, d.text())
		}
		if step, ok := space.get("step").number(); ok {
			f, _ := step.Float()
			x = s.stepped(p, x, f)
		}
	case "discrete":
		x.kind, x.values = training.Discrete, s.values(space.get("list"), true)
	case "categorical":
		x.kind, x.values = training.Categorical, s.values(space.get("list"), false)
	default:
		s.warn(p.path, "parameter %s is of the unknown type %q, left out", x.name, kind.text())
		p.taken()
		return
	}
	s.add(p, x)
}
