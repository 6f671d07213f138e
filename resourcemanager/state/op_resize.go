package state

import (
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// resizeJob gives a command another number of instances. Instances that are too many have until the deadline; those whose program has not begun
// end now, and those that were too many before and are wanted again may stay. One that has ended stays as it is.
//
// Error: ErrNotExist.
func (s *State) resizeJob(c *statepb.ResizeJob) *Result {
	id := appIDOf(c.Application)
	a := s.app(id)
	if a == nil {
		return &Result{Err: notFound(id)}
	}
	if a.State.Final() {
		return &Result{Application: id, State: a.State}
	}
	if size := (rm.Size{Max: int(c.Max), Min: int(c.Min)}); a.Size != size {
		a.Size = size
		s.trimAsks(a)
		s.event(a, Event{Changed: true})
		s.setApp(a)
	}
	n := rm.Notice{Since: s.now, Deadline: metadata.Time(c.DeadlineMs), Resized: c.Reason}
	for _, k := range s.containersOf(id) {
		if k.Live() && !k.Master && k.StopStatus == 0 {
			k := *k
			s.resized(&k, a.Surplus(k.Instance), n)
		}
	}
	s.touch.Schedule = true
	return &Result{Application: id, State: a.State}
}

// resized tells a live container whether it is one too many. What goes for somebody else goes on with that.
func (s *State) resized(k *rm.Container, surplus bool, n rm.Notice) {
	switch {
	case surplus && k.Started == 0:
		a := s.app(k.ID.Attempt.Application)
		s.order(a, k.ID, n.Exit(), n.String())
		s.setApp(a)
	case surplus && k.Notice == nil:
		k.Notice = &n
		s.containers.Set(k)
		s.noticed.Set(noticedRow{n.Deadline, k.ID})
		s.tellOf(k)
	case !surplus && k.Notice != nil && k.Notice.Resized != "":
		s.dropNotice(k)
		k.Notice = nil
		s.containers.Set(k)
		s.tellOf(k)
	}
}

// changeMembers ends members of an array for good, those that wait and those that run, or has those run again that have failed or were ended so.
// What has succeeded stays as it is, and so does what runs and is to run. An application that has ended stays as it is.
//
// Errors: ErrNotExist; ErrBusy when there is no room for so many wishes, see Room.
func (s *State) changeMembers(c *statepb.ChangeMembers) *Result {
	id := appIDOf(c.Application)
	a := s.app(id)
	if a == nil {
		return &Result{Err: notFound(id)}
	}
	if a.State.Final() {
		return &Result{Application: id, State: a.State}
	}
	last := map[int]*rm.Container{}
	for _, k := range s.containersOf(id) {
		if old := last[k.Instance]; !k.Master && (old == nil || old.ID.Number < k.ID.Number) {
			last[k.Instance] = k
		}
	}
	members := slices.Clone(a.Members)
	var end []*rm.Container
	changed := false
	for _, number := range c.Numbers {
		at, known := slices.BinarySearchFunc(members, number, func(m rm.Member, n int32) int { return int(m.Number) - int(n) })
		m := rm.Member{Number: number}
		if known {
			m = members[at]
		}
		old, k := m, last[int(number)]
		switch {
		case k != nil && !k.Live() && k.Exit == rm.ExitSuccess, a.Succeeded.Has(int(number)):
		case !c.Retry:
			m.Killed = true
			if k != nil && k.Live() {
				end = append(end, k)
			}
		case m.Killed || k != nil && !k.Live() && k.ID.Number > m.Forgiven:
			m.Killed, m.Forgiven = false, a.Containers
		}
		switch {
		case m == old:
			continue
		case known:
			members[at] = m
		default:
			members = slices.Insert(members, at, m)
		}
		changed = true
	}
	if changed {
		more := memberBytes * int64(len(members)-len(a.Members))
		if err := s.room(a.User, 0, more); err != nil {
			return &Result{Err: err}
		}
		s.hold(a.User, 0, more)
		a.Members = members
		s.trimAsks(a)
		s.event(a, Event{Changed: true})
	}
	for _, k := range end {
		s.order(a, k.ID, rm.ExitKilledByResourceManager, c.Reason)
	}
	s.setApp(a)
	s.forgetContainers()
	s.touch.Schedule = true
	return &Result{Application: id, State: a.State}
}

// trimAsks takes the instances that are wanted no more out of what an application asks for.
func (s *State) trimAsks(a *rm.Application) {
	for _, row := range s.asksOf(a.ID) {
		was := askBytes(&row.Ask)
		if !trim(a, &row.Ask) {
			continue
		}
		if row.Count == 0 {
			s.use(a.User, a.ID, askBytes(&row.Ask)-was)
			s.dropAsk(row)
			continue
		}
		s.asks.Set(row)
		s.use(a.User, a.ID, askBytes(&row.Ask)-was)
	}
}

// trim takes instances that are wanted no more out of an ask, and reports whether there were any.
func trim(a *rm.Application, ask *rm.Ask) bool {
	if a.Size == (rm.Size{}) && len(a.Members) == 0 {
		return false
	}
	left := slices.DeleteFunc(slices.Clone(ask.Instances), func(n int32) bool { return a.Surplus(int(n)) || a.MemberOf(n).Killed })
	if len(left) == len(ask.Instances) {
		return false
	}
	ask.Instances, ask.Count = left, len(left)
	ask.Gang = min(ask.Gang, ask.Count)
	return true
}
