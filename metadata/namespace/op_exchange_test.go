package namespace

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

func (w *world) blocks(path string) []metadata.Block {
	w.t.Helper()
	f, err := w.ns.Blocks(super, path, 0, 1<<40)
	if err != nil {
		w.t.Fatal(err)
	}
	var all []metadata.Block
	for _, b := range f.Blocks {
		all = append(all, b.Block)
	}
	return all
}

func (w *world) space(path string) int64 {
	w.t.Helper()
	q, err := w.ns.QuotaUsage(super, path)
	if err != nil {
		w.t.Fatal(err)
	}
	return q.Space
}

// inode is the number of a file.
func (w *world) inode(path string) uint64 {
	w.t.Helper()
	st, err := w.ns.Stat(super, path)
	if err != nil || st == nil {
		w.t.Fatalf("%s: %v, %v", path, st, err)
	}
	return uint64(st.ID)
}

// open makes a file with an open end in a directory with a policy: a group of so many bytes, unless that is 0, and a replicated block.
func (w *world) openEnd(path string, group int64) (inode uint64, tail *logpb.Block) {
	w.t.Helper()
	inode = uint64(w.must(create(path, "c")).Status.ID)
	var previous *logpb.Block
	if group > 0 {
		previous = w.group()
		w.must(&logpb.AddBlock{Inode: inode, ClientName: "c", Block: previous})
		previous.Length = group
	}
	tail = w.block()
	w.must(&logpb.AddBlock{Inode: inode, ClientName: "c", Previous: previous, Block: tail, Nodes: []string{"a", "b", "c"}})
	return inode, tail
}

// The life of an open end: bytes are flushed to it, groups take its place while the file is open, another end follows, and is sealed when the file is closed. What
// was in front stays, a snapshot keeps what it has, and quotas count what is there.
func TestOpenEndBecomesGroups(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/ec"), Mode: 0o755})
	w.must(erasure("/ec", rs32))
	w.must(&logpb.Mkdirs{Target: to("/stage"), Mode: 0o755})
	w.must(erasure("/stage", rs32))
	w.must(&logpb.SetQuota{Target: to("/ec"), Names: -1, Space: 1000 * mib})
	w.must(&logpb.SetQuota{Target: to("/stage"), Names: -1, Space: 1000 * mib})
	id, tail := w.openEnd("/ec/f", 2*mib)
	first := w.blocks("/ec/f")[0]
	w.must(&logpb.Fsync{Inode: id, ClientName: "c", LastBlockLength: 200})
	tail.Length = 300
	seal := func(tail *logpb.Block, client, source string) *logpb.SealTail {
		return &logpb.SealTail{Inode: id, ClientName: client, Tail: tail, Source: w.inode(source)}
	}
	w.striped("/stage/short", 299)
	w.striped("/stage/right", 200, 100)
	w.refused(metadata.ErrInvalidArgument, seal(tail, "c", "/stage/short"))
	w.refused(metadata.ErrBeingCreated, seal(tail, "c", "/ec/f"))
	w.refused(metadata.ErrLeaseExpired, seal(tail, "d", "/stage/right"))
	w.refused(metadata.ErrBeingCreated, seal(tail, "", "/stage/right"))
	w.refused(metadata.ErrIO, seal(&logpb.Block{Id: tail.Id, Generation: tail.Generation + 1, Length: 300}, "c", "/stage/right"))
	w.refused(metadata.ErrIO, seal(&logpb.Block{Id: tail.Id, Generation: tail.Generation, Length: 199}, "c", "/stage/right"))
	w.refused(metadata.ErrIO, seal(&logpb.Block{Id: int64(first.ID), Generation: uint64(first.Generation), Length: first.Length}, "c", "/stage/right"))
	w.refused(metadata.ErrNotExist, &logpb.SealTail{Inode: id, ClientName: "c", Tail: tail, Source: 1 << 40})
	if r := w.do(bob, seal(tail, "c", "/stage/right")); metadata.KindOf(r.Err) != metadata.ErrPermission {
		t.Errorf("a stranger: %v", r.Err)
	}
	beside := w.blocks("/stage/right")
	w.must(seal(tail, "c", "/stage/right"))
	if got := w.blocks("/ec/f"); !slices.Equal(got, append([]metadata.Block{first}, beside...)) {
		t.Errorf("sealed: %v", got)
	}
	if want := first.Length + 2*mib + 3*200 + 3*100; w.space("/ec") != want || w.space("/stage") != 3*299 {
		t.Errorf("takes %d, want %d; beside it %d", w.space("/ec"), want, w.space("/stage"))
	}
	if st, err := w.ns.Stat(super, "/stage/right"); err != nil || st != nil {
		t.Errorf("what was copied to is still there: %v, %v", st, err)
	}
	w.check()
	w.reopen()

	// The file is still open: another end follows the groups, and is recovered and sealed when the writer has died.
	next, last := w.block(), beside[1]
	w.must(&logpb.AddBlock{Inode: id, ClientName: "c", Previous: wireBlock(last), Block: next, Nodes: []string{"a", "b", "c"}})
	w.must(&logpb.Fsync{Inode: id, ClientName: "c", LastBlockLength: 50})
	recovery := w.must(&logpb.ReserveIDs{Generations: 1}).Reserved.FirstGeneration
	w.must(&logpb.StartRecovery{Inode: id, RecoveryId: uint64(recovery), Holder: "c"})
	w.striped("/stage/late", 77)
	w.refused(metadata.ErrBeingCreated, seal(next, "", "/stage/late"))
	w.must(&logpb.CommitRecovery{Block: next, RecoveryId: uint64(recovery), Length: 77, Close: true})
	next.Generation, next.Length = uint64(recovery), 77
	w.must(snapshotChange("/ec", allowSnapshots))
	w.must(snapshotChange("/ec", createSnapshot, "one"))
	kept := w.blocks("/ec/.snapshot/one/f")
	w.must(&logpb.AddBlock{Inode: uint64(w.must(create("/stage/open", "d")).Status.ID), ClientName: "d", Block: w.group()})
	w.refused(metadata.ErrBeingCreated, seal(next, "", "/stage/open"))
	w.refused(metadata.ErrRetriable, &logpb.Append{Target: to("/ec/f"), ClientName: "java", NewBlock: true})
	if r := w.do(bob, seal(next, "", "/stage/late")); metadata.KindOf(r.Err) != metadata.ErrPermission {
		t.Errorf("a stranger seals a closed file: %v", r.Err)
	}
	before := w.space("/ec")
	w.must(seal(next, "", "/stage/late"))
	if got := w.space("/ec"); got != before+77*3 { // the snapshot has the replicas
		t.Errorf("takes %d more, want %d", got-before, 77*3)
	}
	if got := w.blocks("/ec/.snapshot/one/f"); !slices.Equal(got, kept) || len(kept) != 4 || kept[3].Length != 77 {
		t.Errorf("the snapshot has %v, and had %v", got, kept)
	}
	if o, found := w.ns.BlockOwner(metadata.BlockID(next.Id)); !found || o.Erasure != 0 || o.Replication != 3 {
		t.Errorf("the block of the snapshot is %+v", o)
	}
	w.check()
	w.reopen()
	w.must(snapshotChange("/ec", deleteSnapshot, "one"))
	w.must(&logpb.Reclaim{Limit: 100})
	w.check()
}

// An append goes on in the open end, where that may change; groups are never reopened, and a client that does not know open ends gets HDFS's answer.
func TestAppendToAFileWithAPolicy(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/ec"), Mode: 0o755})
	w.must(erasure("/ec", rs32))
	id, tail := w.openEnd("/ec/f", mib)
	tail.Length = 10
	w.must(&logpb.Complete{Inode: id, ClientName: "c", Last: tail})
	w.refused(metadata.ErrUnsupported, &logpb.Append{Target: to("/ec/f"), ClientName: "c"})
	w.must(&logpb.SetQuota{Target: to("/ec"), Names: -1, Space: 3*mib + 30 + 2*mib})
	w.refused(metadata.ErrSpaceQuota, &logpb.Append{Target: to("/ec/f"), ClientName: "c", Tails: true})
	w.must(&logpb.SetQuota{Target: to("/ec"), Names: -1, Space: -1})
	state := func() BlockState {
		t.Helper()
		f, ok := w.ns.FileByID(metadata.INodeID(id))
		if !ok {
			t.Fatal("the file is gone")
		}
		return f.LastState
	}
	r := w.must(&logpb.Append{Target: to("/ec/f"), ClientName: "c", Tails: true})
	if r.Block == nil || int64(r.Block.ID) != tail.Id || r.Offset != mib || state() != UnderConstruction {
		t.Fatalf("append: %+v, %v", r, state())
	}
	tail.Length = 20
	w.must(&logpb.Complete{Inode: id, ClientName: "c", Last: tail})

	w.must(snapshotChange("/ec", allowSnapshots))
	w.must(snapshotChange("/ec", createSnapshot, "one"))
	r = w.must(&logpb.Append{Target: to("/ec/f"), ClientName: "c", Tails: true})
	if r.Block == nil || int64(r.Block.ID) != tail.Id || state() != Complete {
		t.Fatalf("append to an end that a snapshot has: %+v, %v", r, state())
	}
	w.refused(metadata.ErrInvalidArgument, &logpb.AddBlock{Inode: id, ClientName: "c", Block: w.block()})
	w.refused(metadata.ErrInvalidArgument, &logpb.AddBlock{Inode: id, ClientName: "c", Previous: tail, Block: w.group()})
	w.striped("/ec/beside", 20)
	w.must(&logpb.SealTail{Inode: id, ClientName: "c", Tail: tail, Source: w.inode("/ec/beside")})
	last := w.blocks("/ec/f")[1]
	w.must(&logpb.AddBlock{Inode: id, ClientName: "c", Previous: wireBlock(last), Block: w.block()})
	w.must(&logpb.AbandonBlock{Inode: id, ClientName: "c", Block: wireBlock(w.blocks("/ec/f")[2])})
	w.must(&logpb.Complete{Inode: id, ClientName: "c", Last: wireBlock(last)})
	r = w.must(&logpb.Append{Target: to("/ec/f"), ClientName: "c", Tails: true})
	if r.Block != nil || r.Status.Length != mib+20 {
		t.Fatalf("append to a group: %+v", r)
	}
	w.must(&logpb.AddBlock{Inode: id, ClientName: "c", Block: w.block()})
	w.check()
	w.reopen()
	w.check()
}

// A file is converted back and forth: its bytes, owner and times stay, its quota and its snapshots know what there is.
func TestConvertedFiles(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/d"), Mode: 0o777})
	w.must(&logpb.SetQuota{Target: to("/d"), Names: -1, Space: 1000 * mib})
	id := uint64(w.do(bob, create("/d/f", "c")).Status.ID)
	b := w.block()
	w.must(&logpb.AddBlock{Inode: id, ClientName: "c", Block: b})
	b.Length = mib
	second := w.block()
	w.must(&logpb.AddBlock{Inode: id, ClientName: "c", Previous: b, Block: second})
	second.Length = 5
	w.must(&logpb.Complete{Inode: id, ClientName: "c", Last: second})
	was, _ := w.ns.Stat(super, "/d/f")
	sum := BlocksSum(w.blocks("/d/f"))

	stage := func(path string, policy, replication uint32, length int64) uint64 {
		t.Helper()
		op := create(path, "s")
		op.Erasure, op.Replication, op.Overwrite = 1+policy, replication, true
		r := w.do(bob, op)
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		at := uint64(r.Status.ID)
		var previous *logpb.Block
		for length > 0 {
			b := w.block()
			room := int64(mib)
			if policy != 0 {
				b = w.group()
				room = 3 * mib
			}
			w.must(&logpb.AddBlock{Inode: at, ClientName: "s", Previous: previous, Block: b})
			b.Length = min(length, room)
			length -= b.Length
			previous = b
		}
		w.must(&logpb.Complete{Inode: at, ClientName: "s", Last: previous})
		return at
	}
	w.must(&logpb.Mkdirs{Target: to("/stage"), Mode: 0o777})
	w.must(snapshotChange("/d", allowSnapshots))
	w.must(snapshotChange("/d", createSnapshot, "plain"))
	convert := func(source, sum uint64) *logpb.ConvertFile {
		return &logpb.ConvertFile{Target: to("/d/f"), Blocks: sum, Source: source}
	}
	coded := stage("/stage/coded", rs32, 1, mib+5)
	w.refused(metadata.ErrIO, convert(coded, sum+1))
	w.refused(metadata.ErrInvalidArgument, convert(stage("/stage/other", rs32, 1, mib+4), sum))
	w.refused(metadata.ErrNotExist, &logpb.ConvertFile{Target: to("/d"), Blocks: sum, Source: coded})
	if r := w.do(alice, convert(coded, sum)); metadata.KindOf(r.Err) != metadata.ErrPermission {
		t.Errorf("a stranger: %v", r.Err)
	}
	w.must(&logpb.SetQuota{Target: to("/d"), Names: -1, Space: 3*(mib+5) + mib})
	w.refused(metadata.ErrSpaceQuota, convert(coded, sum))
	// Said before, to the byte: the snapshot goes on to have the replicas.
	allows := func(space int64, policy metadata.ErasurePolicyID, replication uint16) bool {
		t.Helper()
		w.must(&logpb.SetQuota{Target: to("/d"), Names: -1, Space: space})
		err := w.ns.CheckConvert(was.ID, policy, replication)
		if err != nil && metadata.KindOf(err) != metadata.ErrSpaceQuota {
			t.Fatal(err)
		}
		return err == nil
	}
	if groups := int64(3*(mib+5) + mib + 5 + 2*mib); allows(groups-1, rs32, 1) || !allows(groups, rs32, 1) {
		t.Error("the quota that is too small for groups is another one than that of the command")
	}
	if replicas := int64(5 * (mib + 5)); allows(replicas-1, 0, 2) || !allows(replicas, 0, 2) {
		t.Error("the quota that is too small for replicas is not what they take")
	}
	w.must(&logpb.SetQuota{Target: to("/d"), Names: -1, Space: 3*(mib+5) + mib + 5 + 2*mib - 1})
	w.refused(metadata.ErrSpaceQuota, convert(coded, sum))
	w.must(&logpb.SetQuota{Target: to("/d"), Names: -1, Space: 1000 * mib})
	if r := w.do(bob, convert(coded, sum)); r.Err != nil {
		t.Fatal(r.Err)
	}
	is, _ := w.ns.Stat(super, "/d/f")
	if is.Erasure != rs32 || is.Replication != 1 || is.Length != was.Length || is.MTime != was.MTime || is.Owner != "bob" || is.ID != was.ID {
		t.Errorf("converted: %+v, was %+v", is, was)
	}
	if want := 3*int64(mib+5) + mib + 5 + 2*mib; w.space("/d") != want {
		t.Errorf("takes %d with the snapshot, want %d", w.space("/d"), want)
	}
	w.check()
	w.reopen()
	w.must(snapshotChange("/d", createSnapshot, "coded"))
	back := stage("/stage/back", 0, 2, mib+5)
	w.must(convert(back, BlocksSum(w.blocks("/d/f"))))
	if is, _ := w.ns.Stat(super, "/d/f"); is.Erasure != 0 || is.Replication != 2 || is.Length != was.Length {
		t.Errorf("converted back: %+v", is)
	}
	// The replicas of the file and of its oldest snapshot count with the most that either wants.
	if want := 2*3*int64(mib+5) + mib + 5 + 2*mib; w.space("/d") != want {
		t.Errorf("takes %d with two snapshots, want %d", w.space("/d"), want)
	}
	w.check()
	w.reopen()
	w.must(&logpb.Delete{Target: to("/d/f")})
	w.check()
	w.must(snapshotChange("/d", deleteSnapshot, "plain"))
	w.must(&logpb.Reclaim{Limit: 100})
	if want := int64(mib+5) + 2*mib; w.space("/d") != want {
		t.Errorf("takes %d in a snapshot, want %d", w.space("/d"), want)
	}
	w.check()
	w.must(snapshotChange("/d", deleteSnapshot, "coded"))
	w.must(&logpb.Reclaim{Limit: 100})
	if w.space("/d") != 0 {
		t.Errorf("takes %d in the end", w.space("/d"))
	}
	w.check()

	empty := w.must(create("/d/empty", "c")).Status
	w.must(&logpb.Complete{Inode: uint64(empty.ID), ClientName: "c"})
	w.must(&logpb.ConvertFile{Target: to("/d/empty"), Blocks: BlocksSum(nil), Source: stage("/stage/empty", rs32, 1, 0)})
	if w.coding("/d/empty") != rs32 {
		t.Error("an empty file is not converted")
	}
	w.check()
}

// A repetition of an exchange whose answer was lost is answered as the first one was.
func TestExchangeIsRepeatable(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/ec"), Mode: 0o755})
	w.must(erasure("/ec", rs32))
	id, tail := w.openEnd("/ec/f", mib)
	tail.Length = 5
	w.striped("/ec/beside", 5)
	cmd := NewCommand(super, []byte("0123456789abcdef"), 7, 0)
	cmd.Op = &logpb.Command_SealTail{SealTail: &logpb.SealTail{Inode: id, ClientName: "c", Tail: tail, Source: w.inode("/ec/beside")}}
	for range 2 {
		if r := w.apply(cmd); r.Err != nil || !r.OK {
			t.Fatalf("%+v", r)
		}
	}
	w.must(&logpb.Complete{Inode: id, ClientName: "c", Last: wireBlock(w.blocks("/ec/f")[1])})
	w.striped("/ec/again", mib, 5)
	cmd = NewCommand(super, []byte("0123456789abcdef"), 8, 0)
	cmd.Op = &logpb.Command_ConvertFile{ConvertFile: &logpb.ConvertFile{Target: to("/ec/f"), Blocks: BlocksSum(w.blocks("/ec/f")), Source: w.inode("/ec/again")}}
	for range 2 {
		if r := w.apply(cmd); r.Err != nil || !r.OK {
			t.Fatalf("%+v", r)
		}
		w.reopen()
	}
	w.check()
}

// exchanges is a property: whatever becomes of files with open ends, of files that are converted, and of their snapshots, the bytes are those that were
// written. A byte is the number of the write that it came with; the model knows which block has which, as datanodes do.
type exchanges struct {
	*machine
	bytes  map[metadata.BlockID][]int
	files  map[string][]int            // as written, with what is under construction
	snaps  map[string]map[string][]int // by snapshot
	writes int
	staged int
}

func (x *exchanges) content(blocks []metadata.Block) []int {
	var all []int
	for _, b := range blocks {
		all = append(all, x.bytes[b.ID][:min(int64(len(x.bytes[b.ID])), b.Length)]...)
	}
	return all
}

// grow writes n more bytes to the last block of a file.
func (x *exchanges) grow(path string, b *metadata.Block, n int64) {
	x.writes++
	for range n {
		x.bytes[b.ID] = append(x.bytes[b.ID], x.writes)
		x.files[path] = append(x.files[path], x.writes)
	}
	b.Length = int64(len(x.bytes[b.ID]))
}

func (x *exchanges) newBlock(t *rapid.T, group bool) *logpb.Block {
	b := x.block(t)
	if group {
		b.Id = int64(x.do(t, super, &logpb.ReserveIDs{Groups: 1}).Reserved.FirstGroup)
	}
	return b
}

// stage makes a closed file with given bytes.
func (x *exchanges) stage(t *rapid.T, policy uint32, content []int) uint64 {
	x.staged++
	op := create(fmt.Sprintf("/stage/%d", x.staged), "s")
	op.Erasure, op.Replication = 1+policy, rapid.Uint32Range(1, 3).Draw(t, "replication")
	r := x.do(t, super, op)
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	id := uint64(r.Status.ID)
	var previous *logpb.Block
	for len(content) > 0 {
		n := rapid.IntRange(1, len(content)).Draw(t, "block")
		b := x.newBlock(t, policy != 0)
		if r := x.do(t, super, &logpb.AddBlock{Inode: id, ClientName: "s", Previous: previous, Block: b}); r.Err != nil {
			t.Fatal(r.Err)
		}
		b.Length = int64(n)
		x.bytes[metadata.BlockID(b.Id)] = slices.Clone(content[:n])
		content, previous = content[n:], b
	}
	if r := x.do(t, super, &logpb.Complete{Inode: id, ClientName: "s", Last: previous}); r.Err != nil || !r.OK {
		t.Fatal(r.Err, r.OK)
	}
	return id
}

func (x *exchanges) step(t *rapid.T) {
	path := rapid.SampledFrom([]string{"/ec/a", "/ec/b", "/plain"}).Draw(t, "path")
	var f *FileInfo
	if st, err := x.w.ns.Stat(super, path); err == nil && st != nil {
		f, _ = x.w.ns.FileByID(st.ID)
	}
	if f == nil {
		if r := x.do(t, super, create(path, "c")); r.Err != nil {
			t.Fatal(r.Err)
		}
		x.files[path] = nil
		return
	}
	var last *metadata.Block
	var wire *logpb.Block
	if n := len(f.Blocks); n > 0 {
		last = &f.Blocks[n-1]
	}
	openEnd := last != nil && f.Status.Erasure != 0 && !last.ID.Striped()
	written := func() { // more of the last block
		if last != nil {
			if f.LastState == UnderConstruction {
				x.grow(path, last, rapid.Int64Range(0, 9).Draw(t, "more"))
			}
			wire = wireBlock(*last)
		}
	}
	ok := func(r *Result) {
		t.Helper()
		if r.Err != nil || !r.OK {
			t.Fatalf("%v, %v", r.Err, r.OK)
		}
	}
	id := uint64(f.Status.ID)
	op := rapid.SampledFrom([]string{"write", "write", "write", "close", "seal", "seal", "convert", "snapshot", "no snapshot", "delete", "cold", "recover", "fsync"}).Draw(t, "operation")
	switch {
	case op == "snapshot":
		name := drawSnapshot(t, "snapshot")
		if x.snaps[name] == nil {
			ok(x.do(t, super, snapshotChange("/ec", createSnapshot, name)))
			x.snaps[name] = map[string][]int{}
			for _, p := range []string{"/ec/a", "/ec/b"} {
				if st, err := x.w.ns.Stat(super, p); err == nil && st != nil {
					f, _ := x.w.ns.FileByID(st.ID)
					if f.LastState != Complete {
						f.Blocks = f.Blocks[:len(f.Blocks)-1]
					}
					x.snaps[name][p] = x.content(f.Blocks)
				}
			}
		}
	case op == "no snapshot":
		name := drawSnapshot(t, "snapshot")
		if x.snaps[name] != nil {
			ok(x.do(t, super, snapshotChange("/ec", deleteSnapshot, name)))
			delete(x.snaps, name)
		}
	case op == "delete":
		ok(x.do(t, super, &logpb.Delete{Target: to(path)}))
		delete(x.files, path)
	case op == "cold":
		if x.cold.AppliedIndex() > 0 {
			takeSnapshot(t, x.cold, new(bytes.Buffer))
		}
		x.cold = x.openCold(t, x.store)
	case op == "seal" && openEnd && f.LastState != UnderRecovery:
		written()
		client := ""
		if f.UnderConstruction {
			client = f.Holder
		}
		content := x.bytes[last.ID][:last.Length]
		if rapid.IntRange(0, 4).Draw(t, "wrong") == 0 {
			content = append(slices.Clone(content), 1)
			if r := x.do(t, super, &logpb.SealTail{Inode: id, ClientName: client, Tail: wire, Source: x.stage(t, uint32(f.Status.Erasure), content)}); r.Err == nil {
				t.Fatal("sealed with a byte too many")
			}
			return
		}
		ok(x.do(t, super, &logpb.SealTail{Inode: id, ClientName: client, Tail: wire, Source: x.stage(t, uint32(f.Status.Erasure), content)}))
	case op == "convert" && !f.UnderConstruction:
		policy := rapid.SampledFrom([]uint32{0, 0, rs32, xor21}).Draw(t, "policy")
		source := x.stage(t, policy, x.files[path])
		sum := BlocksSum(f.Blocks)
		if rapid.IntRange(0, 4).Draw(t, "wrong") == 0 {
			if r := x.do(t, super, &logpb.ConvertFile{Target: to(path), Blocks: sum ^ 1, Source: source}); r.Err == nil {
				t.Fatal("converted what was changed")
			}
			return
		}
		ok(x.do(t, super, &logpb.ConvertFile{Target: to(path), Blocks: sum, Source: source}))
	case f.LastState == UnderRecovery:
		last.Length = rapid.Int64Range(last.Length, int64(len(x.bytes[last.ID]))).Draw(t, "recovered")
		lost := int64(len(x.bytes[last.ID])) - last.Length
		x.bytes[last.ID] = x.bytes[last.ID][:last.Length]
		x.files[path] = x.files[path][:int64(len(x.files[path]))-lost]
		ok(x.do(t, super, &logpb.CommitRecovery{Block: wireBlock(*last), RecoveryId: uint64(f.RecoveryID), Length: last.Length, Close: true}))
	case op == "recover" && f.UnderConstruction:
		x.do(t, super, &logpb.StartRecovery{Inode: id, RecoveryId: x.block(t).Generation, Holder: f.Holder})
	case op == "fsync" && f.UnderConstruction:
		if last != nil {
			ok(x.do(t, super, &logpb.Fsync{Inode: id, ClientName: f.Holder, LastBlockLength: int64(len(x.bytes[last.ID]))}))
		}
	case !f.UnderConstruction:
		r := x.do(t, super, &logpb.Append{Target: to(path), ClientName: "c", NewBlock: rapid.Bool().Draw(t, "new"), Tails: rapid.IntRange(0, 3).Draw(t, "tails") > 0})
		if r.Err == nil && openEnd && (r.Block == nil || r.Block.ID != last.ID) {
			t.Fatalf("append: %+v", r)
		}
	case op == "close":
		written()
		ok(x.do(t, super, &logpb.Complete{Inode: id, ClientName: f.Holder, Last: wire}))
	default:
		if !openEnd {
			written()
		} else {
			wire = &logpb.Block{Id: int64(last.ID), Generation: uint64(last.Generation), Length: int64(len(x.bytes[last.ID]))}
		}
		if f.LastState == Complete && last != nil && rapid.Bool().Draw(t, "first") && last.ID.Striped() {
			wire = nil // as after an append
		}
		b := x.newBlock(t, f.Status.Erasure != 0 && rapid.Bool().Draw(t, "group"))
		if r := x.do(t, super, &logpb.AddBlock{Inode: id, ClientName: f.Holder, Previous: wire, Block: b}); (r.Err != nil) != openEnd {
			t.Fatalf("behind an open end: %v, %v", openEnd, r.Err)
		}
	}
}

// see compares what is there with what was written.
func (x *exchanges) see(t *rapid.T) {
	for name, ns := range map[string]*Namespace{"the one": x.w.ns, "the other one": x.cold} {
		if errs := ns.Check(); len(errs) > 0 {
			t.Fatalf("%s: %v", name, errors.Join(errs...))
		}
	}
	if a, b := x.w.ns.Hash(), x.cold.Hash(); a != b {
		t.Fatalf("hashes differ: %016x, %016x", a, b)
	}
	look := func(path string, want []int) {
		f, err := x.w.ns.Blocks(super, path, 0, 1<<40)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		var got []int
		for i, b := range f.Blocks {
			if i == len(f.Blocks)-1 && !f.LastComplete { // what datanodes have of it
				b.Block.Length = int64(len(x.bytes[b.Block.ID]))
			}
			got = append(got, x.content([]metadata.Block{b.Block})...)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s has %v, written was %v", path, got, want)
		}
	}
	for path, want := range x.files {
		look(path, want)
	}
	for name, files := range x.snaps {
		for path, want := range files {
			look("/ec/.snapshot/"+name+path[len("/ec"):], want)
		}
	}
}

func TestExchangesKeepEveryByte(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := &exchanges{
			machine: &machine{w: newWorldIn(t), m: newModel(), store: mem.New(), mirror: newMirror(), blocks: map[metadata.BlockID]bool{}},
			bytes:   map[metadata.BlockID][]int{}, files: map[string][]int{}, snaps: map[string]map[string][]int{},
		}
		x.w.ns.cfg.OnEffects, x.w.ns.cfg.OnEvents = x.follow, x.mirror.take
		x.cold = x.openCold(t, x.store)
		for _, op := range []any{
			&logpb.Mkdirs{Target: to("/ec"), Mode: 0o755}, &logpb.Mkdirs{Target: to("/stage"), Mode: 0o755}, erasure("/ec", rs32),
			&logpb.SetQuota{Target: to("/ec"), Names: -1, Space: 1 << 50}, &logpb.SetQuota{Target: to("/"), Names: 1 << 40, Space: 1 << 50}, snapshotChange("/ec", allowSnapshots),
		} {
			if r := x.do(t, super, op); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			x.step(t)
			x.see(t)
		}
		for _, name := range slices.Sorted(maps.Keys(x.snaps)) {
			x.do(t, super, snapshotChange("/ec", deleteSnapshot, name))
		}
		for _, path := range slices.Sorted(maps.Keys(x.files)) {
			x.do(t, super, &logpb.Delete{Target: to(path)})
		}
		x.do(t, super, &logpb.Delete{Target: to("/stage"), Recursive: true})
		x.snaps, x.files = nil, nil
		for x.w.ns.Counts().Reclaiming > 0 || x.w.ns.Counts().DeletedSnapshots > 0 {
			x.do(t, super, &logpb.Reclaim{Limit: 1000})
		}
		x.see(t)
		if len(x.blocks) > 0 {
			t.Fatalf("%d blocks of nothing are left", len(x.blocks))
		}
		if u, err := x.w.ns.QuotaUsage(super, "/"); err != nil || u.Space != 0 {
			t.Fatalf("nothing takes %+v, %v", u, err)
		}
	})
}

// A small file gives its bytes up for blocks when it is converted, and takes no other's place.
func TestSmallFilesAreConverted(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(&logpb.Mkdirs{Target: to("/d"), Mode: 0o755})
	w.must(&logpb.SetQuota{Target: to("/d"), Names: -1, Space: 1000 * mib})
	w.must(snapshotChange("/d", allowSnapshots))
	for i, length := range []int64{10, 5000} {
		path, beside := fmt.Sprintf("/d/%d", i), fmt.Sprintf("/beside%d", i)
		w.must(storeOf(path, "c", w.block(), length))
		w.must(storeOf(fmt.Sprintf("/small%d", i), "c", w.block(), length))
		w.must(snapshotChange("/d", createSnapshot, fmt.Sprint("s", i)))
		op := create(beside, "c")
		op.Erasure = 1 + rs32
		id := uint64(w.must(op).Status.ID)
		b := w.group()
		w.must(&logpb.AddBlock{Inode: id, ClientName: "c", Block: b})
		b.Length = length
		w.must(&logpb.Complete{Inode: id, ClientName: "c", Last: b})
		sum := BlocksSum(w.blocks(path))
		w.refused(metadata.ErrInvalidArgument, &logpb.ConvertFile{Target: to(path), Blocks: sum, Source: w.inode(fmt.Sprintf("/small%d", i))})
		w.must(&logpb.ConvertFile{Target: to(path), Blocks: sum, Source: id})
		if got := w.blocks(path); len(got) != 1 || int64(got[0].ID) != b.Id || w.coding(path) != rs32 {
			t.Errorf("%s: %v", path, got)
		}
		w.check()
		w.reopen()
		w.check()
	}
	for i := range 2 {
		w.must(snapshotChange("/d", deleteSnapshot, fmt.Sprint("s", i)))
		w.must(&logpb.Reclaim{Limit: 100})
		w.check()
	}
}
