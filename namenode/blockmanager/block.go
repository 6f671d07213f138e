package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Block is what the namespace says of a block.
type Block struct {
	metadata.Block
	// Replication is the number of replicas wanted.
	Replication int
	// Policy is HDFS's number of the storage policy that the replicas obey; 0: the default.
	Policy uint8
	// Erasure is the policy of a group, of which Length is that of the data; 0: the block is replicated.
	Erasure metadata.ErasurePolicyID
	// Open: the last block of a file being written; its length and generation may still change.
	Open bool
}

// place is a volume, as index in Manager.volumes.
type place int32

// odd is a replica that is not (known to be) what the namespace wants.
type odd struct {
	at         place
	state      namenode.ReplicaState
	corrupt    bool // its datanode found it damaged
	generation metadata.Generation
	length     int64
}

// block is what is known of a block while somebody works on it, see blocks; what only some have is in more.
type block struct {
	generation metadata.Generation
	length     int64
	want       uint16
	policy     uint8
	open       bool
	health     health
	priority   int8 // queue it belongs to, -1 none
	good       []place
	more       *more
}

type more struct {
	odd      []odd
	expect   []place   // the pipeline of an open block, or of one just closed
	until    time.Time // when expect ceases to count for a closed block; zero: open
	copies   []*transfer
	yields   namenode.NodeID // the node that gives up its replica when there is one too many
	recovery *recovery
	tried    []namenode.NodeID // primaries of recoveries that came to nothing
	since    time.Time         // when the first of these recoveries began
	doubt    *doubt            // somebody said that a replica is damaged
}

func (b *block) extra() *more {
	if b.more == nil {
		b.more = &more{}
	}
	return b.more
}

// trim drops an empty extension.
func (b *block) trim() {
	if e := b.more; e != nil && len(e.odd) == 0 && len(e.expect) == 0 && len(e.copies) == 0 && len(b.good) <= int(b.want) && e.recovery == nil && len(e.tried) == 0 && e.doubt == nil {
		b.more = nil
	}
}

func (b *block) odds() []odd {
	if b.more == nil {
		return nil
	}
	return b.more.odd
}

// matches reports whether a replica is what the namespace wants of a complete block.
func (b *block) matches(o odd) bool {
	return !b.open && !o.corrupt && o.state == namenode.Finalized && o.generation == b.generation && o.length == b.length
}

// Put tells that a block exists or changed. It may be repeated.
func (m *Manager) Put(now time.Time, nb Block) {
	if nb.ID.Striped() {
		m.putGroup(now, nb)
		return
	}
	m.put(now, nb)
}

func (m *Manager) put(now time.Time, nb Block) {
	b := m.blocks.borrow(nb.ID)
	want := uint16(min(max(nb.Replication, 0), metadata.MaxReplication))
	switch {
	case nb.ID.Striped(): // groups are counted
	case !nb.Open && (b == nil || b.open):
		m.counts.complete++
	case nb.Open && b != nil && !b.open:
		m.counts.complete--
	}
	switch {
	case b == nil:
		b = &block{generation: nb.Generation, length: nb.Length, want: want, policy: nb.Policy & maxPolicy, open: nb.Open, priority: -1}
		m.blocks.put(nb.ID, b)
		if orphans, ok := m.orphans[nb.ID]; ok {
			delete(m.orphans, nb.ID)
			b.extra().odd = orphans
			for _, o := range orphans {
				m.pardon(m.volumes[o.at].node, nb.ID)
			}
		}
	case b.generation != nb.Generation || b.length != nb.Length || b.open != nb.Open:
		for _, p := range b.good {
			e := b.extra()
			e.odd = append(e.odd, odd{at: p, state: namenode.Finalized, generation: b.generation, length: b.length})
		}
		b.good = b.good[:0]
		closed, reopened := b.open && !nb.Open, nb.Open && !b.open
		if b.more != nil && b.more.recovery != nil && (closed || nb.Generation >= b.more.recovery.id) {
			b.more.endRecovery()
		}
		b.generation, b.length, b.want, b.policy, b.open = nb.Generation, nb.Length, want, nb.Policy&maxPolicy, nb.Open
		if e := b.more; e != nil {
			e.until = time.Time{}
			if reopened { // whoever wrote it before, those who have it now are its pipeline
				e.expect = nil
			}
			if closed && len(e.expect) == 0 { // a new leader knows the pipeline from the replicas being written
				for _, o := range e.odd {
					if o.state == namenode.Writing && o.generation == nb.Generation {
						e.expect = append(e.expect, o.at)
					}
				}
			}
			if closed && len(e.expect) > 0 {
				e.until = now.Add(m.config.Grace)
				m.graces = append(m.graces, grace{nb.ID, e.until})
			}
		}
	default:
		b.want, b.policy = want, nb.Policy&maxPolicy
	}
	m.judge(nb.ID, b)
	m.update(nb.ID, b)
	m.blocks.rest(nb.ID, b)
}

// judge moves replicas of a complete block that match from odd to good.
func (m *Manager) judge(id metadata.BlockID, b *block) {
	if b.open || b.more == nil {
		return
	}
	kept := b.more.odd[:0]
	for _, o := range b.more.odd {
		if b.matches(o) {
			b.good = append(b.good, o.at)
			m.arrived(id, b, m.volumes[o.at].node)
		} else {
			kept = append(kept, o)
		}
	}
	b.more.odd = kept
	b.trim()
}

// Remove tells that a block is gone from the namespace; its replicas become orphans.
func (m *Manager) Remove(id metadata.BlockID) {
	if id.Striped() {
		m.removeGroup(id)
		return
	}
	if b := m.blocks.peek(id); b != nil && !b.open {
		m.counts.complete--
	}
	m.removeBlock(id)
}

func (m *Manager) removeBlock(id metadata.BlockID) {
	b := m.blocks.get(id)
	if b == nil {
		return
	}
	if !id.Striped() {
		m.setHealth(id, b, healthy, -1)
	}
	m.dropCopies(b)
	m.settle(b)
	m.toOrphans(id, b)
	m.blocks.drop(id)
	if m.leading && len(m.orphans[id]) > 0 {
		m.stray.push(id)
	}
	m.wake(id)
}

func (m *Manager) toOrphans(id metadata.BlockID, b *block) {
	orphans := slices.Clone(b.odds())
	for _, p := range b.good {
		orphans = append(orphans, odd{at: p, state: namenode.Finalized, generation: b.generation, length: b.length})
	}
	if len(orphans) > 0 {
		m.orphans[id] = orphans
	}
}

// apply records a replica on a volume. A node has one replica of a block: what it had of it on another volume is gone.
func (m *Manager) apply(p place, r namenode.Replica) {
	id := r.Block.ID
	o := odd{at: p, state: r.State, generation: r.Block.Generation, length: r.Block.Length}
	v := m.volumes[p]
	v.hold(id)
	if d := v.node.doomed[id]; d != nil && d.block.Generation < o.generation { // the node keeps what is newer than the order says
		m.pardon(v.node, id)
	}
	b := m.blocks.borrow(id)
	if b == nil {
		list := m.orphans[id]
		if i := m.indexOnNode(list, v.node); i >= 0 {
			m.leaveVolume(list[i].at, p, id)
			list[i] = o
		} else {
			m.orphans[id] = append(list, o)
		}
		if m.leading {
			m.stray.push(id)
		}
		return
	}
	known := m.indexOnNode(b.odds(), v.node)
	if known >= 0 {
		old := &b.more.odd[known]
		m.leaveVolume(old.at, p, id)
		// Found damaged, and a report that merely lists it does not heal it.
		o.corrupt = old.corrupt && old.at == p && old.generation == o.generation
		if old.at != p || old.generation != o.generation {
			m.unmark(b, old.at)
		}
	}
	good := slices.IndexFunc(b.good, func(g place) bool { return m.volumes[g].node == v.node })
	if good >= 0 {
		m.leaveVolume(b.good[good], p, id)
		if b.good[good] != p || o.generation != b.generation {
			m.unmark(b, b.good[good])
		}
	}
	if b.matches(o) {
		if known >= 0 {
			b.more.odd = slices.Delete(b.more.odd, known, known+1)
		}
		if good >= 0 {
			b.good[good] = p
		} else {
			b.good = append(b.good, p)
		}
		m.arrived(id, b, v.node)
		b.trim()
	} else {
		if good >= 0 {
			b.good = slices.Delete(b.good, good, good+1)
		}
		if known >= 0 {
			b.more.odd[known] = o
		} else {
			e := b.extra()
			e.odd = append(e.odd, o)
		}
		m.occupied(b, v.node, o)
	}
	m.update(id, b)
	m.blocks.rest(id, b)
	if o.state == namenode.Finalized {
		m.wake(id)
	}
}

// leaveVolume takes a block off the index of the volume it was on, if that is not the one it is on now.
func (m *Manager) leaveVolume(old, now place, id metadata.BlockID) {
	if old != now {
		m.volumes[old].leave(id)
	}
}

// remove forgets the replica of a block on a volume.
func (m *Manager) remove(p place, id metadata.BlockID) {
	v := m.volumes[p]
	v.leave(id)
	m.pardon(v.node, id)
	if list, ok := m.orphans[id]; ok {
		if list = slices.DeleteFunc(list, func(o odd) bool { return o.at == p }); len(list) == 0 {
			delete(m.orphans, id)
		} else {
			m.orphans[id] = list
		}
		return
	}
	b := m.blocks.borrow(id)
	if b == nil {
		return
	}
	b.good = slices.DeleteFunc(b.good, func(g place) bool { return g == p })
	delete(v.node.verify, id)
	if b.more != nil {
		m.unmark(b, p)
		b.more.odd = slices.DeleteFunc(b.more.odd, func(o odd) bool { return o.at == p })
		b.trim()
	}
	m.update(id, b)
	m.blocks.rest(id, b)
}

func (m *Manager) indexOnNode(list []odd, n *node) int {
	for i := range list {
		if m.volumes[list[i].at].node == n {
			return i
		}
	}
	return -1
}

// health is what the statistics count a block as.
type health uint8

const (
	healthy health = iota
	under          // fewer live good replicas than wanted
	missing        // none
	corrupt        // none, and at least one damaged
	healths
)

type counts struct {
	complete int64 // blocks that are not open
	by       [healths]int64
	missing1 int64 // missing blocks that should have had one replica
	critical int64 // in the most urgent queue
	groups   [healths]int64
}

func (m *Manager) setHealth(id metadata.BlockID, b *block, h health, priority int8) {
	tally := func(d int64) {
		m.counts.by[b.health] += d
		if b.health >= missing && b.want == 1 {
			m.counts.missing1 += d
		}
		if b.priority == 0 {
			m.counts.critical += d
		}
	}
	tally(-1)
	if was, is := b.health >= missing, h >= missing; is && !was {
		m.lost.add(id)
	} else if was && !is {
		m.lost.drop(id)
	}
	b.health, b.priority = h, priority
	tally(1)
}

// replicas of a block that are good.
type replicas struct {
	live     int  // can be read, are not about to be deleted, and stay
	readable int  // these, and those on nodes that are leaving
	away     int  // on nodes that are in maintenance, or enter it
	spread   bool // live ones and those away stand on several racks
}

func (m *Manager) replicas(id metadata.BlockID, b *block) replicas {
	var r replicas
	rack := ""
	for _, p := range b.good {
		v := m.volumes[p]
		usable := v.usable() && !v.node.dooms(id)
		if usable {
			r.readable++
		}
		switch {
		case v.node.leaving.wish == namenode.InMaintenance && (usable || v.kept()):
			r.away++
		case v.node.stays() && usable:
			r.live++
		default:
			continue
		}
		if rack == "" {
			rack = v.node.info.Rack
		}
		r.spread = r.spread || rack != v.node.info.Rack
	}
	return r
}

// needed is how many live replicas a block has to have: those in maintenance come back.
func (m *Manager) needed(b *block, away int) int {
	want := int(b.want)
	return max(want-away, min(want, m.config.MaintenanceReplication))
}

// live counts the good replicas that can be read now, are not about to be deleted, and are on nodes that stay.
func (m *Manager) live(id metadata.BlockID, b *block) int { return m.replicas(id, b).live }

// pending counts the replicas that are on their way.
func (m *Manager) pending(b *block) int {
	e := b.more
	if e == nil {
		return 0
	}
	n := 0
	for _, t := range e.copies {
		if !t.within && !t.over() {
			n++
		}
	}
	if !e.until.IsZero() {
		for _, p := range e.expect {
			v := m.volumes[p]
			if v.usable() && v.node.stays() && !slices.ContainsFunc(b.good, func(g place) bool { return m.volumes[g].node == v.node }) {
				n++
			}
		}
	}
	return n
}

// update recounts a block after anything about it changed and puts it into the queues it now belongs to.
func (m *Manager) update(id metadata.BlockID, b *block) {
	if id.Striped() {
		m.updateUnit(id, b)
		return
	}
	if b.open {
		m.setHealth(id, b, healthy, -1)
		return
	}
	r := m.replicas(id, b)
	live, pending, want := r.live, m.pending(b), m.needed(b, r.away)
	h, priority := healthy, int8(-1)
	switch {
	case r.readable == 0 && pending == 0 && b.want > 0:
		h = missing
		for _, o := range b.odds() {
			if o.corrupt {
				h = corrupt
			}
		}
	case live < want:
		h = under
	}
	if r.readable > 0 && live+pending < want {
		priority = urgency(r.readable, int(b.want))
	} else if m.racks && !r.spread && b.want > 1 && live > 0 && pending == 0 {
		priority = crowded
	}
	m.setHealth(id, b, h, priority)
	// Followers fill the queues too, so that a new leader need not look at every block; Tick sweeps them.
	if priority >= 0 {
		m.needs[priority].push(id)
	}
	if untidy(b, live) {
		m.tidy.push(id)
	}
}

// untidy blocks have replicas that should go.
func untidy(b *block, live int) bool { return !b.open && (live > int(b.want) || len(b.odds()) > 0) }

// The queues of HDFS's LowRedundancyBlocks that a copy can help: one replica left of several, less than a third, the
// rest; all on one rack of several.
const (
	priorities = 4
	crowded    = 3
)

func urgency(readable, want int) int8 {
	switch {
	case readable >= want: // nodes that have it are leaving
		return 2
	case readable == 1:
		return 0
	case readable*3 < want:
		return 1
	}
	return 2
}
