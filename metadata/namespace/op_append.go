package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// appendTo opens a closed file for more. When its last block is not full and no new one was asked for, that block is
// under construction again, with the generation it had, and Block says which; the client starts with addBlock
// otherwise. With new_block Block is the last block for the client's information. Status and File are the file.
//
// Errors: ErrNotExist; ErrExist for a directory; ErrBeingCreated and ErrRecoveryInProgress for an open file (with
// Result.Expired when its writer is silent); ErrPermission; ErrUnsupported for
// a file with an erasure coding policy, without new_block.
func (ns *Namespace) appendTo(t *txn, op *logpb.Append) {
	p := newPlace()
	defer p.release()
	if err := checkClient(op.ClientName, op.ClientNode, t.caller.host); err != nil {
		t.fail(err)
		return
	}
	if err := ns.resolveTarget(p, t, op.Target, toUse); err != nil {
		t.fail(err)
		return
	}
	n := p.last()
	if n != nil && n.isDir() {
		t.failf(metadata.ErrExist, "Cannot append to directory %s; already exists as a directory.", p)
		return
	}
	if err := ns.check(p, &t.caller, checks{last: metadata.Write}); err != nil {
		t.fail(err)
		return
	}
	if n == nil {
		t.failf(metadata.ErrNotExist, "Failed to append to non-existent file %s for client %s", p, t.caller.host)
		return
	}
	f := n.file
	if f.coded() && !op.NewBlock {
		t.failf(metadata.ErrUnsupported, "Append on EC file without new block is not supported. Use NEW_BLOCK create flag while appending file.")
		return
	}
	if f.open != nil {
		t.result.Expired = ns.checkTakeover(t, n, "APPEND_FILE", p.String(), op.ClientName)
		return
	}
	last := f.last()
	// A block that a snapshot has never changes again.
	reopen := last != nil && !op.NewBlock && last.Length < f.blockSize && !ns.snapshotHas(n, len(f.blocks)-1)
	if last != nil && !last.ID.Striped() && last.Length < f.blockSize { // HDFS wants room for the rest of the last block even when that is not used
		u := n.uses((f.blockSize - last.Length) * int64(f.replication))
		if err := ns.checkQuota(n.parent, nil, usage{}, u); err != nil {
			t.fail(err)
			return
		}
	}
	before := ns.metered(n)
	ns.touch(n)
	ns.openFile(n, &construction{holder: op.ClientName, user: t.caller.user, clientNode: op.ClientNode, clientHost: t.caller.host})
	if last != nil {
		if reopen {
			f.open.state = UnderConstruction
			ns.lastChanged(n)
		}
		if reopen || op.NewBlock {
			t.result.Block, t.result.Offset = new(*last), f.length-last.Length
		}
	}
	ns.recharge(n, before)
	ns.tellAppend(n, op.NewBlock)
	t.result.OK = true
	t.result.Status = new(n.status())
	t.result.File = n.info()
}
