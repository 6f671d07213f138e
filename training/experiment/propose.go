package experiment

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
)

// A proposal answers a request. It returns the entry that was applied, nil if the request changed nothing; then its
// answer may be given at once, otherwise only after the entry is in the journal. Requests that are refused come back as
// *refusal and change nothing.

// Refusal is an error with its HTTP status.
type Refusal struct {
	Status int
	protocol.ErrorDetail
}

func Refuse(status int, code, format string, args ...any) *Refusal {
	return &Refusal{status, protocol.ErrorDetail{Code: code, Message: fmt.Sprintf(format, args...)}}
}

// Propose numbers an entry and applies it. An error means that the state machine contradicts its own checks: a bug.
func (x *Experiment) Propose(now training.Millis, e *Entry) (*Entry, error) {
	e.N, e.Time, e.Kind = x.N+1, max(now, x.Now), e.What()
	x.fresh = true
	err := x.Apply(e)
	x.fresh = false
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Register takes in an executor. fresh is false for one that re-attached.
func (x *Experiment) Register(now training.Millis, r protocol.RegisterExecutor, node string) (w *Executor, fresh bool, e *Entry, err error) {
	if w := x.InContainer(r.ContainerID); w != nil && w.Instance == r.Instance {
		return w, false, nil, nil // if it was given up meanwhile, it learns so from next
	}
	e, err = x.Propose(now, &Entry{Registered: &registered{Container: r.ContainerID, Instance: r.Instance, Node: node, Host: r.Host, GPUs: r.GPUs}})
	return x.InContainer(r.ContainerID), true, e, err
}

// Next says what an executor is to do. action wait changes nothing.
func (x *Experiment) Next(now training.Millis, id string) (protocol.Next, *Entry, error) {
	w := x.Executor(id)
	if w == nil {
		return protocol.Next{}, nil, Refuse(404, protocol.CodeUnknownExecutor, "no executor %s in %s: register again", id, x.ID)
	}
	switch {
	case w.State == executorLost:
		return protocol.Next{Action: protocol.ActionStop, Reason: w.Reason}, nil, nil
	case w.Trial != 0:
		return protocol.Next{Action: protocol.ActionTrial, Trial: x.assignment(x.Trial(w.Trial))}, nil, nil
	case w.State == ExecutorDraining || w.State == executorGone:
		return protocol.Next{Action: protocol.ActionDrain, Reason: w.Reason}, nil, nil
	case w.Preempted != "":
		e, err := x.Propose(now, &Entry{Drained: &drained{w.ID, "preempted: " + w.Preempted}})
		return protocol.Next{Action: protocol.ActionDrain, Reason: w.Reason}, e, err
	}
	a, ok := x.choose(w)
	if !ok {
		if x.Closing() || x.Usable() > x.Wanted() {
			e, err := x.Propose(now, &Entry{Drained: &drained{w.ID, "no more work for it"}})
			return protocol.Next{Action: protocol.ActionDrain, Reason: w.Reason}, e, err
		}
		return protocol.Next{Action: protocol.ActionWait}, nil, nil
	}
	e, err := x.Propose(now, &Entry{Assigned: a})
	if err != nil {
		return protocol.Next{}, nil, err
	}
	return protocol.Next{Action: protocol.ActionTrial, Trial: x.assignment(x.Trial(w.Trial))}, e, nil
}

// choose finds work for an executor without changing anything: a trial to be done again, first one that has not failed
// on this node; else what the optimizer suggests; else any to be done again.
func (x *Experiment) choose(w *Executor) (*assigned, bool) {
	if x.Closing() {
		return nil, false
	}
	again := func(id training.TrialID) (*assigned, bool) {
		return &assigned{Executor: w.ID, Trial: id, Attempt: x.Trial(id).Attempt + 1}, true
	}
	for _, id := range x.Queue {
		if !slices.Contains(x.Trial(id).FailedOn, w.Node) || w.Node == "" {
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

func (x *Experiment) assignment(t *trial) *protocol.Assignment {
	return &protocol.Assignment{
		Trial: t.ID, Attempt: t.Attempt, Params: t.Params, Budget: t.Budget, Seed: x.seedOf(t.ID), Resume: t.Resume,
		Dirs: x.Directories(t), Env: map[string]string{"ML_ID": x.ID},
	}
}

// fence finds a trial and refuses an attempt that is not the one that the container's executor runs.
func (x *Experiment) fence(container string, id training.TrialID, attempt int) (*trial, error) {
	t := x.Trial(id)
	if t == nil || attempt < 1 || attempt > t.Attempt {
		return nil, Refuse(404, protocol.CodeNotFound, "no attempt %d of a trial %v in %s", attempt, id, x.ID)
	}
	if attempt < t.Attempt {
		return nil, Refuse(409, protocol.CodeStaleAttempt, "trial %v is at attempt %d, not %d", id, t.Attempt, attempt)
	}
	if !t.State.Held() {
		why := ""
		if t.Reason != "" {
			why = ": " + t.Reason
		}
		return nil, Refuse(409, protocol.CodeStaleAttempt, "trial %v/%d is %s%s", id, attempt, t.State, why)
	}
	if w := x.Executor(t.Executor); w == nil || w.Container != container || w.Trial != id {
		return nil, Refuse(409, protocol.CodeStaleAttempt, "trial %v/%d belongs to another executor", id, attempt)
	}
	return t, nil
}

// op is what the executor of a trial is to do.
func (x *Experiment) op(t *trial) (op, reason string, grace time.Duration) {
	if s := t.Stopping; s != nil {
		return s.Op, s.Reason, x.Spec.StopGrace.D()
	}
	if w := x.Executor(t.Executor); w != nil && w.Preempted != "" {
		return protocol.OpCheckpoint, w.Preempted, 0
	}
	return protocol.OpContinue, "", 0
}

// Report takes events that were not known before.
func (x *Experiment) Report(now training.Millis, container string, id training.TrialID, attempt int, r protocol.Report) (protocol.Reported, *Entry, error) {
	t, err := x.fence(container, id, attempt)
	if err != nil {
		return protocol.Reported{}, nil, err
	}
	if err := checkEvents(r.Events); err != nil {
		return protocol.Reported{}, nil, err
	}
	fresh := r.Events
	for len(fresh) > 0 && fresh[0].Seq <= t.Seq {
		fresh = fresh[1:]
	}
	var e *Entry
	if len(fresh) > 0 && fresh[0].Seq == t.Seq+1 {
		if e, err = x.Propose(now, &Entry{Reported: &reported{Trial: id, Attempt: attempt, Events: fresh, LogBytes: r.LogBytes}}); err != nil {
			return protocol.Reported{}, nil, err
		}
	}
	op, reason, grace := x.op(t)
	return protocol.Reported{Ack: t.Seq, Op: op, Reason: reason, GraceMS: grace.Milliseconds()}, e, nil
}

func checkEvents(events []protocol.MetricEvent) error {
	bad := func(format string, args ...any) error {
		return Refuse(400, protocol.CodeBadRequest, format, args...)
	}
	if len(events) > protocol.MaxReportEvents {
		return bad("%d events in a report, at most %d", len(events), protocol.MaxReportEvents)
	}
	for i, e := range events {
		switch {
		case e.Seq < 1:
			return bad("event %d: seq %d is below 1", i, e.Seq)
		case i > 0 && e.Seq != events[i-1].Seq+1:
			return bad("event %d: seq %d follows %d", i, e.Seq, events[i-1].Seq)
		case len(e.Metrics) > protocol.MaxEventMetrics:
			return bad("event %d: %d metrics, at most %d", e.Seq, len(e.Metrics), protocol.MaxEventMetrics)
		}
		for name := range e.Metrics {
			if name == "" || len(name) > protocol.MaxMetricName {
				return bad("event %d: a metric's name has 1 to %d bytes, not %d", e.Seq, protocol.MaxMetricName, len(name))
			}
		}
	}
	return nil
}

// CheckCommit refuses a commit that cannot be; the files are looked at by the caller, before commit.
func (x *Experiment) CheckCommit(container string, id training.TrialID, attempt int, c protocol.Commit) (*trial, error) {
	t, err := x.fence(container, id, attempt)
	if err != nil {
		return nil, err
	}
	dir := x.Directories(t).Checkpoints
	switch {
	case c.URI != path.Clean(c.URI) || path.Dir(c.URI) != dir || strings.HasSuffix(c.URI, ".tmp"):
		return nil, Refuse(400, protocol.CodeBadRequest, "a checkpoint of trial %v/%d lies directly in %s, not at %q", id, attempt, dir, c.URI)
	case len(c.Files) == 0 || len(c.Files) > protocol.MaxCheckpointFile:
		return nil, Refuse(400, protocol.CodeBadRequest, "a checkpoint has 1 to %d files, not %d", protocol.MaxCheckpointFile, len(c.Files))
	}
	for _, f := range c.Files {
		if f.Name == "" || f.Name != path.Clean(f.Name) || path.IsAbs(f.Name) || strings.HasPrefix(f.Name, "..") || f.Size < 0 {
			return nil, Refuse(400, protocol.CodeBadRequest, "file %q of %d bytes cannot be in a checkpoint", f.Name, f.Size)
		}
	}
	return t, nil
}

// Commit records a checkpoint that is known to be whole.
func (x *Experiment) Commit(now training.Millis, container string, id training.TrialID, attempt int, c protocol.Commit) (protocol.Committed, *Entry, error) {
	t, err := x.CheckCommit(container, id, attempt, c)
	if err != nil {
		return protocol.Committed{}, nil, err
	}
	out := protocol.Committed{Keep: []int64{}, Delete: []int64{}}
	var e *Entry
	known := slices.IndexFunc(t.Checks, func(k training.Checkpoint) bool { return k.URI == c.URI })
	if known < 0 {
		if n := len(t.Checks); n > 0 && t.Checks[n-1].Step >= c.Step && t.Checks[n-1].Attempt == attempt {
			return protocol.Committed{}, nil, Refuse(400, protocol.CodeBadRequest, "a checkpoint of step %d after that of step %d", c.Step, t.Checks[n-1].Step)
		}
		before := slices.Clone(t.Checks)
		if e, err = x.Propose(now, &Entry{Committed: &committed{id, attempt, c}}); err != nil {
			return protocol.Committed{}, nil, err
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

// Final ends an attempt. A final that was answered gets the same answer again.
func (x *Experiment) Final(now training.Millis, container string, id training.TrialID, attempt int, f protocol.Final) (protocol.Finished, *Entry, error) {
	if t := x.Trial(id); t != nil && t.Answer != nil && t.Answer.Attempt == attempt {
		return t.Answer.Finished, nil, nil
	}
	t, err := x.fence(container, id, attempt)
	if err != nil {
		return protocol.Finished{}, nil, err
	}
	if f.Seq > t.Seq {
		r := Refuse(409, protocol.CodeUnreported, "%d events were made, %d are recorded: report the rest first", f.Seq, t.Seq)
		r.Ack = t.Seq
		return protocol.Finished{}, nil, r
	}
	switch f.Status {
	case training.Completed, training.Stopped, training.Paused, training.Failed, training.Invalid:
	default:
		return protocol.Finished{}, nil, Refuse(400, protocol.CodeBadRequest, "a final's status is COMPLETED, STOPPED, PAUSED, FAILED or INVALID, not %q", f.Status)
	}
	size := 0
	for k, v := range f.Outputs {
		size += len(k) + len(v)
	}
	if size > protocol.MaxOutputs {
		return protocol.Finished{}, nil, Refuse(413, protocol.CodeTooLarge, "the outputs have %d bytes, at most %d; write large ones to a file", size, protocol.MaxOutputs)
	}
	if f.Error != nil {
		f.Error = new(*f.Error)
		f.Error.Traceback = Middle(f.Error.Traceback, protocol.MaxErrorText)
		f.Error.Message = Middle(strings.Join(strings.Fields(f.Error.Message), " "), 1000)
		f.Error.Type = cmp.Or(f.Error.Type, training.CodeProcessDied)
	}
	e, err := x.Propose(now, &Entry{Ended: &ended{id, attempt, f}})
	if err != nil {
		return protocol.Finished{}, nil, err
	}
	return t.Answer.Finished, e, nil
}

// Middle cuts the middle out of a text that is too long.
func Middle(s string, n int) string {
	if len(s) <= n {
		return s
	}
	half := n/2 - 20
	return strings.ToValidUTF8(s[:half], "") + fmt.Sprintf("\n… %d bytes …\n", len(s)-2*half) + strings.ToValidUTF8(s[len(s)-half:], "")
}

// Due lists what the passing of time has brought about. heard says when each executor was heard of last, by id; those
// not in it count from the moment they registered.
func (x *Experiment) Due(now training.Millis, lease time.Duration, heard func(id string) training.Millis) []*Entry {
	if x.Over() {
		return nil
	}
	var out []*Entry
	if d := x.Spec.Timeout.D(); d > 0 && !x.Closing() && now >= x.Begun.Add(d) {
		out = append(out, &Entry{Expired: &expired{Code: training.CodeTimeout}})
	}
	for _, w := range x.Executors {
		if !w.Alive() {
			continue
		}
		t := x.Trial(w.Trial)
		switch silent := heard(w.ID); {
		case now > silent.Add(lease):
			what := &Lost{Executor: w.ID, Reason: fmt.Sprintf("nothing was heard of it for %s", lease), Blame: t != nil}
			if w.State == ExecutorDraining && t == nil {
				what = &Lost{Executor: w.ID, Told: true}
			}
			out = append(out, &Entry{Lost: what})
		case t == nil:
		case t.Stopping != nil:
			if now > t.Stopping.Since.Add(2*x.Spec.StopGrace.D()+lease) {
				out = append(out, &Entry{Lost: &Lost{Executor: w.ID, Reason: "its trial was told to stop and did not", Blame: true}})
			}
		default:
			if d := x.Spec.TrialTimeout.D(); d > 0 && now > t.Assigned.Add(d) {
				out = append(out, &Entry{Expired: &expired{t.ID, t.Attempt, training.CodeTimeout}})
			} else if d := x.Spec.ReportTimeout.D(); d > 0 && now > t.Heard.Add(d) {
				out = append(out, &Entry{Expired: &expired{t.ID, t.Attempt, training.CodeNoReport}})
			}
		}
	}
	return out
}
