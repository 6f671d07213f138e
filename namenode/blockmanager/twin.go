package blockmanager

import (
	"time"

	"github.com/gohops/hops/namenode"
)

// Twin is the node that lives under the uuid of one that registers, in another process at another address, and was heard of lately; nil if there is none. The
// disks of one of them are a copy. A datanode that has moved is taken when the one at the old address has been silent for StaleAfter.
func (m *Manager) Twin(now time.Time, info *namenode.Node, incarnation uint64) *namenode.Node {
	n := m.nodes[info.ID]
	if n == nil || !n.alive || n.incarnation == incarnation || n.info.IP == info.IP && n.info.TransferPort == info.TransferPort || now.Sub(n.lastBeat) >= m.config.StaleAfter {
		return nil
	}
	return n.info
}
