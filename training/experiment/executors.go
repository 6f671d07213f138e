package experiment

import (
	"fmt"
	"slices"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// The comings and goings of executors.

// drain tells an executor to end after what it does.
func (x *Experiment) drain(w *Executor, reason string) {
	if !w.Alive() || w.State == ExecutorDraining {
		return
	}
	x.setExecutor(w, ExecutorDraining, reason)
	x.logf("%s drains: %s", w.ID, reason)
	x.out.Wake = true
	x.emit(protocol.EventExecutor, x.ExecutorRow(w))
}

// preempt takes a notice for an executor in, or its withdrawal. What was decided because of the notice holds: a trial that was told to pause
// may have heard that already. It goes first in the queue, and its own executor is free for it.
func (x *Experiment) preempt(p *Preempted) {
	w := x.Executor(p.Executor)
	switch {
	case w == nil:
	case p.Withdrawn:
		w.Preempted = ""
		x.out.Wake = x.out.Wake || x.Open() // who suggests may have waited for it
		x.logf("%s is not preempted after all", w.ID)
	default:
		w.Preempted = p.Reason
		x.logf("%s will be preempted: %s", w.ID, w.Preempted)
	}
}

// setExecutor changes a state and counts the time spent in the old one.
func (x *Experiment) setExecutor(w *Executor, s, reason string) {
	d := int64(x.Now - w.Since)
	switch {
	case w.State == executorBusy || w.State == ExecutorDraining && w.Holds() != 0:
		x.Counters.BusyMS += d
	case w.State == executorIdle:
		x.Counters.IdleMS += d
	}
	w.State, w.Reason, w.Since = s, reason, x.Now
}

// lose takes an executor out.
func (x *Experiment) lose(l *Lost) {
	w := x.Executor(l.Executor)
	if w == nil || !w.Alive() {
		return
	}
	if l.Told {
		x.giveUp(w, executorGone, w.Reason, false)
		return
	}
	x.giveUp(w, executorLost, l.Reason, l.Blame)
	if l.Silent {
		x.avoid(w.Node)
	}
}

// giveUp ends an executor; what it held is done again from the last checkpoint.
func (x *Experiment) giveUp(w *Executor, s, reason string, blame bool) {
	x.setExecutor(w, s, reason)
	x.out.Release = append(x.out.Release, w.Container)
	if s == executorLost {
		x.logf("%s is lost: %s", w.ID, reason)
	}
	held := w.Slots
	w.Slots = make([]training.TrialID, len(held))
	x.emit(protocol.EventExecutor, x.ExecutorRow(w))
	if n := x.Nodes[w.Node]; blame && (n == nil || n.Silent <= x.Now) { // a machine that stands still is one failure, however many it had
		x.strike(w.Node, slices.Max(held)) // once, for the newest of its trials; 0: it had none
	}
	for slot, id := range held {
		if t := x.Trial(id); t != nil {
			w.Ended++
			x.Counters.Lost++
			x.loseMember(t, t.at(w.ID, slot), w, reason, blame)
		}
	}
}

// loseMember ends the attempt whose member was in an executor that is gone.
func (x *Experiment) loseMember(t *trial, rank int, w *Executor, reason string, blame bool) {
	if rank > 0 && t.Stopping != nil || t.chief().Done != "" { // nobody waits for it
		t.Members[rank].Done, t.Left = training.Stopped, x.Now
		x.gangEnds(t, false)
		return
	}
	if d := t.Stopping; d != nil {
		x.carryOut(t, d, nil) // what was decided holds, whoever was to carry it out
		return
	}
	message := fmt.Sprintf("%s on %s: %s", w.ID, w.Host, reason)
	if len(t.Members) > 1 {
		message = fmt.Sprintf("rank %d, %s", rank, message)
	}
	t.Error = &training.TrialError{Type: training.CodeExecutorLost, Message: message, Log: x.log(t, max(rank, 0))}
	if !blame {
		x.again(t, t.Error.Error())
		return
	}
	t.Failures++
	if n := x.failuresAllowed(); t.Failures >= n {
		t.Error.Remedy = "see whether the trial needs more memory than its executor has"
		x.conclude(t, training.Failed, fmt.Sprintf("failed %d times, last: %s", t.Failures, t.Error.Error()))
		x.early(t, t.Error)
		return
	}
	x.again(t, fmt.Sprintf("%s; attempt %d of %d that may fail", t.Error.Error(), t.Failures, x.failuresAllowed()))
}

// failuresAllowed: with so many failures a trial has failed for good.
func (x *Experiment) failuresAllowed() int {
	if d := x.Spec.Distributed; d != nil {
		return *d.Restarts + 1
	}
	return trialFailures
}

func (x *Experiment) expire(e *expired) {
	if e.Trial == 0 {
		x.end(protocol.ExperimentFinished, fmt.Sprintf("its time of %s is over", x.Spec.Timeout.D()))
		return
	}
	t := x.Trial(e.Trial)
	if t == nil || t.Attempt != e.Attempt || !t.State.Held() || t.Stopping != nil {
		return
	}
	err := &training.TrialError{Type: e.Code, Log: x.log(t, 0)}
	switch e.Code {
	case training.CodeNotEnding:
		for rank, m := range t.Members {
			if m.Done == "" && m.trains() {
				x.logf("%v/%d rank %d did not end with the chief", t.ID, t.Attempt, rank)
			}
		}
		x.gangEnds(t, true)
		return
	case training.CodeNotWhole:
		err.Message = fmt.Sprintf("not all of the %d members of the gang came within %s", len(t.Members), joinTimeout)
		x.fail(t, err, nil)
		return
	case training.CodeIdle:
		err.Message = fmt.Sprintf("none of the %d members of the gang did anything for %s", len(t.Members), x.patience())
		err.Remedy = "see where each of them waits, or raise report_timeout if they wait for something else than each other"
		x.fail(t, err, nil)
		return
	case training.CodeNoReport:
		err.Message = fmt.Sprintf("nothing was reported for %s", x.silence(t))
		err.Remedy = "call reporter.broadcast each epoch, or raise report_timeout"
	default:
		err.Message = fmt.Sprintf("the trial took longer than %s", x.Spec.TrialTimeout.D())
		err.Remedy = "raise trial_timeout or do fewer epochs"
	}
	t.Stopping = &stopping{Op: protocol.OpStop, State: training.Failed, Error: err, Reason: err.Error(), Since: x.Now}
	x.logf("%v/%d is stopped: %s", t.ID, t.Attempt, err.Error())
	x.touch(t)
}

func (x *Experiment) stillborn(s *NotStarted) {
	x.Stillborn++
	x.strikeStillborn(s.Node)
	x.logf("container %s ended before its executor began: %s", s.Container, s.Reason)
	if x.Stillborn >= stillbornAllowed && !x.Closing() {
		where := ""
		if s.Log != "" {
			where = " (log: " + s.Log + ")"
		}
		x.end(protocol.ExperimentFailed, fmt.Sprintf("%d containers in a row ended before their executor began, last: %s%s; is Python 3.9 or later on the nodes as %s?", x.Stillborn, s.Reason, where, x.Spec.Interpreter("python3")))
	}
}

func (x *Experiment) strikeStillborn(name string) {
	if name != "" && x.Nodes[name] == nil {
		x.Nodes[name] = &node{}
	}
	x.strike(name, 0)
}

func (x *Experiment) stopReason() string {
	if x.Ending == protocol.ExperimentKilled {
		return x.Reason
	}
	return "the experiment ended: " + x.Reason
}
