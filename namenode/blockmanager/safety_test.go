package blockmanager

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// disk is a datanode as it really is; its reports reach each of two namenodes late, but in order.
type disk struct {
	id    namenode.NodeID
	has   map[metadata.BlockID]bool
	term  uint64
	inbox []pendingOrders
	wire  [2][]func(m *Manager, now time.Time)
	seq   uint64
}

type pendingOrders struct {
	term   uint64
	orders Orders
}

func (d *disk) volume() namenode.VolumeID { return namenode.VolumeID("v-" + d.id) }

func (d *disk) node() namenode.Node {
	return namenode.Node{ID: d.id, IP: string(d.id), TransferPort: 1}
}

func (d *disk) volumes() []namenode.Volume {
	return []namenode.Volume{{ID: d.volume(), Type: namenode.Disk, Capacity: 1000, Used: int64(10 * len(d.has)), Remaining: 1 << 30}}
}

func (d *disk) send(to int, f func(m *Manager, now time.Time)) { d.wire[to] = append(d.wire[to], f) }

func (d *disk) register(to int) {
	var all []namenode.Replica
	for _, id := range sortedKeys(d.has) {
		all = append(all, namenode.Replica{Block: simBlock(id), State: namenode.Finalized})
	}
	d.seq++
	seq := d.seq
	d.send(to, func(m *Manager, now time.Time) { m.Register(now, d.node(), d.volumes(), 1) })
	d.send(to, func(m *Manager, now time.Time) { m.Report(now, d.id, seq, d.volume(), all, true) })
}

func (d *disk) tell(c namenode.Change) {
	c.Volume = d.volume()
	for to := range d.wire {
		d.send(to, func(m *Manager, now time.Time) { m.Changes(now, d.id, []namenode.Change{c}) })
	}
}

func simBlock(id metadata.BlockID) metadata.Block {
	if id.Striped() { // of a group with a full stripe
		return metadata.Block{ID: id, Generation: 1, Length: 1 << 20}
	}
	return metadata.Block{ID: id, Generation: 1, Length: 10}
}

// TestNoLivingBlockLosesItsLastReplicas runs two namenodes that take turns in leading, over datanodes whose reports are
// late, in any interleaving: what the leaders order never takes a block below the number of replicas it wants, if
// it had them. Nodes do not fail here, so nothing but a wrong deletion could.
func TestNoLivingBlockLosesItsLastReplicas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := time.Unix(1e9, 0)
		var mgr [2]*Manager
		for i := range mgr {
			mgr[i] = New(Config{Seed: rapid.Uint64().Draw(t, "seed")})
		}
		for i := range mgr {
			mgr[i].SetHorizon(1 << 40)
			mgr[i].SetGroupHorizon(-16)
		}
		wishes := [2]map[namenode.NodeID]namenode.AdminState{{}, {}}
		var disks []*disk
		for i := range rapid.IntRange(2, 5).Draw(t, "nodes") {
			d := &disk{id: namenode.NodeID(fmt.Sprintf("n%d", i)), has: map[metadata.BlockID]bool{}}
			disks = append(disks, d)
			d.register(0)
			d.register(1)
		}
		want := map[metadata.BlockID]int{}
		floor := map[metadata.BlockID]int{} // real replicas that must never be fewer
		leader, term := -1, uint64(0)
		nextID := metadata.BlockID(1)
		nextGroup := metadata.FirstGroupID

		count := func(id metadata.BlockID) (n int) {
			for _, d := range disks {
				if d.has[id] {
					n++
				}
			}
			return n
		}
		pick := func(name string) *disk { return rapid.SampledFrom(disks).Draw(t, name) }

		t.Repeat(map[string]func(*rapid.T){
			"write": func(t *rapid.T) {
				id := nextID
				nextID++
				want[id] = rapid.IntRange(1, 3).Draw(t, "want")
				for i := range mgr {
					mgr[i].Put(now, Block{Block: simBlock(id), Replication: want[id]})
				}
				for range rapid.IntRange(1, 4).Draw(t, "copies") {
					d := pick("writer")
					if !d.has[id] {
						d.has[id] = true
						d.tell(namenode.Change{Kind: namenode.Received, Block: simBlock(id)})
					}
				}
				floor[id] = min(want[id], count(id))
			},
			"write group": func(t *rapid.T) { // of an XOR-2-1: two internal blocks make the third
				id := nextGroup
				nextGroup += metadata.GroupStep
				for i := range mgr {
					mgr[i].Put(now, Block{Block: metadata.Block{ID: id, Generation: 1, Length: 2 << 20}, Erasure: 4})
				}
				for unit := range 3 {
					for range rapid.IntRange(0, 2).Draw(t, "copies") {
						d := pick("writer")
						if b := id.Internal(unit); !d.has[b] {
							d.has[b] = true
							d.tell(namenode.Change{Kind: namenode.Received, Block: simBlock(b)})
						}
					}
					want[id.Internal(unit)] = 1
					floor[id.Internal(unit)] = min(1, count(id.Internal(unit)))
				}
			},
			"remove group": func(t *rapid.T) {
				id := metadata.FirstGroupID + metadata.GroupStep*metadata.BlockID(rapid.IntRange(0, 5).Draw(t, "group"))
				for unit := range 3 {
					delete(want, id.Internal(unit))
					delete(floor, id.Internal(unit))
				}
				for i := range mgr {
					mgr[i].Remove(id)
				}
			},
			"setReplication": func(t *rapid.T) {
				for id := range nextID {
					if _, ok := want[id]; ok && rapid.Bool().Draw(t, "this") {
						want[id] = rapid.IntRange(1, 3).Draw(t, "want")
						floor[id] = min(floor[id], want[id])
						for i := range mgr {
							mgr[i].Put(now, Block{Block: simBlock(id), Replication: want[id]})
						}
					}
				}
			},
			"remove": func(t *rapid.T) {
				id := metadata.BlockID(rapid.Int64Range(1, int64(nextID)).Draw(t, "block"))
				delete(want, id)
				delete(floor, id)
				for i := range mgr {
					mgr[i].Remove(id)
				}
			},
			"deliver": func(t *rapid.T) {
				d := pick("node")
				to := rapid.IntRange(0, 1).Draw(t, "to")
				for range min(len(d.wire[to]), rapid.IntRange(1, 5).Draw(t, "messages")) {
					d.wire[to][0](mgr[to], now)
					d.wire[to] = d.wire[to][1:]
				}
			},
			"balance": func(t *rapid.T) {
				if leader >= 0 {
					mgr[leader].SetBalance(rapid.SampledFrom([]*Balance{nil, {Threshold: 1}}).Draw(t, "balance"))
				}
			},
			"administer": func(t *rapid.T) { // which the one namenode may learn before the other
				id, i := pick("administered").id, rapid.IntRange(0, 1).Draw(t, "manager")
				wishes[i][id] = rapid.SampledFrom([]namenode.AdminState{namenode.Normal, namenode.Decommissioned, namenode.InMaintenance}).Draw(t, "wish")
				mgr[i].Administer(func(n *namenode.Node) namenode.AdminState { return wishes[i][n.ID] })
			},
			"word": func(t *rapid.T) { // a reader's, true of no replica
				if leader >= 0 {
					id := metadata.BlockID(rapid.Int64Range(1, int64(nextID)).Draw(t, "block"))
					mgr[leader].Suspect(now, pick("accused").id, metadata.Block{ID: id}, "reader")
				}
			},
			"elect": func(t *rapid.T) {
				if leader >= 0 && rapid.Bool().Draw(t, "notices") {
					mgr[leader].Follow() // or it does not know yet, and goes on giving orders of its term
				}
				leader = rapid.IntRange(0, 1).Draw(t, "leader")
				term++
				mgr[leader].Lead(now, term)
			},
			"tick": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 6000).Draw(t, "ms")) * time.Millisecond)
				for i := range mgr {
					for _, d := range disks {
						mgr[i].Beat(now, d.id, d.volumes(), 0)
					}
					mgr[i].Tick(now)
					for _, d := range disks {
						if o := mgr[i].Orders(now, d.id); !o.Empty() {
							d.inbox = append(d.inbox, pendingOrders{mgr[i].term, o})
						}
					}
				}
			},
			"obey": func(t *rapid.T) {
				d := pick("node")
				if len(d.inbox) == 0 {
					return
				}
				p := d.inbox[0]
				d.inbox = d.inbox[1:]
				if p.term < d.term {
					return
				}
				d.term = p.term
				for _, b := range slices.Concat(p.orders.Delete, p.orders.Discard) {
					if d.has[b.ID] {
						delete(d.has, b.ID)
					}
					d.tell(namenode.Change{Kind: namenode.Deleted, Block: b})
				}
				for _, b := range p.orders.Verify {
					kind := namenode.Deleted
					if d.has[b.ID] {
						kind = namenode.Verified
					}
					d.tell(namenode.Change{Kind: kind, Block: b})
				}
				for _, r := range p.orders.Replicate {
					if !d.has[r.Block.ID] {
						continue
					}
					i := slices.IndexFunc(disks, func(d *disk) bool { return d.id == r.Target.ID })
					disks[i].has[r.Block.ID] = true
					disks[i].tell(namenode.Change{Kind: namenode.Received, Block: r.Block})
				}
				for _, r := range p.orders.Rebuild {
					there := 0
					for unit := range 3 {
						if count(r.Group.ID.Internal(unit)) > 0 {
							there++
						}
					}
					for _, target := range r.Targets {
						b := r.Group.ID.Internal(target.Unit)
						if i := slices.IndexFunc(disks, func(d *disk) bool { return d.id == target.Node.ID }); there >= 2 && !disks[i].has[b] {
							disks[i].has[b] = true
							disks[i].tell(namenode.Change{Kind: namenode.Received, Block: simBlock(b)})
						}
					}
				}
				if p.orders.Report {
					// All namenodes are asked the same way; here the one that asked may be either.
					d.register(0)
					d.register(1)
				}
			},
			"": func(t *rapid.T) {
				for id, n := range floor {
					if got := count(id); got < n {
						t.Fatalf("block %d has %d replicas left, had %d and wants %d", id, got, n, want[id])
					}
					floor[id] = min(want[id], count(id))
				}
				for i := range mgr {
					mgr[i].check(t)
				}
			},
		})
	})
}
