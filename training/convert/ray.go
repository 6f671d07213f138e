package convert

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gohops/hops/training"
)

// distributions of Ray Tune's search space, by their function's name.
var distributions = []string{
	"uniform", "quniform", "loguniform", "qloguniform", "randint", "qrandint", "lograndint", "qlograndint", "choice", "grid_search",
	"randn", "qrandn", "sample_from",
}

// distribution is the name of the one that a value is, {"uniform": [0, 1]}, "" if it is none.
func distribution(n *node) string {
	if n.object() && len(n.keys) == 1 && slices.Contains(distributions, strings.TrimPrefix(n.keys[0], "tune.")) {
		return strings.TrimPrefix(n.keys[0], "tune.")
	}
	return ""
}

// raySearchers are search algorithms by the names that Ray's create_searcher takes.
var raySearchers = map[string]string{
	"": training.Random, "random": training.Random, "variant_generator": training.Random, "optuna": "tpe", "hyperopt": "tpe",
	"bayesopt": "gp", "ax": "gp", "bohb": "bohb", "hebo": "gp",
}

// ray reads a search space as JSON or YAML, {"lr": {"loguniform": [1e-4, 1e-1]}}, by itself or as param_space (config) beside tune_config
// and run_config, whose keys are those of the Python classes.
func (s *study) ray(n *node) {
	space := n
	for _, name := range []string{"param_space", "config"} {
		if n.has(name) {
			space = n.get(name)
		}
	}
	grid, other := 0, 0
	if space == n {
		s.raySpace(n, &grid, &other)
	} else {
		s.raySpace(space, &grid, &other)
		tune := n
		if n.has("tune_config") {
			tune = n.get("tune_config")
		}
		s.rayTune(tune)
		run := n
		if n.has("run_config") {
			run = n.get("run_config")
		}
		if name := run.get("name").text(); name != "" {
			s.name = name
		}
		if stop := run.fields["stop"]; stop.has("training_iteration") {
			s.maxEpochs = s.whole(run.get("stop").get("training_iteration"), 1)
		}
		if r := n.get("resources_per_trial"); r != nil {
			if cpu := s.whole(r.get("cpu"), 1); cpu != "" {
				s.resources = append(s.resources, setting{"vcores", cpu})
			}
			if gpu := s.whole(r.get("gpu"), 0); gpu != "" {
				s.resources = append(s.resources, setting{"gpus", gpu})
			}
		}
	}
	if s.optimizer == "" {
		s.optimizer = training.Random
	}
	switch {
	case grid > 0 && other == 0:
		if s.optimizer == training.Random {
			s.optimizer = training.Grid
		}
		if s.trials != "" && s.trials != "1" {
			s.warn("", "num_samples repeats the grid in Ray: it is run once here (repeats: %s says the same)", s.trials)
		}
		s.trials = ""
	case grid > 0:
		s.warn("", "grid_search beside other distributions is a grid of random samples in Ray: here all are drawn")
	}
	if s.optimizer != training.Grid && s.trials == "" {
		s.trials = "1" // num_samples' default
	}
}

func (s *study) raySpace(n *node, grid, other *int) {
	for _, name := range n.keys {
		v := n.get(name)
		v.taken()
		kind := distribution(v)
		if kind == "" {
			if v.object() {
				s.warn(v.path, "spaces inside of spaces have no counterpart, left out")
				continue
			}
			s.argument(v, name) // a constant
			continue
		}
		d := v.fields[v.keys[0]]
		if kind == "grid_search" {
			*grid++
		} else {
			*other++
		}
		x := parameter{name: name}
		switch kind {
		case "choice", "grid_search":
			x.kind, x.values = training.Categorical, s.values(d, false)
			if !slices.ContainsFunc(x.values, func(v training.Value) bool { _, ok := v.Float(); return !ok }) {
				x.kind = training.Discrete
			}
		case "randn", "qrandn", "sample_from":
			s.warn(v.path, "%s has no counterpart, %s is left out", kind, name)
			continue
		default:
			if !s.rayRange(v, d, kind, &x) {
				continue
			}
		}
		s.add(v, x)
	}
}

// rayRange reads [low, high] or [low, high, step].
func (s *study) rayRange(v, d *node, kind string, x *parameter) bool {
	want := 2
	if kind[0] == 'q' {
		want = 3
	}
	if len(d.items) < want {
		s.warn(v.path, "%s takes %d numbers in a list, %s is left out", kind, want, x.name)
		return false
	}
	if len(d.items) > want {
		s.warn(d.items[want].path, "%s takes %d numbers: what follows (a base, say) changes nothing and is left out", kind, want)
	}
	var ok1, ok2 bool
	x.min, ok1 = d.items[0].number()
	x.max, ok2 = d.items[1].number()
	if !ok1 || !ok2 {
		s.warn(v.path, "the bounds of %s are no numbers, left out", x.name)
		return false
	}
	x.kind, x.log = training.Double, strings.Contains(kind, "log")
	if strings.HasSuffix(kind, "randint") {
		x.kind = training.Integer
		if high, ok := x.max.Int(); ok && kind[0] != 'q' {
			x.max = training.Int(high - 1) // Ray's upper bound is exclusive, but for quantized ones
		}
	}
	if want == 3 {
		step, ok := d.items[2].number()
		f, _ := step.Float()
		if !ok {
			s.warn(d.items[2].path, "the step of %s is no number, left out", x.name)
			return true
		}
		*x = s.stepped(v, *x, f)
	}
	return true
}

// rayTune reads TuneConfig.
func (s *study) rayTune(n *node) {
	s.metric = n.get("metric").text()
	s.goal(n.get("mode"))
	s.trials = s.whole(n.get("num_samples"), 1)
	s.executors = s.whole(n.get("max_concurrent_trials"), 1)
	s.timeout = s.seconds(n.get("time_budget_s"))
	if alg := n.get("search_alg"); !alg.null() {
		name := alg
		if alg.object() {
			name = alg.get("type")
		}
		known, ok := raySearchers[strings.TrimSuffix(strings.ToLower(name.text()), "search")]
		if !ok {
			s.warn(alg.path, "search algorithm %q has no counterpart: random is written", name.text())
			known = training.Random
		}
		s.optimizer = known
	}
	sched := n.get("scheduler")
	if sched.null() {
		return
	}
	name := sched
	if sched.object() {
		name = sched.get("type")
	}
	switch kind := strings.TrimSuffix(strings.ToLower(name.text()), "scheduler"); kind {
	case "asha", "async_hyperband", "asynchyperband", "hyperband", "hb_bohb", "hyperbandforbohb":
		to := training.ASHA
		switch {
		case strings.Contains(kind, "bohb"):
			to = "bohb"
		case kind == "hyperband":
			to = "hyperband"
		}
		if s.optimizer != "" && s.optimizer != training.Random && s.optimizer != to {
			s.warn(sched.path, "%s together with %s: %s is written, which draws its configurations itself", name.text(), s.optimizer, to)
		}
		s.optimizer = to
		eta, most := "4", "100" // the defaults of ASHAScheduler
		if to != training.ASHA {
			eta, most = "3", "81" // those of HyperBandScheduler
		}
		s.option("eta", cmp.Or(s.whole(sched.get("reduction_factor"), 2), eta))
		s.option("r_min", s.whole(sched.get("grace_period"), 1))
		s.option("r_max", cmp.Or(s.whole(sched.get("max_t"), 1), most))
		if to == training.ASHA {
			s.option("variant", "stopping") // Ray's stops at a rung, it does not promote
		}
		if t := sched.get("time_attr"); !t.null() && t.text() != "training_iteration" {
			s.warn(t.path, "%s: epochs are what is counted here", t.text())
		}
	case "median_stopping_rule", "medianstopping", "medianstoppingrule":
		s.stop = []setting{{"policy", training.Median}}
		if text := s.whole(sched.get("min_samples_required"), 0); text != "" {
			s.stop = append(s.stop, setting{"es_min", text})
		}
	case "pbt", "populationbasedtraining":
		s.optimizer = "pbt"
		s.option("interval", s.whole(sched.get("perturbation_interval"), 1))
		s.option("quantile", s.real(sched.get("quantile_fraction")))
		s.option("resample", s.real(sched.get("resample_probability")))
	case "fifo", "":
	default:
		s.warn(sched.path, "scheduler %q has no counterpart, left out", name.text())
	}
}
