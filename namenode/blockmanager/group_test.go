package blockmanager

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gohops/hops/internal/stripe"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// array is a manager of datanodes that hold internal blocks, and do what they are ordered.
type array struct {
	t     *testing.T
	m     *Manager
	now   time.Time
	code  metadata.ErasurePolicy
	nodes []namenode.NodeID
	down  map[namenode.NodeID]bool
	has   map[namenode.NodeID]map[metadata.BlockID]metadata.Block
	// What was ordered in all.
	rebuilt, copied, deleted int
}

func newArray(t *testing.T, policy string, nodes, racks int) *array {
	code, _ := metadata.ErasurePolicyNamed(policy)
	a := &array{
		t: t, m: New(Config{Seed: 7}), now: time.Unix(1e9, 0), code: code,
		down: map[namenode.NodeID]bool{}, has: map[namenode.NodeID]map[metadata.BlockID]metadata.Block{},
	}
	for i := range nodes {
		id := namenode.NodeID(fmt.Sprintf("n%02d", i))
		a.nodes = append(a.nodes, id)
		a.has[id] = map[metadata.BlockID]metadata.Block{}
		a.m.Register(a.now, namenode.Node{ID: id, IP: string(id), Rack: fmt.Sprintf("/r%d", i%racks), TransferPort: 1}, volumesOfNode(id), 1)
		a.m.Report(a.now, id, 1, volumesOfNode(id)[0].ID, nil, true)
	}
	a.m.Lead(a.now, 1)
	a.m.SetHorizon(1 << 40)
	a.m.SetGroupHorizon(metadata.FirstGroupID + 1000*metadata.GroupStep)
	for _, id := range a.nodes { // again, for this term
		a.m.Register(a.now, namenode.Node{ID: id, IP: string(id), Rack: a.m.nodes[id].info.Rack, TransferPort: 1}, volumesOfNode(id), 1)
		a.m.Report(a.now, id, 2, volumesOfNode(id)[0].ID, nil, true)
		a.m.nodes[id].fresh = true
	}
	return a
}

func (a *array) group(i int, length int64) metadata.Block {
	return metadata.Block{ID: metadata.FirstGroupID + metadata.BlockID(i)*metadata.GroupStep, Generation: 5, Length: length}
}

func (a *array) unit(g metadata.Block, i int) metadata.Block {
	return metadata.Block{ID: g.ID.Internal(i), Generation: g.Generation, Length: a.code.Layout.UnitLength(g.Length, i)}
}

func (a *array) put(g metadata.Block, open bool) {
	a.m.Put(a.now, Block{Block: g, Erasure: a.code.ID, Replication: 3, Open: open})
}

func (a *array) receive(node namenode.NodeID, b metadata.Block) {
	a.has[node][b.ID] = b
	a.m.Changes(a.now, node, []namenode.Change{{Kind: namenode.Received, Volume: volumesOfNode(node)[0].ID, Block: b}})
}

// write puts the internal blocks of a group onto the nodes from the first one on, and closes it.
func (a *array) write(g metadata.Block, first int) {
	a.put(g, true)
	for i := range a.code.Layout.Units() {
		a.receive(a.nodes[(first+i)%len(a.nodes)], a.unit(g, i))
	}
	a.put(g, false)
}

// run lets time pass and has the nodes obey. A rebuild needs what the code needs.
func (a *array) run(d time.Duration) {
	a.t.Helper()
	for end := a.now.Add(d); a.now.Before(end); {
		a.now = a.now.Add(200 * time.Millisecond)
		for _, id := range a.nodes {
			if !a.down[id] && !a.m.Beat(a.now, id, volumesOfNode(id), 0) {
				a.up(id)
			}
		}
		a.m.Tick(a.now)
		for _, id := range a.nodes {
			if !a.down[id] {
				a.obey(id, a.m.Orders(a.now, id))
			}
		}
		a.m.check(a.t)
	}
}

func (a *array) up(id namenode.NodeID) {
	var all []namenode.Replica
	for _, b := range sortedKeys(a.has[id]) {
		all = append(all, namenode.Replica{Block: a.has[id][b], State: namenode.Finalized})
	}
	a.down[id] = false
	a.m.Register(a.now, namenode.Node{ID: id, IP: string(id), Rack: a.m.nodes[id].info.Rack, TransferPort: 1}, volumesOfNode(id), 1)
	a.m.Report(a.now, id, uint64(a.now.UnixNano()), volumesOfNode(id)[0].ID, all, true)
}

func (a *array) obey(id namenode.NodeID, o Orders) {
	a.t.Helper()
	for _, b := range slices.Concat(o.Delete, o.Discard) {
		delete(a.has[id], b.ID)
		a.deleted++
		a.m.Changes(a.now, id, []namenode.Change{{Kind: namenode.Deleted, Block: b}})
	}
	for _, r := range o.Replicate {
		b, there := a.has[id][r.Block.ID]
		if there && !a.down[r.Target.ID] {
			a.copied++
			a.receive(r.Target.ID, b)
		}
	}
	for _, r := range o.Rebuild {
		units := map[int]bool{}
		for _, s := range r.Sources {
			if _, there := a.has[s.Node.ID][r.Group.ID.Internal(s.Unit)]; there && !a.down[s.Node.ID] {
				units[s.Unit] = true
			}
		}
		for i := range a.code.Layout.Data {
			if a.code.Layout.UnitLength(r.Group.Length, i) == 0 {
				units[i] = true // zeros
			}
		}
		if len(units) < a.code.Layout.Data {
			continue // the datanode fails, and is asked again
		}
		for _, to := range r.Targets {
			if !a.down[to.Node.ID] {
				a.rebuilt++
				// What it may take the place of goes first.
				a.m.Changes(a.now, to.Node.ID, []namenode.Change{{Kind: namenode.Deleted, Block: a.unit(r.Group, to.Unit)}})
				a.receive(to.Node.ID, a.unit(r.Group, to.Unit))
			}
		}
	}
	if o.Report {
		a.up(id)
	}
}

// where is on which nodes that are up an internal block lies.
func (a *array) where(id metadata.BlockID) (at []namenode.NodeID) {
	for _, n := range a.nodes {
		if _, there := a.has[n][id]; there && !a.down[n] {
			at = append(at, n)
		}
	}
	return at
}

// whole checks that each internal block with bytes lies once, on a node of its own.
func (a *array) whole(g metadata.Block) {
	a.t.Helper()
	on := map[namenode.NodeID]int{}
	for i := range a.code.Layout.Units() {
		b := a.unit(g, i)
		at := a.where(b.ID)
		if want := min(int(b.Length), 1); len(at) != want {
			a.t.Errorf("internal block %d of %v lies on %v, want %d", i, g, at, want)
		}
		for _, n := range at {
			if on[n]++; on[n] > 1 {
				a.t.Errorf("two internal blocks of %v on %s", g, n)
			}
		}
	}
}

const mib = 1 << 20

// Lost internal blocks are computed on other nodes, as long as enough are left, and until then the group is found and counted; what is too much, or
// comes back, goes.
func TestLostInternalBlocksAreComputed(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"RS-6-3-1024k", "RS-3-2-1024k", "RS-10-4-1024k", "XOR-2-1-1024k"} {
		code, _ := metadata.ErasurePolicyNamed(policy)
		units := code.Layout.Units()
		a := newArray(t, policy, units+code.Layout.Parity+1, 3)
		full, cell, short := a.group(1, 3*code.Layout.Stripe()), a.group(2, mib+77), a.group(3, 5)
		for _, g := range []metadata.Block{full, cell, short} {
			a.write(g, 0)
		}
		a.run(15 * time.Second)
		for _, g := range []metadata.Block{full, cell, short} {
			a.whole(g)
		}
		if st := a.m.Statistics(); st.Blocks != 3 || st.UnderReplicated != 0 || a.rebuilt != 0 {
			t.Fatalf("%s: %+v, %d computed", policy, st, a.rebuilt)
		}
		for i := range code.Layout.Parity {
			a.down[a.nodes[i]] = true
		}
		a.run(a.m.config.DeadAfter - 5*time.Second)
		if a.rebuilt != 0 {
			t.Errorf("%s: %d computed before a node was dead", policy, a.rebuilt)
		}
		a.run(time.Minute)
		for _, g := range []metadata.Block{full, cell, short} {
			a.whole(g)
			if parts, bad := a.m.LocateGroup(g.ID, ""); bad || len(parts) < code.Layout.Parity+1 {
				t.Errorf("%s: %v is found at %v", policy, g, parts)
			}
		}
		if st := a.m.Statistics(); st.UnderReplicated+st.Missing != 0 || a.copied != 0 {
			t.Errorf("%s: after computing: %+v, %d copied", policy, st, a.copied)
		}
		for i := range code.Layout.Parity { // what they bring back is surplus
			a.up(a.nodes[i])
		}
		a.run(time.Minute)
		for _, g := range []metadata.Block{full, cell, short} {
			a.whole(g)
		}

		a.m.Remove(full.ID)
		a.run(10 * time.Second)
		for i := range units {
			if at := a.where(full.ID.Internal(i)); len(at) > 0 {
				t.Errorf("%s: internal block %d of a file that was deleted lies on %v", policy, i, at)
			}
		}
		a.whole(cell)
	}
}

// Where every node has something of a group, a damaged internal block, or one that was left by a pipeline before, is computed where it lies.
func TestInternalBlocksAreComputedInPlace(t *testing.T) {
	t.Parallel()
	a := newArray(t, "RS-3-2-1024k", 5, 1)
	g := a.group(1, 7*mib)
	a.write(g, 0)
	a.run(15 * time.Second)
	a.m.Changes(a.now, a.nodes[1], []namenode.Change{{Kind: namenode.Corrupt, Volume: volumesOfNode(a.nodes[1])[0].ID, Block: a.unit(g, 1)}})
	a.run(time.Minute)
	if a.whole(g); a.rebuilt != 1 {
		t.Errorf("%d computed", a.rebuilt)
	}
	old := a.unit(g, 4)
	old.Generation--
	old.Length = 5
	delete(a.has[a.nodes[4]], old.ID)
	a.m.Register(a.now, *a.m.nodes[a.nodes[4]].info, volumesOfNode(a.nodes[4]), 2)
	a.m.Report(a.now, a.nodes[4], 99, volumesOfNode(a.nodes[4])[0].ID, []namenode.Replica{{Block: old, State: namenode.Waiting}}, true)
	a.run(time.Minute)
	if a.whole(g); a.rebuilt != 2 {
		t.Errorf("%d computed", a.rebuilt)
	}
	if st := a.m.Statistics(); st.UnderReplicated+st.Missing != 0 {
		t.Errorf("%+v", st)
	}
}

// More losses than the code survives: the group is counted and listed as lost, nothing of it goes, and it is whole again when a node comes back.
func TestGroupsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	a := newArray(t, "RS-3-2-1024k", 9, 1)
	g := a.group(1, 7*mib)
	a.write(g, 0)
	a.run(15 * time.Second)
	for i := range 3 {
		a.down[a.nodes[i]] = true
	}
	a.run(2 * time.Minute)
	if st := a.m.Statistics(); st.Missing != 1 || a.rebuilt != 0 || a.deleted != 0 {
		t.Errorf("%+v, %d computed, %d deleted", st, a.rebuilt, a.deleted)
	}
	if lost := a.m.Lost(-1<<63, 10); len(lost) != 1 || lost[0] != g.ID {
		t.Errorf("lost: %v", lost)
	}
	if ids := a.m.Unhealthy(); len(ids) != 1 || ids[0] != g.ID {
		t.Errorf("unhealthy: %v", ids)
	}
	if r, known := a.m.Describe(g.ID.Internal(4)); !known || r.ID != g.ID || r.Want != 5 || r.Live != 2 || r.Readable != 0 || r.Healthy() || len(r.At) != 2 || r.At[1].Unit != 4 {
		t.Errorf("described as %+v", r)
	}
	a.up(a.nodes[1])
	a.run(time.Minute)
	a.whole(g)
	if st := a.m.Statistics(); st.Missing+st.UnderReplicated != 0 {
		t.Errorf("after a node came back: %+v", st)
	}
	if r, _ := a.m.Describe(g.ID); r.Live != 5 || !r.Healthy() {
		t.Errorf("described as %+v", r)
	}
}

// A group is finished when as many internal blocks are as make it readable; who waits for it is told with each.
func TestGroupsAreDurableWhenTheyCanBeRead(t *testing.T) {
	t.Parallel()
	a := newArray(t, "RS-6-3-1024k", 9, 1)
	g := a.group(1, 2*mib+5)
	a.put(g, true)
	a.m.Watch(g.ID)
	for i, unit := range []int{8, 0, 2} {
		if a.m.Durable(g) {
			t.Errorf("durable with %d internal blocks and three without bytes", i)
		}
		a.receive(a.nodes[unit], a.unit(g, unit))
		if told := a.m.Satisfied(); len(told) != 1 || told[0] != g.ID {
			t.Errorf("told %v", told)
		}
		if stored, wanted, spare := a.m.Stored(g, 1); stored != i+1 || wanted != 6 || spare != i-2 {
			t.Errorf("%d of the %d internal blocks with bytes are stored, %d may be lost; of %d", stored, wanted, spare, i+1)
		}
	}
	if stored, wanted, spare := a.m.Stored(a.group(2, 1), 1); stored != 0 || wanted < 1 || spare >= 0 {
		t.Errorf("of a group that nobody knows %d of %d, %d", stored, wanted, spare)
	}
	if n := a.m.Places(); n != 9 {
		t.Errorf("%d datanodes could have something", n)
	}
	if !a.m.Durable(g) || a.m.Durable(metadata.Block{ID: g.ID, Generation: 6, Length: g.Length}) || a.m.Durable(a.group(2, 1)) {
		t.Error("durable with three internal blocks and three without bytes, and of this generation only")
	}
	a.m.Unwatch(g.ID)
}

// Internal blocks of groups that nobody knows are kept when their id was never handed out, and while that is not known: a namenode that lost the end
// of its log must not delete them.
func TestInternalBlocksAreNoOrphans(t *testing.T) {
	t.Parallel()
	a := newArray(t, "RS-3-2-1024k", 6, 1)
	a.m.groupHorizon = 0
	late := a.group(1001, 3*mib)
	early := a.group(7, 3*mib)
	for i := range 5 {
		a.receive(a.nodes[i], a.unit(early, i))
		a.receive(a.nodes[i], a.unit(late, i))
	}
	a.run(10 * time.Second)
	if a.deleted != 0 {
		t.Fatalf("%d deleted before it was known what was handed out", a.deleted)
	}
	a.m.SetGroupHorizon(metadata.FirstGroupID + 1000*metadata.GroupStep)
	for i := range 5 {
		a.m.stray.push(early.ID.Internal(i))
		a.m.stray.push(late.ID.Internal(i))
	}
	a.run(10 * time.Second)
	if a.deleted != 5 || len(a.where(late.ID)) != 1 || len(a.where(early.ID)) != 0 {
		t.Errorf("%d deleted", a.deleted)
	}
	a.put(late, false)
	a.run(time.Second)
	a.whole(late)
}

// A node that leaves gives its internal blocks away by copies, not by computing, to nodes that have none of the group.
func TestInternalBlocksOfLeavingNodesAreCopied(t *testing.T) {
	t.Parallel()
	a := newArray(t, "RS-3-2-1024k", 7, 1)
	for i := range 10 {
		a.write(a.group(i, 5*mib), i)
	}
	a.run(15 * time.Second)
	a.m.Administer(func(n *namenode.Node) namenode.AdminState {
		if n.ID == a.nodes[2] {
			return namenode.Decommissioned
		}
		return namenode.Normal
	})
	a.run(time.Minute)
	if !a.m.nodes[a.nodes[2]].leaving.done {
		t.Error("it is not let go")
	}
	a.down[a.nodes[2]] = true
	for i := range 10 {
		a.whole(a.group(i, 5*mib))
	}
	if a.rebuilt > 0 || a.copied == 0 {
		t.Errorf("%d computed, %d copied", a.rebuilt, a.copied)
	}
}

// An internal block whose datanode failed while it was written is nobody's: no datanode is waited for in its place, whether the pipeline is recorded with an empty id for it or as clients say it.
func TestNobodyIsWaitedForInPlaceOfWhoFailed(t *testing.T) {
	t.Parallel()
	for _, nobody := range []string{"", "null"} {
		a := newArray(t, "RS-3-2-1024k", 5, 1)
		g := a.group(1, 0)
		a.put(g, true)
		pipeline := []string{string(a.nodes[0]), nobody, string(a.nodes[2]), nobody, string(a.nodes[4])}
		if late := a.m.Late(pipeline); len(late) > 0 {
			t.Errorf("%q: late are %q", nobody, late)
		}
		if !a.m.Nowhere(g.ID, pipeline) {
			t.Errorf("%q: all datanodes have reported, and it may be somewhere", nobody)
		}
		if !a.m.Unwritten(g.ID, pipeline, 2) {
			t.Errorf("%q: two internal blocks are found, and all datanodes have reported: others are waited for", nobody)
		}
	}
}

func TestLayoutsFitTheIds(t *testing.T) {
	t.Parallel()
	for _, p := range metadata.ErasurePolicies() {
		if p.Layout.Units() > stripe.MaxUnits {
			t.Error(p.Name)
		}
	}
}

// The recovery of an open group is ordered from the datanodes that may have something of it, with all of them and what each may have; another one is asked when the
// first does not come to an end. That nothing is kept is believed when no more can come.
func TestGroupsAreRecovered(t *testing.T) {
	t.Parallel()
	a := newArray(t, "RS-3-2-1024k", 8, 1)
	g := a.group(1, 0)
	a.put(g, true)
	var at []Placed
	var pipeline []string
	for i := range 5 {
		l, _ := a.m.Location(a.nodes[i], "")
		at, pipeline = append(at, Placed{Unit: i, Location: l}), append(pipeline, string(a.nodes[i]))
	}
	a.m.ExpectGroup(g.ID, at)
	if a.m.Nowhere(g.ID, pipeline) {
		t.Error("it is nowhere, and has a pipeline")
	}
	a.down[a.nodes[4]] = true
	for range 500 { // 4 is dead by then
		a.now = a.now.Add(200 * time.Millisecond)
		for _, id := range a.nodes[:4] {
			a.m.Beat(a.now, id, volumesOfNode(id), 0)
		}
		a.m.Tick(a.now)
	}
	a.m.Recover(a.now, g.ID, 9)
	if a.m.Recovering(g.ID) != 9 {
		t.Fatal("it is not under recovery")
	}
	primaries := map[namenode.NodeID]bool{}
	for try := range 3 {
		for _, id := range a.nodes {
			for _, r := range a.m.Orders(a.now, id).Recover {
				primaries[id] = true
				if r.Block != g || r.Erasure != a.code.ID || len(r.Parts) != 4 || len(r.Missing) != 1 || r.Missing[0] != a.nodes[4] || r.PatienceOver || r.RecoveryID != metadata.Generation(9+try) {
					t.Errorf("ordered %+v", r)
				}
				for i, p := range r.Parts {
					if p.Unit != i || p.Node.ID != a.nodes[i] {
						t.Errorf("internal block %d is said to be at %s", p.Unit, p.Node.ID)
					}
				}
			}
		}
		a.m.Recover(a.now, g.ID, metadata.Generation(10+try))
	}
	if len(primaries) != 3 {
		t.Errorf("asked were %v", primaries)
	}
	for found, want := range map[int]bool{0: true, 1: true, 2: false, 3: true} { // one is late
		if a.m.Unwritten(g.ID, pipeline, found) != want {
			t.Errorf("with %d found", found)
		}
	}
	a.m.now = a.now.Add(a.m.config.RecoveryPatience)
	if !a.m.Unwritten(g.ID, pipeline, 2) {
		t.Error("there is no end to it")
	}
	g.Length, g.Generation = 6*mib, 12
	a.put(g, false)
	if a.m.Recovering(g.ID) != 0 {
		t.Error("it is under recovery when it was closed")
	}
}
