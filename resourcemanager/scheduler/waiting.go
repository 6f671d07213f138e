package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	rm "github.com/gohops/hops/resourcemanager"
)

// What one call of WaitingPart looks at before it gives the model back: nodes, for some milliseconds, and asks.
const (
	partNodes = 20_000
	partAsks  = 2_000
)

// Effort is what the reasons of one answer may cost altogether; nil: they are not bounded.
type Effort struct {
	// Shapes is how many sorts of asks nodes may still be looked at for.
	Shapes int
}

// Waiting lists every ask of which something is not planned, with the reason.
func (m *Model) Waiting() []Waiting {
	var out []Waiting
	for _, a := range m.sortedApps() {
		out = append(out, m.waiting(a)...)
	}
	return out
}

// WaitingFor lists those of one application, by ask, whatever it costs.
func (m *Model) WaitingFor(id rm.ApplicationID) []Waiting {
	if a := m.apps[id]; a != nil {
		return m.waiting(a)
	}
	return nil
}

func (m *Model) waiting(a *app) []Waiting {
	var out []Waiting
	for _, w := range a.wants {
		if r := m.why(w, nil); !r.IsZero() {
			out = append(out, Waiting{a.ID, w.ID, r})
		}
	}
	slices.SortFunc(out, func(a, b Waiting) int { return cmp.Compare(a.Ask, b.Ask) })
	return out
}

// WaitingPart lists as many of an application's asks that wait, from the one of a number on, as is quick, and says with which number to
// go on; 0: that was all. When the effort is spent, an ask has the reason that was found for its sort before, or is only said to wait
// for room.
func (m *Model) WaitingPart(id rm.ApplicationID, from int, e *Effort) (list []Waiting, next int) {
	a := m.apps[id]
	if a == nil {
		return nil, 0
	}
	looks := m.looks
	for i := from; i < len(a.wants); i++ {
		if i > from && (m.looks-looks >= partNodes || i-from >= partAsks) {
			return list, i
		}
		if r := m.why(a.wants[i], e); !r.IsZero() {
			list = append(list, Waiting{id, a.wants[i].ID, r})
		}
	}
	return list, 0
}

// reason is why a shape has no room: now, as far as the effort goes.
func (s *shape) reason(e *Effort) rm.Reason {
	m := s.m
	switch {
	case s.saidAt == m.version && !s.said.IsZero():
	case e == nil || e.Shapes > 0:
		if e != nil {
			e.Shapes--
		}
		s.said, s.saidAt = m.refuse(s), m.version
	case s.said.IsZero():
		return rm.Reason{Code: rm.ReasonResources, Text: fmt.Sprintf("there is no room for %v; its application asks for too many different things to say for each what is missing", s.Resource)}
	}
	return s.said
}
