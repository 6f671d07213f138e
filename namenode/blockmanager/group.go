package blockmanager

import (
	"cmp"
	"slices"
	"time"

	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/placement"
)

// A block group is kept as its internal blocks, each of which is a block of its own that is wanted once: reports, orphans, the gates of deletions, surplus,
// verification, leaving and balancing are those of any block. What is different lies here: internal blocks of a group stand on nodes of their own;
// one that is nowhere is computed from others as long as enough are left; and a group counts once. Internal block 0 has the id of its group.

// group is what internal blocks have in common.
type group struct {
	block  metadata.Block // the length is that of the data
	layout stripe.Layout
	code   metadata.ErasurePolicyID
	open   bool
	health health
}

// putGroup is Put of a group.
func (m *Manager) putGroup(now time.Time, nb Block) {
	policy, known := metadata.ErasurePolicyOf(nb.Erasure)
	if !known {
		return // the namespace refuses such records
	}
	g := m.groups[nb.ID]
	if g == nil {
		g = &group{layout: policy.Layout, code: nb.Erasure, open: true}
		m.groups[nb.ID] = g
	}
	if g.open && !nb.Open {
		m.counts.complete++
	} else if !g.open && nb.Open {
		m.counts.complete--
	}
	g.block, g.open = nb.Block, nb.Open
	for i := range g.layout.Units() {
		unit := nb
		unit.ID, unit.Length, unit.Replication = nb.ID.Internal(i), g.layout.UnitLength(nb.Length, i), 1
		if unit.Length == 0 && !nb.Open { // nobody needs it, though some clients make one
			unit.Replication = 0
		}
		m.put(now, unit)
	}
	m.countGroup(nb.ID, g)
}

// removeGroup is Remove of a group.
func (m *Manager) removeGroup(id metadata.BlockID) {
	g := m.groups[id]
	if g == nil {
		return
	}
	if !g.open {
		m.counts.complete--
	}
	m.setGroupHealth(id, g, healthy)
	delete(m.groups, id)
	for i := range g.layout.Units() {
		m.removeBlock(id.Internal(i))
	}
}

// setGroupHealth counts a group.
func (m *Manager) setGroupHealth(id metadata.BlockID, g *group, h health) {
	m.counts.by[g.health]--
	m.counts.groups[g.health]--
	if was, is := g.health >= missing, h >= missing; is && !was {
		m.lost.add(id)
	} else if was && !is {
		m.lost.drop(id)
	}
	g.health = h
	m.counts.by[h]++
	m.counts.groups[h]++
}

// countGroup recounts a group after something about one of its internal blocks has changed, and queues those that have to be computed.
func (m *Manager) countGroup(id metadata.BlockID, g *group) {
	if g.open {
		m.setGroupHealth(id, g, healthy)
		return
	}
	readable, damaged := 0, false
	var nowhere [stripe.MaxUnits]metadata.BlockID
	gone, lacking := nowhere[:0], false
	for i := range g.layout.Units() {
		unit := id.Internal(i)
		b := m.blocks.peek(unit)
		if b == nil {
			return // it is being put or removed
		}
		r := m.replicas(unit, b)
		lacking = lacking || r.live < m.needed(b, r.away)
		switch {
		case r.readable > 0 || b.want == 0:
			readable++
		default:
			gone = append(gone, unit)
			damaged = damaged || slices.ContainsFunc(b.odds(), func(o odd) bool { return o.corrupt })
		}
	}
	left := readable - g.layout.Data // that may still be lost
	for _, unit := range gone {
		priority := int8(-1)
		if left >= 0 && m.pending(m.blocks.peek(unit)) == 0 {
			priority = int8(min(left, 2))
		}
		if b := m.blocks.peek(unit); b.priority != priority {
			m.blocks.get(unit).priority = priority // it rests with the next sweep: the caller may be at it
		}
		if priority >= 0 {
			m.needs[priority].push(unit)
		}
	}
	switch {
	case left < 0 && damaged:
		m.setGroupHealth(id, g, corrupt)
	case left < 0:
		m.setGroupHealth(id, g, missing)
	case lacking:
		m.setGroupHealth(id, g, under)
	default:
		m.setGroupHealth(id, g, healthy)
	}
}

// updateUnit is update of an internal block.
func (m *Manager) updateUnit(id metadata.BlockID, b *block) {
	b.priority = -1
	if !b.open {
		r := m.replicas(id, b)
		if r.readable > 0 && r.live+m.pending(b) < m.needed(b, r.away) { // its node is leaving
			b.priority = urgency(r.readable, int(b.want))
			m.needs[b.priority].push(id)
		}
		if untidy(b, r.live) {
			m.tidy.push(id)
		}
	}
	if g := m.groups[id.Group()]; g != nil {
		m.countGroup(id.Group(), g)
	}
}

// siblings are the nodes that hold, or are to get, other internal blocks of the group of id.
func (m *Manager) siblings(id metadata.BlockID) []*namenode.Node {
	g := m.groups[id.Group()]
	if !id.Striped() || g == nil {
		return nil
	}
	var out []*namenode.Node
	for i := range g.layout.Units() {
		other := id.Group().Internal(i)
		if b := m.blocks.peek(other); b != nil && other != id {
			for _, p := range b.good {
				out = append(out, m.volumes[p].node.info)
			}
			if b.more != nil {
				for _, t := range b.more.copies {
					if !t.over() {
						out = append(out, m.volumes[t.target].node.info)
					}
				}
			}
		}
	}
	return out
}

// holdersOf are the holders of a block, or of the internal blocks of a group.
func (m *Manager) holdersOf(id metadata.BlockID, b *block) []*node {
	var out []*node
	m.heldOf(id, b, func(v *volume) {
		if n := v.node; !n.forgotten && !slices.Contains(out, n) {
			out = append(out, n)
		}
	})
	return out
}

// heldOf is held, of all internal blocks of a group.
func (m *Manager) heldOf(id metadata.BlockID, b *block, each func(*volume)) {
	g := m.groups[id]
	if g == nil {
		m.held(b, each)
		return
	}
	for i := range g.layout.Units() {
		if unit := m.blocks.peek(id.Internal(i)); unit != nil {
			m.held(unit, each)
		}
	}
}

// recoverable are the internal blocks of an open group that live nodes may have.
func (m *Manager) recoverable(id metadata.BlockID, g *group) []Part {
	var out []Part
	for i := range g.layout.Units() {
		if unit := m.blocks.peek(id.Internal(i)); unit != nil {
			for _, n := range m.holders(unit) {
				if n.alive {
					out = append(out, Part{Unit: i, Node: n.info})
				}
			}
		}
	}
	return out
}

// computable reports whether an internal block has to be, and can be, computed from others.
func (m *Manager) computable(id metadata.BlockID, b *block) bool {
	g := m.groups[id.Group()]
	return id.Striped() && g != nil && !g.open && g.health < missing && b.want > 0 && m.replicas(id, b).readable == 0
}

// Part is an internal block of a group at a node.
type Part struct {
	Unit int
	Node *namenode.Node
	// Type is that of the volume.
	Type namenode.StorageType
}

// Rebuild asks a node to compute internal blocks of a group from others, and to put them where they are to be.
type Rebuild struct {
	// Group has the length of the data.
	Group   metadata.Block
	Erasure metadata.ErasurePolicyID
	// Sources are at least as many as are needed, those that should be read first in front.
	Sources []Part
	Targets []Part
}

// rebuilds adds a transfer to the orders of the node that is to compute it: one for each group.
func (m *Manager) rebuilds(all []Rebuild, t *transfer) []Rebuild {
	id := t.block.ID.Group()
	g := m.groups[id]
	if g == nil {
		return all
	}
	at := slices.IndexFunc(all, func(r Rebuild) bool { return r.Group.ID == id })
	if at < 0 {
		all = append(all, Rebuild{Group: g.block, Erasure: g.code, Sources: m.parts(id, g, "")})
		at = len(all) - 1
	}
	v := m.volumes[t.target]
	all[at].Targets = append(all[at].Targets, Part{Unit: t.block.ID.Unit(), Node: v.node.info, Type: v.kind})
	return all
}

// parts are the good internal blocks of a group that can be read, the best of each: close to reader, not on silent or leaving nodes or slow volumes, not suspect.
func (m *Manager) parts(id metadata.BlockID, g *group, reader string) []Part {
	type ranked struct {
		Part
		rank int
	}
	var out []ranked
	for i := range g.layout.Units() {
		unit := id.Internal(i)
		b := m.blocks.peek(unit)
		if b == nil {
			continue
		}
		best := ranked{rank: -1}
		for _, p := range b.good {
			v := m.volumes[p]
			if !v.usable() || v.node.dooms(unit) {
				continue
			}
			rank := 0
			if reader == "" || v.node.info.IP != reader && v.node.info.Host != reader {
				rank++
			}
			if !v.node.stays() {
				rank += 2
			}
			if v.silent() {
				rank += 4
			}
			if b.suspect(p) {
				rank += 8
			}
			if best.rank < 0 || rank < best.rank {
				best = ranked{Part{i, v.node.info, v.kind}, rank}
			}
		}
		if best.rank >= 0 {
			out = append(out, best)
		}
	}
	slices.SortStableFunc(out, func(a, b ranked) int { return cmp.Compare(a.rank, b.rank) })
	parts := make([]Part, len(out))
	for i, r := range out {
		parts[i] = r.Part
	}
	return parts
}

// LocateGroup lists where the internal blocks of a group can be read, or are being written, by number: at most one place for each. corrupt: so many are
// damaged that the group cannot be read.
func (m *Manager) LocateGroup(id metadata.BlockID, reader string) (parts []Placed, corrupted bool) {
	g := m.groups[id]
	if g == nil {
		return nil, false
	}
	for i := range g.layout.Units() {
		if at, bad := m.Locate(id.Internal(i), reader); len(at) > 0 && !bad {
			parts = append(parts, Placed{Unit: i, Location: at[0]})
		}
	}
	return parts, g.health == corrupt
}

// Placed is where an internal block is.
type Placed struct {
	Unit int
	namenode.Location
}

// ExpectGroup tells where the internal blocks of an open group are being written to.
func (m *Manager) ExpectGroup(id metadata.BlockID, at []Placed) {
	g := m.groups[id]
	if g == nil {
		return
	}
	for i := range g.layout.Units() {
		var here []namenode.Location
		for _, p := range at {
			if p.Unit == i {
				here = append(here, p.Location)
			}
		}
		m.Expect(id.Internal(i), here)
	}
}

// replicatedGroup is how many internal blocks of a group as given are finished, those without bytes included.
func (m *Manager) replicatedGroup(want metadata.Block) (done, needed int) {
	g := m.groups[want.ID]
	if g == nil {
		return 0, 1
	}
	for i := range g.layout.Units() {
		unit := metadata.Block{ID: want.ID.Internal(i), Generation: want.Generation, Length: g.layout.UnitLength(want.Length, i)}
		if unit.Length == 0 || m.Replicated(unit) > 0 {
			done++
		}
	}
	return done, g.layout.Data
}

// Stored says how safe a block as given is: how many of its replicas, of which so many are wanted, are finalized, and how many of those may be lost. Of a group it is the internal blocks
// that have bytes.
func (m *Manager) Stored(want metadata.Block, replication int) (stored, wanted, spare int) {
	if !want.ID.Striped() {
		stored = m.Replicated(want)
		return stored, replication, stored - 1
	}
	g := m.groups[want.ID]
	if g == nil {
		return 0, 1, -1
	}
	done, needed := m.replicatedGroup(want)
	empty := g.layout.Units() - g.layout.Used(want.Length)
	return done - empty, g.layout.Used(want.Length), done - needed
}

// Groups counts the complete block groups that lack internal blocks, that cannot be read, and of those the ones that damage is to blame for.
func (m *Manager) Groups() (all, lacking, lost, damaged int64) {
	return int64(len(m.groups)), m.counts.groups[under], m.counts.groups[missing] + m.counts.groups[corrupt], m.counts.groups[corrupt]
}

// rebuild orders the computing of an internal block that is nowhere. The node that is to have it computes it; several of one group are computed by one.
func (m *Manager) rebuild(now time.Time, id metadata.BlockID, b *block, survey *placement.Survey) int {
	g := m.groups[id.Group()]
	req := placement.Request{
		Want: 1, BlockSize: b.length, Copy: true, Spread: true, Policy: namenode.StoragePolicyByID(b.policy), Survey: survey, Seed: m.random(),
		Have: m.siblings(id), Exclude: m.refused[id],
	}
	for _, o := range b.odds() {
		req.Have = append(req.Have, m.volumes[o.at].node.info)
	}
	choice := placement.Choose(m.candidates, req)
	m.work.Looked += choice.Looked
	if len(choice.Targets) == 0 {
		if choice.Targets = m.overwritable(id, b); len(choice.Targets) == 0 {
			return 0
		}
	}
	target := m.nodes[choice.Targets[0].Node.ID]
	source := target
	for i := range g.layout.Units() {
		if other := m.blocks.peek(id.Group().Internal(i)); other != nil && other.more != nil {
			for _, t := range other.more.copies {
				if t.computed && t.source.alive {
					if !t.sent.IsZero() { // it works on one order of a group at a time: this one follows when that is done
						return 0
					}
					source = t.source
				}
			}
		}
	}
	if source.outgoing >= m.config.Streams {
		return 0
	}
	m.begin(now, id, b, source, m.volume(target, choice.Targets[0].Volume).place).computed = true
	m.update(id, b)
	return 1
}

// overwritable is where an internal block that has to be computed may take the place of what is left of it: a damaged replica, or one that was not written to
// its end, at a node that has nothing else of the group. It is asked for when there is nowhere else. What was there goes to the node's trash.
func (m *Manager) overwritable(id metadata.BlockID, b *block) []namenode.Location {
	others := m.siblings(id)
	for _, o := range b.odds() {
		v := m.volumes[o.at]
		n := v.node
		if o.generation <= b.generation && v.usable() && !n.stale && n.stays() && !n.dooms(id) && n.incoming < m.config.Streams && !slices.Contains(others, n.info) && !m.refuses(id, n) {
			return []namenode.Location{v.location()}
		}
	}
	return nil
}

// describeGroup is Describe of a group, also by the id of one of its internal blocks.
func (m *Manager) describeGroup(id metadata.BlockID) (BlockReport, bool) {
	g := m.groups[id.Group()]
	if g == nil {
		return BlockReport{}, false
	}
	r := BlockReport{Block: g.block, Open: g.open, Erasure: g.code}
	racks := map[string]struct{}{}
	empty := 0
	for i := range g.layout.Units() {
		one, known := m.describe(g.block.ID.Internal(i))
		if !known {
			continue
		}
		if one.Want == 0 {
			empty++
		}
		r.Want += one.Want
		r.Needed += one.Needed
		r.Live += min(one.Live, one.Want)
		r.Readable += min(one.Readable, one.Want)
		r.Away += min(one.Away, one.Want)
		r.Pending += one.Pending
		r.Corrupt += one.Corrupt
		r.Stale += one.Stale
		r.Doomed += one.Doomed
		for _, at := range one.At {
			at.Unit = i
			r.At = append(r.At, at)
			if at.Good && !at.Dead && !at.Doomed {
				racks[at.Node.Rack] = struct{}{}
			}
		}
	}
	if !g.open && r.Readable+empty < g.layout.Data {
		r.Readable = 0
	}
	r.Racks = len(racks)
	return r, true
}
