// Package experiment is the pure part of an experiment: what a line of its journal does to its state, and which lines a request
// makes. It has no clock, goroutine or I/O; training/controller brings the time, writes the lines and carries out the effects.
package experiment

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/checkpoint"
	"github.com/gohops/hops/training/protocol"
	"github.com/gohops/hops/training/search"
)

// Experiment is the state machine of one experiment: entries in, decisions out. It has no clock, no goroutine and does
// no I/O; the controller around it brings the time inside entries, writes them to the journal and carries out what
// effects say.
//
// A proposal (register, next, report, commit, final in propose.go) checks a request against the state and, if it changes
// anything, makes an entry and applies it. Applying the same entries again, in order, makes the same state.
type Experiment struct {
	state
	optimizer search.Optimizer
	stopper   search.EarlyStop
	finished  []search.TrialView // the trials of state.Compared
	blobs     *checkpoint.Blobs  // of the trials' checkpoints; nil: not counted yet

	// Compare: suggestions and decisions of the journal are compared with those of this program's search instead of adopted.
	Compare bool
	fresh   bool // the entry that is applied is being proposed: suggestions and decisions are to be made

	out Effects
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
	Begun   training.Millis `json:"begun"` // created, or resumed last
	Done    training.Millis `json:"done,omitempty"`
	// Ending is the state that the experiment gets as soon as no executor holds a trial.
	Ending string `json:"ending,omitempty"`

	Trials    []*trial           `json:"trials"` // trial n at n-1
	Queue     []training.TrialID `json:"queue"`  // to be done again, the longest waiting first
	Executors []*Executor        `json:"executors"`
	Nodes     map[string]*node   `json:"nodes"`
	Compared  []training.TrialID `json:"compared"`  // completed or stopped early, in this order: what the stopper compares with
	Concluded int                `json:"concluded"` // trials that have ended or are paused
	Best      training.TrialID   `json:"best,omitempty"`
	Counters  protocol.Counters  `json:"counters"`
	// Early are the trials that failed while nothing in the experiment ever worked, with the type of error they share.
	Early     []training.TrialID `json:"early,omitempty"`
	EarlyType string             `json:"early_type,omitempty"`
	Worked    bool               `json:"worked,omitempty"` // something was reported or completed
	// Stillborn counts containers in a row that ended before an executor registered.
	Stillborn int `json:"stillborn,omitempty"`
	// Held counts the trials that executors have.
	Held int `json:"held,omitempty"`
}

type trial struct {
	ID         training.TrialID           `json:"id"`
	State      training.State             `json:"state"`
	Params     training.Params            `json:"params"`
	Label      string                     `json:"label,omitempty"` // of its last suggestion
	Attempt    int                        `json:"attempt"`
	Failures   int                        `json:"failures,omitempty"`
	FailedOn   []string                   `json:"failed_on,omitempty"` // nodes on which the function failed
	Budget     training.Budget            `json:"budget"`
	Last       bool                       `json:"last"` // the budget is the trial's last
	Curve      search.Curve               `json:"curve"`
	Members    []*member                  `json:"members,omitempty"` // of this attempt, by rank
	Checks     []training.Checkpoint      `json:"checkpoints,omitempty"`
	Resume     *training.Checkpoint       `json:"resume,omitempty"`
	Source     *search.Source             `json:"source,omitempty"` // whose checkpoint it begins from, until it has one of its own
	Stopping   *stopping                  `json:"stopping,omitempty"`
	Metric     *float64                   `json:"metric,omitempty"` // final one
	Values     map[string]float64         `json:"values,omitempty"` // the last of each objective, where there are several
	Outputs    map[string]json.RawMessage `json:"outputs,omitempty"`
	Error      *training.TrialError       `json:"error,omitempty"`
	Reason     string                     `json:"reason,omitempty"`
	Promotions int                        `json:"promotions,omitempty"`
	Resumed    int                        `json:"resumed,omitempty"`
	Started    training.Millis            `json:"started,omitempty"`
	Ended      training.Millis            `json:"ended,omitempty"`
	Assigned   training.Millis            `json:"assigned,omitempty"` // this attempt
	Heard      training.Millis            `json:"heard,omitempty"`    // last event of this attempt
	Whole      training.Millis            `json:"whole,omitempty"`    // when the last member of this attempt's gang came; 0: no gang, or not yet
	Answers    []finalAnswer              `json:"answers,omitempty"`
	// Returned is the metric of a chief that has ended before its gang, and Left is when the last of it did.
	Returned *training.Metric `json:"returned,omitempty"`
	Left     training.Millis  `json:"left,omitempty"`
	// YieldsTo is the better trial for which it is to give its slot up; Yields is how often it did.
	YieldsTo training.TrialID `json:"yields_to,omitempty"`
	Yields   int              `json:"yields,omitempty"`
	// Borrowed is the other trial whose checkpoint this attempt began from.
	Borrowed training.TrialID `json:"borrowed,omitempty"`
	// Cut is the state that the trial goes back to when the experiment is resumed, whose end had ended it. Empty: it had its
	// own end.
	Cut training.State `json:"cut,omitempty"`
}

// finalAnswer is what the final of a member got in the last attempt that had one, to be given again.
type finalAnswer struct {
	Attempt int `json:"attempt"`
	Rank    int `json:"rank,omitempty"`
	protocol.Finished
}

// stopping is a decision that an executor has yet to carry out. State is what becomes of the trial then: STOPPED,
// PAUSED or COMPLETED (by the value at the end of its budget), FAILED (with Error).
type stopping struct {
	Op     string               `json:"op"`
	Reason string               `json:"reason"`
	State  training.State       `json:"state"`
	Error  *training.TrialError `json:"error,omitempty"`
	Since  training.Millis      `json:"since"`
	// Early: by the early stopping policy or the search, after Epochs.
	Early  bool `json:"early,omitempty"`
	Epochs int  `json:"epochs,omitempty"`
	// End: because the experiment ends.
	End bool `json:"end,omitempty"`
}

// The states of an executor.
const (
	executorIdle     = "IDLE"
	executorBusy     = "BUSY"
	ExecutorDraining = "DRAINING"
	executorGone     = "GONE"
	executorLost     = "LOST"
)

type Executor struct {
	ID        string   `json:"id"`
	Container string   `json:"container"`
	Instance  string   `json:"instance"`
	Node      string   `json:"node,omitempty"`
	Host      string   `json:"host"`
	GPUs      []string `json:"gpus,omitempty"`
	State     string   `json:"state"`
	Reason    string   `json:"reason,omitempty"`
	// Slots are the trials that it holds, 0 where it holds none.
	Slots  []training.TrialID `json:"slots"`
	Ended  int                `json:"ended,omitempty"`
	Faults int                `json:"faults,omitempty"` // processes of gangs that died in it
	// Serves: it is for the members of gangs that do not train, and has no devices.
	Serves    bool            `json:"serves,omitempty"`
	Since     training.Millis `json:"since"` // of State
	Preempted string          `json:"preempted,omitempty"`
}

func (e *Executor) Alive() bool { return e.State != executorLost && e.State != executorGone }

// Holds is how many trials it has.
func (e *Executor) Holds() (n int) {
	for _, id := range e.Slots {
		if id != 0 {
			n++
		}
	}
	return n
}

// node collects failures. A failure counts once per trial, so that one bad configuration does not condemn a machine.
type node struct {
	Strikes []strike `json:"strikes,omitempty"`
	// Excluded and Silent are until when it gives no executors, because of its strikes and because nothing was heard of one there.
	Excluded training.Millis `json:"excluded,omitempty"`
	Silent   training.Millis `json:"silent,omitempty"`
}

// strike is a failure on a node. Trial 0: of an executor that held none.
type strike struct {
	Trial training.TrialID `json:"trial,omitempty"`
	At    training.Millis  `json:"at"`
}

// until is when the node may give executors again, 0: it may.
func (n *node) until() training.Millis { return max(n.Excluded, n.Silent) }

// The exclusion rules, Hopsworks' defaults: an executor is replaced after one failure.
const (
	nodeStrikes      = 2 // then the node gets no more executors
	trialFailures    = 3 // then the trial is FAILED
	invalidNodes     = 2 // the function failed on so many nodes: the trial is INVALID
	earlyFailures    = 3 // trials that failed alike while nothing worked: the experiment is FAILED
	stillbornAllowed = 3 // containers in a row whose executor never registered: the experiment is FAILED

	strikeLife    = time.Hour   // then a strike, and the exclusion that it led to, is forgotten
	silentAvoided = time.Minute // a node of which nothing was heard gives no executors for so long: by then others know whether it is gone
)

// Effects are what the controller does after the entries that caused them are in the journal.
type Effects struct {
	Events  []StreamEvent // for those who watch
	Touched map[training.TrialID]bool
	Deletes []string // checkpoint directories
	Release []string // containers that are not wanted any more
	Lines   []string // for controller.log
	Wake    bool     // executors that wait may get something now
	Entries []*Entry // that were proposed, for the journal
	Steer   []Steered
}

// StreamEvent is a server-sent event before it is encoded.
type StreamEvent struct {
	ID   int64
	Name string
	Data any
}

func New() *Experiment {
	return &Experiment{state: state{Nodes: map[string]*node{}}}
}

// Take returns the effects gathered since the last call.
func (x *Experiment) Take() Effects {
	out := x.out
	x.out = Effects{}
	return out
}

func (x *Experiment) logf(format string, args ...any) {
	x.out.Lines = append(x.out.Lines, fmt.Sprintf("%s %5d  %s", x.Now.Time().UTC().Format("2006-01-02T15:04:05.000Z"), x.N, fmt.Sprintf(format, args...)))
}

func (x *Experiment) emit(name string, data any) {
	x.out.Events = append(x.out.Events, StreamEvent{x.N, name, data})
}

// touch says that a trial changed its state.
func (x *Experiment) touch(t *trial) {
	if x.out.Touched == nil {
		x.out.Touched = map[training.TrialID]bool{}
	}
	x.out.Touched[t.ID] = true
	x.emit(protocol.EventTrial, x.Row(t, false))
	if t.State.Final() || t.State == training.Paused {
		x.emit(protocol.EventExperiment, x.Summary())
	}
}

// setState changes a trial's state and keeps the count of those that need nothing more for now. A trial that is not held any more
// leaves its executors.
func (x *Experiment) setState(t *trial, s training.State) {
	rests := func(s training.State) bool { return s.Final() || s == training.Paused }
	if rests(t.State) {
		x.Concluded--
	}
	switch {
	case t.State.Held() && !s.Held():
		x.Held--
		x.vacate(t)
		x.unpin(t)
	case !t.State.Held() && s.Held():
		x.Held++
	}
	t.State = s
	if rests(s) {
		x.Concluded++
	}
}

// Trial finds a trial, nil if there is none.
func (x *Experiment) Trial(id training.TrialID) *trial {
	if id < 1 || int(id) > len(x.Trials) {
		return nil
	}
	return x.Trials[id-1]
}

// Executor finds an executor, nil if there is none.
func (x *Experiment) Executor(id string) *Executor {
	digits, _ := strings.CutPrefix(id, "e")
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > len(x.Executors) || x.Executors[n-1].ID != id {
		return nil
	}
	return x.Executors[n-1]
}

// InContainer finds the newest executor of a container.
func (x *Experiment) InContainer(container string) *Executor {
	for _, e := range slices.Backward(x.Executors) {
		if e.Container == container {
			return e
		}
	}
	return nil
}

// Over reports whether the experiment has reached its last state.
func (x *Experiment) Over() bool { return x.State != protocol.ExperimentRunning }

// Closing reports whether nothing new is to be started.
func (x *Experiment) Closing() bool { return x.Over() || x.Ending != "" }

// Wanted is how many executors there should be, of those that train or of those that serve.
func (x *Experiment) Wanted(serves bool) int {
	if x.Closing() {
		n := 0
		for _, w := range x.Executors {
			if w.Serves == serves && w.Holds() > 0 {
				n++
			}
		}
		return n
	}
	work := x.Held + len(x.Queue) + x.Outlook()
	if x.Open() { // more may be suggested as soon as somebody could run it
		work = x.Spec.Executors * x.slots()
	}
	d := x.Spec.Distributed
	switch {
	case serves && !x.separate():
		return 0
	case d == nil:
		return min(x.Spec.Executors, (work+x.slots()-1)/x.slots())
	}
	gangs := min(x.Spec.Executors/d.Shape(d.Workers).Size(), work)
	switch {
	case serves:
		return gangs * d.Servers()
	case x.separate():
		return gangs * d.Workers
	}
	return gangs * d.Shape(d.Workers).Size()
}

// Usable counts the executors of a kind that work or wait for work.
func (x *Experiment) Usable(serves bool) (n int) {
	for _, e := range x.Executors {
		if e.Serves == serves && (e.State == executorIdle || e.State == executorBusy) {
			n++
		}
	}
	return n
}

// Outlook is how many trials the search can begin now.
func (x *Experiment) Outlook() int { return x.optimizer.Outlook() }

// Excluded lists the nodes that are to give no more executors.
func (x *Experiment) Excluded() []string {
	var out []string
	for name, n := range x.Nodes {
		if n.until() > 0 {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Apply takes one entry into the state. It fails only when the entry cannot follow those before it: the journal is of
// another version or damaged.
func (x *Experiment) Apply(e *Entry) error {
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
	case e.Joined != nil:
		err = x.join(e.Joined)
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
		if w := x.Executor(e.Drained.Executor); w != nil {
			x.drain(w, e.Drained.Reason)
		}
	case e.Preempted != nil:
		x.preempt(e.Preempted)
	case e.Stopped != nil:
		reason := "stopped by " + e.Stopped.User
		if e.Stopped.Reason != "" {
			reason += ": " + e.Stopped.Reason
		}
		x.end(protocol.ExperimentKilled, reason)
	case e.Forgiven != nil:
		x.forgive(e.Forgiven.Node)
	case e.NotStarted != nil:
		x.stillborn(e.NotStarted)
	case e.Resumed != nil:
		err = x.resume(e.Resumed)
	case e.Suggested != nil:
		err = x.suggested(e.Suggested)
	case e.Decided != nil:
		err = x.decided(e.Decided)
	case e.Broken != nil:
		x.broken(e.Broken)
	}
	if err != nil {
		return fmt.Errorf("journal entry %d (%s): %w", e.N, e.Kind, err)
	}
	x.settle()
	return nil
}

func (x *Experiment) create(c *Created) error {
	if c.Version != Version {
		return fmt.Errorf("format %d, this program reads %d", c.Version, Version)
	}
	if x.N != 1 || c.Spec == nil {
		return fmt.Errorf("an experiment is created once, with a specification")
	}
	x.ID, x.Application, x.User, x.Directory, x.Spec = c.ID, c.Application, c.User, c.Directory, c.Spec
	x.Created, x.Begun, x.State = x.Now, x.Now, protocol.ExperimentRunning
	x.logf("%s %q by %s: %s over %d parameters, %d trials on %d executors", x.ID, c.Spec.Name, x.User, c.Spec.Optimizer.Type, len(c.Spec.Space), c.Spec.Trials, c.Spec.Executors)
	return x.prepare()
}

// prepare makes what follows from the specification, which may come from a damaged file.
func (x *Experiment) prepare() (err error) {
	x.Spec.SetDefaults(x.User)
	if err := x.Spec.Validate(); err != nil {
		return err
	}
	if x.optimizer, err = search.New(x.Spec); err != nil {
		return err
	}
	x.stopper, err = search.NewEarlyStop(x.Spec.EarlyStop)
	return err
}

func (x *Experiment) start(s *Started) {
	x.Attempt = s.Attempt
	x.logf("controller attempt %d", s.Attempt)
	for _, w := range x.Executors {
		if w.Alive() && !slices.Contains(s.Containers, w.Container) {
			x.giveUp(w, executorLost, "its container ended while the controller was away", false)
		}
	}
}

func (x *Experiment) registered(r *registered) {
	if w := x.InContainer(r.Container); w != nil && w.Alive() {
		x.giveUp(w, executorLost, "its process was replaced by another one in the same container", true)
		x.out.Release = x.out.Release[:len(x.out.Release)-1] // the container is the new one's
	}
	w := &Executor{
		ID: fmt.Sprintf("e%04d", len(x.Executors)+1), Container: r.Container, Instance: r.Instance, Node: r.Node,
		Host: r.Host, GPUs: r.GPUs, State: executorIdle, Since: x.Now, Slots: make([]training.TrialID, x.slots()), Serves: r.Serves,
	}
	x.Executors = append(x.Executors, w)
	x.Stillborn = 0
	if r.Node != "" && x.Nodes[r.Node] == nil {
		x.Nodes[r.Node] = &node{}
	}
	x.out.Wake = x.out.Wake || x.Open() // who suggests waits for it
	x.logf("executor %s on %s in %s", w.ID, w.Host, w.Container)
	x.emit(protocol.EventExecutor, x.ExecutorRow(w))
}

// end begins the end of the experiment: what runs is told to stop, what waits is stopped at once.
func (x *Experiment) end(as, reason string) {
	if x.Closing() {
		return
	}
	x.Ending, x.Reason = as, reason
	x.logf("the experiment ends, %s: %s", as, reason)
	for _, t := range x.Trials {
		switch {
		case t.State.Held() && t.chief().Done != "": // its result is there, and its time to end runs
		case t.State.Held() && t.Stopping == nil:
			t.Stopping = &stopping{Op: protocol.OpStop, State: training.Stopped, Reason: x.stopReason(), Since: x.Now, End: true}
			x.touch(t)
		case t.State == training.Pending && t.Error != nil && as == protocol.ExperimentFailed:
			t.Cut = t.State
			x.conclude(t, training.Failed, t.Error.Error())
		case t.State == training.Pending || t.State == training.Paused:
			t.Cut = t.State
			x.conclude(t, training.Stopped, x.stopReason())
		}
	}
	x.Queue = nil
	x.out.Wake = true
}

// resume goes on with an experiment that was over, or whose last controller is gone: what its end had cut short is to be
// done again, from the last checkpoint, and nobody is blamed for what was.
func (x *Experiment) resume(r *Resumed) error {
	if why := x.NotResumable(); why != "" {
		return fmt.Errorf("%s", why)
	}
	x.Application, x.Attempt = r.Application, 0
	x.State, x.Reason, x.Ending, x.Done, x.Begun = protocol.ExperimentRunning, "", "", 0, x.Now
	x.Early, x.EarlyType, x.Stillborn = nil, "", 0
	for _, n := range x.Nodes {
		*n = node{}
	}
	for _, t := range x.Trials {
		if t.Stopping != nil && t.Stopping.End {
			t.Stopping = nil // its executor is given up with those of the last application
		}
		if t.Cut == "" {
			continue
		}
		x.setState(t, t.Cut)
		t.Cut, t.Reason, t.Error, t.Ended = "", "the experiment was resumed", nil, 0
		if t.State == training.Pending {
			t.Failures, t.FailedOn, t.Metric = 0, nil, nil
			x.optimizer.Observe(search.Event{Kind: search.Resumed, Trial: t.ID, Epochs: t.Curve.Len()})
			x.tell(t, search.Resumed, 0, nil)
			x.Queue = append(x.Queue, t.ID)
		}
		x.touch(t)
	}
	x.Best = x.findBest()
	x.logf("resumed by %s as %s", r.User, r.Application)
	x.emit(protocol.EventExperiment, x.Summary())
	return nil
}

// NotResumable says why an experiment cannot be gone on with, "" if it can.
func (x *Experiment) NotResumable() string {
	if x.State == protocol.ExperimentFinished {
		return x.ID + " has finished: there is nothing to resume"
	}
	return ""
}

// settle sees whether the experiment is over. It also wakes executors that wait when there is something for them.
func (x *Experiment) settle() {
	if x.Over() {
		return
	}
	if x.Held > 0 || len(x.Queue) > 0 {
		x.out.Wake = x.out.Wake || (len(x.Queue) > 0 || x.Outlook() > 0) && x.startable()
		return
	}
	if x.Ending == "" {
		if x.Outlook() > 0 || x.N < 2 || x.Open() {
			x.out.Wake = x.out.Wake || x.Open() || x.startable()
			return
		}
		for _, t := range x.Trials {
			if t.State == training.Paused {
				x.conclude(t, training.Stopped, fmt.Sprintf("not promoted beyond %d epochs", t.Budget.To))
			}
		}
		x.Ending = protocol.ExperimentFinished
		if x.Spec.Optimizer.Type == training.None && x.findBest() == 0 && !slices.ContainsFunc(x.Trials, func(t *trial) bool { return t.State == training.Completed }) ||
			x.Spec.Optimizer.Type != training.None && x.findBest() == 0 {
			x.Ending, x.Reason = protocol.ExperimentFailed, "no trial ended with a value"
			if n := len(x.Trials); n > 0 && x.Trials[n-1].Error != nil {
				x.Reason += fmt.Sprintf(", last trial %v: %s", x.Trials[n-1].ID, x.Trials[n-1].Error.Error())
			}
		}
	}
	x.State, x.Ending, x.Done = x.Ending, "", x.Now
	x.out.Wake = true
	for _, w := range x.Executors {
		if w.Alive() {
			x.drain(w, "the experiment is over")
		}
	}
	best := ""
	if b := x.Trial(x.Best); b != nil && b.Metric != nil {
		best = fmt.Sprintf("; best %s %.6g in trial %v %s", x.Spec.Metric, *b.Metric, b.ID, b.Params.Key())
	}
	x.logf("the experiment is %s%s", x.State, best)
	x.emit(protocol.EventExperiment, x.Summary())
}

// seedOf derives the seed of a trial's function.
func (x *Experiment) seedOf(id training.TrialID) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d/%d", x.Spec.RandomSeed(), id)
	return h.Sum64() >> 11 // exact in a float64, for readers that have nothing else
}

// Directories of a member of a trial's current attempt.
func (x *Experiment) Directories(t *trial, rank int) protocol.Directories {
	dir := path.Join(x.Directory, t.ID.String())
	return protocol.Directories{Trial: dir, TensorBoard: dir, Log: x.log(t, rank), Checkpoints: path.Join(dir, "checkpoints", fmt.Sprint(t.Attempt)), Blobs: x.BlobsDir()}
}
