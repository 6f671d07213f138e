package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// The defaults of Preemption.
const (
	DefaultStarved    = 15 * time.Second
	DefaultRoundShare = 0.1
	maxStarvingLanes  = 16    // of a leaf that are looked at
	maxFailures       = 3     // searches without a result in one round
	maxVictims        = 4_096 // of one eviction
	restartGPUSeconds = 60    // what it costs to begin a container anew, beside what it loses, for each GPU
	milliGPUsOfAVCore = 10    // a vcore's work beside a GPU's
	maxUnitsInOnePlan = 1_000
)

// Preemption says when room is taken from some for others. The zero value: never.
type Preemption struct {
	Enabled bool
	// After is how long an ask finds no room before others make room for it; 0: DefaultStarved.
	After time.Duration
	// RoundShare is the part of the cluster of which the containers that are to go may be at a time, 0..1; one eviction may exceed it if nothing
	// else is under way. 0: DefaultRoundShare.
	RoundShare float64
}

// Eviction is what has to go so that an ask finds room. That there is room then is proved, and that no victim can be left out.
type Eviction struct {
	App rm.ApplicationID
	Ask string
	// Queue is the path of the application's, Units how many containers there is room for afterwards.
	Queue   string
	Units   int
	Victims []Victim
}

// Victim is a container that is to go.
type Victim struct {
	Container rm.ContainerID
	Node      rm.NodeID
	// App holds it, in Queue.
	Queue string
	// Lost is its work since it was last known to be saved, in GPU-seconds.
	Lost float64
	// Gang: it goes because others of its gang do, too, see Hold.Gang.
	Gang bool
}

// Preempted is what Preempt decides.
type Preempted struct {
	// Evictions name victims that have not been told yet.
	Evictions []Eviction
	// Spared have been told, and nobody needs their room any more.
	Spared []rm.ContainerID
}

// victim is what goes together: a gang, or one container.
type victim struct {
	app   *app
	parts []part
	sum   rm.Resource
	// milli is what it costs, in thousandths of GPU-seconds.
	milli int64
	// leaving: it was told already, for whom it is now looked for.
	leaving bool
	chosen  bool
}

// part is a container of a victim. The node is nil when the model does not have it.
type part struct {
	node *node
	hold *Hold
}

// search looks for an eviction for one ask.
type search struct {
	m     *Model
	w     *want
	leaf  *queue
	shape *shape
	// claims is how many queues from the leaf upwards stay within their guarantee with the units.
	claims int
	// inside is the queue whose maximum says no; nil: none does.
	inside *queue
	// refused: guarantees held back some that would have made room.
	refused bool
}

// milli is what a container's end costs: what it has done since it was saved, and the beginning anew.
func (m *Model) milli(h *Hold) int64 {
	weight := int64(h.Resource.GPUs)*1000 + int64(h.Resource.VCores)*milliGPUsOfAVCore
	return weight*max(int64(m.now-h.Saved), 0)/1000 + weight*restartGPUSeconds + 1
}

// lost is the work that a container loses, in GPU-seconds.
func (m *Model) lost(h *Hold) float64 {
	return float64(h.Resource.GPUs) * max(float64(m.now-h.Saved), 0) / 1000
}

// Preempt decides who makes room for asks that have found none for long enough. It is to be called when a plan was made to its end, and again
// and again: what was told already is part of every decision, so that another leader goes on with it. Room is kept for gangs, and for the
// single application that waits with others' containers, until they have it.
func (m *Model) Preempt(now metadata.Time) Preempted {
	p := m.config.Preempt
	m.now = now
	if m.unresolved {
		m.resolve()
	}
	after, most := metadata.Time(cmp.Or(p.After, DefaultStarved).Milliseconds()), cmp.Or(p.RoundShare, DefaultRoundShare)
	told := m.leaving()
	busy := rm.Resource{}
	for _, list := range told {
		for _, v := range list {
			busy = busy.Add(v.sum)
		}
	}
	var leaves []*queue
	for _, q := range m.queues {
		if q.Leaf() && (len(q.all) > 0 || len(told[q.Path]) > 0) {
			leaves = append(leaves, q)
		}
	}
	slices.SortStableFunc(leaves, func(a, b *queue) int {
		return cmp.Or(-cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.ratio, b.ratio))
	})
	least := m.leastPriorities()
	var all []*victim // what could go, looked up when somebody asks for it
	found, failures := false, 0
	table := func() []*victim {
		if !found {
			all, found = m.victims(), true
		}
		return all
	}
	var out Preempted
	for _, q := range leaves {
		own := told[q.Path]
		delete(told, q.Path)
		if len(q.lanes.list) > 0 {
			continue // something changed since the plan, which comes first
		}
		var done *Eviction
		var needed []*victim
		settling := false
		for _, l := range m.starving(q) {
			w := l.first()
			if r := q.head.reservation; len(own) == 0 && r != nil && r.evicts && r.want == w {
				// The last has gone; its devices may need a moment.
				if r.idle == 0 {
					r.idle = now
				}
				if settling = now-r.idle < after; settling {
					break
				}
			}
			switch {
			case !p.Enabled || l.shape.Exclusive || m.claims(q, l.shape.Resource.Times(l.shape.Unit)) == 0 && !lower(least, q, w.app.Priority):
				continue
			case len(own) == 0 && (now-w.waits < after || now < w.again || failures >= maxFailures):
				continue
			}
			if done, needed = m.evict(l, own, table, busy, most); done != nil {
				break
			}
			failures++
			w.again = now + after
		}
		if settling {
			continue
		}
		for _, v := range own {
			if !slices.Contains(needed, v) {
				busy = busy.Sub(v.sum)
				for _, x := range v.parts {
					if !x.hold.Stopping {
						out.Spared = append(out.Spared, x.hold.Container)
					}
				}
			}
		}
		if done == nil {
			m.unkeep(q)
			continue
		}
		for _, v := range needed {
			if !v.leaving {
				busy = busy.Add(v.sum)
				v.leaving = true
			}
		}
		if len(done.Victims) > 0 {
			out.Evictions = append(out.Evictions, *done)
		}
	}
	for _, path := range sortedKeys(told) { // of queues that are there no more
		for _, v := range told[path] {
			for _, x := range v.parts {
				if !x.hold.Stopping {
					out.Spared = append(out.Spared, x.hold.Container)
				}
			}
		}
	}
	slices.SortFunc(out.Spared, rm.ContainerID.Compare)
	return out
}

// leastPriorities are, for each leaf, the lowest priority of an application there that has something.
func (m *Model) leastPriorities() map[*queue]int {
	out := map[*queue]int{}
	for _, a := range m.apps {
		if a.queue == nil || a.queue.PreemptionDisabled || a.Used.IsZero() {
			continue
		}
		if least, ok := out[a.queue]; !ok || a.Priority < least {
			out[a.queue] = a.Priority
		}
	}
	return out
}

func lower(least map[*queue]int, q *queue, than int) bool {
	n, ok := least[q]
	return ok && n < than
}

func sortedKeys(of map[string][]*victim) []string {
	var out []string
	for key := range of {
		out = append(out, key)
	}
	slices.Sort(out)
	return out
}

// starving are the lanes of a leaf that wait for room or for less use of a queue, in their order. It notes since when.
func (m *Model) starving(q *queue) []*lane {
	var out []*lane
	for _, l := range q.all {
		w := l.first()
		if w.waits == 0 {
			w.waits = m.now
		}
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

// leaving are the containers that were told to go, as victims of the queues for which they go.
func (m *Model) leaving() map[string][]*victim {
	out := map[string][]*victim{}
	for _, n := range sorted(m.leavers) {
		for i := range n.Holds {
			h := &n.Holds[i]
			if h.For == "" {
				continue
			}
			out[h.For] = append(out[h.For], &victim{app: m.apps[h.App], parts: []part{{n, h}}, sum: h.Resource, leaving: true})
		}
	}
	return out
}

// sorted are the nodes that hold something, by id.
func sorted(nodes map[rm.NodeID]*node) []*node {
	out := make([]*node, 0, len(nodes))
	for _, n := range nodes {
		if len(n.Holds) > 0 {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b *node) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// victims are all that could go for somebody: gangs whole, other containers one by one, masters never.
func (m *Model) victims() []*victim {
	type gang struct {
		app    *app
		number int64
	}
	gangs := map[gang]*victim{}
	var out []*victim
	for _, n := range sorted(m.nodes) {
		for i := range n.Holds {
			h := &n.Holds[i]
			a := m.apps[h.App]
			if a == nil || a.queue == nil || a.queue.PreemptionDisabled || h.Master || h.Stopping || h.Container.IsZero() {
				continue
			}
			var v *victim
			if h.Gang != 0 {
				v = gangs[gang{a, h.Gang}]
			}
			if v == nil {
				v = &victim{app: a}
				out = append(out, v)
				if h.Gang != 0 {
					gangs[gang{a, h.Gang}] = v
				}
			}
			v.parts = append(v.parts, part{n, h})
			v.sum = v.sum.Add(h.Resource)
			v.milli += m.milli(h)
			if h.For != "" {
				v.leaving = true // a gang of which one was told is told as a whole; it is somebody's already
			}
		}
	}
	return slices.DeleteFunc(out, func(v *victim) bool { return v.leaving })
}

// evict looks for what has to go so that a lane's first ask finds room, beside what was told already. It returns what is needed of both, and keeps
// the room; nil: there is no way.
func (m *Model) evict(l *lane, told []*victim, table func() []*victim, busy rm.Resource, most float64) (*Eviction, []*victim) {
	w := l.first()
	for _, v := range told {
		busy = busy.Sub(v.sum)
	}
	for _, units := range m.unitsOf(l, busy, most) {
		s := m.newSearch(l, w, units)
		chosen, seats := s.run(told, table)
		if seats == nil {
			continue
		}
		own, fresh := rm.Resource{}, false
		for _, v := range chosen {
			own = own.Add(v.sum)
			fresh = fresh || !v.leaving
		}
		if sum := busy.Add(own); fresh && share(&sum, &m.total) > most && (!busy.IsZero() || len(told) > 0) {
			continue // in another round
		}
		m.keepSeats(l, w, s.shape, seats)
		return m.eviction(w, units, chosen), chosen
	}
	return nil, nil
}

func (m *Model) eviction(w *want, units int, chosen []*victim) *Eviction {
	e := &Eviction{App: w.app.ID, Ask: w.ID, Queue: w.app.queue.Path, Units: units}
	for _, v := range chosen {
		for _, x := range v.parts {
			if x.hold.For == "" {
				e.Victims = append(e.Victims, Victim{x.hold.Container, x.node.ID, v.app.queue.Path, m.lost(x.hold), len(v.parts) > 1})
			}
		}
	}
	slices.SortFunc(e.Victims, func(a, b Victim) int { return a.Container.Compare(b.Container) })
	return e
}

// unitsOf are the numbers of containers to try to find room for: a gang whole; of single ones as many as the lane wants, as the queue is
// guaranteed and as may go in one round, and then less.
func (m *Model) unitsOf(l *lane, busy rm.Resource, most float64) []int {
	if l.shape.Unit > 1 {
		return []int{l.shape.Unit}
	}
	n := 0
	for _, w := range l.wants.list {
		if w.app.Priority == l.first().app.Priority {
			n = min(n+w.open(), maxUnitsInOnePlan)
		}
	}
	one := share(&l.shape.Resource, &m.total)
	if one > 0 {
		n = min(n, int((most-share(&busy, &m.total))/one))
	}
	if n > 1 && m.claims(l.queue, l.shape.Resource) > 0 {
		for n > 1 && m.claims(l.queue, l.shape.Resource.Times(n)) == 0 {
			n /= 2
		}
	}
	var out []int
	for n = max(n, 1); n > 1; n /= 2 {
		out = append(out, n)
	}
	return append(out, 1)
}

// claims counts the queues from a leaf upwards that use no more than they are guaranteed of what is needed, with it.
func (m *Model) claims(q *queue, need rm.Resource) int {
	n := 0
	for ; q != nil && q.parent != nil; q = q.parent {
		if _, no := exceeds(&need, &q.used, &q.guaranteed); no {
			break
		}
		n++
	}
	return n
}

func (m *Model) newSearch(l *lane, w *want, units int) *search {
	f := l.shape.form
	if f.Unit = units; l.shape.Unit != units {
		f.Within = ""
	}
	s := &search{m: m, w: w, leaf: l.queue, shape: m.newShape(f)}
	s.claims = m.claims(l.queue, f.Resource.Times(units))
	return s
}

// may reports whether a victim may go for the ask, as to priorities and guarantees: in the same queue one of an application of lower
// priority; of another queue what that uses above its guarantee, when everything up to where the two meet stays within its own.
func (s *search) may(v *victim) bool {
	q := v.app.queue
	switch {
	case v.chosen || v.leaving || v.app == s.w.app || s.inside != nil && !s.inside.holds(q):
		return false
	case q == s.leaf:
		return v.app.Priority < s.w.app.Priority && (q.PreemptByPriority || v.app.User == s.w.app.User)
	}
	common, at := s.leaf, 0
	for !common.holds(q) {
		common = common.parent
		at++
	}
	if s.claims < at {
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
	less := v.sum.Times(-sign)
	for q := v.app.queue; q != nil; q = q.parent {
		q.used = q.used.Add(less)
	}
	if q := v.app.queue; q.limitsUsers() {
		u := q.userOf(v.app.User)
		u.used = u.used.Add(less)
	}
}

// vacate takes a container off a node as far as placements look, or puts it back.
func (n *node) vacate(m *Model, h *Hold, out bool) {
	m.unfile(n)
	if out {
		n.Used = n.Used.Sub(h.Resource)
		n.Containers--
		n.Exclusive, n.vacated = false, n.Exclusive
	} else {
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
	x := s.m.limitIn(s.leaf, s.w.app, &s.shape.form, s.w.master())
	if x.by == nil {
		return true, nil
	}
	if x.code == rm.ReasonQueueMaximum {
		by = x.by
	}
	return false, by
}

// fits reports whether there is room now, and no limit says no.
func (s *search) fits() bool {
	if ok, _ := s.limit(); !ok {
		return false
	}
	_, ok := s.m.find(s.shape)
	return ok
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
	if len(ending) > 0 && s.fits() {
		seats, _ = m.find(s.shape)
		return nil, seats
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
	seats, ok := m.find(s.shape)
	if !ok {
		return chosen, nil
	}
	// Which devices they are is decided when they are free; what counts is where.
	return chosen, seats
}

// ending are the containers that are about to end for nobody's sake.
func (m *Model) ending() []*victim {
	var out []*victim
	for _, n := range sorted(m.leavers) {
		for i := range n.Holds {
			if h := &n.Holds[i]; h.Stopping && h.For == "" && !n.Closed {
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
}

// choose takes out of the model what makes room, the cheapest first; nil: all that may go is not enough, and is in the model again.
func (s *search) choose(all []*victim) []*victim {
	offers := s.offers(all)
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
			for _, v := range o.victims {
				if v.chosen {
					continue
				}
				if allowed = len(chosen)+len(own) < maxVictims && s.may(v); !allowed {
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
	for n, list := range on {
		if !n.admits(s.shape) || !m.passes(n, s.shape) {
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
				out = append(out, offer{n, list[:i+1], fits - start, sum / float64(fits-start), s.part(n)})
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

// keepSeats keeps the room of an eviction for a gang, or for the only ask of a lane, until it has it. Single containers of many
// applications need no more than the order of queues.
func (m *Model) keepSeats(l *lane, w *want, s *shape, seats []seat) {
	q := l.queue
	if m.config.Patience < 0 || len(l.wants.list) > 1 && l.shape.Unit == 1 {
		return
	}
	old := q.head.reservation
	if old != nil && (old.want != w || old.evicts && sameSeats(old, seats)) {
		return // another's, or the same
	}
	if old == nil && len(m.reservations) >= maxReservations {
		return
	}
	if q.head.want != nil {
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

// unkeep gives up what an eviction keeps for a leaf, for which nothing is evicted any more.
func (m *Model) unkeep(q *queue) {
	r := q.head.reservation
	if r == nil || !r.evicts {
		return
	}
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
	need := l.shape.Resource.Times(units)
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
		x := v.parts[0]
		path := ""
		if v.app != nil && v.app.queue != nil {
			path = v.app.queue.Path
		}
		e.Victims = append(e.Victims, Victim{x.hold.Container, x.node.ID, path, m.lost(x.hold), x.hold.Gang != 0})
	}
	if len(e.Victims) == 0 {
		return nil
	}
	return e
}
