package controller

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/checkpoint"
)

// A proposal answers a request. It returns the entry that was applied, nil if the request changed nothing; then its
// answer may be given at once, otherwise only after the entry is in the journal. Requests that are refused come back as
// *refusal and change nothing.

// refusal is an error with its HTTP status.
type refusal struct {
	status int
	ErrorDetail
}

func refuse(status int, code, format string, args ...any) *refusal {
	return &refusal{status, ErrorDetail{Code: code, Message: fmt.Sprintf(format, args...)}}
}

// propose numbers an entry and applies it. An error means that the state machine contradicts its own checks: a bug.
func (x *experiment) propose(now training.Millis, e *entry) (*entry, error) {
	e.N, e.Time, e.Kind = x.N+1, max(now, x.Now), e.kind()
	if err := x.apply(e); err != nil {
		return nil, err
	}
	return e, nil
}

// register takes in an executor. fresh is false for one that re-attached.
func (x *experiment) register(now training.Millis, r RegisterExecutor, node string) (w *executor, fresh bool, e *entry, err error) {
	if w := x.inContainer(r.ContainerID); w != nil && w.Instance == r.Instance {
		return w, false, nil, nil // if it was given up meanwhile, it learns so from next
	}
	e, err = x.propose(now, &entry{Registered: &registered{Container: r.ContainerID, Instance: r.Instance, Node: node, Host: r.Host, GPUs: r.GPUs}})
	return x.inContainer(r.ContainerID), true, e, err
}

// next says what an executor is to do. action wait changes nothing.
func (x *experiment) next(now training.Millis, id string) (Next, *entry, error) {
	w := x.executor(id)
	if w == nil {
		return Next{}, nil, refuse(404, CodeUnknownExecutor, "no executor %s in %s: register again", id, x.ID)
	}
	switch {
	case w.State == executorLost:
		return Next{Action: ActionStop, Reason: w.Reason}, nil, nil
	case w.Trial != 0:
		return Next{Action: ActionTrial, Trial: x.assignment(x.trial(w.Trial))}, nil, nil
	case w.State == executorDraining || w.State == executorGone:
		return Next{Action: ActionDrain, Reason: w.Reason}, nil, nil
	case w.Preempted != "":
		e, err := x.propose(now, &entry{Drained: &drained{w.ID, "preempted: " + w.Preempted}})
		return Next{Action: ActionDrain, Reason: w.Reason}, e, err
	}
	a, ok := x.choose(w)
	if !ok {
		if x.ending() || x.usable() > x.wanted() {
			e, err := x.propose(now, &entry{Drained: &drained{w.ID, "no more work for it"}})
			return Next{Action: ActionDrain, Reason: w.Reason}, e, err
		}
		return Next{Action: ActionWait}, nil, nil
	}
	e, err := x.propose(now, &entry{Assigned: a})
	if err != nil {
		return Next{}, nil, err
	}
	return Next{Action: ActionTrial, Trial: x.assignment(x.trial(w.Trial))}, e, nil
}

// choose finds work for an executor without changing anything: a trial to be done again, first one that has not failed
// on this node; else what the optimizer suggests; else any to be done again.
func (x *experiment) choose(w *executor) (*assigned, bool) {
	if x.ending() {
		return nil, false
	}
	again := func(id training.TrialID) (*assigned, bool) {
		return &assigned{Executor: w.ID, Trial: id, Attempt: x.trial(id).Attempt + 1}, true
	}
	for _, id := range x.Queue {
		if !slices.Contains(x.trial(id).FailedOn, w.Node) || w.Node == "" {
			return again(id)
		}
	}
	if x.optimizer.Outlook() > 0 {
		return &assigned{Executor: w.ID}, true // apply asks the optimizer
	}
	if len(x.Queue) > 0 {
		return again(x.Queue[0])
	}
	return nil, false
}

func (x *experiment) assignment(t *trial) *Assignment {
	return &Assignment{
		Trial: t.ID, Attempt: t.Attempt, Params: t.Params, Budget: t.Budget, Seed: x.seedOf(t.ID), Resume: t.Resume,
		Checkpoints: bare(t.Checks), Dirs: x.directories(t), Env: map[string]string{"ML_ID": x.ID},
	}
}

// bare are checkpoints without their files.
func bare(all []training.Checkpoint) []training.Checkpoint {
	out := slices.Clone(all)
	for i := range out {
		out[i].Files = nil
	}
	return out
}

// fence finds a trial and refuses an attempt that is not the one that the container's executor runs.
func (x *experiment) fence(container string, id training.TrialID, attempt int) (*trial, error) {
	t := x.trial(id)
	if t == nil || attempt < 1 || attempt > t.Attempt {
		return nil, refuse(404, CodeNotFound, "no attempt %d of a trial %v in %s", attempt, id, x.ID)
	}
	if attempt < t.Attempt {
		return nil, refuse(409, CodeStaleAttempt, "trial %v is at attempt %d, not %d", id, t.Attempt, attempt)
	}
	if !t.State.Held() {
		why := ""
		if t.Reason != "" {
			why = ": " + t.Reason
		}
		return nil, refuse(409, CodeStaleAttempt, "trial %v/%d is %s%s", id, attempt, t.State, why)
	}
	if w := x.executor(t.Executor); w == nil || w.Container != container || w.Trial != id {
		return nil, refuse(409, CodeStaleAttempt, "trial %v/%d belongs to another executor", id, attempt)
	}
	return t, nil
}

// op is what the executor of a trial is to do.
func (x *experiment) op(t *trial) (op, reason string, grace time.Duration) {
	if s := t.Stopping; s != nil {
		return s.Op, s.Reason, x.spec.StopGrace.D()
	}
	if w := x.executor(t.Executor); w != nil && w.Preempted != "" {
		return OpCheckpoint, w.Preempted, 0
	}
	return OpContinue, "", 0
}

// report takes events that were not known before.
func (x *experiment) report(now training.Millis, container string, id training.TrialID, attempt int, r Report) (Reported, *entry, error) {
	t, err := x.fence(container, id, attempt)
	if err != nil {
		return Reported{}, nil, err
	}
	if err := checkEvents(r.Events); err != nil {
		return Reported{}, nil, err
	}
	fresh := r.Events
	for len(fresh) > 0 && fresh[0].Seq <= t.Seq {
		fresh = fresh[1:]
	}
	var e *entry
	if len(fresh) > 0 && fresh[0].Seq == t.Seq+1 {
		if e, err = x.propose(now, &entry{Reported: &reported{id, attempt, fresh, r.LogBytes}}); err != nil {
			return Reported{}, nil, err
		}
	}
	op, reason, grace := x.op(t)
	return Reported{Ack: t.Seq, Op: op, Reason: reason, GraceMS: grace.Milliseconds()}, e, nil
}

func checkEvents(events []MetricEvent) error {
	bad := func(format string, args ...any) error {
		return refuse(400, CodeBadRequest, format, args...)
	}
	if len(events) > MaxReportEvents {
		return bad("%d events in a report, at most %d", len(events), MaxReportEvents)
	}
	for i, e := range events {
		switch {
		case e.Seq < 1:
			return bad("event %d: seq %d is below 1", i, e.Seq)
		case i > 0 && e.Seq != events[i-1].Seq+1:
			return bad("event %d: seq %d follows %d", i, e.Seq, events[i-1].Seq)
		case len(e.Metrics) > MaxEventMetrics:
			return bad("event %d: %d metrics, at most %d", e.Seq, len(e.Metrics), MaxEventMetrics)
		}
		for name := range e.Metrics {
			if name == "" || len(name) > MaxMetricName {
				return bad("event %d: a metric's name has 1 to %d bytes, not %d", e.Seq, MaxMetricName, len(name))
			}
		}
	}
	return nil
}

// checkCommit refuses a commit that cannot be; the files are looked at by the caller, before commit.
func (x *experiment) checkCommit(container string, id training.TrialID, attempt int, c Commit) (*trial, error) {
	t, err := x.fence(container, id, attempt)
	if err != nil {
		return nil, err
	}
	dir := x.directories(t).Checkpoints
	switch {
	case c.URI != path.Clean(c.URI) || path.Dir(c.URI) != dir || strings.HasSuffix(c.URI, ".tmp"):
		return nil, refuse(400, CodeBadRequest, "a checkpoint of trial %v/%d lies directly in %s, not at %q", id, attempt, dir, c.URI)
	}
	if err := checkpoint.CheckFiles(c.Files); err != nil {
		return nil, refuse(400, CodeBadRequest, "%v", err)
	}
	if err := x.sharedBlobs().Check(id, attempt, c.Step, c.Files); errors.Is(err, checkpoint.ErrGone) {
		return nil, refuse(422, CodeIncomplete, "checkpoint %s: %v", c.URI, err)
	} else if err != nil {
		return nil, refuse(400, CodeBadRequest, "%v", err)
	}
	return t, nil
}

// commit records a checkpoint that is known to be whole.
func (x *experiment) commit(now training.Millis, container string, id training.TrialID, attempt int, c Commit) (Committed, *entry, error) {
	t, err := x.checkCommit(container, id, attempt, c)
	if err != nil {
		return Committed{}, nil, err
	}
	out := Committed{Keep: []int64{}, Delete: []int64{}}
	var e *entry
	known := slices.IndexFunc(t.Checks, func(k training.Checkpoint) bool { return k.URI == c.URI })
	if known >= 0 && !slices.Equal(t.Checks[known].Files, c.Files) {
		return Committed{}, nil, refuse(400, CodeBadRequest, "checkpoint %s is recorded already, with other files", c.URI)
	}
	if known < 0 {
		if n := len(t.Checks); n > 0 && t.Checks[n-1].Step >= c.Step && t.Checks[n-1].Attempt == attempt {
			return Committed{}, nil, refuse(400, CodeBadRequest, "a checkpoint of step %d after that of step %d", c.Step, t.Checks[n-1].Step)
		}
		before := slices.Clone(t.Checks)
		if e, err = x.propose(now, &entry{Committed: &committed{id, attempt, c}}); err != nil {
			return Committed{}, nil, err
		}
		for _, k := range before {
			if !slices.ContainsFunc(t.Checks, func(q training.Checkpoint) bool { return q.URI == k.URI }) {
				out.Delete = append(out.Delete, k.Step)
			}
		}
	}
	for _, k := range t.Checks {
		out.Keep = append(out.Keep, k.Step)
	}
	out.Op, out.Reason, _ = x.op(t)
	return out, e, nil
}

// final ends an attempt. A final that was answered gets the same answer again.
func (x *experiment) final(now training.Millis, container string, id training.TrialID, attempt int, f Final) (Finished, *entry, error) {
	if t := x.trial(id); t != nil && t.Answer != nil && t.Answer.Attempt == attempt {
		return t.Answer.Finished, nil, nil
	}
	t, err := x.fence(container, id, attempt)
	if err != nil {
		return Finished{}, nil, err
	}
	if f.Seq > t.Seq {
		r := refuse(409, CodeUnreported, "%d events were made, %d are recorded: report the rest first", f.Seq, t.Seq)
		r.Ack = t.Seq
		return Finished{}, nil, r
	}
	switch f.Status {
	case training.Completed, training.Stopped, training.Paused, training.Failed, training.Invalid:
	default:
		return Finished{}, nil, refuse(400, CodeBadRequest, "a final's status is COMPLETED, STOPPED, PAUSED, FAILED or INVALID, not %q", f.Status)
	}
	size := 0
	for k, v := range f.Outputs {
		size += len(k) + len(v)
	}
	if size > MaxOutputs {
		return Finished{}, nil, refuse(413, CodeTooLarge, "the outputs have %d bytes, at most %d; write large ones to a file", size, MaxOutputs)
	}
	if f.Error != nil {
		f.Error = new(*f.Error)
		f.Error.Traceback = middle(f.Error.Traceback, MaxErrorText)
		f.Error.Message = middle(strings.Join(strings.Fields(f.Error.Message), " "), 1000)
		f.Error.Type = cmp.Or(f.Error.Type, training.CodeProcessDied)
	}
	e, err := x.propose(now, &entry{Ended: &ended{id, attempt, f}})
	if err != nil {
		return Finished{}, nil, err
	}
	return t.Answer.Finished, e, nil
}

// middle cuts the middle out of a text that is too long.
func middle(s string, n int) string {
	if len(s) <= n {
		return s
	}
	half := n/2 - 20
	return strings.ToValidUTF8(s[:half], "") + fmt.Sprintf("\n… %d bytes …\n", len(s)-2*half) + strings.ToValidUTF8(s[len(s)-half:], "")
}

// due lists what the passing of time has brought about. heard says when each executor was heard of last, by id; those
// not in it count from the moment they registered.
func (x *experiment) due(now training.Millis, lease time.Duration, heard func(id string) training.Millis) []*entry {
	if x.over() {
		return nil
	}
	var out []*entry
	if d := x.spec.Timeout.D(); d > 0 && !x.ending() && now >= x.Begun.Add(d) {
		out = append(out, &entry{Expired: &expired{Code: training.CodeTimeout}})
	}
	for _, w := range x.Executors {
		if !w.alive() {
			continue
		}
		t := x.trial(w.Trial)
		switch silent := heard(w.ID); {
		case now > silent.Add(lease):
			what := &lost{Executor: w.ID, Reason: fmt.Sprintf("nothing was heard of it for %s", lease), Blame: t != nil}
			if w.State == executorDraining && t == nil {
				what = &lost{Executor: w.ID, Told: true}
			}
			out = append(out, &entry{Lost: what})
		case t == nil:
		case t.Stopping != nil:
			if now > t.Stopping.Since.Add(2*x.spec.StopGrace.D()+lease) {
				out = append(out, &entry{Lost: &lost{Executor: w.ID, Reason: "its trial was told to stop and did not", Blame: true}})
			}
		default:
			if d := x.spec.TrialTimeout.D(); d > 0 && now > t.Assigned.Add(d) {
				out = append(out, &entry{Expired: &expired{t.ID, t.Attempt, training.CodeTimeout}})
			} else if d := x.spec.ReportTimeout.D(); d > 0 && now > t.Heard.Add(d) {
				out = append(out, &entry{Expired: &expired{t.ID, t.Attempt, training.CodeNoReport}})
			}
		}
	}
	return out
}
