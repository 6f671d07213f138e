package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// updatePipeline gives the block that a client writes the generation of its new pipeline; replicas of the old one are
// stale from then on.
//
// Errors: ErrIO when the block is unknown, not being written, or would become older or shorter; ErrLeaseExpired when
// somebody else writes it; ErrPermission when it is another user's.
func (ns *Namespace) updatePipeline(t *txn, op *logpb.UpdatePipeline) {
	old, next := blockOf(op.OldBlock), blockOf(op.NewBlock)
	n, err := ns.checkPipeline(&t.caller, old, op.ClientName)
	if err == nil {
		err = n.file.checkNodes(n.file.last(), op.Nodes)
	}
	if err != nil {
		t.fail(err)
		return
	}
	last := n.file.last()
	if next.ID != last.ID || next.Generation <= last.Generation || next.Generation >= ns.meta.nextGeneration ||
		next.Length < last.Length || next.Length > maxLength {
		t.failf(metadata.ErrIO, "Update %s (size=%d) to an older state: %s (size=%d)",
			blockName(*last), last.Length, blockName(next), next.Length)
		return
	}
	ns.touch(n)
	last.Generation = next.Generation
	n.file.setLastLength(next.Length)
	n.file.open.nodes = op.Nodes
	ns.lastChanged(n)
	t.result.OK = true
}

// checkPipeline finds the file whose last block holder is writing (FSNamesystem.checkUCBlock).
func (ns *Namespace) checkPipeline(c *caller, b metadata.Block, holder string) (*inode, error) {
	n, err := ns.byBlock(b.ID)
	if err != nil {
		return nil, err
	}
	if n == nil {
		return nil, metadata.Errorf(metadata.ErrIO, "%s does not exist.", blockName(b))
	}
	f := n.file
	if f.open == nil || !n.attached() {
		return nil, metadata.Errorf(metadata.ErrIO,
			"The file %s belonged to does not exist or it is not under construction.", blockName(b))
	}
	state := Complete
	if f.last().ID == b.ID {
		state = f.lastState()
	}
	if state != UnderConstruction {
		return nil, metadata.Errorf(metadata.ErrIO, "Unexpected BlockUCState: %s is %v but not %v", blockName(b), state, UnderConstruction)
	}
	if f.open.holder != holder {
		return nil, metadata.Errorf(metadata.ErrLeaseExpired, "Lease mismatch: %s is accessed by a non lease holder %s", blockName(b), holder)
	}
	if err := f.open.checkUser(c); err != nil {
		return nil, err
	}
	return n, nil
}
