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
	// Moved bytes and Blocks have been copied to where they belong, and Left have still to be moved. Moving bytes are on their way, or
	// the nodes' own figures do not tell of them yet.
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
	// unsettled are replicas that have been copied, at both ends.
	unsettled map[*node][]unsettled
}

// unsettled is a replica of which a node's own figures do not tell yet that it came, or went.
type unsettled struct {
	id    metadata.BlockID
	bytes int64 // negative: it goes
	// beats are those of the node that are still to come until its figures tell: the next one may have been on its way. none: it has not
	// gone yet.
	beats int
	until time.Time // it is given up
}

const (
	// settlesIn is with how many beats a node's own figures tell of a replica that came or went, and settles when they are believed
	// whatever came of it.
	settlesIn = 2
	settles   = time.Minute
	none      = -1
	// balancePerTick is at how many blocks a Tick looks for one that may be moved.
	balancePerTick = 2000
)

// SetBalance begins to move replicas, goes on with other wishes, or, with nil, ends. Copies under way are carried out.
func (m *Manager) SetBalance(b *Balance) {
	switch {
	case b == nil:
		m.balance = nil
	case m.balance == nil:
		m.balance = &balancing{want: *b, todo: map[*node][]metadata.BlockID{}, adjust: map[*node]int64{}, unsettled: map[*node][]unsettled{}}
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

// levels are those of the nodes that take part, the fullest first, and what all of them together have used, in percent. One that is
// silent for the moment is among them: without it the others might look balanced.
func (m *Manager) levels() (all []level, average float64) {
	var used, capacity int64
	for _, n := range m.order {
		if !n.alive || !n.stays() || m.balance.want.Takes != nil && !m.balance.want.Takes(n.info) {
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
	// Until the figures of both ends tell of a move, it may count twice at one of them.
	var coming int64
	for _, list := range b.unsettled {
		for _, u := range list {
			coming += max(u.bytes, 0)
		}
	}
	r.Moving = max(r.Moving, coming)
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
	for n := range b.unsettled {
		b.settle(n, func(u *unsettled) bool { return !now.Before(u.until) })
	}
	all, average := m.levels()
	budget := balancePerTick
	for i := range all {
		from := &all[i]
		if from.n.stale || from.used <= average || b.want.Gives != nil && !b.want.Gives(from.n.info) {
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
		if !t.n.stale && t.used < average && (from.used > average+limit || t.used < average-limit) && t.n.incoming < m.balanceStreams() {
			to = append(to, t)
		}
	}
	if len(to) == 0 {
		return 0, false
	}
	if len(b.todo[from.n]) == 0 {
		var list []metadata.BlockID
		for _, v := range from.n.order {
			list = append(list, v.blocks.list()...)
		}
		b.todo[from.n] = list
	}
	for len(b.todo[from.n]) > 0 && looked < budget {
		id := b.todo[from.n][0]
		b.todo[from.n] = b.todo[from.n][1:]
		looked++
		blk := m.blocks.peek(id)
		if blk == nil || !m.movable(id, blk, from.n) {
			continue
		}
		if id.Striped() { // landing looks at the others of its group
			blk = m.blocks.get(id)
		}
		for _, t := range to {
			// Not so far that the two change places.
			after := float64(blk.length)*100/float64(t.capacity) + t.used
			if after > max(average, from.used-float64(blk.length)*100/float64(from.capacity)) {
				continue
			}
			if at := m.landing(id, blk, from.n, t.n, m.kindAt(blk, from.n), true); at >= 0 {
				m.move(now, id, m.blocks.get(id), from.n, at)
				share := float64(blk.length) * 100
				from.used -= share / float64(from.capacity)
				t.used += share / float64(t.capacity)
				return looked, true
			}
		}
	}
	return looked, false
}

// movable reports whether nothing else is the matter with a block, and the node, unless nil, has a good replica of it.
func (m *Manager) movable(id metadata.BlockID, b *block, from *node) bool {
	if b.open || b.more != nil || b.length == 0 || b.priority >= 0 || id.Striped() && m.groups[id.Group()].health != healthy || len(b.good) != int(b.want) {
		return false
	}
	here := from == nil
	for _, p := range b.good {
		v := m.volumes[p]
		if !v.usable() || !v.node.stays() || v.silent() || v.node.dooms(id) {
			return false
		}
		here = here || v.node == from
	}
	return here
}

// kindAt is the type of the volume on which a node has its good replica of a block.
func (m *Manager) kindAt(b *block, n *node) namenode.StorageType {
	for _, p := range b.good {
		if m.volumes[p].node == n {
			return m.volumes[p].kind
		}
	}
	return namenode.Disk
}

// landing is the volume of a type of a node that can take a block's replica from another one, without the block, or its group, losing a rack, and, even, without the group standing less evenly on them; -1: none.
// An internal block changes its rack only when no other one of its group is on its way.
func (m *Manager) landing(id metadata.BlockID, b *block, from, to *node, kind namenode.StorageType, even bool) place {
	before, after := map[string]struct{}{}, map[string]struct{}{to.info.Rack: {}}
	if kind == namenode.RAMDisk { // it leaves memory for a disk of its datanode
		return -1
	}
	siblings := m.siblings(id)
	if slices.Contains(siblings, to.info) || m.refuses(id, to) {
		return -1
	}
	if id.Striped() && to.info.Rack != from.info.Rack {
		here, there := onRack(siblings, from.info.Rack), onRack(siblings, to.info.Rack)
		if even && there > here || here == 0 && there > 0 || !m.settled(id) {
			return -1
		}
	}
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
		if v.Failed || v.Slow || v.Type != kind {
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

// copied reports whether a copy of a block is under way.
func (b *block) copied() bool { return b.more != nil && len(b.more.copies) > 0 }

// staying is how many replicas of a block are where they may stay.
func (m *Manager) staying(id metadata.BlockID, b *block) (n int) {
	for _, p := range b.good {
		if v := m.volumes[p]; v.usable() && v.node.stays() && !v.node.dooms(id) {
			n++
		}
	}
	return n
}

// leaving reports whether a replica of a block is being deleted. One on a node that was taken out of service stays there, and is no matter.
func (m *Manager) leaving(id metadata.BlockID, b *block) bool {
	return slices.ContainsFunc(b.good, func(p place) bool { return m.volumes[p].node.dooms(id) })
}

// settled reports whether each other internal block of a group is where it stays: the racks of one that is on its way are not those that the group will have.
func (m *Manager) settled(id metadata.BlockID) bool {
	g := m.groups[id.Group()]
	if g == nil {
		return true
	}
	for i := range g.layout.Units() {
		other := id.Group().Internal(i)
		if b := m.blocks.peek(other); other != id && b != nil && (b.copied() || m.staying(other, b) > int(b.want) || m.leaving(other, b)) {
			return false
		}
	}
	return true
}

// onRack is how many of some nodes stand on a rack.
func onRack(nodes []*namenode.Node, rack string) int {
	n := 0
	for _, node := range nodes {
		if node.Rack == rack {
			n++
		}
	}
	return n
}

func (m *Manager) move(now time.Time, id metadata.BlockID, b *block, from *node, at place) {
	to := m.volumes[at].node
	t := m.begin(now, id, b, from, at)
	t.moves = m.balance
	b.more.yields = from.info.ID
	m.balance.moving += b.length
	m.balance.adjust[to] += b.length
	m.balance.adjust[from] -= b.length
}

// begin orders the copy of a replica to another volume, for which the one at from is to go.
func (m *Manager) begin(now time.Time, id metadata.BlockID, b *block, from *node, at place) *transfer {
	to := m.volumes[at].node
	t := &transfer{block: metadata.Block{ID: id, Generation: b.generation, Length: b.length}, source: from, target: at, begun: now, moved: now}
	m.incoming(to, 1)
	to.ins = append(compact(to.ins, 2*m.config.Streams), t)
	to.candidate.Scheduled += b.length
	to.candidate.Xceivers++
	from.outgoing++
	from.outs = append(compact(from.outs, 2*m.config.Streams), t)
	from.dirty = true
	e := b.extra()
	e.copies = append(e.copies, t)
	m.copies = append(m.copies, t)
	return t
}

// moveEnded counts a move whose target has it, or will not get it.
func (m *Manager) moveEnded(t *transfer, to *node, arrived bool) {
	if t.tier {
		m.tierEnded(t, arrived)
	}
	b, now := t.moves, m.now
	if b == nil {
		return
	}
	size, until := t.block.Length, now.Add(settles)
	if !arrived {
		b.failed++
		b.moving -= size
		b.adjust[to] -= size
		b.adjust[t.source] += size
		return
	}
	b.moved += size
	b.blocks++
	b.unsettled[to] = append(b.unsettled[to], unsettled{t.block.ID, size, settlesIn, until})
	b.unsettled[t.source] = append(b.unsettled[t.source], unsettled{t.block.ID, -size, none, until})
}

// settle ends the adjustments of a node that are over.
func (b *balancing) settle(n *node, over func(*unsettled) bool) {
	list := b.unsettled[n]
	rest := list[:0]
	for _, u := range list {
		if !over(&u) {
			rest = append(rest, u)
			continue
		}
		b.adjust[n] -= u.bytes
		if u.bytes < 0 {
			b.moving += u.bytes
		}
	}
	if b.unsettled[n] = rest; len(rest) == 0 {
		delete(b.unsettled, n)
	}
}

// beat notes that a node has told how full it is.
func (b *balancing) beat(n *node) {
	if b == nil || len(b.unsettled[n]) == 0 {
		return
	}
	b.settle(n, func(u *unsettled) bool {
		if u.beats > 0 {
			u.beats--
		}
		return u.beats == 0
	})
}

// gone notes that a node has deleted a replica.
func (b *balancing) gone(n *node, id metadata.BlockID) {
	if b == nil {
		return
	}
	for i := range b.unsettled[n] {
		if u := &b.unsettled[n][i]; u.id == id && u.beats == none {
			u.beats = settlesIn
		}
	}
}
