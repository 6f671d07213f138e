package scheduler

import (
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// Try says what an application that is not there would be granted now, all of its asks in their order, and explains what of it would
// wait; the numbers of the groups mean nothing. It is a trial: afterwards the model is as before. queues are those of Explain.
func (m *Model) Try(to App, queues []string, now metadata.Time) (groups []Group, waits []Explanation) {
	defer m.at(now)()
	if m.unresolved {
		m.resolve()
	}
	a := &app{App: to}
	q := m.byQueue[m.config.Queues.Find(to.Queue)]
	if q != nil && !q.Leaf() {
		q = nil
	}
	a.queue = q
	for i := range to.Asks {
		a.wants = append(a.wants, &want{app: a, Ask: to.Asks[i], tried: true})
	}
	if q != nil && q.limitsUsers() {
		u := q.userOf(a.User)
		q.asks(u, len(a.wants))
		defer q.asks(u, -len(a.wants))
	}
	m.still = true
	mark := m.Mark()
	groups = m.tryAll(a)
	for _, w := range a.wants {
		if w.open() <= 0 {
			continue
		}
		if q != nil {
			l := m.apart(w)
			l.closed, w.lane = true, l
		}
		waits = append(waits, m.explain(w, queues))
		w.lane = nil
	}
	m.Undo(mark)
	m.still = false
	return groups, waits
}

// apart is a lane for one ask that no queue knows of.
func (m *Model) apart(w *want) *lane {
	l := &lane{laneKey: laneKey{shape: m.newShape(m.formFor(w)), master: w.master()}, queue: w.app.queue}
	l.wants.list = []*want{w}
	l.shape.lanes = []*lane{l}
	return l
}

// tryAll grants as much of an application's asks as there is room for, as a plan would.
func (m *Model) tryAll(a *app) (groups []Group) {
	var l *lane
	for i := 0; a.queue != nil && i < len(a.wants); {
		w := a.wants[i]
		if w.open() <= 0 {
			i++
			continue
		}
		if l == nil || l.first() != w || l.shape.Unit != w.unit() {
			l = m.apart(w)
		}
		seats, _ := m.decide(l)
		if seats == nil {
			i++
			continue
		}
		groups = append(groups, m.assume(w, l.shape, seats).group)
		if slices.ContainsFunc(a.wants[:i], func(e *want) bool { return e.minds(w.Tags) }) {
			i = 0 // what is there now may be what it waits for
		}
	}
	return groups
}

// minds reports whether an ask has constraints about some of the tags.
func (w *want) minds(tags rm.Tags) bool {
	if w.Constraints.IsZero() || tags.IsZero() {
		return false
	}
	list := tags.List()
	return slices.ContainsFunc(w.Constraints.List(), func(c rm.Constraint) bool { return slices.Contains(list, c.Tag) })
}
