package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// fsync records that the last block has at least so many bytes that readers can see. It never makes a block shorter.
//
// Errors: those of checkLease; ErrInvalidArgument.
func (ns *Namespace) fsync(t *txn, op *logpb.Fsync) {
	n, err := ns.checkLease(&t.caller, metadata.INodeID(op.Inode), op.ClientName, true)
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
	if last == nil || n.file.lastState() != UnderConstruction || op.LastBlockLength <= last.Length {
		return
	}
	ns.touch(n)
	n.file.setLastLength(op.LastBlockLength)
	ns.lastChanged(n)
}
