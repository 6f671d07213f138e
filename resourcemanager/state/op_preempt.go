package state

import (
	"fmt"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// preemptContainers tells containers to go until a deadline, and others that they may stay. Their masters hear of both. Those that were told
// already, that end anyway, or whose master they are, are passed over; one that is held ends at once, because nothing runs in it.
func (s *State) preemptContainers(c *statepb.PreemptContainers) *Result {
	if r := s.stale(c.Epoch); r != nil {
		return r
	}
	out := &Result{}
	for _, p := range c.Spared {
		k := s.container(containerIDOf(p))
		if k == nil || !k.Live() || k.Notice == nil || k.StopStatus != 0 {
			continue
		}
		if a := s.app(k.ID.Attempt.Application); a != nil && a.Surplus(k.Instance) { // it goes all the same
			n := *k.Notice
			n.For, n.Ask, n.Queue, n.Resized = rm.ApplicationID{}, "", "", fmt.Sprintf("%s to %d instances", rm.Resized, a.Size.Max)
			k.Notice = &n
		} else {
			s.dropNotice(k)
			k.Notice = nil
		}
		s.containers.Set(k)
		s.tellOf(k)
	}
	for _, e := range c.Evictions {
		if a := s.app(appIDOf(e.Application)); a == nil || a.State.Final() {
			continue
		}
		n := rm.Notice{Since: s.now, Deadline: metadata.Time(c.DeadlineMs), For: appIDOf(e.Application), Ask: e.Ask, Queue: e.Queue, Moves: e.Moves}
		for _, p := range e.Containers {
			k := s.container(containerIDOf(p))
			if k == nil || !k.Live() || k.Master || k.Notice != nil || k.StopStatus != 0 {
				continue
			}
			out.Noticed++
			if k.Held() {
				s.endContainer(k, rm.ExitPreempted, n.String())
				continue
			}
			k.Notice = &n
			s.containers.Set(k)
			s.noticed.Set(noticedRow{n.Deadline, k.ID})
			s.tellOf(k)
		}
	}
	s.touch.Schedule = true
	return out
}

// tellOf tells a container's master and its node of its notice.
func (s *State) tellOf(k *rm.Container) {
	s.touch.Nodes[k.Node] = true
	if a := s.app(k.ID.Attempt.Application); a != nil && !a.State.Final() {
		s.event(a, Event{Preempt: k.ID})
		s.setApp(a)
	}
}

// dropNotice takes a container off those that wait for the end of their notice.
func (s *State) dropNotice(k *rm.Container) {
	if k.Notice != nil {
		s.noticed.Delete(noticedRow{k.Notice.Deadline, k.ID})
	}
}

// checkpoint records that containers have saved their work. One that is to go is ended now: it has done what its notice was for.
//
// Errors: ErrNotExist when none of them lives; ErrPermission for one of another application. Nothing is recorded then.
func (s *State) checkpoint(c *statepb.Checkpoint) *Result {
	id := appIDOf(c.Application)
	var live []rm.ContainerID
	for _, p := range c.Containers {
		k := s.container(containerIDOf(p))
		switch {
		case containerIDOf(p).Attempt.Application != id:
			return &Result{Err: metadata.Errorf(metadata.ErrPermission, "%v is no container of %v", containerIDOf(p), id)}
		case k != nil && k.Live():
			live = append(live, k.ID)
		}
	}
	if len(live) == 0 {
		return &Result{Err: metadata.Errorf(metadata.ErrNotExist, "none of %d containers of %v lives", len(c.Containers), id)}
	}
	for _, at := range live {
		k := s.container(at)
		k.Checkpointed, k.Step = s.now, c.Step
		s.containers.Set(k)
		s.touch.Nodes[k.Node] = true
		if k.Notice != nil && k.StopStatus == 0 {
			s.order(s.app(id), at, k.Notice.Exit(), fmt.Sprintf("%v; its work is saved up to step %d", k.Notice, c.Step))
		}
	}
	return &Result{Application: id}
}
