package training

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// The optimizers.
const (
	Random    = "random"
	Grid      = "grid"
	Sobol     = "sobol"
	DE        = "differential_evolution"
	ASHA      = "asha"
	Hyperband = "hyperband"
	BOHB      = "bohb"
	TPE       = "tpe"
	GP        = "gp"
	CMAES     = "cmaes"
	PBT       = "pbt"
	None      = "none"
	External  = "external"
)

// Optimizers lists those that this program has, for messages.
var Optimizers = []string{Random, Grid, Sobol, DE, ASHA, Hyperband, BOHB, TPE, GP, CMAES, PBT, None, External}

// optimizerAliases are other names, without their hyphens and underscores: of Maggy, hops-util-py, Ray Tune, Optuna and Katib.
var optimizerAliases = map[string]string{
	"randomsearch": Random, "randomsampler": Random,
	"gridsearch": Grid, "gridsampler": Grid,
	"qmc": Sobol, "qmcsampler": Sobol,
	"de": DE, "differentialevolution": DE,
	"asynchyperband": ASHA, "ashascheduler": ASHA, "asynchyperbandscheduler": ASHA, "successivehalving": ASHA, "asyncsuccessivehalving": ASHA,
	"hyperbandscheduler": Hyperband, "hyperbandforbohb": BOHB, "tunebohb": BOHB,
	"tpesampler": TPE, "multivariatetpe": TPE, "hyperopt": TPE,
	"bayesian": GP, "bayesianoptimization": GP, "bayesopt": GP, "gaussianprocess": GP, "gpsampler": GP,
	"cma": CMAES, "cmaessampler": CMAES,
	"populationbasedtraining": PBT,
	"single":                  None, "singlerun": None,
}

// The variants of ASHA.
const (
	// Promotion: trials pause at the end of a rung; the best go on from their checkpoints.
	Promotion = "promotion"
	// Stopping: trials run on until they are worse than the best 1/eta at the end of a rung.
	Stopping = "stopping"
	// Restart: a promotion is a new trial with the same parameters from the beginning, as in Maggy.
	Restart = "restart"
)

// Optimizer chooses what to try. Each field is an option of some optimizers; options of others are refused.
type Optimizer struct {
	Type string `json:"type"`
	// Eta is the reduction factor of asha, hyperband and bohb: one of eta trials of a rung is promoted. Default 3.
	Eta int `json:"eta,omitempty"`
	// RMin is the budget of the first rung, in epochs. Default 1.
	RMin int `json:"r_min,omitempty"`
	// RMax is the budget of the last rung. Default max_epochs.
	RMax int `json:"r_max,omitempty"`
	// Variant of asha: promotion (default), stopping, restart.
	Variant string `json:"variant,omitempty"`

	// Population is how many configurations a generation has: differential_evolution 6, pbt 10, cmaes 4+3·ln(parameters).
	Population int `json:"population,omitempty"`
	// Generations of differential_evolution, the first random one counted. Default 4.
	Generations int `json:"generations,omitempty"`
	// Mutation is differential_evolution's weight of a difference, 0 < mutation ≤ 2. Default 0.5.
	Mutation *float64 `json:"mutation,omitempty"`
	// Crossover is differential_evolution's probability that a parameter is the mutant's. Default 0.7.
	Crossover *float64 `json:"crossover,omitempty"`

	// Startup is how many configurations tpe, gp and bohb draw at random before their models count. Default 10.
	Startup *int `json:"startup,omitempty"`
	// Candidates is how many configurations tpe and bohb draw from the model to choose one. Default 24.
	Candidates int `json:"candidates,omitempty"`
	// Gamma is the share of trials that tpe and bohb take for good ones, 0 < gamma < 1. Default 0.15.
	Gamma float64 `json:"gamma,omitempty"`
	// Multivariate: tpe and bohb model parameters together. Default true.
	Multivariate *bool `json:"multivariate,omitempty"`
	// Strategy is how gp treats trials that run: impute (default) or thompson.
	Strategy string `json:"strategy,omitempty"`
	// Acquisition of gp: ei (default), pi or lcb.
	Acquisition string `json:"acquisition,omitempty"`
	// Impute is what gp assumes that a trial that runs will find: believer (default), what the model expects of it, or min, max or mean of
	// the losses that are known (less is better: min is the best).
	Impute string `json:"impute,omitempty"`
	// Sigma is the first standard deviation of cmaes as a share of each range. Default 1/6.
	Sigma float64 `json:"sigma,omitempty"`

	// Interval is how many epochs a member of pbt trains before it is compared. Default 1.
	Interval int `json:"interval,omitempty"`
	// Quantile is the share of pbt's members that is replaced by copies of the same share of best ones. Default 0.25.
	Quantile float64 `json:"quantile,omitempty"`
	// Resample is pbt's probability that a parameter of a copy is drawn anew instead of multiplied by 0.8 or 1.2. Default 0.25.
	Resample *float64 `json:"resample,omitempty"`

	// Entry is the class or function of an external optimizer, "module:name"; none: a client suggests, by the calls ask and tell.
	Entry string `json:"entry,omitempty"`
	// Arguments are handed to it by name.
	Arguments map[string]json.RawMessage `json:"arguments,omitempty"`
}

// Halving reports whether the optimizer gives trials budgets that rise by rungs.
func (o Optimizer) Halving() bool { return slices.Contains(halving, o.Type) }

var (
	halving  = []string{ASHA, Hyperband, BOHB}
	modelled = []string{TPE, BOHB}
)

// Rungs are the budgets of the rungs: r_min, r_min·eta, … and at last r_max.
func (o Optimizer) Rungs() []int {
	var out []int
	for r := o.RMin; r > 0 && r < o.RMax && o.Eta > 1; r *= o.Eta {
		out = append(out, r)
	}
	return append(out, o.RMax)
}

// Brackets are how many configurations each of Hyperband's brackets starts with; bracket k begins with the k-th of the rungs.
// One configuration at least reaches the end of each.
func (o Optimizer) Brackets() []int {
	top := len(o.Rungs()) - 1
	out := make([]int, top+1)
	for k := range out {
		// ceil((s_max+1)/(s+1)·eta^s) of Li et al., JMLR 2018, with s = top-k.
		s := top - k
		power := 1
		for range s {
			power *= o.Eta
		}
		out[k] = ((top+1)*power + s) / (s + 1)
	}
	return out
}

// optimizerOption is one key of "optimizer" and whom it belongs to.
type optimizerOption struct {
	name string
	set  bool
	of   []string
}

func (o *Optimizer) options() []optimizerOption {
	return []optimizerOption{
		{"eta", o.Eta != 0, halving},
		{"r_min", o.RMin != 0, halving},
		{"r_max", o.RMax != 0, halving},
		{"variant", o.Variant != "", []string{ASHA}},
		{"population", o.Population != 0, []string{DE, CMAES, PBT}},
		{"generations", o.Generations != 0, []string{DE}},
		{"mutation", o.Mutation != nil, []string{DE}},
		{"crossover", o.Crossover != nil, []string{DE}},
		{"startup", o.Startup != nil, []string{TPE, GP, BOHB}},
		{"candidates", o.Candidates != 0, modelled},
		{"gamma", o.Gamma != 0, modelled},
		{"multivariate", o.Multivariate != nil, modelled},
		{"strategy", o.Strategy != "", []string{GP}},
		{"acquisition", o.Acquisition != "", []string{GP}},
		{"impute", o.Impute != "", []string{GP}},
		{"sigma", o.Sigma != 0, []string{CMAES}},
		{"interval", o.Interval != 0, []string{PBT}},
		{"quantile", o.Quantile != 0, []string{PBT}},
		{"resample", o.Resample != nil, []string{PBT}},
		{"entry", o.Entry != "", []string{External}},
		{"arguments", o.Arguments != nil, []string{External}},
	}
}

// optimizerKeys are the names of options elsewhere.
var optimizerKeys = map[string]string{
	"name": "type", "algorithm": "type",
	"reduction_factor": "eta",
	"resource_min":     "r_min", "min_resource": "r_min", "grace_period": "r_min", "min_budget": "r_min", "min_t": "r_min",
	"resource_max": "r_max", "max_resource": "r_max", "max_t": "r_max", "max_budget": "r_max",
	"population_size": "population", "popsize": "population", "n_population": "population",
	"n_startup_trials": "startup", "num_warmup_trials": "startup", "warmup": "startup",
	"n_ei_candidates": "candidates", "n_samples": "candidates",
	"async_strategy": "strategy", "acq_fun": "acquisition", "impute_strategy": "impute", "sigma0": "sigma",
	"perturbation_interval": "interval", "quantile_fraction": "quantile",
	"resample_probability": "resample",
}

func canonical(name string, aliases map[string]string) string {
	name = strings.ToLower(name)
	if to, ok := aliases[strings.NewReplacer("-", "", "_", "", " ", "").Replace(name)]; ok {
		return to
	}
	return strings.ReplaceAll(name, "-", "_")
}

func defInt(to *int, v int) {
	if *to == 0 {
		*to = v
	}
}

func defFloat(to *float64, v float64) {
	if *to == 0 {
		*to = v
	}
}

func def(to *string, v string) {
	if *to == "" {
		*to = v
	}
}

func defPointer[T any](to **T, v T) {
	if *to == nil {
		*to = &v
	}
}

// setDefaults resolves aliases and writes the defaults of the options that the optimizer has.
func (o *Optimizer) setDefaults(s *Spec) {
	o.Type = canonical(o.Type, optimizerAliases)
	if o.Type == "" {
		o.Type = None
		if len(s.Space) > 0 {
			o.Type = Random
		}
	}
	o.Variant, o.Strategy = strings.ToLower(o.Variant), strings.ToLower(o.Strategy)
	o.Acquisition = strings.ToLower(o.Acquisition)
	o.Impute = strings.TrimPrefix(strings.ToLower(o.Impute), "cl_") // Maggy's "cl_min"
	if o.Impute == "kb" || o.Impute == "kriging_believer" {
		o.Impute = "believer"
	}
	if o.Strategy == "asy_ts" {
		o.Strategy = "thompson"
	}
	if o.Halving() {
		defInt(&o.Eta, 3)
		defInt(&o.RMin, 1)
		defInt(&o.RMax, s.MaxEpochs)
	}
	switch o.Type {
	case ASHA:
		def(&o.Variant, Promotion)
	case DE:
		defInt(&o.Population, 6)
		defInt(&o.Generations, 4)
		defPointer(&o.Mutation, 0.5)
		defPointer(&o.Crossover, 0.7)
	case TPE, BOHB:
		defPointer(&o.Startup, 10)
		defInt(&o.Candidates, 24)
		defFloat(&o.Gamma, 0.15)
		defPointer(&o.Multivariate, true)
	case GP:
		defPointer(&o.Startup, 10)
		def(&o.Strategy, "impute")
		def(&o.Acquisition, "ei")
		if o.Strategy == "impute" {
			def(&o.Impute, "believer")
		}
	case CMAES:
		defInt(&o.Population, 4+int(3*math.Log(float64(max(len(s.Space), 1)))))
		defFloat(&o.Sigma, 1./6)
	case PBT:
		defInt(&o.Population, 10)
		defInt(&o.Interval, 1)
		defFloat(&o.Quantile, 0.25)
		defPointer(&o.Resample, 0.25)
	}
}

// plannedTrials is the number of trials that follows from the other options; ok is false where it is free.
func (o *Optimizer) plannedTrials(s *Spec) (n int, ok bool) {
	switch o.Type {
	case Grid:
		n, finite := s.Space.Size()
		return int(n), finite && n <= MaxTrials
	case None:
		return len(s.Configurations), len(s.Configurations) > 0
	case DE:
		if o.Population > MaxTrials || o.Generations > MaxTrials {
			return 0, false
		}
		return o.Population * o.Generations, true
	case PBT:
		return o.Population, true
	case Hyperband, BOHB: // once through the brackets, unless a number is given
		if s.Trials == 0 && o.Eta > 1 && o.RMin > 0 && o.RMax >= o.RMin {
			for _, b := range o.Brackets() {
				n += b
			}
			return n, true
		}
	}
	return 0, false
}

// Limits of a population that is kept whole in memory.
const (
	maxPopulation = 10_000
	maxSteps      = 10_000
)

func (s *Spec) validateOptimizer(m *Mistakes, spaceOK bool) {
	o := &s.Optimizer
	needsSpace := o.Type != None && o.Type != External
	switch {
	case !slices.Contains(Optimizers, o.Type):
		m.addf("optimizer.type", "unknown optimizer %q%s", o.Type, suggest(o.Type, Optimizers))
		return
	case needsSpace && len(s.Space) == 0:
		m.addf("space", "is empty; %s needs something to search", o.Type)
	}
	for _, f := range o.options() {
		if f.set && !slices.Contains(f.of, o.Type) {
			m.addf("optimizer."+f.name, "is an option of %s, not of %s", strings.Join(f.of, ", "), o.Type)
		}
	}
	if o.Halving() {
		s.validateRungs(m)
	}
	between := func(name string, v, low, high float64, open bool) {
		if math.IsNaN(v) || v < low || v > high || open && (v == low || v == high) {
			m.addf("optimizer."+name, "%s is outside %s … %s", formatMetric(v), formatMetric(low), formatMetric(high))
		}
	}
	oneOf := func(name, v string, words ...string) {
		if !slices.Contains(words, v) {
			m.addf("optimizer."+name, "unknown %s %q%s", name, v, suggest(v, words))
		}
	}
	switch o.Type {
	case Grid:
		for _, p := range s.Space {
			if p.Type == Double {
				m.addf("space."+p.Name, "a grid cannot be laid over a DOUBLE range; list the values as DISCRETE")
			}
		}
		if n, ok := s.Space.Size(); spaceOK && ok && n > MaxTrials {
			m.addf("space", "the grid has %d points, at most %d", n, MaxTrials)
		}
	case ASHA:
		oneOf("variant", o.Variant, Promotion, Stopping, Restart)
	case DE:
		if o.Population < 4 {
			m.addf("optimizer.population", "%d is below 4: a mutant is made of three others", o.Population)
		}
		if o.Generations < 2 {
			m.addf("optimizer.generations", "%d is below 2: the first is random", o.Generations)
		}
		if *o.Mutation == 0 {
			m.addf("optimizer.mutation", "is 0: mutants would be copies")
		}
		between("mutation", *o.Mutation, 0, 2, false)
		between("crossover", *o.Crossover, 0, 1, false)
	case TPE, BOHB:
		if o.Candidates < 1 || o.Candidates > 10_000 {
			m.addf("optimizer.candidates", "%d is outside 1 … 10000", o.Candidates)
		}
		between("gamma", o.Gamma, 0, 1, true)
	case GP:
		oneOf("strategy", o.Strategy, "impute", "thompson")
		oneOf("acquisition", o.Acquisition, "ei", "pi", "lcb")
		if o.Strategy == "impute" {
			oneOf("impute", o.Impute, "min", "max", "mean", "believer")
		} else if o.Impute != "" {
			m.addf("optimizer.impute", "is an option of strategy impute, not of %s", o.Strategy)
		}
	case CMAES:
		if o.Population < 2 || o.Population > maxPopulation {
			m.addf("optimizer.population", "%d is outside 2 … %d", o.Population, maxPopulation)
		}
		between("sigma", o.Sigma, 0, 1, false)
	case PBT:
		if o.Population < 2 || o.Population > maxPopulation {
			m.addf("optimizer.population", "%d is outside 2 … %d: members copy each other", o.Population, maxPopulation)
		}
		switch {
		case o.Interval < 1:
			m.addf("optimizer.interval", "%d is below 1", o.Interval)
		case s.MaxEpochs/o.Interval > maxSteps:
			m.addf("optimizer.interval", "%d makes more than %d steps of %d epochs", o.Interval, maxSteps, s.MaxEpochs)
		}
		between("quantile", o.Quantile, 0, 0.5, false)
		between("resample", *o.Resample, 0, 1, false)
		if s.MaxEpochs == 0 {
			m.addf("max_epochs", "missing: how many epochs each member of pbt trains in all")
		}
	case External:
		switch {
		case o.Entry == "": // the client suggests
		case !entryForm.MatchString(o.Entry):
			m.addf("optimizer.entry", `%q is not "module:name"`, o.Entry)
		}
	}
	if o.Startup != nil && (*o.Startup < 0 || *o.Startup > MaxTrials) {
		m.addf("optimizer.startup", "%d is outside 0 … %d", *o.Startup, MaxTrials)
	}
}

func (s *Spec) validateRungs(m *Mistakes) {
	o := &s.Optimizer
	if o.Eta < 2 {
		m.addf("optimizer.eta", "%d is below 2", o.Eta)
	}
	if o.RMin < 1 {
		m.addf("optimizer.r_min", "%d is below 1", o.RMin)
	}
	switch {
	case o.RMax == 0:
		m.addf("optimizer.r_max", "missing: how many epochs a trial trains that is promoted to the end (or set max_epochs)")
	case o.RMax < o.RMin:
		m.addf("optimizer.r_max", "%d is below r_min %d", o.RMax, o.RMin)
	case o.Eta >= 2 && o.RMin >= 1 && o.Variant != Stopping:
		rungs := o.Rungs()
		if need := math.Pow(float64(o.Eta), float64(len(rungs)-1)); float64(s.Trials) < need {
			m.addf("trials", "%d are too few for one to reach the last of the rungs %v: at least %d (eta^%d), or a smaller r_max", s.Trials, rungs, int64(need), len(rungs)-1)
		}
	}
}

// The early-stopping policies. NoStop is written "none".
const (
	NoStop       = "none"
	Median       = "median"
	Percentile   = "percentile"
	Threshold    = "threshold"
	ExternalStop = "external"
)

// EarlyStop ends trials that do worse than others did.
type EarlyStop struct {
	// Policy is none (default), median, percentile or threshold.
	Policy string `json:"policy"`
	// Min: median and percentile are silent until more than so many trials have completed. Default 10.
	Min *int `json:"es_min,omitempty"`
	// Interval: the rule looks at every so-many-th step. Default 1.
	Interval int `json:"interval,omitempty"`
	// Warmup: the rule looks at no trial before it has reported so many steps. Default 0.
	Warmup int `json:"warmup,omitempty"`
	// Percentile: a trial goes on that is among the best so many percent, 0 < percentile < 100; the median rule's are 50.
	Percentile *float64 `json:"percentile,omitempty"`
	// Threshold: a trial goes on whose best value is at least as good.
	Threshold *float64 `json:"threshold,omitempty"`
	// Entry is the class or function of an external policy, "module:name"; none where the client that suggests decides as well.
	Entry string `json:"entry,omitempty"`
	// Arguments are handed to it by name.
	Arguments map[string]json.RawMessage `json:"arguments,omitempty"`
}

var stopRules = []string{NoStop, Median, Percentile, Threshold, ExternalStop}

var stopAliases = map[string]string{
	"nostop": NoStop, "nop": NoStop, "noppruner": NoStop, "off": NoStop,
	"medianstop": Median, "medianpruner": Median, "medianstoppingrule": Median,
	"percentilepruner": Percentile, "thresholdpruner": Threshold,
}

// stopKeys are the names of its options elsewhere.
var stopKeys = map[string]string{
	"es_policy": "policy", "es_interval": "interval", "interval_steps": "interval",
	"min": "es_min", "min_trials": "es_min", "min_trials_required": "es_min", "min_samples_required": "es_min", "n_startup_trials": "es_min",
	"n_warmup_steps": "warmup", "start_step": "warmup", "grace_period": "warmup",
}

func (e *EarlyStop) setDefaults() {
	def(&e.Policy, NoStop)
	e.Policy = canonical(e.Policy, stopAliases)
	defPointer(&e.Min, 10)
	defInt(&e.Interval, 1)
}

func (s *Spec) validateEarlyStop(m *Mistakes) {
	e := s.EarlyStop
	switch {
	case e.Policy == ExternalStop && e.Entry != "" && !entryForm.MatchString(e.Entry):
		m.addf("early_stop.entry", `%q is not "module:name"`, e.Entry)
	case e.Policy == ExternalStop && e.Entry == "" && (s.Optimizer.Type != External || s.Optimizer.Entry != ""):
		m.addf("early_stop.entry", `missing: the class or function that decides, "module:name"`)
	case !slices.Contains(stopRules, e.Policy):
		m.addf("early_stop.policy", "unknown policy %q%s", e.Policy, suggest(e.Policy, stopRules))
	case e.Policy != NoStop && len(s.Objectives) > 1:
		m.addf("early_stop.policy", "%s compares one metric, and there are %d objectives", e.Policy, len(s.Objectives))
	}
	if e.Min != nil && *e.Min < 0 {
		m.addf("early_stop.es_min", "%d is below 0", *e.Min)
	}
	if e.Interval < 1 {
		m.addf("early_stop.interval", "%d is below 1", e.Interval)
	}
	if e.Warmup < 0 {
		m.addf("early_stop.warmup", "%d is below 0", e.Warmup)
	}
	for _, f := range []struct {
		of   string
		set  bool
		bad  bool
		want string
	}{
		{Percentile, e.Percentile != nil, e.Percentile != nil && !(*e.Percentile > 0 && *e.Percentile < 100), "a number above 0 and below 100"},
		{Threshold, e.Threshold != nil, e.Threshold != nil && (math.IsNaN(*e.Threshold) || math.IsInf(*e.Threshold, 0)), "a number"},
	} {
		switch {
		case f.set && e.Policy != f.of:
			m.addf("early_stop."+f.of, "is an option of %s, not of %s", f.of, e.Policy)
		case !f.set && e.Policy == f.of:
			m.addf("early_stop."+f.of, "missing: policy %s needs it", f.of)
		case f.bad:
			m.addf("early_stop."+f.of, "want %s", f.want)
		}
	}
	if e.Entry != "" && e.Policy != ExternalStop {
		m.addf("early_stop.entry", "is an option of external, not of %s", e.Policy)
	}
}

// Objective is a metric and which of its values are better.
type Objective struct {
	Metric    string    `json:"metric"`
	Direction Direction `json:"direction"`
}

// MaxObjectives bounds how many a search may have.
const MaxObjectives = 8

// severally are the optimizers that take several objectives: they do not compare values, or compare them as wholes.
var severally = []string{Random, Grid, Sobol, TPE, None, External}

// setObjectives keeps metric and direction the first objective's. One objective alone is written as metric and direction.
func (s *Spec) setObjectives() {
	for i := range s.Objectives {
		def((*string)(&s.Objectives[i].Direction), string(Max))
	}
	if len(s.Objectives) > 0 {
		def(&s.Metric, s.Objectives[0].Metric)
		def((*string)(&s.Direction), string(s.Objectives[0].Direction))
	}
	if len(s.Objectives) == 1 && s.Objectives[0] == (Objective{s.Metric, s.Direction}) {
		s.Objectives = nil
	}
}

func (s *Spec) validateObjectives(m *Mistakes) {
	n := len(s.Objectives)
	if n > MaxObjectives {
		m.addf("objectives", "%d of them, at most %d", n, MaxObjectives)
		return
	}
	for i, o := range s.Objectives {
		field := fmt.Sprintf("objectives[%d]", i)
		switch {
		case o.Metric == "":
			m.addf(field+".metric", "missing")
		case len(o.Metric) > MaxMetricName:
			m.addf(field+".metric", "the name has %d bytes, at most %d", len(o.Metric), MaxMetricName)
		case slices.ContainsFunc(s.Objectives[:i], func(p Objective) bool { return p.Metric == o.Metric }):
			m.addf(field+".metric", "%q is there twice", o.Metric)
		}
		if o.Direction != Max && o.Direction != Min {
			m.addf(field+".direction", `%q is neither "max" nor "min"`, o.Direction)
		}
	}
	if n > 0 && s.Objectives[0].Metric != s.Metric {
		m.addf("metric", "%q is not the first of the objectives, %q; leave metric away", s.Metric, s.Objectives[0].Metric)
	}
	if n > 0 && s.Objectives[0].Direction != s.Direction {
		m.addf("direction", "%q is not that of the first objective, %q; leave direction away", s.Direction, s.Objectives[0].Direction)
	}
	if o := s.Optimizer.Type; n > 1 && slices.Contains(Optimizers, o) && !slices.Contains(severally, o) {
		have := slices.DeleteFunc(slices.Clone(severally), func(name string) bool { return !slices.Contains(Optimizers, name) })
		m.addf("optimizer.type", "%s decides by one metric; for %d objectives there are %s", o, n, strings.Join(have, ", "))
	}
}
