package blockmanager

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// fleet is a manager of many nodes, all of which beat.
func fleet(nodes, blocks, replication int) (*Manager, time.Time) {
	m, now := New(Config{Seed: 1}), time.Unix(1e9, 0)
	for i := range nodes {
		id := namenode.NodeID(fmt.Sprintf("n%05d", i))
		m.Register(now, namenode.Node{ID: id, IP: string(id), Rack: fmt.Sprintf("/r%d", i%40)}, volumesOfNode(id), 1)
	}
	m.Lead(now, 1)
	m.SetHorizon(1 << 40)
	replicas := make([][]namenode.Replica, nodes)
	for b := range blocks {
		blk := metadata.Block{ID: metadata.BlockID(b + 1), Generation: 1, Length: 1 << 20}
		m.Put(now, Block{Block: blk, Replication: replication})
		for r := range replication { // the first on node 0, which dies
			at := 0
			if r > 0 {
				at = 1 + (b*7+r*131)%(nodes-1)
			}
			replicas[at] = append(replicas[at], namenode.Replica{Block: blk, State: namenode.Finalized})
		}
	}
	for i, n := range m.order {
		m.Report(now, n.info.ID, 1, n.order[0].id, replicas[i], true)
	}
	return m, now
}

func volumesOfNode(id namenode.NodeID) []namenode.Volume {
	return []namenode.Volume{{ID: "v" + namenode.VolumeID(id), Type: namenode.Disk, Capacity: 1 << 40, Remaining: 1 << 40}}
}

func (m *Manager) beatAll(now time.Time, but int) {
	for i, n := range m.order {
		if i != but && n.alive {
			m.Beat(now, n.info.ID, volumesOfNode(n.info.ID), 0)
		}
	}
}

// The work of a Tick and of asking every node for orders is bounded, however many nodes there are and however much there is
// to do: what is counted here is candidates looked at, blocks and copies, not time.
func TestTheWorkOfATickIsBounded(t *testing.T) {
	const nodes, blocks = 3000, 30_000
	m, now := fleet(nodes, blocks, 3)
	now = now.Add(m.config.DeadAfter)
	m.beatAll(now, 0)
	most := Work{}
	copies, asked := 0, 0
	for range 200 {
		now = now.Add(200 * time.Millisecond)
		m.beatAll(now, 0)
		m.Tick(now)
		w := m.Work()
		most = Work{Blocks: max(most.Blocks, w.Blocks), Looked: max(most.Looked, w.Looked)}
		for _, id := range m.Due(now) {
			asked++
			for _, r := range m.Orders(now, id).Replicate {
				copies++
				m.Changes(now, r.Target.ID, []namenode.Change{{Kind: namenode.Received, Block: r.Block, Volume: "v" + namenode.VolumeID(r.Target.ID)}})
			}
		}
	}
	if most.Blocks > turnsPerTick+popsPerTick+2*tidyPerTick || most.Looked > 60_000 {
		t.Errorf("a Tick looked at %d blocks and %d candidates", most.Blocks, most.Looked)
	}
	if copies != blocks {
		t.Errorf("%d copies were ordered, want %d", copies, blocks)
	}
	if asked > copies {
		t.Errorf("%d times nodes were asked for orders, for %d copies", asked, copies)
	}
	now = now.Add(time.Minute)
	m.beatAll(now, 0)
	m.Tick(now)
	if due := m.Due(now); len(due) > 0 {
		t.Errorf("%d nodes have orders when everything is done", len(due))
	}
}

// Blocks that cannot be helped, such as those of a user who wants more replicas than there are nodes, do not keep the others waiting that
// can, however many they are and however urgent: a Tick looks at some of every queue.
func TestBlocksThatCannotBeHelpedDoNotHoldUpOthers(t *testing.T) {
	const greedy = 3 * copiesPerTick
	for name, c := range map[string]struct{ want, have int }{
		"more replicas than nodes":                 {100, 3},
		"one replica, whose node has no room free": {3, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m, now := fleet(4, 0, 1)
			n := m.order
			put := func(id, want, have int, from *node) {
				b := metadata.Block{ID: metadata.BlockID(id), Generation: 1, Length: 1 << 20}
				m.Put(now, Block{Block: b, Replication: want})
				for i := range have {
					at := n[(slices.Index(n, from)+i)%len(n)]
					m.Changes(now, at.info.ID, []namenode.Change{{Kind: namenode.Received, Block: b, Volume: at.order[0].id}})
				}
			}
			for i := range greedy {
				put(i+1, c.want, c.have, n[0])
			}
			for range 20 { // whatever can be done for the greedy has begun, and does not end
				now = now.Add(time.Millisecond)
				m.Tick(now)
			}
			put(greedy+1, 4, 2, n[2])
			for range 20 {
				now = now.Add(time.Millisecond)
				m.Tick(now)
			}
			if b := m.blocks.get(greedy + 1); m.pending(b) == 0 {
				t.Errorf("no copy was ordered of a block with 2 of 4 replicas, behind %d that cannot be helped", greedy)
			}
		})
	}
}

// A datanode that registers again and again and never reports holds up deletions for a while, not for ever; what it may
// still have does not count as there when others are to be deleted.
func TestANodeThatNeverReportsDoesNotStopDeletions(t *testing.T) {
	m, now := fleet(4, 10, 3)
	for i := range 5 {
		m.Remove(metadata.BlockID(i + 1))
	}
	flapper := m.order[3].info
	deleted := map[metadata.BlockID]bool{}
	for i := 0; i < 700; i++ {
		now = now.Add(time.Second)
		m.beatAll(now, -1)
		if i%5 == 0 {
			m.Register(now, *flapper, volumesOfNode(flapper.ID), uint64(i+2))
		}
		m.Tick(now)
		for _, n := range m.order[:3] {
			o := m.Orders(now, n.info.ID)
			if o.Report {
				m.Register(now, *n.info, volumesOfNode(n.info.ID), 1)
				var all []namenode.Replica
				for _, id := range n.order[0].blocks.list() {
					all = append(all, namenode.Replica{Block: metadata.Block{ID: id, Generation: 1, Length: 1 << 20}, State: namenode.Finalized})
				}
				m.Report(now, n.info.ID, uint64(i+2), n.order[0].id, all, true)
			}
			for _, b := range o.Delete {
				if b.ID > 5 {
					t.Fatalf("a living block is deleted: %v", b)
				}
				deleted[b.ID] = true
				m.Changes(now, n.info.ID, []namenode.Change{{Kind: namenode.Deleted, Block: b}})
			}
		}
		if i < 60 && len(deleted) > 0 {
			t.Fatalf("deleted %v after %d s", deleted, i)
		}
	}
	if len(deleted) != 5 {
		t.Errorf("%d of 5 removed blocks were deleted", len(deleted))
	}
	m.check(t)
}

// BenchmarkTickAfterADeath is the worst Tick, in CPU time, after one of up to 3,000 nodes has died, which had 300,000 blocks.
func BenchmarkTickAfterADeath(b *testing.B) {
	for _, nodes := range []int{100, 1000, 3000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for b.Loop() {
				b.StopTimer()
				m, now := fleet(nodes, 300_000, 3)
				now = now.Add(m.config.DeadAfter)
				m.beatAll(now, 0)
				b.StartTimer()
				var worst, orders time.Duration
				for range 100 {
					now = now.Add(200 * time.Millisecond)
					m.beatAll(now, 0)
					begun := cpuTime(b)
					m.Tick(now)
					worst = max(worst, cpuTime(b)-begun)
					begun = cpuTime(b)
					for _, id := range m.Due(now) {
						m.Orders(now, id)
					}
					orders = max(orders, cpuTime(b)-begun)
				}
				b.ReportMetric(float64(worst.Microseconds())/1000, "ms/worst-tick")
				b.ReportMetric(float64(orders.Microseconds())/1000, "ms/worst-orders")
			}
		})
	}
}

// cpuTime is what this thread has used: others on the machine do not count.
func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
