package server

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/release"
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/namenode"
	pb "github.com/gohops/hops/namenode/api/v1"
	"github.com/gohops/hops/namenode/blockmanager"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// An open end through the calls of clients: who knows it writes and reads it, Hadoop's see the groups before it and are told to wait before they append. When its
// writer has gone a datanode that has it is ordered to make a group, and that takes its place.
func TestOpenEndOfAFile(t *testing.T) {
	c := newCluster(t, 1, nil)
	lead := c.leader()
	propose := func(op *logpb.SetErasurePolicy) {
		t.Helper()
		done := make(chan error, 1)
		e := newEnvelope()
		e.command.Op = &logpb.Command_SetErasurePolicy{SetErasurePolicy: op}
		caller := lead.caller()
		lead.change(&caller, namenode.Retry{}, e, func(_ *namespace.Result, err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	propose(&logpb.SetErasurePolicy{Target: &logpb.Target{}, Policy: 1 + 2}) // RS-3-2
	nodes := map[string]*datanode{}
	for i := range 5 {
		nodes[fmt.Sprintf("dn%d", i)] = c.datanode(fmt.Sprintf("dn%d", i))
	}
	w := lead.begin(t, "/f", "writer", 3)
	var b *hadoop.LocatedBlockProto
	eventually(t, "five datanodes", func() bool {
		var err error
		b, err = w.addBlock()
		if err == nil && len(b.Locs) < 5 {
			w.last = nil
			err = w.rpc.Call(t.Context(), clientprotocol.Name, "abandonBlock", &hadoop.AbandonBlockRequestProto{B: b.B, Src: &w.path, Holder: &w.client, FileId: &w.id}, new(hadoop.AbandonBlockResponseProto))
		}
		return err == nil && len(b.GetLocs()) == 5
	})
	layout := metadata.ErasurePolicies()[1].Layout
	group := w.block(4<<20 + 5)
	for i, at := range b.Locs {
		nodes[at.Id.GetDatanodeUuid()].has(metadata.Block{ID: group.ID.Internal(i), Generation: group.Generation, Length: layout.UnitLength(group.Length, i)}, pb.ReplicaState_FINALIZED)
	}
	var added hadoop.AddBlockResponseProto
	add := func() error {
		return w.rpc.Call(t.Context(), clientprotocol.Name, "addBlock", &hadoop.AddBlockRequestProto{
			Src: &w.path, ClientName: &w.client, Previous: w.last, FileId: &w.id, Tail: ptr(true),
		}, &added)
	}
	if err := add(); err == nil {
		t.Fatal("an open end below the level")
	}
	if err := lead.group.Raise(release.SealedTails); err != nil {
		t.Fatal(err)
	}
	if err := add(); err != nil {
		t.Fatal(err)
	}
	end := added.Block
	if id := metadata.BlockID(end.B.GetBlockId()); id.Striped() || len(end.Locs) != layout.Parity+1 || len(end.BlockIndices) > 0 {
		t.Fatalf("the end: %v", end)
	}
	w.last = end.B
	locate := func(tails bool) *hadoop.LocatedBlocksProto {
		t.Helper()
		var r hadoop.GetBlockLocationsResponseProto
		get := &hadoop.GetBlockLocationsRequestProto{Src: &w.path, Offset: ptr(uint64(0)), Length: ptr(uint64(1 << 40))}
		if tails {
			get.Tails = ptr(true)
		}
		if err := w.rpc.Call(t.Context(), clientprotocol.Name, "getBlockLocations", get, &r); err != nil {
			t.Fatal(err)
		}
		return r.Locations
	}
	sees := func(when string, length int64, java, ours int, open bool) {
		t.Helper()
		l := locate(false)
		if len(l.Blocks) != java || l.FileId != nil || !l.GetIsLastBlockComplete() || l.GetUnderConstruction() != open || l.GetFileLength() != uint64(group.Length) && java == 1 {
			t.Errorf("%s Hadoop's clients see %v", when, l)
		}
		for _, b := range append(l.Blocks, l.LastBlock) {
			if !metadata.BlockID(b.B.GetBlockId()).Striped() {
				t.Errorf("%s Hadoop's clients see block %d", when, int64(b.B.GetBlockId()))
			}
		}
		if l = locate(true); len(l.Blocks) != ours || l.GetFileId() != w.id || l.GetIsLastBlockComplete() == open || !open && l.GetFileLength() != uint64(length) {
			t.Errorf("%s ours see %v", when, l)
		}
	}
	sees("while it is written", 0, 1, 2, true)
	tail := w.block(777)
	for _, at := range end.Locs {
		nodes[at.Id.GetDatanodeUuid()].has(tail, pb.ReplicaState_FINALIZED)
	}
	lead.knows(t, tail, len(end.Locs))
	lead.soft.mu.Lock()
	lead.soft.m.Pause(true) // nothing else is ordered meanwhile
	lead.soft.whole = time.Hour
	lead.soft.mu.Unlock()
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatalf("complete: %t, %v", ok, err)
	}
	err := w.rpc.Call(t.Context(), clientprotocol.Name, "append", &hadoop.AppendRequestProto{Src: &w.path, ClientName: ptr("java"), Flag: ptr(uint32(4 | 32))}, new(hadoop.AppendResponseProto))
	if err == nil {
		t.Error("a client that does not know open ends appends behind one")
	}

	// The order, as soon as the leader looks; it is repeated until there is a group.
	var order *pb.Rebuild
	eventually(t, "a datanode is told to make a group", func() bool {
		for _, d := range nodes {
			d.mu.Lock()
			for _, o := range d.orders {
				for _, x := range o.Rebuild {
					if x.Tail != nil {
						order = x
					}
				}
			}
			d.mu.Unlock()
		}
		return order != nil
	})
	if order.Tail.Id != int64(tail.ID) || order.Tail.Length != 777 || order.Group.Length != 777 || order.Erasure != 2 || len(order.TailAt) != 3 || len(order.Targets) != 3 {
		t.Fatalf("order: %v", order) // one data block and two of parity have bytes
	}
	made := func(p *pb.Part) {
		t.Helper()
		nodes[p.Node.Uuid].has(metadata.Block{
			ID: metadata.BlockID(order.Group.Id).Internal(int(p.Unit)), Generation: metadata.Generation(order.Group.Generation), Length: layout.UnitLength(777, int(p.Unit)),
		}, pb.ReplicaState_FINALIZED)
	}
	sealed := func() bool {
		f, ok := lead.ns.FileByID(metadata.INodeID(w.id))
		return ok && len(f.Blocks) == 2 && f.Blocks[1].ID == metadata.BlockID(order.Group.Id)
	}
	stored := func(n int) func() bool {
		return func() bool {
			lead.soft.mu.Lock()
			defer lead.soft.mu.Unlock()
			is, wanted, spare := lead.soft.m.Stored(fromWire(order.Group), 0)
			return is == n && wanted == 3 && spare == n-1
		}
	}
	// It can be read by now, and outlives no loss, or one; the open end outlives two.
	for i := range 2 {
		made(order.Targets[i])
		eventually(t, "the namenode knows it", stored(i+1))
		for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if sealed() {
				t.Fatalf("%d of its three internal blocks are stored, and the group is in its place", i+1)
			}
		}
	}
	made(order.Targets[2])
	eventually(t, "the group is in its place", sealed)
	sees("in the end", group.Length+777, 2, 2, false)
	if got := lead.ns.Counts().Files; got != 1 {
		t.Errorf("%d files are left", got)
	}
}

// Where there are too few datanodes for all of a group, those that would have had an internal block without bytes have one for which there is none.
func TestWhereTheInternalBlocksOfAnEndGo(t *testing.T) {
	policy, _ := metadata.ErasurePolicyNamed("RS-6-3-1024k")
	located := func(units ...byte) *namenode.LocatedBlock {
		l := &namenode.LocatedBlock{Units: units}
		for _, unit := range units {
			l.Locations = append(l.Locations, namenode.Location{Node: &namenode.Node{ID: namenode.NodeID(fmt.Sprintf("dn%d", unit))}})
		}
		return l
	}
	for _, c := range []struct {
		length int64
		units  []byte
		want   string
	}{
		{777, []byte{0, 1, 2, 3, 4, 5, 6, 7, 8}, "0:dn0 6:dn6 7:dn7 8:dn8"},
		{777, []byte{0, 1, 2, 3, 4, 5, 6}, "0:dn0 6:dn6 7:dn1 8:dn2"},
		{2 << 20, []byte{0, 1, 2, 3, 4, 5}, "0:dn0 1:dn1 6:dn2 7:dn3 8:dn4"},
		{5 << 20, []byte{0, 1, 2, 3, 4, 5}, "0:dn0 1:dn1 2:dn2 3:dn3 4:dn4 6:dn5"},
		{6 << 20, []byte{0, 1, 2, 3, 4, 5}, "0:dn0 1:dn1 2:dn2 3:dn3 4:dn4 5:dn5"},
	} {
		var got []string
		for _, p := range sealTargets(policy.Layout, c.length, located(c.units...)) {
			got = append(got, fmt.Sprintf("%d:%s", p.Unit, p.Node.Uuid))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%d bytes on %v: %v, want %s", c.length, c.units, got, c.want)
		}
	}
}

// endOpen makes a closed file with an erasure coding policy of which all is an open end of 777 bytes, that the leader does not seal by itself.
func (m *member) endOpen(t *testing.T, path string, policy uint32, nodes map[string]*datanode) (*writing, metadata.Block) {
	t.Helper()
	e := newEnvelope()
	e.command.Op = &logpb.Command_SetErasurePolicy{SetErasurePolicy: &logpb.SetErasurePolicy{Target: &logpb.Target{}, Policy: 1 + policy}}
	caller := m.caller()
	check(t, m.await(func(done func(error)) {
		m.change(&caller, namenode.Retry{}, e, func(_ *namespace.Result, err error) { done(err) })
	}))
	w := m.begin(t, path, "writer of "+path, 1)
	var added hadoop.AddBlockResponseProto
	check(t, w.rpc.Call(t.Context(), clientprotocol.Name, "addBlock", &hadoop.AddBlockRequestProto{Src: &w.path, ClientName: &w.client, FileId: &w.id, Tail: ptr(true)}, &added))
	w.last = added.Block.B
	tail := w.block(777)
	for _, at := range added.Block.Locs {
		nodes[at.Id.GetDatanodeUuid()].has(tail, pb.ReplicaState_FINALIZED)
	}
	m.knows(t, tail, len(added.Block.Locs))
	x := &m.reign.Load().ends
	x.mu.Lock()
	if x.tries == nil {
		x.tries = map[metadata.BlockID]*sealTry{}
	}
	x.tries[tail.ID] = &sealTry{running: true}
	x.mu.Unlock()
	if ok, err := w.complete(); err != nil || !ok {
		t.Fatalf("complete: %t, %v", ok, err)
	}
	return w, tail
}

// Who converts a file whose end the leader cannot seal, or could, is not disturbed by the tries of that, neither while the copy is written nor when it is about to be exchanged. A try that cannot come to
// anything makes nothing; the copy of a client that is silent is nobody's.
func TestTheLeaderLeavesAloneWhatIsConverted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	lead := c.leader()
	check(t, lead.group.Raise(release.SealedTails))
	nodes := map[string]*datanode{}
	for i := range 4 {
		nodes[fmt.Sprintf("dn%d", i)] = c.datanode(fmt.Sprintf("dn%d", i))
	}
	lead.soft.mu.Lock()
	lead.soft.m.Pause(true) // nothing else is ordered meanwhile
	lead.soft.mu.Unlock()
	r := lead.reign.Load()
	for _, x := range []struct {
		what   string
		policy metadata.ErasurePolicyID
		refuse *metadata.Kind // of a try while the file is converted
	}{{"few", 1, metadata.ErrIO}, {"enough", 2, metadata.ErrBeingCreated}} {
		w, tail := lead.endOpen(t, "/"+x.what, uint32(x.policy), nodes)
		inode := metadata.INodeID(w.id)
		if x.what == "few" {
			if err := lead.sealEnd(r, inode); !errors.Is(err, metadata.ErrIO) {
				t.Errorf("%s datanodes: %v", x.what, err)
			}
			if id, err := lead.ns.Resolve(lead.myself(), fmt.Sprintf("%s/%d", rewrites, inode)); err == nil {
				t.Errorf("%s datanodes: inode %d was made for a group that has no places", x.what, id)
			}
		}
		copied := &writing{t: t, rpc: lead.rpc(t), client: "operator of " + x.what}
		var made hadoop.BeginRewriteResponseProto
		begin := &hadoop.BeginRewriteRequestProto{Src: &w.path, ClientName: &copied.client, Policy: ptr(namenode.ReplicationPolicy), Replication: ptr(uint32(1))}
		check(t, lead.operator(t, lead.config.Door.Daemon(), "beginRewrite", begin, &made))
		copied.id, copied.path = made.GetSource(), fmt.Sprintf("/.reserved/.inodes/%d", made.GetSource())
		try := func(when string, open bool) {
			t.Helper()
			err := lead.sealEnd(r, inode)
			if f, there := lead.ns.FileByID(metadata.INodeID(copied.id)); !errors.Is(err, x.refuse) || !there || f.UnderConstruction != open || open && f.Holder != copied.client {
				t.Errorf("%s datanodes: a try to seal %s ends with %v; the copy is there: %t, %+v", x.what, when, err, there, f)
			}
		}
		try("when the copy was begun", true)
		b, err := copied.addBlock()
		check(t, err)
		try("while the copy is written", true)
		nodes[b.Locs[0].Id.GetDatanodeUuid()].has(copied.block(uint64(tail.Length)), pb.ReplicaState_FINALIZED)
		if x.what == "few" {
			if ok, err := copied.complete(); err != nil || !ok {
				t.Fatalf("complete: %t, %v", ok, err)
			}
			try("before the exchange", false)
			check(t, lead.operator(t, lead.config.Door.Daemon(), "endRewrite", &hadoop.EndRewriteRequestProto{Src: &w.path, Source: made.Source, Blocks: made.Blocks}, new(hadoop.EndRewriteResponseProto)))
			if f, _ := lead.ns.FileByID(inode); f == nil || f.Status.Erasure != 0 || len(f.Blocks) != 1 || f.Blocks[0].ID != metadata.BlockID(b.B.GetBlockId()) {
				t.Errorf("converted: %+v", f)
			}
			continue
		}
		lead.leases.mu.Lock()
		lead.leases.holders[copied.client].heard -= namespace.SoftLimit + 1000
		lead.leases.mu.Unlock()
		ended := make(chan error, 1)
		go func() { ended <- lead.sealEnd(r, inode) }()
		var order *pb.Rebuild
		eventually(t, "a datanode is told to make a group", func() bool {
			for _, d := range nodes {
				d.mu.Lock()
				for _, o := range d.orders {
					for _, x := range o.Rebuild {
						order = x
					}
				}
				d.mu.Unlock()
			}
			return order != nil
		})
		layout := metadata.ErasurePolicies()[1].Layout
		for _, p := range order.Targets {
			nodes[p.Node.Uuid].has(metadata.Block{
				ID: metadata.BlockID(order.Group.Id).Internal(int(p.Unit)), Generation: metadata.Generation(order.Group.Generation), Length: layout.UnitLength(tail.Length, int(p.Unit)),
			}, pb.ReplicaState_FINALIZED)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if f, _ := lead.ns.FileByID(inode); f == nil || len(f.Blocks) != 1 || !f.Blocks[0].ID.Striped() {
			t.Errorf("sealed: %+v", f)
		}
		if f, there := lead.ns.FileByID(metadata.INodeID(copied.id)); there {
			t.Errorf("the copy of a silent client stays: %+v", f)
		}
	}
}

// A datanode that did not take what it should is avoided by all groups for a while.
func TestWhoRefusesAnEndIsAvoided(t *testing.T) {
	var x sealing
	now := time.Now()
	group := metadata.Block{ID: metadata.FirstGroupID, Generation: 7}
	o := newSealOrder(now, "dn1", 777)
	o.message = &pb.Rebuild{Group: wireBlock(group), Targets: []*pb.Part{{Unit: 0, Node: &pb.DatanodeID{Uuid: "dn2"}}, {Unit: 4, Node: &pb.DatanodeID{Uuid: "dn3"}}}}
	x.ordered = append(x.ordered, o)
	unit := metadata.Block{ID: group.ID.Internal(4), Generation: 7}
	x.notTaken(now, "dn4", unit, "dn2")                                            // it is not its order
	x.notTaken(now, "dn1", metadata.Block{ID: unit.ID, Generation: 6}, "dn2")      // an older one
	x.notTaken(now, "dn1", metadata.Block{ID: unit.ID + 16, Generation: 7}, "dn2") // another group
	x.notTaken(now, "dn1", unit, "dn5")                                            // it is no target
	x.notTaken(now.Add(-time.Second), "dn1", unit, "dn3")
	x.notTaken(now, "dn1", unit, "dn3")
	x.over(o)
	if got := fmt.Sprint(x.avoid(now), x.avoid(now.Add(refusedFor-1)), x.avoid(now.Add(refusedFor)), len(x.ordered), len(x.refused)); got != "[dn3] [dn3] [] 0 0" {
		t.Errorf("avoided: %s", got)
	}
}

// A group that lacks what datanodes refuse, or what does not come, has to do where one more of it may be lost; where none may, it fails when all that is missing was refused.
func TestWhenAGroupIsEnough(t *testing.T) {
	const grace = 10 * time.Second
	start := time.Now()
	for _, c := range []struct {
		missing, refused []namenode.NodeID
		spare            int
		after            time.Duration
		want             string
	}{
		{nil, nil, 3, 0, "true <nil>"},
		{nil, nil, 0, 0, "true <nil>"},
		{[]namenode.NodeID{"a"}, nil, 2, 0, "false <nil>"},
		{[]namenode.NodeID{"a"}, nil, 2, grace - 1, "false <nil>"},
		{[]namenode.NodeID{"a"}, nil, 2, grace, "true <nil>"},
		{[]namenode.NodeID{"a"}, nil, 0, grace, "false <nil>"},
		{[]namenode.NodeID{"a"}, nil, 0, sealPatience, "false context deadline exceeded"},
		{[]namenode.NodeID{"a"}, []namenode.NodeID{"a", "b"}, 1, 0, "true <nil>"},
		{[]namenode.NodeID{"a", "c"}, []namenode.NodeID{"a", "b"}, 1, 0, "false <nil>"},
		{[]namenode.NodeID{"a", "b"}, []namenode.NodeID{"b", "a"}, 0, 0, "false datanodes [a b] did not take what they should"},
	} {
		var x sealing
		o := newSealOrder(start, "dn1", 777)
		o.refused = c.refused
		enough, err := x.verdict(start, o, c.missing, c.spare, grace)
		if c.after > 0 {
			enough, err = x.verdict(start.Add(c.after), o, c.missing, c.spare, grace)
		}
		if got := fmt.Sprint(enough, " ", err); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	var x sealing
	o := newSealOrder(start, "dn1", 777)
	_, _ = x.verdict(start, o, []namenode.NodeID{"a", "b"}, 0, grace)
	if enough, _ := x.verdict(start.Add(grace), o, []namenode.NodeID{"a"}, 1, grace); enough {
		t.Error("one more has come just now, and the other is not waited for")
	}
}

// A datanode that lives and refuses writes does not keep an end from being sealed, and the next one is not on it.
func TestSealingGoesOnWithoutWhoRefuses(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	lead := c.leader()
	check(t, lead.group.Raise(release.SealedTails))
	nodes := map[string]*datanode{}
	for i := range 5 {
		nodes[fmt.Sprintf("dn%d", i)] = c.datanode(fmt.Sprintf("dn%d", i))
	}
	lead.soft.mu.Lock()
	lead.soft.m.Pause(true)     // nothing else is ordered meanwhile
	lead.soft.whole = time.Hour // nothing is accepted because it is late
	lead.soft.mu.Unlock()
	r := lead.reign.Load()
	layout := metadata.ErasurePolicies()[1].Layout // RS-3-2
	order := func() (o *sealOrder) {
		eventually(t, "a datanode is to make a group", func() bool {
			r.ends.mu.Lock()
			defer r.ends.mu.Unlock()
			if len(r.ends.ordered) > 0 {
				o = r.ends.ordered[0]
			}
			return o != nil
		})
		return o
	}
	var refuses namenode.NodeID
	for _, path := range []string{"/first", "/second"} {
		w, tail := lead.endOpen(t, path, 2, nodes)
		ended := make(chan error, 1)
		go func() { ended <- lead.sealEnd(r, metadata.INodeID(w.id)) }()
		o := order()
		group := fromWire(o.message.Group)
		for i, p := range o.message.Targets {
			unit := metadata.Block{ID: group.ID.Internal(int(p.Unit)), Generation: group.Generation, Length: layout.UnitLength(tail.Length, int(p.Unit))}
			switch {
			case namenode.NodeID(p.Node.Uuid) == refuses:
				t.Errorf("%s: the group is on %s, which refuses", path, refuses)
			case path == "/first" && i == 2:
				refuses = namenode.NodeID(p.Node.Uuid)
				r.ends.notTaken(time.Now(), o.node, unit, refuses)
			default:
				nodes[p.Node.Uuid].has(unit, pb.ReplicaState_FINALIZED)
			}
		}
		check(t, <-ended)
		if f, _ := lead.ns.FileByID(metadata.INodeID(w.id)); f == nil || len(f.Blocks) != 1 || f.Blocks[0].ID != group.ID {
			t.Errorf("%s: sealed: %+v", path, f)
		}
	}
}

// Ends are tried a few at a time, and again later when that failed; one that is gone is forgotten.
func TestWhenOpenEndsAreTried(t *testing.T) {
	var x sealing
	now := time.Now()
	ends := []metadata.BlockID{1, 2, 3, 4, 5, 6}
	first := x.due(now, ends)
	if len(first) != sealsAtOnce || len(x.due(now, ends)) != 0 {
		t.Fatalf("first %v", first)
	}
	x.ended(1, nil)
	x.ended(2, errors.New("no datanode"))
	if got := x.due(now, ends[1:]); len(got) != 2 || got[0] != 5 || got[1] != 6 {
		t.Errorf("then %v", got)
	}
	for _, id := range []metadata.BlockID{3, 4, 5, 6} {
		x.ended(id, nil)
	}
	if wait := x.tries[2].next.Sub(now); wait < sealAgain {
		t.Errorf("one that failed waits for %v", wait)
	}
	if got := x.due(x.tries[2].next.Add(-1), ends[1:2]); len(got) != 0 {
		t.Errorf("one that failed is tried again at once")
	}
	if got := x.due(x.tries[2].next, ends[1:2]); len(got) != 1 {
		t.Errorf("one that failed is not tried again")
	}
	x.ended(2, errors.New("no datanode"))
	if try := x.tries[2]; try.wait != 4*sealAgain {
		t.Errorf("waits for %v after two failures", try.wait)
	}
	if x.due(now, nil); len(x.tries) != 0 {
		t.Errorf("%d are remembered that are gone", len(x.tries))
	}
}

// A datanode that makes a group is waited for as long as it gets on by a percent a minute, and before it has begun as long as those in front of it may take; not when it is silent, begins
// again and again, or another one says so.
func TestHowLongASealIsWaitedFor(t *testing.T) {
	start := time.Unix(1e9, 0)
	const length = 1 << 30
	said := func(percent int, waits bool) []blockmanager.Progress {
		return []blockmanager.Progress{{ID: 5, Generation: 7, Percent: percent, Waits: waits}}
	}
	for name, c := range map[string]struct {
		say  func(second int) (namenode.NodeID, []blockmanager.Progress)
		want int // seconds
	}{
		"silent":     {func(int) (namenode.NodeID, []blockmanager.Progress) { return "dn1", nil }, 60},
		"hangs":      {func(int) (namenode.NodeID, []blockmanager.Progress) { return "dn1", said(3, false) }, 60},
		"gets on":    {func(s int) (namenode.NodeID, []blockmanager.Progress) { return "dn1", said(min(s/59, 100), false) }, 59*100 + 60},
		"too slowly": {func(s int) (namenode.NodeID, []blockmanager.Progress) { return "dn1", said(s/61, false) }, 60},
		"again":      {func(s int) (namenode.NodeID, []blockmanager.Progress) { return "dn1", said(s%30, false) }, 29 + 60},
		"waits":      {func(int) (namenode.NodeID, []blockmanager.Progress) { return "dn1", said(0, true) }, 60 + 256 - 1 + 60},
		"another":    {func(s int) (namenode.NodeID, []blockmanager.Progress) { return "dn2", said(s, false) }, 60},
		"of another one": {func(s int) (namenode.NodeID, []blockmanager.Progress) {
			return "dn1", []blockmanager.Progress{{ID: 6, Generation: 7, Percent: s}, {ID: 5, Generation: 6, Percent: s}}
		}, 60},
	} {
		var x sealing
		o := newSealOrder(start, "dn1", length)
		o.message = &pb.Rebuild{Group: &pb.Block{Id: 5, Generation: 7}}
		x.ordered = append(x.ordered, o)
		second := 0
		for ; second < 10_000; second++ {
			now := start.Add(time.Duration(second) * time.Second)
			if x.stands(now, o) {
				break
			}
			node, list := c.say(second)
			x.progress(now, node, list)
		}
		if second != c.want {
			t.Errorf("%s: it is given up after %d s, want %d", name, second, c.want)
		}
	}
}
