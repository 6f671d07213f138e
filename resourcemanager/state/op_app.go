package state

import (
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// updateApplication changes priority, queue and end of an application, all that the command names or nothing. What it holds and asks for
// goes with it to another queue, which takes it as it takes a submission. One that has ended stays as it is, and the result says how it
// ended.
//
// Errors: ErrNotExist; those of QueueRoom.
func (s *State) updateApplication(c *statepb.UpdateApplication) *Result {
	a := s.app(appIDOf(c.Application))
	if a == nil {
		return &Result{Err: notFound(appIDOf(c.Application))}
	}
	if a.State.Final() {
		return &Result{Application: a.ID, State: a.State}
	}
	if c.Queue != "" {
		if err := s.moveApplication(a, c.Queue); err != nil {
			return &Result{Err: err}
		}
	}
	if c.Priority != nil {
		a.Priority = int(*c.Priority)
	}
	if c.ExpiresMs > 0 {
		a.Expires = metadata.Time(c.ExpiresMs)
	}
	s.setApp(a)
	s.touch.Schedule = true
	return &Result{Application: a.ID, State: a.State}
}

// moveApplication moves a live application to another queue. It does not count twice in the queues that are above both.
func (s *State) moveApplication(a *rm.Application, queue string) error {
	if t := s.queues.tree; t != nil {
		if q := t.Place(queue); q != nil {
			queue = q.Path
		}
	}
	if queue == a.Queue {
		return nil
	}
	from := a.Queue
	s.place(from, a.User, -1)
	a.Queue = queue
	if err := s.queueRoom(s.queues.tree, a); err != nil {
		s.place(from, a.User, 1)
		return err
	}
	s.place(queue, a.User, 1)
	return nil
}
