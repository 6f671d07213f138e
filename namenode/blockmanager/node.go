package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/placement"
)

// node is a datanode that has registered since this namenode started.
type node struct {
	info        *namenode.Node
	candidate   *placement.Candidate
	volumes     map[namenode.VolumeID]*volume
	order       []*volume
	incarnation uint64
	lastBeat    time.Time
	alive       bool
	stale       bool
	forgotten   bool // dead, and not in the manager's lists any more

	// reported: a full report has ended since the last registration.
	reported   bool
	lastReport time.Time
	report     *report
	absent     []absence // replicas that the last full report did not name, and that are still to be forgotten; then it counts
	recent     []arrival
	// muteSince is since when it lives and has not reported, over registrations. givenUp: for so long that nothing waits for it.
	muteSince time.Time
	givenUp   bool

	leaving leaving
	cache   nodeCache

	// The rest matters while leading.
	fresh    bool // registered and reported since this term began
	asked    bool // to do so, and not done yet
	askedAt  time.Time
	renewed  bool // registered since asked
	doomed   map[metadata.BlockID]*doom
	doomNew  queue                          // of doomed, not sent yet
	doomSent queue                          // in the order of the last sending
	verify   map[metadata.BlockID]time.Time // replicas to be verified, and when the order was sent
	outgoing int
	incoming int
	// outs and ins are the copies from and to the node; those that are done are dropped now and then.
	outs, ins []*transfer
	// primaries are blocks whose recovery it may be primary of.
	primaries []metadata.BlockID
	// dirty: there is something it has not been told. toldAt is when it was asked what to tell it last.
	dirty  bool
	toldAt time.Time
}

// volume is one storage of one node.
type volume struct {
	id     namenode.VolumeID
	kind   namenode.StorageType
	node   *node
	place  place
	failed bool
	slow   bool // a call of its disk does not come back: readers and copies turn to others first
	// slowSince is when it became slow.
	slowSince time.Time
	// blocks are the replicas believed to be there; named are those of them that the full report has named which is coming in, or came last, or that
	// were heard of since it began.
	blocks, named idSet
	// turned: the volume became unusable, or usable again, or the racks changed, and its blocks have to be taken off it or counted again, some per
	// Tick. todo are those left once that has begun. again: it turned once more since then.
	turned, again bool
	todo          []metadata.BlockID
}

// hold notes that a replica is there.
func (v *volume) hold(id metadata.BlockID) {
	v.blocks.add(id)
	v.named.add(id)
}

// leave notes that a replica is not there.
func (v *volume) leave(id metadata.BlockID) {
	v.blocks.drop(id)
	v.named.drop(id)
}

func (v *volume) usable() bool { return v.node.alive && !v.failed }

// silent: what is read of it may not come for a while.
func (v *volume) silent() bool { return v.node.stale || v.slow }

func (v *volume) location() namenode.Location {
	return namenode.Location{Node: v.node.info, Volume: v.id, Type: v.kind}
}

// SetRack says where the nodes at an IP address stand.
func (m *Manager) SetRack(ip, rack string) {
	for _, n := range m.order {
		if n.info.IP != ip || n.info.Rack == rack {
			continue
		}
		info := *n.info // others have the old one
		info.Rack = rack
		n.info, n.candidate.Node = &info, &info
		m.membership++
		for _, v := range n.order {
			m.turn(v)
		}
	}
}

// Register introduces a node, or the same node again after a restart or a break. What it reported before stays until
// the full report that follows. Another node that had the same address is gone: its data was wiped or moved.
func (m *Manager) Register(now time.Time, info namenode.Node, volumes []namenode.Volume, incarnation uint64) {
	if info.Rack == "" {
		info.Rack = namenode.DefaultRack
	}
	n := m.nodes[info.ID]
	if n == nil {
		for _, other := range m.order {
			if other.alive && other.info.IP == info.IP && other.info.TransferPort == info.TransferPort {
				m.bury(other)
			}
		}
		n = &node{volumes: map[namenode.VolumeID]*volume{}, candidate: &placement.Candidate{}}
		m.nodes[info.ID] = n
		m.order = append(m.order, n)
		m.candidates = append(m.candidates, n.candidate)
	}
	if n.info != nil {
		info.Admin = n.info.Admin
	}
	if n.info == nil || *n.info != info || !n.alive {
		m.membership++
	}
	moved := n.info != nil && n.info.Rack != info.Rack
	if n.info == nil || *n.info != info {
		n.info = &info
		n.candidate.Node = &info
	}
	if moved {
		for _, v := range n.order {
			m.turn(v)
		}
	}
	m.administer(n)
	if n.incarnation != incarnation { // it has forgotten what it was asked
		n.verify = nil
	}
	n.incarnation = incarnation
	m.emptyCache(n) // it names anew what it has there
	n.interrupt()
	n.recent = nil // its next report is made after all of that
	n.renewed = true
	m.setReported(now, n, n.alive, false)
	m.revive(now, n)
	m.setVolumes(n, volumes)
	for _, v := range n.order { // a datanode names all that it has, failed ones too
		if !v.failed && !slices.ContainsFunc(volumes, func(nv namenode.Volume) bool { return nv.ID == v.id }) {
			v.failed = true
			m.turn(v)
		}
	}
}

// Known reports whether a node is registered and alive.
func (m *Manager) Known(id namenode.NodeID) bool {
	n := m.nodes[id]
	return n != nil && n.alive
}

// Dead reports whether a node is known here to be dead. Of nodes never heard of that is not known.
func (m *Manager) Dead(id namenode.NodeID) bool {
	n := m.nodes[id]
	return n != nil && !n.alive
}

// mostCache is what a node may say that it can keep in memory: 256 TiB. One that lies must not let sums over all of them overflow.
const mostCache = 1 << 48

// BeatCache tells how many bytes a node may keep in memory, and does.
func (m *Manager) BeatCache(id namenode.NodeID, capacity, used int64) {
	if n := m.nodes[id]; n != nil {
		n.cache.capacity, n.cache.used = min(max(capacity, 0), mostCache), min(max(used, 0), mostCache)
	}
}

// Beat keeps a node alive. False: it is unknown or was declared dead, and has to register and report in full.
func (m *Manager) Beat(now time.Time, id namenode.NodeID, volumes []namenode.Volume, xceivers int) bool {
	n := m.nodes[id]
	if n == nil || !n.alive {
		return false
	}
	m.revive(now, n)
	n.candidate.Xceivers = xceivers
	// What was promised shows in the volumes' sizes bit by bit.
	n.candidate.Scheduled /= 2
	m.setVolumes(n, volumes)
	m.balance.beat(n)
	return true
}

func (m *Manager) revive(now time.Time, n *node) {
	n.lastBeat, n.stale = now, false
	n.candidate.Stale = false
	if n.alive {
		return
	}
	m.setReported(now, n, true, n.reported)
	n.candidate.Dead = false
	for _, v := range n.order {
		m.turn(v)
	}
}

// setReported changes whether a node lives and has reported, and counts the live ones that have not and are waited for.
func (m *Manager) setReported(now time.Time, n *node, alive, reported bool) {
	if n.awaited() {
		m.unreported--
	}
	switch {
	case reported:
		n.muteSince, n.givenUp = time.Time{}, false
	case alive && n.muteSince.IsZero():
		n.muteSince = now
	}
	n.alive, n.reported = alive, reported
	if n.awaited() {
		m.unreported++
	}
}

// awaited: deletions wait for the node's report.
func (n *node) awaited() bool { return n.alive && !n.reported && !n.givenUp }

// giveUp stops waiting for the report of a node that does not come to the end of one.
func (m *Manager) giveUp(now time.Time, n *node) {
	if n.awaited() && now.Sub(n.muteSince) >= m.config.ReportPatience {
		n.givenUp = true
		m.unreported--
	}
}

func (m *Manager) setVolumes(n *node, volumes []namenode.Volume) {
	n.candidate.Volumes = append(n.candidate.Volumes[:0], volumes...)
	for _, nv := range volumes {
		v := m.volume(n, nv.ID)
		slow := nv.Slow && !nv.Failed
		if slow && !v.slow {
			v.slowSince = m.now
		}
		v.kind, v.slow = nv.Type, slow
		if v.failed == nv.Failed {
			continue
		}
		if v.failed = nv.Failed; v.failed {
			m.abortCopies(n, v)
		}
		m.turn(v)
	}
}

// volume finds or makes a node's volume.
func (m *Manager) volume(n *node, id namenode.VolumeID) *volume {
	v := n.volumes[id]
	if v == nil {
		v = &volume{id: id, kind: namenode.Disk, node: n, place: place(len(m.volumes))}
		m.volumes = append(m.volumes, v)
		n.volumes[id] = v
		n.order = append(n.order, v)
	}
	return v
}

// bury declares a node dead: nothing on it counts from now on.
func (m *Manager) bury(n *node) {
	m.membership++
	m.setReported(n.lastBeat, n, false, false)
	n.stale, n.candidate.Dead = true, true
	n.interrupt()
	n.recent = nil
	n.doomed, n.doomNew, n.doomSent = nil, queue{}, queue{}
	n.fresh, n.asked, n.verify = false, false, nil
	m.abortCopies(n, nil)
	m.emptyCache(n)
	for _, v := range n.order {
		m.turn(v)
	}
}

// Forget tells which datanodes an operator has given up for good. Those that are dead leave the lists, and nothing waits for what
// they may have. One that lives counts as before: it has come back, which the server has to say.
func (m *Manager) Forget(ids []namenode.NodeID) {
	m.forgotten = map[namenode.NodeID]struct{}{}
	for _, id := range ids {
		m.forgotten[id] = struct{}{}
	}
	m.dropForgotten()
}

// dropForgotten takes the dead nodes that are forgotten off the lists. Their volumes are emptied as those of other dead nodes.
func (m *Manager) dropForgotten() {
	m.order = slices.DeleteFunc(m.order, func(n *node) bool {
		if _, given := m.forgotten[n.info.ID]; !given || n.alive {
			return false
		}
		n.forgotten = true
		for _, v := range n.order { // what was kept for a node in maintenance
			m.turn(v)
		}
		m.membership++
		delete(m.nodes, n.info.ID)
		m.candidates = slices.DeleteFunc(m.candidates, func(c *placement.Candidate) bool { return c == n.candidate })
		return true
	})
}

// Returned are the nodes that were forgotten and live.
func (m *Manager) Returned() (ids []namenode.NodeID) {
	for id := range m.forgotten {
		if n := m.nodes[id]; n != nil && n.alive {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// turn notes that a volume became unusable, or usable again, or stands somewhere else: its blocks are counted again.
func (m *Manager) turn(v *volume) {
	switch {
	case v.turned: // one that turns all the time comes to an end, and waits for its next turn behind the others
		v.again = v.todo != nil
	case v.blocks.len() > 0:
		v.turned = true
		m.turned = append(m.turned, v)
	}
}

// turnsPerTick bounds the blocks looked at per Tick after the death of a node.
const turnsPerTick = 3000

// turnBlocks takes blocks off the volumes that became unusable, and counts those of volumes that became usable again.
func (m *Manager) turnBlocks() {
	budget := turnsPerTick
	for len(m.turned) > 0 && budget > 0 {
		at := max(0, slices.IndexFunc(m.turned, func(v *volume) bool { return !v.usable() })) // what is lost goes before what is counted again
		v := m.turned[at]
		if v.todo == nil {
			v.todo = v.blocks.list()
		}
		n := min(budget, len(v.todo))
		for _, id := range v.todo[:n] {
			if !v.blocks.has(id) {
				continue
			}
			if !v.usable() && !v.kept() {
				m.remember(v.place, id)
				m.remove(v.place, id)
			} else if b := m.blocks.borrow(id); b != nil {
				m.update(id, b)
				m.blocks.rest(id, b)
			}
		}
		budget -= n
		m.work.Blocks += n
		if v.todo = v.todo[n:]; len(v.todo) == 0 {
			again := v.again
			v.todo, v.turned, v.again = nil, false, false
			m.turned = slices.Delete(m.turned, at, at+1)
			if again {
				m.turn(v)
			}
		}
	}
}

// Nodes describes every node known, in the order of their first registration.
func (m *Manager) Nodes() []namenode.NodeReport {
	out := make([]namenode.NodeReport, 0, len(m.order))
	for _, n := range m.order {
		r := namenode.NodeReport{
			Node: n.info, Volumes: slices.Clone(n.candidate.Volumes), Xceivers: n.candidate.Xceivers,
			CacheCapacity: n.cache.capacity, CacheUsed: n.cache.used, Cached: len(n.cache.holds),
			LastBeat: n.lastBeat, LastReport: n.lastReport, Alive: n.alive, Stale: n.stale, Leaving: n.leaving.found,
		}
		for _, v := range n.order {
			r.Blocks += v.blocks.len()
		}
		out = append(out, r)
	}
	return out
}

// Membership is another number whenever a node came, went, or has another address.
func (m *Manager) Membership() uint64 { return m.membership }

// Live counts the nodes that are not dead.
func (m *Manager) Live() int {
	live := 0
	for _, n := range m.order {
		if n.alive {
			live++
		}
	}
	return live
}
