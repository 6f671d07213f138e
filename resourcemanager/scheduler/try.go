package scheduler

import (
	"math"
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
	constrained := slices.ContainsFunc(to.Asks, func(a rm.Ask) bool { return !a.Constraints.IsZero() })
	for i := 0; constrained && i < len(a.wants); i++ { // what is granted to one ask may be what one before it waits for
		if more := m.try(a.wants[i], 1); len(more) > 0 {
			groups = append(groups, more...)
			i = -1
		}
	}
	for _, w := range a.wants {
		groups = append(groups, m.try(w, math.MaxInt)...)
		if w.open() <= 0 {
			continue
		}
		if q != nil {
			l := m.apart(w)
			m.decide(l) // which says whether it waits for room near its data
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

// try grants as many units of an ask as there is room for, up to a number.
func (m *Model) try(w *want, units int) (groups []Group) {
	var l *lane
	for w.app.queue != nil && w.open() > 0 && len(groups) < units {
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
