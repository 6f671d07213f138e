package scheduler

import (
	"cmp"
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// maxMoved bounds the containers that one plan moves, maxMoveTries the sets of them that are tried. Between two searches lies searchGap, and between two
// for one ask mendGap.
const (
	maxMoved     = 128
	maxMoveTries = 32
	maxMoveLooks = 40_000 // nodes that are looked at for one plan, about
	searchGap    = 10_000 // ms, and at most what an ask waits before
	mendGap      = 60_000 // ms, the same
)

// mend looks for containers of others that are moved so that a lane's first ask finds room in one piece: such as have said that they
// write checkpoints, of nobody with a better right. It is proved that with all of them gone there is room for the ask and, beside it, for each of them
// again. The room of both is kept: the ask's as a reservation, theirs as berths. nil: there is no way, or none that is worth it.
func (m *Model) mend(l *lane, table func() []*victim, busy rm.Resource, most float64) *Eviction {
	w, q := l.first(), l.queue
	if r := q.head.reservation; r != nil && r.want != w || r == nil && m.kept(true) >= maxReservations || m.config.Patience < 0 {
		return nil // its room could not be kept
	}
	w.mend = m.now + min(mendGap, millis(m.config.Preempt.DefragmentAfter, DefaultDefragmentAfter))
	if !m.fragmented(l) {
		return nil
	}
	m.mended = m.now
	s := m.newSearch(l, w, l.shape.Unit)
	s.moves = true
	chosen, seats, berths := s.move(table())
	if chosen == nil {
		return nil
	}
	sum := busy
	for _, v := range chosen {
		sum = sum.Add(v.sum)
	}
	if share(&sum, &m.total) > most && !busy.IsZero() {
		return nil // in another round
	}
	m.keepSeats(l, w, s.shape, seats, true)
	q.mend = m.now + millis(m.config.Preempt.DefragmentRest, DefaultDefragmentRest)
	for _, b := range berths {
		m.moor(b)
	}
	e := m.eviction(w, l.shape.Unit, chosen)
	e.Moves = true
	return e
}

// mends reports whether it is time to look for who is moved for a lane's first ask.
func (m *Model) mends(l *lane) bool {
	p := m.config.Preempt
	w, after := l.first(), millis(p.DefragmentAfter, DefaultDefragmentAfter)
	return p.Enabled && p.Defragment && !l.master && m.now-w.waits >= after && m.now >= max(l.queue.mend, w.mend) &&
		(m.mended == 0 || m.now-m.mended >= min(searchGap, after))
}

// moves reports whether a victim was told to go so that somebody finds room in one piece.
func moves(v *victim) bool { return v.parts[0].hold.Moves }

// fragmented reports whether a lane's first ask is refused though as many GPUs are free as it wants, and no limit says no.
func (m *Model) fragmented(l *lane) bool {
	s := l.shape
	if !l.closed || l.by != nil || !s.closed || len(s.constraints) > 0 || m.tooMany(s) > 0 || m.limit(l, l.first()).by != nil {
		return false
	}
	need := m.need(s).Times(s.Unit)
	var free rm.Resource
	for _, n := range m.nodes {
		if n.admits(s) && m.passes(n, s) {
			room := n.room.Max(rm.Resource{})
			room.GPUs = n.freeGPUs(s)
			if free = free.Add(room); need.FitsIn(free) {
				return true
			}
		}
	}
	return false
}

// mayMove reports whether a victim may be moved for the ask: it has said that its work is saved, has been where it is for long enough, can be asked
// for again as it was, and has no better right to its room. Within a queue a better right is a higher priority. Between queues it is that its own stay
// within their guarantees while the ask's do not, or that they are of higher priority.
func (s *search) mayMove(v *victim) bool {
	q := v.app.queue
	if v.chosen || v.leaving || v.app == s.w.app || s.banned[v] || len(v.parts) > maxMoved || s.inside != nil && !s.inside.holds(q) {
		return false
	}
	rest := millis(s.m.config.Preempt.DefragmentRest, DefaultDefragmentRest)
	for _, x := range v.parts {
		h := x.hold
		if !h.Checkpoints || h.Asked == nil || h.Asked.Exclusive || !h.Asked.Constraints.IsZero() || h.Resource != h.Asked.Resource || s.m.now-h.Began < rest {
			return false
		}
	}
	if used := v.sum.Add(v.app.Masters); len(v.parts) > 1 && used != v.app.Used {
		return false // what else there is of it may go with the gang, and has no berth
	}
	if q == s.leaf {
		return v.app.Priority <= s.w.app.Priority
	}
	common, at := s.level(q)
	own, others := s.leaf, q
	for own.parent != common {
		own = own.parent
	}
	for others.parent != common {
		others = others.parent
	}
	switch {
	case others.Priority > own.Priority:
		return false
	case s.claims >= at:
		return true
	}
	name := dominant(&v.sum, &s.m.total)
	for ; q != common; q = q.parent {
		if q.used.Get(name)-v.sum.Get(name) < q.guaranteed.Get(name) {
			return false
		}
	}
	return true
}

// move finds who is moved, with the ask's room and theirs, and leaves the model as it was.
func (s *search) move(all []*victim) (chosen []*victim, seats []seat, berths []*berth) {
	m := s.m
	still := m.still
	m.still = true
	defer func() { m.still = still }()
	ending := m.endings()
	for _, v := range ending {
		s.take(v, true)
	}
	soon := s.fits()
	for _, v := range slices.Backward(ending) {
		s.take(v, false)
	}
	if soon || s.fits() {
		return nil, nil, nil
	}
	s.banned = map[*victim]bool{}
	weight := int64(s.need.GPUs)*1000 + int64(s.need.VCores)*milliGPUsOfAVCore
	most := weight * int64(s.shape.Unit) * int64(millis(m.config.Preempt.DefragmentPrice, DefaultDefragmentPrice)) / 1000
	for try := 0; try == 0 || try < maxMoveTries && try*len(m.nodes) < maxMoveLooks; try++ {
		set, part := s.cheapest(all)
		if set == nil {
			return nil, nil, nil
		}
		for _, v := range set {
			s.take(v, true)
		}
		seats, berths, failed := s.proof(set)
		if failed == nil && seats != nil {
			set, seats, berths = s.fewest(set, seats, berths)
		}
		for _, v := range slices.Backward(set) {
			s.take(v, false)
		}
		switch {
		case failed != nil:
			s.banned[failed] = true
		case seats == nil:
			s.barred = append(s.barred, part)
		default:
			if cost(set) > most {
				return nil, nil, nil
			}
			return set, seats, berths
		}
	}
	return nil, nil, nil
}

func cost(set []*victim) (sum int64) {
	for _, v := range set {
		sum += v.milli
	}
	return sum
}

// cheapest is the cheapest set that makes room, of each part of the network that the ask may be in.
func (s *search) cheapest(all []*victim) (best []*victim, in string) {
	parts := map[string][]offer{}
	claims := s.claims
	for _, o := range s.offers(all) {
		if !slices.Contains(s.barred, o.part) {
			parts[o.part] = append(parts[o.part], o)
		}
	}
	names := make([]string, 0, len(parts))
	for name, list := range parts {
		slices.SortFunc(list, func(a, b offer) int {
			return cmp.Or(cmp.Compare(a.price, b.price), -cmp.Compare(a.gain, b.gain), cmp.Compare(a.node.ID, b.node.ID))
		})
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(parts[a][0].price, parts[b][0].price), cmp.Compare(a, b))
	})
	for _, name := range names[:min(len(names), maxMoveTries)] {
		chosen, ok := s.collect(parts[name], name)
		for _, v := range slices.Backward(chosen) {
			s.take(v, false)
		}
		if ok && (best == nil || cost(chosen) < cost(best)) {
			best, in = chosen, name
		}
	}
	s.claims = claims
	return best, in
}

// proof places the ask's unit where the victims, who are out of the model, made room, and then each of them again, the largest first, all at once. failed
// is the first that has no place, and seats is nil when the ask has none. The model is left as it was.
func (s *search) proof(set []*victim) (seats []seat, berths []*berth, failed *victim) {
	m := s.m
	mark := m.Mark()
	defer m.Undo(mark)
	ask := s.w.Ask
	w := &want{app: s.w.app, Ask: ask, tried: true}
	defer func() { s.shape.closed = false }()
	s.shape.closed = false
	seats, _ = m.decide(&lane{laneKey: laneKey{shape: s.shape, master: w.master()}, queue: s.leaf, wants: heap[*want]{list: []*want{w}}})
	if seats == nil {
		return nil, nil, nil
	}
	m.assume(w, s.shape, seats)
	order := slices.Clone(set)
	slices.SortStableFunc(order, func(a, b *victim) int {
		return cmp.Or(-cmp.Compare(a.parts[0].hold.Resource.GPUs, b.parts[0].hold.Resource.GPUs), -cmp.Compare(len(a.parts), len(b.parts)))
	})
	for _, v := range order {
		b := m.again(v, s.leaf.Path)
		if b == nil {
			return nil, nil, v
		}
		berths = append(berths, b)
	}
	return seats, berths, nil
}

// again places a victim as it was asked for, within a trial; nil: there is no room, or a limit says no.
func (m *Model) again(v *victim, queue string) *berth {
	if v.app == nil || v.app.queue == nil || v.parts[0].hold.Asked == nil {
		return nil
	}
	ask := *v.parts[0].hold.Asked
	ask.Count, ask.Gang = len(v.parts), 0
	if ask.Count > 1 {
		ask.Gang = ask.Count
	}
	w := &want{app: v.app, Ask: ask, tried: true}
	f := m.formOf(v.app.ID, &ask, w.unit())
	b := &berth{app: v.app, queue: queue, form: likeOf(f)}
	if d := v.app.Lasts; d > 0 && (f.Lasts == 0 || d < f.Lasts) {
		f.Lasts = roundUp(d)
	}
	l := &lane{laneKey: laneKey{shape: m.newShape(f)}, queue: v.app.queue, wants: heap[*want]{list: []*want{w}}}
	seats, _ := m.decide(l)
	if seats == nil {
		return nil
	}
	g := m.assume(w, l.shape, seats)
	b.group, b.nodes = g.group, g.nodes
	for _, x := range v.parts {
		b.old = append(b.old, seatOf{x.node.ID, x.hold.Container})
	}
	return b
}

// fewest leaves out those without whom everybody has a place as well, the dearest first.
func (s *search) fewest(set []*victim, seats []seat, berths []*berth) ([]*victim, []seat, []*berth) {
	order := slices.Clone(set)
	slices.SortStableFunc(order, func(a, b *victim) int { return -cmp.Compare(a.milli, b.milli) })
	for _, v := range order {
		rest := slices.DeleteFunc(slices.Clone(set), func(x *victim) bool { return x == v })
		s.take(v, false)
		if at, again, failed := s.proof(rest); failed == nil && at != nil {
			set, seats, berths = rest, at, again
		} else {
			s.take(v, true)
		}
	}
	return set, seats, berths
}

// moveOn looks after what is moved for a leaf: who was told without having a berth, because another leader told it or its node is gone, gets one.
// false: there is no place for them any more, so that all of it is called off.
func (m *Model) moveOn(q *queue, told []*victim) bool {
	s := &search{m: m, leaf: q}
	lost := false
	for _, v := range told {
		lost = lost || moves(v) && m.berthOf(v) == nil
	}
	if !lost {
		return true
	}
	still := m.still
	m.still = true
	for _, v := range told {
		s.take(v, true)
	}
	mark := m.Mark()
	var berths []*berth
	ok := true
	if w := s.kept(); w != nil { // the one for whom they go comes first
		l := &lane{laneKey: laneKey{shape: m.newShape(m.formFor(w)), master: w.master()}, queue: q, wants: heap[*want]{list: []*want{w}}}
		if seats, _ := m.decide(l); seats != nil {
			m.assume(&want{app: w.app, Ask: w.Ask, tried: true}, l.shape, seats)
		}
	}
	for _, v := range told {
		if moves(v) && m.berthOf(v) == nil && ok {
			b := m.again(v, q.Path)
			if ok = b != nil; ok {
				berths = append(berths, b)
			}
		}
	}
	m.Undo(mark)
	for _, v := range slices.Backward(told) {
		s.take(v, false)
	}
	m.still = still
	if !ok {
		return false
	}
	for _, b := range berths {
		m.moor(b)
	}
	return true
}

// kept is the ask for which a leaf's victims are told: the one that has the reservation, or else the first that waits.
func (s *search) kept() *want {
	if r := s.leaf.head.reservation; r != nil && r.evicts {
		return r.want
	}
	for _, l := range s.m.waitingLanes(s.leaf) {
		return l.first()
	}
	return nil
}

// millis is a duration, or another when that is 0, in the unit of times.
func millis(d, otherwise time.Duration) metadata.Time {
	return metadata.Time(cmp.Or(d, otherwise).Milliseconds())
}

// waitingLanes are the lanes of a leaf that wait, in the order of their first asks.
func (m *Model) waitingLanes(q *queue) []*lane {
	out := make([]*lane, 0, len(q.all))
	for _, l := range q.all {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *lane) int {
		if before(a.first(), b.first()) {
			return -1
		}
		return 1
	})
	return out[:min(len(out), maxStarvingLanes)]
}

// movedFor reports whether those that were told for a leaf are moved for an ask, or nobody knows for which.
func (m *Model) movedFor(w *want, told []*victim) bool {
	r := w.app.queue.head.reservation
	return (r == nil || r.evicts && r.want == w) && slices.ContainsFunc(told, moves)
}
