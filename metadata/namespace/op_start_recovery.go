package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// startRecovery takes an open file away from its writer (FSNamesystem.internalReleaseLease). When all its blocks are
// complete it is closed at once, which OK says. Otherwise its last block is under recovery with the given id, its lease
// is the RecoveryHolder's, and File says what to recover. A recovery that failed is started again with a higher id.
//
// Not OK and without File: the proposer saw a holder that is not the holder any more, or the recovery id is not above
// the ones before; nothing was done.
func (ns *Namespace) startRecovery(t *txn, op *logpb.StartRecovery) {
	n, err := ns.byID(metadata.INodeID(op.Inode))
	if err != nil {
		t.fail(err)
		return
	}
	if n == nil || !n.attached() || n.file == nil || n.file.open == nil {
		t.result.OK = true
		return
	}
	o := n.file.open
	if o.holder != op.Holder {
		return
	}
	if o.state == Complete {
		ns.finish(n)
		t.result.OK, t.result.File = true, n.info()
		return
	}
	id := metadata.Generation(op.RecoveryId)
	if id <= n.file.last().Generation || id <= o.recovery || id >= ns.meta.nextGeneration {
		return
	}
	ns.touch(n)
	ns.closeFile(n)
	ns.openFile(n, &construction{
		holder: RecoveryHolder, clientHost: o.clientHost,
		state: UnderRecovery, recovery: id, truncate: o.truncate, source: o.source,
		synced: o.synced, nodes: o.nodes,
	})
	ns.lastChanged(n)
	t.result.File = n.info()
}
