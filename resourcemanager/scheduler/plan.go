// Package scheduler decides which containers are granted where. It is pure: no clock, no goroutine, no randomness, no I/O, so equal
// clusters give equal plans. See DESIGN.md for the order and the rules.
package scheduler

import (
	"cmp"
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// Snapshot is everything a decision may depend on.
type Snapshot struct {
	Queues *rm.Queues
	Nodes  []Node
	// Apps are all live applications, also those that want nothing: what they use counts against their queues.
	Apps []App
	// MasterShare and GroupBytes are those of Config.
	MasterShare float64
	GroupBytes  int
}

// Plan is what to do now. Its groups are in the order in which they were decided.
type Plan struct {
	Groups []Group
	// Waiting names every ask that is not fully granted by this plan, with the reason; only Schedule tells it.
	Waiting []Waiting
	// More: the budget was used up before all that may have room was looked at.
	More bool
}

// Group is granted whole or not at all.
type Group struct {
	// Number names the group to Settle.
	Number int64
	App    rm.ApplicationID
	Ask    string
	// Resource of each placement, see Gets.
	Resource   rm.Resource
	Placements []Placement
}

// Placement is one container of a group.
type Placement struct {
	Node rm.NodeID
	GPUs []string
	// Whole is all that the node has, of a container that gets that; nil: it gets the group's Resource.
	Whole *rm.Resource
}

// Gets is what a placement of the group gets.
func (g *Group) Gets(p Placement) rm.Resource {
	if p.Whole != nil {
		return *p.Whole
	}
	return g.Resource
}

// total is what all of it gets.
func (g *Group) total() rm.Resource {
	if len(g.Placements) == 0 || g.Placements[0].Whole == nil {
		return g.Resource.Times(len(g.Placements))
	}
	var sum rm.Resource
	for _, p := range g.Placements {
		sum = sum.Add(*p.Whole)
	}
	return sum
}

// Waiting is a "no".
type Waiting struct {
	App    rm.ApplicationID
	Ask    string
	Reason rm.Reason
}

// Schedule plans one pass over all asks of a cluster.
func Schedule(s Snapshot, now metadata.Time) Plan {
	m := NewModel(Config{Queues: s.Queues, MasterShare: s.MasterShare, GroupBytes: s.GroupBytes})
	for _, n := range s.Nodes {
		m.SetNode(n)
	}
	for _, a := range s.Apps {
		m.SetApp(a)
	}
	plan := m.Plan(Budget{}, now)
	plan.Waiting = m.Waiting()
	return plan
}

// Budget bounds a plan, which may exceed it by one group; 0: it is not bounded.
type Budget struct {
	// Containers granted, and what their groups take at most when they are recorded, see placementBytes.
	Containers, Bytes int
	// Steps bounds the asks that are looked at, whether there is room for them or not; looks at looksAStep single nodes count as one, too.
	Steps int
}

// looksAStep looks at nodes one by one, for asks that depend on more than what nodes of a bucket have in common, take as long as a step.
const looksAStep = 200

// placementBytes is what one container takes at most where grants are recorded: the name of its node, its devices, its amounts and what
// its token is made of.
func (m *Model) placementBytes(r *rm.Resource) int {
	return 64 + m.nodeNames.longest() + r.Devices()*(4+m.deviceNames.longest())
}

// Plan decides what to grant now, until the budget is used up or nothing more has room. What it grants stays in the model as assumed
// until Settle.
func (m *Model) Plan(b Budget, now metadata.Time) Plan {
	m.now = now
	m.prepare()
	if !m.resumed {
		m.resume()
	}
	var plan Plan
	containers, bytes, looks := 0, 0, m.looks
	for steps := 0; ; steps++ {
		q := m.neediest()
		if q == nil {
			break
		}
		if b.Containers > 0 && containers >= b.Containers || b.Bytes > 0 && bytes >= b.Bytes || b.Steps > 0 && steps+(m.looks-looks)/looksAStep >= b.Steps {
			plan.More = true
			break
		}
		l := q.lanes.list[0]
		w := l.first()
		seats, by := m.decide(l)
		if seats == nil {
			m.close(l, by)
		} else {
			bytes += l.shape.Unit * m.placementBytes(&l.shape.Resource)
			containers += l.shape.Unit
			m.pass(w)
			plan.Groups = append(plan.Groups, m.assume(w, l.shape, seats).group)
		}
		if len(q.lanes.list) == 0 {
			m.admit(q)
		}
	}
	if !plan.More {
		m.reserve()
		if len(m.root.active.list) > 0 || len(m.root.lanes.list) > 0 {
			plan.More = true // what has a reservation now has another turn
		}
	}
	return plan
}

// prepare opens what may have room since the last plan.
func (m *Model) prepare() {
	if m.unresolved {
		m.resolve()
	}
	m.followBerths()
	m.weighAll()
	for _, q := range m.queues {
		m.admit(q)
	}
	var grown []*node
	others := false
	for _, n := range m.changed {
		others = others || n.another
		n.changed, n.another = false, false
		if !n.Closed && n.grew() {
			grown = append(grown, n)
		}
	}
	m.changed = m.changed[:0]
	m.openCells()
	m.undelay(grown, others)
	if len(grown) == 0 {
		return
	}
	for _, s := range m.shapes {
		if (s.closed || s.Exclusive) && (len(grown) > 100 || slices.ContainsFunc(grown, func(n *node) bool { return n.admits(s) && n.fits(s, 1) > 0 })) {
			m.open(s)
		}
	}
}

// open lets all asks of a shape be looked at again.
func (m *Model) open(s *shape) {
	s.closed = false
	for _, l := range s.lanes {
		if l.closed && (l.by == nil || s.Exclusive) { // a smaller node may be within the limit
			m.reopen(l)
		}
	}
}

// decide finds room for the first ask of a lane. nil: there is none, or a limit says no, that of the queue answered.
func (m *Model) decide(l *lane) ([]seat, *queue) {
	s := l.shape
	if s.closed || m.tooMany(s) > 0 {
		return nil, nil
	}
	for _, b := range m.berths {
		if b.number == s.Reservation {
			return m.land(b, l)
		}
	}
	if x := m.limit(l, l.first()); x.by != nil {
		return nil, x.by
	}
	seats, x := m.seatsFor(l.queue, l.first().app, s, l.master)
	if seats == nil && x.by == nil {
		s.closed = true
	}
	if seats != nil && m.declines(l, seats) {
		return nil, nil
	}
	return seats, x.by
}

// seatsFor finds room for one unit of a shape. What is to have nodes for itself is charged all that these have, which limits may not let
// pass: then nil, and which does not.
func (m *Model) seatsFor(q *queue, a *app, s *shape, master bool) ([]seat, refusal) {
	seats, ok := m.find(s)
	if !ok {
		return nil, refusal{}
	}
	if !s.Exclusive {
		return seats, refusal{}
	}
	x := m.limitWhole(q, a, s.form, master, seats)
	if x.by == nil {
		return seats, x
	}
	if s.Within != "" || s.Strict {
		return nil, x
	}
	all, _ := m.candidates(s, 1) // smaller ones may do
	slices.SortFunc(all, func(a, b candidate) int {
		x, y := a.whole(), b.whole()
		return cmp.Or(cmp.Compare(x.GPUs, y.GPUs), cmp.Compare(x.Memory, y.Memory), cmp.Compare(x.VCores, y.VCores), cmp.Compare(a.ID, b.ID))
	})
	for i := 0; i+s.Unit <= len(all) && (i == 0 || s.Unit == 1); i++ {
		seats = seats[:0]
		for _, c := range all[i : i+s.Unit] {
			seats = append(seats, seat{c.node, -1, 1})
		}
		if m.limitWhole(q, a, s.form, master, seats).by == nil {
			return seats, refusal{}
		}
	}
	return nil, x
}

// limitWhole checks the limits for all that the nodes of seats have.
func (m *Model) limitWhole(q *queue, a *app, f form, master bool, seats []seat) refusal {
	f.Unit, f.Resource = 1, rm.Resource{}
	for _, at := range seats {
		f.Resource = f.Resource.Add(at.node.whole())
	}
	return m.limitIn(q, a, &f, master)
}

// tooMany is the size of the largest group that can be recorded in one piece, when a unit of the shape is more; 0: it is not.
func (m *Model) tooMany(s *shape) int {
	r := s.Resource
	if s.Exclusive {
		r.GPUs, r.Other = m.deviceCounts.longest(), r.Other.WithInstances(rm.Amounts{})
	}
	each := m.placementBytes(&r)
	if m.config.GroupBytes == 0 || s.Unit == 1 || s.Unit*each <= m.config.GroupBytes {
		return 0
	}
	return max(m.config.GroupBytes/each, 1)
}
