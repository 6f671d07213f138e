package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// How long a copy takes is up to its source, whose copies share a rate, and to the disks and networks at both ends. So no time is right for it as a whole: a source says with each
// of its beats how far its copies have come, and one is given up that does not get on.

// Progress is how far a node has come with an order to copy a replica, or to compute internal blocks of a group.
type Progress struct {
	// ID is the replica's, or the group's.
	ID         metadata.BlockID
	Generation metadata.Generation
	// Target is where the copy goes; empty: the node does not say. Of computing it says nothing.
	Target namenode.NodeID
	// Percent of the bytes are sent, or made.
	Percent int
	// Waits: it is not begun, because of orders that were given before.
	Waits bool
}

// mostProgress is how many orders a node may name.
const mostProgress = 1024

// BeatProgress tells how far a node has come with its orders. What it does not name it has not got, has done, or has failed at.
//
// A percent counts when it is the first of so many. So each copy gets on a hundred times at most, also one of a node that lies, or that begins again and again;
// and what waits gets on with those in front of it, which are not replaced.
func (m *Manager) BeatProgress(now time.Time, id namenode.NodeID, copies, rebuilds []Progress) {
	n := m.nodes[id]
	if n == nil || n.outgoing == 0 {
		return
	}
	copies, rebuilds = copies[:min(len(copies), mostProgress)], rebuilds[:min(len(rebuilds), mostProgress)]
	var front time.Time // when one of those in front got on
	for _, t := range n.outs {
		if t.over() {
			continue
		}
		list, block := copies, t.block.ID
		if t.computed {
			list, block = rebuilds, block.Group()
		}
		at := slices.IndexFunc(list, func(p Progress) bool {
			return p.ID == block && p.Generation == t.block.Generation && (p.Target == "" || p.Target == m.volumes[t.target].node.info.ID)
		})
		if at >= 0 && list[at].Waits {
			t.moved = latest(t.moved, front)
		} else if at >= 0 && min(list[at].Percent, 100) > t.percent {
			t.percent, t.moved = min(list[at].Percent, 100), now
		}
		front = latest(front, t.moved)
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// rebuildTimes is how many times as long as a copy the computing of an internal block may stand still, which waits for several sources.
const rebuildTimes = 3

// endCopies gives up copies that do not get on and forgets those that are done.
func (m *Manager) endCopies(now time.Time) {
	m.copies = slices.DeleteFunc(m.copies, func(t *transfer) bool {
		if t.over() {
			return true
		}
		b := m.blocks.get(t.block.ID)
		changed := b == nil || b.open || b.generation != t.block.Generation
		limit := m.config.CopyTimeout
		if t.computed {
			limit *= rebuildTimes
		}
		if !changed && now.Sub(t.moved) < limit {
			return false
		}
		m.release(t)
		if b != nil && b.more != nil {
			m.cleanCopies(b)
			m.update(t.block.ID, b)
		}
		return true
	})
}

// refusal is that a node did not take a copy of a block.
type refusal struct {
	id    metadata.BlockID
	node  namenode.NodeID
	until time.Time // it is not asked again
}

// NotCopied hears from a node that a copy which it was to make, or an internal block that it was to compute, did not come about because of its target. Another target is looked for
// at once, for StaleAfter: by then it is known whether the node is silent.
func (m *Manager) NotCopied(now time.Time, source namenode.NodeID, id metadata.BlockID, generation metadata.Generation, target namenode.NodeID) {
	n, to := m.nodes[source], m.nodes[target]
	if n == nil || to == nil {
		return
	}
	for _, t := range n.outs {
		if t.block.ID != id || t.block.Generation != generation || t.within || !m.to(t, to) {
			continue
		}
		if m.refused == nil {
			m.refused = map[metadata.BlockID][]namenode.NodeID{}
		}
		m.refused[id] = append(m.refused[id], target)
		m.refusals = append(m.refusals, refusal{id, target, now.Add(m.config.StaleAfter)})
		m.release(t)
		if b := m.blocks.get(id); b != nil && b.more != nil {
			m.cleanCopies(b)
			m.update(id, b)
		}
	}
}

// refuses reports whether a node did not take a copy of a block a moment ago.
func (m *Manager) refuses(id metadata.BlockID, n *node) bool {
	return slices.Contains(m.refused[id], n.info.ID)
}

// endRefusals lets nodes be asked again.
func (m *Manager) endRefusals(now time.Time) {
	for len(m.refusals) > 0 && !now.Before(m.refusals[0].until) {
		r := m.refusals[0]
		m.refusals = m.refusals[1:]
		left := m.refused[r.id]
		if i := slices.Index(left, r.node); i >= 0 {
			left = slices.Delete(left, i, i+1)
		}
		if m.refused[r.id] = left; len(left) == 0 {
			delete(m.refused, r.id)
		}
	}
}
