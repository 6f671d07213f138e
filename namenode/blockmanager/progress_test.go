package blockmanager

import (
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// mendOne is a manager that has ordered one copy, because a replica is missing.
func mendOne(*testing.T) (*Manager, time.Time, *transfer) {
	s := newScales("/r", "/r", "/r")
	s.m.Put(s.now, Block{Block: scaleReplica(1), Replication: 2})
	s.has["n0"][1] = true
	s.report()
	s.m.Tick(s.now)
	return s.m, s.now, s.m.copies[0]
}

// balanceOne is one that has ordered a copy for the balancer.
func balanceOne(*testing.T) (*Manager, time.Time, *transfer) {
	s := newScales("/r", "/r")
	for b := metadata.BlockID(1); b <= 3; b++ {
		s.m.Put(s.now, Block{Block: scaleReplica(b), Replication: 1})
		s.has["n0"][b] = true
	}
	s.report()
	s.m.SetBalance(&Balance{Threshold: 1})
	s.m.Tick(s.now)
	s.m.SetBalance(nil) // what is under way is carried out
	return s.m, s.now, s.m.copies[0]
}

// rebuildOne is one that has ordered the computing of an internal block.
func rebuildOne(t *testing.T) (*Manager, time.Time, *transfer) {
	a := newArray(t, "RS-3-2-1024k", 6, 1)
	g := a.group(1, 7*mib)
	a.write(g, 0)
	a.run(15 * time.Second)
	lost := a.unit(g, 1)
	a.m.Changes(a.now, a.nodes[1], []namenode.Change{{Kind: namenode.Deleted, Block: lost}})
	a.m.Tick(a.now)
	return a.m, a.now, a.m.copies[0]
}

// A copy, or a computing, goes on as long as it gets on by a percent in its time, and no longer: not when its source is silent, dies, hangs, begins
// again and again, or says what cannot be.
func TestACopyIsGivenUpWhenItDoesNotGetOn(t *testing.T) {
	t.Parallel()
	const never = 9900
	for kind, begin := range map[string]func(*testing.T) (*Manager, time.Time, *transfer){"mends": mendOne, "balances": balanceOne, "computes": rebuildOne} {
		m, _, first := begin(t)
		patience := int(m.config.CopyTimeout / time.Second)
		if first.computed {
			patience *= rebuildTimes
		}
		dead := int(m.config.DeadAfter / time.Second)
		for name, c := range map[string]struct {
			// said is what the source says of it in a second: its percent, negative: that it waits; not told: nothing.
			said func(second int) (percent int, told bool)
			// dies is when it is not heard of any more.
			dies  int
			other func(*Progress)
			want  int
		}{
			"slow":              {said: func(s int) (int, bool) { return s / 100, true }, want: never},
			"silent":            {said: func(int) (int, bool) { return 0, false }, want: patience},
			"hangs at once":     {said: func(int) (int, bool) { return 0, true }, want: patience},
			"hangs":             {said: func(s int) (int, bool) { return min(s, 40), true }, want: 40 + patience},
			"fails":             {said: func(s int) (int, bool) { return s, s <= 40 }, want: 40 + patience},
			"begins again":      {said: func(s int) (int, bool) { return s % 50, true }, want: 49 + patience},
			"no end":            {said: func(s int) (int, bool) { return s, true }, want: 100 + patience},
			"waits for nothing": {said: func(int) (int, bool) { return -1, true }, want: patience},
			"dies":              {said: func(s int) (int, bool) { return s, true }, dies: 20, want: 20 + dead - 1},
			"another block":     {said: func(s int) (int, bool) { return s / 100, true }, other: func(p *Progress) { p.ID++ }, want: patience},
			"another target":    {said: func(s int) (int, bool) { return s / 100, true }, other: func(p *Progress) { p.Target = "elsewhere" }, want: patience},
			"another time":      {said: func(s int) (int, bool) { return s / 100, true }, other: func(p *Progress) { p.Generation-- }, want: patience},
		} {
			m, now, x := begin(t)
			source, got := x.source.info.ID, never
			for s := 1; s < never; s++ {
				now = now.Add(time.Second)
				for _, n := range m.order {
					if n.info.ID != source || c.dies == 0 || s < c.dies {
						m.Beat(now, n.info.ID, n.candidate.Volumes, 0)
					}
				}
				if percent, told := c.said(s); told && (c.dies == 0 || s < c.dies) {
					p := Progress{ID: x.block.ID, Generation: x.block.Generation, Percent: max(percent, 0), Waits: percent < 0}
					copies, rebuilds := []Progress{{ID: 1 << 40, Percent: s}}, []Progress(nil)
					if x.computed {
						p.ID = p.ID.Group()
					}
					if c.other != nil {
						c.other(&p)
					}
					if x.computed {
						rebuilds = append(rebuilds, p)
					} else {
						copies = append(copies, p)
					}
					m.BeatProgress(now, source, copies, rebuilds)
				}
				m.Tick(now)
				if m.check(t); x.over() {
					got = s
					break
				}
			}
			if got != c.want {
				t.Errorf("%s, %s: it is given up after %d s, want %d", kind, name, got, c.want)
			}
		}
	}
}

// What a source has not begun waits as long as what it was told before gets on, and no longer.
func TestACopyThatWaitsGetsOnWithThoseInFrontOfIt(t *testing.T) {
	t.Parallel()
	s := newScales("/r", "/r", "/r")
	for b := metadata.BlockID(1); b <= 3; b++ {
		s.m.Put(s.now, Block{Block: scaleReplica(b), Replication: 2})
		s.has["n0"][b] = true
	}
	s.report()
	s.m.Tick(s.now)
	x := s.m.nodes["n0"].outs
	if len(x) != 3 {
		t.Fatalf("%d copies are ordered, want 3", len(x))
	}
	x = append([]*transfer(nil), x...)
	pass := func(seconds int, percents ...int) { // negative: it waits
		for second := range seconds {
			s.now = s.now.Add(time.Second)
			for _, id := range s.order {
				s.m.Beat(s.now, id, s.volumes(id), 0)
			}
			var said []Progress
			for i, p := range percents {
				if p > 0 {
					p += second / 100
				}
				said = append(said, Progress{ID: x[i].block.ID, Generation: 1, Percent: max(p, 0), Waits: p < 0})
			}
			s.m.BeatProgress(s.now, "n0", said, nil)
			s.m.Tick(s.now)
		}
	}
	pass(2901, 10, -1, -1)
	for i, c := range x {
		if c.over() {
			t.Fatalf("copy %d is given up, though the first one gets on", i+1)
		}
	}
	// The first one has come; only the last one is begun, which the one in front of it has nothing of.
	to := s.m.volumes[x[0].target]
	s.m.Changes(s.now, to.node.info.ID, []namenode.Change{{Kind: namenode.Received, Block: x[0].block, Volume: to.id}})
	patience := int(s.m.config.CopyTimeout / time.Second)
	pass(patience-1, 0, -1, 50)
	if x[1].over() {
		t.Error("the second one is given up before its time")
	}
	pass(2, 0, -1, 51)
	if !x[1].over() || x[2].over() {
		t.Error("the second one waits for what was ordered behind it, or the last one is given up, which gets on")
	}
}

// A node that computes something of a group is told of no more of it before that is done: it would not take the order.
func TestAGroupIsComputedByOneOrderAtATime(t *testing.T) {
	t.Parallel()
	m, now, first := rebuildOne(t)
	m.Orders(now, first.source.info.ID)
	lost := m.blocks.peek(first.block.ID.Group().Internal(3))
	at := m.volumes[lost.good[0]].node.info.ID
	m.Changes(now, at, []namenode.Change{{Kind: namenode.Deleted, Block: metadata.Block{ID: first.block.ID.Group().Internal(3), Generation: 5}}})
	m.Tick(now)
	if len(m.copies) != 1 {
		t.Errorf("%d orders, want that of before", len(m.copies))
	}
	to := m.volumes[first.target]
	m.Changes(now, to.node.info.ID, []namenode.Change{{Kind: namenode.Received, Block: first.block, Volume: to.id}})
	m.Tick(now)
	m.check(t)
	if len(m.copies) != 1 || m.copies[0] == first || m.copies[0].block.ID.Unit() != 3 {
		t.Errorf("%d orders, want one for the second internal block", len(m.copies))
	}
}
