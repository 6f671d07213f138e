package state

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// afterRow says that an application waits for another.
type afterRow struct{ on, app rm.ApplicationID }

func compareAfter(a, b afterRow) int { return cmp.Or(a.on.Compare(b.on), a.app.Compare(b.app)) }

// After says whether what a submission is to wait for is known, so that a leader does not replicate what will be refused. A repeated
// submission waits for nothing new.
//
// Error: ErrInvalidArgument.
func (s *State) After(a *rm.Application) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known(a) {
		return nil
	}
	return s.knownAfter(a)
}

// Known reports whether a submission is a repeat of one that was taken.
func (s *State) Known(a *rm.Application) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known(a)
}

func (s *State) known(a *rm.Application) bool {
	_, known := s.keys[userKey{a.User, a.IdempotencyKey}]
	return known && a.IdempotencyKey != "" || s.app(a.ID) != nil
}

func (t *tables) knownAfter(a *rm.Application) error {
	for _, d := range a.After {
		if _, ok := t.apps.Get(&rm.Application{ID: d.Application}); !ok {
			return metadata.Errorf(metadata.ErrInvalidArgument, "after: there is no application %v, or it ended so long ago that it is forgotten", d.Application)
		}
	}
	return nil
}

// await has a new application wait for those that have not settled, and ends it when it can never start. The caller sets the row.
func (s *State) await(a *rm.Application) {
	all := a.After
	a.After = nil
	for _, d := range all {
		met, never := d.Settled(s.app(d.Application))
		switch {
		case never:
			s.endApp(a, rm.StateKilled, rm.FinalKilled, inVain(d, s.app(d.Application)))
			return
		case !met && !slices.Contains(a.After, d):
			a.After = append(a.After, d)
			s.after.Set(afterRow{d.Application, a.ID})
		}
	}
}

// settle tells those that wait for an application how it is now: they wait for one less, or can never start, and end. What those end waits
// for them in its turn.
func (s *State) settle(on *rm.Application) {
	var waiting []rm.ApplicationID
	s.after.Ascend(afterRow{on: on.ID}, func(r afterRow) bool {
		if r.on == on.ID {
			waiting = append(waiting, r.app)
		}
		return r.on == on.ID
	})
	for _, id := range waiting {
		a := s.app(id)
		if a == nil || a.State.Final() {
			continue
		}
		var left []rm.Dependency
		var vain string
		more := false
		for _, d := range a.After {
			met, never := false, false
			if d.Application == on.ID {
				met, never = d.Settled(on)
			}
			if never {
				vain = inVain(d, on)
			}
			if !met {
				left, more = append(left, d), more || d.Application == on.ID
			}
		}
		switch {
		case vain != "":
			s.endApp(a, rm.StateKilled, rm.FinalKilled, vain)
		case len(left) == len(a.After):
			continue
		default:
			if !more {
				s.after.Delete(afterRow{on.ID, id})
			}
			a.After = left
			s.touch.Schedule, s.touch.Credentials = true, true
		}
		s.setApp(a)
	}
}

// unawait forgets what an application waits for. The caller sets the row.
func (s *State) unawait(a *rm.Application) {
	for _, d := range a.After {
		s.after.Delete(afterRow{d.Application, a.ID})
	}
	a.After = nil
}

// inVain is why an application cannot start any more.
func inVain(d rm.Dependency, on *rm.Application) string {
	how := string(on.State)
	if on.State == rm.StateFinished {
		how = string(on.Final)
	}
	return fmt.Sprintf("it can never start: it was to wait for %v, which ended as %s", d, how)
}
