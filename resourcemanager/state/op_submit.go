package state

import (
	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// newApplication sets an id aside. Nothing else is remembered of it. Ids that submissions brought are passed over; they
// never move the sequence by themselves. When all of a series are given the next one begins, or else whoever asks for ids all
// the time would end everybody's submissions.
func (s *State) newApplication() *Result {
	for {
		if s.lastApplication == rm.MaxSequence {
			s.series, s.lastApplication = s.series+1, 0
		}
		s.lastApplication++
		if id := (rm.ApplicationID{Cluster: s.cluster + s.series, Sequence: s.lastApplication}); s.app(id) == nil {
			return &Result{Application: id}
		}
	}
}

// submit takes an application in, ACCEPTED with its first attempt, or FAILED when the submitter says so (a queue that
// does not exist). A known id or idempotency key answers the application that has it.
//
// Errors: ErrKeyReused; ErrBusy, see Room; those of QueueRoom; ErrInvalidArgument for waiting for one that is not known; ErrExist when the id is another user's.
func (s *State) submit(c *statepb.Submit) *Result {
	a := applicationOf(c.Application)
	// The rest is not the submitter's.
	*a = rm.Application{
		ID: a.ID, Name: a.Name, User: a.User, Queue: a.Queue, Kind: a.Kind, Type: a.Type, Tags: a.Tags, Priority: a.Priority, Master: a.Master,
		Document: a.Document, MaxAttempts: a.MaxAttempts, KeepContainers: a.KeepContainers, Timeout: a.Timeout,
		IdempotencyKey: a.IdempotencyKey, Digest: a.Digest, State: a.State, Diagnostics: a.Diagnostics, Tokens: a.Tokens,
		After: a.After, Deadline: a.Deadline,
	}
	if a.IdempotencyKey != "" {
		if id, ok := s.keys[userKey{a.User, a.IdempotencyKey}]; ok {
			if s.app(id).Digest != a.Digest {
				return &Result{Err: rm.ErrKeyReused, Application: id}
			}
			return &Result{Application: id, Existing: true}
		}
	}
	if a.ID.IsZero() {
		a.ID = s.newApplication().Application
	} else if old := s.app(a.ID); old != nil {
		if old.User != a.User {
			return &Result{Err: metadata.Errorf(metadata.ErrExist, "%v is an application of another user", a.ID)}
		}
		return &Result{Application: a.ID, Existing: true}
	}
	if t := s.queues.tree; t != nil {
		if q := t.Place(a.Queue); q != nil {
			a.Queue = q.Path
		}
	}
	if a.State == rm.StateFailed {
		a.Document, a.Tokens, a.After = nil, nil, nil
	} else if err := s.knownAfter(a); err != nil {
		return &Result{Err: err}
	} else if err := s.queueRoom(s.queues.tree, a); err != nil {
		return &Result{Err: err}
	} else if err := s.room(a.User, 1, documentBytes(a)); err != nil {
		return &Result{Err: err}
	}
	a.Submitted = s.now
	a.Final = rm.FinalUndefined
	if a.IdempotencyKey != "" {
		s.keys[userKey{a.User, a.IdempotencyKey}] = a.ID
	}
	if a.State == rm.StateFailed {
		s.endApp(a, rm.StateFailed, rm.FinalFailed, a.Diagnostics)
	} else {
		a.State = rm.StateAccepted
		s.touch.Credentials = true
		s.live.Set(a.ID)
		s.hold(a.User, 1, documentBytes(a))
		s.place(a.Queue, a.User, 1)
		s.newAttempt(a)
		s.await(a)
	}
	s.setApp(a)
	s.forgetApps()
	return &Result{Application: a.ID}
}

// newAttempt lets an application wait for a container for its master.
func (s *State) newAttempt(a *rm.Application) {
	a.Attempts = append(a.Attempts, rm.Attempt{Number: len(a.Attempts) + 1, State: rm.AttemptScheduled, Started: s.now})
	s.touch.Schedule = true
}

func (s *State) setApp(a *rm.Application) {
	s.apps.Set(a)
	s.touch.Applications[a.ID] = true
}

// forgetApps drops ended applications when there are too many, so that nobody's many drive out everybody else's few. Those that still hold something
// are live, have their own bound, and are passed over; below release.Forgetting they count, and all wait for the first.
func (s *State) forgetApps() {
	for {
		id := rm.ApplicationID{}
		if s.level >= release.Forgetting && s.over.count > s.config.MaxEnded {
			id = oldestOf(&s.over)
		} else if s.level < release.Forgetting && s.over.count+s.ending.count > s.config.MaxEnded {
			id = oldestOf(&s.over, &s.ending)
		}
		a := s.app(id)
		if a == nil || a.Live > 0 {
			return
		}
		s.over.drop(a)
		s.apps.Delete(a)
		if a.IdempotencyKey != "" {
			delete(s.keys, userKey{a.User, a.IdempotencyKey})
		}
		for _, c := range s.containersOf(id) {
			s.dropEndedContainer(c)
			s.containers.Delete(c)
		}
	}
}

// containersOf lists the containers of an application, ended ones included, in the order of their grants.
func (t *tables) containersOf(id rm.ApplicationID) []*rm.Container {
	var out []*rm.Container
	from := &rm.Container{ID: rm.ContainerID{Attempt: rm.AttemptID{Application: id}}}
	t.containers.Ascend(from, func(c *rm.Container) bool {
		if c.ID.Attempt.Application != id {
			return false
		}
		out = append(out, c)
		return true
	})
	return out
}
