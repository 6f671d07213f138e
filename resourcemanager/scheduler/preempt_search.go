package scheduler

import (
	"cmp"
	"slices"

	rm "github.com/gohops/hops/resourcemanager"
)

// search looks for an eviction for one ask.
type search struct {
	m     *Model
	w     *want
	leaf  *queue
	shape *shape
	// claims is how many queues from the leaf upwards stay within their guarantee with the units: with whole nodes, those of the node that is
	// looked at, or the smallest.
	claims int
	// need is what one container is charged at least.
	need rm.Resource
	// cells is the level of the queue that is within its cells with the units, which everybody outside it makes room for; negative: none is.
	cells int
	// inside is the queue whose maximum says no; nil: none does.
	inside *queue
	// owed counts those that are out of the model by the claim of the ask's queue, by the level that they ask for.
	owed []int
	// moves: victims are moved, see mayMove, but none that is banned, and not in a part of the network that is barred.
	moves  bool
	banned map[*victim]bool
	barred []string
	// refused: guarantees held back some that would have made room.
	refused bool
}

func (m *Model) newSearch(l *lane, w *want, units int) *search {
	f := l.shape.form
	if f.Unit = units; l.shape.Unit != units {
		f.Within = ""
	}
	if r := l.queue.head.reservation; r != nil && r.want != w && before(w, r.want) {
		f.Reservation = r.number // who comes first has what is kept for others of its queue
	}
	s := &search{m: m, w: w, leaf: l.queue, shape: m.newShape(f)}
	s.need = m.need(s.shape)
	s.claims = m.claims(l.queue, s.need.Times(units))
	s.cells = m.cellClaim(l.queue, s.shape, units)
	return s
}

// level is how many queues from the leaf upwards a victim of another queue asks to be within their guarantee: those below where the two meet.
func (s *search) level(q *queue) (common *queue, at int) {
	for common = s.leaf; !common.holds(q); common = common.parent {
		at++
	}
	return common, at
}

// may reports whether a victim may go for the ask, as to priorities and guarantees: in the same queue one of an application of lower
// priority; of another queue what that uses above its guarantee, when everything up to where the two meet stays within its own.
func (s *search) may(v *victim) bool {
	if s.moves {
		return s.mayMove(v)
	}
	q := v.app.queue
	switch {
	case v.chosen || v.leaving || v.app == s.w.app || s.inside != nil && !s.inside.holds(q):
		return false
	case q == s.leaf:
		return v.app.Priority < s.w.app.Priority && (q.PreemptByPriority || v.app.User == s.w.app.User)
	}
	common, at := s.level(q)
	switch {
	case s.m.guarded(v, common):
		return false
	case s.byCells(at) && v.inCell():
		return true
	case s.claims < at:
		return false
	}
	name := dominant(&v.sum, &s.m.total)
	for ; q != common; q = q.parent {
		if q.used.Get(name)-v.sum.Get(name) < q.guaranteed.Get(name) {
			return false
		}
	}
	return true
}

// byCells reports whether those at a level make room because of the cells that a queue is guaranteed.
func (s *search) byCells(at int) bool { return s.cells >= 0 && at > s.cells }

// dominant names the resource of which something is the largest part of the cluster.
func dominant(r, total *rm.Resource) string {
	best, of := "", 0.0
	for _, name := range r.Names() {
		if have := total.Get(name); have > 0 && r.Get(name) > 0 {
			if part := float64(r.Get(name)) / float64(have); best == "" || part > of {
				best, of = name, part
			}
		}
	}
	return best
}

// take takes a victim out of the model, or puts it back: its room, and what limits count.
func (s *search) take(v *victim, out bool) {
	sign := 1
	if !out {
		sign = -1
	}
	v.chosen = out
	for _, x := range v.parts {
		x.node.vacate(s.m, x.hold, out)
	}
	if v.app == nil || v.app.queue == nil {
		return
	}
	if !v.leaving && v.app.queue != s.leaf {
		_, at := s.level(v.app.queue)
		if s.byCells(at) {
			at = 0
		}
		for len(s.owed) <= at {
			s.owed = append(s.owed, 0)
		}
		s.owed[at] += sign
	}
	less := v.sum.Times(-sign)
	for q := v.app.queue; q != nil; q = q.parent {
		q.used = q.used.Add(less)
	}
	if q := v.app.queue; q.limitsUsers() {
		u := q.userOf(v.app.User)
		u.used = u.used.Add(less)
	}
}

// claimed is the highest level that those ask for who are out of the model.
func (s *search) claimed() int {
	for at := len(s.owed) - 1; at > 0; at-- {
		if s.owed[at] > 0 {
			return at
		}
	}
	return 0
}

// wholes is what the nodes of seats have.
func wholes(seats []seat) (sum rm.Resource) {
	for _, at := range seats {
		sum = sum.Add(at.node.whole())
	}
	return sum
}

// vacate takes a container off a node as far as placements look, or puts it back.
func (n *node) vacate(m *Model, h *Hold, out bool) {
	m.unfile(n)
	if out {
		m.useHold(n, h, -1)
		n.Used = n.Used.Sub(h.Resource)
		n.Containers--
		n.Exclusive, n.vacated = false, n.Exclusive
	} else {
		m.useHold(n, h, 1)
		n.Used = n.Used.Add(h.Resource)
		n.Containers++
		n.Exclusive, n.vacated = n.Exclusive || n.vacated, false
	}
	for i := range n.GPUs {
		if g := &n.GPUs[i]; !g.Broken && slices.Contains(h.GPUs, g.UUID) {
			g.Free = out
		}
	}
	n.refresh()
	m.file(n)
}

// limit reports whether limits let the units pass now, and whose maximum says no where that is what does.
func (s *search) limit() (ok bool, by *queue) {
	f := s.shape.form
	f.Resource = s.need
	x := s.m.limitIn(s.leaf, s.w.app, &f, s.w.master())
	if x.by == nil {
		return true, nil
	}
	if x.code == rm.ReasonQueueMaximum {
		by = x.by
	}
	return false, by
}

// fits reports whether there is room now, and no limit says no.
func (s *search) fits() bool { return s.seats() != nil }

// seats is the room that there is now, if no limit says no; nil: there is none. What has nodes for itself is charged all that they have, of which
// the queue's claim on those who are out of the model for it has to be true.
func (s *search) seats() []seat {
	if ok, _ := s.limit(); !ok {
		return nil
	}
	if !s.shape.Exclusive {
		seats, _ := s.m.find(s.shape)
		return seats
	}
	seats, _ := s.m.seatsFor(s.leaf, s.w.app, s.shape, s.w.master())
	if seats == nil || s.claimed() <= s.m.claims(s.leaf, wholes(seats)) {
		return seats
	}
	return nil
}

// run looks for the victims, proves that there is room without them, and leaves the model as it was. seats is nil when there is no way.
func (s *search) run(told []*victim, table func() []*victim) (chosen []*victim, seats []seat) {
	m := s.m
	still := m.still
	m.still = true
	defer func() {
		for i := len(chosen) - 1; i >= 0; i-- {
			if chosen[i].chosen {
				s.take(chosen[i], false)
			}
		}
		m.still = still
	}()
	ending := m.ending()
	if len(ending) > 0 { // what is about to end anyway
		defer func() {
			for _, v := range slices.Backward(ending) {
				s.take(v, false)
			}
		}()
		for _, v := range ending {
			s.take(v, true)
		}
	}
	if len(ending) > 0 {
		if seats = s.seats(); seats != nil {
			return nil, seats
		}
	}
	for _, v := range told {
		s.take(v, true)
		chosen = append(chosen, v)
	}
	if len(told) == 0 || !s.fits() {
		if ok, by := s.limit(); !ok {
			if by == nil {
				return chosen, nil
			}
			s.inside = by
		}
		more := s.choose(table())
		chosen = append(chosen, more...)
		if more == nil {
			return chosen, nil
		}
	}
	chosen = s.spare(chosen)
	// Which devices they are is decided when they are free; what counts is where.
	return chosen, s.seats()
}

// ending are the containers that are about to end for nobody's sake.
func (m *Model) ending() []*victim {
	var out []*victim
	for _, n := range sorted(m.leavers) {
		for i := range n.Holds {
			if h := &n.Holds[i]; h.Stopping && h.For == "" && !n.Closed && !m.stuck(h) {
				out = append(out, &victim{app: m.apps[h.App], parts: []part{{n, h}}, sum: h.Resource, leaving: true})
			}
		}
	}
	return out
}

// offer is some victims that make room on a node.
type offer struct {
	node    *node
	victims []*victim
	gain    int
	price   float64
	part    string
	// claims is that of the search, of a node that is to be somebody's alone.
	claims int
}

// choose takes out of the model what makes room, the cheapest first; nil: all that may go is not enough, and is in the model again.
func (s *search) choose(all []*victim) []*victim {
	offers, claims := s.offers(all), s.claims
	parts := map[string][]offer{}
	for _, o := range offers {
		parts[o.part] = append(parts[o.part], o)
	}
	names := make([]string, 0, len(parts))
	for name := range parts {
		names = append(names, name)
	}
	slices.Sort(names)
	var best []*victim
	cheapest := int64(-1)
	for _, name := range names {
		list := parts[name]
		slices.SortFunc(list, func(a, b offer) int {
			return cmp.Or(cmp.Compare(a.price, b.price), -cmp.Compare(a.gain, b.gain), cmp.Compare(a.node.ID, b.node.ID))
		})
		chosen, ok := s.collect(list, name)
		var sum int64
		for _, v := range chosen {
			sum += v.milli
		}
		for _, v := range slices.Backward(chosen) {
			s.take(v, false)
		}
		if ok && (best == nil || sum < cheapest) {
			best, cheapest = chosen, sum
		}
	}
	s.claims = claims
	if best == nil && (s.inside != nil || s.refused) {
		best = s.anyOf(all)
	}
	for _, v := range best {
		s.take(v, true)
	}
	return best
}

// collect takes offers until there is room, those that guarantees do not allow left out.
func (s *search) collect(offers []offer, part string) (chosen []*victim, ok bool) {
	sum := s.room(part)
	gained := map[*node]int{}
	tried := sum - 1
	for i, o := range offers {
		if more := o.gain - gained[o.node]; more > 0 {
			var own []*victim
			allowed := true
			if s.shape.Exclusive {
				s.claims = o.claims
			}
			for _, v := range o.victims {
				if v.chosen {
					continue
				}
				if allowed = len(chosen)+len(own) < s.most() && s.may(v); !allowed {
					break
				}
				s.take(v, true)
				own = append(own, v)
			}
			if !allowed {
				s.refused = true
				for _, v := range slices.Backward(own) {
					s.take(v, false)
				}
			} else {
				chosen = append(chosen, own...)
				gained[o.node] += more
				sum += more
			}
		}
		if sum >= s.shape.Unit && (sum > tried || i == len(offers)-1) {
			if s.fits() {
				return chosen, true
			}
			tried = max(2*sum, sum+s.shape.Unit) // not worth another look before there is much more
		}
	}
	return chosen, len(chosen) > 0 && s.fits()
}

// most bounds the victims.
func (s *search) most() int {
	if s.moves {
		return maxMoved
	}
	return maxVictims
}

// room is how many containers find room in a part of the network as things are.
func (s *search) room(part string) int {
	all, sum := s.m.candidates(s.shape, s.shape.Unit)
	if s.shape.Within == "" {
		return sum
	}
	sum = 0
	for _, c := range all {
		if s.part(c.node) == part {
			sum += c.fits
		}
	}
	return sum
}

func (s *search) part(n *node) string {
	if s.shape.Within == "node" {
		return string(n.ID)
	}
	if d := depth(s.shape.Within); d > 0 {
		return above(n.Rack, d)
	}
	return ""
}

// anyOf takes what may go, the cheapest first, until there is room, and puts it back: for the cases in which it is not room on a node that is
// lacking, or guarantees held back what was on the cheapest nodes. nil: there is no room then either.
func (s *search) anyOf(all []*victim) (chosen []*victim) {
	list := slices.Clone(all)
	slices.SortStableFunc(list, func(a, b *victim) int { return cmp.Compare(a.milli, b.milli) })
	ok, look := false, 1
	for _, v := range list {
		if len(chosen) >= maxVictims {
			break
		}
		if !s.may(v) {
			continue
		}
		s.take(v, true)
		if chosen = append(chosen, v); len(chosen) >= look {
			if ok = s.fits(); ok {
				break
			}
			look *= 2
		}
	}
	ok = ok || len(chosen) > 0 && s.fits()
	for _, v := range slices.Backward(chosen) {
		s.take(v, false)
	}
	if !ok {
		return nil
	}
	return chosen
}

// offers lists, for each node that the ask may have, what of those that may go makes how much room there.
func (s *search) offers(all []*victim) []offer {
	m := s.m
	on := map[*node][]*victim{}
	for _, v := range all {
		if !s.may(v) {
			continue
		}
		for i, x := range v.parts {
			if list := on[x.node]; i == 0 || len(list) == 0 || list[len(list)-1] != v {
				on[x.node] = append(list, v)
			}
		}
	}
	var out []offer
	least := s.claims
	for n, list := range on {
		claims := least
		if s.shape.Exclusive {
			claims = m.claims(s.leaf, n.emptied().Times(s.shape.Unit))
		}
		if !n.admits(s.shape) || !m.passes(n, s.shape) || s.shape.Pins != nil && !m.keepsCell(n, s.shape.Pins) {
			continue
		}
		most := n.capable(s.shape, s.shape.Unit)
		now := n.fits(s.shape, s.shape.Unit)
		if now >= most {
			continue
		}
		price := func(v *victim) float64 {
			here := 0
			for _, x := range v.parts {
				if x.node == n {
					here++
				}
			}
			// What of a gang is elsewhere is room for others of the unit, if it has others.
			return float64(v.milli) * max(float64(here)/float64(len(v.parts)), 1/float64(s.shape.Unit))
		}
		name, lacks := exceeds(&s.shape.Resource, &rm.Resource{}, &n.room)
		slices.SortFunc(list, func(a, b *victim) int {
			useful := 0
			if lacks {
				useful = -cmp.Compare(min(a.sum.Get(name), 1), min(b.sum.Get(name), 1))
			}
			return cmp.Or(useful, cmp.Compare(price(a), price(b)), cmp.Compare(a.app.Priority, b.app.Priority),
				-cmp.Compare(a.app.Submitted, b.app.Submitted), a.parts[0].hold.Container.Compare(b.parts[0].hold.Container))
		})
		used, containers, whole := n.Used, n.Containers, n.Exclusive
		free := make([]bool, len(n.GPUs))
		for i := range n.GPUs {
			free[i] = n.GPUs[i].Free
		}
		sum := 0.0
		start := now
		for i, v := range list {
			sum += price(v)
			for _, x := range v.parts {
				if x.node != n {
					continue
				}
				n.Used = n.Used.Sub(x.hold.Resource)
				n.Containers--
				n.Exclusive = false
				for g := range n.GPUs {
					if d := &n.GPUs[g]; !d.Broken && slices.Contains(x.hold.GPUs, d.UUID) {
						d.Free = true
					}
				}
			}
			n.refresh()
			if fits := n.fits(s.shape, s.shape.Unit); fits > now {
				now = fits
				out = append(out, offer{n, list[:i+1], fits - start, sum / float64(fits-start), s.part(n), claims})
			}
			if now >= most {
				break
			}
		}
		n.Used, n.Containers, n.Exclusive = used, containers, whole
		for i := range n.GPUs {
			n.GPUs[i].Free = free[i]
		}
		n.refresh()
	}
	return out
}

// spare puts victims back without which there is room all the same, the dearest first, those that were told last.
func (s *search) spare(chosen []*victim) []*victim {
	order := slices.Clone(chosen)
	slices.SortStableFunc(order, func(a, b *victim) int {
		told := func(v *victim) int {
			if v.leaving {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(told(a), told(b)), -cmp.Compare(a.milli, b.milli))
	})
	kept := make([]*victim, 0, len(chosen))
	for _, v := range order {
		if slices.ContainsFunc(v.parts, func(x part) bool { return x.hold.Stopping }) {
			kept = append(kept, v)
			continue
		}
		s.take(v, false)
		if !s.fits() {
			s.take(v, true)
			kept = append(kept, v)
		}
	}
	return kept
}
