package scheduler

import (
	"cmp"
	"math/bits"
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
	maxPatience       = 8     // times After lie between two such searches for one ask at most
	maxVictims        = 4_096 // of one eviction
	restartGPUSeconds = 60    // what it costs to begin a container anew, beside what it loses, for each GPU
	milliGPUsOfAVCore = 10    // a vcore's work beside a GPU's
	maxUnitsInOnePlan = 1_000
	// stuckAfter is after which time nobody counts on the end of a container that its node was told to end.
	stuckAfter = metadata.Time(15 * time.Minute / time.Millisecond)

	DefaultDefragmentAfter = 5 * time.Minute
	DefaultDefragmentPrice = 5 * time.Minute
	DefaultDefragmentRest  = 30 * time.Minute
)

// Preemption says when room is taken from some for others. The zero value: never.
type Preemption struct {
	Enabled bool
	// After is how long an ask finds no room before others make room for it; 0: DefaultStarved.
	After time.Duration
	// RoundShare is the part of the cluster of which the containers that are to go may be at a time, 0..1; one eviction may exceed it if nothing
	// else is under way. 0: DefaultRoundShare.
	RoundShare float64

	// Defragment: containers that write checkpoints are moved so that others find room in one piece.
	Defragment bool
	// DefragmentAfter is how long an ask finds no room before; 0: DefaultDefragmentAfter.
	DefragmentAfter time.Duration
	// DefragmentPrice is what moving may cost for each GPU that finds room: the time since the last checkpoint, and a minute to start anew, of each
	// GPU that is moved. 0: DefaultDefragmentPrice.
	DefragmentPrice time.Duration
	// DefragmentRest is how long a container stays where it is before it is moved, and nobody is moved for a queue again. 0: DefaultDefragmentRest.
	DefragmentRest time.Duration
}

// Eviction is what has to go so that an ask finds room. That there is room then is proved, and that no victim can be left out.
type Eviction struct {
	App rm.ApplicationID
	Ask string
	// Queue is the path of the application's, Units how many containers there is room for afterwards.
	Queue   string
	Units   int
	Victims []Victim
	// Moves: there is room for all of them elsewhere, which is kept for them.
	Moves bool
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

// milli is what a container's end costs: what it has done since it was saved, and the beginning anew.
func (m *Model) milli(h *Hold) int64 {
	weight := int64(h.Resource.GPUShare()*1000) + int64(h.Resource.VCores)*milliGPUsOfAVCore
	return weight*max(int64(m.now-h.Saved), 0)/1000 + weight*restartGPUSeconds + 1
}

// lost is the work that a container loses, in GPU-seconds.
func (m *Model) lost(h *Hold) float64 {
	return h.Resource.GPUShare() * max(float64(m.now-h.Saved), 0) / 1000
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
	m.followBerths()
	m.resumed = true
	after, most := metadata.Time(cmp.Or(p.After, DefaultStarved).Milliseconds()), cmp.Or(p.RoundShare, DefaultRoundShare)
	m.noteEnding()
	told := m.leaving()
	busy := rm.Resource{}
	moving := len(m.berths) > 0 // one plan at a time
	for _, list := range told {
		for _, v := range list {
			busy = busy.Add(v.sum)
			moving = moving || moves(v)
		}
	}
	var leaves []*queue
	for _, q := range m.queues {
		if q.Leaf() && (len(q.all) > 0 || len(told[q.Path]) > 0) {
			leaves = append(leaves, q)
		}
	}
	tired := func(q *queue) metadata.Time { // those for which nothing was found lately let the others go first
		if q.fruitless > now-after {
			return q.fruitless
		}
		return 0
	}
	slices.SortStableFunc(leaves, func(a, b *queue) int {
		return cmp.Or(cmp.Compare(tired(a), tired(b)), -cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.ratio, b.ratio))
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
		reserved := func(w *want) bool {
			r := q.head.reservation
			return r != nil && r.evicts && r.want == w
		}
		preempts := func(l *lane) bool { // somebody may have to go for it
			w := l.first()
			return p.Enabled && (len(own) > 0 || now-w.waits >= after) && (now >= w.again || len(own) > 0 && reserved(w)) && (m.due(l, least) || m.movedFor(w, own))
		}
		mends := func(l *lane) bool { return len(own) == 0 && !moving && m.mends(l) }
		lanes := m.starving(q, func(l *lane) bool { return reserved(l.first()) || preempts(l) || mends(l) })
		if !m.moveOn(q, own) {
			lanes = nil
		}
		for _, l := range lanes {
			w := l.first()
			if r := q.head.reservation; r != nil && r.evicts && r.want == w {
				switch {
				case len(own) > 0:
					r.idle = 0
				case r.idle == 0:
					r.idle = now
				}
				// The last has gone; its devices may need a moment.
				if settling = len(own) == 0 && now-r.idle < after; settling {
					break
				}
			}
			if preempts(l) && (len(own) > 0 || failures < maxFailures) && (l.shape.Unit == 1 || m.keepable(l, w)) {
				var postponed bool
				if done, needed, postponed = m.evict(l, own, table, busy, most); done != nil {
					w.failed = 0
					break
				}
				failures++
				w.again, q.fruitless = now+after, now
				if !postponed {
					w.again = now + after<<w.failed
					w.failed = min(w.failed+1, bits.Len(maxPatience)-1)
				}
			}
			if mends(l) {
				if done = m.mend(l, table, busy, most); done != nil {
					moving = true
					break
				}
			}
		}
		if settling {
			continue
		}
		for _, v := range own {
			if !slices.Contains(needed, v) {
				busy = busy.Sub(v.sum)
				m.spare(v, &out)
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
			m.spare(v, &out)
		}
	}
	slices.SortFunc(out.Spared, rm.ContainerID.Compare)
	return out
}

// spare lets those stay who were told to go, as far as their nodes were not told to end them.
func (m *Model) spare(v *victim, out *Preempted) {
	stay := true
	for _, x := range v.parts {
		if stay = stay && !x.hold.Stopping; !x.hold.Stopping {
			out.Spared = append(out.Spared, x.hold.Container)
		}
	}
	if b := m.berthOf(v); b != nil && stay {
		m.unmoor(b)
	}
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

// due reports whether somebody may have to go for a lane's first ask: it is within a guarantee, or somebody in its leaf has a lower priority.
func (m *Model) due(l *lane, least map[*queue]int) bool {
	n, ok := least[l.queue]
	return ok && n < l.first().app.Priority || m.cellClaim(l.queue, l.shape, l.shape.Unit) >= 0 || m.claims(l.queue, m.need(l.shape).Times(l.shape.Unit)) > 0
}

func sortedKeys(of map[string][]*victim) []string {
	var out []string
	for key := range of {
		out = append(out, key)
	}
	slices.Sort(out)
	return out
}

// starving are the lanes of a leaf that are worth a look, in their order. It notes since when each waits.
func (m *Model) starving(q *queue, worth func(*lane) bool) []*lane {
	var out []*lane
	for _, l := range q.all {
		if l.delay != nil { // there is room for it
			continue
		}
		if w := l.first(); w.waits == 0 {
			w.waits = m.now
		}
		if worth(l) {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b *lane) int {
		if before(a.first(), b.first()) {
			return -1
		}
		return 1
	})
	return out[:min(len(out), maxStarvingLanes)]
}

// leaving are the containers that were told to go, as victims of the queues for which they go. Those that should have ended long ago are none.
func (m *Model) leaving() map[string][]*victim {
	type gang struct {
		app    rm.ApplicationID
		number int64
		queue  string
	}
	gangs := map[gang]*victim{}
	out := map[string][]*victim{}
	for _, n := range sorted(m.leavers) {
		for i := range n.Holds {
			h := &n.Holds[i]
			if h.For == "" || m.stuck(h) {
				continue
			}
			key := gang{h.App, h.Gang, h.For}
			v := gangs[key]
			if v == nil || h.Gang == 0 {
				v = &victim{app: m.apps[h.App], leaving: true}
				out[h.For] = append(out[h.For], v)
				gangs[key] = v
			}
			v.parts, v.sum = append(v.parts, part{n, h}), v.sum.Add(h.Resource)
		}
	}
	return out
}

// noteEnding notes since when containers end.
func (m *Model) noteEnding() {
	since := map[rm.ContainerID]metadata.Time{}
	for _, n := range m.leavers {
		for i := range n.Holds {
			if h := &n.Holds[i]; h.Stopping && !h.Container.IsZero() {
				since[h.Container] = cmp.Or(m.stopping[h.Container], m.now)
			}
		}
	}
	m.stopping = since
}

// stuck reports whether a container should have ended long ago: nobody counts on its room before it is gone. A process that waits for a broken
// device cannot be killed.
func (m *Model) stuck(h *Hold) bool {
	since := m.stopping[h.Container]
	return h.Stopping && since > 0 && m.now-since > stuckAfter
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
// the room; nil: there is no way, or it is postponed until less are on their way out.
func (m *Model) evict(l *lane, told []*victim, table func() []*victim, busy rm.Resource, most float64) (e *Eviction, needed []*victim, postponed bool) {
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
			postponed = true
			continue
		}
		easy := s.cells < 0 && l.shape.Unit == 1 && !l.shape.Exclusive && len(chosen) > 0 && l.shape.replaces(chosen) // who ends makes room for one at once
		if !easy && (units > max(w.open(), l.shape.Unit) || !m.keepable(l, w)) {
			continue // room is kept for one ask
		}
		if !easy || len(l.wants.list) == 1 {
			m.keepSeats(l, w, s.shape, seats)
		}
		return m.eviction(w, units, chosen), chosen, false
	}
	return nil, nil, postponed
}

// replaces reports whether a container of the shape finds room where any one of the victims was, as soon as that has gone.
func (s *shape) replaces(victims []*victim) bool {
	for _, v := range victims {
		for _, x := range v.parts {
			if r := x.hold.Resource; r.GPUs < s.Resource.GPUs || s.Resource.GPUs == 0 && !s.Resource.FitsIn(r) {
				return false
			}
		}
	}
	return true
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
		if w.app.Priority == l.first().app.Priority && (!l.shape.Exclusive || w == l.first()) { // whole nodes are kept, for one
			n = min(n+w.open(), maxUnitsInOnePlan)
		}
	}
	need := m.need(l.shape)
	one := share(&need, &m.total)
	if one > 0 {
		n = min(n, int((most-share(&busy, &m.total))/one))
	}
	if n > 1 && m.claims(l.queue, need) > 0 {
		for n > 1 && m.claims(l.queue, need.Times(n)) == 0 {
			n /= 2
		}
	}
	var out []int
	for n = max(n, 1); n > 1; n /= 2 {
		out = append(out, n)
	}
	return append(out, 1)
}

// need is what one container of a shape is charged at least: of one that has its node for itself, the smallest node that it may have.
func (m *Model) need(s *shape) rm.Resource {
	if !s.Exclusive {
		return s.Resource
	}
	least, found := s.Resource, false
	for _, n := range m.nodes {
		if !n.admits(s) || n.capable(s, 1) == 0 {
			continue
		}
		r := n.emptied()
		if !found || cmp.Or(cmp.Compare(share(&r, &m.total), share(&least, &m.total)), cmp.Compare(r.Memory, least.Memory), cmp.Compare(r.VCores, least.VCores)) < 0 {
			least, found = r, true
		}
	}
	return least
}

// emptied is what a container gets that has the node for itself when nothing else runs there.
func (n *node) emptied() rm.Resource {
	r := n.Capacity
	r.DropDevices()
	for i := range n.GPUs {
		if g := &n.GPUs[i]; !g.Broken {
			r.AddDevice(&rm.GPU{Profile: g.Profile})
		}
	}
	return r
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
