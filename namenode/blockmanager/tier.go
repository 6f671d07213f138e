package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/placement"
)

// Blocks whose storage policy wants replicas on volumes of other types than they are on are moved when the server asks for it (Tier): inside of a node where it has a volume of
// the type, which changes nothing else about the block, else by copying and deleting, as in balancing. Nothing of it is stored: the server knows what it has asked for, and asks the next
// leader's Manager again.

// Tiered is what has become of the blocks of Tier, while this manager leads.
type Tiered struct {
	// Waiting are the blocks that are still to be looked at, those under way included. Moving bytes are on their way.
	Waiting int
	Moving  int64
	// Moved bytes of Replicas lie where they belong by now, Failed copies did not arrive.
	Moved, Replicas, Failed int64
	// Stuck blocks have replicas on volumes of the wrong type that could not be moved: there is no room on one of the right type where the block, or its group, loses no rack, too few nodes, or
	// somebody else works on the block all the time.
	Stuck int64
}

// tiering is the work that Tier has asked for.
type tiering struct {
	queue queue
	tries map[metadata.BlockID]tries
	done  Tiered
}

// tries is how often a block's replicas did not arrive, and since when nothing can be done about it; zero: something can.
type tries struct {
	failed int
	since  time.Time
}

const (
	// tierPerTick is at how many blocks of Tier a Tick looks, tierNodes at how many nodes for one of them, and tierLooks for all of them.
	tierPerTick, tierNodes, tierLooks = 1000, 200, 4000
	// tierPatience is for how long a block is looked at again that cannot be moved, and tierTries how many copies of one may not arrive. tierEven is for how long an internal block of a group
	// waits for a node where the group stands on its racks as evenly as before, if a look is not at all nodes.
	tierPatience = 30 * time.Second
	tierEven     = 10 * time.Second
	tierTries    = 3
)

// Tier asks for the replicas of a block, or of all internal blocks of a group, to be brought to volumes of the types that its storage policy wants.
func (m *Manager) Tier(id metadata.BlockID) {
	g := m.groups[id]
	if g == nil {
		m.tiers.queue.push(id)
		return
	}
	for i := range g.layout.Units() {
		m.tiers.queue.push(id.Internal(i))
	}
}

// Tiered tells what has become of it.
func (m *Manager) Tiered() Tiered {
	t := m.tiers.done
	t.Waiting = m.tiers.queue.len()
	return t
}

// landed reports whether a node has a good replica of a block on a volume of the type of the one at a place.
func (m *Manager) landed(b *block, n *node, at place) bool {
	kind := m.volumes[at].kind
	return slices.ContainsFunc(b.good, func(p place) bool { v := m.volumes[p]; return v.node == n && v.kind == kind })
}

// tierBlocks orders moves to volumes of the right types.
func (m *Manager) tierBlocks(now time.Time) {
	s := &m.tiers
	idle := func(n *node) bool { return n.alive && n.outgoing < m.balanceStreams() }
	if s.queue.len() == 0 || !slices.ContainsFunc(m.order, idle) {
		return
	}
	most := m.work.Looked + tierLooks
	for range min(s.queue.len(), tierPerTick) {
		if m.work.Looked >= most {
			return
		}
		m.work.Blocks++
		id, _ := s.queue.pop()
		b := m.blocks.borrow(id)
		if b == nil {
			delete(s.tries, id)
			continue
		}
		t := s.tries[id]
		what := m.tierBlock(now, id, b, len(m.order) <= tierNodes || !t.since.IsZero() && now.Sub(t.since) >= tierEven)
		m.blocks.rest(id, b)
		t = s.tries[id]
		switch what {
		case tierDone:
			delete(s.tries, id)
			continue
		case tierLater:
			t.since = time.Time{}
		case tierNot:
			if t.since.IsZero() {
				t.since = now
			}
		}
		if t.failed >= tierTries || !t.since.IsZero() && now.Sub(t.since) >= tierPatience {
			s.done.Stuck++
			delete(s.tries, id)
			continue
		}
		if t != (tries{}) {
			if s.tries == nil {
				s.tries = map[metadata.BlockID]tries{}
			}
			s.tries[id] = t
		} else {
			delete(s.tries, id)
		}
		s.queue.push(id)
	}
}

// outcome is what tierBlock says of a block.
type outcome uint8

const (
	tierDone  outcome = iota // there is nothing to move
	tierLater                // something is on its way, or would be if nodes had streams to give
	tierNot                  // nothing can be moved now
)

// tierBlock orders one move of a block, if it needs one and has none. uneven: its group may stand less evenly on its racks after it, if it loses none and there is no other way, as in
// HDFS, where only the number of racks counts.
func (m *Manager) tierBlock(now time.Time, id metadata.BlockID, b *block, uneven bool) outcome {
	if b.open || b.length == 0 || b.want == 0 {
		return tierDone
	}
	policy := namenode.StoragePolicyByID(b.policy)
	var types []namenode.StorageType
	for _, p := range b.good {
		if v := m.volumes[p]; v.usable() && v.node.stays() && !v.node.dooms(id) {
			types = append(types, v.kind)
		}
	}
	over, need := placement.Difference(policy, int(b.want), types)
	switch {
	case b.copied() || len(types) > int(b.want):
		return tierLater // a copy, or what goes once it has come
	case len(over) == 0:
		return tierDone
	case b.more != nil || len(need) == 0:
		return tierNot
	}
	busy := false
	// Inside of a node.
	for _, p := range b.good {
		v := m.volumes[p]
		if !slices.Contains(over, v.kind) || !v.usable() || v.silent() || !v.node.stays() || v.node.dooms(id) {
			continue
		}
		for _, kind := range need {
			at := m.roomOn(v.node, kind, b.length)
			switch {
			case at < 0:
			case v.node.outgoing >= m.balanceStreams() || v.node.incoming >= m.balanceStreams():
				busy = true
			default:
				m.tierMove(now, id, b, v.node, at)
				return tierLater
			}
		}
	}
	if !m.movable(id, b, nil) {
		if busy {
			return tierLater
		}
		return tierNot
	}
	busy = busy || id.Striped() && !m.settled(id)
	var last struct { // the least uneven way
		from *node
		at   place
		rack int // how many of the group are on its rack already
	}
	start := 0
	if len(m.order) > 0 {
		start = int(m.random() % uint64(len(m.order)))
	}
	for i := range min(len(m.order), tierNodes) {
		to := m.order[(start+i)%len(m.order)]
		m.work.Looked++
		if !to.alive || to.stale || !to.stays() {
			continue
		}
		for _, p := range b.good {
			from := m.volumes[p]
			switch {
			case !slices.Contains(over, from.kind):
				continue
			case from.node.outgoing >= m.balanceStreams() || to.incoming >= m.balanceStreams():
				busy = true
				continue
			}
			for _, kind := range need {
				if at := m.landing(id, b, from.node, to, kind, true); at >= 0 {
					m.tierMove(now, id, b, from.node, at)
					return tierLater
				}
				if !uneven || !id.Striped() {
					continue
				}
				if at := m.landing(id, b, from.node, to, kind, false); at >= 0 {
					if rack := onRack(m.siblings(id), to.info.Rack); last.from == nil || rack < last.rack {
						last.from, last.at, last.rack = from.node, at, rack
					}
				}
			}
		}
	}
	switch {
	case busy:
		return tierLater
	case last.from != nil:
		m.tierMove(now, id, b, last.from, last.at)
		return tierLater
	}
	return tierNot
}

// roomOn is the volume of a type of a node that has most room, at least for n bytes; -1: none.
func (m *Manager) roomOn(n *node, kind namenode.StorageType, size int64) place {
	best, room := place(-1), int64(0)
	for _, v := range n.candidate.Volumes {
		if !v.Failed && !v.Slow && v.Type == kind && v.Remaining > size && v.Remaining > room {
			best, room = m.volume(n, v.ID).place, v.Remaining
		}
	}
	return best
}

func (m *Manager) tierMove(now time.Time, id metadata.BlockID, b *block, from *node, at place) {
	t := m.begin(now, id, b, from, at)
	t.tier, t.within = true, m.volumes[at].node == from
	if !t.within {
		b.more.yields = from.info.ID
	}
	m.tiers.done.Moving += b.length
}

// tierEnded counts a move whose target has it, or will not get it.
func (m *Manager) tierEnded(t *transfer, arrived bool) {
	s := &m.tiers
	s.done.Moving -= t.block.Length
	if arrived {
		s.done.Moved += t.block.Length
		s.done.Replicas++
		return
	}
	s.done.Failed++
	if s.tries == nil {
		s.tries = map[metadata.BlockID]tries{}
	}
	x := s.tries[t.block.ID]
	x.failed++
	s.tries[t.block.ID] = x
}
