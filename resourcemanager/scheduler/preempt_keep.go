package scheduler

import (
	"fmt"

	"github.com/gohops/hops/metadata"
)

// keepSeats keeps the room of an eviction for a gang, or for the only ask of a lane, until it has it. Single containers of many
// applications need no more than the order of queues, but for whole nodes, which others' would
// fill again before the last of them is empty. With always it is kept for every ask.
func (m *Model) keepSeats(l *lane, w *want, s *shape, seats []seat, always bool) {
	q := l.queue
	if old := q.head.reservation; old != nil && old.evicts && old.want != w && before(w, old.want) {
		m.unkeep(q)
	}
	if m.config.Patience < 0 || len(l.wants.list) > 1 && l.shape.Unit == 1 && !l.shape.Exclusive && !always {
		return
	}
	old := q.head.reservation
	if old != nil && old.want != w && !old.evicts && before(old.want, w) {
		w.again = m.now + metadata.Time(DefaultWait.Milliseconds()) // others may be quicker, and it would go on and on
	}
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
	n := map[*node]int{}
	for _, at := range seats {
		n[at.node] += at.n
	}
	for at, k := range n {
		if r.nodes[at] < k {
			return false
		}
	}
	return true
}

// keepable reports whether the room that is made for a lane's first ask can be kept until all of it is there. A gang finds none otherwise, and
// others would go in vain; what is kept for somebody before it in its leaf stays.
func (m *Model) keepable(l *lane, w *want) bool {
	r := l.queue.head.reservation
	switch {
	case l.shape.Unit == 1 && !l.shape.Exclusive || m.config.Patience < 0 || r != nil && r.evicts && r.want == w:
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
