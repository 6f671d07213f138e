package blockmanager

import (
	"fmt"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// scales are datanodes that obey at once, for tests of balancing.
type scales struct {
	m     *Manager
	now   time.Time
	racks map[namenode.NodeID]string
	has   map[namenode.NodeID]map[metadata.BlockID]bool
	order []namenode.NodeID
	// lag is with how many beats a node tells of what it has got or lost, told what it has said to have used so far, the newest last.
	lag  int
	told map[namenode.NodeID][]int64
}

const (
	scaleCapacity = 10_000
	scaleBlock    = 100
)

func newScales(racks ...string) *scales {
	s := &scales{m: New(Config{Seed: 1}), now: time.Unix(1e9, 0), racks: map[namenode.NodeID]string{}, has: map[namenode.NodeID]map[metadata.BlockID]bool{}, told: map[namenode.NodeID][]int64{}}
	for i, rack := range racks {
		id := namenode.NodeID(fmt.Sprintf("n%d", i))
		s.order, s.racks[id], s.has[id] = append(s.order, id), rack, map[metadata.BlockID]bool{}
	}
	s.m.SetHorizon(1 << 40)
	s.m.Lead(s.now, 1)
	return s
}

func (s *scales) volumes(id namenode.NodeID) []namenode.Volume {
	s.told[id] = append(s.told[id], int64(len(s.has[id]))*scaleBlock)
	used := s.told[id][max(0, len(s.told[id])-1-s.lag)]
	return []namenode.Volume{{ID: namenode.VolumeID("v-" + id), Type: namenode.Disk, Capacity: scaleCapacity, Used: used, Remaining: scaleCapacity - used}}
}

// report has every node register and say what it has.
func (s *scales) report() {
	for i, id := range s.order {
		s.m.Register(s.now, namenode.Node{ID: id, IP: "ip-" + string(id), Rack: s.racks[id], TransferPort: uint32(i + 1)}, s.volumes(id), 1)
		var all []namenode.Replica
		for b := range s.has[id] {
			all = append(all, namenode.Replica{Block: scaleReplica(b), State: namenode.Finalized})
		}
		s.m.Report(s.now, id, uint64(s.now.UnixNano()), namenode.VolumeID("v-"+id), all, true)
	}
}

func scaleReplica(id metadata.BlockID) metadata.Block {
	return metadata.Block{ID: id, Generation: 1, Length: scaleBlock}
}

// step lets a second pass, and all orders be obeyed. It returns how many copies for the balancer were ordered.
func (s *scales) step() (moves int) {
	s.now = s.now.Add(time.Second)
	for _, id := range s.order {
		s.m.Beat(s.now, id, s.volumes(id), 0)
	}
	s.m.Tick(s.now)
	again := false
	for _, id := range s.order {
		o := s.m.Orders(s.now, id)
		again = again || o.Report
		for _, r := range o.Replicate {
			if r.Balance {
				moves++
			}
			s.has[r.Target.ID][r.Block.ID] = true
			s.m.Changes(s.now, r.Target.ID, []namenode.Change{{Kind: namenode.Received, Block: r.Block, Volume: namenode.VolumeID("v-" + r.Target.ID)}})
		}
		for _, b := range o.Delete {
			delete(s.has[id], b.ID)
			s.m.Changes(s.now, id, []namenode.Change{{Kind: namenode.Deleted, Block: b}})
		}
	}
	if again {
		s.report()
	}
	return moves
}

// spread checks that every block has its replicas, on as many racks as before.
func (s *scales) spread(t *testing.T, blocks, want, racks int) {
	t.Helper()
	for b := metadata.BlockID(1); b <= metadata.BlockID(blocks); b++ {
		n, on := 0, map[string]bool{}
		for _, id := range s.order {
			if s.has[id][b] {
				n++
				on[s.racks[id]] = true
			}
		}
		if n < want || len(on) < racks {
			t.Fatalf("block %d has %d replicas on %d racks, want %d on %d", b, n, len(on), want, racks)
		}
	}
}

func TestBalancingEvensNodesOutAndKeepsReplicasAndRacks(t *testing.T) {
	t.Parallel()
	s := newScales("/r1", "/r2", "/r1", "/r2")
	const blocks = 60
	for b := metadata.BlockID(1); b <= blocks; b++ { // all on the first two, one on each rack
		s.m.Put(s.now, Block{Block: scaleReplica(b), Replication: 2})
		s.has["n0"][b], s.has["n1"][b] = true, true
	}
	s.report()
	s.m.SetBalance(&Balance{Threshold: 5})
	if b := s.m.Balanced(); b.Over != 2 || b.Under != 2 || b.Left != 2*25*scaleCapacity/100 {
		t.Fatalf("at first: %+v", b)
	}
	for range 200 {
		s.step()
		s.spread(t, blocks, 2, 2)
		s.m.check(t)
		if b := s.m.Balanced(); b.Over+b.Under == 0 && b.Moving == 0 {
			break
		}
	}
	b := s.m.Balanced()
	if b.Over+b.Under != 0 || b.Moving != 0 || b.Failed != 0 || b.Moved != b.Blocks*scaleBlock || b.Moved < 2000 || b.Moved > 6000 {
		t.Fatalf("at the end: %+v", b)
	}
	for range 30 { // what was copied goes where it came from
		s.step()
	}
	total := 0
	for _, id := range s.order {
		total += len(s.has[id])
		if n := len(s.has[id]); n < 20 || n > 40 {
			t.Errorf("%s has %d blocks", id, n)
		}
	}
	if total != 2*blocks {
		t.Errorf("%d replicas, want %d", total, 2*blocks)
	}
}

// What has come or is to go is counted once: neither before a node tells of it, nor together with what it tells.
func TestBalancingIsDoneOnlyWhenTheNodesSaySo(t *testing.T) {
	t.Parallel()
	for _, lag := range []int{0, 1} {
		s := newScales("/r", "/r")
		s.lag = lag
		const blocks = 60
		for b := metadata.BlockID(1); b <= blocks; b++ {
			s.m.Put(s.now, Block{Block: scaleReplica(b), Replication: 1})
			s.has["n0"][b] = true
		}
		s.report()
		s.step()
		s.m.SetBalance(&Balance{Threshold: 10})
		for i := range 300 {
			s.step()
			if b := s.m.Balanced(); b.Over+b.Under == 0 && b.Moving == 0 {
				break
			} else if i == 299 {
				t.Fatalf("lag %d: not done: %+v", lag, b)
			}
		}
		if n := len(s.has["n0"]); n < 38 || n > 40 { // the mean is 30 %, a block 1 %
			t.Errorf("lag %d: it is done, and the full node has %d of %d blocks", lag, n, blocks)
		}
	}
}

// A node that is silent for a moment neither gives nor gets, but it is as full as before.
func TestBalancingIsNotDoneBecauseNodesAreSilent(t *testing.T) {
	t.Parallel()
	s := newScales("/r", "/r")
	for b := metadata.BlockID(1); b <= 60; b++ {
		s.m.Put(s.now, Block{Block: scaleReplica(b), Replication: 1})
		s.has["n0"][b] = true
	}
	s.report()
	s.step()
	s.now = s.now.Add(s.m.config.StaleAfter)
	s.m.SetBalance(&Balance{Threshold: 10})
	s.m.Tick(s.now)
	if b := s.m.Balanced(); b.Over != 1 || b.Under != 1 || b.Moving != 0 {
		t.Errorf("all are silent: %+v", b)
	}
}

func TestBalancingEndsAtOnceAndLosesNothing(t *testing.T) {
	t.Parallel()
	for after := range 8 {
		s := newScales("/r", "/r", "/r")
		const blocks = 30
		for b := metadata.BlockID(1); b <= blocks; b++ {
			s.m.Put(s.now, Block{Block: scaleReplica(b), Replication: 1})
			s.has["n0"][b] = true
		}
		s.report()
		s.m.SetBalance(&Balance{Threshold: 1})
		for range after {
			s.step()
		}
		if after%2 == 0 {
			s.m.SetBalance(nil)
		} else { // or another namenode leads
			s.m.Follow()
			s.m.Lead(s.now, 2)
		}
		for range 30 {
			if moves := s.step(); moves > 0 {
				t.Fatalf("stopped after %d: %d more moves", after, moves)
			}
			s.spread(t, blocks, 1, 1)
			s.m.check(t)
		}
		total := 0
		for _, id := range s.order {
			total += len(s.has[id])
		}
		if total != blocks {
			t.Errorf("stopped after %d: %d replicas of %d blocks", after, total, blocks)
		}
	}
}

func TestBalancingHeedsWhoTakesPart(t *testing.T) {
	t.Parallel()
	s := newScales("/r", "/r", "/r")
	const blocks = 30
	for b := metadata.BlockID(1); b <= blocks; b++ {
		s.m.Put(s.now, Block{Block: scaleReplica(b), Replication: 1})
		s.has["n0"][b] = true
	}
	s.report()
	s.m.SetBalance(&Balance{Threshold: 2, Takes: func(n *namenode.Node) bool { return n.ID != "n2" }})
	for range 60 {
		s.step()
	}
	if len(s.has["n2"]) != 0 || len(s.has["n1"]) < 12 {
		t.Errorf("n1 has %d and n2 %d blocks", len(s.has["n1"]), len(s.has["n2"]))
	}
	s.m.SetBalance(&Balance{Threshold: 2, Gives: func(n *namenode.Node) bool { return n.ID == "n2" }})
	moves := 0
	for range 20 {
		moves += s.step()
	}
	if moves != 0 {
		t.Errorf("%d moves from nodes that may not give", moves)
	}
}
