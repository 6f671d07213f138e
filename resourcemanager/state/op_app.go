package state

import (
	"github.com/gohops/hops/metadata"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// updateApplication changes priority, queue and end of an application, all that the command names or nothing. What it holds and asks for
// goes with it to another queue: queues have no sums of their own here. One that has ended stays as it is, and the result says how it
// ended.
//
// Error: ErrNotExist.
func (s *State) updateApplication(c *statepb.UpdateApplication) *Result {
	a := s.app(appIDOf(c.Application))
	if a == nil {
		return &Result{Err: notFound(appIDOf(c.Application))}
	}
	if a.State.Final() {
		return &Result{Application: a.ID, State: a.State}
	}
	if c.Priority != nil {
		a.Priority = int(*c.Priority)
	}
	if c.Queue != "" {
		a.Queue = c.Queue
	}
	if c.ExpiresMs > 0 {
		a.Expires = metadata.Time(c.ExpiresMs)
	}
	s.setApp(a)
	s.touch.Schedule = true
	return &Result{Application: a.ID, State: a.State}
}
