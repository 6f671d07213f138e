package convert

import (
	"strings"

	"github.com/gohops/hops/training"
)

// sageMaker reads HyperParameterTuningJobConfig, or a CreateHyperParameterTuningJob request that holds one.
func (s *study) sageMaker(n *node) {
	c := n
	if n.has("HyperParameterTuningJobConfig") {
		c = n.get("HyperParameterTuningJobConfig")
	}
	s.name = n.get("HyperParameterTuningJobName").text()
	s.optimizer = "gp"
	switch a := c.get("Strategy"); a.text() {
	case "", "Bayesian":
	case "Random":
		s.optimizer = training.Random
	case "Grid":
		s.optimizer = training.Grid
	case "Hyperband": // asynchronous there
		s.optimizer = "hyperband"
		h := c.get("StrategyConfig").get("HyperbandStrategyConfig")
		s.option("r_min", s.whole(h.get("MinResource"), 1))
		s.option("r_max", s.whole(h.get("MaxResource"), 1))
	default:
		s.warn(a.path, "unknown strategy %q: gp is written", a.text())
	}
	if o := c.get("HyperParameterTuningJobObjective"); o != nil {
		s.goal(o.get("Type"))
		s.metric = o.get("MetricName").text()
	}
	if l := c.get("ResourceLimits"); l != nil {
		s.trials = s.whole(l.get("MaxNumberOfTrainingJobs"), 1)
		s.executors = s.whole(l.get("MaxParallelTrainingJobs"), 1)
		s.timeout = s.seconds(l.get("MaxRuntimeInSeconds"))
	}
	s.seed = s.whole(c.get("RandomSeed"), 0)
	switch e := c.get("TrainingJobEarlyStoppingType"); e.text() {
	case "", "Off":
	case "Auto":
		s.stop = []setting{{"policy", training.Median}}
	default:
		s.warn(e.path, "unknown early stopping %q, left out", e.text())
	}
	ranges := c.get("ParameterRanges")
	for _, kind := range []struct {
		key string
		t   training.Type
	}{{"ContinuousParameterRanges", training.Double}, {"IntegerParameterRanges", training.Integer}, {"CategoricalParameterRanges", training.Categorical}} {
		list := ranges.get(kind.key)
		if list == nil {
			continue
		}
		for _, p := range list.items {
			x := parameter{name: p.get("Name").text(), kind: kind.t}
			if kind.t == training.Categorical {
				x.values = s.values(p.get("Values"), false)
				s.add(p, x)
				continue
			}
			x.min, _ = p.get("MinValue").number()
			x.max, _ = p.get("MaxValue").number()
			switch scale := p.get("ScalingType"); scale.text() {
			case "", "Linear":
			case "Logarithmic":
				x.log = true
			case "Auto":
				s.warn(scale.path, "parameter %s: Auto leaves the scale to SageMaker: it is linear", x.name)
			case "ReverseLogarithmic":
				s.warn(scale.path, "parameter %s: there is no reversed logarithmic scale: it is linear", x.name)
			default:
				s.warn(scale.path, "parameter %s: unknown scale %q: it is linear", x.name, scale.text())
			}
			s.add(p, x)
		}
	}
	job := n.get("TrainingJobDefinition")
	if job == nil {
		return
	}
	if static := job.take("StaticHyperParameters"); static.object() {
		for _, k := range static.keys {
			s.argument(static.fields[k], k)
		}
	}
	if stop := job.fields["StoppingCondition"]; stop.has("MaxRuntimeInSeconds") {
		s.trialLimit = s.seconds(job.get("StoppingCondition").get("MaxRuntimeInSeconds"))
	}
}

// argument takes a value that is the same in all trials. SageMaker's are all text: numbers become numbers.
func (s *study) argument(n *node, name string) {
	if !identifier.MatchString(name) {
		clean := strings.NewReplacer("-", "_", ".", "_", " ", "_").Replace(name)
		if !identifier.MatchString(clean) {
			s.warn(n.path, "%q cannot be an argument of a Python function, left out", name)
			return
		}
		s.warn(n.path, "argument %q is called %s", name, clean)
		name = clean
	}
	text := string(n.raw())
	if v, ok := n.number(); ok {
		text = literal(v)
	}
	s.arguments = append(s.arguments, setting{name, text})
}
