package namespace

import (
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// create makes an empty file and opens it for its client. With overwrite a file that is there is deleted first, even an
// open one; the new file is another inode. Status is the new file.
//
// The file gets the erasure coding policy of its directory, or the one that is given, and is placed by the storage policy of its directory unless it is to be lazily persisted.
//
// Errors: ErrExist for a directory, and for a closed file without overwrite; ErrBeingCreated and ErrRecoveryInProgress
// for an open one (with Result.Expired when its writer is silent); ErrNotExist when the parent is missing and not to be
// made, or the file is and may only be overwritten; ErrParentNotDirectory; ErrPermission; ErrIO for a block size or
// replication out of range, and for one smaller than the policy's cells; ErrInvalidArgument for a policy that is none; the limits.
func (ns *Namespace) create(t *txn, op *logpb.Create) {
	p := newPlace()
	defer p.release()
	if err := ns.checkCreate(t, p, op); err != nil {
		t.fail(err)
		return
	}
	n, replaced := ns.makeFile(t, p, op, 0)
	if n == nil {
		return
	}
	ns.openFile(n, &construction{holder: op.ClientName, user: t.caller.user, clientNode: op.ClientNode, clientHost: t.caller.host})
	ns.tellCreate(n, op.Overwrite, replaced)
	t.changed(n)
	t.result.Status = new(n.status())
}

// makeFile makes the closed, empty file of a create that was checked, of which space bytes are about to be used, and returns it with the inode that it
// replaces; nil when the result has an error.
func (ns *Namespace) makeFile(t *txn, p *place, op *logpb.Create, space int64) (n *inode, replaced metadata.INodeID) {
	if old := p.last(); old != nil {
		if !op.Overwrite {
			if old.file.open != nil {
				t.result.Expired = ns.checkTakeover(t, old, "CREATE_FILE", p.String(), op.ClientName)
				return nil, 0
			}
			t.failf(metadata.ErrExist, "%s for client %s already exists", p, t.caller.host)
			return nil, 0
		}
		gone := usage{names: -1}.minus(ns.metered(old))
		free := ns.metered(old)
		if ns.inSnapshot(old) { // nothing is given back
			free = usage{}
			if err := ns.checkRoomFor(old.parent, 1, usage{}); err != nil {
				t.fail(err)
				return nil, 0
			}
		}
		if err := ns.checkQuota(old.parent, nil, free, usesBelow(old.parent, space, op)); err != nil {
			t.fail(err)
			return nil, 0
		}
		ns.charge(old.parent, gone)
		ns.detach(old)
		ns.bury(old)
		replaced = old.id
		p.nodes[len(p.nodes)-1] = nil
	} else {
		err := ns.checkMake(t, p)
		if err == nil {
			err = ns.checkRoomFor(p.nodes[p.existing()], len(p.nodes)-1-p.existing(), usage{})
		}
		if err == nil {
			err = ns.checkQuota(p.nodes[p.existing()], nil, usage{}, usesBelow(p.nodes[p.existing()], space, op))
		}
		if err != nil {
			t.fail(err)
			return nil, 0
		}
	}
	end := len(p.nodes) - 1
	ns.makeAncestors(t, p, p.nodes[p.existing()].mode, nil)
	ns.makeINode(t, p, end, metadata.Mode(op.Mode)&modeMask, op.Unmasked,
		newFile(op.BlockSize, uint16(op.Replication)))
	n = p.nodes[end]
	n.file.erasure = p.codingFor(op)
	if op.LazyPersist {
		n.own().policy = lazyPersistPolicy
	}
	if policy := n.placing(); policy != 0 {
		n.own().placed = policy
	}
	ns.meta.files++
	return n, replaced
}

// newFile makes the inode of a file: one piece of memory, which is less work for the collector than two.
func newFile(blockSize int64, replication uint16) *inode {
	f := new(struct {
		inode inode
		file  file
	})
	f.file.blockSize, f.file.replication = blockSize, replication
	f.inode.file = &f.file
	return &f.inode
}

func (ns *Namespace) checkCreate(t *txn, p *place, op *logpb.Create) error {
	if err := checkLength("create", op.Target); err != nil {
		return err
	}
	if err := checkClient(op.ClientName, op.ClientNode, t.caller.host); err != nil {
		return err
	}
	if op.Target.Base == 0 && isReserved(op.Target.Path) {
		return metadata.Errorf(metadata.ErrInvalidPath, "Invalid path name /%s", printable(op.Target.Path))
	}
	if err := ns.resolveTarget(p, t, op.Target, toMake); err != nil {
		return err
	}
	if err := ns.check(p, &t.caller, checks{ancestor: metadata.Write}); err != nil {
		return err
	}
	switch n := p.last(); {
	case n == nil:
		if !op.CreateParent && p.parent() == nil {
			return noParent(p)
		}
		if !op.Create {
			return metadata.Errorf(metadata.ErrNotExist, "Can't overwrite non-existent %s", p)
		}
	case n.isDir():
		return metadata.Errorf(metadata.ErrExist, "%s already exists as a directory", p)
	case op.Overwrite:
		if err := ns.check(p, &t.caller, checks{last: metadata.Write}); err != nil {
			return err
		}
	}
	if err := ns.checkBlockSize(op); err != nil {
		return err
	}
	if op.Erasure != 0 {
		if err := checkErasure(op.Erasure); err != nil {
			return err
		}
	}
	if policy, coded := metadata.ErasurePolicyOf(p.codingFor(op)); coded && op.BlockSize < policy.Layout.Cell {
		return metadata.Errorf(metadata.ErrIO, "Specified block size (%d) is less than the cell size (%d) of the erasure coding policy (%s).",
			op.BlockSize, policy.Layout.Cell, policy.Name)
	}
	return checkReplication(op.Replication, p.String, t.caller.host)
}

// codingFor is the policy of a file that is to be made at p.
func (p *place) codingFor(op *logpb.Create) metadata.ErasurePolicyID {
	if op.Erasure != 0 {
		return metadata.ErasurePolicyID(op.Erasure - 1)
	}
	above := p.nodes[min(p.existing(), len(p.nodes)-2)]
	return above.policies().coding(above)
}

// isReserved reports whether a path from the root is in /.reserved and not in a part of it that HDFS knows.
func isReserved(path string) bool {
	first, rest, _ := strings.Cut(path, "/")
	second, _, _ := strings.Cut(rest, "/")
	return first == reserved && second != ".inodes" && second != "raw"
}

func (ns *Namespace) checkBlockSize(op *logpb.Create) error {
	minimum := op.MinBlockSize
	if minimum == 0 {
		minimum = ns.cfg.MinBlockSize
	}
	minimum = max(minimum, 1) // whatever the command says
	if op.BlockSize < minimum {
		return metadata.Errorf(metadata.ErrIO, "Specified block size is less than configured minimum value "+
			"(dfs.namenode.fs-limits.min-block-size): %d < %d", op.BlockSize, minimum)
	}
	if op.BlockSize > maxLength {
		return metadata.Errorf(metadata.ErrInvalidArgument, "Specified block size is too large: %d > %d", op.BlockSize, maxLength)
	}
	return nil
}

// maxLength bounds lengths of blocks, so that sums over a file cannot overflow.
const maxLength = 1 << 48

// CheckReplication refuses numbers that no file may have, in HDFS's words: ErrIO. A proposer knows all of the path.
func CheckReplication(replication uint32, path string) error {
	return checkReplication(replication, func() string { return printable(path) }, "")
}

// checkReplication is BlockManager.verifyReplication.
func checkReplication(replication uint32, path func() string, client string) error {
	if replication < 1 {
		return metadata.Errorf(metadata.ErrIO,
			"Requested replication factor of %d is less than the required minimum of 1 for %s%s", replication, path(), from(client))
	}
	if replication > metadata.MaxReplication {
		return metadata.Errorf(metadata.ErrIO,
			"Requested replication factor of %d exceeds maximum of %d for %s%s", replication, metadata.MaxReplication, path(), from(client))
	}
	return nil
}

func from(client string) string {
	if client == "" {
		return ""
	}
	return ", clientName=" + client
}

// checkClient bounds the names that a file keeps of its writer.
func checkClient(names ...string) error {
	if names[0] == "" {
		return metadata.Errorf(metadata.ErrInvalidArgument, "Client name is empty")
	}
	for _, name := range names {
		if len(name) > MaxName {
			return metadata.Errorf(metadata.ErrInvalidArgument, "Client name is longer than %d bytes: %s", MaxName, printable(name[:64]))
		}
	}
	return nil
}

// cloneName frees a name from the path it is part of.
func cloneName(name string) string { return strings.Clone(name) }

// usesBelow is what bytes in all replicas of a new file below a directory are for quotas.
func usesBelow(dir *inode, space int64, op *logpb.Create) usage {
	if space == 0 {
		return usage{}
	}
	policy := dir.placing()
	if op.LazyPersist {
		policy = lazyPersistPolicy
	}
	return usage{space: space, types: spreadBy(policy, false, space, uint16(op.Replication))}
}
