package experiment

import (
	"encoding/json"
	"math"
	"slices"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/search"
)

// Several objectives, and configurations that run several times.

func (x *Experiment) objective(name string) bool {
	return slices.ContainsFunc(x.Spec.Objectives, func(o training.Objective) bool { return o.Metric == name })
}

func (x *Experiment) setValue(t *trial, name string, v float64) {
	if t.Values == nil {
		t.Values = map[string]float64{}
	}
	t.Values[name] = v
}

// returnedValues takes the objectives that the function returned; the first one is its metric.
func (x *Experiment) returnedValues(t *trial) {
	for i, o := range x.Spec.Objectives {
		var m training.Metric
		if i == 0 {
			x.setValue(t, o.Metric, *t.Metric)
		} else if raw, ok := t.Outputs[o.Metric]; ok && json.Unmarshal(raw, &m) == nil && m.Finite() {
			x.setValue(t, o.Metric, m.Value)
		}
	}
}

// values are a trial's, of all objectives; nil where there is one only or some are missing.
func (x *Experiment) values(t *trial) []float64 {
	if len(x.Spec.Objectives) < 2 {
		return nil
	}
	var out []float64
	for _, o := range x.Spec.Objectives {
		v, ok := t.Values[o.Metric]
		if !ok {
			return nil
		}
		out = append(out, v)
	}
	return out
}

// pareto lists the trials that no other outdoes in all objectives.
func (x *Experiment) pareto() []training.TrialID {
	if len(x.Spec.Objectives) < 2 {
		return nil
	}
	var values [][]float64
	var ids []training.TrialID
	for _, t := range x.Trials {
		if v := x.values(t); v != nil && t.Metric != nil && t.State != training.Failed && t.State != training.Invalid {
			values, ids = append(values, v), append(ids, t.ID)
		}
	}
	out := []training.TrialID{}
	for _, i := range search.Front(values, x.Spec.Objectives) {
		out = append(out, ids[i])
	}
	return out
}

// Configuration sums up the runs of one configuration, where each has several.
type Configuration struct {
	Params training.Params    `json:"params"`
	Trials []training.TrialID `json:"trials"`
	// N runs ended with a value. Mean, Std (of the sample) and CI95 (half the width of the 95 % confidence interval of the mean, by
	// Student's t) are of those; absent where they are too few.
	N    int      `json:"n"`
	Mean *float64 `json:"mean,omitempty"`
	Std  *float64 `json:"std,omitempty"`
	CI95 *float64 `json:"ci95,omitempty"`
}

// configurations groups the trials, nil if none is repeated.
func (x *Experiment) configurations() []Configuration {
	k := x.Spec.Repeats
	if k <= 1 {
		return nil
	}
	var out []Configuration
	for i := 0; i < len(x.Trials); i += k {
		c := Configuration{Params: x.Trials[i].Params}
		var values []float64
		for _, t := range x.Trials[i:min(i+k, len(x.Trials))] {
			c.Trials = append(c.Trials, t.ID)
			if t.Metric != nil && t.State != training.Failed && t.State != training.Invalid {
				values = append(values, *t.Metric)
			}
		}
		c.N = len(values)
		if c.N > 0 {
			mean, squares := 0.0, 0.0
			for _, v := range values {
				mean += v / float64(c.N)
			}
			c.Mean = &mean
			for _, v := range values {
				squares += (v - mean) * (v - mean)
			}
			if c.N > 1 {
				std := math.Sqrt(squares / float64(c.N-1))
				c.Std, c.CI95 = &std, new(studentT(c.N-1)*std/math.Sqrt(float64(c.N)))
			}
		}
		out = append(out, c)
	}
	return out
}

// studentT is the 97.5 % quantile of Student's distribution with so many degrees of freedom: the usual table, beyond 30 by Hill's
// leading terms (Abramowitz and Stegun, 26.7.5).
func studentT(df int) float64 {
	table := []float64{
		12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448, 2.1314,
		2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
	}
	if df <= len(table) {
		return table[df-1]
	}
	const z = 1.959964
	n := float64(df)
	return z + (z*z*z+z)/(4*n) + (5*math.Pow(z, 5)+16*z*z*z+3*z)/(96*n*n)
}
