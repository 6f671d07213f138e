package namespace

import (
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// inSnapshot makes a closed file of a block, which /d's snapshot s has.
func (w *world) inSnapshot(path string, length int64) (inode uint64) {
	w.t.Helper()
	w.must(&logpb.Mkdirs{Target: to("/d"), Mode: 0o755, CreateParent: true})
	w.must(snapshotChange("/d", allowSnapshots))
	w.file(path, length)
	w.must(snapshotChange("/d", createSnapshot, "s"))
	return w.inode(path)
}

// A writer that an append has handed no block names none when it wants its first one: whatever has become of the snapshot that had the last block, and also if it has
// not heard the answer.
func TestTheFirstBlockOfAnAppendIsBehindNone(t *testing.T) {
	w := newWorld(t, Config{})
	id := w.inSnapshot("/d/f", 100)
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
	id := w.inSnapshot("/d/f", 100)
	w.must(&logpb.Append{Target: to("/d/f"), ClientName: "w"})
	first := w.block()
	w.must(&logpb.AddBlock{Inode: id, ClientName: "w", Block: first})
	w.refused(metadata.ErrIO, &logpb.AddBlock{Inode: id, ClientName: "w", Block: w.block()})
	w.must(&logpb.AbandonBlock{Inode: id, ClientName: "w", Block: first})
	w.must(snapshotChange("/d", deleteSnapshot, "s"))
	w.must(&logpb.Reclaim{Limit: 100})
	w.refused(metadata.ErrIO, &logpb.AddBlock{Inode: id, ClientName: "w", Block: w.block()})
}

// A client of Hadoop's goes on in a block at the place that the file's length says, by checksums of 512 bytes. What was appended beside a snapshot begins anywhere.
func TestNobodyIsHandedABlockInWhichItWouldGoOnAtAWrongPlace(t *testing.T) {
	const mib = 1 << 20
	for name, x := range map[string]struct {
		first, second int64
		handed        bool
	}{
		"behind 100 bytes":                       {100, 50, false},
		"behind 511":                             {511, 1, false},
		"behind 512":                             {512, 50, true},
		"behind 512, and the file ends at a MiB": {512, mib - 512, false},
		"behind a full block":                    {mib, 50, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Config{})
			id := w.inSnapshot("/d/f", x.first)
			write := func(length, offset int64) *logpb.Block {
				t.Helper()
				b := w.block()
				if r := w.must(&logpb.AddBlock{Inode: id, ClientName: "w", Block: b}); r.Offset != offset {
					t.Fatal(r.Block, r.Offset)
				}
				b.Length = length
				w.must(&logpb.Complete{Inode: id, ClientName: "w", Last: b})
				return b
			}
			again := func(want *logpb.Block, tails, exact bool) {
				t.Helper()
				r := w.must(&logpb.Append{Target: to("/d/f"), ClientName: "w", Tails: tails, Exact: exact})
				if (r.Block != nil) != (want != nil) || want != nil && r.Block.ID != metadata.BlockID(want.Id) {
					t.Fatalf("an append hands out %v, want %v", r.Block, want)
				}
				w.reopen()
			}
			again(nil, false, true)
			b := write(x.second, x.first)
			for range 2 {
				again(b, true, true) // ours go on anywhere
				w.must(&logpb.Complete{Inode: id, ClientName: "w", Last: b})
				again(b, false, false) // what was decided before stays so
				w.must(&logpb.Complete{Inode: id, ClientName: "w", Last: b})
			}
			if x.handed {
				again(b, false, true)
				w.must(&logpb.Complete{Inode: id, ClientName: "w", Last: b})
			} else {
				again(nil, false, true)
				write(7, x.first+x.second)
			}
			w.check()
		})
	}
}

// Where all blocks are full the next one begins right, whatever the block size is.
func TestABlockBehindFullOnesIsHandedOut(t *testing.T) {
	w := newWorld(t, Config{})
	op := create("/f", "writer")
	op.BlockSize = 1_100_000
	w.write(w.must(op).Status.ID, op.BlockSize, op.BlockSize, 500)
	last := w.blocks("/f")[2]
	if r := w.must(&logpb.Append{Target: to("/f"), ClientName: "w", Exact: true}); r.Block == nil || r.Block.ID != last.ID || r.Offset != 2*op.BlockSize {
		t.Error(r.Block, r.Offset)
	}
}
