package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// appendTo opens a closed file for more. When its last block is not full and no new one was asked for, that block is
// under construction again, with the generation it had, and Block says which; the client starts with addBlock
// otherwise, as behind the body of a small file. With new_block Block is the last block for the client's information. Status and File are the file.
//
// Of a file with an erasure coding policy only the open end is reopened. Who knows tails is told of one that cannot be, and seals it before it goes on.
//
// Errors: ErrNotExist; ErrExist for a directory; ErrBeingCreated and ErrRecoveryInProgress for an open file (with
// Result.Expired when its writer is silent); ErrPermission; of a client that does not know tails ErrUnsupported for
// a file with an erasure coding policy, without new_block, and ErrRetriable while it has an open end.
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
	if f.coded() && !op.NewBlock && !op.Tails {
		t.failf(metadata.ErrUnsupported, "Append on EC file without new block is not supported. Use NEW_BLOCK create flag while appending file.")
		return
	}
	if f.open != nil {
		t.result.Expired = ns.checkTakeover(t, n, "APPEND_FILE", p.String(), op.ClientName)
		return
	}
	if f.openEnd() && !op.Tails {
		t.failf(metadata.ErrRetriable, "The end of %s is replicated until groups take its place, which is under way: try again.", p)
		return
	}
	last := f.last()
	// A block that a snapshot has never changes again, and a body never does: what is appended goes to a block behind it. So blocks begin anywhere, and only who knows
	// tails, who is ours, can go on there.
	reopen := last != nil && !op.NewBlock && !last.ID.Striped() && last.Length < f.blockSize && !n.endsWithBody() && (op.Tails || !n.unaligned() && !(op.Exact && f.misleads())) && !ns.snapshotHas(n, len(f.blocks)-1)
	if last != nil && !last.ID.Striped() && last.Length < f.blockSize { // HDFS wants room for the rest of the last block even when that is not used
		u := n.uses((f.blockSize - last.Length) * int64(f.replicas()))
		if err := ns.checkQuota(n.parent, nil, usage{}, u); err != nil {
			t.fail(err)
			return
		}
	}
	before := ns.metered(n)
	ns.touch(n)
	ns.openFile(n, &construction{holder: op.ClientName, user: t.caller.user, clientNode: op.ClientNode, clientHost: t.caller.host})
	if op.Exact {
		f.open.behind = behindNone
	}
	if last != nil {
		if reopen {
			f.open.state = UnderConstruction
			ns.lastChanged(n)
		}
		if reopen || op.NewBlock || f.openEnd() {
			t.result.Block, t.result.Offset = new(*last), f.length-last.Length
			if op.Exact {
				f.open.behind = behindBlock
			}
		}
	}
	ns.recharge(n, before)
	ns.tellAppend(n, op.NewBlock)
	t.result.OK = true
	t.result.Status = new(n.status())
	t.result.File = n.info()
}
