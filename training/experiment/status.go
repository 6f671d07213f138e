package experiment

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// What people see of the experiment: rows, summaries and the files written from them.

func (x *Experiment) Row(t *trial, curve bool) protocol.TrialStatus {
	r := protocol.TrialStatus{
		Trial: t.ID, State: t.State, Params: t.Params, Label: t.Label, Attempt: t.Attempt, Failures: t.Failures, Epochs: t.Curve.Len(),
		Metric: t.Metric, Budget: t.Budget, Promoted: t.Promotions, Resumed: t.Resumed, Executor: t.executor(),
		Reason: t.Reason, Error: t.Error, Dir: path.Join(x.Directory, t.ID.String()), Started: t.Started, Ended: t.Ended,
	}
	if t.Attempt > 0 {
		r.Log = x.log(t, 0)
	}
	if w := x.Executor(t.executor()); w != nil {
		r.Host = w.Host
	}
	if len(t.Members) > 1 {
		for rank, m := range t.Members {
			row := protocol.MemberStatus{Rank: rank, Role: m.Place.Role, Executor: m.Executor, Joined: m.Joined, Done: m.Done, Events: m.Seq, Step: m.Step, Log: x.log(t, rank), LogBytes: m.Log}
			if w := x.Executor(m.Executor); w != nil {
				row.Host, row.GPUs = w.Host, w.GPUs
			}
			r.Members = append(r.Members, row)
		}
	}
	if s := t.Stopping; s != nil {
		r.Reason, r.Error = "stopping: "+s.Reason, s.Error
	}
	for i := 0; curve && i < t.Curve.Len(); i++ {
		step, v := t.Curve.At(i)
		r.Curve = append(r.Curve, protocol.CurvePoint{Step: step, Value: v})
	}
	if _, v, ok := t.Curve.Last(); ok && (t.State.Held() || t.Metric == nil) {
		r.Metric = new(v)
	}
	if v := x.values(t); v != nil {
		r.Values = v
	}
	for _, c := range t.Checks {
		r.Steps = append(r.Steps, c.Step)
	}
	return r
}

func (x *Experiment) ExecutorRow(w *Executor) protocol.ExecutorStatus {
	r := protocol.ExecutorStatus{Executor: w.ID, Container: w.Container, Node: w.Node, Host: w.Host, GPUs: w.GPUs, State: w.State, Reason: w.Reason, Trials: w.Ended}
	var held []string
	for _, id := range w.Slots {
		if t := x.Trial(id); t != nil {
			held = append(held, fmt.Sprintf("%v/%d", t.ID, t.Attempt))
		}
	}
	r.Trial = strings.Join(held, " ")
	return r
}

// BestSoFar is the best trial with a final value; before there is one, the best of those that reported.
func (x *Experiment) BestSoFar() *protocol.BestTrial {
	t := x.Trial(x.Best)
	value := 0.0
	if t != nil && t.Metric != nil {
		value = *t.Metric
	} else {
		t = nil
		for _, c := range x.Trials {
			if _, v, ok := c.Curve.Last(); ok && c.State.Held() && (t == nil || x.Spec.Direction.Better(v, value)) {
				t, value = c, v
			}
		}
	}
	if t == nil {
		return nil
	}
	b := &protocol.BestTrial{Trial: t.ID, Metric: value, Params: t.Params, Epochs: t.Curve.Len(), Dir: path.Join(x.Directory, t.ID.String())}
	if n := len(t.Checks); n > 0 {
		b.Checkpoint = t.Checks[n-1].URI
	}
	return b
}

// counters are the stored ones with the running states of the executors added.
func (x *Experiment) counters(now training.Millis) protocol.Counters {
	c := x.Counters
	for _, w := range x.Executors {
		switch d := max(int64(now-w.Since), 0); {
		case w.Holds() > 0:
			c.BusyMS += d
		case w.State == executorIdle:
			c.IdleMS += d
		}
	}
	return c
}

// Progress is the share of the configurations that need no more work.
func (x *Experiment) Progress() float32 {
	return float32(x.Concluded) / float32(max(x.optimizer.Planned(), 1))
}

// Summary is the experiment without its tables. Its size does not depend on the number of trials.
func (x *Experiment) Summary() protocol.ExperimentSummary {
	return protocol.ExperimentSummary{
		ID: x.ID, Name: x.Spec.Name, State: x.State, Reason: x.Reason, Metric: x.Spec.Metric, Planned: x.optimizer.Planned(), Ended: x.Concluded,
		Started: x.Created, Finished: x.Done, Best: x.BestSoFar(), Counters: x.counters(x.Now),
	}
}

// Status is the whole experiment.
func (x *Experiment) Status(now training.Millis, curves bool) protocol.ExperimentStatus {
	s := protocol.ExperimentStatus{
		ID: x.ID, Name: x.Spec.Name, Project: x.Spec.Project, User: x.User, Application: x.Application, State: x.State, Reason: x.Reason,
		Directory: x.Directory, Optimizer: x.Spec.Optimizer.Type, Metric: x.Spec.Metric, Direction: x.Spec.Direction,
		Seed: x.Spec.RandomSeed(), Started: x.Created, Finished: x.Done, ControllerAttempt: x.Attempt, Event: x.N, Planned: x.optimizer.Planned(),
		Trials: make([]protocol.TrialStatus, 0, len(x.Trials)), Best: x.BestSoFar(), Executors: make([]protocol.ExecutorStatus, 0, len(x.Executors)), Counters: x.counters(now),
	}
	for _, t := range x.Trials {
		s.Trials = append(s.Trials, x.Row(t, curves))
	}
	for _, w := range x.Executors {
		s.Executors = append(s.Executors, x.ExecutorRow(w))
	}
	return s
}

// Result is result.json: Maggy's result dict, and what a table of the search needs. The values are nil if no trial ended
// with one.
type Result struct {
	BestID       *training.TrialID          `json:"best_id"`
	BestValue    *float64                   `json:"best_val"`
	BestConfig   training.Params            `json:"best_config"`
	BestDir      string                     `json:"best_dir,omitempty"`
	BestOutputs  map[string]json.RawMessage `json:"best_outputs,omitempty"`
	WorstID      *training.TrialID          `json:"worst_id"`
	WorstValue   *float64                   `json:"worst_val"`
	WorstConfig  training.Params            `json:"worst_config"`
	Average      *float64                   `json:"avg"`
	Metrics      []float64                  `json:"metric_list"`
	NumTrials    int                        `json:"num_trials"`
	EarlyStopped int                        `json:"early_stopped"`
	NumEpochs    int                        `json:"num_epochs"`
	TrialID      *training.TrialID          `json:"trial_id"` // the best one again, as in Maggy

	ID         string                 `json:"id"`
	State      string                 `json:"state"`
	Reason     string                 `json:"reason,omitempty"`
	Direction  training.Direction     `json:"direction"`
	Metric     string                 `json:"metric"`
	DurationMS int64                  `json:"duration_ms"`
	Counters   protocol.Counters      `json:"counters"`
	Trials     []protocol.TrialStatus `json:"trials"`
	// Pareto are the trials that no other outdoes in all of several objectives.
	Pareto []training.TrialID `json:"pareto,omitempty"`
	// Configurations, where each runs several times. The best is then the one with the best mean, and BestValue that mean.
	Configurations []Configuration `json:"configurations,omitempty"`
}

// Result sums up an experiment that is over.
func (x *Experiment) Result() Result {
	r := Result{
		BestConfig: training.Params{}, WorstConfig: training.Params{}, Metrics: []float64{}, NumTrials: len(x.Trials),
		EarlyStopped: x.Counters.EarlyStopped, NumEpochs: x.Counters.Epochs, ID: x.ID, State: x.State, Reason: x.Reason,
		Direction: x.Spec.Direction, Metric: x.Spec.Metric, DurationMS: int64(x.Done - x.Created), Counters: x.counters(x.Now),
		Trials: make([]protocol.TrialStatus, 0, len(x.Trials)),
	}
	sum := 0.0
	for _, t := range x.Trials {
		r.Trials = append(r.Trials, x.Row(t, false))
		if t.Metric == nil || t.State == training.Failed || t.State == training.Invalid {
			continue
		}
		v := *t.Metric
		sum += v
		r.Metrics = append(r.Metrics, v)
		if r.WorstValue == nil || x.Spec.Direction.Better(*r.WorstValue, v) {
			r.WorstID, r.WorstValue, r.WorstConfig = new(t.ID), new(v), t.Params
		}
	}
	if n := len(r.Metrics); n > 0 {
		r.Average = new(sum / float64(n))
	}
	if b := x.Trial(x.Best); b != nil && b.Metric != nil {
		r.BestID, r.BestValue, r.BestConfig, r.TrialID = new(b.ID), new(*b.Metric), b.Params, new(b.ID)
		r.BestDir, r.BestOutputs = path.Join(x.Directory, b.ID.String()), b.Outputs
	} else if len(x.Trials) == 1 { // a single run that returned no metric
		t := x.Trials[0]
		r.BestDir, r.BestOutputs, r.BestConfig = path.Join(x.Directory, t.ID.String()), t.Outputs, t.Params
	}
	r.Pareto, r.Configurations = x.pareto(), x.configurations()
	var best *Configuration
	for i := range r.Configurations {
		if c := &r.Configurations[i]; c.Mean != nil && (best == nil || x.Spec.Direction.Better(*c.Mean, *best.Mean)) {
			best = c
		}
	}
	if best != nil {
		r.BestValue, r.BestConfig = best.Mean, best.Params
		for _, id := range best.Trials { // the best run of it
			t := x.Trial(id)
			if b := x.Trial(*r.BestID); t.Metric != nil && (!slices.Contains(best.Trials, b.ID) || x.Spec.Direction.Better(*t.Metric, *b.Metric)) {
				r.BestID, r.TrialID, r.BestDir, r.BestOutputs = new(id), new(id), path.Join(x.Directory, id.String()), t.Outputs
			}
		}
	}
	return r
}

// Combinations is .summary.json, as HopsML writes it.
type Combinations struct {
	Combinations []combination `json:"combinations"`
}

type combination struct {
	Parameters training.Params            `json:"parameters"`
	Outputs    map[string]json.RawMessage `json:"outputs"`
}

func (x *Experiment) Combinations() Combinations {
	c := Combinations{Combinations: []combination{}}
	for _, t := range x.Trials {
		c.Combinations = append(c.Combinations, combination{t.Params, x.Outputs(t)})
	}
	return c
}

// Outputs are what the function returned; if that was a bare number, under the metric's name.
func (x *Experiment) Outputs(t *trial) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for k, v := range t.Outputs {
		out[k] = v
	}
	if _, ok := out[x.Spec.Metric]; !ok && t.Metric != nil {
		b, err := json.Marshal(training.M(*t.Metric))
		if err == nil {
			out[x.Spec.Metric] = b
		}
	}
	return out
}

// SnapshotFile is the content of .snapshot.json: the state after entry N, and where in the journal the next one begins.
type SnapshotFile struct {
	Version   int             `json:"version"`
	Offset    int64           `json:"offset"`
	Optimizer json.RawMessage `json:"optimizer"`
	State     state           `json:"state"`
}

// Snapshot encodes the experiment.
func (x *Experiment) Snapshot(offset int64) ([]byte, error) {
	o, err := x.optimizer.Snapshot()
	if err != nil {
		return nil, err
	}
	return json.Marshal(SnapshotFile{Version: Version, Offset: offset, Optimizer: o, State: x.state})
}

// Restore decodes a snapshot.
func Restore(data []byte) (x *Experiment, offset int64, err error) {
	var f SnapshotFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, 0, err
	}
	if f.Version != Version || f.State.Spec == nil || f.State.N < 1 {
		return nil, 0, fmt.Errorf("snapshot of format %d, this program reads %d", f.Version, Version)
	}
	x = New()
	x.state = f.State
	if x.Nodes == nil {
		x.Nodes = map[string]*node{}
	}
	if err := x.prepare(); err != nil {
		return nil, 0, err
	}
	tried := make([]training.Params, len(x.Trials))
	for i, t := range x.Trials {
		tried[i] = t.Params
	}
	if err := x.optimizer.Restore(f.Optimizer, tried); err != nil {
		return nil, 0, err
	}
	for _, id := range x.Compared {
		t := x.Trial(id)
		if t == nil {
			return nil, 0, fmt.Errorf("snapshot names trial %v, which it does not have", id)
		}
		x.finished = append(x.finished, finishedView(t))
	}
	return x, f.Offset, nil
}
