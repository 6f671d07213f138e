package namespace

import (
	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Storage policies have 4 bits in HDFS. Lazy persistence is decided when a file is made.
const (
	maxPolicy         = 15
	lazyPersistPolicy = 15
	hotPolicy         = 7 // the default
)

// policy is the storage policy of an inode, its own or that of the nearest directory above with one; 0: none was set.
func (n *inode) policy() uint8 {
	for ; n != nil; n = n.parent {
		if n.extra != nil && n.extra.policy != 0 {
			return n.extra.policy
		}
	}
	return 0
}

// setStoragePolicy gives a file or directory a storage policy, or none of its own, or says whether small files may be stored below a directory.
//
// Errors: ErrPermission without WRITE on the path; ErrNotExist; ErrInvalidArgument for a number that is none, and on a file
// for lazy persistence; ErrNotDirectory for a file where it is about small files.
func (ns *Namespace) setStoragePolicy(t *txn, op *logpb.SetStoragePolicy) {
	p := newPlace()
	defer p.release()
	if op.SmallFiles > 1+smallFilesOn {
		t.failf(metadata.ErrInvalidArgument, "There is no policy of small files with the number %d", op.SmallFiles)
		return
	}
	if op.Policy > maxPolicy {
		t.failf(metadata.ErrInvalidArgument, "Cannot find a block policy with the number %d", op.Policy)
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
	n := p.last()
	switch {
	case n == nil:
		t.failf(metadata.ErrNotExist, "File/Directory does not exist: %s", p)
		return
	case op.SmallFiles != 0:
		ns.setSmallFiles(t, p, n, op.SmallFiles)
		return
	case n.file != nil && op.Policy == lazyPersistPolicy:
		t.failf(metadata.ErrInvalidArgument, "Policy BlockStoragePolicy{LAZY_PERSIST:15, storageTypes=[RAM_DISK, DISK], "+
			"creationFallbacks=[DISK], replicationFallbacks=[DISK]} cannot be set after file creation.")
		return
	}
	t.changed(n)
	if n.extra == nil && op.Policy == 0 && n.policy() == 0 {
		return
	}
	var before usage
	if n.file != nil {
		before = ns.metered(n)
	}
	ns.touch(n)
	n.own().policy = uint8(op.Policy)
	if n.file != nil {
		n.extra.placed = n.placing()
		ns.recharge(n, before)
		ns.allChanged(n)
	}
	n.tidy()
}

// placing is what placed is to be for a file that is made now, or that gets a policy.
func (n *inode) placing() uint8 {
	if policy := n.policy(); policy != hotPolicy {
		return policy
	}
	return 0
}

// placed is the storage policy that the blocks of a file obey: the one that held when it was made, or that it was given itself since. It is of the file's own
// record, so that who lists blocks need not know the directories above.
func (n *inode) placed() uint8 {
	if n.extra == nil {
		return 0
	}
	return n.extra.placed
}
