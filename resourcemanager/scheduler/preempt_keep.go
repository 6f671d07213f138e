package scheduler

import (
	"fmt"
	"maps"
	"slices"
)

// keepSeats keeps the room of an eviction for a lane's first ask, until it has it.
func (m *Model) keepSeats(l *lane, w *want, s *shape, seats []seat) {
	q := l.queue
	if m.config.Patience < 0 {
		return
	}
	old := q.head.reservation
	switch {
	case old != nil && old.want != w && before(old.want, w),
		old != nil && old.want == w && old.evicts && sameSeats(old, seats),
		(old == nil || !old.evicts) && m.kept(true) >= maxReservations:
		return
	case old != nil && old.want != w:
		m.yield(old)
	case q.head.want != nil:
		m.release(q.head.want)
	}
	m.last++
	r := &reservation{number: m.last, want: w, queue: q, nodes: map[*node]int{}, form: l.shape.form, evicts: true, units: s.Unit / l.shape.Unit}
	for _, at := range seats {
		if at.node.reserved == nil {
			r.nodes[at.node] += at.n
		}
	}
	q.head = head{want: w, share: m.demand(l.shape), since: m.now, reservation: r}
	m.waitingHeads = append(m.waitingHeads, q)
	m.reservations = append(m.reservations, r)
	for n := range r.nodes {
		m.unfile(n)
		n.reserved = r
		m.file(n)
	}
	waits := w.waits
	m.leave(w)
	m.enter(w) // into a lane of its own
	w.waits = waits
	m.version++
}

func sameSeats(r *reservation, seats []seat) bool {
	for at, k := range nodesOf(seats) {
		if r.nodes[at] < k {
			return false
		}
	}
	return true
}

// resume keeps the room that others make for an ask since an earlier leader told them to, before a plan gives away what has gone of it. Nodes that
// have not spoken to this leader are closed: until all is found that the ask needs, what is likely to be it is kept. Preempt, which is
// called when all nodes were heard, goes on with it.
func (m *Model) resume() {
	if !m.config.Preempt.Enabled {
		return
	}
	m.noteEnding()
	told := m.leaving()
	for _, q := range m.queues {
		own := slices.DeleteFunc(told[q.Path], moves) // the rooms of those that are moved, and of whom for, are found by moveOn
		l, w := q.madeRoomFor(own)
		if w == nil || l.shape.Unit == 1 && !l.shape.Exclusive && len(l.wants.list) > 1 && l.shape.replaces(own) {
			continue
		}
		s := m.newSearch(l, w, l.shape.Unit)
		_, seats := s.run(own, func() []*victim { return nil })
		if seats == nil {
			seats = m.likely(own, s.shape)
		}
		if l.shape.Pins != nil && !m.keepsCells(nodesOf(seats), l.shape.Pins) { // reserve would give it up at the end of the plan, and want another one
			continue
		}
		m.keepSeats(l, w, s.shape, seats)
	}
}

// nodesOf counts seats by their nodes.
func nodesOf(seats []seat) map[*node]int {
	nodes := map[*node]int{}
	for _, at := range seats {
		nodes[at.node] += at.n
	}
	return nodes
}

// likely is where those who leave are, and where there is room for the shape now, perhaps because others of them have gone.
func (m *Model) likely(told []*victim, s *shape) []seat {
	var seats []seat
	for _, v := range told {
		for _, x := range v.parts {
			seats = append(seats, seat{node: x.node, n: 1})
		}
	}
	missing := s.Unit
	for _, id := range slices.Sorted(maps.Keys(m.nodes)) {
		if n := m.nodes[id]; missing > 0 && n.admits(s) {
			if k := n.fits(s, missing); k > 0 {
				seats = append(seats, seat{node: n, n: k})
				missing -= k
			}
		}
	}
	return seats
}

// madeRoomFor is the ask of a leaf for which containers were told to go, if it is the first of its lane.
func (q *queue) madeRoomFor(told []*victim) (*lane, *want) {
	for _, v := range told {
		for _, l := range q.all {
			if h, w := v.parts[0].hold, l.first(); w.app.ID == h.ForApp && w.ID == h.ForAsk {
				return l, w
			}
		}
	}
	return nil, nil
}

// keepable reports whether the room that is made for a lane's first ask can be kept until all of it is there. What needs the room of several finds
// none otherwise, and these would go in vain; what is kept for somebody before it in its leaf stays.
func (m *Model) keepable(l *lane, w *want) bool {
	r := l.queue.head.reservation
	switch {
	case m.config.Patience < 0 || r != nil && r.evicts && r.want == w:
		return true
	case r != nil && r.want != w && before(r.want, w):
		return false
	}
	return r != nil && r.evicts || m.kept(true) < maxReservations
}

// kept counts the reservations for which others make room, or the others.
func (m *Model) kept(evicts bool) int {
	n := 0
	for _, r := range m.reservations {
		if r.evicts == evicts {
			n++
		}
	}
	return n
}

// unkeep gives up what an eviction keeps for a leaf, for which nothing is evicted any more.
func (m *Model) unkeep(q *queue) {
	if r := q.head.reservation; r != nil && r.evicts {
		m.yield(r)
	}
}

// yield gives up a reservation.
func (m *Model) yield(r *reservation) {
	w := r.want
	m.release(w)
	if w.lane != nil {
		m.leave(w)
		m.enter(w)
	}
}

// preempts says who would go, or goes, so that a lane's first ask finds room, or in words why nobody.
func (m *Model) preempts(l *lane) (*Eviction, string) {
	if !m.config.Preempt.Enabled {
		return nil, "preemption is off"
	}
	if l.delay != nil {
		return nil, "there is room for it"
	}
	w := l.first()
	if e := m.underWay(l); e != nil {
		return e, ""
	}
	units := l.shape.Unit
	s := m.newSearch(l, w, units)
	var all []*victim
	chosen, seats := s.run(nil, func() []*victim {
		if all == nil {
			all = m.victims()
		}
		return all
	})
	if seats != nil {
		if len(chosen) == 0 {
			return nil, "what is about to end makes room for it"
		}
		return m.eviction(w, units, chosen), ""
	}
	need := s.need.Times(units)
	for q, at := l.queue, 0; q.parent != nil; q, at = q.parent, at+1 {
		if at == s.claims {
			name, _ := exceeds(&need, &q.used, &q.guaranteed)
			return nil, fmt.Sprintf("nobody has to make room: queue %s is guaranteed %s and uses %s; with this it would use %s", q.Path,
				amount(name, q.guaranteed.Get(name)), amount(name, q.used.Get(name)), amount(name, q.used.Get(name)+need.Get(name)))
		}
	}
	return nil, "what others use above their guarantees, and may be taken from them, does not make room for it"
}

// underWay is the eviction that goes on for a lane's queue; nil: none.
func (m *Model) underWay(l *lane) *Eviction {
	r := l.queue.head.reservation
	if r == nil || !r.evicts || r.want != l.first() {
		return nil
	}
	e := &Eviction{App: r.want.app.ID, Ask: r.want.ID, Queue: l.queue.Path, Units: l.shape.Unit}
	for _, v := range m.leaving()[l.queue.Path] {
		path := ""
		if v.app != nil && v.app.queue != nil {
			path = v.app.queue.Path
		}
		e.Moves = e.Moves || moves(v)
		for _, x := range v.parts {
			e.Victims = append(e.Victims, Victim{x.hold.Container, x.node.ID, path, m.lost(x.hold), x.hold.Gang != 0})
		}
	}
	if len(e.Victims) == 0 {
		return nil
	}
	return e
}
