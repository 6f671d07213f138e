package experiment

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
	"github.com/gohops/hops/training/search"
)

// How attempts and trials end, and what follows from it for the trial, the optimizer and the nodes.

// ended takes an executor's word for the end of its attempt.
func (x *Experiment) ended(f *ended) error {
	t := x.Trial(f.Trial)
	if t == nil || t.Attempt != f.Attempt || !t.State.Held() || f.Rank < 0 || f.Rank >= len(t.Members) || t.Members[f.Rank].Done != "" {
		return fmt.Errorf("trial %v/%d does not run", f.Trial, f.Attempt)
	}
	m := t.Members[f.Rank]
	m.Log = max(m.Log, f.LogBytes)
	if f.Rank == 0 {
		t.Outputs = f.Outputs
	}
	switch s := t.Stopping; {
	case x.memberEnds(t, f.Rank, f):
	case !t.State.Held(): // the gang has ended with it
	case s != nil && (s.State != training.Pending || f.Status != training.Completed): // else it had come to its end by itself
		x.carryOut(t, s, f.Metric)
	case f.Status == training.Failed:
		err := f.Error
		if err == nil {
			err = &training.TrialError{Type: training.CodeProcessDied, Message: "the executor did not say why"}
		}
		err.Log = x.log(t, f.Rank)
		x.fail(t, err, x.Executor(m.Executor))
	case f.Status == training.Invalid:
		message := "the function refused its parameters"
		if f.Error != nil && f.Error.Message != "" {
			message = f.Error.Message
		}
		t.Error = &training.TrialError{Type: training.CodeInvalid, Message: message, Log: x.log(t, f.Rank), Remedy: "exclude them from the space"}
		x.conclude(t, training.Invalid, t.Error.Error())
	default:
		x.succeed(t, f.Metric)
	}
	answer := protocol.Finished{State: t.State, Reason: t.Reason}
	if t.State.Held() {
		answer = protocol.Finished{State: training.Running}
	}
	t.Answers = slices.DeleteFunc(t.Answers, func(a finalAnswer) bool { return a.Attempt < t.Attempt })
	t.Answers = append(t.Answers, finalAnswer{t.Attempt, f.Rank, answer})
	return nil
}

// carryOut ends an attempt whose end was decided before.
func (x *Experiment) carryOut(t *trial, s *stopping, metric *training.Metric) {
	switch s.State {
	case training.Pending:
		x.yielded(t, s.Reason)
	case training.Failed:
		x.fail(t, s.Error, x.Executor(t.executor()))
	case training.Stopped:
		if s.Early {
			x.Counters.EarlyStopped++
			x.Compared = append(x.Compared, t.ID)
			x.finished = append(x.finished, finishedView(t))
		}
		if s.End {
			t.Cut = training.Pending
		}
		t.Metric = x.lastValue(t, metric)
		x.conclude(t, training.Stopped, s.Reason)
	default: // its budget is used
		to := s.Epochs
		if to == 0 { // judge saw more epochs than the budget has
			to = t.Budget.To
		}
		_, v := t.Curve.At(min(to, t.Curve.Len()) - 1)
		x.reach(t, v, s.Reason)
	}
}

// lastValue is the metric returned if it is a number, else the last reported.
func (x *Experiment) lastValue(t *trial, metric *training.Metric) *float64 {
	if metric != nil && metric.Finite() {
		return new(metric.Value)
	}
	if _, v, ok := t.Curve.Last(); ok {
		return new(v)
	}
	return nil
}

// succeed ends an attempt whose function returned.
func (x *Experiment) succeed(t *trial, metric *training.Metric) {
	mistake := func(code, message, remedy string) {
		x.mistake(t, code, message, remedy)
		x.fail(t, t.Stopping.Error, nil)
	}
	switch {
	case metric != nil && metric.Text != "":
		mistake(training.CodeNotNumber, fmt.Sprintf("the function returned %s as %s", metric, x.Spec.Metric), "return a number, or a dict with a number under that key")
		return
	case metric != nil && !metric.Finite():
		mistake(training.CodeNotFinite, fmt.Sprintf("the function returned %s as %s", metric, x.Spec.Metric), "the same parameters are not tried again")
		return
	}
	v := x.lastValue(t, metric)
	if v == nil {
		if x.Spec.Optimizer.Type != training.None {
			mistake(training.CodeMissing, fmt.Sprintf("the function neither reported nor returned %q", x.Spec.Metric), "return a number, or a dict with it under that key, or call reporter.broadcast")
			return
		}
		x.Worked = true
		x.conclude(t, training.Completed, "")
		return
	}
	x.reach(t, *v, "")
}

// reach ends an attempt at the end of its budget with a value.
func (x *Experiment) reach(t *trial, v float64, reason string) {
	x.Worked, x.Early, x.EarlyType = true, nil, ""
	t.Metric = &v
	x.returnedValues(t)
	x.differs(t)
	if t.Last {
		x.Compared = append(x.Compared, t.ID)
		x.finished = append(x.finished, finishedView(t))
		x.conclude(t, training.Completed, reason)
		return
	}
	x.setState(t, training.Paused)
	if reason == "" {
		reason = fmt.Sprintf("rung of %d epochs", t.Budget.To)
	}
	t.Reason, t.Ended, t.Stopping = reason, x.Now, nil
	x.observe(t, search.Finished, v)
	x.logf("%v/%d pauses after %d epochs with %s %.6g", t.ID, t.Attempt, t.Curve.Len(), x.Spec.Metric, v)
	if x.Closing() { // as what was paused when the end began
		t.Cut = t.State
		x.conclude(t, training.Stopped, x.stopReason())
		return
	}
	x.touch(t)
}

// differs blames nodes for exceptions after all: the same parameters raised there and went well here.
func (x *Experiment) differs(t *trial) {
	w := x.Executor(t.executor())
	if w == nil {
		return
	}
	for _, name := range t.FailedOn {
		if name != w.Node {
			x.strike(name, t.ID)
		}
	}
	t.FailedOn = nil
}

func finishedView(t *trial) search.TrialView {
	return search.TrialView{Trial: t.ID, Curve: &t.Curve}
}

// conclude ends a trial for good.
func (x *Experiment) conclude(t *trial, s training.State, reason string) {
	x.setState(t, s)
	t.Reason, t.Ended, t.Stopping = reason, x.Now, nil
	value := 0.0
	kind := search.Failed
	switch s {
	case training.Completed:
		kind = search.Finished
	case training.Stopped:
		kind = search.Stopped
	}
	text := ""
	if t.Metric != nil {
		value = *t.Metric
		text = fmt.Sprintf(" with %s %.6g", x.Spec.Metric, value)
	}
	x.observe(t, kind, value)
	if reason != "" {
		text += ": " + reason
	}
	x.logf("%v/%d %s after %d epochs%s", t.ID, t.Attempt, s, t.Curve.Len(), text)
	x.touch(t)
}

// observe tells the optimizer and keeps the best.
func (x *Experiment) observe(t *trial, kind search.Kind, v float64) {
	x.optimizer.Observe(search.Event{Kind: kind, Trial: t.ID, Epochs: t.Curve.Len(), Value: v, Values: x.values(t)})
	x.tell(t, kind, v, x.values(t))
	b := x.Trial(x.Best)
	switch {
	case b == t:
		x.Best = x.findBest() // its own value may have become worse
	case t.Metric == nil || t.State == training.Failed || t.State == training.Invalid:
	case b == nil || x.Spec.Direction.Better(*t.Metric, *b.Metric):
		x.Best = t.ID
	}
}

// findBest looks at all trials with a final value.
func (x *Experiment) findBest() training.TrialID {
	var best *trial
	for _, t := range x.Trials {
		if t.Metric != nil && t.State != training.Failed && t.State != training.Invalid && (best == nil || x.Spec.Direction.Better(*t.Metric, *best.Metric)) {
			best = t
		}
	}
	if best == nil {
		return 0
	}
	return best.ID
}

// fail ends an attempt that went wrong. w is the executor to blame, nil if the function alone is.
func (x *Experiment) fail(t *trial, err *training.TrialError, w *Executor) {
	t.Error = err
	t.Stopping = nil
	x.Counters.Failed++
	if err.Repeats() {
		x.conclude(t, training.Failed, err.Error())
		x.early(t, err)
		return
	}
	t.Failures++
	if w != nil {
		if w.Node != "" && !slices.Contains(t.FailedOn, w.Node) {
			t.FailedOn = append(t.FailedOn, w.Node)
		}
		// An exception says nothing about the machine, as long as the function raises it everywhere: the executor is kept.
		if !err.Exception() {
			x.strike(w.Node, t.ID)
			w.Faults++
			if w.Alive() && (t.chief().Place == nil || w.Faults >= gangFaults) {
				x.drain(w, "excluded after a failure of trial "+t.ID.String())
			}
		}
	}
	switch {
	case len(t.FailedOn) >= invalidNodes && t.chief().Place == nil: // a gang is on many
		x.pardon(t.ID)
		x.conclude(t, training.Invalid, fmt.Sprintf("failed on %d nodes (%s), last: %s", len(t.FailedOn), strings.Join(t.FailedOn, ", "), err.Error()))
	case t.Failures >= x.failuresAllowed():
		x.conclude(t, training.Failed, fmt.Sprintf("failed %d times, last: %s", t.Failures, err.Error()))
	default:
		x.again(t, fmt.Sprintf("%s; attempt %d of %d that may fail", err.Error(), t.Failures, x.failuresAllowed()))
	}
	x.early(t, err)
}

// again puts a trial back into the queue.
func (x *Experiment) again(t *trial, reason string) {
	x.logf("%v/%d ends and waits for another executor: %s", t.ID, t.Attempt, reason)
	if x.Closing() {
		t.Cut = training.Pending
		x.conclude(t, training.Stopped, x.stopReason())
		return
	}
	x.setState(t, training.Pending)
	t.Reason, t.Stopping = reason, nil
	x.Queue = append(x.Queue, t.ID)
	x.touch(t)
}

// early ends the experiment when trials fail alike and nothing ever worked: the function is wrong, not its parameters.
func (x *Experiment) early(t *trial, err *training.TrialError) {
	if x.Worked || x.Closing() {
		return
	}
	if x.EarlyType != err.Type {
		x.Early, x.EarlyType = nil, err.Type
	}
	if !slices.Contains(x.Early, t.ID) {
		x.Early = append(x.Early, t.ID)
	}
	if len(x.Early) >= earlyFailures {
		x.end(protocol.ExperimentFailed, fmt.Sprintf("the first %d trials failed alike and none has reported anything, last trial %v: %s", len(x.Early), t.ID, err.Error()))
	}
}

// strike counts a failure against a node.
func (x *Experiment) strike(name string, id training.TrialID) {
	n := x.Nodes[name]
	if n == nil {
		return
	}
	n.Strikes = slices.DeleteFunc(n.Strikes, func(s strike) bool { return x.Now >= s.At.Add(strikeLife) })
	if id != 0 && slices.ContainsFunc(n.Strikes, func(s strike) bool { return s.Trial == id }) {
		return
	}
	n.Strikes = append(n.Strikes, strike{id, x.Now})
	if len(n.Strikes) < nodeStrikes || n.Excluded > 0 {
		return
	}
	n.Excluded = x.Now.Add(strikeLife)
	x.logf("node %s is excluded after %d failures", name, len(n.Strikes))
	for _, w := range x.Executors {
		if w.Node == name && (w.State == executorIdle || w.State == executorBusy) {
			x.drain(w, "its node is excluded")
		}
	}
}

// pardon takes back the strikes that a bad configuration gave to nodes.
func (x *Experiment) pardon(id training.TrialID) {
	for name, n := range x.Nodes {
		n.Strikes = slices.DeleteFunc(n.Strikes, func(s strike) bool { return s.Trial == id })
		if n.Excluded > 0 && len(n.Strikes) < nodeStrikes {
			n.Excluded = 0
			x.logf("node %s is used again: trial %v fails everywhere", name, id)
		}
	}
}

// avoid has a node give no executors for a while, because nothing was heard of one there: what is asked for to replace it would be given
// where it was, as long as the resource manager does not know that the machine is gone.
func (x *Experiment) avoid(name string) {
	if n := x.Nodes[name]; n != nil {
		n.Silent = x.Now.Add(silentAvoided)
		x.logf("node %s is silent, and gives no executors for %s", name, silentAvoided)
	}
}

// forgive has a node give executors again: because its time is over, or early, because no other gives any.
func (x *Experiment) forgive(name string) {
	n := x.Nodes[name]
	switch {
	case n == nil:
	case x.Now < n.until():
		*n = node{}
		x.logf("node %s is used again: no other gives a container", name)
	case n.until() > 0:
		if n.Excluded > 0 {
			n.Strikes = nil
		}
		n.Excluded, n.Silent = 0, 0
		x.logf("node %s is used again: its time is over", name)
	}
}
