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

	// reported: a full report has ended since the last registration.
	reported   bool
	lastReport time.Time
	report     *report
	recent     []arrival

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
}

// volume is one storage of one node.
type volume struct {
	id     namenode.VolumeID
	kind   namenode.StorageType
	node   *node
	place  place
	failed bool
	blocks map[metadata.BlockID]struct{}
	// leaving are the blocks still to be taken off a dead node or failed volume, a few per Tick.
	leaving []metadata.BlockID
}

func (v *volume) usable() bool { return v.node.alive && !v.failed }

func (v *volume) location() namenode.Location {
	return namenode.Location{Node: v.node.info, Volume: v.id, Type: v.kind}
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
	if n.info == nil || *n.info != info || !n.alive {
		m.membership++
	}
	if n.info == nil || *n.info != info {
		n.info = &info
		n.candidate.Node = &info
	}
	if n.incarnation != incarnation { // it has forgotten what it was asked
		n.verify = nil
	}
	n.incarnation = incarnation
	n.report = nil
	n.renewed = true
	m.setReported(n, n.alive, false)
	m.revive(now, n)
	m.setVolumes(n, volumes)
	for _, v := range n.order { // a datanode names all that it has, failed ones too
		if !v.failed && !slices.ContainsFunc(volumes, func(nv namenode.Volume) bool { return nv.ID == v.id }) {
			v.failed = true
			m.empty(v)
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
	return true
}

func (m *Manager) revive(now time.Time, n *node) {
	n.lastBeat, n.stale = now, false
	n.candidate.Stale = false
	if n.alive {
		return
	}
	m.setReported(n, true, n.reported)
	n.candidate.Dead = false
	for _, v := range n.order {
		m.rejudge(v)
	}
}

// setReported changes whether a node lives and has reported, and counts the live ones that have not.
func (m *Manager) setReported(n *node, alive, reported bool) {
	if n.alive && !n.reported {
		m.unreported--
	}
	n.alive, n.reported = alive, reported
	if n.alive && !n.reported {
		m.unreported++
	}
}

// rejudge recounts the blocks of a volume that became usable again.
func (m *Manager) rejudge(v *volume) {
	v.leaving = nil
	for _, id := range sortedKeys(v.blocks) {
		if b := m.blocks[id]; b != nil {
			m.update(id, b)
		}
	}
}

func (m *Manager) setVolumes(n *node, volumes []namenode.Volume) {
	n.candidate.Volumes = append(n.candidate.Volumes[:0], volumes...)
	for _, nv := range volumes {
		v := m.volume(n, nv.ID)
		v.kind = nv.Type
		if v.failed == nv.Failed {
			continue
		}
		v.failed = nv.Failed
		if v.failed {
			m.empty(v)
		} else {
			m.rejudge(v)
		}
	}
}

// volume finds or makes a node's volume.
func (m *Manager) volume(n *node, id namenode.VolumeID) *volume {
	v := n.volumes[id]
	if v == nil {
		v = &volume{id: id, kind: namenode.Disk, node: n, place: place(len(m.volumes)), blocks: map[metadata.BlockID]struct{}{}}
		m.volumes = append(m.volumes, v)
		n.volumes[id] = v
		n.order = append(n.order, v)
	}
	return v
}

// bury declares a node dead: nothing on it counts from now on.
func (m *Manager) bury(n *node) {
	m.membership++
	m.setReported(n, false, false)
	n.stale, n.candidate.Dead = true, true
	n.report, n.recent = nil, nil
	n.doomed, n.doomNew, n.doomSent = nil, queue{}, queue{}
	n.fresh, n.asked, n.verify = false, false, nil
	m.abortCopies(n)
	for _, v := range n.order {
		m.empty(v)
	}
}

// empty takes the blocks off a volume that cannot be used. The blocks are recounted by Tick, some at a time.
func (m *Manager) empty(v *volume) { v.leaving = sortedKeys(v.blocks) }

// leavesPerTick bounds the work of one Tick after the death of a node.
const leavesPerTick = 20000

func (m *Manager) leave() {
	budget := leavesPerTick
	for _, v := range m.volumes {
		for len(v.leaving) > 0 && budget > 0 {
			id := v.leaving[0]
			v.leaving = v.leaving[1:]
			m.remember(v.place, id)
			m.remove(v.place, id)
			budget--
		}
	}
}

// Nodes describes every node known, in the order of their first registration.
func (m *Manager) Nodes() []namenode.NodeReport {
	out := make([]namenode.NodeReport, 0, len(m.order))
	for _, n := range m.order {
		r := namenode.NodeReport{
			Node: n.info, Volumes: slices.Clone(n.candidate.Volumes), Xceivers: n.candidate.Xceivers,
			LastBeat: n.lastBeat, LastReport: n.lastReport, Alive: n.alive, Stale: n.stale,
		}
		for _, v := range n.order {
			r.Blocks += len(v.blocks)
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
