package namespace

import (
	"cmp"
	"unique"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// mkdirs makes a directory, with its ancestors when that is asked for. OK when it is there afterwards.
//
// Errors: ErrExist for a file at the path; ErrParentNotDirectory for one above it; ErrNotExist when the parent is
// missing and was not to be made; ErrPermission; the limits.
func (ns *Namespace) mkdirs(t *txn, op *logpb.Mkdirs) {
	p := newPlace()
	defer p.release()
	if err := checkLength("mkdirs", op.Target); err != nil {
		t.fail(err)
		return
	}
	if err := ns.resolveTarget(p, t, op.Target, toMake); err != nil {
		t.fail(err)
		return
	}
	if n := p.last(); n != nil {
		if !n.isDir() {
			t.failf(metadata.ErrExist, "Path is not a directory: %s", p)
			return
		}
		t.changed(n)
		return
	}
	if err := ns.check(p, &t.caller, checks{ancestor: metadata.Write}); err != nil {
		t.fail(err)
		return
	}
	if !op.CreateParent && p.parent() == nil {
		t.fail(noParent(p))
		return
	}
	if err := ns.checkMake(t, p); err != nil {
		t.fail(err)
		return
	}
	if err := ns.checkRoomFor(p.nodes[p.existing()], len(p.nodes)-1-p.existing(), usage{}); err != nil {
		t.fail(err)
		return
	}
	mode := metadata.Mode(op.Mode) & modeMask
	ns.makeAncestors(t, p, mode, op.Unmasked)
	ns.makeDirectory(t, p, len(p.nodes)-1, mode, op.Unmasked)
	t.changed(p.last())
}

const modeMask = 0o1777

func noParent(p *place) error {
	return metadata.Errorf(metadata.ErrNotExist, "Parent directory doesn't exist: %s", p.upTo(len(p.nodes)-2))
}

// checkMake checks that everything of p that is missing can be made. Where a name is too long and there is no room for the
// directories above it either, the room is what HDFS, which makes one after the other, comes upon first.
func (ns *Namespace) checkMake(t *txn, p *place) error {
	if len(t.caller.user) > MaxName {
		return metadata.Errorf(metadata.ErrInvalidArgument, "User name is longer than %d bytes", MaxName)
	}
	first := p.existing()
	for i := first; i < len(p.names); i++ {
		if err := p.checkNew(i, p.names[i]); err != nil {
			return cmp.Or(ns.checkRoomFor(p.nodes[first], i-first, usage{}), err)
		}
	}
	return p.checkRoom(first)
}

// makeAncestors makes what is missing above the last name of p. The directories can be entered and written by their
// owner whatever the mode says (FSDirMkdirOp.addImplicitUwx).
func (ns *Namespace) makeAncestors(t *txn, p *place, mode metadata.Mode, unmasked *uint32) {
	for i := p.existing() + 1; i < len(p.nodes)-1; i++ {
		ns.makeDirectory(t, p, i, mode&0o777|0o300, unmasked)
	}
}

// makeDirectory makes p.nodes[i] below p.nodes[i-1].
func (ns *Namespace) makeDirectory(t *txn, p *place, i int, mode metadata.Mode, unmasked *uint32) {
	ns.makeINode(t, p, i, mode, unmasked, &inode{dir: &directory{}})
	ns.meta.directories++
	ns.tellCreate(p.nodes[i], false, 0)
}

// makeINode completes n, of which the caller has made dir or file, and enters it as p.nodes[i]. Its group is the
// directory's, as in BSD. unmasked is the mode before the client's umask, nil if it did not say.
func (ns *Namespace) makeINode(t *txn, p *place, i int, mode metadata.Mode, unmasked *uint32, n *inode) {
	parent := p.nodes[i-1]
	n.id = ns.meta.nextINode
	ns.meta.nextINode++
	n.mode = mode
	n.owner, n.group = ns.owner(t.caller.user), parent.group
	n.mtime = ns.meta.now
	if n.file != nil {
		n.atime = ns.meta.now
	}
	n.inherit(parent, unmasked)
	ns.born(n)
	ns.attach(parent, cloneName(p.names[i-1]), n)
	ns.modified(parent)
	ns.charge(parent, usage{names: 1})
	p.nodes[i] = n
}

// owner is the shared copy of a user's name; mostly one user after the other is the same.
func (ns *Namespace) owner(user string) unique.Handle[string] {
	if ns.lastUser.Value() != user {
		ns.lastUser = unique.Make(user)
	}
	return ns.lastUser
}
