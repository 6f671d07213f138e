package namespace

import (
	"fmt"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// addBlockTo commits the block that the client has finished and appends a new, empty one. Block and Offset are the new
// block, or the one that an earlier, identical request appended.
//
// Errors: those of checkLease; ErrIO when previous is not the file's last block, or does not agree with it.
func (ns *Namespace) addBlockTo(t *txn, op *logpb.AddBlock) {
	n, err := ns.checkLease(&t.caller, metadata.INodeID(op.Inode), op.ClientName)
	if err == nil {
		err = n.file.checkNodes(new(blockOf(op.Block)), op.Nodes)
	}
	if err != nil {
		t.fail(err)
		return
	}
	var previous *metadata.Block
	if op.Previous.GetId() != 0 {
		previous = new(blockOf(op.Previous))
	}
	f := n.file
	again, err := ns.isRepeated(n, previous)
	if err != nil {
		t.fail(err)
		return
	}
	if again {
		last := *f.last()
		t.result.Block, t.result.Offset = &last, f.length-last.Length
		return
	}
	if len(f.blocks) >= MaxBlocks {
		t.failf(metadata.ErrIO, "File has reached the limit on maximum number of blocks "+
			"(dfs.namenode.fs-limits.max-blocks-per-file): %d >= %d", len(f.blocks), MaxBlocks)
		return
	}
	block := blockOf(op.Block)
	err = ns.checkNewBlock(block)
	if err == nil && !f.mayHave(block.ID, len(f.blocks)) {
		err = metadata.Errorf(metadata.ErrInvalidArgument, "Block %v does not follow in %s, whose erasure coding policy is %d", block, n.path(), f.erasure)
	}
	if err != nil {
		t.fail(err)
		return
	}
	before := ns.metered(n)
	if ns.meta.quotas > 0 {
		// What the block before turned out not to need is free by then.
		free := usage{}
		if previous != nil && f.lastState() == UnderConstruction && previous.ID == f.last().ID && previous.Length >= 0 && previous.Length <= f.room(previous.ID) {
			free = n.uses(f.fullSpace(previous.ID) - f.blockSpace(*previous))
		}
		if err := ns.checkQuota(n.parent, nil, free, n.uses(f.fullSpace(block.ID))); err != nil {
			t.fail(err)
			return
		}
	}
	if previous != nil {
		if err := ns.commitLast(n, *previous); err != nil {
			t.fail(err)
			return
		}
	}
	ns.touch(n)
	offset := f.length
	ns.appendBlock(n, block)
	f.open.state, f.open.recovery = UnderConstruction, 0
	if previous != nil && f.open.behind == behindNone {
		f.open.behind = behindBlock
	}
	f.open.synced, f.open.nodes = false, op.Nodes
	ns.recharge(n, before)
	ns.lastAdded(n)
	t.result.Block, t.result.Offset = &block, offset
}

// isRepeated compares the block that the client says it finished with the file's last blocks
// (FSDirWriteFileOp.analyzeFileState; ids only, as clients may have an old generation).
func (ns *Namespace) isRepeated(n *inode, previous *metadata.Block) (bool, error) {
	f := n.file
	last := f.last()
	if sameBlock(previous, last) {
		return false, nil
	}
	switch {
	case previous == nil && last != nil && f.lastState() == Complete && ns.mayNameNone(n):
		return false, nil
	case sameBlock(previous, f.penultimate()), previous == nil && len(f.blocks) > 1 && (f.open.behind == behindNone || f.open.behind == behindAny && n.hasBodies()):
		// The client has not seen the answer to its request: it cannot have written into the block either.
		if last.Length != 0 || f.lastState() == Complete {
			return false, metadata.Errorf(metadata.ErrIO, "Request looked like a retry to allocate block %s but it already contains %d bytes",
				blockName(*last), last.Length)
		}
		return true, nil
	}
	return false, metadata.Errorf(metadata.ErrIO,
		"Cannot allocate block in %s: passed 'previous' block %s does not match actual last block in file %s",
		n.path(), blockNameOrNull(previous), blockNameOrNull(last))
}

// mayNameNone reports whether the writer of n, whose last block is complete, may want another one without naming that: it wants the first one after an append,
// which had no block to hand out. What the append found may be gone since, as a snapshot of the block. Who has ever named a block, and then names none, has lost track.
func (ns *Namespace) mayNameNone(n *inode) bool {
	f := n.file
	last := f.last()
	switch {
	case f.open.behind == behindNone, last.ID.Striped(), last.Length >= f.blockSize:
		return true
	case f.open.behind == behindBlock:
		return false
	}
	return n.endsWithBody() || n.unaligned() || ns.snapshotHas(n, len(f.blocks)-1)
}

func sameBlock(a, b *metadata.Block) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	return a.ID == b.ID
}

// commitLast makes the length and generation of the last block final. It does nothing when they are already.
func (ns *Namespace) commitLast(n *inode, b metadata.Block) error {
	f := n.file
	last := f.last()
	if last == nil || f.lastState() == Complete {
		return nil
	}
	switch {
	case f.lastState() == UnderRecovery:
		return metadata.Errorf(metadata.ErrIO, "Commit or complete block %s, whereas it is under recovery.", blockName(b))
	case b.ID != last.ID:
		return metadata.Errorf(metadata.ErrIO, "Trying to commit inconsistent block: id = %d, expected id = %d", b.ID, last.ID)
	case b.Generation != last.Generation:
		return metadata.Errorf(metadata.ErrIO, "Commit block with mismatching GS. NN has %s, client submits %s", blockName(*last), blockName(b))
	case b.Length < last.Length || b.Length > maxLength:
		return metadata.Errorf(metadata.ErrIO, "Commit block %s with length %d, of which %d bytes are known", blockName(b), b.Length, last.Length)
	}
	ns.touch(n)
	f.setLastLength(b.Length)
	f.open.completed()
	ns.lastChanged(n)
	return nil
}

// checkNewBlock checks that a new block comes from the ranges that were handed out, and is nobody's: of two files with one
// block neither could be deleted without damage to the other.
func (ns *Namespace) checkNewBlock(b metadata.Block) error {
	if !ns.meta.given(b.ID) || b.Generation < metadata.FirstGeneration || b.Generation >= ns.meta.nextGeneration || b.Length != 0 {
		return metadata.Errorf(metadata.ErrInvalidArgument, "Block %v is not of a reserved range", b)
	}
	owner, err := ns.byBlock(b.ID)
	if err != nil {
		return err
	}
	kept := false
	if owner == nil {
		_, kept, err = ns.keptBlock(b.ID)
	}
	if err != nil {
		return err
	}
	if kept {
		return metadata.Errorf(metadata.ErrInvalidArgument, "Block %v is already of a snapshot", b)
	}
	if owner != nil {
		return metadata.Errorf(metadata.ErrInvalidArgument, "Block %v is already of inode %d", b, owner.id)
	}
	return nil
}

// maxPipeline bounds the datanodes of a pipeline: one for each replica that there may be.
const maxPipeline = metadata.MaxReplication

// checkNodes bounds what a file keeps of the pipeline of a block, nil for none.
func (f *file) checkNodes(b *metadata.Block, nodes []string) error {
	most, gaps := maxPipeline, false
	if b != nil && b.ID.Striped() && f.coded() {
		most, gaps = f.layout().Units(), true
	}
	if len(nodes) > most {
		return metadata.Errorf(metadata.ErrInvalidArgument, "A pipeline of %d datanodes, %d is the limit", len(nodes), most)
	}
	for _, id := range nodes {
		if id == "" && !gaps || len(id) > MaxName {
			return metadata.Errorf(metadata.ErrInvalidArgument, "Id of a datanode of %d bytes, %d is the limit", len(id), MaxName)
		}
	}
	return nil
}

func blockName(b metadata.Block) string { return fmt.Sprintf("blk_%d_%d", b.ID, b.Generation) }

func blockNameOrNull(b *metadata.Block) string {
	if b == nil {
		return "null"
	}
	return blockName(*b)
}
