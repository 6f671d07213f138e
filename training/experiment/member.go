package experiment

import (
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/gohops/hops/training"
	"github.com/gohops/hops/training/protocol"
	"github.com/gohops/hops/training/rendezvous"
)

// An attempt at a trial has members, one in each slot that works on it, by rank. A trial that runs alone has one member. A gang has
// several; it is assigned whole, from executors that are idle at that moment, or not at all, so that no two gangs can wait for each
// other's executors. When a member fails or is lost the attempt has ended, and all of its slots are free.

// member is one process of an attempt; its rank is its index.
type member struct {
	Executor string `json:"executor"` // who has it, or had it last
	Slot     int    `json:"slot,omitempty"`
	// Place is its part in the gang, with its address once it has Joined; nil: it runs alone.
	Place  *rendezvous.Member `json:"place,omitempty"`
	Joined bool               `json:"joined,omitempty"`
	Seq    int64              `json:"seq"`            // of its events
	Step   *int64             `json:"step,omitempty"` // last reported
	Log    int64              `json:"log_bytes,omitempty"`
	// Done is what it said when it ended; "": it works.
	Done training.State `json:"done,omitempty"`
}

// trains says whether the gang waits for the member to end.
func (m *member) trains() bool { return m.Place == nil || m.Place.Ends() }

// The times of gangs.
const (
	// elasticWait: a gang begins with fewer than all workers when no further executor has come for so long.
	elasticWait = 5 * time.Second
	// joinTimeout is what the members have until all have joined.
	joinTimeout = 5 * time.Minute
	// idleTimeout: a gang of which no process has done anything for so long waits for itself. Those of NCCL take no longer either.
	idleTimeout = 10 * time.Minute
	// regroup: executors that are too few for a gang, while none works, are given back after so long, to be asked for together.
	regroup = 2 * time.Minute
)

// gangFaults: an executor is replaced when its member's process has died so often. Often a member dies because another did.
const gangFaults = 2

// chief is the member whose reports are the trial's.
func (t *trial) chief() *member { return t.Members[0] }

// executor is who has the chief, or had it last; "" for a trial that nobody ever had.
func (t *trial) executor() string {
	if len(t.Members) == 0 {
		return ""
	}
	return t.Members[0].Executor
}

// at finds the rank of the member in a slot, -1 if there is none.
func (t *trial) at(executor string, slot int) int {
	return slices.IndexFunc(t.Members, func(m *member) bool { return m.Executor == executor && m.Slot == slot && m.Done == "" })
}

// whole says whether all members have joined.
func (t *trial) whole() bool {
	return !slices.ContainsFunc(t.Members, func(m *member) bool { return !m.Joined })
}

// workers is how many members are the chief or workers.
func (t *trial) workers() (n int) {
	for _, m := range t.Members {
		if m.Place == nil || m.Place.Role == training.Chief || m.Place.Role == training.Worker {
			n++
		}
	}
	return n
}

// trained says whether all that train have ended.
func (t *trial) trained() bool {
	return !slices.ContainsFunc(t.Members, func(m *member) bool { return m.trains() && m.Done == "" })
}

// vacate frees the slots of an attempt that has ended.
func (x *Experiment) vacate(t *trial) {
	for _, m := range t.Members {
		x.free(t, m)
	}
}

// free takes a member whose work has ended from its executor.
func (x *Experiment) free(t *trial, m *member) {
	w := x.Executor(m.Executor)
	if m.Done != "" || w == nil || w.Slots[m.Slot] != t.ID {
		return
	}
	w.Slots[m.Slot] = 0
	w.Ended++
	if w.State == executorBusy && w.Holds() == 0 {
		x.setExecutor(w, executorIdle, "")
	} else {
		x.setExecutor(w, w.State, w.Reason)
	}
	x.emit(protocol.EventExecutor, x.ExecutorRow(w))
}

// slots is how many trials an executor runs at once.
func (x *Experiment) slots() int { return max(1, x.Spec.TrialsPerExecutor) }

// separate says whether members that do not train have executors of their own, without devices.
func (x *Experiment) separate() bool {
	d := x.Spec.Distributed
	return d != nil && d.Servers() > 0 && x.Spec.Resources.GPUs > 0
}

// gang chooses the executors of one, in the order of their ranks. ok is false while there are too few.
func (x *Experiment) gang(now training.Millis) (seats []seat, ok bool) {
	d := x.Spec.Distributed
	train, serve, last := x.idle()
	workers, servers := d.Workers, d.Servers()
	if x.separate() {
		if len(serve) < servers {
			return nil, false
		}
		serve = serve[:servers]
	} else {
		serve = nil
		workers += servers // of the same kind
	}
	if len(train) < workers {
		least := workers - d.Workers + d.MinWorkers
		if len(train) < least || now < last.Add(elasticWait) {
			return nil, false
		}
		workers = len(train)
	}
	all := slices.Concat(train[:workers], serve)
	places := make([]rendezvous.Seat, len(all))
	for i, w := range all {
		places[i] = rendezvous.Seat{Host: w.Host, GPUs: w.GPUs}
	}
	members, at, err := rendezvous.Arrange(d.Shape(len(all)-servers), places)
	if err != nil {
		return nil, false // the specification was checked: it cannot be
	}
	for i := range members {
		seats = append(seats, seat{Executor: all[at[i]].ID, Place: &members[i]})
	}
	return seats, true
}

// startable says whether there are executors enough for a gang. Until then those that wait are not woken: each would count all others, at
// each entry.
func (x *Experiment) startable() bool {
	d := x.Spec.Distributed
	if d == nil {
		return true
	}
	train, serve, _ := x.idle()
	if x.separate() {
		return len(train) >= d.MinWorkers && len(serve) >= d.Servers()
	}
	return len(train) >= d.MinWorkers+d.Servers()
}

// idle lists the executors that a gang could have, those that train and those that serve, and when the last one of the former came.
func (x *Experiment) idle() (train, serve []*Executor, last training.Millis) {
	for _, w := range x.Executors {
		switch {
		case w.State != executorIdle || w.Preempted != "":
		case w.Serves:
			serve = append(serve, w)
		default:
			train = append(train, w)
			last = max(last, w.Since)
		}
	}
	return train, serve, last
}

// grows says whether a gang that runs with fewer workers than it may have is to begin again with more.
func (x *Experiment) grows(t *trial) bool {
	d := x.Spec.Distributed
	if d == nil || t.Stopping != nil || t.chief().Done != "" || t.workers() >= d.Workers || x.Closing() {
		return false
	}
	train, _, _ := x.idle()
	spare := len(train)
	if len(x.Queue) > 0 || x.Outlook() > 0 { // others wait as well, and need whole gangs
		spare %= d.MinWorkers
	}
	return spare > 0
}

// join takes a member's address.
func (x *Experiment) join(j *joined) error {
	t := x.Trial(j.Trial)
	if t == nil || t.Attempt != j.Attempt || !t.State.Held() || j.Rank < 0 || j.Rank >= len(t.Members) || t.Members[j.Rank].Place == nil {
		return fmt.Errorf("trial %v/%d has no rank %d", j.Trial, j.Attempt, j.Rank)
	}
	m := t.Members[j.Rank]
	m.Joined = true
	m.Place.Host, m.Place.Interface, m.Place.Ports = j.Host, j.Interface, j.Ports
	if t.whole() {
		t.Whole = x.Now // no process has begun before
		x.out.Wake = true
		x.logf("%v/%d is whole: %d members", t.ID, t.Attempt, len(t.Members))
	}
	return nil
}

// Join takes a member in and says where the others are as soon as all are there.
func (x *Experiment) Join(now training.Millis, container string, id training.TrialID, attempt int, j protocol.Join) (protocol.Joined, *Entry, error) {
	t, m, err := x.fence(container, id, attempt, j.Rank)
	if err != nil {
		return protocol.Joined{}, nil, err
	}
	if m.Place == nil {
		return protocol.Joined{}, nil, Refuse(400, protocol.CodeBadRequest, "trial %v/%d is no gang: nobody joins it", id, attempt)
	}
	if s := t.Stopping; s != nil {
		return protocol.Joined{Op: s.Op, Reason: s.Reason}, nil, nil
	}
	shape := x.Spec.Distributed.Shape(t.workers())
	place := *m.Place
	place.Host, place.Interface, place.Ports = j.Host, j.Interface, j.Ports
	if err := rendezvous.CheckAddress(shape, place); err != nil {
		return protocol.Joined{}, nil, Refuse(400, protocol.CodeBadRequest, "%v", err)
	}
	var e *Entry
	if same := m.Joined && place.Host == m.Place.Host && place.Interface == m.Place.Interface && slices.Equal(place.Ports, m.Place.Ports); !same && !t.whole() {
		if e, err = x.Propose(now, &Entry{Joined: &joined{id, attempt, j}}); err != nil {
			return protocol.Joined{}, nil, err
		}
	}
	if !t.whole() {
		return protocol.Joined{}, e, nil
	}
	members := make([]rendezvous.Member, len(t.Members))
	for i, m := range t.Members {
		members[i] = *m.Place
	}
	env, files, err := rendezvous.Plan(shape, members, j.Rank, rendezvous.Options{
		RunID: x.ID + "-" + id.String(), Generation: attempt, MaxRestarts: *x.Spec.Distributed.Restarts, Threads: x.Spec.Resources.VCores, Given: x.Spec.Env,
	})
	if err != nil {
		return protocol.Joined{}, e, Refuse(400, protocol.CodeBadRequest, "%v", err)
	}
	return protocol.Joined{Ready: true, Members: members, Env: env, Files: files}, e, nil
}

// memberEnds takes the word of a member of a gang for its end, and says whether the attempt goes on without it.
func (x *Experiment) memberEnds(t *trial, rank int, f *ended) (goesOn bool) {
	m := t.Members[rank]
	done := func() { // its slot is free
		x.free(t, m)
		m.Done, t.Left = f.Status, x.Now
	}
	switch {
	case len(t.Members) == 1:
		return false
	case t.Stopping != nil:
		if rank == 0 {
			return false
		}
		done() // collectives break when the first one leaves
		return true
	case t.chief().Done != "": // the result is there; the others only have to end
		done()
		return !x.gangEnds(t, false)
	case f.Status == training.Failed || f.Status == training.Invalid:
		return false
	}
	if rank == 0 {
		t.Returned = f.Metric
	}
	done()
	return !x.gangEnds(t, false)
}

// gangEnds ends a gang whose chief has ended and of which nobody is waited for any more; late: their time is over.
func (x *Experiment) gangEnds(t *trial, late bool) bool {
	if t.chief().Done == "" || !late && slices.ContainsFunc(t.Members, func(m *member) bool { return m.Done == "" }) {
		return false
	}
	x.succeed(t, t.Returned)
	return true
}

// log is the path of a member's log.
func (x *Experiment) log(t *trial, rank int) string {
	name := "output"
	if t.Attempt > 1 {
		name += fmt.Sprintf(".%d", t.Attempt)
	}
	if rank > 0 {
		name += fmt.Sprintf(".rank-%d", rank)
	}
	return path.Join(x.Directory, t.ID.String(), name+".log")
}

// Seat is where a member of a trial's current attempt runs.
func (x *Experiment) Seat(id training.TrialID, rank int) (executor string, slot int, ok bool) {
	t := x.Trial(id)
	if t == nil || rank < 0 || rank >= len(t.Members) {
		return "", 0, false
	}
	return t.Members[rank].Executor, t.Members[rank].Slot, true
}
