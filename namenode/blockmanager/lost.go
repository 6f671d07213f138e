package blockmanager

import (
	"slices"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Lost lists up to limit complete blocks without a good replica, those that Statistics counts as missing, in ascending order of their ids above
// after.
func (m *Manager) Lost(after metadata.BlockID, limit int) []metadata.BlockID {
	return m.lost.after(after, nil, limit)
}

// Vanished reports whether a complete block has no replica at all, not even a damaged or an old one.
func (m *Manager) Vanished(id metadata.BlockID) bool {
	b := m.blocks.peek(id)
	return b != nil && m.groups[id] == nil && !b.open && len(b.good) == 0 && len(b.odds()) == 0
}

// Complete reports whether every datanode that is known, and has not left for good, lives with all disks that it has had, and has reported in full since it registered: what none of
// them has is nowhere. What was on a volume of memory that has failed is gone.
func (m *Manager) Complete() bool {
	for _, n := range m.order {
		if n.forgotten || n.leaving.wish == namenode.Decommissioned {
			continue
		}
		lacks := func(v *volume) bool { return v.failed && v.kind != namenode.RAMDisk }
		if !n.alive || !n.reported || slices.ContainsFunc(n.order, lacks) {
			return false
		}
	}
	return len(m.order) > 0
}
