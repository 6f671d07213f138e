package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// commitRecovery ends the recovery of a block (FSNamesystem.commitBlockSynchronization): the replicas agreed on a length
// under the recovery id as their generation, or there are none and the block goes. The file is closed when asked. A
// repetition finds the file closed and does nothing.
//
// Errors: ErrIO for an unknown block or another recovery than the current one, and when a block that has bytes, known or
// synced, is to go and its loss is not accepted; ErrNotExist when the file was deleted.
func (ns *Namespace) commitRecovery(t *txn, op *logpb.CommitRecovery) {
	block := blockOf(op.Block)
	n, err := ns.byBlock(block.ID)
	if err != nil {
		t.fail(err)
		return
	}
	if n == nil {
		if op.DeleteBlock {
			t.result.OK = true
			return
		}
		t.failf(metadata.ErrIO, "Block (=%s) not found", blockName(block))
		return
	}
	if !n.attached() {
		t.failf(metadata.ErrNotExist, "File not found: %s, likely due to delayed block removal", n.path())
		return
	}
	f := n.file
	if f.open == nil || f.lastState() == Complete {
		t.result.OK = true
		return
	}
	last := f.last()
	if last.ID != block.ID || f.open.state != UnderRecovery || uint64(f.open.recovery) != op.RecoveryId {
		t.failf(metadata.ErrIO, "The recovery id %d does not match current recovery id %d for block %s",
			op.RecoveryId, f.open.recovery, blockName(block))
		return
	}
	if !op.DeleteBlock && (op.Length < 0 || op.Length > maxLength) {
		t.failf(metadata.ErrInvalidArgument, "Length of block %s: %d", blockName(block), op.Length)
		return
	}
	if cut := f.open.truncate; cut > 0 && (op.DeleteBlock && !op.AcceptLoss || !op.DeleteBlock && op.Length != cut-1) {
		t.failf(metadata.ErrIO, "Block %s is being truncated to %d bytes, its recovery ended with %d", blockName(block), cut-1, op.Length)
		return
	}
	if op.DeleteBlock && !op.AcceptLoss && (last.Length > 0 || f.open.synced) {
		t.failf(metadata.ErrIO, "Block %s has bytes that were promised to be kept: it is not dropped while replicas are missing", blockName(*last))
		return
	}
	before := ns.metered(n)
	ns.touch(n)
	if op.DeleteBlock {
		ns.removeLast(n)
	} else {
		last.Generation = f.open.recovery
		f.setLastLength(op.Length)
	}
	source := f.open.source.ID
	f.open.completed()
	ns.dropSource(n, source)
	ns.recharge(n, before)
	if op.Close {
		ns.finish(n)
	}
	if !op.DeleteBlock {
		ns.lastChanged(n)
	}
	t.result.OK, t.result.File = true, n.info()
}
