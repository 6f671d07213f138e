package blockmanager

import (
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// leaving is how far a node has come that an operator wants out of service.
type leaving struct {
	// wish is Normal, Decommissioned or InMaintenance.
	wish namenode.AdminState
	// done: nothing is lost when it stops. Only a leader finds that out.
	done bool
	// todo are the blocks that the pass under way has still to look at; nil: none is under way. whole: it is one over all blocks, not
	// only over those that kept the node before.
	todo  []metadata.BlockID
	whole bool
	// waits are the blocks that keep the node, as far as the pass has come, and open those of them that are being written. They are
	// looked at again at lookAt.
	waits, open []metadata.BlockID
	only        int
	lookAt      time.Time
	// found is what the last pass found; that of a first one grows while it goes on.
	found namenode.Leaving
}

const (
	// leavingPerTick is at how many blocks of nodes that leave a Tick looks.
	leavingPerTick = 3000
	// leavingEvery is how long the blocks that keep a node are left alone before they are looked at again.
	leavingEvery = 2 * time.Second
	// openReplicas is how many other nodes of its pipeline must stay for an open block not to keep one that is decommissioned; its
	// writer replaces the one that goes.
	openReplicas = 2
)

// stays: no operator wants it out of service.
func (n *node) stays() bool { return n.leaving.wish == namenode.Normal }

// kept: the volume cannot be read, but is going to come back as it was.
func (v *volume) kept() bool {
	return !v.failed && !v.node.forgotten && v.node.leaving.wish == namenode.InMaintenance
}

// Administer tells which nodes an operator wants out of service: wish says for each node, now and when one registers, whether that is
// Normal, Decommissioned or InMaintenance. Replicas on nodes that are to leave can be read, but no longer count towards what a block is
// to have; those in maintenance count as long as enough others are there (Config.MaintenanceReplication), also while the node
// is dead.
func (m *Manager) Administer(wish func(*namenode.Node) namenode.AdminState) {
	m.wish = wish
	for _, n := range m.order {
		m.administer(n)
	}
}

func (m *Manager) administer(n *node) {
	wish := namenode.Normal
	if m.wish != nil {
		wish = m.wish(n.info)
	}
	if wish == n.leaving.wish {
		return
	}
	n.leaving = leaving{wish: wish}
	n.candidate.Leaving = !n.stays()
	m.setAdmin(n)
	if n.alive {
		m.abortCopies(n, nil) // those to it would not count
	}
	for _, v := range n.order {
		m.turn(v)
	}
}

// setAdmin shows how far a node has come.
func (m *Manager) setAdmin(n *node) {
	state := n.leaving.wish
	switch {
	case n.leaving.done:
	case state == namenode.Decommissioned:
		state = namenode.DecommissionInProgress
	case state == namenode.InMaintenance:
		state = namenode.EnteringMaintenance
	}
	if n.info.Admin == state {
		return
	}
	info := *n.info
	info.Admin = state
	n.info, n.candidate.Node = &info, &info
}

// lookAtLeaving finds out which nodes can be let go: none of their blocks has too few replicas elsewhere.
func (m *Manager) lookAtLeaving(now time.Time) {
	budget := leavingPerTick
	for _, n := range m.order {
		l := &n.leaving
		switch {
		case n.stays() || l.done:
		case !n.alive:
			// What it had is being copied, or waits for its return.
			emptied := !slices.ContainsFunc(n.order, func(v *volume) bool { return v.turned })
			l.done = l.wish == namenode.InMaintenance || emptied && m.counts.by[under]+m.counts.by[missing]+m.counts.by[corrupt] == 0
			m.setAdmin(n)
		case !n.reported || !m.allReported() || l.todo == nil && now.Before(l.lookAt):
		default:
			budget = m.lookAtNode(now, n, budget)
		}
	}
}

func (m *Manager) lookAtNode(now time.Time, n *node, budget int) int {
	l := &n.leaving
	if l.todo == nil {
		if l.whole = len(l.waits) == 0; l.whole {
			l.todo = []metadata.BlockID{}
			for _, v := range n.order {
				l.todo = append(l.todo, v.blocks.list()...)
			}
		} else {
			l.todo = l.waits
		}
		l.waits, l.open, l.only = nil, nil, 0
	}
	step := l.todo[:min(budget, len(l.todo))]
	l.todo = l.todo[len(step):]
	m.work.Blocks += len(step)
	for _, id := range step {
		b := m.blocks.peek(id)
		if b == nil {
			continue
		}
		free, others := m.releases(n, id, b)
		if free {
			continue
		}
		l.waits = append(l.waits, id)
		if b.open {
			l.open = append(l.open, id)
		}
		if others == 0 {
			l.only++
		}
	}
	if len(l.todo) > 0 && l.found.Looked {
		return budget - len(step)
	}
	l.found = namenode.Leaving{Blocks: len(l.waits), Only: l.only, Open: len(l.open), Looked: len(l.todo) == 0 || l.found.Looked}
	if len(l.todo) > 0 {
		return budget - len(step)
	}
	l.todo = nil
	switch {
	case len(l.waits) > 0:
		l.lookAt = now.Add(leavingEvery)
	case l.whole:
		l.done = true
		m.setAdmin(n)
	}
	return budget - len(step)
}

// releases reports whether a block does not need its replica on a node that is to leave, and how many others there are that stay.
func (m *Manager) releases(n *node, id metadata.BlockID, b *block) (free bool, others int) {
	want := int(b.want)
	if b.open {
		holds := false
		for _, h := range m.holders(b) {
			holds = holds || h == n
			if h != n && h.alive && h.stays() {
				others++
			}
		}
		least := openReplicas
		if n.leaving.wish == namenode.InMaintenance {
			least = m.config.MaintenanceReplication
		}
		return !holds || others >= min(want, least), others
	}
	if len(b.good) > 0 && !slices.ContainsFunc(b.good, func(p place) bool { return m.volumes[p].node == n }) {
		return true, 0 // what it has is not what is wanted
	}
	others = m.live(id, b)
	if n.leaving.wish == namenode.InMaintenance {
		return others >= min(want, m.config.MaintenanceReplication), others
	}
	return others >= min(want, m.config.DefaultReplication), others
}

// Keeping lists the open blocks that keep nodes from being let go, as of the last look.
func (m *Manager) Keeping() []namenode.OpenBlock {
	var out []namenode.OpenBlock
	for _, n := range m.order {
		if !n.leaving.done {
			for _, id := range n.leaving.open {
				out = append(out, namenode.OpenBlock{Block: id, Node: n.info.ID})
			}
		}
	}
	return out
}
