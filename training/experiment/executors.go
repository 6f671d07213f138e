package experiment

import (
	"fmt"

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

// setExecutor changes a state and counts the time spent in the old one.
func (x *Experiment) setExecutor(w *Executor, s, reason string) {
	d := int64(x.Now - w.Since)
	switch {
	case w.State == executorBusy || w.State == ExecutorDraining && w.Trial != 0:
		x.Counters.BusyMS += d
	case w.State == executorIdle:
		x.Counters.IdleMS += d
	}
	w.State, w.Reason, w.Since = s, reason, x.Now
}

// free takes the trial from an executor whose attempt has ended.
func (x *Experiment) free(w *Executor) {
	if w == nil || w.Trial == 0 {
		return
	}
	w.Ended++
	if w.State == executorBusy {
		x.setExecutor(w, executorIdle, "")
	} else {
		x.setExecutor(w, w.State, w.Reason)
	}
	w.Trial = 0
	x.emit(protocol.EventExecutor, x.ExecutorRow(w))
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
}

// giveUp ends an executor; what it held is done again from the last checkpoint.
func (x *Experiment) giveUp(w *Executor, s, reason string, blame bool) {
	x.setExecutor(w, s, reason)
	x.out.Release = append(x.out.Release, w.Container)
	if s == executorLost {
		x.logf("%s is lost: %s", w.ID, reason)
	}
	t := x.Trial(w.Trial)
	w.Trial = 0
	x.emit(protocol.EventExecutor, x.ExecutorRow(w))
	if blame {
		id := training.TrialID(0)
		if t != nil {
			id = t.ID
		}
		x.strike(w.Node, id)
	}
	if t == nil {
		return
	}
	w.Ended++
	x.Counters.Lost++
	if d := t.Stopping; d != nil {
		x.carryOut(t, d, nil) // what was decided holds, whoever was to carry it out
		return
	}
	t.Error = &training.TrialError{Type: training.CodeExecutorLost, Message: fmt.Sprintf("%s on %s: %s", w.ID, w.Host, reason), Log: x.logPath(t)}
	if !blame {
		x.again(t, t.Error.Error())
		return
	}
	t.Failures++
	if t.Failures >= trialFailures {
		t.Error.Remedy = "see whether the trial needs more memory than its executor has"
		x.conclude(t, training.Failed, fmt.Sprintf("failed %d times, last: %s", t.Failures, t.Error.Error()))
		x.early(t, t.Error)
		return
	}
	x.again(t, fmt.Sprintf("%s; attempt %d of %d that may fail", t.Error.Error(), t.Failures, trialFailures))
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
	err := &training.TrialError{Type: e.Code, Log: x.logPath(t)}
	if e.Code == training.CodeNoReport {
		err.Message = fmt.Sprintf("nothing was reported for %s", x.Spec.ReportTimeout.D())
		err.Remedy = "call reporter.broadcast each epoch, or raise report_timeout"
	} else {
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
