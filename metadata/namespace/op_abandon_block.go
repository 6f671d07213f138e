package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// abandonBlock takes the last block off its file, when it is the one that the client names and is not complete. It does
// nothing otherwise, so that it can be repeated.
//
// Errors: those of checkLease.
func (ns *Namespace) abandonBlock(t *txn, op *logpb.AbandonBlock) {
	n, err := ns.checkLease(&t.caller, metadata.INodeID(op.Inode), op.ClientName)
	if err != nil {
		t.fail(err)
		return
	}
	t.result.OK = true
	last := n.file.last()
	if last == nil || int64(last.ID) != op.Block.GetId() || n.file.lastState() != UnderConstruction {
		return
	}
	before := ns.metered(n)
	ns.touch(n)
	ns.removeLast(n)
	n.file.open.completed()
	ns.recharge(n, before)
}
