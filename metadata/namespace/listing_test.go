package namespace

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/raftstore"
)

// closedFile makes a file of one block and closes it.
func (w *world) closedFile(path string) metadata.BlockID {
	w.t.Helper()
	v := w.do(super, &logpb.ReserveIDs{Blocks: 1, Generations: 1}).Reserved
	id := w.do(super, create(path, "c")).Status.ID
	b := &logpb.Block{Id: int64(v.FirstBlock), Generation: uint64(v.FirstGeneration)}
	if r := w.do(super, &logpb.AddBlock{Inode: uint64(id), ClientName: "c", Block: b}); r.Err != nil {
		w.t.Fatal(r.Err)
	}
	last := &logpb.Block{Id: b.Id, Generation: b.Generation, Length: 9}
	if r := w.do(super, &logpb.Complete{Inode: uint64(id), ClientName: "c", Last: last}); r.Err != nil || !r.OK {
		w.t.Fatal(r.Err)
	}
	return metadata.BlockID(b.Id)
}

// Whoever lists the blocks is told of each that is there from the beginning to the end, whatever happens to its file
// meanwhile: replicas of what it does not know are deleted.
func TestListingMissesNoBlock(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 8))
		w := newWorld(t, Config{Memory: 1 << (10 * seed)})
		const many = 2*entriesPerTurn + entriesPerTurn/2
		blocks := map[metadata.BlockID]string{}
		var entry [][]byte
		for i := range many {
			data, err := command(super, create(fmt.Sprintf("/d/f%05d", i), "c")).MarshalVT()
			if err != nil {
				t.Fatal(err)
			}
			entry = append(entry, data)
		}
		w.entry(entry...)
		var files []string
		for i := 0; i < many; i += 60 {
			files = append(files, fmt.Sprintf("/d/f%05d.", i))
			blocks[w.closedFile(files[len(files)-1])] = files[len(files)-1]
		}
		w.reopen()
		change := func() {
			i := r.IntN(len(files))
			switch r.IntN(12) {
			case 0:
				w.checkpoint()
			case 1, 2, 3:
				next := fmt.Sprintf("/d/f%05d-%d", r.IntN(many), w.index)
				w.do(super, &logpb.Rename{Source: to(files[i]), Target: to(next), Legacy: true})
				files[i] = next
			case 4: // what comes and goes
				for range 20 {
					w.do(super, create("/d/new", "c"))
					w.do(super, &logpb.Delete{Target: to("/d/new")})
				}
			default:
				w.do(super, &logpb.SetPermission{Target: to(files[i]), Mode: 0o600})
			}
		}
		for range r.IntN(100) {
			change()
		}
		told := map[metadata.BlockID]bool{}
		err := w.ns.EachBlock(func(o BlockOwner) bool {
			told[o.Block.ID] = true
			change()
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		missed := 0
		for id := range blocks {
			if !told[id] {
				missed++
			}
		}
		if missed > 0 {
			t.Errorf("seed %d: %d of %d blocks are missing", seed, missed, len(blocks))
		}
	}
}

// A checkpoint that becomes current while what has changed is told of takes nothing off what is still to be told.
func TestListingMissesNoBlockOfACheckpointUnderWay(t *testing.T) {
	w := newWorld(t, Config{})
	first := w.closedFile("/first")
	w.checkpoint()
	var frozen raftstore.Snapshot
	var last metadata.BlockID
	told := map[metadata.BlockID]int{}
	if err := w.ns.EachBlock(func(o BlockOwner) bool {
		told[o.Block.ID]++
		switch {
		case frozen == nil: // what the checkpoint has is being told
			for range 5 {
				w.do(super, &logpb.SetPermission{Target: to("/first"), Mode: 0o600})
				w.checkpoint()
			}
			w.closedFile("/frozen")
			var err error
			if frozen, err = w.ns.Freeze(); err != nil {
				t.Fatal(err)
			}
			last = w.closedFile("/last")
		case told[first] == 2: // what has changed
			if _, err := frozen.(raftstore.Checkpoint).Write(); err != nil {
				t.Fatal(err)
			}
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	frozen.Release()
	if told[last] != 1 {
		t.Errorf("the block of a file that came behind the frozen state was told %d times", told[last])
	}
}
