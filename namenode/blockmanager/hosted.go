package blockmanager

import (
	"iter"
	"math"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Hadoop's balancer and mover move replicas themselves: they are told what a node has, and the datanode that has got a replica says whose is one too many by that.

// Hosted goes once through the blocks of which a node has a replica on volumes of a kind (0: any), from one that is drawn on. Others may have their turn between two of them.
func (m *Manager) Hosted(id namenode.NodeID, kind namenode.StorageType) iter.Seq[metadata.BlockID] {
	return func(yield func(metadata.BlockID) bool) {
		n := m.nodes[id]
		if n == nil {
			return
		}
		var on []*volume
		total := 0
		for _, v := range n.order {
			if v.kind != namenode.RAMDisk && (kind == 0 || v.kind == kind) { // what is in memory leaves it for a disk of its datanode
				on = append(on, v)
				total += v.blocks.len()
			}
		}
		if total == 0 {
			return
		}
		first, at := 0, int(m.random()%uint64(total))
		for at >= on[first].blocks.len() {
			at -= on[first].blocks.len()
			first++
		}
		start := on[first].blocks.at(at)
		for i := range len(on) + 1 {
			v, from, to := on[(first+i)%len(on)], metadata.BlockID(math.MinInt64), metadata.BlockID(math.MaxInt64)
			if i == 0 {
				from = start
			} else if i == len(on) {
				to = start
			}
			for id := range v.blocks.from(from) {
				if id >= to {
					break
				}
				if !yield(id) {
					return
				}
			}
		}
	}
}

// Movable describes a block of which a node has a good replica, or the group of one, and where its replicas are; false if it is not to be moved now, as something is the matter
// with it, or it has less than some bytes.
func (m *Manager) Movable(id metadata.BlockID, node namenode.NodeID, least int64) (namenode.HostedBlock, bool) {
	b, n := m.blocks.peek(id), m.nodes[node]
	if b == nil || n == nil || !m.movable(id, b, n) {
		return namenode.HostedBlock{}, false
	}
	out := namenode.HostedBlock{Block: metadata.Block{ID: id, Generation: b.generation, Length: b.length}}
	if id.Striped() {
		g := m.groups[id.Group()]
		out.Block, out.Erasure = g.block, g.code
		if out.Block.Length < least {
			return namenode.HostedBlock{}, false
		}
		for i := range g.layout.Units() {
			unit := m.blocks.peek(g.block.ID.Internal(i))
			if unit == nil {
				continue
			}
			for _, p := range unit.good {
				if v := m.volumes[p]; v.usable() {
					out.Locations, out.Units = append(out.Locations, v.location()), append(out.Units, byte(i))
				}
			}
		}
		return out, true
	}
	if b.length < least {
		return namenode.HostedBlock{}, false
	}
	for _, p := range b.good {
		out.Locations = append(out.Locations, m.volumes[p].location())
	}
	return out, true
}

// instead takes the word of a datanode that a replica it has received stands for another one, which goes if the block has one too many now. As in HDFS that counts only
// if the block loses no rack by it which it had before.
func (m *Manager) instead(id metadata.BlockID, at *volume, gives namenode.NodeID) {
	b := m.blocks.get(id)
	if b == nil {
		return
	}
	defer m.blocks.rest(id, b)
	if b.open || len(b.good) <= int(b.want) || gives == at.node.info.ID {
		return
	}
	var giver *namenode.Node
	racks := map[string]int{}
	for _, p := range b.good {
		n := m.volumes[p].node.info
		racks[n.Rack]++
		if n.ID == gives {
			giver = n
		}
	}
	if giver != nil && (racks[giver.Rack] > 1 || racks[at.node.info.Rack] == 1) {
		b.extra().yields = gives
	}
}
