package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// recovery is a block recovery (append design, HDFS-265) that one node, the primary, has been asked to do.
type recovery struct {
	id      metadata.Generation
	primary *node
	begun   time.Time
	sent    time.Time
	told    bool // reported as overdue
}

func (e *more) endRecovery() { e.recovery, e.tried, e.since = nil, nil, time.Time{} }

// Expect tells the pipeline of an open block: where replicas are being written to.
func (m *Manager) Expect(id metadata.BlockID, targets []namenode.Location) {
	b := m.blocks.get(id)
	if b == nil {
		return
	}
	e := b.extra()
	e.expect = e.expect[:0]
	for _, l := range targets {
		if n := m.nodes[l.Node.ID]; n != nil {
			e.expect = append(e.expect, m.volume(n, l.Volume).place)
		}
	}
	b.trim()
}

// ExpectLike expects replicas of an open block where there are some of another one, of which they are to be made.
func (m *Manager) ExpectLike(id, source metadata.BlockID) {
	b, s := m.blocks.get(id), m.blocks.get(source)
	if b == nil || s == nil {
		return
	}
	e := b.extra()
	e.expect = append(e.expect[:0], s.good...)
	b.trim()
}

// holders lists the nodes that may hold a replica of a block: of the pipeline, or reported in any state.
func (m *Manager) holders(b *block) []*node {
	var out []*node
	m.held(b, func(v *volume) {
		if n := v.node; !n.forgotten && !slices.Contains(out, n) {
			out = append(out, n)
		}
	})
	return out
}

// held goes through the volumes where a replica of a block may be.
func (m *Manager) held(b *block, each func(*volume)) {
	if b.more != nil {
		for _, p := range b.more.expect {
			each(m.volumes[p])
		}
		for _, o := range b.more.odd {
			if o.generation >= b.generation && !o.corrupt {
				each(m.volumes[o.at])
			}
		}
	}
	for _, p := range b.good {
		each(m.volumes[p])
	}
}

// remember keeps a dead node, or a failed volume's node, among the holders of an open block: it may come back with bytes
// that the others have lost.
func (m *Manager) remember(p place, id metadata.BlockID) {
	b := m.blocks.peek(id)
	if b == nil || !b.open || b.more == nil || slices.Contains(b.more.expect, p) {
		return
	}
	for _, o := range b.more.odd {
		if o.at == p && o.generation >= b.generation && !o.corrupt {
			b.more.expect = append(b.more.expect, p)
			return
		}
	}
}

// Missing lists the dead nodes that may hold a replica of a block.
func (m *Manager) Missing(id metadata.BlockID) []namenode.NodeID {
	b := m.blocks.peek(id)
	if b == nil {
		return nil
	}
	var out []namenode.NodeID
	for _, h := range m.holdersOf(id, b) {
		if !h.alive {
			out = append(out, h.info.ID)
		}
	}
	return out
}

// Nowhere reports whether no datanode is known to hold, or to have been asked to hold, a replica of the block, and that
// is certain: every live node has reported, and so has every node of the pipeline that the namespace has recorded. The replicas of a group are those of its internal blocks.
func (m *Manager) Nowhere(id metadata.BlockID, pipeline []string) bool {
	b := m.blocks.peek(id)
	return b != nil && len(m.holdersOf(id, b)) == 0 && m.heardOf(pipeline)
}

// Unwritten reports whether no replica with a byte of the open block is known, and that is certain as for Nowhere. The
// word of one node that has none is not enough: others of the pipeline may be late. Of a group there may be replicas: found says how many of its internal blocks were
// found by a recovery that could keep nothing. That counts if they were enough to know, or those who are late could not make them enough, or have been waited for long enough.
func (m *Manager) Unwritten(id metadata.BlockID, pipeline []string, found int) bool {
	b := m.blocks.peek(id)
	if g := m.groups[id]; g != nil && b != nil {
		return found >= g.layout.Data || found+len(m.Late(pipeline)) < g.layout.Data || m.Waited(m.now, id) || m.heardOf(pipeline)
	}
	if b == nil || len(b.good) > 0 || !m.heardOf(pipeline) {
		return false
	}
	return !slices.ContainsFunc(b.odds(), func(o odd) bool { return o.length > 0 && o.generation >= b.generation && !o.corrupt })
}

// Waited reports whether those who may have more of a block under recovery have been waited for long enough.
func (m *Manager) Waited(now time.Time, id metadata.BlockID) bool {
	b := m.blocks.peek(id)
	return b != nil && b.more != nil && !b.more.since.IsZero() && now.Sub(b.more.since) >= m.config.RecoveryPatience
}

// heardOf reports whether every live node, and every node of the pipeline, has reported in full.
func (m *Manager) heardOf(pipeline []string) bool {
	return len(m.order) > 0 && m.allReported() && len(m.Late(pipeline)) == 0
}

// Late are the nodes of a pipeline that are not known, or dead, or have not reported in full since they registered; without those
// that were forgotten.
func (m *Manager) Late(pipeline []string) (late []string) {
	for _, id := range pipeline {
		if id == "" || id == string(namenode.NoNode) { // an internal block whose datanode left the pipeline, as it is recorded now and as it was
			continue
		}
		n := m.nodes[namenode.NodeID(id)]
		if _, given := m.forgotten[namenode.NodeID(id)]; given && (n == nil || !n.alive) {
			continue
		}
		if n == nil || !n.alive || !n.reported {
			late = append(late, id)
		}
	}
	return late
}

// GivenUp reports whether a node of a pipeline was forgotten: the loss of what it alone had was accepted.
func (m *Manager) GivenUp(pipeline []string) bool {
	return slices.ContainsFunc(pipeline, func(id string) bool {
		_, given := m.forgotten[namenode.NodeID(id)]
		return given
	})
}

// Recover begins the recovery of an open block under a recovery id that the namespace has recorded. It replaces an earlier attempt; another primary
// is chosen then, if there is another. That of a group is kept with its first internal block.
func (m *Manager) Recover(now time.Time, id metadata.BlockID, recoveryID metadata.Generation) {
	b := m.blocks.get(id)
	if b == nil || !b.open {
		return
	}
	e := b.extra()
	if e.recovery == nil {
		m.recovering = append(m.recovering, id)
	}
	if e.since.IsZero() {
		e.since = now
	}
	e.recovery = &recovery{id: recoveryID, begun: now}
	m.choosePrimary(id, b)
}

// Recovering returns the recovery id under which a block is being recovered, 0 when it is not.
func (m *Manager) Recovering(id metadata.BlockID) metadata.Generation {
	if b := m.blocks.peek(id); b != nil && b.more != nil && b.more.recovery != nil {
		return b.more.recovery.id
	}
	return 0
}

// choosePrimary takes the holder heard of last that has not been tried yet, as HDFS does; one on a slow volume, where the recovery would wait, behind all others.
func (m *Manager) choosePrimary(id metadata.BlockID, b *block) {
	e := b.more
	slow := map[*node]bool{}
	m.heldOf(id, b, func(v *volume) { slow[v.node] = slow[v.node] || v.slow })
	var best *node
	for range 2 {
		for _, n := range m.holdersOf(id, b) {
			if !n.alive || slices.Contains(e.tried, n.info.ID) {
				continue
			}
			if best == nil || slow[best] && !slow[n] || slow[best] == slow[n] && n.lastBeat.After(best.lastBeat) {
				best = n
			}
		}
		if best != nil {
			break
		}
		e.tried = nil // all were tried: begin again
	}
	if best != nil {
		e.tried = append(e.tried, best.info.ID)
	}
	e.recovery.primary = best
	if best != nil {
		if !slices.Contains(best.primaries, id) {
			best.primaries = append(best.primaries, id)
		}
		best.dirty = true
	}
}

// overdue finds recoveries without result, and forgets those that ended.
func (m *Manager) overdue(now time.Time) []metadata.BlockID {
	var late []metadata.BlockID
	m.recovering = slices.DeleteFunc(m.recovering, func(id metadata.BlockID) bool {
		b := m.blocks.get(id)
		if b == nil || b.more == nil || b.more.recovery == nil {
			return true
		}
		r := b.more.recovery
		if r.primary == nil || !r.primary.alive {
			m.choosePrimary(id, b) // the same id may go to another primary: the first never finished, or is fenced by a later id
			r.sent = time.Time{}
		}
		if now.Sub(r.begun) >= m.config.RecoveryTimeout && !r.told {
			r.told = true
			late = append(late, id)
		}
		return false
	})
	return late
}
