package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/placement"
)

// transfer is a copy ordered from source to target. Several of a block are orders of their own: none waits for another one's target.
type transfer struct {
	block  metadata.Block
	source *node
	target place // nowhere: it is over
	begun  time.Time
	sent   time.Time
	// percent is how much the source says that it has done, at most so far, and moved when it last said more; begun, if it has said nothing.
	percent int
	moved   time.Time
	// computed: the block is an internal one that source computes from others of its group.
	computed bool
	// moves is the balancing that it is for, tier: it is to bring a replica to a volume of the type that its storage policy wants; neither: it mends.
	moves *balancing
	tier  bool
	// within: the target is another volume of the source, where the replica lies afterwards in place of the one that it is on.
	within bool
}

// nowhere is no volume.
const nowhere = place(-1)

func (t *transfer) over() bool { return t.target == nowhere }

// grace is the end of the time that a just closed block's pipeline has to report.
type grace struct {
	id    metadata.BlockID
	until time.Time
}

// doom is a deletion ordered from a node.
type doom struct {
	block metadata.Block
	sent  time.Time
	why   reason
}

// reason is why a replica is deleted.
type reason uint8

const (
	orphaned   reason = iota // its block is gone
	surplus                  // a good one too many
	useless                  // an odd one, and there are good ones
	broken                   // a damaged one, and there are enough good ones that were verified since
	unfinished               // an orphan that was being written
)

// dooms reports whether the node is to delete its replica of a block.
func (n *node) dooms(id metadata.BlockID) bool {
	if len(n.doomed) == 0 {
		return false
	}
	_, ok := n.doomed[id]
	return ok
}

// Events is what Tick noticed and the server has to act on.
type Events struct {
	// Died are the nodes declared dead by this Tick.
	Died []namenode.NodeID
	// Overdue are blocks whose recovery did not come to an end in time; it needs a new recovery id.
	Overdue []metadata.BlockID
}

// Work is what the last Tick did.
type Work struct {
	// Blocks looked at, and candidates for copies.
	Blocks, Looked int
}

// Work tells what the last Tick did.
func (m *Manager) Work() Work { return m.work }

// Tick lets time pass: nodes become stale or dead, copies and recoveries overdue, and, while leading, new work is
// found. Call it several times per second; its work is bounded per call.
func (m *Manager) Tick(now time.Time) Events {
	var ev Events
	m.work = Work{}
	m.awake, m.now = 0, now
	rack, racks := "", false
	m.blocks.sweep()
	for _, n := range m.order {
		if !n.alive {
			continue
		}
		m.giveUp(now, n)
		if len(n.absent) > 0 {
			m.forgetAbsent(now, n)
		}
		silent := now.Sub(n.lastBeat)
		n.stale = silent >= m.config.StaleAfter
		n.candidate.Stale = n.stale
		if silent >= m.config.DeadAfter {
			m.bury(n)
			ev.Died = append(ev.Died, n.info.ID)
		}
		if !n.stale && n.stays() {
			m.awake++
		}
		if n.alive && n.stays() {
			if rack == "" {
				rack = n.info.Rack
			}
			racks = racks || rack != n.info.Rack
		}
	}
	if racks && !m.racks { // blocks on one rack were as well placed as could be until now
		for _, v := range m.volumes {
			m.turn(v)
		}
	}
	m.racks = racks
	if len(ev.Died) > 0 && len(m.forgotten) > 0 {
		m.dropForgotten()
	}
	m.turnBlocks()
	m.endGraces(now)
	m.lookAtDoubts(now)
	if !m.leading {
		m.sweep()
		return ev
	}
	m.endCopies(now)
	m.endRefusals(now)
	ev.Overdue = m.overdue(now)
	if m.paused {
		return ev
	}
	m.copyBlocks(now)
	if m.listing {
		return ev
	}
	m.balanceBlocks(now)
	m.tierBlocks(now)
	m.cacheBlocks(now)
	m.lookAtLeaving(now)
	if m.allReported() {
		m.doomStrays()
		m.tidyBlocks()
	}
	return ev
}

// endGraces stops waiting for pipelines that did not report.
func (m *Manager) endGraces(now time.Time) {
	for len(m.graces) > 0 && !now.Before(m.graces[0].until) {
		id := m.graces[0].id
		m.graces = m.graces[1:]
		b := m.blocks.get(id)
		if b == nil || b.more == nil || b.more.until.IsZero() || now.Before(b.more.until) {
			continue
		}
		b.more.expect, b.more.until = nil, time.Time{}
		b.trim()
		m.update(id, b)
	}
}

// sweepPerTick is how many queued ids a follower looks at per Tick, besides a tenth of the queue.
const sweepPerTick = 2000

// sweep drops from a follower's queues what no longer belongs there.
func (m *Manager) sweep() {
	for p := range m.needs {
		m.sweepQueue(&m.needs[p], func(b *block) bool { return b.priority == int8(p) })
	}
	m.sweepQueue(&m.tidy, func(b *block) bool { return untidy(b, len(b.good)) })
}

func (m *Manager) sweepQueue(q *queue, belongs func(*block) bool) {
	for range min(q.len(), sweepPerTick+q.len()/10) {
		id, _ := q.pop()
		if b := m.blocks.peek(id); b != nil && belongs(b) {
			q.push(id)
		}
	}
}

// allReported is the first gate of deletions.
func (m *Manager) allReported() bool { return m.unreported == 0 }

// Reported reports whether every datanode that lives has reported in full, or is not waited for.
func (m *Manager) Reported() bool { return m.allReported() }

const (
	// copiesPerTick is for how many blocks a Tick looks for a copy's source and target.
	copiesPerTick = 1000
	// popsPerTick is at how many queued blocks it looks; some have been helped since, or stand in another queue by now.
	popsPerTick = 5000
	// looksPerTick is how many candidates it looks at for that; they are all looked at when few have room.
	looksPerTick = 40_000
)

// copyBlocks orders copies of under-replicated blocks, the most endangered first, as far as nodes have streams to give.
func (m *Manager) copyBlocks(now time.Time) {
	free := 0
	for _, n := range m.order {
		if n.alive && !n.stale {
			free += max(0, m.config.Streams-n.outgoing)
		}
	}
	survey := placement.Look(m.candidates)
	copies, pops := copiesPerTick, popsPerTick
	for p := range m.needs {
		q := &m.needs[p]
		// Blocks that cannot be helped now (no target, no idle source) go to the end, and the next call goes on with the
		// others. However many they are, half of what a Tick may look at is left for the queues behind.
		share := 2
		if p == len(m.needs)-1 {
			share = 1
		}
		popsKept, copiesKept, looks := pops-pops/share, copies-copies/share, m.work.Looked+(looksPerTick-m.work.Looked)/share
		for range q.len() {
			if free <= 0 {
				return
			}
			if pops <= popsKept || copies <= copiesKept || m.work.Looked >= looks {
				break
			}
			pops--
			m.work.Blocks++
			id, _ := q.pop()
			b := m.blocks.get(id)
			if b != nil && b.priority == crowded { // the racks may be others by now
				m.update(id, b)
			}
			if b == nil || b.priority != int8(p) {
				continue
			}
			copies--
			free -= m.copyBlock(now, id, b, &survey)
			if b.priority == int8(p) {
				q.push(id)
			}
		}
	}
}

// copyBlock orders what a block lacks, as far as its sources have streams, and returns how many that takes.
func (m *Manager) copyBlock(now time.Time, id metadata.BlockID, b *block, survey *placement.Survey) int {
	r := m.replicas(id, b)
	missing := m.needed(b, r.away) - r.live - m.pending(b)
	crowd := b.priority == crowded
	if crowd {
		missing = 1
	}
	streams := m.config.Streams
	if r.readable >= int(b.want) {
		streams = max(1, streams/2)
	}
	if missing > 0 && m.computable(id, b) {
		return m.rebuild(now, id, b, survey)
	}
	source := m.source(id, b, streams)
	if source == nil || missing <= 0 {
		return 0
	}
	req := placement.Request{
		Want: missing, BlockSize: b.length, Copy: true, NewRack: crowd, Policy: namenode.StoragePolicyByID(b.policy), Survey: survey, Seed: m.random(),
		Have: m.siblings(id), Spread: id.Striped(), Exclude: m.refused[id],
	}
	for _, p := range b.good {
		v := m.volumes[p]
		req.Have = append(req.Have, v.node.info)
		if v.usable() && v.node.stays() && !v.node.dooms(id) && !crowd {
			req.HaveTypes = append(req.HaveTypes, v.kind)
		}
	}
	for _, o := range b.odds() {
		req.Have = append(req.Have, m.volumes[o.at].node.info)
	}
	if b.more != nil {
		for _, t := range b.more.copies {
			if t.within || t.over() {
				continue
			}
			req.Have = append(req.Have, m.volumes[t.target].node.info)
			req.HaveTypes = append(req.HaveTypes, m.volumes[t.target].kind)
		}
	}
	choice := placement.Choose(m.candidates, req)
	m.work.Looked += choice.Looked
	if len(choice.Targets) == 0 && !crowd {
		for _, p := range m.inPlace(id, b) {
			if len(choice.Targets) < missing {
				choice.Targets = append(choice.Targets, m.volumes[p].location())
			}
		}
	}
	ordered := 0
	for _, l := range choice.Targets {
		if source = m.source(id, b, streams); source == nil {
			break
		}
		m.begin(now, id, b, source, m.volume(m.nodes[l.Node.ID], l.Volume).place)
		ordered++
	}
	m.update(id, b)
	return ordered
}

// source is the least busy node that can give the block away, among equals one that is leaving, because nobody writes to it; one with the replica on a
// slow volume only if there is no other, and a suspect one after these. One that gives away as many as streams already is none. Where only slow ones have a stream left another one is
// waited for, as long as a copy may stand still, unless the block is one of those that are mended first: what a slow volume has begun to send stands still, too.
func (m *Manager) source(id metadata.BlockID, b *block, streams int) *node {
	var best *volume
	worst, busy := 0, false // busy: one on a quick volume has no stream left
	for _, p := range b.good {
		v := m.volumes[p]
		n := v.node
		if !v.usable() || n.stale || n.dooms(id) {
			continue
		}
		bad := 0
		if v.slow {
			bad++
		}
		if b.suspect(p) {
			bad += 2
		}
		if n.outgoing >= streams {
			busy = busy || bad == 0
			continue
		}
		better := best != nil && (n.outgoing < best.node.outgoing || n.outgoing == best.node.outgoing && !n.stays() && best.node.stays())
		if best == nil || bad < worst || bad == worst && better {
			best, worst = v, bad
		}
	}
	if best == nil || best.slow && busy && b.priority > 1 && m.now.Sub(best.slowSince) < m.config.CopyTimeout {
		return nil
	}
	return best.node
}

// arrived ends the copies of a block to a node. What came as a copy was verified on its way.
func (m *Manager) arrived(_ metadata.BlockID, b *block, n *node) {
	if b.more == nil {
		return
	}
	for _, t := range b.more.copies {
		if !m.to(t, n) || t.within && !m.landed(b, n, t.target) { // it is where it was
			continue
		}
		m.end(t, !t.tier || m.landed(b, n, t.target)) // perhaps on a volume of another type than was asked for
		if b.more.doubt != nil {
			for _, p := range b.good { // perhaps on another volume than was asked for
				if m.volumes[p].node == n && find(b.more.doubt.intact, p) < 0 {
					b.more.doubt.intact = append(b.more.doubt.intact, mark{at: p, when: t.begun})
				}
			}
		}
	}
	m.cleanCopies(b)
}

// occupied ends the copies of a block to a node that turns out to have another replica of it: one that restarted in the middle of a
// write was chosen before it said what it has kept. It refuses every copy until that replica is deleted, which waits until no copy is pending. A
// damaged one makes way.
func (m *Manager) occupied(b *block, n *node, o odd) {
	if b.more == nil || o.corrupt {
		return
	}
	for _, t := range b.more.copies {
		if m.to(t, n) {
			m.end(t, false)
		}
	}
	m.cleanCopies(b)
}

// to reports whether a copy is under way to a node.
func (m *Manager) to(t *transfer, n *node) bool { return !t.over() && m.volumes[t.target].node == n }

// end counts a copy as over, which is under way. What it was for is told whether its target has the replica.
func (m *Manager) end(t *transfer, arrived bool) {
	n := m.volumes[t.target].node
	m.moveEnded(t, n, arrived)
	m.incoming(n, -1)
	t.target = nowhere
}

// cleanCopies forgets the copies of a block that are over.
func (m *Manager) cleanCopies(b *block) {
	b.more.copies = slices.DeleteFunc(b.more.copies, func(t *transfer) bool {
		if !t.over() {
			return false
		}
		t.source.outgoing = max(0, t.source.outgoing-1)
		return true
	})
	b.trim()
}

func (m *Manager) dropCopies(b *block) {
	if b.more == nil {
		return
	}
	for _, t := range b.more.copies {
		m.release(t)
	}
	m.cleanCopies(b)
}

// release gives a copy up.
func (m *Manager) release(t *transfer) {
	if !t.over() {
		m.end(t, false)
	}
}

// incoming counts the copies to a node.
func (m *Manager) incoming(n *node, d int) {
	n.incoming = max(0, n.incoming+d)
	n.candidate.Full = n.incoming >= m.config.Streams
}

// compact drops the copies that are done from a list that has become longer than limit.
func compact(list []*transfer, limit int) []*transfer {
	if len(list) < limit {
		return list
	}
	return slices.DeleteFunc(list, (*transfer).over)
}

// abortCopies ends the copies from and to a node, or those from and to one of its volumes.
func (m *Manager) abortCopies(n *node, v *volume) {
	touched := slices.Concat(n.outs, n.ins)
	if v == nil {
		n.outs, n.ins = nil, nil
	}
	for _, t := range touched {
		if t.over() {
			continue
		}
		b := m.blocks.get(t.block.ID)
		from := t.source == n && (v == nil || !t.computed && b != nil && slices.Contains(b.good, v.place))
		if !from && (v == nil && !m.to(t, n) || v != nil && t.target != v.place) {
			continue
		}
		m.release(t)
		if b != nil && b.more != nil {
			m.cleanCopies(b)
			m.update(t.block.ID, b)
		}
	}
}

// doomStrays orders the deletion of orphans.
func (m *Manager) doomStrays() {
	for range min(m.stray.len(), tidyPerTick) {
		m.work.Blocks++
		id, _ := m.stray.pop()
		if !m.given(id) {
			continue
		}
		for _, o := range m.orphans[id] {
			why := orphaned
			if o.state != namenode.Finalized {
				why = unfinished
			}
			m.doom(m.volumes[o.at].node, metadata.Block{ID: id, Generation: o.generation, Length: o.length}, why)
		}
	}
}

func (m *Manager) doom(n *node, b metadata.Block, why reason) {
	if !n.alive {
		return
	}
	if n.doomed == nil {
		n.doomed = map[metadata.BlockID]*doom{}
	}
	if _, ok := n.doomed[b.ID]; !ok {
		n.doomed[b.ID] = &doom{block: b, why: why}
		n.doomNew.push(b.ID)
		n.dirty = true
	}
}

// pardon takes back (or ends) a deletion.
func (m *Manager) pardon(n *node, id metadata.BlockID) { delete(n.doomed, id) }

// tidyPerTick bounds the blocks looked at for surplus and odd replicas per Tick.
const tidyPerTick = 2000

func (m *Manager) tidyBlocks() {
	for range min(m.tidy.len(), tidyPerTick) {
		m.work.Blocks++
		id, _ := m.tidy.pop()
		if b := m.blocks.get(id); b != nil && untidy(b, m.live(id, b)) && m.tidyBlock(id, b) {
			m.tidy.push(id) // not done yet
		}
	}
}

// tidyBlock orders the deletion of what a block does not need. True: there is more to do, later.
func (m *Manager) tidyBlock(id metadata.BlockID, b *block) bool {
	sure := m.sure(id, b)
	want := int(b.want)
	again := false
	if odds := b.odds(); len(odds) > 0 {
		// Odd replicas go when they are not needed any more, or when they occupy the only nodes left for good ones. Those
		// of the pipeline may still turn good. Damaged ones wait until enough others are sure; where those have no room, a
		// copy takes their place.
		enough := sure >= want || (sure >= m.config.MinReplication && m.pending(b) == 0 && !m.room(b))
		for _, o := range odds {
			n := m.volumes[o.at].node
			why := useless
			if o.corrupt {
				why = broken
			}
			switch {
			case !n.alive || n.dooms(id):
			case why == broken && sure >= want, why == useless && enough && !m.awaited(b, n):
				m.doom(n, metadata.Block{ID: id, Generation: o.generation, Length: o.length}, why)
			default:
				again = true
			}
		}
	}
	for range sure - want {
		victim := m.victim(id, b)
		if !m.freshHolders(b) || victim == nil {
			return true
		}
		m.doom(victim, metadata.Block{ID: id, Generation: b.generation, Length: b.length}, surplus)
	}
	m.update(id, b)
	return again || m.live(id, b) > want
}

// awaited reports whether a node was part of the pipeline of a block that was closed just now, and may yet report it.
func (m *Manager) awaited(b *block, n *node) bool {
	return b.more != nil && !b.more.until.IsZero() && slices.ContainsFunc(b.more.expect, func(p place) bool { return m.volumes[p].node == n })
}

// room reports whether a live node without any replica of the block exists.
func (m *Manager) room(b *block) bool {
	holders := 0
	count := func(p place) {
		if n := m.volumes[p].node; n.alive && !n.stale && n.stays() {
			holders++
		}
	}
	for _, p := range b.good {
		count(p)
	}
	for _, o := range b.odds() { // a node has one replica
		count(o.at)
	}
	return m.awake > holders
}

// freshHolders is the second gate: have all nodes that hold the block reported since this term began? Those that have
// not are asked to.
func (m *Manager) freshHolders(b *block) bool {
	all := true
	for _, p := range b.good {
		n := m.volumes[p].node
		if !n.alive || n.fresh {
			continue
		}
		all = false
		if !n.asked {
			n.asked, n.renewed, n.askedAt, n.dirty = true, false, time.Time{}, true
		}
	}
	return all
}

// victim is the holder that loses its surplus replica: one whose rack keeps another replica, then one whose volume is of a type that the storage policy
// does not ask for, then one on a slow volume, then the fullest. nil: none can go now.
func (m *Manager) victim(id metadata.BlockID, b *block) *node {
	racks := map[string]int{}
	var types []namenode.StorageType
	for _, p := range b.good {
		if v := m.volumes[p]; v.usable() && v.node.stays() && !v.node.dooms(id) {
			racks[v.node.info.Rack]++
			types = append(types, v.kind)
		}
	}
	over := placement.Excess(namenode.StoragePolicyByID(b.policy), int(b.want), types)
	var best *volume
	only := func(n *node) bool { return b.want > 1 && len(racks) == 2 && racks[n.info.Rack] == 1 }
	yields := namenode.NodeID("")
	if b.more != nil {
		if n := m.nodes[b.more.yields]; n != nil && !only(n) { // else what was to take its place has not come, and this is another one too many
			yields = n.info.ID
		}
	}
	better := func(a, b *volume) bool {
		if a.node.info.ID == yields || b.node.info.ID == yields { // what the balancer has copied for
			return a.node.info.ID == yields
		}
		if ra, rb := racks[a.node.info.Rack] > 1, racks[b.node.info.Rack] > 1; ra != rb {
			return ra
		}
		if ta, tb := slices.Contains(over, a.kind), slices.Contains(over, b.kind); ta != tb {
			return ta
		}
		if a.slow != b.slow {
			return a.slow
		}
		return a.node.free() < b.node.free()
	}
	for _, p := range b.good {
		v := m.volumes[p]
		if !v.usable() || !v.node.stays() || v.node.dooms(id) || v.node.stale {
			continue
		}
		if best == nil || better(v, best) {
			best = v
		}
	}
	if best == nil || only(best.node) { // those of the other rack are silent: they come back, or die
		return nil
	}
	return best.node
}

// free is the share of the node's capacity that is free.
func (n *node) free() float64 {
	var capacity, remaining int64
	for _, v := range n.candidate.Volumes {
		capacity += v.Capacity
		remaining += v.Remaining
	}
	return float64(remaining) / float64(max(capacity, 1))
}
