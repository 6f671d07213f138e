package namespace

import (
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// inSnapshot makes a closed file of a block of 100 bytes, of which /d's snapshot s has the block.
func (w *world) inSnapshot(path string) (inode uint64) {
	w.t.Helper()
	w.must(&logpb.Mkdirs{Target: to("/d"), Mode: 0o755, CreateParent: true})
	w.must(snapshotChange("/d", allowSnapshots))
	w.file(path, 100)
	w.must(snapshotChange("/d", createSnapshot, "s"))
	return w.inode(path)
}

// A writer that an append has handed no block names none when it wants its first one: whatever has become of the snapshot that had the last block, and also if it has
// not heard the answer.
func TestTheFirstBlockOfAnAppendIsBehindNone(t *testing.T) {
	w := newWorld(t, Config{})
	id := w.inSnapshot("/d/f")
	if r := w.must(&logpb.Append{Target: to("/d/f"), ClientName: "w", Exact: true}); r.Block != nil {
		t.Fatal("an append to a block of a snapshot hands out", r.Block)
	}
	w.must(snapshotChange("/d", deleteSnapshot, "s"))
	w.must(&logpb.Reclaim{Limit: 100})
	add := func(previous *logpb.Block, want *logpb.Block, offset int64) {
		t.Helper()
		b := want
		for range 3 { // the answers are lost, and the member starts anew
			if r := w.do(super, &logpb.AddBlock{Inode: id, ClientName: "w", Previous: previous, Block: b}); r.Err != nil || r.Block.ID != metadata.BlockID(want.Id) || r.Offset != offset {
				t.Fatal(r.Block, r.Offset, r.Err)
			}
			w.reopen()
			b = w.block()
		}
	}
	first := w.block()
	add(nil, first, 100)
	// Its pipeline cannot be made.
	w.must(&logpb.AbandonBlock{Inode: id, ClientName: "w", Block: first})
	first = w.block()
	add(nil, first, 100)
	// It has bytes: who asks for it again has lost track.
	w.must(&logpb.Fsync{Inode: id, ClientName: "w", LastBlockLength: 5})
	w.refused(metadata.ErrIO, &logpb.AddBlock{Inode: id, ClientName: "w", Block: w.block()})
	// From the second one on it names the block before, and none is a mistake.
	first.Length = 1 << 20
	second := w.block()
	add(first, second, 1<<20+100)
	w.refused(metadata.ErrIO, &logpb.AddBlock{Inode: id, ClientName: "w", Block: w.block()})
	second.Length = 7
	w.must(&logpb.Complete{Inode: id, ClientName: "w", Last: second})
	w.check()

	// As who was handed a block, or has begun a file, and names none.
	if r := w.must(&logpb.Append{Target: to("/d/f"), ClientName: "w", Tails: true, Exact: true}); r.Block == nil || r.Block.ID != metadata.BlockID(second.Id) {
		t.Fatal("an append hands out", r.Block)
	}
	w.refused(metadata.ErrIO, &logpb.AddBlock{Inode: id, ClientName: "w", Block: w.block()})
	w.must(&logpb.Complete{Inode: id, ClientName: "w", Last: second})
	w.must(&logpb.Append{Target: to("/d/f"), ClientName: "w", NewBlock: true, Exact: true})
	w.refused(metadata.ErrIO, &logpb.AddBlock{Inode: id, ClientName: "w", Block: w.block()})
	id = uint64(w.must(create("/d/g", "w")).Status.ID)
	one, two := w.block(), w.block()
	w.must(&logpb.AddBlock{Inode: id, ClientName: "w", Block: one})
	one.Length = 1 << 20
	w.must(&logpb.AddBlock{Inode: id, ClientName: "w", Previous: one, Block: two})
	w.refused(metadata.ErrIO, &logpb.AddBlock{Inode: id, ClientName: "w", Block: w.block()})
	w.check()
}

// In a file that begins with a small one, too, and there as well who names no block later has lost track.
func TestTheFirstBlockBehindABodyIsBehindNone(t *testing.T) {
	w := newWorld(t, Config{})
	w.must(storeOf("/small", "c", w.block(), 3000))
	id := uint64(w.must(&logpb.Append{Target: to("/small"), ClientName: "w", Exact: true}).Status.ID)
	first := w.block()
	for range 2 {
		if r := w.must(&logpb.AddBlock{Inode: id, ClientName: "w", Block: first}); r.Block.ID != metadata.BlockID(first.Id) || r.Offset != 3000 {
			t.Fatal(r.Block, r.Offset)
		}
	}
	first.Length = 1 << 20
	w.must(&logpb.AddBlock{Inode: id, ClientName: "w", Previous: first, Block: w.block()})
	w.refused(metadata.ErrIO, &logpb.AddBlock{Inode: id, ClientName: "w", Block: w.block()})
	w.check()
}

// What commands of before have decided stays as it was: members that replay them come to the same.
func TestAppendsThatAreNotExactAreDecidedAsEver(t *testing.T) {
	w := newWorld(t, Config{})
	id := w.inSnapshot("/d/f")
	w.must(&logpb.Append{Target: to("/d/f"), ClientName: "w"})
	first := w.block()
	w.must(&logpb.AddBlock{Inode: id, ClientName: "w", Block: first})
	w.refused(metadata.ErrIO, &logpb.AddBlock{Inode: id, ClientName: "w", Block: w.block()})
	w.must(&logpb.AbandonBlock{Inode: id, ClientName: "w", Block: first})
	w.must(snapshotChange("/d", deleteSnapshot, "s"))
	w.must(&logpb.Reclaim{Limit: 100})
	w.refused(metadata.ErrIO, &logpb.AddBlock{Inode: id, ClientName: "w", Block: w.block()})
}
