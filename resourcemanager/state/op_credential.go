package state

import (
	"bytes"
	"fmt"

	rm "github.com/gohops/hops/resourcemanager"
	statepb "github.com/gohops/hops/resourcemanager/statepb/v1"
)

// The limits of an application's credentials: one token that is used, those before it that are not over, and one that comes too late.
const (
	maxCredentials = 16
	// maxSealed bounds a token with its seal, in bytes.
	maxSealed = 64 << 10
)

// keepCredentials keeps and drops tokens. What is to be dropped and is not there is no error.
//
// Errors: ErrStaleEpoch; ErrStaleAttempt when an application has ended meanwhile or is forgotten, has too many, or has another token with that number: then nothing is kept.
func (s *State) keepCredentials(c *statepb.KeepCredentials) *Result {
	if r := s.stale(c.Epoch); r != nil {
		return r
	}
	for _, p := range c.Keep {
		a := s.app(appIDOf(p.Application))
		old, known := s.credentials.Get(&rm.Credential{Application: appIDOf(p.Application), Number: p.Number})
		switch {
		case known && !bytes.Equal(old.Sealed, p.Sealed):
			return &Result{Err: fmt.Errorf("%w: %v has another token with number %d", rm.ErrStaleAttempt, appIDOf(p.Application), p.Number)}
		case known: // renewed
		case a == nil || a.State.Final():
			return &Result{Err: fmt.Errorf("%w: %v has ended", rm.ErrStaleAttempt, appIDOf(p.Application))}
		case len(s.credentialsOf(a.ID)) >= maxCredentials:
			return &Result{Err: fmt.Errorf("%w: %v has %d tokens", rm.ErrStaleAttempt, a.ID, maxCredentials)}
		}
	}
	for _, p := range c.Keep {
		s.credentials.Set(credentialOf(p))
		s.touch.Applications[appIDOf(p.Application)] = true
	}
	for _, p := range c.Drop {
		s.credentials.Delete(credentialOf(p))
	}
	s.touch.Schedule = s.touch.Schedule || len(c.Keep) > 0
	return &Result{}
}

// fail ends an application for a reason that is not its master's. An ended one stays as it is.
func (s *State) fail(c *statepb.Fail) *Result {
	if r := s.stale(c.Epoch); r != nil {
		return r
	}
	a := s.app(appIDOf(c.Application))
	if a == nil {
		return &Result{Err: notFound(appIDOf(c.Application))}
	}
	if !a.State.Final() {
		s.endApp(a, rm.StateFailed, rm.FinalFailed, c.Diagnostics)
		s.setApp(a)
		s.forgetContainers()
	}
	return &Result{Application: a.ID, State: a.State}
}

// credentialsOf lists the credentials of an application, the last one last.
func (t *tables) credentialsOf(id rm.ApplicationID) []*rm.Credential {
	var out []*rm.Credential
	t.credentials.Ascend(&rm.Credential{Application: id}, func(c *rm.Credential) bool {
		if c.Application != id {
			return false
		}
		out = append(out, c)
		return true
	})
	return out
}
