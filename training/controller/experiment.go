package controller

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/search"
)

// experiment is the state machine of one experiment: entries in, decisions out. It has no clock, no goroutine and does
// no I/O; the controller around it brings the time inside entries, writes them to the journal and carries out what
// effects say.
//
// A proposal (register, next, report, commit, final in propose.go) checks a request against the state and, if it changes
// anything, makes an entry and applies it. Applying the same entries again, in order, makes the same state.
type experiment struct {
	state
	spec      *training.Spec
	optimizer search.Optimizer
	stopper   search.EarlyStop
	finished  []search.TrialView // completed trials in order of completion, for the stopper

	out effects
}

// state is all of the experiment that a snapshot holds beside the optimizer.
type state struct {
	N           int64           `json:"n"` // the last entry applied
	Now         training.Millis `json:"now"`
	ID          string          `json:"id"`
	Application string          `json:"application"`
	User        string          `json:"user"`
	Directory   string          `json:"directory"`
	Spec        *training.Spec  `json:"spec"`

	State   string          `json:"state"`
	Reason  string          `json:"reason,omitempty"`
	Attempt int             `json:"attempt"`
	Created training.Millis `json:"created"`
	Done    training.Millis `json:"done,omitempty"`
	// Ending is the state that the experiment gets as soon as no executor holds a trial.
	Ending string `json:"ending,omitempty"`

	Trials    []*trial           `json:"trials"` // trial n at n-1
	Queue     []training.TrialID `json:"queue"`  // to be done again, the longest waiting first
	Executors []*executor        `json:"executors"`
	Nodes     map[string]*node   `json:"nodes"`
	Completed []training.TrialID `json:"completed"`
	Best      training.TrialID   `json:"best,omitempty"`
	Counters  Counters           `json:"counters"`
	// Early are the trials that failed while nothing in the experiment ever worked, with the type of error they share.
	Early     []training.TrialID `json:"early,omitempty"`
	EarlyType string             `json:"early_type,omitempty"`
	Worked    bool               `json:"worked,omitempty"` // something was reported or completed
	// Stillborn counts containers in a row that ended before an executor registered.
	Stillborn int `json:"stillborn,omitempty"`
}

type trial struct {
	ID         training.TrialID           `json:"id"`
	State      training.State             `json:"state"`
	Params     training.Params            `json:"params"`
	Attempt    int                        `json:"attempt"`
	Failures   int                        `json:"failures,omitempty"`
	FailedOn   []string                   `json:"failed_on,omitempty"` // nodes on which the function failed
	Budget     training.Budget            `json:"budget"`
	Last       bool                       `json:"last"` // the budget is the trial's last
	Curve      search.Curve               `json:"curve"`
	Seq        int64                      `json:"seq"`
	Step       *int64                     `json:"step,omitempty"` // last reported by this attempt
	Checks     []training.Checkpoint      `json:"checkpoints,omitempty"`
	Resume     *training.Checkpoint       `json:"resume,omitempty"`
	Executor   string                     `json:"executor,omitempty"` // who has it, or had it last
	Stopping   *stopping                  `json:"stopping,omitempty"`
	Metric     *float64                   `json:"metric,omitempty"` // final one
	Outputs    map[string]json.RawMessage `json:"outputs,omitempty"`
	Error      *training.TrialError       `json:"error,omitempty"`
	Reason     string                     `json:"reason,omitempty"`
	LogBytes   int64                      `json:"log_bytes,omitempty"`
	Promotions int                        `json:"promotions,omitempty"`
	Resumed    int                        `json:"resumed,omitempty"`
	Started    training.Millis            `json:"started,omitempty"`
	Ended      training.Millis            `json:"ended,omitempty"`
	Assigned   training.Millis            `json:"assigned,omitempty"` // this attempt
	Heard      training.Millis            `json:"heard,omitempty"`    // last event of this attempt
	Answer     *finalAnswer               `json:"answer,omitempty"`
}

// finalAnswer is what the last final got, to be given again.
type finalAnswer struct {
	Attempt int `json:"attempt"`
	Finished
}

// stopping is a decision that an executor has yet to carry out. State is what becomes of the trial then: STOPPED,
// PAUSED or COMPLETED (by the value at the end of its budget), FAILED (with Error).
type stopping struct {
	Op     string               `json:"op"`
	Reason string               `json:"reason"`
	State  training.State       `json:"state"`
	Error  *training.TrialError `json:"error,omitempty"`
	Since  training.Millis      `json:"since"`
	// Early: by the early stopping policy.
	Early bool `json:"early,omitempty"`
}

// The states of an executor.
const (
	executorIdle     = "IDLE"
	executorBusy     = "BUSY"
	executorDraining = "DRAINING"
	executorGone     = "GONE"
	executorLost     = "LOST"
)

type executor struct {
	ID        string           `json:"id"`
	Container string           `json:"container"`
	Instance  string           `json:"instance"`
	Node      string           `json:"node,omitempty"`
	Host      string           `json:"host"`
	GPUs      []string         `json:"gpus,omitempty"`
	State     string           `json:"state"`
	Reason    string           `json:"reason,omitempty"`
	Trial     training.TrialID `json:"trial,omitempty"` // that it holds
	Ended     int              `json:"ended,omitempty"`
	Since     training.Millis  `json:"since"` // of State
	Preempted string           `json:"preempted,omitempty"`
}

func (e *executor) alive() bool { return e.State != executorLost && e.State != executorGone }

// node collects failures. A failure counts once per trial, so that one bad configuration does not condemn a machine.
type node struct {
	Strikes  []training.TrialID `json:"strikes,omitempty"` // 0: an executor that held none
	Excluded bool               `json:"excluded,omitempty"`
}

// The exclusion rules, Hopsworks' defaults: an executor is replaced after one failure.
const (
	nodeStrikes      = 2 // then the node gets no more executors
	trialFailures    = 3 // then the trial is FAILED
	invalidNodes     = 2 // the function failed on so many nodes: the trial is INVALID
	earlyFailures    = 3 // trials that failed alike while nothing worked: the experiment is FAILED
	stillbornAllowed = 3 // containers in a row whose executor never registered: the experiment is FAILED
)

// effects are what the controller does after the entries that caused them are in the journal.
type effects struct {
	events  []streamEvent // for those who watch
	touched map[training.TrialID]bool
	deletes []string // checkpoint directories
	release []string // containers that are not wanted any more
	lines   []string // for controller.log
	wake    bool     // executors that wait may get something now
}

// streamEvent is a server-sent event before it is encoded.
type streamEvent struct {
	id   int64
	name string
	data any
}

func newExperiment() *experiment {
	return &experiment{state: state{Nodes: map[string]*node{}}}
}

// take returns the effects gathered since the last call.
func (x *experiment) take() effects {
	out := x.out
	x.out = effects{}
	return out
}

func (x *experiment) logf(format string, args ...any) {
	x.out.lines = append(x.out.lines, fmt.Sprintf("%s %5d  %s", x.Now.Time().UTC().Format("2006-01-02T15:04:05.000Z"), x.N, fmt.Sprintf(format, args...)))
}

func (x *experiment) emit(name string, data any) {
	x.out.events = append(x.out.events, streamEvent{x.N, name, data})
}

// touch says that a trial changed its state.
func (x *experiment) touch(t *trial) {
	if x.out.touched == nil {
		x.out.touched = map[training.TrialID]bool{}
	}
	x.out.touched[t.ID] = true
	x.emit(EventTrial, x.row(t, false))
	if t.State.Final() || t.State == training.Paused {
		x.emit(EventExperiment, x.summary())
	}
}

// trial finds a trial, nil if there is none.
func (x *experiment) trial(id training.TrialID) *trial {
	if id < 1 || int(id) > len(x.Trials) {
		return nil
	}
	return x.Trials[id-1]
}

// executor finds an executor, nil if there is none.
func (x *experiment) executor(id string) *executor {
	digits, _ := strings.CutPrefix(id, "e")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > len(x.Executors) || x.Executors[n-1].ID != id {
		return nil
	}
	return x.Executors[n-1]
}

// inContainer finds the newest executor of a container.
func (x *experiment) inContainer(container string) *executor {
	for _, e := range slices.Backward(x.Executors) {
		if e.Container == container {
			return e
		}
	}
	return nil
}

// over reports whether the experiment has reached its last state.
func (x *experiment) over() bool { return x.State != ExperimentRunning }

// ending reports whether nothing new is to be started.
func (x *experiment) ending() bool { return x.over() || x.Ending != "" }

// held counts the trials that executors have.
func (x *experiment) held() (n int) {
	for _, e := range x.Executors {
		if e.Trial != 0 {
			n++
		}
	}
	return n
}

// wanted is how many executors there should be.
func (x *experiment) wanted() int {
	if x.ending() {
		return x.held()
	}
	return min(x.spec.Executors, x.held()+len(x.Queue)+x.optimizer.Outlook())
}

// usable counts the executors that work or wait for work.
func (x *experiment) usable() (n int) {
	for _, e := range x.Executors {
		if e.State == executorIdle || e.State == executorBusy {
			n++
		}
	}
	return n
}

// excluded lists the nodes that are to give no more executors.
func (x *experiment) excluded() []string {
	var out []string
	for name, n := range x.Nodes {
		if n.Excluded {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// apply takes one entry into the state. It fails only when the entry cannot follow those before it: the journal is of
// another version or damaged.
func (x *experiment) apply(e *entry) error {
	if e.N != x.N+1 {
		return fmt.Errorf("journal entry %d follows entry %d", e.N, x.N)
	}
	if x.N == 0 && e.Created == nil {
		return fmt.Errorf("the journal begins with %q instead of \"created\"", e.Kind)
	}
	x.N = e.N
	x.Now = max(x.Now, e.Time)
	var err error
	switch {
	case e.Created != nil:
		err = x.create(e.Created)
	case e.Started != nil:
		x.start(e.Started)
	case e.Registered != nil:
		x.registered(e.Registered)
	case e.Assigned != nil:
		err = x.assign(e.Assigned)
	case e.Reported != nil:
		err = x.reported(e.Reported)
	case e.Committed != nil:
		err = x.committed(e.Committed)
	case e.Ended != nil:
		err = x.ended(e.Ended)
	case e.Lost != nil:
		x.lose(e.Lost)
	case e.Expired != nil:
		x.expire(e.Expired)
	case e.Drained != nil:
		if w := x.executor(e.Drained.Executor); w != nil {
			x.drain(w, e.Drained.Reason)
		}
	case e.Preempted != nil:
		if w := x.executor(e.Preempted.Executor); w != nil {
			w.Preempted = e.Preempted.Reason
			x.logf("%s will be preempted: %s", w.ID, w.Preempted)
		}
	case e.Stopped != nil:
		reason := "stopped by " + e.Stopped.User
		if e.Stopped.Reason != "" {
			reason += ": " + e.Stopped.Reason
		}
		x.end(ExperimentKilled, reason)
	case e.Forgiven != nil:
		if n := x.Nodes[e.Forgiven.Node]; n != nil {
			n.Excluded, n.Strikes = false, nil
			x.logf("node %s is used again: no other gives a container", e.Forgiven.Node)
		}
	case e.NotStarted != nil:
		x.stillborn(e.NotStarted)
	}
	if err != nil {
		return fmt.Errorf("journal entry %d (%s): %w", e.N, e.Kind, err)
	}
	x.settle()
	return nil
}

func (x *experiment) create(c *created) error {
	if c.Version != journalVersion {
		return fmt.Errorf("format %d, this program reads %d", c.Version, journalVersion)
	}
	if x.N != 1 || c.Spec == nil {
		return fmt.Errorf("an experiment is created once, with a specification")
	}
	x.ID, x.Application, x.User, x.Directory, x.Spec = c.ID, c.Application, c.User, c.Directory, c.Spec
	x.Created, x.State = x.Now, ExperimentRunning
	x.logf("%s %q by %s: %s over %d parameters, %d trials on %d executors", x.ID, c.Spec.Name, x.User, c.Spec.Optimizer.Type, len(c.Spec.Space), c.Spec.Trials, c.Spec.Executors)
	return x.prepare()
}

// prepare makes what follows from the specification, which may come from a damaged file.
func (x *experiment) prepare() (err error) {
	x.spec = x.Spec
	x.spec.SetDefaults(x.User)
	if err := x.spec.Validate(); err != nil {
		return err
	}
	if x.optimizer, err = search.New(x.spec); err != nil {
		return err
	}
	x.stopper, err = search.NewEarlyStop(x.spec.EarlyStop)
	return err
}

func (x *experiment) start(s *started) {
	x.Attempt = s.Attempt
	x.logf("controller attempt %d", s.Attempt)
	for _, w := range x.Executors {
		if w.alive() && !slices.Contains(s.Containers, w.Container) {
			x.giveUp(w, executorLost, "its container ended while the controller was away", false)
		}
	}
}

func (x *experiment) registered(r *registered) {
	if w := x.inContainer(r.Container); w != nil && w.alive() {
		x.giveUp(w, executorLost, "its process was replaced by another one in the same container", true)
		x.out.release = x.out.release[:len(x.out.release)-1] // the container is the new one's
	}
	w := &executor{
		ID: fmt.Sprintf("e%04d", len(x.Executors)+1), Container: r.Container, Instance: r.Instance, Node: r.Node,
		Host: r.Host, GPUs: r.GPUs, State: executorIdle, Since: x.Now,
	}
	x.Executors = append(x.Executors, w)
	x.Stillborn = 0
	if r.Node != "" && x.Nodes[r.Node] == nil {
		x.Nodes[r.Node] = &node{}
	}
	x.logf("executor %s on %s in %s", w.ID, w.Host, w.Container)
	x.emit(EventExecutor, x.executorRow(w))
}

// assign gives a trial to an executor.
func (x *experiment) assign(a *assigned) error {
	w := x.executor(a.Executor)
	if w == nil || w.State != executorIdle {
		return fmt.Errorf("executor %s is not idle", a.Executor)
	}
	if a.Suggestion != nil || a.Trial == 0 {
		s, verdict := x.optimizer.Next()
		switch old := a.Suggestion; {
		case verdict != search.Suggest:
			return fmt.Errorf("the optimizer suggests nothing")
		case old != nil && (s.Trial != old.Trial || s.Budget != old.Budget || s.Params.Key() != old.Params.Key()):
			return fmt.Errorf("the optimizer now suggests trial %v to epoch %d with %s where it suggested %v to %d with %s: another version of the search wrote the journal",
				s.Trial, s.Budget, s.Params.Key(), old.Trial, old.Budget, old.Params.Key())
		}
		if !s.Promotion {
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
	t.State, t.Executor, t.Reason, t.Error, t.Outputs = training.Scheduled, w.ID, "", nil, nil
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

// reported takes new events of the attempt that runs.
func (x *experiment) reported(r *reported) error {
	t := x.trial(r.Trial)
	if t == nil || t.Attempt != r.Attempt || !t.State.Held() {
		return fmt.Errorf("trial %v/%d does not run", r.Trial, r.Attempt)
	}
	began, before := t.State == training.Scheduled, t.Stopping
	t.State, t.Heard, t.LogBytes = training.Running, x.Now, max(t.LogBytes, r.LogBytes)
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
	t.Checks = append(t.Checks, k)
	x.Counters.Checkpoints++
	x.emit(EventCheckpoint, CheckpointEvent{t.ID, t.Attempt, k.Step, k.URI})
	x.retain(t)
	return nil
}

// retain drops the checkpoints that are not to be kept. The newest always stays: a trial that runs, waits or is paused
// would go on from it.
func (x *experiment) retain(t *trial) {
	keep := x.spec.Retention.Keep(t.Checks, x.spec.Direction)
	var kept []training.Checkpoint
	for i, c := range t.Checks {
		if keep[i] {
			kept = append(kept, c)
		} else {
			x.out.deletes = append(x.out.deletes, c.URI)
		}
	}
	t.Checks = kept
}

// ended takes an executor's word for the end of its attempt.
func (x *experiment) ended(f *ended) error {
	t := x.trial(f.Trial)
	if t == nil || t.Attempt != f.Attempt || !t.State.Held() {
		return fmt.Errorf("trial %v/%d does not run", f.Trial, f.Attempt)
	}
	t.LogBytes = max(t.LogBytes, f.LogBytes)
	t.Outputs = f.Outputs
	w := x.executor(t.Executor)
	if s := t.Stopping; s != nil {
		x.carryOut(t, s, f.Metric)
	} else {
		switch f.Status {
		case training.Failed:
			err := f.Error
			if err == nil {
				err = &training.TrialError{Type: training.CodeProcessDied, Message: "the executor did not say why"}
			}
			err.Log = x.logPath(t)
			x.fail(t, err, w)
		case training.Invalid:
			message := "the function refused its parameters"
			if f.Error != nil && f.Error.Message != "" {
				message = f.Error.Message
			}
			t.Error = &training.TrialError{Type: training.CodeInvalid, Message: message, Log: x.logPath(t), Remedy: "exclude them from the space"}
			x.conclude(t, training.Invalid, t.Error.Error())
		default:
			x.succeed(t, f.Metric)
		}
	}
	t.Answer = &finalAnswer{t.Attempt, Finished{t.State, t.Reason}}
	x.free(w)
	return nil
}

// carryOut ends an attempt whose end was decided before.
func (x *experiment) carryOut(t *trial, s *stopping, metric *training.Metric) {
	switch s.State {
	case training.Failed:
		x.fail(t, s.Error, x.executor(t.Executor))
	case training.Stopped:
		if s.Early {
			x.Counters.EarlyStopped++
		}
		t.Metric = x.lastValue(t, metric)
		x.conclude(t, training.Stopped, s.Reason)
	default: // its budget is used
		to := min(t.Budget.To, t.Curve.Len())
		_, v := t.Curve.At(to - 1) // judge saw more epochs than the budget has
		x.reach(t, v, s.Reason)
	}
}

// lastValue is the metric returned if it is a number, else the last reported.
func (x *experiment) lastValue(t *trial, metric *training.Metric) *float64 {
	if metric != nil && metric.Finite() {
		return new(metric.Value)
	}
	if _, v, ok := t.Curve.Last(); ok {
		return new(v)
	}
	return nil
}

// succeed ends an attempt whose function returned.
func (x *experiment) succeed(t *trial, metric *training.Metric) {
	mistake := func(code, message, remedy string) {
		x.mistake(t, code, message, remedy)
		x.fail(t, t.Stopping.Error, nil)
	}
	switch {
	case metric != nil && metric.Text != "":
		mistake(training.CodeNotNumber, fmt.Sprintf("the function returned %s as %s", metric, x.spec.Metric), "return a number, or a dict with a number under that key")
		return
	case metric != nil && !metric.Finite():
		mistake(training.CodeNotFinite, fmt.Sprintf("the function returned %s as %s", metric, x.spec.Metric), "the same parameters are not tried again")
		return
	}
	v := x.lastValue(t, metric)
	if v == nil {
		if x.spec.Optimizer.Type != training.None {
			mistake(training.CodeMissing, fmt.Sprintf("the function neither reported nor returned %q", x.spec.Metric), "return a number, or a dict with it under that key, or call reporter.broadcast")
			return
		}
		x.Worked = true
		x.conclude(t, training.Completed, "")
		return
	}
	x.reach(t, *v, "")
}

// reach ends an attempt at the end of its budget with a value.
func (x *experiment) reach(t *trial, v float64, reason string) {
	x.Worked, x.Early, x.EarlyType = true, nil, ""
	t.Metric = &v
	if t.Last {
		x.Completed = append(x.Completed, t.ID)
		x.finished = append(x.finished, finishedView(t))
		x.conclude(t, training.Completed, reason)
		return
	}
	t.State, t.Reason, t.Ended, t.Stopping = training.Paused, fmt.Sprintf("rung of %d epochs", t.Budget.To), x.Now, nil
	x.observe(t, search.Finished, v)
	x.logf("%v/%d pauses after %d epochs with %s %.6g", t.ID, t.Attempt, t.Budget.To, x.spec.Metric, v)
	x.touch(t)
}

func finishedView(t *trial) search.TrialView {
	return search.TrialView{Trial: t.ID, Curve: &t.Curve}
}

// conclude ends a trial for good.
func (x *experiment) conclude(t *trial, s training.State, reason string) {
	t.State, t.Reason, t.Ended, t.Stopping = s, reason, x.Now, nil
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
		text = fmt.Sprintf(" with %s %.6g", x.spec.Metric, value)
	}
	x.observe(t, kind, value)
	if reason != "" {
		text += ": " + reason
	}
	x.logf("%v/%d %s after %d epochs%s", t.ID, t.Attempt, s, t.Curve.Len(), text)
	x.touch(t)
}

// observe tells the optimizer and keeps the best.
func (x *experiment) observe(t *trial, kind search.Kind, v float64) {
	x.optimizer.Observe(search.Event{Kind: kind, Trial: t.ID, Epochs: t.Curve.Len(), Value: v})
	b := x.trial(x.Best)
	switch {
	case b == t:
		x.Best = x.findBest() // its own value may have become worse
	case t.Metric == nil || t.State == training.Failed || t.State == training.Invalid:
	case b == nil || x.spec.Direction.Better(*t.Metric, *b.Metric):
		x.Best = t.ID
	}
}

// findBest looks at all trials with a final value.
func (x *experiment) findBest() training.TrialID {
	var best *trial
	for _, t := range x.Trials {
		if t.Metric != nil && t.State != training.Failed && t.State != training.Invalid && (best == nil || x.spec.Direction.Better(*t.Metric, *best.Metric)) {
			best = t
		}
	}
	if best == nil {
		return 0
	}
	return best.ID
}

// fail ends an attempt that went wrong. w is the executor to blame, nil if the function alone is.
func (x *experiment) fail(t *trial, err *training.TrialError, w *executor) {
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
		x.strike(w.Node, t.ID)
		if w.alive() {
			x.drain(w, "excluded after a failure of trial "+t.ID.String())
		}
	}
	switch {
	case len(t.FailedOn) >= invalidNodes:
		x.pardon(t.ID)
		x.conclude(t, training.Invalid, fmt.Sprintf("failed on %d nodes (%s), last: %s", len(t.FailedOn), strings.Join(t.FailedOn, ", "), err.Error()))
	case t.Failures >= trialFailures:
		x.conclude(t, training.Failed, fmt.Sprintf("failed %d times, last: %s", t.Failures, err.Error()))
	default:
		x.again(t, fmt.Sprintf("%s; attempt %d of %d that may fail", err.Error(), t.Failures, trialFailures))
	}
	x.early(t, err)
}

// again puts a trial back into the queue.
func (x *experiment) again(t *trial, reason string) {
	x.logf("%v/%d ends and waits for another executor: %s", t.ID, t.Attempt, reason)
	if x.ending() {
		x.conclude(t, training.Stopped, x.stopReason())
		return
	}
	t.State, t.Reason, t.Stopping = training.Pending, reason, nil
	x.Queue = append(x.Queue, t.ID)
	x.touch(t)
}

// early ends the experiment when trials fail alike and nothing ever worked: the function is wrong, not its parameters.
func (x *experiment) early(t *trial, err *training.TrialError) {
	if x.Worked || x.ending() {
		return
	}
	if x.EarlyType != err.Type {
		x.Early, x.EarlyType = nil, err.Type
	}
	if !slices.Contains(x.Early, t.ID) {
		x.Early = append(x.Early, t.ID)
	}
	if len(x.Early) >= earlyFailures {
		x.end(ExperimentFailed, fmt.Sprintf("the first %d trials failed alike and none has reported anything: %s", len(x.Early), err.Error()))
	}
}

func (x *experiment) strike(name string, id training.TrialID) {
	n := x.Nodes[name]
	if n == nil || n.Excluded || slices.Contains(n.Strikes, id) && id != 0 {
		return
	}
	n.Strikes = append(n.Strikes, id)
	if len(n.Strikes) >= nodeStrikes {
		n.Excluded = true
		x.logf("node %s is excluded after %d failures", name, len(n.Strikes))
		for _, w := range x.Executors {
			if w.Node == name && (w.State == executorIdle || w.State == executorBusy) {
				x.drain(w, "its node is excluded")
			}
		}
	}
}

// pardon takes back the strikes that a bad configuration gave to nodes.
func (x *experiment) pardon(id training.TrialID) {
	for name, n := range x.Nodes {
		n.Strikes = slices.DeleteFunc(n.Strikes, func(s training.TrialID) bool { return s == id })
		if n.Excluded && len(n.Strikes) < nodeStrikes {
			n.Excluded = false
			x.logf("node %s is used again: trial %v fails everywhere", name, id)
		}
	}
}

// drain tells an executor to end after what it does.
func (x *experiment) drain(w *executor, reason string) {
	if !w.alive() || w.State == executorDraining {
		return
	}
	x.setExecutor(w, executorDraining, reason)
	x.logf("%s drains: %s", w.ID, reason)
	x.out.wake = true
	x.emit(EventExecutor, x.executorRow(w))
}

// setExecutor changes a state and counts the time spent in the old one.
func (x *experiment) setExecutor(w *executor, s, reason string) {
	d := int64(x.Now - w.Since)
	switch {
	case w.State == executorBusy || w.State == executorDraining && w.Trial != 0:
		x.Counters.BusyMS += d
	case w.State == executorIdle:
		x.Counters.IdleMS += d
	}
	w.State, w.Reason, w.Since = s, reason, x.Now
}

// free takes the trial from an executor whose attempt has ended.
func (x *experiment) free(w *executor) {
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
	x.emit(EventExecutor, x.executorRow(w))
}

// lose takes an executor out.
func (x *experiment) lose(l *lost) {
	w := x.executor(l.Executor)
	if w == nil || !w.alive() {
		return
	}
	if l.Told {
		x.giveUp(w, executorGone, w.Reason, false)
		return
	}
	x.giveUp(w, executorLost, l.Reason, l.Blame)
}

// giveUp ends an executor; what it held is done again from the last checkpoint.
func (x *experiment) giveUp(w *executor, s, reason string, blame bool) {
	x.setExecutor(w, s, reason)
	x.out.release = append(x.out.release, w.Container)
	if s == executorLost {
		x.logf("%s is lost: %s", w.ID, reason)
	}
	t := x.trial(w.Trial)
	w.Trial = 0
	x.emit(EventExecutor, x.executorRow(w))
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

func (x *experiment) expire(e *expired) {
	if e.Trial == 0 {
		x.end(ExperimentFinished, fmt.Sprintf("its time of %s is over", x.spec.Timeout.D()))
		return
	}
	t := x.trial(e.Trial)
	if t == nil || t.Attempt != e.Attempt || !t.State.Held() || t.Stopping != nil {
		return
	}
	err := &training.TrialError{Type: e.Code, Log: x.logPath(t)}
	if e.Code == training.CodeNoReport {
		err.Message = fmt.Sprintf("nothing was reported for %s", x.spec.ReportTimeout.D())
		err.Remedy = "call reporter.broadcast each epoch, or raise report_timeout"
	} else {
		err.Message = fmt.Sprintf("the trial took longer than %s", x.spec.TrialTimeout.D())
		err.Remedy = "raise trial_timeout or do fewer epochs"
	}
	t.Stopping = &stopping{Op: OpStop, State: training.Failed, Error: err, Reason: err.Error(), Since: x.Now}
	x.logf("%v/%d is stopped: %s", t.ID, t.Attempt, err.Error())
	x.touch(t)
}

func (x *experiment) stillborn(s *notStarted) {
	x.Stillborn++
	x.strikeStillborn(s.Node)
	x.logf("container %s ended before its executor began: %s", s.Container, s.Reason)
	if x.Stillborn >= stillbornAllowed && !x.ending() {
		where := ""
		if s.Log != "" {
			where = " (log: " + s.Log + ")"
		}
		x.end(ExperimentFailed, fmt.Sprintf("%d containers in a row ended before their executor began, last: %s%s; is python3 3.9 or later on the nodes?", x.Stillborn, s.Reason, where))
	}
}

func (x *experiment) strikeStillborn(name string) {
	if name != "" && x.Nodes[name] == nil {
		x.Nodes[name] = &node{}
	}
	x.strike(name, 0)
}

func (x *experiment) stopReason() string {
	if x.Ending == ExperimentKilled {
		return x.Reason
	}
	return "the experiment ended: " + x.Reason
}

// end begins the end of the experiment: what runs is told to stop, what waits is stopped at once.
func (x *experiment) end(as, reason string) {
	if x.ending() {
		return
	}
	x.Ending, x.Reason = as, reason
	x.logf("the experiment ends, %s: %s", as, reason)
	for _, t := range x.Trials {
		switch {
		case t.State.Held() && t.Stopping == nil:
			t.Stopping = &stopping{Op: OpStop, State: training.Stopped, Reason: x.stopReason(), Since: x.Now}
			x.touch(t)
		case t.State == training.Pending && t.Error != nil && as == ExperimentFailed:
			x.conclude(t, training.Failed, t.Error.Error())
		case t.State == training.Pending || t.State == training.Paused:
			x.conclude(t, training.Stopped, x.stopReason())
		}
	}
	x.Queue = nil
	x.out.wake = true
}

// settle sees whether the experiment is over. It also wakes executors that wait when there is something for them.
func (x *experiment) settle() {
	if x.over() {
		return
	}
	if x.held() > 0 || len(x.Queue) > 0 {
		x.out.wake = x.out.wake || len(x.Queue) > 0 || x.optimizer.Outlook() > 0
		return
	}
	if x.Ending == "" {
		if x.optimizer.Outlook() > 0 || x.N < 2 {
			x.out.wake = true
			return
		}
		for _, t := range x.Trials {
			if t.State == training.Paused {
				x.conclude(t, training.Stopped, fmt.Sprintf("not promoted beyond %d epochs", t.Budget.To))
			}
		}
		x.Ending = ExperimentFinished
		if x.spec.Optimizer.Type == training.None && x.findBest() == 0 && !slices.ContainsFunc(x.Trials, func(t *trial) bool { return t.State == training.Completed }) ||
			x.spec.Optimizer.Type != training.None && x.findBest() == 0 {
			x.Ending, x.Reason = ExperimentFailed, "no trial ended with a value"
			if n := len(x.Trials); n > 0 && x.Trials[n-1].Error != nil {
				x.Reason += ", last: " + x.Trials[n-1].Error.Error()
			}
		}
	}
	x.State, x.Ending, x.Done = x.Ending, "", x.Now
	x.out.wake = true
	for _, w := range x.Executors {
		if w.alive() {
			x.drain(w, "the experiment is over")
		}
	}
	best := ""
	if b := x.trial(x.Best); b != nil && b.Metric != nil {
		best = fmt.Sprintf("; best %s %.6g in trial %v %s", x.spec.Metric, *b.Metric, b.ID, b.Params.Key())
	}
	x.logf("the experiment is %s%s", x.State, best)
	x.emit(EventExperiment, x.summary())
}

// seedOf derives the seed of a trial's function.
func (x *experiment) seedOf(id training.TrialID) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%d", x.spec.Seed, id)
	return h.Sum64() >> 11 // exact in a float64, for readers that have nothing else
}

// directories of a trial's current attempt.
func (x *experiment) directories(t *trial) Directories {
	dir := path.Join(x.Directory, t.ID.String())
	return Directories{Trial: dir, TensorBoard: dir, Log: x.logPath(t), Checkpoints: path.Join(dir, "checkpoints", fmt.Sprint(t.Attempt))}
}

// logPath is the log of a trial's current attempt.
func (x *experiment) logPath(t *trial) string {
	name := "output.log"
	if t.Attempt > 1 {
		name = fmt.Sprintf("output.%d.log", t.Attempt)
	}
	return path.Join(x.Directory, t.ID.String(), name)
}
