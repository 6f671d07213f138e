package namespace

import (
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// truncate makes a closed file shorter. OK when it is so already or the cut is between blocks. Otherwise the last block
// that stays is under recovery, for which File says how long it becomes; the file is open, by RecoveryHolder, until then. If a
// snapshot has that block, a new one takes its place, and the recovery copies it. Inside of the body of a small file another body takes its place, which
// came with the command, at once.
// Not OK and without File: that very cut is under way already.
//
// Errors: ErrNotExist, also for a directory; ErrInvalidArgument for a length that is negative or beyond the end;
// ErrBeingCreated and ErrRecoveryInProgress for an open file (with Result.Expired when its writer is silent);
// ErrPermission without WRITE; ErrRetriable for a cut inside of a block that a snapshot has, without a new block, and inside of
// a body that is not the one that the proposer saw;
// ErrUnsupported for a file with an erasure coding policy.
func (ns *Namespace) truncate(t *txn, op *logpb.Truncate) {
	p := newPlace()
	defer p.release()
	if op.Length < 0 {
		t.failf(metadata.ErrInvalidArgument, "Cannot truncate to a negative file size: %d.", op.Length)
		return
	}
	if err := checkClient(op.ClientName, t.caller.host); err != nil {
		t.fail(err)
		return
	}
	if err := ns.resolveTarget(p, t, op.Target, toUse); err != nil {
		t.fail(err)
		return
	}
	if err := ns.check(p, &t.caller, checks{last: metadata.Write}); err != nil {
		t.fail(err)
		return
	}
	n, err := fileAt(p)
	if err != nil {
		t.fail(err)
		return
	}
	f := n.file
	if f.coded() {
		t.failf(metadata.ErrUnsupported, "Cannot truncate file with striped block %s", p)
		return
	}
	if o := f.open; o != nil {
		if o.truncate > 0 && f.length-f.last().Length+o.truncate-1 == op.Length {
			t.show(n)
			return
		}
		t.result.Expired = ns.checkTakeover(t, n, "TRUNCATE_FILE", p.String(), op.ClientName)
		return
	}
	switch id := metadata.Generation(op.RecoveryId); {
	case op.Length == f.length:
		t.changed(n)
		return
	case op.Length > f.length:
		t.failf(metadata.ErrInvalidArgument, "Cannot truncate to a larger file size. Current size: %d, truncate size: %d.", f.length, op.Length)
		return
	case id >= ns.meta.nextGeneration || slices.ContainsFunc(f.blocks, func(b metadata.Block) bool { return b.Generation >= id }):
		t.failf(metadata.ErrInvalidArgument, "Generation %d is not of a reserved range", id)
		return
	}
	i := f.blockCut(op.Length)
	if i >= 0 && n.isBody(i) {
		ns.cutBody(t, p, n, i, op)
		return
	}
	apart := i >= 0 && ns.snapshotHas(n, i)
	made := metadata.Block{ID: metadata.BlockID(op.NewBlock), Generation: metadata.Generation(op.RecoveryId)}
	if apart {
		if op.NewBlock == 0 {
			t.failf(metadata.ErrRetriable, "A snapshot of %s was made meanwhile: try again", p)
			return
		}
		if err := ns.checkNewBlock(made); err != nil {
			t.fail(err)
			return
		}
	}
	if err := ns.checkQuota(n.parent, nil, usage{}, n.uses(f.cutUsage(op.Length, ns.retained(n)))); err != nil {
		t.fail(err)
		return
	}
	before := ns.metered(n)
	ns.touch(n)
	for last := f.last(); last != nil && f.length-last.Length >= op.Length; last = f.last() {
		ns.removeLast(n)
	}
	n.mtime = ns.meta.now
	ns.tellTruncate(n, op.Length)
	if f.length > op.Length {
		last := *f.last()
		o := &construction{
			holder: RecoveryHolder, clientHost: strings.Clone(t.caller.host),
			state: UnderRecovery, recovery: metadata.Generation(op.RecoveryId),
			truncate: 1 + last.Length - (f.length - op.Length),
		}
		if apart { // its length is what is promised to be in it
			ns.removeLast(n)
			made.Length = o.truncate - 1
			ns.appendBlock(n, made)
			o.source = last
		}
		ns.openFile(n, o)
		if apart {
			ns.lastAdded(n)
		} else {
			ns.lastChanged(n)
		}
		t.show(n)
		t.result.File = n.info()
	} else {
		t.changed(n)
	}
	ns.recharge(n, before)
}

// cutBody puts what stays of the body that is the ith block in its place, as the proposer has it, and lets the blocks behind it go.
func (ns *Namespace) cutBody(t *txn, p *place, n *inode, i int, op *logpb.Truncate) {
	stays := op.Length
	for _, b := range n.file.blocks[:i] {
		stays -= b.Length
	}
	if op.CutBody != int64(n.file.blocks[i].ID) {
		t.failf(metadata.ErrRetriable, "%s was changed meanwhile: try again", p)
		return
	}
	made := metadata.Block{ID: metadata.BlockID(op.NewBlock), Generation: metadata.Generation(op.RecoveryId), Length: stays}
	if len(op.Data) != int(stays) {
		t.failf(metadata.ErrInvalidArgument, "%d bytes are to stay of a body of %s, %d came: the command comes from a faulty program", stays, p, len(op.Data))
		return
	}
	if err := ns.checkBody(made, op.Crc, op.Data); err != nil {
		t.fail(err)
		return
	}
	if ns.snapshotHas(n, i) { // which goes on to have the former one
		if err := ns.checkQuota(n.parent, nil, usage{}, usage{space: stays * int64(n.file.replication)}); err != nil {
			t.fail(err)
			return
		}
	}
	before := ns.metered(n)
	ns.touch(n)
	for len(n.file.blocks) > i {
		ns.removeLast(n)
	}
	ns.giveBody(n, made, op.Crc, op.Data)
	n.mtime = ns.meta.now
	ns.tellTruncate(n, op.Length)
	ns.recharge(n, before)
	t.changed(n)
}

// blockCut is the place of the block that a length is inside of; -1 when a block ends there.
func (f *file) blockCut(length int64) int {
	at := int64(0)
	for i, b := range f.blocks {
		if at < length && length < at+b.Length {
			return i
		}
		at += b.Length
	}
	return -1
}

// cutUsage is what a file uses more of a space quota while it is cut: a block that is cut counts as a full one, and what snapshots have goes on to
// count.
func (f *file) cutUsage(length int64, kept []metadata.Block) int64 {
	more := int64(0)
	size := f.length
	for i := len(f.blocks) - 1; i >= 0 && size > length; i-- {
		bytes := f.blocks[i].Length
		if i >= len(kept) || kept[i].ID != f.blocks[i].ID {
			more -= bytes
		}
		if size-length < bytes {
			more += f.blockSize
		}
		size -= bytes
	}
	return more * int64(f.replication)
}

// fileAt is the file that a path names (INodeFile.valueOf).
func fileAt(p *place) (*inode, error) {
	n := p.last()
	switch {
	case n == nil:
		return nil, metadata.Errorf(metadata.ErrNotExist, "File does not exist: %s", p)
	case n.file == nil:
		return nil, metadata.Errorf(metadata.ErrNotExist, "Path is not a file: %s", p)
	}
	return n, nil
}
