package namespace

import (
	"errors"
	"slices"
	"testing"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// A sync leaves its trace in the log, also one that says no length, and so does the pipeline: both outlive restarts,
// recoveries that start over and a new pipeline, and nobody drops the block.
func TestSyncedBlockIsNotDropped(t *testing.T) {
	w := newWorld(t, Config{})
	v := w.do(super, &logpb.ReserveIDs{Blocks: 2, Generations: 9}).Reserved
	generation := func(i int) uint64 { return uint64(v.FirstGeneration) + uint64(i) }
	id := uint64(w.do(super, create("/wal", "c")).Status.ID)
	block := &logpb.Block{Id: int64(v.FirstBlock), Generation: generation(0)}
	must := func(op any) {
		t.Helper()
		if r := w.do(super, op); r.Err != nil {
			t.Fatal(r.Err)
		}
		w.check()
	}
	file := func() *FileInfo {
		t.Helper()
		f, ok := w.ns.FileByID(metadata.INodeID(id))
		if !ok {
			t.Fatal("the file is gone")
		}
		return f
	}
	must(&logpb.AddBlock{Inode: id, ClientName: "c", Block: block, Nodes: []string{"dn1", "dn2"}})
	if f := file(); f.Synced || !slices.Equal(f.Nodes, []string{"dn1", "dn2"}) {
		t.Errorf("a new block: %+v", f)
	}
	must(&logpb.Fsync{Inode: id, ClientName: "c", LastBlockLength: -1})
	renewed := &logpb.Block{Id: block.Id, Generation: generation(1)}
	must(&logpb.UpdatePipeline{ClientName: "c", OldBlock: block, NewBlock: renewed, Nodes: []string{"dn1", "dn3"}})
	must(&logpb.StartRecovery{Inode: id, Holder: "c", RecoveryId: generation(2)})
	w.reopen()
	must(&logpb.StartRecovery{Inode: id, Holder: RecoveryHolder, RecoveryId: generation(3)})
	if f := file(); !f.Synced || !slices.Equal(f.Nodes, []string{"dn1", "dn3"}) {
		t.Errorf("after a restart: %+v", f)
	}
	drop := &logpb.CommitRecovery{Block: renewed, RecoveryId: generation(3), Close: true, DeleteBlock: true}
	if r := w.do(super, drop); !errors.Is(r.Err, metadata.ErrIO) || len(file().Blocks) != 1 {
		t.Errorf("the block is dropped: %v, %+v", r.Err, file())
	}
	must(&logpb.CommitRecovery{Block: renewed, RecoveryId: generation(3), Close: true, Length: 77})
	if f := file(); f.UnderConstruction || f.Status.Length != 77 || f.Synced || f.Nodes != nil {
		t.Errorf("recovered: %+v", f)
	}
	// What was true of one block is not of the next.
	must(&logpb.Append{Target: to("/wal"), ClientName: "c", NewBlock: true})
	must(&logpb.AddBlock{
		Inode: id, ClientName: "c", Previous: &logpb.Block{Id: block.Id, Generation: generation(3), Length: 77},
		Block: &logpb.Block{Id: block.Id + 1, Generation: generation(4)},
	})
	if f := file(); f.Synced || f.Nodes != nil {
		t.Errorf("the next block: %+v", f)
	}
	for _, nodes := range [][]string{{""}, make([]string, maxPipeline+1)} {
		r := w.do(super, &logpb.UpdatePipeline{
			ClientName: "c", OldBlock: &logpb.Block{Id: block.Id + 1, Generation: generation(4)},
			NewBlock: &logpb.Block{Id: block.Id + 1, Generation: generation(5)}, Nodes: nodes,
		})
		if !errors.Is(r.Err, metadata.ErrInvalidArgument) {
			t.Errorf("a pipeline of %d: %v", len(nodes), r.Err)
		}
	}
}
