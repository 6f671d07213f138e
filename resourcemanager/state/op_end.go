package state

import (
	"fmt"
	"time"

	"github.com/gohops/hops/internal/release"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// finish ends an application with what its master says. The master's own container may end by itself.
func (s *State) finish(c *statepb.Finish) *Result {
	a, t, r := s.current(c.Application, c.Attempt, c.Epoch)
	if r != nil {
		if old := s.app(appIDOf(c.Application)); old != nil && old.State == rm.StateFinished && len(old.Attempts) == int(c.Attempt) {
			return &Result{Application: old.ID} // a repeat
		}
		return r
	}
	t.State = rm.AttemptFinishing
	t.Diagnostics = c.Diagnostics
	if c.TrackingUrl != "" {
		t.TrackingURL = c.TrackingUrl
		a.TrackingURL = c.TrackingUrl
	}
	s.endApp(a, rm.StateFinished, rm.FinalStatus(c.Final), c.Diagnostics)
	s.setApp(a)
	s.forgetContainers()
	return &Result{Application: a.ID}
}

// kill ends an application for a user, or because its time is over. An ended one stays as it is.
func (s *State) kill(c *statepb.Kill) *Result {
	a := s.app(appIDOf(c.Application))
	if a == nil {
		return &Result{Err: notFound(appIDOf(c.Application))}
	}
	if !a.State.Final() {
		s.endApp(a, rm.StateKilled, rm.FinalKilled, c.Diagnostics)
		s.setApp(a)
		s.forgetContainers()
	}
	return &Result{Application: a.ID, State: a.State}
}

// stop orders the end of containers. Those that have ended, or were told already, are left alone.
func (s *State) stop(c *statepb.Stop) *Result {
	if r := s.stale(c.Epoch); r != nil {
		return r
	}
	for _, p := range c.Containers {
		id := containerIDOf(p)
		row := s.container(id)
		if row == nil || c.Held && !row.Held() {
			continue
		}
		a := s.app(id.Attempt.Application)
		if s.order(a, id, rm.ExitStatus(c.Status), c.Reason); a != nil {
			s.setApp(a)
		}
	}
	s.forgetContainers()
	return &Result{}
}

// order tells a live container's node manager to end it. One that is held ends at once: its node knows nothing of it. The caller has the
// application's row, and sets it.
func (s *State) order(a *rm.Application, id rm.ContainerID, status rm.ExitStatus, reason string) {
	c := s.container(id)
	if c == nil || !c.Live() || c.StopStatus != 0 {
		return
	}
	if c.Held() {
		s.endContainerOf(a, c, status, reason)
		return
	}
	s.dropNotice(c)
	c.StopStatus, c.StopReason = status, reason
	s.containers.Set(c)
	s.touch.Nodes[c.Node] = true
}

// endApp makes an application final: nothing more is granted to it, its containers are told to stop. After FINISHED
// the master gets to end by itself. The caller sets the row.
func (s *State) endApp(a *rm.Application, state rm.State, final rm.FinalStatus, diagnostics string) {
	a.State, a.Final, a.Diagnostics, a.Finished = state, final, diagnostics, s.now
	s.ended++
	a.Ended = s.ended
	s.ending.add(a)
	if containers := s.endedContainers[a.ID]; containers != nil {
		containers.Scan(func(n uint64, id rm.ContainerID) bool {
			s.gone.Set(n, id)
			return true
		})
	}
	if _, live := s.live.Get(a.ID); live {
		s.hold(a.User, 0, -documentBytes(a))
	}
	a.Document, a.Tokens, a.Members, a.Succeeded = nil, nil, nil, nil // nothing starts from it any more
	s.unawait(a)
	s.dropAsks(a.ID)
	s.dropEvents(a.ID, a.LastEvent)
	status, reason := rm.ExitApplicationDone, fmt.Sprintf("%v has ended: %s", a.ID, state)
	if state == rm.StateKilled {
		status, reason = rm.ExitKilledByResourceManager, fmt.Sprintf("%v was killed: %s", a.ID, diagnostics)
	}
	for _, c := range s.containersOf(a.ID) {
		if c.Live() && !(c.Master && state == rm.StateFinished) {
			s.order(a, c.ID, status, reason)
		}
	}
	if t := a.Attempt(); t != nil && t.State == rm.AttemptScheduled {
		t.State, t.Finished = rm.AttemptKilled, s.now
	}
	if a.Live == 0 {
		s.leave(a)
	}
	s.touch.Schedule = true
	s.settle(a)
}

// leave takes an application that has ended and holds nothing any more off the live ones.
func (s *State) leave(a *rm.Application) {
	s.touch.Credentials = true
	s.ending.drop(a)
	s.over.add(a)
	if _, live := s.live.Delete(a.ID); live {
		s.hold(a.User, -1, 0)
		s.place(a.Queue, a.User, -1)
	}
}

// endContainer records the end of a live container, gives its resources back, and tells its application.
func (s *State) endContainer(c *rm.Container, exit rm.ExitStatus, diagnostics string) {
	a := s.app(c.ID.Attempt.Application)
	if s.endContainerOf(a, c, exit, diagnostics); a != nil {
		s.setApp(a)
	}
	s.forgetContainers()
}

// endContainerOf is endContainer for who has the application's row, and sets it; nil: it is forgotten, which it never is while it has live
// containers.
func (s *State) endContainerOf(a *rm.Application, c *rm.Container, exit rm.ExitStatus, diagnostics string) {
	if c.Held() {
		s.onHold.Delete(heldRow{c.Granted, c.ID})
	}
	s.dropNotice(c)
	if c.StopStatus != 0 && c.Notice != nil && c.StopStatus == c.Notice.Exit() {
		exit = c.StopStatus // whatever it answers the signal with, it did not end by itself
	}
	if exit == rm.ExitSuccess && c.StopStatus == rm.ExitKilledByResourceManager && a != nil && !c.Master {
		if m := a.MemberOf(int32(c.Instance)); m.Killed || m.Forgiven >= c.ID.Number {
			exit = c.StopStatus // a member of an array that was killed has not done its part, however well it ended
		}
	}
	if c.StopStatus != 0 && (exit == 137 || exit == 143 || exit == rm.ExitUnknown) {
		exit = c.StopStatus // the signal was ours
	}
	c.State, c.Exit, c.Diagnostics, c.Finished, c.Asked = rm.ContainerComplete, exit, diagnostics, s.now, nil
	s.ended++
	c.Ended = s.ended
	s.containers.Set(c)
	if a != nil {
		s.addEndedContainer(c, a.State.Final())
	}
	s.byNode.Delete(nodeRow{c.Node, c.ID})
	for _, u := range c.GPUs {
		delete(s.holders, u)
	}
	s.closeLedger(c)
	s.releaseLaunch(c.ID.Attempt.Application, c.Launch)
	if n := s.node(c.Node); n != nil {
		n.Used = n.Used.Sub(c.Resource)
		n.Live--
		n.Exclusive = n.Exclusive && n.Live > 0
		s.nodes.Set(n)
	}
	s.touch.Nodes[c.Node] = true
	s.touch.Schedule = true
	if a == nil {
		return
	}
	a.Used = a.Used.Sub(c.Resource)
	a.Live--
	a.Spent = a.Spent.Add(c.Resource, int64(c.Finished-c.Granted))
	switch {
	case c.Master:
		s.endAttempt(a, c)
	case !a.State.Final():
		s.event(a, Event{Completed: c.ID})
	}
	if a.State.Final() && a.Live == 0 {
		s.leave(a)
	}
}

// maxFaults bounds the attempts that ended by the cluster's fault, which cost none of the application's tries.
const maxFaults = 20

// failuresInterval: an attempt that ran for so long makes the failures before it forgotten (YARN's
// attempt-failures-validity-interval, YARN-611). A master that runs for days may fail every day.
const failuresInterval = 10 * time.Minute

// endAttempt follows the end of a master's container: the application ends too, or tries again.
func (s *State) endAttempt(a *rm.Application, c *rm.Container) {
	t := a.Attempt()
	if t == nil || t.Container != c.ID || t.State.Final() {
		return
	}
	t.Finished = s.now
	if a.State.Final() {
		switch {
		case t.State == rm.AttemptFinishing:
			t.State = rm.AttemptFinished
		case a.State == rm.StateKilled:
			t.State = rm.AttemptKilled
		default:
			t.State = rm.AttemptFailed
		}
		return
	}
	t.State = rm.AttemptFailed
	t.Diagnostics = fmt.Sprintf("the application's master, container %v on %s, ended without finishing: %v", c.ID, c.Node, c.Exit)
	if c.Diagnostics != "" {
		t.Diagnostics += ": " + c.Diagnostics
	}
	if !c.Exit.ClusterFault() {
		if c.Started > 0 && time.Duration(s.now-c.Started)*time.Millisecond > failuresInterval {
			a.Failures = 0
		}
		a.Failures++
	}
	if a.Failures >= a.MaxAttempts || len(a.Attempts) >= a.MaxAttempts+maxFaults {
		s.endApp(a, rm.StateFailed, rm.FinalFailed, fmt.Sprintf("Application %v failed %d times; the last time %s",
			a.ID, len(a.Attempts), t.Diagnostics))
		return
	}
	s.dropAsks(a.ID)
	a.State = rm.StateAccepted
	a.Diagnostics = t.Diagnostics
	for _, other := range s.containersOf(a.ID) {
		if !a.KeepContainers || other.Held() { // as in YARN, only what runs is kept
			s.order(a, other.ID, rm.ExitAborted, fmt.Sprintf("attempt %d of %v has ended", t.Number, a.ID))
		}
	}
	s.newAttempt(a)
}

// forgetContainers drops the oldest ended containers when there are too many: of ended applications first, so that a master
// that starts again is told of all that its application has had. What a master has not been told of yet stays, and of those that succeeded their
// numbers. What stays has a bound of its own, see heldBack, and drives out nobody's; below release.Forgetting it counts.
func (s *State) forgetContainers() {
	for {
		count, may := s.containerCount, func(rm.ContainerID) bool { return true }
		if s.level >= release.Forgetting {
			count -= s.untoldCount
			may = func(id rm.ContainerID) bool { return s.forgettable(s.container(id)) }
		}
		if count <= s.config.MaxEndedContainers {
			return
		}
		c := s.container(s.oldestEndedContainer(may))
		if c == nil || !s.forgettable(c) {
			return
		}
		s.remember(s.app(c.ID.Attempt.Application), c)
		s.dropEndedContainer(c)
		s.containers.Delete(c)
	}
}

// forgettable reports whether nobody has to be told of an ended container any more.
func (s *State) forgettable(c *rm.Container) bool {
	a, ok := s.apps.Get(&rm.Application{ID: c.ID.Attempt.Application})
	return !ok || a.State.Final() || s.told(a, c)
}

// remember notes with a live application that an instance has succeeded whose container is being forgotten: its master would run it again.
func (s *State) remember(a *rm.Application, c *rm.Container) {
	if a == nil || a.State.Final() || !a.Remembers || c.Master || c.Exit != rm.ExitSuccess || a.Succeeded.Has(c.Instance) {
		return
	}
	before := documentBytes(a)
	a.Succeeded = a.Succeeded.With(c.Instance)
	s.hold(a.User, 0, documentBytes(a)-before)
	s.setApp(a)
}

// told reports whether an application's master has acknowledged the end of a container. Events are in the order of ends.
func (s *State) told(a *rm.Application, c *rm.Container) bool {
	told := true
	s.events.Ascend(Event{Application: a.ID, Sequence: a.Acknowledged + 1}, func(e Event) bool {
		if e.Application != a.ID {
			return false
		}
		if e.Completed.IsZero() {
			return true
		}
		first := s.container(e.Completed)
		told = first != nil && c.Ended < first.Ended
		return false
	})
	return told
}

// openLedger and closeLedger write the ledger of devices.
func (s *State) openLedger(c *rm.Container) {
	if len(c.GPUs) == 0 {
		return
	}
	s.lastLedger++
	s.ledger.Set(ledgerRow{s.lastLedger, rm.Grant{Container: c.ID, Node: c.Node, GPUs: c.GPUs, From: c.Granted}})
	s.open[c.ID] = s.lastLedger
}

func (s *State) closeLedger(c *rm.Container) {
	n, ok := s.open[c.ID]
	if !ok {
		return
	}
	delete(s.open, c.ID)
	row, _ := s.ledger.Get(ledgerRow{number: n})
	row.To = s.now
	s.ledger.Set(row)
	if s.ledger.Len()-len(s.open) > s.config.MaxLedger {
		s.ledger.Scan(func(l ledgerRow) bool {
			if l.To == 0 {
				return true
			}
			s.ledger.Delete(l)
			return false
		})
	}
}
