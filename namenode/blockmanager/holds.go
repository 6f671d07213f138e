package blockmanager

import (
	"iter"
	"slices"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// BlocksOf goes through the blocks of which a node has a replica, dead or alive. Others may have their turn between two of them: of what changes then some
// may be left out.
func (m *Manager) BlocksOf(id namenode.NodeID) iter.Seq[metadata.BlockID] {
	return func(yield func(metadata.BlockID) bool) {
		n := m.nodes[id]
		if n == nil {
			return
		}
		for _, v := range n.order {
			for id := range v.blocks.all() {
				if !yield(id) {
					return
				}
			}
		}
	}
}

// OnlyOn counts those of some blocks of which no node that lives has what is wanted, but for the given ones, and one of these has.
func (m *Manager) OnlyOn(nodes []namenode.NodeID, blocks []metadata.BlockID) int {
	only := 0
	for _, id := range blocks {
		b := m.blocks.peek(id)
		if b == nil {
			continue
		}
		here, elsewhere := false, false
		note := func(n *node) {
			if slices.Contains(nodes, n.info.ID) {
				here = true
			} else {
				elsewhere = elsewhere || n.alive
			}
		}
		for _, p := range b.good {
			note(m.volumes[p].node)
		}
		if b.open {
			for _, n := range m.holders(b) {
				note(n)
			}
		}
		if here && !elsewhere {
			only++
		}
	}
	return only
}
