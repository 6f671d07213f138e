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
	again := slices.ContainsFunc(to.Asks, func(a rm.Ask) bool { return !a.Constraints.IsZero() })
	for again { // what is granted to one ask may be what another waits for
		again = false
		for _, w := range a.wants {
			more := m.try(w)
			groups = append(groups, more...)
			again = again || len(more) > 0
		}
	}
	for _, w := range a.wants {
		groups = append(groups, m.try(w)...)
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

// try grants as much of an ask as there is room for.
func (m *Model) try(w *want) (groups []Group) {
	var l *lane
	for w.app.queue != nil && w.open() > 0 {
		if l == nil || l.shape.Unit != w.unit() {
			l = m.apart(w)
		}
		seats, _ := m.decide(l)
		if seats == nil {
			break
		}
		groups = append(groups, m.assume(w, l.shape, seats).group)
	}
	return groups
}
