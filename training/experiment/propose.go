package experiment

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
	x.out.Entries = append(x.out.Entries, e)
	return e, nil
}

// maxRegistrations bounds the executors that one container may have had: each stays in the state.
const maxRegistrations = 100

// Register takes in an executor, which serves or trains. fresh is false for one that re-attached.
func (x *Experiment) Register(now training.Millis, r protocol.RegisterExecutor, node string, serves bool) (w *Executor, fresh bool, e *Entry, err error) {
	if w := x.InContainer(r.ContainerID); w != nil && w.Instance == r.Instance {
		return w, false, nil, nil // if it was given up meanwhile, it learns so from next
	}
	n := 0
	for _, w := range x.Executors {
		if w.Container == r.ContainerID {
			n++
		}
	}
	if n >= maxRegistrations {
		return nil, false, nil, Refuse(403, protocol.CodeForbidden, "%d executors have been in container %s; it gets no more", n, r.ContainerID)
	}
	e, err = x.Propose(now, &Entry{Registered: &registered{Container: r.ContainerID, Instance: r.Instance, Node: node, Host: r.Host, GPUs: r.GPUs, Serves: serves}})
	return x.InContainer(r.ContainerID), true, e, err
}

// Next says what a slot of an executor is to do. action wait changes nothing.
func (x *Experiment) Next(now training.Millis, id string, slot int) (protocol.Next, *Entry, error) {
	w := x.Executor(id)
	switch {
	case w == nil:
		return protocol.Next{}, nil, Refuse(404, protocol.CodeUnknownExecutor, "no executor %s in %s: register again", id, x.ID)
	case w.State == executorLost:
		return protocol.Next{Action: protocol.ActionStop, Reason: w.Reason}, nil, nil
	case slot < 0 || slot >= len(w.Slots):
		return protocol.Next{}, nil, Refuse(400, protocol.CodeBadRequest, "executor %s has slots 0 to %d, not %d", id, len(w.Slots)-1, slot)
	case w.Slots[slot] != 0:
		return x.has(w, slot), nil, nil
	case w.State == ExecutorDraining || w.State == executorGone:
		return protocol.Next{Action: protocol.ActionDrain, Reason: w.Reason}, nil, nil
	case w.Preempted != "":
		e, err := x.Propose(now, &Entry{Drained: &drained{w.ID, "preempted: " + w.Preempted}})
		return protocol.Next{Action: protocol.ActionDrain, Reason: w.Reason}, e, err
	}
	a, ok := x.choose(now, w, slot)
	if !ok {
		if x.Closing() || w.Holds() == 0 && x.Usable(w.Serves) > x.Wanted(w.Serves) {
			e, err := x.Propose(now, &Entry{Drained: &drained{w.ID, "no more work for it"}})
			return protocol.Next{Action: protocol.ActionDrain, Reason: w.Reason}, e, err
		}
		return protocol.Next{Action: protocol.ActionWait}, nil, nil
	}
	e, err := x.Propose(now, &Entry{Assigned: a})
	if err != nil {
		return protocol.Next{}, nil, err
	}
	if w.Slots[slot] == 0 { // the gang is made of others
		return protocol.Next{Action: protocol.ActionWait}, e, nil
	}
	return x.has(w, slot), e, nil
}

// has is the answer to a slot that holds a trial.
func (x *Experiment) has(w *Executor, slot int) protocol.Next {
	t := x.Trial(w.Slots[slot])
	return protocol.Next{Action: protocol.ActionTrial, Trial: x.assignment(t, t.at(w.ID, slot))}
}

// choose finds work for a slot without changing anything: a trial to be done again, first one that has not failed on this
// node; else what the optimizer suggests; else any to be done again. Of a gang it is the executor that makes it whole.
func (x *Experiment) choose(now training.Millis, w *Executor, slot int) (*assigned, bool) {
	if x.Closing() {
		return nil, false
	}
	seats := []seat{{Executor: w.ID, Slot: slot}}
	if x.Spec.Distributed != nil {
		if len(x.Queue) == 0 && x.Outlook() == 0 {
			return nil, false
		}
		var ok bool
		if seats, ok = x.gang(now); !ok {
			return nil, false
		}
	}
	again := func(id training.TrialID) (*assigned, bool) {
		return &assigned{Trial: id, Attempt: x.Trial(id).Attempt + 1, Seats: seats}, true
	}
	for _, id := range x.Queue {
		if x.Spec.Distributed != nil || !slices.Contains(x.Trial(id).FailedOn, w.Node) || w.Node == "" {
			return again(id)
		}
	}
	if x.Outlook() > 0 {
		return &assigned{Seats: seats}, true // apply asks the optimizer
	}
	if len(x.Queue) > 0 {
		return again(x.Queue[0])
	}
	return nil, false
}

func (x *Experiment) assignment(t *trial, rank int) *protocol.Assignment {
	a := &protocol.Assignment{
		Trial: t.ID, Attempt: t.Attempt, Params: t.Params, Budget: t.Budget, Seed: x.seedOf(t.ID), Resume: t.Resume,
		Checkpoints: bare(t.Checks), Dirs: x.Directories(t, rank), Env: map[string]string{"ML_ID": x.ID},
	}
	if p := t.Members[rank].Place; p != nil {
		a.Gang = &protocol.Gang{
			Framework: x.Spec.Distributed.Framework, Rank: rank, World: len(t.Members), Role: p.Role, Index: p.Index, LocalRank: p.LocalRank, LocalWorld: p.LocalWorld,
			Ports: x.Spec.Distributed.Shape(t.workers()).Ports(p.Role),
		}
	}
	return a
}

// bare are checkpoints without their files.
func bare(all []training.Checkpoint) []training.Checkpoint {
	out := slices.Clone(all)
	for i := range out {
		out[i].Files = nil
	}
	return out
}

// fence finds a member of a trial and refuses an attempt that is not the one that the container's executor runs.
func (x *Experiment) fence(container string, id training.TrialID, attempt, rank int) (*trial, *member, error) {
	t := x.Trial(id)
	if t == nil || attempt < 1 || attempt > t.Attempt {
		return nil, nil, Refuse(404, protocol.CodeNotFound, "no attempt %d of a trial %v in %s", attempt, id, x.ID)
	}
	stale := func(format string, args ...any) (*trial, *member, error) {
		return nil, nil, Refuse(409, protocol.CodeStaleAttempt, format, args...)
	}
	why := ""
	if t.Reason != "" {
		why = ": " + t.Reason
	}
	switch {
	case attempt < t.Attempt:
		return stale("trial %v is at attempt %d, not %d", id, t.Attempt, attempt)
	case !t.State.Held():
		return stale("trial %v/%d is %s%s", id, attempt, t.State, why)
	case rank < 0 || rank >= len(t.Members):
		return nil, nil, Refuse(404, protocol.CodeNotFound, "trial %v/%d has ranks 0 to %d, not %d", id, attempt, len(t.Members)-1, rank)
	}
	m := t.Members[rank]
	if m.Done != "" {
		return stale("rank %d of trial %v/%d has ended", rank, id, attempt)
	}
	if w := x.Executor(m.Executor); w == nil || w.Container != container || w.Slots[m.Slot] != id {
		return stale("trial %v/%d belongs to another executor", id, attempt)
	}
	return t, m, nil
}

// op is what a member of a trial is to do.
func (x *Experiment) op(t *trial, m *member) (op, reason string, grace time.Duration) {
	if s := t.Stopping; s != nil {
		return s.Op, s.Reason, x.Spec.StopGrace.D()
	}
	if !m.trains() && t.trained() {
		return protocol.OpStop, "those that train have ended", x.Spec.StopGrace.D()
	}
	for _, o := range t.Members {
		if w := x.Executor(o.Executor); w != nil && o.Done == "" && w.Preempted != "" {
			return protocol.OpCheckpoint, w.Preempted, 0
		}
	}
	if why := x.yields(t); why != "" {
		return protocol.OpCheckpoint, why, 0
	}
	if x.grows(t) {
		return protocol.OpCheckpoint, "more executors are free for its gang", 0
	}
	return protocol.OpContinue, "", 0
}

// Report takes events that were not known before.
func (x *Experiment) Report(now training.Millis, container string, id training.TrialID, attempt int, r protocol.Report) (protocol.Reported, *Entry, error) {
	t, m, err := x.fence(container, id, attempt, r.Rank)
	if err != nil {
		return protocol.Reported{}, nil, err
	}
	if err := checkEvents(r.Events); err != nil {
		return protocol.Reported{}, nil, err
	}
	fresh := r.Events
	for len(fresh) > 0 && fresh[0].Seq <= m.Seq {
		fresh = fresh[1:]
	}
	var e *Entry
	if len(fresh) > 0 && fresh[0].Seq == m.Seq+1 {
		if r.Rank > 0 {
			last := fresh[len(fresh)-1]
			last.Metrics = nil
			fresh = protocol.Events{last}
		}
		if e, err = x.Propose(now, &Entry{Reported: &reported{Trial: id, Attempt: attempt, Rank: r.Rank, Events: fresh, LogBytes: r.LogBytes}}); err != nil {
			return protocol.Reported{}, nil, err
		}
	}
	op, reason, grace := x.op(t, m)
	return protocol.Reported{Ack: m.Seq, Op: op, Reason: reason, GraceMS: grace.Milliseconds()}, e, nil
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
	t, _, err := x.fence(container, id, attempt, c.Rank)
	if err != nil {
		return nil, err
	}
	dir := x.Directories(t, c.Rank).Checkpoints
	if want := path.Join(dir, fmt.Sprintf("step-%d", c.Step)); c.URI != want { // a name that was used before may be about to be removed
		return nil, Refuse(400, protocol.CodeBadRequest, "the checkpoint of step %d of trial %v/%d is %s, not %.300q", c.Step, id, attempt, want, c.URI)
	}
	if err := checkpoint.CheckFiles(c.Files); err != nil {
		return nil, Refuse(400, protocol.CodeBadRequest, "%v", err)
	}
	if err := x.sharedBlobs().Check(id, attempt, c.Step, c.Files); errors.Is(err, checkpoint.ErrGone) {
		return nil, Refuse(422, protocol.CodeIncomplete, "checkpoint %s: %v", c.URI, err)
	} else if err != nil {
		return nil, Refuse(400, protocol.CodeBadRequest, "%v", err)
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
	if known >= 0 && !slices.Equal(t.Checks[known].Files, c.Files) {
		return protocol.Committed{}, nil, Refuse(400, protocol.CodeBadRequest, "checkpoint %s is recorded already, with other files", c.URI)
	}
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
	out.Op, out.Reason, _ = x.op(t, t.Members[c.Rank])
	return out, e, nil
}

// Final ends an attempt. A final that was answered gets the same answer again.
func (x *Experiment) Final(now training.Millis, container string, id training.TrialID, attempt int, f protocol.Final) (protocol.Finished, *Entry, error) {
	if t := x.Trial(id); t != nil {
		for _, a := range t.Answers {
			if a.Attempt == attempt && a.Rank == f.Rank {
				return a.Finished, nil, nil
			}
		}
	}
	t, m, err := x.fence(container, id, attempt, f.Rank)
	if err != nil {
		return protocol.Finished{}, nil, err
	}
	if f.Seq > m.Seq {
		r := Refuse(409, protocol.CodeUnreported, "%d events were made, %d are recorded: report the rest first", f.Seq, m.Seq)
		r.Ack = m.Seq
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
		f.Error.Type = Middle(cmp.Or(f.Error.Type, training.CodeProcessDied), 200)
		f.Error.Remedy = Middle(f.Error.Remedy, 1000)
	}
	f.Next, f.Slot = false, 0 // what it asks for is an entry of its own
	if f.Rank > 0 {
		f.Outputs = nil // the chief's are the trial's
	}
	e, err := x.Propose(now, &Entry{Ended: &ended{id, attempt, f}})
	if err != nil {
		return protocol.Finished{}, nil, err
	}
	return t.Answers[len(t.Answers)-1].Finished, e, nil
}

// Middle cuts the middle out of a text that is too long.
func Middle(s string, n int) string {
	if len(s) <= n {
		return s
	}
	half := n/2 - 20
	return strings.ToValidUTF8(s[:half], "") + fmt.Sprintf("\n… %d bytes …\n", len(s)-2*half) + strings.ToValidUTF8(s[len(s)-half:], "")
}

// Due lists what the passing of time has brought about. heard says when a slot of an executor was heard of last, of slot -1 the executor
// by whichever call; what is unknown counts from the moment it began. since is from when on the time after a moment counts: a later one where
// executors could not be heard of since, because there was no controller or it stood still.
func (x *Experiment) Due(now training.Millis, lease time.Duration, heard func(executor string, slot int) training.Millis, since func(training.Millis) training.Millis) []*Entry {
	if x.Over() {
		return nil
	}
	var out []*Entry
	if d := x.Spec.Timeout.D(); d > 0 && !x.Closing() && now >= x.Begun.Add(d) {
		out = append(out, &Entry{Expired: &expired{Code: training.CodeTimeout}})
	}
	for _, name := range x.Excluded() {
		if now >= x.Nodes[name].until() {
			out = append(out, &Entry{Forgiven: &Forgiven{name}})
		}
	}
	silent := x.silent(now, lease, heard)
	looked := map[training.TrialID]bool{} // gangs
	for _, w := range x.Executors {
		if !w.Alive() {
			continue
		}
		if reason := silent[w]; reason != "" {
			what := &Lost{Executor: w.ID, Reason: reason, Blame: true, Silent: true}
			if w.State == ExecutorDraining && w.Holds() == 0 {
				what = &Lost{Executor: w.ID, Told: true}
			}
			out = append(out, &Entry{Lost: what})
			continue
		}
		for slot, id := range w.Slots {
			t := x.Trial(id)
			if t == nil {
				continue
			}
			if now > max(heard(w.ID, slot), t.Assigned).Add(lease) {
				out = append(out, &Entry{Lost: &Lost{Executor: w.ID, Reason: fmt.Sprintf("nothing was heard of trial %v for %s", id, lease), Blame: true}})
				break
			}
			if looked[id] {
				continue
			}
			looked[id] = len(t.Members) > 1
			if e := x.dueTrial(now, lease, t, since); e != nil {
				out = append(out, e)
				if e.Lost != nil {
					break
				}
			}
		}
	}
	if d := x.Spec.Distributed; d != nil && x.Held == 0 && x.Wanted(false) > 0 && !x.startable() {
		// Others may hold what is missing, and wait for these.
		if train, serve, last := x.idle(); len(train) > 0 && now > since(last).Add(regroup) {
			for _, w := range slices.Concat(train, serve) {
				out = append(out, &Entry{Drained: &drained{w.ID, "too few executors for a gang; they are asked for anew, together"}})
			}
		}
	}
	return out
}

// silent says of which executors nothing was heard for longer than the lease; of those on the node of one, or in its gang, for most of it.
// Machines that go together are heard of last at different moments, and the first that is missed ends the gang: the others would be idle
// then, and be given the next one.
func (x *Experiment) silent(now training.Millis, lease time.Duration, heard func(executor string, slot int) training.Millis) map[*Executor]string {
	var out map[*Executor]string
	var nodes []string
	var trials []training.TrialID
	for _, w := range x.Executors {
		if !w.Alive() || now <= heard(w.ID, -1).Add(lease) {
			continue
		}
		if out == nil {
			out = map[*Executor]string{}
		}
		out[w] = fmt.Sprintf("nothing was heard of it for %s", lease)
		nodes, trials = append(nodes, w.Node), append(trials, w.Slots...)
	}
	if out == nil {
		return nil
	}
	most := lease - lease/4
	for _, w := range x.Executors {
		if !w.Alive() || out[w] != "" || now <= heard(w.ID, -1).Add(most) {
			continue
		}
		if w.Node != "" && slices.Contains(nodes, w.Node) || slices.ContainsFunc(w.Slots, func(id training.TrialID) bool { return id != 0 && slices.Contains(trials, id) }) {
			out[w] = fmt.Sprintf("nothing was heard of it for %s, and of another on its node or in its gang for %s", most, lease)
		}
	}
	return out
}

// patience is how long the members of a gang may all wait. Who wants longer ones to wait for something from outside says so.
func (x *Experiment) patience() time.Duration { return max(idleTimeout, x.Spec.ReportTimeout.D()) }

// Idle lists the gangs that wait for themselves: a member hangs, or all of them disagree on what comes next, and the others wait in a
// collective. Executors report all the while, so that nothing is silent. idle is for how long the processes of an executor's slot have used no
// processor time. Who is not done does not wait for long without any; and a gang of which one works is left alone, for the others may wait rightly.
func (x *Experiment) Idle(now training.Millis, idle func(executor string, slot int) time.Duration) (out []*Entry) {
	if x.Spec.Distributed == nil || x.Over() {
		return nil
	}
	patience := x.patience()
	for _, t := range x.Trials {
		if !t.State.Held() || len(t.Members) < 2 || t.Stopping != nil || !t.whole() || t.chief().Done != "" || now <= max(t.Heard, t.Whole).Add(patience) {
			continue
		}
		if !slices.ContainsFunc(t.Members, func(m *member) bool { return m.trains() && m.Done == "" && idle(m.Executor, m.Slot) < patience }) {
			out = append(out, &Entry{Expired: &expired{t.ID, t.Attempt, training.CodeIdle}})
		}
	}
	return out
}

// firstReport is what an attempt has at least until its first report: its process starts, imports and reads data.
const firstReport = 10 * time.Minute

// silence is how long an attempt may report nothing, 0: for ever.
func (x *Experiment) silence(t *trial) time.Duration {
	d := x.Spec.ReportTimeout.D()
	if d > 0 && t.State == training.Scheduled {
		return max(d, firstReport)
	}
	return d
}

// dueTrial is what time has brought about for an attempt that an executor has. What an executor was told, or waits for, has its whole time
// after one in which it could not be heard of. What the function does goes on meanwhile, and its limits with it: but whether one has passed is
// not known before its executor has had the chance to send what there is to tell. The function of a gang begins when the gang is whole.
func (x *Experiment) dueTrial(now training.Millis, lease time.Duration, t *trial, since func(training.Millis) training.Millis) *Entry {
	expire := func(code string) *Entry { return &Entry{Expired: &expired{t.ID, t.Attempt, code}} }
	gathers := t.chief().Place != nil && !t.whole() // no process has begun
	switch {
	case t.Stopping != nil:
		if now > since(t.Stopping.Since).Add(2*x.Spec.StopGrace.D()+lease) {
			return &Entry{Lost: &Lost{Executor: t.executor(), Reason: "its trial was told to stop and did not", Blame: true}}
		}
	case t.chief().Done != "":
		if now > since(t.Left).Add(x.Spec.StopGrace.D()+lease) {
			return expire(training.CodeNotEnding)
		}
	case gathers && now > since(t.Assigned).Add(joinTimeout):
		return expire(training.CodeNotWhole)
	default:
		over := func(from training.Millis, d time.Duration) bool {
			return d > 0 && now > max(from.Add(d), since(from).Add(min(d, lease)))
		}
		if gathers {
			break
		}
		if over(max(t.Assigned, t.Whole), x.Spec.TrialTimeout.D()) {
			return expire(training.CodeTimeout)
		}
		if over(max(t.Heard, t.Whole), x.silence(t)) {
			return expire(training.CodeNoReport)
		}
	}
	return nil
}
