package experiment

import (
	"slices"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// When a container is to be taken away and its trial is better than another one that runs, that other one loses its place, not the
// better one:
//
//	notice ─► the better one saves a checkpoint ─► pauses, first in the queue ─► the lowest-ranked saves one ─► pauses, last in
//	the queue ─► its slot takes the better one
//
// Both must have shown that they can save checkpoints. Otherwise the trial saves one if it can, and is done again from there after its
// container has ended.

// maxYields bounds how often a trial gives way.
const maxYields = 3

// value is by what trials that run are ranked; ok is false for one that has reported nothing.
func (t *trial) value() (v float64, ok bool) {
	_, v, ok = t.Curve.Last()
	return v, ok
}

// lowest finds the trial that is to give way to a better one, nil if there is none: of those that run alone on executors that stay
// and have checkpoints the worst.
func (x *Experiment) lowest(t *trial) *trial {
	v, ok := t.value()
	if !ok || len(t.Checks) == 0 || x.Spec.Distributed != nil || x.Closing() {
		return nil
	}
	var worst *trial
	for _, w := range x.Executors {
		if w.State != executorBusy || w.Preempted != "" {
			continue
		}
		for _, id := range w.Slots {
			o := x.Trial(id)
			if o == nil || o == t || o.Stopping != nil || len(o.Checks) == 0 || o.Yields >= maxYields {
				continue
			}
			u, ok := o.value()
			if !ok || !x.Spec.Direction.Better(v, u) {
				continue
			}
			if worst != nil {
				if b, _ := worst.value(); !x.Spec.Direction.Better(b, u) {
					continue
				}
			}
			worst = o
		}
	}
	return worst
}

// free says whether a trial could begin at once.
func (x *Experiment) freeSlot() bool {
	for _, w := range x.Executors {
		if w.Preempted == "" && (w.State == executorIdle || w.State == executorBusy && w.Holds() < len(w.Slots)) {
			return true
		}
	}
	return false
}

// yields says why a trial is to save a checkpoint and pause, "" if it is not.
func (x *Experiment) yields(t *trial) string {
	if t.Stopping != nil || t.chief().Place != nil {
		return ""
	}
	if w := x.Executor(t.executor()); w != nil && w.Preempted != "" && (x.lowest(t) != nil || x.freeSlot() && len(t.Checks) > 0) {
		return w.Preempted
	}
	if o := x.Trial(t.YieldsTo); o != nil && o.State == training.Pending && slices.Contains(x.Queue, o.ID) {
		return "a better trial, " + o.ID.String() + ", needs its executor"
	}
	return ""
}

// yield has a trial pause that has just saved its checkpoint.
func (x *Experiment) yield(t *trial) {
	why := x.yields(t)
	if why == "" {
		t.YieldsTo = 0
		return
	}
	t.Stopping = &stopping{Op: protocol.OpPause, State: training.Pending, Reason: why, Since: x.Now}
	x.logf("%v/%d gives way: %s", t.ID, t.Attempt, why)
	x.touch(t)
}

// yielded puts a trial that has given way back into the queue.
func (x *Experiment) yielded(t *trial, reason string) {
	better := t.YieldsTo == 0
	t.YieldsTo = 0
	x.again(t, reason)
	if t.State != training.Pending { // the experiment ends
		return
	}
	if !better {
		t.Yields++
		return
	}
	// Its container is taken away: it goes first, and the lowest-ranked gives way.
	x.Queue = slices.Insert(slices.DeleteFunc(x.Queue, func(id training.TrialID) bool { return id == t.ID }), 0, t.ID)
	if !x.freeSlot() {
		if o := x.lowest(t); o != nil {
			o.YieldsTo = t.ID
			x.logf("%v/%d is to give way to %v", o.ID, o.Attempt, t.ID)
		}
	}
}

// pinned are the checkpoints that attempts which run may still be reading: those of other trials from which they began, and of gangs
// also their own. The chief may be beyond it before the last member has read it.
func (x *Experiment) pinned() map[string]bool {
	out := map[string]bool{}
	for _, w := range x.Executors {
		for _, id := range w.Slots {
			if t := x.Trial(id); t != nil && t.Resume != nil && (t.Borrowed != 0 || len(t.Members) > 1) {
				out[t.Resume.URI] = true
			}
		}
	}
	return out
}

// unpin drops what was kept for an attempt that has ended.
func (x *Experiment) unpin(t *trial) {
	if x.Spec.Optimizer.Type == training.PBT { // it may have been the one furthest behind
		t.Borrowed = 0
		for _, o := range x.Trials {
			x.retain(o)
		}
		return
	}
	if t.Borrowed == 0 {
		if t.Resume != nil && len(t.Members) > 1 {
			x.retain(t)
		}
		return
	}
	from := x.Trial(t.Borrowed)
	t.Borrowed = 0
	if from != nil {
		x.retain(from)
	}
}
