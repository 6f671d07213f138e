package blockmanager

import (
	"cmp"
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Balancing is copying and deleting: a replica of a block that has all it should have is copied from a full node to an empty one, and
// is then one too many. The full node's goes like every surplus replica, through the three gates of the package comment. Whoever
// stops in between leaves a copy that is deleted as surplus, and loses nothing.

// Balance is what a balancer wants.
type Balance struct {
	// Threshold is how many percent of its capacity a node may be fuller or emptier than all of them together.
	Threshold float64
	// Takes reports whether a node takes part, and Gives whether it may give replicas away. Nil: all.
	Takes, Gives func(*namenode.Node) bool
}

// Balanced is how far it has come.
type Balanced struct {
	// Moved bytes and Blocks have been copied to where they belong, Moving bytes are on their way, and Left have still to be moved.
	Moved, Blocks, Moving, Left int64
	// Failed copies did not arrive.
	Failed int64
	// Over and Under are the nodes that are too full, and too empty.
	Over, Under int
	// Nodes are those that take part.
	Nodes []Utilization
}

// Utilization is how full a node is.
type Utilization struct {
	Node    *namenode.Node
	Percent float64
}

// balancing is a Balance that goes on.
type balancing struct {
	want                  Balance
	moved, blocks, failed int64
	moving                int64
	todo                  map[*node][]metadata.BlockID
	// adjust is what nodes do not yet say of themselves: bytes that have come or are coming, and bytes that go.
	adjust map[*node]int64
	fading []fade
}

// fade is the end of an adjustment: the node's own figures tell by then.
type fade struct {
	at    time.Time
	n     *node
	bytes int64
}

const (
	// settles is after how long a node's own figures tell of a replica that came or went.
	settles = 15 * time.Second
	// balancePerTick is at how many blocks a Tick looks for one that may be moved.
	balancePerTick = 2000
)

// SetBalance begins to move replicas, goes on with other wishes, or, with nil, ends. Copies under way are carried out.
func (m *Manager) SetBalance(b *Balance) {
	switch {
	case b == nil:
		m.balance = nil
	case m.balance == nil:
		m.balance = &balancing{want: *b, todo: map[*node][]metadata.BlockID{}, adjust: map[*node]int64{}}
	default:
		m.balance.want = *b
	}
}

// level is a node's place among the others.
type level struct {
	n        *node
	used     float64 // percent
	capacity int64
}

// levels are those of the nodes that take part, the fullest first, and what all of them together have used, in percent.
func (m *Manager) levels() (all []level, average float64) {
	var used, capacity int64
	for _, n := range m.order {
		if !n.alive || n.stale || !n.stays() || m.balance.want.Takes != nil && !m.balance.want.Takes(n.info) {
			continue
		}
		u, c := m.balance.adjust[n], int64(0)
		for _, v := range n.candidate.Volumes {
			if !v.Failed {
				u, c = u+v.Used, c+v.Capacity
			}
		}
		if c > 0 {
			used, capacity = used+u, capacity+c
			all = append(all, level{n, 100 * float64(u) / float64(c), c})
		}
	}
	slices.SortStableFunc(all, func(a, b level) int { return cmp.Compare(b.used, a.used) })
	return all, 100 * float64(used) / float64(max(capacity, 1))
}

// Balanced tells how far the balancing has come.
func (m *Manager) Balanced() Balanced {
	b := m.balance
	if b == nil {
		return Balanced{}
	}
	r := Balanced{Moved: b.moved, Blocks: b.blocks, Moving: b.moving, Failed: b.failed}
	all, average := m.levels()
	var over, under float64
	for _, l := range all {
		if excess := l.used - average - b.want.Threshold; excess > 0 {
			r.Over++
			over += excess / 100 * float64(l.capacity)
		}
		if lack := average - b.want.Threshold - l.used; lack > 0 {
			r.Under++
			under += lack / 100 * float64(l.capacity)
		}
		r.Nodes = append(r.Nodes, Utilization{l.n.info, l.used})
	}
	r.Left = int64(max(over, under))
	return r
}

// balanceBlocks orders copies that bring the nodes nearer to each other.
func (m *Manager) balanceBlocks(now time.Time) {
	b := m.balance
	if b == nil {
		return
	}
	for len(b.fading) > 0 && !now.Before(b.fading[0].at) {
		b.adjust[b.fading[0].n] -= b.fading[0].bytes
		b.fading = b.fading[1:]
	}
	all, average := m.levels()
	budget := balancePerTick
	for i := range all {
		from := &all[i]
		if from.used <= average || b.want.Gives != nil && !b.want.Gives(from.n.info) {
			continue
		}
		for from.n.outgoing < m.balanceStreams() && budget > 0 {
			looked, found := m.balanceOne(now, from, all, average, budget)
			budget -= looked
			if !found {
				break
			}
		}
	}
}

// balanceStreams leaves the larger part of a node's streams to copies that mend.
func (m *Manager) balanceStreams() int { return max(1, m.config.Streams/2) }

// balanceOne finds a block of a node that may be moved, and orders it.
func (m *Manager) balanceOne(now time.Time, from *level, all []level, average float64, budget int) (looked int, found bool) {
	b := m.balance
	limit := b.want.Threshold
	var to []*level // the emptiest first
	for i := len(all) - 1; i >= 0; i-- {
		t := &all[i]
		// One of the two is beyond the threshold, as in HDFS: full ones give to all below the average, empty ones get from all above it.
		if t.used < average && (from.used > average+limit || t.used < average-limit) && t.n.incoming < m.balanceStreams() {
			to = append(to, t)
		}
	}
	if len(to) == 0 {
		return 0, false
	}
	if len(b.todo[from.n]) == 0 {
		var list []metadata.BlockID
		for _, v := range from.n.order {
			for id := range v.blocks {
				list = append(list, id)
			}
		}
		if len(list) <= sorted {
			slices.Sort(list)
		}
		b.todo[from.n] = list
	}
	for len(b.todo[from.n]) > 0 && looked < budget {
		id := b.todo[from.n][0]
		b.todo[from.n] = b.todo[from.n][1:]
		looked++
		blk := m.blocks[id]
		if blk == nil || !m.movable(id, blk, from.n) {
			continue
		}
		for _, t := range to {
			// Not so far that the two change places.
			after := float64(blk.length)*100/float64(t.capacity) + t.used
			if after > max(average, from.used-float64(blk.length)*100/float64(from.capacity)) {
				continue
			}
			if at := m.landing(blk, from.n, t.n); at >= 0 {
				m.move(now, id, blk, from.n, at)
				share := float64(blk.length) * 100
				from.used -= share / float64(from.capacity)
				t.used += share / float64(t.capacity)
				return looked, true
			}
		}
	}
	return looked, false
}

// movable reports whether nothing else is the matter with a block, and the node has a good replica of it.
func (m *Manager) movable(id metadata.BlockID, b *block, from *node) bool {
	if b.open || b.more != nil || b.length == 0 || b.priority >= 0 || len(b.good) != int(b.want) {
		return false
	}
	here := false
	for _, p := range b.good {
		v := m.volumes[p]
		if !v.usable() || !v.node.stays() || v.node.stale || v.node.dooms(id) {
			return false
		}
		here = here || v.node == from
	}
	return here
}

// landing is the volume of a node that can take a block's replica from another one without the block losing a rack; -1: none.
func (m *Manager) landing(b *block, from, to *node) place {
	before, after := map[string]struct{}{}, map[string]struct{}{to.info.Rack: {}}
	for _, p := range b.good {
		n := m.volumes[p].node
		if n == to {
			return -1
		}
		before[n.info.Rack] = struct{}{}
		if n != from {
			after[n.info.Rack] = struct{}{}
		}
	}
	if len(after) < len(before) {
		return -1
	}
	best, room, total := place(-1), int64(0), -to.candidate.Scheduled
	for _, v := range to.candidate.Volumes {
		if v.Failed {
			continue
		}
		total += v.Remaining
		if v.Remaining > b.length && v.Remaining > room {
			best, room = m.volume(to, v.ID).place, v.Remaining
		}
	}
	if total <= b.length {
		return -1
	}
	return best
}

func (m *Manager) move(now time.Time, id metadata.BlockID, b *block, from *node, at place) {
	to := m.volumes[at].node
	t := &transfer{
		block: metadata.Block{ID: id, Generation: b.generation, Length: b.length}, source: from, targets: []place{at}, begun: now, moves: m.balance,
	}
	m.incoming(to, 1)
	to.ins = append(compact(to.ins, 2*m.config.Streams), t)
	to.candidate.Scheduled += b.length
	to.candidate.Xceivers++
	from.outgoing++
	from.outs = append(compact(from.outs, 2*m.config.Streams), t)
	from.dirty = true
	e := b.extra()
	e.copies = append(e.copies, t)
	e.yields = from.info.ID
	m.copies = append(m.copies, t)
	m.balance.moving += b.length
	m.balance.adjust[to] += b.length
	m.balance.adjust[from] -= b.length
}

// moveEnded counts a move whose target has it, or will not get it.
func (t *transfer) moveEnded(now time.Time, to *node, arrived bool) {
	b := t.moves
	if b == nil {
		return
	}
	b.moving -= t.block.Length
	at := now
	if arrived {
		b.moved += t.block.Length
		b.blocks++
		at = now.Add(settles)
	} else {
		b.failed++
	}
	b.fading = append(b.fading, fade{at, to, t.block.Length}, fade{at, t.source, -t.block.Length})
}
