package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// sealTail puts groups in place of the replicated end of a file with an erasure coding policy. They are those of the source, another file, which is
// removed. The file is closed, or its client has finished the end and says how long it became.
//
// Errors: ErrNotExist; those of checkLease for a file that is open; ErrBeingCreated for an open one without a client; ErrIO when the end is another block
// by now, or is being recovered; those of checkSource.
func (ns *Namespace) sealTail(t *txn, op *logpb.SealTail) {
	tail := blockOf(op.Tail)
	var n *inode
	var err error
	if op.ClientName != "" {
		n, err = ns.checkLease(&t.caller, metadata.INodeID(op.Inode), op.ClientName)
	} else if n, err = ns.byID(metadata.INodeID(op.Inode)); err == nil {
		switch {
		case n == nil || !n.attached() || n.file == nil:
			err = metadata.Errorf(metadata.ErrNotExist, "File does not exist: inode %d", op.Inode)
		case !t.caller.superuser:
			err = metadata.NeedsSuperuser(t.caller.user, "sealTail")
		case n.file.open != nil:
			err = metadata.Errorf(metadata.ErrBeingCreated, "%s is open again: it is sealed when its writer is done", n.path())
		}
	}
	if err != nil {
		t.fail(err)
		return
	}
	f := n.file
	last := f.last()
	switch {
	case last == nil || !f.coded() || last.ID.Striped() || last.ID != tail.ID || last.Generation != tail.Generation:
		err = metadata.Errorf(metadata.ErrIO, "Cannot seal %s in %s: the end of the file is %s", blockName(tail), n.path(), blockNameOrNull(last))
	case f.lastState() == Complete && last.Length != tail.Length:
		err = metadata.Errorf(metadata.ErrIO, "Cannot seal %s with length %d, it has %d", blockName(tail), tail.Length, last.Length)
	case f.lastState() == UnderRecovery || tail.Length < last.Length || tail.Length > f.blockSize:
		err = metadata.Errorf(metadata.ErrIO, "Cannot seal %s with length %d, of which %d bytes are known, in state %v", blockName(tail), tail.Length, last.Length, f.lastState())
	}
	var source *inode
	if err == nil {
		source, err = ns.checkSource(t, op.Source, n, tail.Length)
	}
	switch {
	case err != nil:
	case source.file.erasure != f.erasure || source.file.last() != nil && !source.file.last().ID.Striped():
		err = metadata.Errorf(metadata.ErrInvalidArgument, "%s is not what %s is to be sealed with: its policy is %d, and not %d, or its end is replicated", source.path(), n.path(), source.file.erasure, f.erasure)
	case len(f.blocks)-1+len(source.file.blocks) > MaxBlocks:
		err = metadata.Errorf(metadata.ErrIO, "File has reached the limit on maximum number of blocks (dfs.namenode.fs-limits.max-blocks-per-file): %d >= %d", len(f.blocks), MaxBlocks)
	}
	if err != nil {
		t.fail(err)
		return
	}
	before := ns.metered(n)
	if err := ns.commitLast(n, tail); err != nil {
		t.fail(err)
		return
	}
	ns.exchange(n, len(f.blocks)-1, source, before)
	t.result.OK = true
}

// convertFile puts the blocks of the source in place of all blocks of the target, which gets the source's erasure coding policy and replication. Both
// have the same bytes, and are closed.
//
// Errors: ErrNotExist, also for a directory; ErrBeingCreated for an open target; ErrPermission without WRITE; ErrIO when the target's blocks are not
// those that were read; ErrSpaceQuota, ErrTypeQuota; those of checkSource.
func (ns *Namespace) convertFile(t *txn, op *logpb.ConvertFile) {
	p := newPlace()
	defer p.release()
	err := ns.resolveTarget(p, t, op.Target, toUse)
	if err == nil {
		err = ns.check(p, &t.caller, checks{last: metadata.Write})
	}
	var n, source *inode
	if err == nil {
		n, err = fileAt(p)
	}
	switch {
	case err != nil:
	case n.file.open != nil:
		err = metadata.Errorf(metadata.ErrBeingCreated, "%s is being written: it can be converted when it is closed", p)
	case BlocksSum(n.file.blocks) != op.Blocks:
		err = metadata.Errorf(metadata.ErrIO, "%s was changed while it was converted", p)
	default:
		source, err = ns.checkSource(t, op.Source, n, n.file.length)
	}
	if err != nil {
		t.fail(err)
		return
	}
	more := n.moreAs(ns.retained(n), source.file.coded(), source.file.space(), source.file.replication)
	if err := ns.checkQuota(n.parent, nil, usage{}, more); err != nil {
		t.fail(err)
		return
	}
	shown := n.file.shownReplication()
	ns.exchange(n, 0, source, ns.metered(n))
	if n.file.shownReplication() != shown {
		ns.tellUpdate(n, metadata.UpdateReplication, func(e *metadata.Event) { e.Replication = n.file.shownReplication() })
	}
	t.result.OK = true
}

// moreAs is what a closed file uses more when other blocks, which take so many bytes, are in place of its own, of which snapshots go on to have some.
func (n *inode) moreAs(retained []metadata.Block, coded bool, space int64, replication uint16) usage {
	more := usage{space: space, types: spreadBy(n.placed(), coded, space, replication)}
	more.types = more.types.minus(n.spread(n.file.space(), n.file.replication))
	for i, b := range n.file.blocks {
		if i >= len(retained) || retained[i].ID != b.ID {
			more.space -= n.file.blockSpace(b)
		}
	}
	return more
}

// CheckConvert says whether quotas have room for a file in another form, for the namenode itself: before anything is copied that convertFile would refuse. What its groups,
// or replicas, take follows from its length. erasure: 0 is replicated. nil, too, when there is no such file any more.
//
// Errors: ErrSpaceQuota, ErrTypeQuota.
func (ns *Namespace) CheckConvert(id metadata.INodeID, erasure metadata.ErasurePolicyID, replication uint16) error {
	return ns.read(func() error {
		n, err := ns.byID(id)
		if err != nil || n == nil || n.file == nil || !n.attached() || ns.meta.quotas == 0 {
			return err
		}
		length := n.file.length
		space := length * int64(replication)
		policy, coded := metadata.ErasurePolicyOf(erasure)
		if coded {
			group := policy.Layout.Capacity(n.file.blockSize)
			space = length/group*policy.Layout.Space(group) + policy.Layout.Space(length%group)
		}
		retained, err := ns.findRetained(n)
		if err != nil {
			return err
		}
		return ns.checkQuota(n.parent, nil, usage{}, n.moreAs(retained, coded, space, replication))
	})
}

// checkSource finds the file whose blocks are to go into another one.
//
// Errors: ErrNotExist; ErrBeingCreated for one that is open; ErrPermission for another user's; ErrSnapshot for one that a snapshot has;
// ErrInvalidArgument for the file itself, for one whose bytes are the namenodes', and for one with another length or block size.
func (ns *Namespace) checkSource(t *txn, id uint64, n *inode, length int64) (*inode, error) {
	s, err := ns.byID(metadata.INodeID(id))
	switch {
	case err != nil:
		return nil, err
	case s == nil || !s.attached() || s.file == nil:
		return nil, metadata.Errorf(metadata.ErrNotExist, "What %s was copied to is not there any more (inode %d)", n.path(), id)
	case !t.caller.superuser && s.owner.Value() != t.caller.user:
		return nil, metadata.Errorf(metadata.ErrPermission, "Permission denied: user=%s is not the owner of inode %d", t.caller.user, id)
	case s.file.open != nil:
		return nil, metadata.Errorf(metadata.ErrBeingCreated, "What %s was copied to is still being written: %s", n.path(), s.path())
	case ns.inSnapshot(s):
		return nil, metadata.Errorf(metadata.ErrSnapshot, "What %s was copied to is in a snapshot: %s", n.path(), s.path())
	case s == n || s.hasBodies() || s.file.length != length || s.file.blockSize != n.file.blockSize:
		return nil, metadata.Errorf(metadata.ErrInvalidArgument, "%s has %d bytes in blocks of %d: it cannot take the place of %d bytes of %s in blocks of %d",
			s.path(), s.file.length, s.file.blockSize, length, n.path(), n.file.blockSize)
	}
	return s, nil
}

// exchange puts the blocks of s in place of those of n from the ith on, and removes s. All of that is allowed. before is what n was metered with.
// Everything but the blocks stays: nobody changed the bytes.
func (ns *Namespace) exchange(n *inode, i int, s *inode, before usage) {
	f := n.file
	parent, freed := s.parent, usage{names: -1}.minus(ns.metered(s))
	ns.touch(n)
	for len(f.blocks) > i {
		ns.removeLast(n)
	}
	ns.tellUnlink(s)
	moved := s.file.blocks
	ns.detach(s)
	s.file.blocks, s.file.length = nil, 0
	f.erasure, f.replication = s.file.erasure, s.file.replication
	ns.bury(s)
	ns.modified(parent)
	ns.charge(parent, freed)
	for _, b := range moved {
		ns.adoptBlock(n, b)
		ns.effects.Changed = append(ns.effects.Changed, n.blockOwner(len(f.blocks)-1))
	}
	ns.recharge(n, before)
}

// BlocksSum tells lists of blocks apart. It is no protection against who wants two to be the same.
func BlocksSum(blocks []metadata.Block) uint64 {
	sum := uint64(len(blocks))
	for _, b := range blocks {
		for _, x := range [...]uint64{uint64(b.ID), uint64(b.Generation), uint64(b.Length)} {
			sum = (sum ^ x) * 0x9e3779b97f4a7c15
			sum ^= sum >> 29
		}
	}
	return sum
}
