package namespace

import (
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

const (
	rs63, rs32, xor21 = 1, 2, 4 // HDFS's numbers
	mib               = 1 << 20
)

// erasure sets a policy by HDFS's number; 0: replication.
func erasure(path string, policy uint32) *logpb.SetErasurePolicy {
	return &logpb.SetErasurePolicy{Target: to(path), Policy: 1 + policy}
}

func (w *world) must(op any) *Result {
	w.t.Helper()
	r := w.do(super, op)
	if r.Err != nil {
		w.t.Fatalf("%T: %v", op, r.Err)
	}
	return r
}

// group reserves a group, block a replicated one.
func (w *world) group() *logpb.Block {
	w.t.Helper()
	r := w.must(&logpb.ReserveIDs{Groups: 1, Generations: 1}).Reserved
	return &logpb.Block{Id: int64(r.FirstGroup), Generation: uint64(r.FirstGeneration)}
}

func (w *world) block() *logpb.Block {
	w.t.Helper()
	r := w.must(&logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved
	return &logpb.Block{Id: int64(r.FirstBlock), Generation: uint64(r.FirstGeneration)}
}

// striped makes a closed file of groups with so many bytes each.
func (w *world) striped(path string, lengths ...int64) []metadata.BlockID {
	w.t.Helper()
	id := w.must(create(path, "c")).Status.ID
	var previous *logpb.Block
	var made []metadata.BlockID
	for _, length := range lengths {
		b := w.group()
		w.must(&logpb.AddBlock{Inode: uint64(id), ClientName: "c", Previous: previous, Block: b, Nodes: []string{"n0", "n1", "", "n3"}})
		previous = &logpb.Block{Id: b.Id, Generation: b.Generation, Length: length}
		made = append(made, metadata.BlockID(b.Id))
	}
	w.must(&logpb.Complete{Inode: uint64(id), ClientName: "c", Last: previous})
	return made
}

func (w *world) refused(kind *metadata.Kind, op any) {
	w.t.Helper()
	if r := w.do(super, op); r.Err == nil || metadata.KindOf(r.Err) != kind {
		w.t.Errorf("%T %v: %v, want %v", op, op, r.Err, kind)
	}
}

func (w *world) coding(path string) metadata.ErasurePolicyID {
	w.t.Helper()
	s, err := w.ns.Stat(super, path)
	if err != nil || s == nil {
		w.t.Fatalf("%s: %v", path, err)
	}
	return s.Erasure
}

// Files have the policy that their directory had when they were made; replication is one that hides those above.
func TestFilesKeepThePolicyOfTheirBirth(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/ec/deep/er"), Mode: 0o755, CreateParent: true})
	w.striped("/ec/before")
	w.must(erasure("/ec", rs63))
	w.must(erasure("/ec/deep", 0))
	w.must(erasure("/ec/deep/er", xor21))
	for path, want := range map[string]metadata.ErasurePolicyID{"/ec/a": rs63, "/ec/new/b": rs63, "/ec/deep/c": 0, "/ec/deep/er/d": xor21, "/e": 0} {
		w.striped(path)
		if got := w.coding(path); got != want {
			t.Errorf("%s has policy %d, want %d", path, got, want)
		}
	}
	replicated, given := create("/ec/replicated", "c"), create("/given", "c")
	replicated.Erasure, given.Erasure = 1, 1+rs32
	w.must(replicated)
	w.must(given)
	w.must(&logpb.Rename{Source: to("/ec/a"), Target: to("/moved")})
	w.must(&logpb.SetErasurePolicy{Target: to("/ec/deep/er")})
	want := map[string]metadata.ErasurePolicyID{
		"/": 0, "/ec": rs63, "/ec/new": rs63, "/ec/deep": 0, "/ec/deep/er": 0, "/ec/deep/er/d": xor21, "/moved": rs63, "/ec/before": 0,
		"/ec/replicated": 0, "/given": rs32,
	}
	for _, when := range []string{"at once", "after a restart"} {
		for path, policy := range want {
			if got := w.coding(path); got != policy {
				t.Errorf("%s: %s has policy %d, want %d", when, path, got, policy)
			}
		}
		l, err := w.ns.List(super, "/ec", "", 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range l.Entries {
			if policy, ok := want["/ec/"+e.Name]; ok && policy != e.Erasure {
				t.Errorf("%s: %s is listed with policy %d, want %d", when, e.Name, e.Erasure, policy)
			}
			if e.Name == "new" && e.Erasure != rs63 {
				t.Errorf("%s: a directory below is listed with policy %d", when, e.Erasure)
			}
		}
		w.check()
		w.reopen()
	}

	w.refused(metadata.ErrNotExist, erasure("/none", rs63))
	w.refused(metadata.ErrIO, erasure("/moved", rs63))
	w.refused(metadata.ErrIO, &logpb.SetErasurePolicy{Target: to("/moved")})
	w.refused(metadata.ErrNoErasureCoding, &logpb.SetErasurePolicy{Target: to("/ec/deep/er")})
	for _, number := range []uint32{3, 6, 64, 255, 256, 1 << 31} { // rs-legacy is not built
		w.refused(metadata.ErrInvalidArgument, erasure("/ec", number))
	}
	if r := w.do(bob, erasure("/ec", rs32)); metadata.KindOf(r.Err) != metadata.ErrPermission {
		t.Errorf("a stranger: %v", r.Err)
	}
	small := create("/ec/small", "c")
	small.BlockSize = mib / 2
	w.refused(metadata.ErrIO, small)
	w.check()
}

// What groups count for in quotas and summaries, and what is told of them, also by a snapshot, from a checkpoint, and when only a snapshot has them.
func TestGroupsCountWithTheirParity(t *testing.T) {
	var effects []Effects
	w := newWorld(t, Config{OnEffects: func(e Effects) { effects = append(effects, e) }})
	w.must(&logpb.Mkdirs{Target: to("/ec"), Mode: 0o755})
	w.must(erasure("/ec", rs32))
	w.must(&logpb.SetQuota{Target: to("/ec"), Names: -1, Space: 100 * mib})
	space := func() int64 {
		t.Helper()
		q, err := w.ns.QuotaUsage(super, "/ec")
		if err != nil {
			t.Fatal(err)
		}
		s, err := w.ns.ContentSummary(super, "/ec")
		if err != nil {
			t.Fatal(err)
		}
		if s.SpaceConsumed != q.Space {
			t.Errorf("summary: %d, quota: %d", s.SpaceConsumed, q.Space)
		}
		return q.Space
	}
	ids := w.striped("/ec/f", 3*mib, 2*mib+1)
	want := int64(3*mib+2*mib) + int64(2*mib+1+2*mib)
	if got := space(); got != want {
		t.Errorf("two groups take %d, want %d", got, want)
	}
	open := uint64(w.must(create("/ec/open", "c")).Status.ID)
	w.must(&logpb.AddBlock{Inode: open, ClientName: "c", Block: w.group()})
	if got := space(); got != want+5*mib {
		t.Errorf("a group that is being written counts for %d, want %d", got-want, 5*mib)
	}
	w.must(&logpb.SetQuota{Target: to("/ec"), Names: -1, Space: want + 9*mib})
	full := uint64(w.must(create("/ec/full", "d")).Status.ID)
	w.refused(metadata.ErrSpaceQuota, &logpb.AddBlock{Inode: full, ClientName: "d", Block: w.group()})
	w.must(&logpb.Delete{Target: to("/ec/open")})
	w.must(&logpb.Delete{Target: to("/ec/full")})

	w.must(snapshotChange("/ec", allowSnapshots))
	w.must(snapshotChange("/ec", createSnapshot, "one"))
	for _, when := range []string{"at once", "after a restart", "in a snapshot", "in a snapshot, after a restart"} {
		if when == "in a snapshot" {
			w.must(&logpb.Delete{Target: to("/ec/f")})
		}
		owners := map[metadata.BlockID]BlockOwner{}
		if err := w.ns.EachBlock(func(o BlockOwner) bool { owners[o.Block.ID] = o; return true }); err != nil {
			t.Fatal(err)
		}
		for i, length := range []int64{3 * mib, 2*mib + 1} {
			o := owners[ids[i]]
			one, found := w.ns.BlockOwner(ids[i])
			if o.Erasure != rs32 || o.Block.Length != length || !found || one != o || len(owners) != 2 {
				t.Errorf("%s: group %d is %+v, by itself %+v (%v), of %d", when, ids[i], o, one, found, len(owners))
			}
		}
		f, err := w.ns.Blocks(super, "/ec/.snapshot/one/f", 0, 100*mib)
		if err != nil || f.Status.Erasure != rs32 || f.Status.Replication != 1 || len(f.Blocks) != 2 || f.Blocks[1].Block.ID != ids[1] {
			t.Errorf("%s: %+v, %v", when, f, err)
		}
		w.check()
		w.reopen()
	}
	w.must(snapshotChange("/ec", deleteSnapshot, "one"))
	w.must(&logpb.Reclaim{Limit: 100})
	gone := 0
	for _, e := range effects {
		for _, b := range e.Removed {
			if b.ID == ids[0] || b.ID == ids[1] {
				gone++
			}
		}
	}
	if gone != 2 {
		t.Errorf("%d groups of 2 are reported removed", gone)
	}
	w.check()
}

// The last block of a file with a policy may be replicated: it is the open end to which bytes go that cannot wait for a stripe.
func TestReplicatedEndOfAStripedFile(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/ec"), Mode: 0o755})
	w.must(erasure("/ec", rs63))
	w.must(&logpb.SetQuota{Target: to("/ec"), Names: -1, Space: 1000 * mib})
	id := uint64(w.must(create("/ec/f", "c")).Status.ID)
	group, tail := w.group(), w.block()
	w.must(&logpb.AddBlock{Inode: id, ClientName: "c", Block: group, Nodes: make([]string, 9)})
	group.Length = 4*mib + 5
	w.must(&logpb.AddBlock{Inode: id, ClientName: "c", Previous: group, Block: tail, Nodes: []string{"a", "b", "c"}})
	tail.Length = 77
	q, err := w.ns.QuotaUsage(super, "/ec")
	if want := int64(4*mib+5+3*mib) + 4*mib; err != nil || q.Space != want {
		t.Errorf("takes %d, want %d (%v)", q.Space, want, err)
	}
	w.reopen()
	w.refused(metadata.ErrInvalidArgument, &logpb.AddBlock{Inode: id, ClientName: "c", Previous: tail, Block: w.group()})
	w.refused(metadata.ErrInvalidArgument, &logpb.AddBlock{Inode: id, ClientName: "c", Previous: tail, Block: w.block()})
	w.must(&logpb.Complete{Inode: id, ClientName: "c", Last: tail})
	f, err := w.ns.Blocks(super, "/ec/f", 0, 100*mib)
	if err != nil || len(f.Blocks) != 2 || f.Blocks[1].Offset != 4*mib+5 || f.Length != 4*mib+5+77 {
		t.Errorf("%+v, %v", f, err)
	}
	if o, found := w.ns.BlockOwner(metadata.BlockID(tail.Id)); !found || o.Erasure != 0 || o.Replication != 4 {
		t.Errorf("the end is %+v", o)
	}
	w.check()
	w.reopen()
	w.check()
	w.striped("/ec/more", mib)
	w.refused(metadata.ErrInvalidArgument, &logpb.Concat{Target: to("/ec/f"), Sources: []*logpb.Target{to("/ec/more")}})
	w.refused(metadata.ErrInvalidArgument, &logpb.Concat{Target: to("/ec/more"), Sources: []*logpb.Target{to("/ec/f")}})
}

func TestWhatStripedFilesRefuse(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/ec"), Mode: 0o755})
	w.file("/ec/plain", 5)
	w.must(erasure("/ec", rs63))
	first := w.striped("/ec/f", 6*mib)[0]
	w.striped("/ec/g", 5)
	other := create("/ec/other", "c")
	other.Erasure = 1 + rs32
	oid := uint64(w.must(other).Status.ID)
	b := w.group()
	w.must(&logpb.AddBlock{Inode: oid, ClientName: "c", Block: b})
	b.Length = 5
	w.must(&logpb.Complete{Inode: oid, ClientName: "c", Last: b})

	w.refused(metadata.ErrUnsupported, &logpb.Truncate{Target: to("/ec/f"), Length: 1, ClientName: "c"})
	w.refused(metadata.ErrUnsupported, &logpb.Append{Target: to("/ec/f"), ClientName: "c"})
	w.refused(metadata.ErrInvalidArgument, &logpb.Concat{Target: to("/ec/f"), Sources: []*logpb.Target{to("/ec/other")}})
	w.refused(metadata.ErrInvalidArgument, &logpb.Concat{Target: to("/ec/f"), Sources: []*logpb.Target{to("/ec/plain")}})
	w.refused(metadata.ErrInvalidArgument, &logpb.Concat{Target: to("/ec/plain"), Sources: []*logpb.Target{to("/ec/f")}})
	if r := w.must(&logpb.SetReplication{Target: to("/ec/f"), Replication: 2}); r.OK {
		t.Error("the replication of a striped file can be set")
	}
	w.must(&logpb.Concat{Target: to("/ec/f"), Sources: []*logpb.Target{to("/ec/g")}})

	// An append with a new block begins a group.
	r := w.must(&logpb.Append{Target: to("/ec/f"), ClientName: "c", NewBlock: true})
	id, last := uint64(r.Status.ID), r.Block
	if last == nil || r.Status.Length != 6*mib+5 {
		t.Fatalf("append: %+v", r)
	}
	previous := &logpb.Block{Id: int64(last.ID), Generation: uint64(last.Generation), Length: last.Length}
	bad := func(id int64, nodes ...string) {
		t.Helper()
		fresh := w.group()
		if id != 0 {
			fresh.Id = id
		}
		w.refused(metadata.ErrInvalidArgument, &logpb.AddBlock{Inode: uint64(r.Status.ID), ClientName: "c", Previous: previous, Block: fresh, Nodes: nodes})
	}
	bad(int64(first))                                    // another file's
	bad(int64(first) + 1)                                // an internal block
	bad(int64(metadata.FirstGroupID) - 16)               // before the first
	bad(int64(first) + 1000*16)                          // never given
	bad(-1)                                              //
	bad(0, make([]string, 10)...)                        // more datanodes than internal blocks
	bad(0, string(make([]byte, metadata.MaxPathLength))) // no id of a datanode
	w.must(&logpb.AddBlock{Inode: id, ClientName: "c", Previous: previous, Block: w.group()})
	plain := uint64(w.must(create("/plain", "c")).Status.ID)
	w.refused(metadata.ErrInvalidArgument, &logpb.AddBlock{Inode: plain, ClientName: "c", Block: w.group()})
	w.refused(metadata.ErrInvalidArgument, &logpb.AddBlock{Inode: plain, ClientName: "c", Block: w.block(), Nodes: []string{""}})
	w.refused(metadata.ErrInvalidArgument, &logpb.ReserveIDs{Groups: -1})
	w.refused(metadata.ErrInvalidArgument, &logpb.ReserveIDs{Groups: 1 << 40})
	w.check()
}
