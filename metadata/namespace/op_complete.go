package namespace

import (
	"errors"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// completeFile commits the last block and closes the file. OK when it is closed; not OK when the client has not said how
// long the last block became. A repetition finds the file closed, with the last block that it names, and is OK
// (HDFS-3031).
//
// Errors: those of checkLease; ErrIO when last is not the file's last block, or does not agree with it.
func (ns *Namespace) completeFile(t *txn, op *logpb.Complete) {
	var last *metadata.Block
	if op.Last.GetId() != 0 {
		last = new(blockOf(op.Last))
	}
	id := metadata.INodeID(op.Inode)
	n, err := ns.checkLease(&t.caller, id, op.ClientName)
	if err != nil {
		if errors.Is(err, metadata.ErrLeaseExpired) && ns.isClosedWith(id, last) {
			t.result.OK = true
			return
		}
		t.fail(err)
		return
	}
	if last != nil {
		before := ns.metered(n)
		if err := ns.commitLast(n, *last); err != nil {
			t.fail(err)
			return
		}
		ns.recharge(n, before)
	}
	if n.file.lastState() != Complete {
		return
	}
	ns.finish(n)
	t.result.OK = true
}

func (ns *Namespace) isClosedWith(id metadata.INodeID, last *metadata.Block) bool {
	n := ns.inodes[id] // checkLease has loaded it
	if n == nil || n.file == nil || n.file.open != nil {
		return false
	}
	real := n.file.last()
	return sameBlock(last, real) && (last == nil || last.Generation == real.Generation)
}

// finish closes an open file whose last block is complete.
func (ns *Namespace) finish(n *inode) {
	ns.touch(n)
	ns.closeFile(n)
	n.mtime = ns.meta.now
	ns.tellClose(n)
}
