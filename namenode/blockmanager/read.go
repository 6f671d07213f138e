package blockmanager

import (
	"math"
	"slices"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/placement"
)

// Locate lists where a block can be read: the closest to reader (a host name or IP) first, nodes that are decommissioned or in
// maintenance behind them, then silent ones and slow volumes, and suspect replicas last. For an open block that is its pipeline. corrupt: all replicas known are damaged, and they are what
// is listed.
func (m *Manager) Locate(id metadata.BlockID, reader string) (locations []namenode.Location, corrupt bool) {
	b := m.blocks.peek(id)
	if b == nil {
		return nil, false
	}
	var at [8]place
	places := at[:0]
	add := func(p place) {
		if m.volumes[p].usable() && !slices.Contains(places, p) {
			places = append(places, p)
		}
	}
	for _, p := range b.good {
		add(p)
	}
	if b.open {
		if b.more != nil {
			for _, p := range b.more.expect {
				add(p)
			}
		}
		if len(places) == 0 { // a leader that has not seen the pipeline being made
			for _, o := range b.odds() {
				if !o.corrupt && o.generation >= b.generation {
					add(o.at)
				}
			}
		}
		// The order of a pipeline is not the reader's business, but a silent node should still come last.
	}
	if len(places) == 0 {
		for _, o := range b.odds() {
			if o.corrupt {
				add(o.at)
				corrupt = true
			}
		}
	}
	if len(places) == 0 {
		return nil, corrupt
	}
	spread := mix(uint64(id) ^ hashOf(reader))
	rank := func(p place) uint64 {
		v := m.volumes[p]
		n := v.node
		distance := uint64(1)
		if reader != "" && (n.info.IP == reader || n.info.Host == reader) {
			distance = 0
		}
		if !n.stays() {
			distance += 2
		}
		if v.silent() {
			distance += 4
		}
		if b.suspect(p) {
			distance += 8
		}
		memory := uint64(1) // of equals, those that have it there are asked first
		if n.cached(id) {
			memory = 0
		}
		return distance<<60 | memory<<59 | mix(spread+uint64(p))>>5
	}
	slices.SortFunc(places, func(a, b place) int {
		if rank(a) < rank(b) {
			return -1
		}
		return 1
	})
	locations = make([]namenode.Location, len(places))
	for i, p := range places {
		locations[i] = m.volumes[p].located(id)
	}
	return locations, corrupt
}

// hashOf is FNV-1a: the same reader always gets the same order of equals.
func hashOf(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// Replicated counts the finalized replicas of exactly this generation and length that can be read.
func (m *Manager) Replicated(want metadata.Block) int {
	b := m.blocks.peek(want.ID)
	if b == nil {
		return 0
	}
	n := 0
	if b.generation == want.Generation && b.length == want.Length {
		n = m.replicas(want.ID, b).readable
	}
	for _, o := range b.odds() {
		if o.state == namenode.Finalized && !o.corrupt && o.generation == want.Generation && o.length == want.Length && m.volumes[o.at].usable() {
			n++
		}
	}
	return n
}

// Durable reports whether a block as given has the minimum of replicas that lets its file be closed; a group, as many internal blocks as make it
// readable.
func (m *Manager) Durable(want metadata.Block) bool {
	if want.ID.Striped() {
		done, needed := m.replicatedGroup(want)
		return done >= needed
	}
	return m.Replicated(want) >= m.config.MinReplication
}

// Foresee is what Choose would find now.
func (m *Manager) Foresee(r placement.Request) placement.Choice {
	r.Seed = m.random()
	return placement.Choose(m.candidates, r)
}

// Choose finds targets for a new block, or more of them for an old one.
func (m *Manager) Choose(r placement.Request) placement.Choice {
	c := m.Foresee(r)
	for _, l := range c.Targets {
		m.nodes[l.Node.ID].candidate.Xceivers++ // until the next beat tells
	}
	return c
}

// Node finds a registered node.
func (m *Manager) Node(id namenode.NodeID) (*namenode.Node, bool) {
	n := m.nodes[id]
	if n == nil {
		return nil, false
	}
	return n.info, true
}

// Location resolves what clients send back of a location. An unknown volume is taken as the node's first.
func (m *Manager) Location(id namenode.NodeID, volume namenode.VolumeID) (namenode.Location, bool) {
	n := m.nodes[id]
	if n == nil {
		return namenode.Location{}, false
	}
	if v := n.volumes[volume]; v != nil {
		return v.location(), true
	}
	if len(n.order) > 0 {
		return n.order[0].location(), true
	}
	return namenode.Location{Node: n.info, Type: namenode.Disk}, true
}

// Statistics counts. Blocks are the complete ones.
func (m *Manager) Statistics() namenode.Statistics {
	s := namenode.Statistics{
		Blocks:                m.counts.complete,
		UnderReplicated:       m.counts.by[under],
		Missing:               m.counts.by[missing] + m.counts.by[corrupt],
		Corrupt:               m.counts.by[corrupt],
		MissingReplicationOne: m.counts.missing1,
		Critical:              m.counts.critical,
	}
	s.Groups.All, s.Groups.UnderReplicated, s.Groups.Missing, s.Groups.Corrupt = m.Groups()
	for _, n := range m.order {
		s.PendingDeletion += int64(len(n.doomed))
		if !n.alive {
			continue
		}
		for _, v := range n.candidate.Volumes {
			if !v.Failed && !n.stays() { // what it has counts, what it could take does not
				s.Capacity += v.Used
				s.Used += v.Used
			} else if !v.Failed {
				s.Capacity += v.Capacity
				s.Used += v.Used
				s.Remaining += v.Remaining
			}
		}
	}
	return s
}

// BlockReport is what is known of a block's replicas.
type BlockReport struct {
	metadata.Block
	Want int
	Open bool
	// Live replicas can be read and stay; Readable are these and those on nodes that are leaving; Away are on nodes in maintenance,
	// or on their way into it; Corrupt are damaged, Stale on nodes that are silent, Doomed to be deleted.
	Live, Readable, Away, Corrupt, Stale, Doomed int
	// Needed is how many live ones there should be, as long as those in maintenance count.
	Needed int
	// Racks of the readable ones.
	Racks int
	// Pending are on their way.
	Pending int
	// At are all replicas.
	At []ReplicaReport
	// Erasure is the policy of a group. Its internal blocks are counted as replicas, each once and those without bytes not, and it is readable only as a whole.
	Erasure metadata.ErasurePolicyID
}

// ReplicaReport is one replica of a BlockReport.
type ReplicaReport struct {
	namenode.Location
	// Unit is the number of an internal block.
	Unit  int
	State namenode.ReplicaState
	// Good: it is what the namespace wants. Corrupt: its datanode has found it damaged.
	Good, Corrupt, Dead, Stale, Doomed bool
}

// Describe tells what is known of a block.
func (m *Manager) Describe(id metadata.BlockID) (BlockReport, bool) {
	if id.Striped() {
		return m.describeGroup(id)
	}
	return m.describe(id)
}

// Requeue counts a block anew and reports whether it waits for copies, on other racks or because it lacks replicas.
func (m *Manager) Requeue(id metadata.BlockID) bool {
	b := m.blocks.get(id)
	if b == nil {
		return false
	}
	m.update(id, b)
	return b.priority >= 0
}

func (m *Manager) describe(id metadata.BlockID) (BlockReport, bool) {
	b := m.blocks.peek(id)
	if b == nil {
		return BlockReport{}, false
	}
	counted := m.replicas(id, b)
	r := BlockReport{
		Block: metadata.Block{ID: id, Generation: b.generation, Length: b.length}, Want: int(b.want), Open: b.open,
		Live: counted.live, Readable: counted.readable, Away: counted.away, Needed: m.needed(b, counted.away), Pending: m.pending(b),
	}
	racks := map[string]struct{}{}
	for _, p := range b.good {
		v := m.volumes[p]
		one := ReplicaReport{Location: v.location(), State: namenode.Finalized, Good: true, Dead: !v.usable(), Stale: v.node.stale, Doomed: v.node.dooms(id)}
		if one.Doomed {
			r.Doomed++
		}
		if one.Stale && !one.Dead {
			r.Stale++
		}
		if !one.Dead && !one.Doomed {
			racks[v.node.info.Rack] = struct{}{}
		}
		r.At = append(r.At, one)
	}
	for _, o := range b.odds() {
		v := m.volumes[o.at]
		if o.corrupt {
			r.Corrupt++
		}
		r.At = append(r.At, ReplicaReport{Location: v.location(), State: o.state, Corrupt: o.corrupt, Dead: !v.usable(), Stale: v.node.stale, Doomed: v.node.dooms(id)})
	}
	r.Racks = len(racks)
	return r, true
}

// Unhealthy lists the blocks that may have fewer replicas than they should, in ascending order of their ids. Describe tells which do.
func (m *Manager) Unhealthy() []metadata.BlockID {
	var ids []metadata.BlockID
	for p := range m.needs {
		for _, id := range m.needs[p].ids[m.needs[p].head:] {
			ids = append(ids, id.Group())
		}
	}
	ids = m.lost.after(math.MinInt64, ids, math.MaxInt)
	slices.Sort(ids)
	return slices.Compact(ids)
}

// Healthy reports whether a block has all the replicas that it should have.
func (r *BlockReport) Healthy() bool {
	return r.Open || r.Live >= r.Needed && (r.Readable > 0 || r.Want == 0)
}
