package blockmanager

import "github.com/gohops/hops/metadata"

// Lost lists up to limit complete blocks without a good replica, those that Statistics counts as missing, in ascending order of their ids above
// after.
func (m *Manager) Lost(after metadata.BlockID, limit int) []metadata.BlockID {
	return m.lost.after(after, nil, limit)
}
