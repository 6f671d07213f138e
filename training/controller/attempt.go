package controller

import (
	"fmt"
	"path"
	"slices"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/checkpoint"
	"github.com/gohops/hops/training/search"
)

// The life of an attempt: assigned, reporting, checkpointing.

// assign gives a trial to an executor.
func (x *experiment) assign(a *assigned) error {
	w := x.executor(a.Executor)
	if w == nil || w.State != executorIdle {
		return fmt.Errorf("executor %s is not idle", a.Executor)
	}
	if a.Suggestion != nil || a.Trial == 0 {
		s, err := x.suggestion(a.Suggestion)
		if err != nil {
			return err
		}
		if !s.Promotion {
			if int(s.Trial) != len(x.Trials)+1 {
				return fmt.Errorf("trial %v is suggested after trial %d", s.Trial, len(x.Trials))
			}
			x.Trials = append(x.Trials, &trial{ID: s.Trial, Params: s.Params, State: training.Pending, Started: x.Now})
		}
		t := x.trial(s.Trial)
		if t == nil {
			return fmt.Errorf("no trial %v", s.Trial)
		}
		a.Trial, a.Attempt, a.Suggestion = t.ID, t.Attempt+1, &s
		t.Budget, t.Last = training.Budget{To: s.Budget, Unit: training.Epoch}, s.Last
		if s.Promotion {
			t.Promotions++
			x.Counters.Promotions++
		}
	} else if i := slices.Index(x.Queue, a.Trial); i >= 0 {
		x.Queue = slices.Delete(x.Queue, i, i+1)
	}
	t := x.trial(a.Trial)
	if t == nil || t.State != training.Pending && t.State != training.Paused || a.Attempt != t.Attempt+1 {
		return fmt.Errorf("trial %v cannot start attempt %d", a.Trial, a.Attempt)
	}
	t.Attempt++
	x.setState(t, training.Scheduled)
	t.Executor, t.Reason, t.Error, t.Outputs = w.ID, "", nil, nil
	t.Seq, t.Step, t.Stopping, t.Resume, t.LogBytes, t.Ended = 0, nil, nil, nil, 0, 0
	t.Assigned, t.Heard = x.Now, x.Now
	x.Counters.Attempts++
	dropped := 0
	if n := len(t.Checks); n > 0 {
		c := t.Checks[n-1]
		t.Resume = &c
		dropped = t.Curve.Cut(c.Step)
		t.Resumed++
		x.Counters.EpochsResumed += t.Curve.Len()
	} else {
		dropped = t.Curve.Len()
		t.Curve = search.Curve{}
	}
	x.Counters.EpochsWasted += dropped
	t.Budget.From = t.Curve.Len()
	x.setExecutor(w, executorBusy, "")
	w.Trial = t.ID
	from := ""
	if t.Resume != nil {
		from = fmt.Sprintf(" from the checkpoint of step %d", t.Resume.Step)
	}
	x.logf("%s starts %v/%d to epoch %d%s %s", w.ID, t.ID, t.Attempt, t.Budget.To, from, t.Params.Key())
	x.touch(t)
	x.emit(EventExecutor, x.executorRow(w))
	return nil
}

// suggestion is what the optimizer suggests now; one that was written down is adopted.
func (x *experiment) suggestion(old *search.Suggestion) (search.Suggestion, error) {
	if old != nil && !x.compare {
		x.optimizer.Adopt(*old)
		return *old, nil
	}
	s, verdict := x.optimizer.Next()
	switch {
	case verdict != search.Suggest:
		return s, fmt.Errorf("the optimizer suggests nothing")
	case old != nil && (s.Trial != old.Trial || s.Budget != old.Budget || s.Params.Key() != old.Params.Key()):
		return s, fmt.Errorf("the optimizer suggests trial %v to epoch %d with %s where it suggested %v to %d with %s",
			s.Trial, s.Budget, s.Params.Key(), old.Trial, old.Budget, old.Params.Key())
	}
	return s, nil
}

// reported takes new events of the attempt that runs.
func (x *experiment) reported(r *reported) error {
	t := x.trial(r.Trial)
	if t == nil || t.Attempt != r.Attempt || !t.State.Held() {
		return fmt.Errorf("trial %v/%d does not run", r.Trial, r.Attempt)
	}
	began, before := t.State == training.Scheduled, t.Stopping
	x.setState(t, training.Running)
	t.Heard, t.LogBytes = x.Now, max(t.LogBytes, r.LogBytes)
	var points []CurvePoint
	for _, e := range r.Events {
		t.Seq = e.Seq
		if t.Stopping == nil || t.Stopping.Error == nil {
			if p, ok := x.point(t, e); ok {
				points = append(points, p)
			}
		}
	}
	if len(points) > 0 {
		x.Worked, x.Early, x.EarlyType = true, nil, ""
		x.emit(EventReport, Reports{t.ID, t.Attempt, points})
	}
	if began || t.Stopping != before {
		x.touch(t)
	}
	return nil
}

// point takes one event; ok is false if it has no value of the searched metric.
func (x *experiment) point(t *trial, e MetricEvent) (p CurvePoint, ok bool) {
	if t.Step != nil && e.Step < *t.Step {
		x.mistake(t, training.CodeBackwards, fmt.Sprintf("step %d was reported after step %d", e.Step, *t.Step), "report rising steps, or none to have them counted")
		return p, false
	}
	first, again := t.Step == nil, t.Step != nil && e.Step == *t.Step
	t.Step = new(e.Step)
	names := make([]string, 0, len(e.Metrics))
	for name := range e.Metrics {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		m := e.Metrics[name]
		if m.Text != "" {
			x.mistake(t, training.CodeNotNumber, fmt.Sprintf("%s is %s at step %d", name, m, e.Step), "report a number")
			return p, false
		}
		if name == x.spec.Metric && !m.Finite() {
			x.mistake(t, training.CodeNotFinite, fmt.Sprintf("%s is %s at step %d", name, m, e.Step), "lower the learning rate or return early, the same parameters are not tried again")
			return p, false
		}
	}
	m, ok := e.Metrics[x.spec.Metric]
	if !ok {
		return p, false
	}
	dropped := t.Curve.Put(e.Step, m.Value)
	if !again {
		x.Counters.Epochs++
		x.Counters.EpochsWasted += dropped
		if first && t.Resume != nil {
			x.Counters.EpochsResumed -= dropped // the function did not use its checkpoint
		}
	}
	x.optimizer.Observe(search.Event{Kind: search.Reported, Trial: t.ID, Epochs: t.Curve.Len(), Value: m.Value})
	if t.Stopping == nil {
		x.judge(t)
	}
	return CurvePoint{e.Step, m.Value}, true
}

// judge decides whether a trial that reported goes on.
func (x *experiment) judge(t *trial) {
	if to := t.Budget.To; to > 0 && t.Curve.Len() > to {
		// The function does not know its budget, or it would have returned.
		if t.Last {
			t.Stopping = &stopping{Op: OpStop, State: training.Completed, Reason: fmt.Sprintf("budget of %d epochs", to), Since: x.Now}
		} else {
			t.Stopping = &stopping{Op: OpPause, State: training.Paused, Reason: fmt.Sprintf("rung of %d epochs", to), Since: x.Now}
		}
		return
	}
	if d := x.stopper.Check(search.TrialView{Trial: t.ID, Curve: &t.Curve}, x.finished, x.spec.Direction); d.Stop {
		t.Stopping = &stopping{Op: OpStop, State: training.Stopped, Reason: d.Reason, Since: x.Now, Early: true}
		x.logf("%v/%d is stopped: %s", t.ID, t.Attempt, d.Reason)
	}
}

// mistake ends an attempt because of what the function did; trying again would not help.
func (x *experiment) mistake(t *trial, code, message, remedy string) {
	err := &training.TrialError{Type: code, Message: message, Remedy: remedy, Log: x.logPath(t)}
	t.Stopping = &stopping{Op: OpStop, State: training.Failed, Error: err, Reason: err.Error(), Since: x.Now}
}

func (x *experiment) committed(c *committed) error {
	t := x.trial(c.Trial)
	if t == nil || t.Attempt != c.Attempt {
		return fmt.Errorf("trial %v/%d does not run", c.Trial, c.Attempt)
	}
	k := training.Checkpoint{Step: c.Step, Attempt: c.Attempt, URI: c.URI, Files: c.Files, Metric: c.Metric, Time: x.Now}
	if k.Metric == nil {
		if n := t.Curve.Until(k.Step); n > 0 {
			_, v := t.Curve.At(n - 1)
			k.Metric = new(training.M(v))
		}
	}
	x.sharedBlobs().Add(k.Files)
	t.Checks = append(t.Checks, k)
	x.Counters.Checkpoints++
	x.emit(EventCheckpoint, CheckpointEvent{t.ID, t.Attempt, k.Step, k.URI})
	x.retain(t)
	return nil
}

// retain drops the checkpoints that are not to be kept, and the blobs that only they had.
func (x *experiment) retain(t *trial) {
	needs := checkpoint.Needs{Others: map[string]bool{}}
	if x.spec.Optimizer.Type == training.ASHA {
		needs.Rungs = x.spec.Optimizer.Rungs()
	}
	for _, w := range x.Executors {
		if o := x.trial(w.Trial); o != nil && o.Resume != nil && o.ID != t.ID {
			needs.Others[o.Resume.URI] = true
		}
	}
	keep := checkpoint.Keep(*x.spec.Retention, t.Checks, x.spec.Direction, needs)
	var kept []training.Checkpoint
	for i, c := range t.Checks {
		if keep[i] {
			kept = append(kept, c)
		} else {
			x.out.deletes = append(x.out.deletes, c.URI)
			for _, name := range x.sharedBlobs().Drop(c.Files) {
				x.out.deletes = append(x.out.deletes, checkpoint.BlobPath(x.blobsDir(), name))
			}
		}
	}
	t.Checks = kept
}

// sharedBlobs counts the blobs of all checkpoints. It follows from the state, so that no snapshot has it.
func (x *experiment) sharedBlobs() *checkpoint.Blobs {
	if x.blobs == nil {
		x.blobs = &checkpoint.Blobs{}
		for _, t := range x.Trials {
			for _, c := range t.Checks {
				x.blobs.Add(c.Files)
			}
		}
	}
	return x.blobs
}

func (x *experiment) blobsDir() string { return path.Join(x.Directory, checkpoint.BlobsName) }
