package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// doubt is what is known of a block since somebody said, or a datanode found, that one of its replicas is damaged.
//
//	a reader's word ──▶ suspect ──its datanode verifies──▶ intact
//	                                      │                  ▲
//	the datanode's own verdict ───────────┴──▶ damaged ──────┘ verified, or replaced by a copy
//
// A suspect counts as good, but readers are sent there last and copies are made of others. While there are suspects or
// damaged replicas, only those count as sure that were verified, or received as a copy, after the last of these marks:
// nothing of the block is deleted that the sure ones do not make superfluous.
type doubt struct {
	suspects []mark
	damaged  []mark // odd.corrupt
	intact   []mark
}

// mark is when something became known of a replica.
type mark struct {
	at   place
	when time.Time
	// by is the user whose word it is.
	by string
	// incarnation is that of the datanode whose verdict it is. Another one has forgotten it, and is asked again.
	incarnation uint64
}

// Limits of suspicion.
const (
	// suspectsPerUser is how many replicas may be suspect at a time on one user's word, and suspectsInAll on all users'.
	suspectsPerUser = 256
	suspectsInAll   = 4096
	// trusted is how long a replica that was verified is not suspected again. A doubt is remembered as long.
	trusted = 10 * time.Minute
	// doubtsPerTick is how many blocks in doubt a Tick looks at.
	doubtsPerTick = 500
	// verifyWindow is how many replicas a datanode is asked to verify at a time, and verifyAgain how long an order may go
	// without an answer before it is repeated: verification has a budget there.
	verifyWindow = 64
	verifyAgain  = time.Minute
)

func find(list []mark, p place) int {
	return slices.IndexFunc(list, func(k mark) bool { return k.at == p })
}

// latest is when the last suspicion or verdict came; zero: there is none that stands.
func (d *doubt) latest() (at time.Time) {
	for _, list := range [][]mark{d.suspects, d.damaged} {
		for _, k := range list {
			if k.when.After(at) {
				at = k.when
			}
		}
	}
	return at
}

func (d *doubt) stands() bool { return len(d.suspects)+len(d.damaged) > 0 }

func (b *block) inDoubt() *doubt {
	if b.more == nil {
		return nil
	}
	return b.more.doubt
}

// suspect reports whether a replica is suspect.
func (b *block) suspect(p place) bool {
	d := b.inDoubt()
	return d != nil && find(d.suspects, p) >= 0
}

// doubtOf makes a block one that is in doubt.
func (m *Manager) doubtOf(id metadata.BlockID, b *block) *doubt {
	e := b.extra()
	if e.doubt == nil {
		e.doubt = &doubt{}
	}
	m.doubtful.push(id)
	return e.doubt
}

// unmark forgets what was said of a replica that is not there any more, or is another one by now.
func (m *Manager) unmark(b *block, p place) {
	if d := b.inDoubt(); d != nil {
		m.acquit(d, p)
		for _, list := range []*[]mark{&d.damaged, &d.intact} {
			*list = slices.DeleteFunc(*list, func(k mark) bool { return k.at == p })
		}
	}
}

// acquit takes a replica off the suspects, and off the account of the user who said so.
func (m *Manager) acquit(d *doubt, p place) {
	d.suspects = slices.DeleteFunc(d.suspects, func(k mark) bool {
		if k.at != p {
			return false
		}
		m.suspected--
		if m.words[k.by]--; m.words[k.by] <= 0 {
			delete(m.words, k.by)
		}
		return true
	})
}

// settle forgets all that was said of a block's replicas.
func (m *Manager) settle(b *block) {
	d := b.inDoubt()
	if d == nil {
		return
	}
	for len(d.suspects) > 0 {
		m.acquit(d, d.suspects[0].at)
	}
	b.more.doubt = nil
	b.trim()
}

// Heard is what became of a reader's word.
type Heard uint8

const (
	// Suspected: the datanode is asked to verify its replica.
	Suspected Heard = iota + 1
	// Known: there is no such replica, or it is suspect or damaged already, or was verified a short time ago.
	Known
	// TooMany: the user has said that of too many replicas, or all users together have.
	TooMany
)

// Suspect takes the word of a user (reportBadBlocks) that a node's replica is damaged: it becomes suspect, and the node has
// to verify it. A generation of 0 means whichever is there.
func (m *Manager) Suspect(now time.Time, id namenode.NodeID, blk metadata.Block, user string) Heard {
	n, b := m.nodes[id], m.blocks.get(blk.ID)
	if n == nil || b == nil {
		return Known
	}
	at := place(-1)
	for _, p := range b.good {
		if m.volumes[p].node == n && (blk.Generation == 0 || blk.Generation == b.generation) {
			at = p
		}
	}
	if i := m.indexOnNode(b.odds(), n); i >= 0 {
		if o := b.more.odd[i]; !o.corrupt && (blk.Generation == 0 || blk.Generation == o.generation) {
			at = o.at
		}
	}
	if at < 0 || b.suspect(at) {
		return Known
	}
	if d := b.inDoubt(); d != nil {
		if i := find(d.intact, at); i >= 0 && now.Sub(d.intact[i].when) < trusted {
			return Known
		}
	}
	if m.words[user] >= suspectsPerUser || m.suspected >= suspectsInAll {
		return TooMany
	}
	d := m.doubtOf(blk.ID, b)
	d.intact = slices.DeleteFunc(d.intact, func(k mark) bool { return k.at == at })
	d.suspects = append(d.suspects, mark{at: at, when: now, by: user})
	m.words[user]++
	m.suspected++
	m.ask(now, blk.ID, b)
	m.update(blk.ID, b)
	return Suspected
}

// damaged takes a datanode's own verdict that its replica is damaged.
func (m *Manager) damaged(now time.Time, n *node, on namenode.VolumeID, blk metadata.Block) {
	b := m.blocks.get(blk.ID)
	if b == nil || !m.liesOn(n, on, b) {
		return
	}
	delete(n.verify, blk.ID)
	i := slices.IndexFunc(b.good, func(p place) bool { return m.volumes[p].node == n })
	switch {
	case i >= 0 && (blk.Generation == 0 || blk.Generation == b.generation):
		p := b.good[i]
		b.good = slices.Delete(b.good, i, i+1)
		e := b.extra()
		e.odd = append(e.odd, odd{at: p, state: namenode.Finalized, generation: b.generation, length: b.length})
	case i >= 0:
		return
	}
	i = m.indexOnNode(b.odds(), n)
	if i < 0 {
		return
	}
	o := &b.more.odd[i]
	if blk.Generation != 0 && blk.Generation != o.generation {
		return
	}
	o.corrupt = true
	m.unmark(b, o.at)
	if !b.open { // its pipeline is not to be waited for there
		b.more.expect = slices.DeleteFunc(b.more.expect, func(p place) bool { return m.volumes[p].node == n })
	}
	d := m.doubtOf(blk.ID, b)
	d.damaged = append(d.damaged, mark{at: o.at, when: now, incarnation: n.incarnation})
	m.update(blk.ID, b)
}

// liesOn reports whether a node's replica of a block is on a volume, or nobody says on which. A verdict on one that was on another volume, perhaps of the same generation, says nothing of the one that is there now.
func (m *Manager) liesOn(n *node, on namenode.VolumeID, b *block) bool {
	is := func(p place) bool { return m.volumes[p].node == n && m.volumes[p].id == on }
	return on == "" || slices.ContainsFunc(b.good, is) || slices.ContainsFunc(b.odds(), func(o odd) bool { return is(o.at) })
}

// verified takes a datanode's word that it has read its replica as a whole and found it intact.
func (m *Manager) verified(now time.Time, n *node, on namenode.VolumeID, blk metadata.Block) {
	b := m.blocks.get(blk.ID)
	if b == nil || !m.liesOn(n, on, b) {
		return
	}
	delete(n.verify, blk.ID)
	at := place(-1)
	for _, p := range b.good {
		if m.volumes[p].node == n && blk.Generation == b.generation {
			at = p
		}
	}
	if i := m.indexOnNode(b.odds(), n); i >= 0 && b.more.odd[i].generation == blk.Generation {
		b.more.odd[i].corrupt = false
		at = b.more.odd[i].at
	}
	if at < 0 {
		return
	}
	m.unmark(b, at)
	if d := b.inDoubt(); d != nil {
		d.intact = append(d.intact, mark{at: at, when: now})
	}
	m.judge(blk.ID, b)
	if i := m.indexOnNode(b.odds(), n); i >= 0 {
		m.occupied(b, n, b.more.odd[i])
	}
	m.update(blk.ID, b)
}

// sure counts the replicas that can be relied on when others are to be deleted: the live ones on nodes that have reported and stay,
// and in doubt only those that were verified since.
func (m *Manager) sure(id metadata.BlockID, b *block) int {
	d := b.inDoubt()
	n := 0
	for _, p := range b.good {
		v := m.volumes[p]
		if v.usable() && v.node.stays() && v.node.reported && !v.node.dooms(id) && (d == nil || !d.stands() || d.sure(p)) {
			n++
		}
	}
	return n
}

// sure reports whether a replica was verified since the last mark.
func (d *doubt) sure(p place) bool {
	i := find(d.intact, p)
	return i >= 0 && find(d.suspects, p) < 0 && !d.intact[i].when.Before(d.latest())
}

// ask has the datanodes verify the replicas of a block in doubt about which nothing is known since.
func (m *Manager) ask(now time.Time, id metadata.BlockID, b *block) {
	if !m.leading {
		return
	}
	each := func(p place) {
		n := m.volumes[p].node
		if !m.volumes[p].usable() || len(n.verify) >= verifyWindow || n.dooms(id) {
			return
		}
		if _, ok := n.verify[id]; ok {
			return
		}
		if n.verify == nil {
			n.verify = map[metadata.BlockID]time.Time{}
		}
		n.verify[id] = time.Time{}
		n.dirty = true
	}
	d := b.inDoubt()
	for _, k := range d.suspects {
		each(k.at)
	}
	for _, k := range d.damaged {
		if m.volumes[k.at].node.incarnation != k.incarnation {
			each(k.at)
		}
	}
	if d.stands() {
		for _, p := range b.good {
			if !d.sure(p) {
				each(p)
			}
		}
	}
}

// lookAtDoubts asks for verifications, and forgets doubts that are over.
func (m *Manager) lookAtDoubts(now time.Time) {
	for range min(m.doubtful.len(), doubtsPerTick) {
		id, _ := m.doubtful.pop()
		b := m.blocks.get(id)
		if b == nil || b.inDoubt() == nil {
			continue
		}
		d := b.more.doubt
		if !d.stands() && !slices.ContainsFunc(d.intact, func(k mark) bool { return now.Sub(k.when) < trusted }) {
			m.settle(b)
			continue
		}
		m.doubtful.push(id)
		m.ask(now, id, b)
	}
}

// verifications takes the orders to verify that are due from a node's list.
func (m *Manager) verifications(now time.Time, n *node) []metadata.Block {
	var out []metadata.Block
	if len(n.verify) == 0 {
		return nil
	}
	for _, id := range sortedKeys(n.verify) {
		b := m.blocks.get(id)
		if b == nil || b.inDoubt() == nil {
			delete(n.verify, id)
			continue
		}
		if sent := n.verify[id]; sent.IsZero() || now.Sub(sent) >= verifyAgain {
			n.verify[id] = now
			out = append(out, metadata.Block{ID: id, Generation: b.generation, Length: b.length})
		}
	}
	return out
}

// inPlace are the nodes whose damaged replica a copy may replace: there is nowhere else for it, and the source is sure.
func (m *Manager) inPlace(id metadata.BlockID, b *block) []place {
	var out []place
	if m.sure(id, b) < m.config.MinReplication {
		return nil
	}
	for _, o := range b.odds() {
		n := m.volumes[o.at].node
		if o.corrupt && m.volumes[o.at].usable() && !n.stale && !n.dooms(id) && n.incoming < m.config.Streams && !m.refuses(id, n) {
			out = append(out, o.at)
		}
	}
	return out
}
