package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// report is a full report that is coming in.
type report struct {
	id uint64
	// volumes are those that it has named.
	volumes map[*volume]struct{}
	// cut: the node registered while it came in, and another one follows. Some of what it names came before and does not count as named.
	cut bool
	// told is of which replicas was told meanwhile, or shortly before, that they come or are there (true) or are gone: the report may have been made
	// before.
	told map[metadata.BlockID]bool
}

// arrival remembers an incremental report for a while: a full report made before it does not know of that.
type arrival struct {
	id    metadata.BlockID
	at    time.Time
	there bool
}

// overlap is how much older than its arrival a full report may be.
const overlap = 30 * time.Second

// begin makes a report that begins to come in. What was told before the last registration it knows: a datanode lists what it has after that.
func (n *node) begin(now time.Time, id uint64) *report {
	r := &report{id: id, volumes: map[*volume]struct{}{}, told: map[metadata.BlockID]bool{}}
	for _, a := range n.recent {
		if now.Sub(a.at) < overlap {
			r.told[a.id] = a.there
		}
	}
	return r
}

// remember notes that something was told of a replica.
func (n *node) remember(now time.Time, id metadata.BlockID, there bool) {
	n.recent = append(n.recent, arrival{id, now, there})
	if n.report != nil {
		n.report.told[id] = there
	}
}

// Report takes one chunk of a full report. Chunks of a report share its id; the last one ends it, and then what was
// believed to lie on the volumes named and was not reported is forgotten. False: the node has to register first.
func (m *Manager) Report(now time.Time, id namenode.NodeID, reportID uint64, volumeID namenode.VolumeID, replicas []namenode.Replica, last bool) bool {
	n := m.nodes[id]
	if n == nil || !n.alive {
		return false
	}
	if n.report == nil || n.report.id != reportID {
		n.report = n.begin(now, reportID)
	}
	r := n.report
	if volumeID != "" {
		v := m.volume(n, volumeID)
		if _, ok := r.volumes[v]; !ok {
			r.volumes[v] = struct{}{}
			n.absent = slices.DeleteFunc(n.absent, func(a absence) bool { return a.on == v && v.named.has(a.id) })
			v.named.clear()
		}
		for _, rep := range replicas {
			if there, told := r.told[rep.Block.ID]; !told || there && !m.outdated(n, v.place, rep) {
				m.apply(v.place, rep)
			}
		}
	}
	switch {
	case last && r.cut:
		n.report = nil
	case last:
		m.endReport(now, n)
	}
	return true
}

// interrupt makes the report that is coming in one that says nothing of what it does not name, and forgets what the last one did not.
func (n *node) interrupt() {
	if n.report != nil {
		n.report.cut = true
	}
	n.absent = nil
}

// outdated reports whether a replica is known to have become something later than what a report says of it: of a newer generation, finished, or
// one on another volume.
func (m *Manager) outdated(n *node, at place, r namenode.Replica) bool {
	known := m.orphans[r.Block.ID]
	if b := m.blocks.peek(r.Block.ID); b != nil {
		for _, p := range b.good {
			if m.volumes[p].node == n {
				// Also where it was before it was moved to another volume.
				return r.Block.Generation < b.generation || r.Block.Generation == b.generation && p != at || r.Block.Generation == b.generation && r.State != namenode.Finalized
			}
		}
		known = b.odds()
	}
	i := m.indexOnNode(known, n)
	if i < 0 {
		return false
	}
	o := known[i]
	return r.Block.Generation < o.generation || r.Block.Generation == o.generation && o.at != at ||
		r.Block.Generation == o.generation && r.State != namenode.Finalized && o.state == namenode.Finalized
}

func (m *Manager) endReport(now time.Time, n *node) {
	r := n.report
	n.report = nil
	n.absent = nil
	for _, v := range n.order {
		if _, ok := r.volumes[v]; !ok {
			continue
		}
		for _, id := range v.blocks.without(&v.named) {
			if !r.told[id] {
				n.absent = append(n.absent, absence{v, id})
			}
		}
	}
	m.forgetAbsent(now, n)
}

// absence is a replica that the last full report did not name.
type absence struct {
	on *volume
	id metadata.BlockID
}

// absentPerStep bounds the replicas that are forgotten at a time at the end of a full report.
const absentPerStep = 3000

// forgetAbsent forgets replicas that the last full report did not name, some at a time; when all are forgotten it counts. What was
// heard of since stays.
func (m *Manager) forgetAbsent(now time.Time, n *node) {
	step := min(len(n.absent), absentPerStep)
	for _, a := range n.absent[:step] {
		if a.on.blocks.has(a.id) && !a.on.named.has(a.id) {
			m.remove(a.on.place, a.id)
		}
	}
	if n.absent = n.absent[step:]; len(n.absent) > 0 {
		return
	}
	n.absent = nil
	m.setReported(now, n, n.alive, true)
	n.lastReport = now
	if n.asked && n.renewed {
		n.asked, n.fresh = false, true
	}
}

// Changes takes an incremental report. False: the node has to register first.
func (m *Manager) Changes(now time.Time, id namenode.NodeID, changes []namenode.Change) bool {
	n := m.nodes[id]
	if n == nil || !n.alive {
		return false
	}
	for len(n.recent) > 0 && now.Sub(n.recent[0].at) > 2*overlap {
		n.recent = n.recent[1:]
	}
	for _, c := range changes {
		switch c.Kind {
		case namenode.Receiving:
			m.receiving(m.volume(n, c.Volume), c.Block)
			n.remember(now, c.Block.ID, true)
		case namenode.Received:
			at := m.volume(n, c.Volume)
			m.apply(at.place, namenode.Replica{Block: c.Block, State: namenode.Finalized})
			if c.Instead != "" {
				m.instead(c.Block.ID, at, c.Instead)
			}
			n.remember(now, c.Block.ID, true)
		case namenode.Deleted:
			for _, v := range n.order {
				if c.Volume != "" && v.id != c.Volume {
					continue
				}
				m.remove(v.place, c.Block.ID)
			}
			m.balance.gone(n, c.Block.ID)
			if len(n.cache.asked)+len(n.cache.holds) > 0 {
				m.left(now, n, c.Block.ID)
			}
			n.remember(now, c.Block.ID, false)
		case namenode.Corrupt:
			m.damaged(now, n, c.Volume, c.Block)
		case namenode.Verified:
			m.verified(now, n, c.Volume, c.Block)
		case namenode.Cached:
			m.entered(n, c.Block)
		case namenode.Uncached:
			m.left(now, n, c.Block.ID)
		}
	}
	return true
}

// receiving records that a replica is being written, unless a finalized one of that generation is there already.
func (m *Manager) receiving(v *volume, blk metadata.Block) {
	if b := m.blocks.peek(blk.ID); b != nil {
		for _, p := range b.good {
			if m.volumes[p].node == v.node && blk.Generation <= b.generation {
				return
			}
		}
		if i := m.indexOnNode(b.odds(), v.node); i >= 0 {
			o := b.more.odd[i]
			if o.state == namenode.Finalized && blk.Generation <= o.generation {
				return
			}
		}
	}
	m.apply(v.place, namenode.Replica{Block: blk, State: namenode.Writing})
}

// Watch asks to be told by Satisfied when a finalized replica of the block arrives or the block is removed. Each Watch
// needs an Unwatch.
func (m *Manager) Watch(id metadata.BlockID) { m.watched[id]++ }

// Unwatch ends a Watch.
func (m *Manager) Unwatch(id metadata.BlockID) {
	if m.watched[id]--; m.watched[id] <= 0 {
		delete(m.watched, id)
	}
}

func (m *Manager) wake(id metadata.BlockID) {
	id = id.Group()
	if _, ok := m.watched[id]; ok {
		m.satisfied = append(m.satisfied, id)
	}
}

// Satisfied returns the watched blocks about which something arrived since the last call.
func (m *Manager) Satisfied() []metadata.BlockID {
	s := m.satisfied
	m.satisfied = nil
	return s
}
