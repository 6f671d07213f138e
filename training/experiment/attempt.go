package experiment

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/checkpoint"
	"github.com/gohops/hops/training/protocol"
	"github.com/gohops/hops/training/search"
)

// The life of an attempt: assigned, reporting, checkpointing.

// assign gives a trial to the executors of an attempt.
func (x *Experiment) assign(a *assigned) error {
	if len(a.Seats) == 0 {
		return fmt.Errorf("nobody is to run it")
	}
	for i, s := range a.Seats {
		w := x.Executor(s.Executor)
		if w == nil || w.State != executorIdle && w.State != executorBusy || s.Slot < 0 || s.Slot >= len(w.Slots) || w.Slots[s.Slot] != 0 ||
			slices.ContainsFunc(a.Seats[:i], func(o seat) bool { return o.Executor == s.Executor && o.Slot == s.Slot }) {
			return fmt.Errorf("slot %d of executor %s is not free", s.Slot, s.Executor)
		}
		if s.Place == nil && len(a.Seats) > 1 {
			return fmt.Errorf("the %d members of a gang have no places in it", len(a.Seats))
		}
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
		t := x.Trial(s.Trial)
		if t == nil {
			return fmt.Errorf("no trial %v", s.Trial)
		}
		a.Trial, a.Attempt, a.Suggestion = t.ID, t.Attempt+1, &s
		t.Budget, t.Last = training.Budget{To: s.Budget, Unit: training.Epoch}, s.Last
		t.Source, t.Label = s.Source, s.Label
		if s.Promotion {
			if s.Params != nil {
				t.Params = s.Params
			}
			t.Promotions++
			x.Counters.Promotions++
		}
	} else if i := slices.Index(x.Queue, a.Trial); i >= 0 {
		x.Queue = slices.Delete(x.Queue, i, i+1)
	}
	t := x.Trial(a.Trial)
	if t == nil || t.State != training.Pending && t.State != training.Paused || a.Attempt != t.Attempt+1 {
		return fmt.Errorf("trial %v cannot start attempt %d", a.Trial, a.Attempt)
	}
	t.Attempt++
	x.setState(t, training.Scheduled)
	t.Reason, t.Error, t.Outputs = "", nil, nil
	t.Stopping, t.Resume, t.Returned, t.Ended, t.Left = nil, nil, nil, 0, 0
	t.Assigned, t.Heard, t.Whole = x.Now, x.Now, 0
	x.Counters.Attempts++
	dropped := 0
	t.YieldsTo, t.Borrowed = 0, 0
	if c := x.checkpoint(t); c != nil {
		t.Resume = c
		if from := t.Source; from != nil && from.Trial != t.ID {
			t.Borrowed = from.Trial
		}
		dropped = t.Curve.Cut(c.Step)
		t.Resumed++
		x.Counters.EpochsResumed += t.Curve.Len()
	} else {
		dropped = t.Curve.Len()
		t.Curve = search.Curve{}
	}
	x.Counters.EpochsWasted += dropped
	t.Budget.From = t.Curve.Len()
	t.Members = make([]*member, 0, len(a.Seats))
	var names []string
	for _, s := range a.Seats {
		w := x.Executor(s.Executor)
		m := &member{Executor: w.ID, Slot: s.Slot}
		if s.Place != nil {
			m.Place = new(*s.Place)
		}
		t.Members = append(t.Members, m)
		if w.State == executorIdle {
			x.setExecutor(w, executorBusy, "")
		}
		w.Slots[s.Slot] = t.ID
		names = append(names, w.ID)
	}
	if len(names) > 1 {
		x.out.Wake = true // the others are to ask
	}
	from := ""
	if t.Resume != nil {
		from = fmt.Sprintf(" from the checkpoint of step %d", t.Resume.Step)
	}
	x.logf("%s starts %v/%d to epoch %d%s %s", strings.Join(names, " "), t.ID, t.Attempt, t.Budget.To, from, t.Params.Key())
	x.touch(t)
	for _, m := range t.Members {
		x.emit(protocol.EventExecutor, x.ExecutorRow(x.Executor(m.Executor)))
	}
	return nil
}

// checkpoint is what a new attempt of a trial goes on from, nil if there is none: the newest of its own, or what its suggestion
// names, until there is one of its own that was made after that.
func (x *Experiment) checkpoint(t *trial) *training.Checkpoint {
	if t.Source != nil && t.Source.Trial != t.ID {
		if from := x.Trial(t.Source.Trial); from != nil {
			for _, most := range []int64{t.Source.Step, math.MaxInt64} {
				for _, c := range slices.Backward(from.Checks) {
					if c.Step <= most {
						return &c
					}
				}
			}
		}
	}
	if n := len(t.Checks); n > 0 {
		return new(t.Checks[n-1])
	}
	return nil
}

// suggestion is what the optimizer suggests now; one that was written down is adopted.
func (x *Experiment) suggestion(old *search.Suggestion) (search.Suggestion, error) {
	whole := func(s search.Suggestion) search.Suggestion {
		if s.Params == nil && !s.Promotion {
			s.Params = training.Params{} // JSON has none of it
		}
		return s
	}
	if old != nil && !x.Compare {
		s := whole(*old)
		x.optimizer.Adopt(s)
		return s, nil
	}
	s, verdict := x.optimizer.Next()
	if verdict != search.Suggest {
		return s, fmt.Errorf("the optimizer suggests nothing")
	}
	s = whole(s)
	if old != nil && told(s) != told(whole(*old)) {
		return s, fmt.Errorf("the optimizer suggests %s where it suggested %s", told(s), told(whole(*old)))
	}
	return s, nil
}

// told is all of a suggestion but its label, for people and to be compared.
func told(s search.Suggestion) string {
	what := fmt.Sprintf("trial %v to epoch %d", s.Trial, s.Budget)
	if s.Params != nil {
		what += " with " + s.Params.Key()
	}
	if s.Last {
		what += ", its last"
	}
	if s.Promotion {
		what += ", promoted"
	}
	if s.Source != nil {
		what += fmt.Sprintf(", from trial %v at step %d", s.Source.Trial, s.Source.Step)
	}
	return what
}

// reported takes new events of the attempt that runs.
func (x *Experiment) reported(r *reported) error {
	t := x.Trial(r.Trial)
	if t == nil || t.Attempt != r.Attempt || !t.State.Held() || r.Rank < 0 || r.Rank >= len(t.Members) {
		return fmt.Errorf("trial %v/%d does not run", r.Trial, r.Attempt)
	}
	m := t.Members[r.Rank]
	m.Log = max(m.Log, r.LogBytes)
	if r.Rank > 0 {
		for _, e := range r.Events {
			m.Seq, m.Step = e.Seq, new(e.Step)
		}
		return nil
	}
	began, before := t.State == training.Scheduled, t.Stopping
	x.setState(t, training.Running)
	t.Heard = x.Now
	var points []protocol.CurvePoint
	for _, e := range r.Events {
		m.Seq = e.Seq
		if t.Stopping == nil || t.Stopping.Error == nil {
			p, ok, err := x.point(t, e, r)
			if err != nil {
				return err
			}
			if ok {
				points = append(points, p)
			}
		}
	}
	if len(points) > 0 {
		x.Worked, x.Early, x.EarlyType = true, nil, ""
		x.emit(protocol.EventReport, protocol.Reports{Trial: t.ID, Attempt: t.Attempt, Points: points})
	}
	if began || t.Stopping != before {
		x.touch(t)
	}
	return nil
}

// point takes one event of a report; ok is false if it has no value of the searched metric.
func (x *Experiment) point(t *trial, e protocol.MetricEvent, r *reported) (p protocol.CurvePoint, ok bool, err error) {
	c := t.chief()
	if c.Step != nil && e.Step < *c.Step {
		x.mistake(t, training.CodeBackwards, fmt.Sprintf("step %d was reported after step %d", e.Step, *c.Step), "report rising steps, or none to have them counted")
		return p, false, nil
	}
	first, again := c.Step == nil, c.Step != nil && e.Step == *c.Step
	c.Step = new(e.Step)
	names := make([]string, 0, len(e.Metrics))
	for name := range e.Metrics {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		m := e.Metrics[name]
		if m.Text != "" {
			x.mistake(t, training.CodeNotNumber, fmt.Sprintf("%s is %s at step %d", name, m, e.Step), "report a number")
			return p, false, nil
		}
		if (name == x.Spec.Metric || x.objective(name)) && !m.Finite() {
			x.mistake(t, training.CodeNotFinite, fmt.Sprintf("%s is %s at step %d", name, m, e.Step), "lower the learning rate or return early, the same parameters are not tried again")
			return p, false, nil
		}
	}
	for _, o := range x.Spec.Objectives {
		if m, ok := e.Metrics[o.Metric]; ok {
			x.setValue(t, o.Metric, m.Value)
		}
	}
	m, ok := e.Metrics[x.Spec.Metric]
	if !ok {
		return p, false, nil
	}
	dropped := t.Curve.Put(e.Step, m.Value)
	if !again {
		x.Counters.Epochs++
		x.Counters.EpochsWasted += dropped
		if first && t.Resume != nil {
			x.Counters.EpochsResumed -= dropped // the function did not use its checkpoint
		}
	}
	answer := x.optimizer.Observe(search.Event{Kind: search.Reported, Trial: t.ID, Epochs: t.Curve.Len(), Value: m.Value, Values: x.values(t)})
	x.tell(t, search.Reported, m.Value, x.values(t))
	if t.Stopping == nil {
		err = x.judge(t, e.Seq, answer, r)
		x.check(t)
	}
	return protocol.CurvePoint{Step: e.Step, Value: m.Value}, true, err
}

// judge decides whether a trial that reported goes on. answer is the optimizer's.
func (x *Experiment) judge(t *trial, seq int64, answer search.Answer, r *reported) error {
	if to := t.Budget.To; to > 0 && t.Curve.Len() > to {
		// The function does not know its budget, or it would have returned.
		if t.Last {
			t.Stopping = &stopping{Op: protocol.OpStop, State: training.Completed, Reason: fmt.Sprintf("budget of %d epochs", to), Since: x.Now}
		} else {
			t.Stopping = &stopping{Op: protocol.OpPause, State: training.Paused, Reason: fmt.Sprintf("rung of %d epochs", to), Since: x.Now}
		}
		return nil
	}
	var decided *decision
	if x.fresh || x.Compare {
		decided = x.decide(t, seq, answer)
	}
	switch old := r.Decision; {
	case x.fresh:
		if decided == nil {
			return nil
		}
		r.Decision = decided
	case old == nil || old.Seq != seq:
		if decided != nil {
			return fmt.Errorf("the search decides to %s trial %v at event %d, where it let it go on: %s", decided.Op, t.ID, seq, decided.Reason)
		}
		return nil
	case x.Compare && (decided == nil || decided.Op != old.Op):
		return fmt.Errorf("the search lets trial %v go on at event %d, where it decided to %s it: %s", t.ID, seq, old.Op, old.Reason)
	}
	d := r.Decision
	t.Stopping = &stopping{Op: d.Op, State: training.Stopped, Reason: d.Reason, Since: x.Now, Early: true, Epochs: t.Curve.Len()}
	if d.Op == protocol.OpPause {
		t.Stopping.State, t.Stopping.Early = training.Paused, false
	}
	x.logf("%v/%d is told to %s: %s", t.ID, t.Attempt, d.Op, d.Reason)
	return nil
}

// decide is what the search and its stopper make of a trial that reported; nil: it goes on.
func (x *Experiment) decide(t *trial, seq int64, answer search.Answer) *decision {
	switch answer.Op {
	case search.Stop:
		return &decision{seq, protocol.OpStop, answer.Reason}
	case search.Pause:
		return &decision{seq, protocol.OpPause, answer.Reason}
	}
	if d := x.stopper.Check(search.TrialView{Trial: t.ID, Curve: &t.Curve}, x.finished, x.Spec.Direction); d.Stop {
		return &decision{seq, protocol.OpStop, d.Reason}
	}
	return nil
}

// mistake ends an attempt because of what the function did; trying again would not help.
func (x *Experiment) mistake(t *trial, code, message, remedy string) {
	err := &training.TrialError{Type: code, Message: message, Remedy: remedy, Log: x.log(t, 0)}
	t.Stopping = &stopping{Op: protocol.OpStop, State: training.Failed, Error: err, Reason: err.Error(), Since: x.Now}
}

func (x *Experiment) committed(c *committed) error {
	t := x.Trial(c.Trial)
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
	t.Checks, t.Source = append(t.Checks, k), nil
	x.Counters.Checkpoints++
	x.emit(protocol.EventCheckpoint, protocol.CheckpointEvent{Trial: t.ID, Attempt: t.Attempt, Step: k.Step, URI: k.URI})
	x.retain(t)
	if t.State.Held() {
		x.yield(t)
	}
	if t.State.Held() && x.grows(t) {
		x.again(t, "more executors are free for its gang")
	}
	return nil
}

// retain drops the checkpoints that are not to be kept, and the blobs that only they had.
func (x *Experiment) retain(t *trial) {
	if len(t.Checks) == 0 {
		return
	}
	needs := checkpoint.Needs{Others: x.pinned()}
	switch x.Spec.Optimizer.Type {
	case training.ASHA, training.Hyperband, training.BOHB:
		needs.Rungs = x.Spec.Optimizer.Rungs()
	case training.PBT:
		newest := slices.MaxFunc(t.Checks, func(a, b training.Checkpoint) int { return cmp.Compare(a.Step, b.Step) }).Step
		for budget := x.behind(); budget < x.Spec.MaxEpochs && int64(budget) <= newest; budget += x.Spec.Optimizer.Interval {
			needs.Copies = append(needs.Copies, budget)
		}
	}
	keep := checkpoint.Keep(*x.Spec.Retention, t.Checks, x.Spec.Direction, needs)
	var kept []training.Checkpoint
	for i, c := range t.Checks {
		if keep[i] {
			kept = append(kept, c)
		} else {
			x.out.Deletes = append(x.out.Deletes, c.URI)
			for _, name := range x.sharedBlobs().Drop(c.Files) {
				x.out.Deletes = append(x.out.Deletes, checkpoint.BlobPath(x.BlobsDir(), name))
			}
		}
	}
	t.Checks = kept
}

// behind is the least budget at which a member of a population may yet be compared with the others.
func (x *Experiment) behind() int {
	if len(x.Trials) < x.Spec.Optimizer.Population {
		return min(x.Spec.Optimizer.Interval, x.Spec.MaxEpochs)
	}
	least := x.Spec.MaxEpochs
	for _, t := range x.Trials {
		if !t.State.Final() {
			least = min(least, t.Budget.To)
		}
	}
	return least
}

// sharedBlobs counts the blobs of all checkpoints. It follows from the state, so that no snapshot has it.
func (x *Experiment) sharedBlobs() *checkpoint.Blobs {
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

// BlobsDir is where checkpoints share files.
func (x *Experiment) BlobsDir() string { return path.Join(x.Directory, checkpoint.BlobsName) }
