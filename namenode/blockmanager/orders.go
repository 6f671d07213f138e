package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Replicate asks a node to copy its finalized replica to another one; where that is the node itself, to move it to another volume.
type Replicate struct {
	Block  metadata.Block
	Target *namenode.Node
	// Type is that of the volume that the target is to put it on.
	Type namenode.StorageType
	// Balance: it is for the balancer, or for a storage policy, and can wait for others.
	Balance bool
}

// Recover asks a node to be primary of a block recovery.
type Recover struct {
	Block      metadata.Block
	RecoveryID metadata.Generation
	Replicas   []*namenode.Node
	// Missing are dead nodes that may hold a replica too.
	Missing []namenode.NodeID
	// Erasure is the policy of a group, whose Length is that of the data; Parts are its internal blocks, in place of Replicas.
	Erasure metadata.ErasurePolicyID
	Parts   []Part
	// PatienceOver: whoever does not answer has been waited for long enough.
	PatienceOver bool
}

// Orders is the work for one node.
type Orders struct {
	Replicate []Replicate
	Delete    []metadata.Block
	// Discard is Delete of replicas that are not what the namespace wants, but whose file nobody has deleted: the node keeps
	// them for a while.
	Discard []metadata.Block
	// Verify asks a node to compare its replicas with their checksums.
	Verify  []metadata.Block
	Recover []Recover
	Rebuild []Rebuild
	// Cache are replicas to be kept in memory, Uncache blocks that need not be any more.
	Cache   []metadata.Block
	Uncache []metadata.BlockID
	// Report: register and report in full again.
	Report bool
}

// Empty reports whether there is nothing to do.
func (o *Orders) Empty() bool {
	return len(o.Replicate) == 0 && len(o.Delete) == 0 && len(o.Discard) == 0 && len(o.Verify) == 0 && len(o.Recover) == 0 && len(o.Rebuild) == 0 &&
		len(o.Cache) == 0 && len(o.Uncache) == 0 && !o.Report
}

// Due lists the nodes for which there may be orders now that they have not been told.
func (m *Manager) Due(now time.Time) []namenode.NodeID {
	if !m.leading {
		return nil
	}
	var out []namenode.NodeID
	for _, n := range m.order {
		if !n.alive {
			continue
		}
		waits := n.outgoing > 0 || len(n.doomed) > 0 || len(n.primaries) > 0 || n.asked || len(n.verify) > 0 || len(n.cache.asked) > 0 || len(n.cache.drop) > 0
		if n.dirty || waits && now.Sub(n.toldAt) >= m.config.RepeatAfter {
			out = append(out, n.info.ID)
		}
	}
	return out
}

// Orders returns what a node should be told now: orders it was not told yet, and those told RepeatAfter ago or longer
// that no report reflects. Nothing unless leading.
func (m *Manager) Orders(now time.Time, id namenode.NodeID) Orders {
	var o Orders
	n := m.nodes[id]
	if n == nil || !n.alive || !m.leading {
		return o
	}
	n.dirty, n.toldAt = false, now
	due := func(sent time.Time) bool { return sent.IsZero() || now.Sub(sent) >= m.config.RepeatAfter }
	if n.outgoing > 0 {
		for _, t := range n.outs {
			if !t.over() && due(t.sent) {
				t.sent = now
				if t.computed {
					o.Rebuild = m.rebuilds(o.Rebuild, t)
					continue
				}
				to := m.volumes[t.target]
				o.Replicate = append(o.Replicate, Replicate{Block: t.block, Target: to.node.info, Type: to.kind, Balance: t.moves != nil || t.tier})
			}
		}
	}
	n.primaries = slices.DeleteFunc(n.primaries, func(id metadata.BlockID) bool {
		b := m.blocks.get(id)
		return b == nil || b.more == nil || b.more.recovery == nil || b.more.recovery.primary != n
	})
	for _, id := range n.primaries {
		b := m.blocks.get(id)
		if !due(b.more.recovery.sent) {
			continue
		}
		r := b.more.recovery
		r.sent = now
		order := Recover{
			Block: metadata.Block{ID: id, Generation: b.generation, Length: b.length}, RecoveryID: r.id,
			Missing: m.Missing(id), PatienceOver: now.Sub(b.more.since) >= m.config.RecoveryPatience,
		}
		if g := m.groups[id]; g != nil {
			order.Block, order.Erasure = g.block, g.code
			order.Parts = m.recoverable(id, g)
			o.Recover = append(o.Recover, order)
			continue
		}
		for _, h := range m.holders(b) {
			if h.alive {
				order.Replicas = append(order.Replicas, h.info)
			}
		}
		o.Recover = append(o.Recover, order)
	}
	if !m.paused && !m.listing && m.allReported() {
		m.deletions(now, n, due, &o)
	}
	o.Verify = m.verifications(now, n)
	m.cacheOrders(now, n, &o)
	if n.asked && due(n.askedAt) {
		n.askedAt = now
		o.Report = true
	}
	return o
}

// deletions takes the deletions due from a node's lists, and is the third gate: one that would hurt now is taken back.
func (m *Manager) deletions(now time.Time, n *node, due func(time.Time) bool, out *Orders) {
	full := func() bool { return len(out.Delete)+len(out.Discard) >= m.config.Deletes }
	for range n.doomNew.len() {
		if full() {
			return
		}
		id, _ := n.doomNew.pop()
		m.sentence(now, n, id, out)
	}
	for range n.doomSent.len() {
		id, _ := n.doomSent.pop()
		if d := n.doomed[id]; d != nil && (!due(d.sent) || full()) {
			n.doomSent.unpop(id) // all behind it were sent later
			break
		}
		m.sentence(now, n, id, out)
	}
}

// sentence adds one deletion to out if it still stands.
func (m *Manager) sentence(now time.Time, n *node, id metadata.BlockID, out *Orders) {
	d := n.doomed[id]
	if d == nil {
		return
	}
	if b := m.blocks.get(id); b != nil && !m.stands(id, b, d) {
		delete(n.doomed, id)
		m.update(id, b)
		return
	}
	d.sent = now
	n.doomSent.push(id)
	if d.why == orphaned || d.why == surplus {
		out.Delete = append(out.Delete, d.block)
	} else {
		out.Discard = append(out.Discard, d.block)
	}
}

// stands reports whether a replica of a living block may go.
func (m *Manager) stands(id metadata.BlockID, b *block, d *doom) bool {
	sure := m.sure(id, b)
	switch d.why {
	case surplus:
		return !b.open && b.generation == d.block.Generation && sure >= int(b.want)
	case useless:
		return !b.open && sure >= m.config.MinReplication
	case broken:
		return !b.open && sure >= int(b.want)
	}
	return false // an orphan whose block has come
}
