package convert

import (
	"strings"

	"github.com/gohops/hops/training"
)

// cloudML reads trainingInput.hyperparameters of AI Platform Training, HyperparameterSpec of its REST reference.
func (s *study) cloudML(n *node) {
	input := n
	if n.has("trainingInput") {
		input = n.get("trainingInput")
	}
	h := input
	if input.has("hyperparameters") {
		h = input.get("hyperparameters")
	}
	if id := n.get("jobId"); !id.null() {
		s.name = id.text()
	}
	s.goal(h.get("goal"))
	s.metric = h.get("hyperparameterMetricTag").text()
	if s.metric == "" {
		s.metric = "training/hptuning/metric" // its default
	}
	s.trials = s.whole(h.get("maxTrials"), 1)
	s.executors = s.whole(h.get("maxParallelTrials"), 1)
	switch a := h.get("algorithm"); a.text() {
	case "GRID_SEARCH":
		s.optimizer = training.Grid
	case "RANDOM_SEARCH":
		s.optimizer = training.Random
	case "", "ALGORITHM_UNSPECIFIED":
		s.optimizer = "gp" // Bayesian optimization
	default:
		s.warn(a.path, "unknown algorithm %q: gp is written", a.text())
		s.optimizer = "gp"
	}
	if h.get("enableTrialEarlyStopping").text() == "true" {
		s.stop = []setting{{"policy", training.Median}}
	}
	if limit := input.fields["scheduling"]; limit.has("maxRunningTime") {
		s.timeout = s.protoSeconds(input.get("scheduling").get("maxRunningTime"))
	}
	params := h.get("params")
	if params == nil {
		return
	}
	for _, p := range params.items {
		x := parameter{name: p.get("parameterName").text()}
		scale := p.get("scaleType").text()
		switch kind := p.get("type"); strings.ToUpper(kind.text()) {
		case "DOUBLE", "INTEGER":
			x.kind = training.Type(strings.ToUpper(kind.text()))
			x.min, _ = p.get("minValue").number()
			x.max, _ = p.get("maxValue").number()
			s.scale(p, &x, scale)
		case "DISCRETE":
			x.kind, x.values = training.Discrete, s.values(p.get("discreteValues"), true)
			if scale != "" && scale != "UNIT_LINEAR_SCALE" && scale != "NONE" {
				s.warn(p.path, "parameter %s: a list has no scale, %s is left out", x.name, scale)
			}
		case "CATEGORICAL":
			x.kind, x.values = training.Categorical, s.values(p.get("categoricalValues"), false)
		default:
			s.warn(p.path, "parameter %s is of the unknown type %q, left out", x.name, kind.text())
			p.taken()
			continue
		}
		s.add(p, x)
	}
}

// scale reads scaleType.
func (s *study) scale(n *node, p *parameter, scale string) {
	switch scale {
	case "", "NONE", "SCALE_TYPE_UNSPECIFIED", "UNIT_LINEAR_SCALE":
	case "UNIT_LOG_SCALE":
		p.log = true
	case "UNIT_REVERSE_LOG_SCALE":
		s.warn(n.path, "parameter %s: there is no reversed logarithmic scale: it is linear", p.name)
	default:
		s.warn(n.path, "parameter %s: unknown scale %q: it is linear", p.name, scale)
	}
}

// protoSeconds reads a duration of Google's APIs, "3600s".
func (s *study) protoSeconds(n *node) string {
	text := n.text()
	if !strings.HasSuffix(text, "s") || strings.Trim(text[:len(text)-1], "0123456789.") != "" || len(text) < 2 {
		s.warn(n.path, "%q is no time like 3600s, left out", text)
		return ""
	}
	return text
}

// vizier reads a StudySpec, or a HyperparameterTuningJob of Vertex AI that holds one.
func (s *study) vizier(n *node) {
	spec := n
	for _, name := range []string{"studySpec", "study_spec"} {
		if n.has(name) {
			spec = n.get(name)
		}
	}
	s.name = n.get("displayName").text()
	s.trials = s.whole(n.get("maxTrialCount"), 1)
	s.executors = s.whole(n.get("parallelTrialCount"), 1)
	if metrics := spec.get("metrics"); metrics != nil {
		for i, m := range metrics.items {
			id := m.get("metricId").text()
			before := s.direction
			s.goal(m.get("goal"))
			s.objectives = append(s.objectives, setting{id, string(s.direction)})
			if i == 0 {
				s.metric = id
			} else {
				s.direction = before
			}
		}
	}
	switch a := spec.get("algorithm"); a.text() {
	case "GRID_SEARCH":
		s.optimizer = training.Grid
	case "RANDOM_SEARCH":
		s.optimizer = training.Random
	case "", "ALGORITHM_UNSPECIFIED", "GAUSSIAN_PROCESS_BANDIT", "DEFAULT":
		s.optimizer = "gp"
	case "QUASI_RANDOM_SEARCH":
		s.optimizer = "sobol"
	case "CMA_ES":
		s.optimizer = "cmaes"
	default:
		s.warn(a.path, "%s is not there: gp is written", a.text())
		s.optimizer = "gp"
	}
	for _, name := range []string{"medianAutomatedStoppingSpec", "medianAutomatedStoppingConfig"} {
		if spec.has(name) {
			spec.get(name)
			s.stop = []setting{{"policy", training.Median}}
		}
	}
	if params := spec.get("parameters"); params != nil {
		for _, p := range params.items {
			s.vizierParameter(p, nil)
		}
	}
}

// vizierParameter reads a parameter and those that hang on its values.
func (s *study) vizierParameter(p *node, when *training.Condition) {
	x := parameter{name: p.get("parameterId").text(), when: when}
	switch {
	case p.has("doubleValueSpec"), p.has("integerValueSpec"):
		v := p.get("doubleValueSpec")
		if x.kind = training.Double; v == nil {
			v, x.kind = p.get("integerValueSpec"), training.Integer
		}
		x.min, _ = v.get("minValue").number()
		x.max, _ = v.get("maxValue").number()
	case p.has("discreteValueSpec"):
		x.kind, x.values = training.Discrete, s.values(p.get("discreteValueSpec").get("values"), true)
	case p.has("categoricalValueSpec"):
		x.kind, x.values = training.Categorical, s.values(p.get("categoricalValueSpec").get("values"), false)
	default:
		s.warn(p.path, "parameter %s has no doubleValueSpec, integerValueSpec, discreteValueSpec or categoricalValueSpec, left out", x.name)
		p.taken()
		return
	}
	s.scale(p, &x, p.get("scaleType").text())
	if len(x.values) > 0 {
		x.log = false
	}
	before := len(s.space)
	s.add(p, x)
	below := p.fields["conditionalParameterSpecs"]
	if below == nil || len(below.items) == 0 {
		return
	}
	if len(s.space) == before || len(s.space[before].values) == 0 {
		below.taken()
		s.warn(below.path, "parameters that hang on %s are left out: only one with a list of values decides", x.name)
		return
	}
	for _, c := range p.get("conditionalParameterSpecs").items {
		w := &training.Condition{Parameter: s.space[before].name}
		for _, kind := range []string{"parentDiscreteValues", "parentIntValues", "parentCategoricalValues"} {
			if c.has(kind) {
				w.Values = s.values(c.get(kind).get("values"), kind != "parentCategoricalValues")
			}
		}
		child := c.get("parameterSpec")
		if child == nil || len(w.Values) == 0 {
			c.taken()
			s.warn(c.path, "a parameter that hangs on %s names no values of it, or is none: left out", x.name)
			continue
		}
		s.vizierParameter(child, w)
	}
}
