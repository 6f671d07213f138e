package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// fsync records that bytes of the last block are on the disks of its datanodes, so that no recovery drops the block, and,
// when the client says it, how many readers can see at least. It never makes a block shorter.
//
// Errors: those of checkLease; ErrInvalidArgument.
func (ns *Namespace) fsync(t *txn, op *logpb.Fsync) {
	n, err := ns.checkLease(&t.caller, metadata.INodeID(op.Inode), op.ClientName)
	if err != nil {
		t.fail(err)
		return
	}
	if op.LastBlockLength > maxLength {
		t.failf(metadata.ErrInvalidArgument, "Length of the last block of %s: %d", n.path(), op.LastBlockLength)
		return
	}
	t.result.OK = true
	last := n.file.last()
	if last == nil || n.file.lastState() != UnderConstruction {
		return
	}
	if !n.file.open.synced {
		ns.touch(n)
		n.file.open.synced = true
	}
	if op.LastBlockLength > last.Length {
		ns.touch(n)
		n.file.setLastLength(op.LastBlockLength)
		ns.lastChanged(n)
	}
}
