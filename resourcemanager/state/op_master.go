package state

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

func notFound(id rm.ApplicationID) error {
	return metadata.Errorf(metadata.ErrNotExist, "app with id: %v not found", id)
}

// current finds the application and attempt that a master speaks for.
//
// Errors: ErrNotExist; ErrStaleAttempt when the attempt is not the current one, its epoch is another, or the application
// has ended; ErrInvalidArgument when it has not registered.
func (s *State) current(id *statepb.ApplicationID, attempt int32, epoch uint64) (*rm.Application, *rm.Attempt, *Result) {
	a := s.app(appIDOf(id))
	if a == nil {
		return nil, nil, &Result{Err: notFound(appIDOf(id))}
	}
	t := a.Attempt()
	switch {
	case a.State.Final():
		return nil, nil, &Result{Err: fmt.Errorf("%w: %v has ended: %s", rm.ErrStaleAttempt, a.ID, a.State)}
	case t == nil || t.Number != int(attempt):
		return nil, nil, &Result{Err: fmt.Errorf("%w: attempt %d of %v is not the current one", rm.ErrStaleAttempt, attempt, a.ID)}
	case t.Epoch == 0:
		return nil, nil, &Result{Err: metadata.Errorf(metadata.ErrInvalidArgument, "attempt %d of %v has not registered", attempt, a.ID)}
	case t.Epoch != epoch:
		return nil, nil, &Result{Err: fmt.Errorf("%w: epoch %d of %v is not the current one", rm.ErrStaleAttempt, epoch, a.ID)}
	}
	return a, t, nil
}

// registerMaster starts the epoch of an attempt, or answers it again. From here on the application is RUNNING, and its
// events begin anew: what came before is in the list of containers, but for who is to go, or to stay after all, which it is told again.
//
// Errors: ErrNotExist, ErrStaleAttempt.
func (s *State) registerMaster(c *statepb.RegisterMaster) *Result {
	a := s.app(appIDOf(c.Application))
	if a == nil {
		return &Result{Err: notFound(appIDOf(c.Application))}
	}
	t := a.Attempt()
	if a.State.Final() || t.Number != int(c.Attempt) || t.Container.IsZero() {
		return &Result{Err: fmt.Errorf("%w: attempt %d of %v is not the current one", rm.ErrStaleAttempt, c.Attempt, a.ID)}
	}
	if t.Epoch == 0 {
		s.registrations++
		t.Epoch = s.registrations
		t.State = rm.AttemptRunning
		a.State = rm.StateRunning
		a.Diagnostics = ""
		if a.Launched == 0 {
			a.Launched = s.now
			s.settle(a)
		}
		unheard := s.dropEvents(a.ID, a.LastEvent)
		a.Acknowledged = a.LastEvent
		s.raise(c.Level)
		if c.Level >= release.RetoldNotices {
			s.retell(a, unheard)
		}
		a.Remembers = a.Remembers || c.Level >= release.RememberedSuccess
	}
	t.HTTP, t.TrackingURL, a.TrackingURL = c.Http, c.TrackingUrl, c.TrackingUrl
	t.Certificate, t.Host, t.Port = c.HttpCertificate, c.Host, int(c.Port)
	s.setApp(a)
	out := &Result{Application: a.ID, Epoch: t.Epoch, Succeeded: a.Succeeded}
	for _, other := range s.containersOf(a.ID) {
		if other.Live() && !other.Master {
			out.Containers = append(out.Containers, other.ID)
		}
	}
	return out
}

// retell tells an attempt that begins which of its application's containers are to go: the list of containers does not say so, and who was told
// before is gone. Who may stay after all is told again, too, where nobody has heard of it: the attempt before may have asked its program to go. In the
// order of their grants. The caller sets the application's row.
func (s *State) retell(a *rm.Application, unheard []Event) {
	about := map[rm.ContainerID]bool{}
	for _, e := range unheard {
		about[e.Preempt] = true
	}
	for _, c := range s.containersOf(a.ID) {
		if !c.Live() || c.Master || c.StopStatus != 0 {
			continue
		}
		if n := s.node(c.Node); c.Notice != nil || n != nil && n.Leaves() || about[c.ID] {
			s.event(a, Event{Preempt: c.ID})
		}
	}
}

// allocate replaces asks, withdraws others and releases containers. A sequence that was seen has no effect again. The
// count of an ask is meant beyond the grants that the master knows of; those it has not acknowledged are taken off, when
// the request says what it has.
//
// Errors: those of current; ErrBusy and ErrInvalidArgument for asks that there is no room for, see RoomForAsks: then
// nothing of the request counts.
func (s *State) allocate(c *statepb.Allocate) *Result {
	a, t, r := s.current(c.Application, c.Attempt, c.Epoch)
	if r != nil {
		return r
	}
	repeat := c.Sequence != 0 && c.Sequence <= t.Sequence
	if !repeat {
		if err := s.roomForAsks(a, c.Asks); err != nil {
			return &Result{Err: err}
		}
	}
	if c.Acknowledged > a.Acknowledged {
		s.touch.Schedule = s.touch.Schedule || a.Deaf()
		a.Acknowledged = min(c.Acknowledged, a.LastEvent)
		s.dropEvents(a.ID, a.Acknowledged)
	}
	if repeat {
		s.setApp(a)
		return &Result{Application: a.ID}
	}
	t.Sequence = max(t.Sequence, c.Sequence)
	var unheard map[string]map[int]int
	if c.Acknowledged > 0 && len(c.Asks) > 0 {
		unheard = s.unheard(a)
	}
	for _, w := range c.Asks {
		s.ask(a, w, unheard)
	}
	for _, id := range c.Cancel {
		if row, ok := s.asks.Get(askRow{app: a.ID, Ask: rm.Ask{ID: id}}); ok {
			s.dropAsk(row)
		}
	}
	for _, id := range c.Release {
		id := containerIDOf(id)
		if row := s.container(id); row != nil && row.ID.Attempt.Application == a.ID && !row.Master {
			s.order(a, id, rm.ExitAborted, "released by its application")
		}
	}
	s.setApp(a)
	s.forgetContainers()
	s.touch.Schedule = true
	return &Result{Application: a.ID}
}

// unheard counts the grants that an application has not acknowledged, by ask and number of the instance.
func (s *State) unheard(a *rm.Application) map[string]map[int]int {
	out := map[string]map[int]int{}
	for _, e := range s.eventsOf(a.ID, a.Acknowledged) {
		if e.Granted.IsZero() {
			continue
		}
		if c, ok := s.containers.Get(&rm.Container{ID: e.Granted}); ok {
			if out[c.Ask] == nil {
				out[c.Ask] = map[int]int{}
			}
			out[c.Ask][c.Instance]++
		}
	}
	return out
}

// ask sets one ask. What was granted of it and is unheard is taken off.
func (s *State) ask(a *rm.Application, w *statepb.WantedAsk, unheard map[string]map[int]int) {
	row := askRow{a.ID, askOf(w.Ask)}
	row.Launch = 0 // ours to give
	granted := unheard[row.ID]
	if len(row.Instances) == 0 {
		for _, n := range granted {
			row.Count -= n
		}
	} else if len(granted) > 0 {
		taken := maps.Clone(granted)
		row.Instances = slices.DeleteFunc(row.Instances, func(i int32) bool {
			taken[int(i)]--
			return taken[int(i)] >= 0
		})
		row.Count = len(row.Instances)
	}
	trim(a, &row.Ask)
	launch := launchOf(w.Launch)
	old, had := s.asks.Get(askRow{app: a.ID, Ask: rm.Ask{ID: row.ID}})
	if had && !row.Held && old.Launch != 0 {
		if l, ok := s.launches.Get(launchRow{app: a.ID, number: old.Launch}); ok && reflect.DeepEqual(l.launch, launch) {
			row.Launch = old.Launch
			s.uses[launchKey{a.ID, row.Launch}]++
		}
	}
	if row.Launch == 0 && row.Count > 0 && !row.Held {
		a.LastLaunch++
		row.Launch = a.LastLaunch
		s.launches.Set(launchRow{a.ID, row.Launch, launch})
		s.use(a.User, a.ID, launchBytes(launch))
		s.uses[launchKey{a.ID, row.Launch}]++
	}
	if had {
		s.dropAsk(old)
	}
	if row.Count <= 0 {
		s.releaseLaunch(a.ID, row.Launch)
		return
	}
	s.asks.Set(row)
	s.use(a.User, a.ID, askBytes(&row.Ask))
}

func (s *State) dropAsk(row askRow) {
	s.asks.Delete(row)
	s.use(s.userOf(row.app), row.app, -askBytes(&row.Ask))
	s.releaseLaunch(row.app, row.Launch)
}

func (s *State) dropAsks(id rm.ApplicationID) {
	for _, row := range s.asksOf(id) {
		s.dropAsk(row)
	}
}

func (t *tables) asksOf(id rm.ApplicationID) []askRow {
	var rows []askRow
	t.asks.Ascend(askRow{app: id}, func(r askRow) bool {
		if r.app != id {
			return false
		}
		rows = append(rows, r)
		return true
	})
	return rows
}

// releaseLaunch forgets what runs in containers when nothing needs it any more.
func (s *State) releaseLaunch(id rm.ApplicationID, number uint64) {
	if number == 0 {
		return
	}
	k := launchKey{id, number}
	if s.uses[k]--; s.uses[k] <= 0 {
		delete(s.uses, k)
		if row, ok := s.launches.Delete(launchRow{app: id, number: number}); ok {
			s.use(s.userOf(id), id, -launchBytes(row.launch))
		}
	}
}

// event numbers an event and keeps it until it is acknowledged. The caller sets the application's row.
func (s *State) event(a *rm.Application, e Event) {
	a.LastEvent++
	e.Application, e.Sequence = a.ID, a.LastEvent
	if !e.Completed.IsZero() {
		s.countUntold(a.User, 1)
	}
	s.events.Set(e)
	s.touch.Applications[a.ID] = true
}

// eventsOf lists the events of an application after a sequence number.
func (t *tables) eventsOf(id rm.ApplicationID, after uint64) []Event {
	var out []Event
	t.events.Ascend(Event{Application: id, Sequence: after + 1}, func(e Event) bool {
		if e.Application != id {
			return false
		}
		out = append(out, e)
		return true
	})
	return out
}

// dropEvents forgets the events of an application up to a sequence number, and returns them.
func (s *State) dropEvents(id rm.ApplicationID, upTo uint64) []Event {
	var heard []Event
	s.events.Ascend(Event{Application: id}, func(e Event) bool {
		if e.Application != id || e.Sequence > upTo {
			return false
		}
		heard = append(heard, e)
		return true
	})
	for _, e := range heard {
		s.events.Delete(e)
		if !e.Completed.IsZero() {
			s.countUntold(s.userOf(id), -1)
		}
	}
	return heard
}
