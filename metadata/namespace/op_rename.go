package namespace

import (
	"errors"
	"slices"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// rename moves an inode, with all that is below it, to another place. It keeps its id, and its writer its lease.
// HDFS has two of it, with different ideas of failure: renameLegacy and renameStrict.
func (ns *Namespace) rename(t *txn, op *logpb.Rename) {
	src, dst := newPlace(), newPlace()
	defer src.release()
	defer dst.release()
	if err := checkLength("rename", op.Target); err != nil {
		t.fail(err)
		return
	}
	if err := ns.resolveTarget(src, t, op.Source, toUse); err != nil {
		t.fail(err)
		return
	}
	if err := ns.resolveTarget(dst, t, op.Target, toMake); err != nil {
		t.fail(err)
		return
	}
	free, counted := ns.surveyed(&t.caller, src.last(), op.Survey)
	var known usage
	if u, ok := ns.counted(counted, op.Names, op.Space, op.Types); ok {
		known = u
	}
	if op.Legacy {
		ns.renameLegacy(t, src, dst, known)
	} else {
		ns.renameStrict(t, src, dst, op, free, known)
	}
	if errors.Is(t.result.Err, errLargeTree) {
		t.result.INode = src.last().id
	}
}

// renameLegacy is FileSystem.rename: a directory as the destination means into it, and most failures are an answer that
// is not OK: the source is missing or the root, the destination exists, has no parent, or is below the source. A file
// renamed to itself is OK. known is what a survey counted of the source.
//
// Errors: ErrParentNotDirectory, ErrPermission, the limits; ErrRetriable as for delete.
func (ns *Namespace) renameLegacy(t *txn, src, dst *place, known usage) {
	if d := dst.last(); d != nil && d.isDir() && !src.isRoot() {
		child, err := ns.lookup(d, src.name())
		if err != nil {
			t.fail(err)
			return
		}
		dst.push(src.name(), child)
		if err := dst.checkTraverse(&t.caller, toMake); err != nil {
			t.fail(err)
			return
		}
	}
	if err := ns.checkRename(t, src, dst, checks{parent: metadata.Write}); err != nil {
		t.fail(err)
		return
	}
	n := src.last()
	switch {
	case n == nil || src.isRoot():
		return
	}
	if _, err := ns.checkUnsnapped(n); err != nil {
		t.fail(err)
		return
	}
	switch {
	case dst.last() == n:
		t.changed(n)
		return
	case dst.last() != nil || dst.parent() == nil || slices.Contains(dst.nodes, n):
		return
	}
	if err := checkRenameLimits(src, dst); err != nil {
		t.fail(err)
		return
	}
	if err := ns.checkSnapshotMove(n, nil, dst.parent(), src.String()); err != nil {
		t.fail(err)
		return
	}
	if _, err := ns.moveQuota(n, nil, dst.parent(), known); err != nil {
		t.fail(err)
		return
	}
	ns.move(n, dst, nil)
	t.changed(n)
}

// renameStrict is FileContext.rename (rename2): every failure is an error, and overwrite may replace a file, or an empty
// directory, of the same type.
//
// Errors: ErrNotExist when the source or the destination's parent is missing; ErrExist when source and destination are
// the same or the destination is there and overwrite is not set; ErrRetriable as for delete; ErrIO for the root, a destination below the source, of
// the other type, or not empty; ErrParentNotDirectory, ErrPermission, the limits.
func (ns *Namespace) renameStrict(t *txn, src, dst *place, op *logpb.Rename, mayDelete bool, known usage) {
	rights := checks{parent: metadata.Write}
	if op.ToTrash {
		// What goes to the trash is deleted later, by the superuser: the caller must be allowed to delete it.
		rights.subtree = !mayDelete
	}
	if err := ns.checkRename(t, src, dst, rights); err != nil {
		t.fail(err)
		return
	}
	n, old := src.last(), dst.last()
	switch {
	case n == nil:
		t.failf(metadata.ErrNotExist, "rename source %s is not found.", src)
	case src.isRoot():
		t.failf(metadata.ErrIO, "rename source cannot be the root")
	}
	if t.result.Err == nil {
		if _, err := ns.checkUnsnapped(n); err != nil {
			t.fail(err)
		}
	}
	switch {
	case t.result.Err != nil:
	case old == n:
		t.failf(metadata.ErrExist, "The source %s and destination %s are the same", src, dst)
	case slices.Contains(dst.nodes, n):
		t.failf(metadata.ErrIO, "Rename destination %s is a directory or file under source %s", dst, src)
	case dst.isRoot():
		t.failf(metadata.ErrIO, "rename destination cannot be the root")
	case old != nil && old.isDir() != n.isDir():
		t.failf(metadata.ErrIO, "Source %s and destination %s must both be directories", src, dst)
	case old != nil && !op.Overwrite:
		t.failf(metadata.ErrExist, "rename destination %s already exists", dst)
	case old != nil && old.isDir() && old.dir.entries > 0:
		t.failf(metadata.ErrIO, "rename destination directory is not empty: %s", dst)
	case dst.parent() == nil:
		t.failf(metadata.ErrNotExist, "rename destination parent %s not found.", dst)
	}
	if t.result.Err != nil {
		return
	}
	if old != nil {
		// HDFS does not look at the sticky bit here; POSIX does, and so do we: it would let anybody replace the files
		// of others in /tmp.
		if err := ns.check(dst, &t.caller, checks{parent: metadata.Write}); err != nil {
			t.fail(err)
			return
		}
	}
	if err := checkRenameLimits(src, dst); err != nil {
		t.fail(err)
		return
	}
	if err := ns.checkSnapshotMove(n, old, dst.parent(), src.String()); err != nil {
		t.fail(err)
		return
	}
	free, err := ns.moveQuota(n, old, dst.parent(), known)
	if err != nil {
		t.fail(err)
		return
	}
	switch {
	case old == nil:
	case ns.undo != nil:
		ns.detach(old)
		if !ns.limited(dst.parent(), nil) {
			free = usage{}
		}
		ns.throwOut(t, old, ns.newestLeaving(), free)
	default:
		ns.detach(old)
		ns.bury(old)
	}
	ns.move(n, dst, old)
	t.changed(n)
}

func (ns *Namespace) checkRename(t *txn, src, dst *place, source checks) error {
	if err := ns.check(src, &t.caller, source); err != nil {
		return err
	}
	return ns.check(dst, &t.caller, checks{ancestor: metadata.Write})
}

// checkRenameLimits checks the new name, and that the new directory can take it.
func checkRenameLimits(src, dst *place) error {
	parent := len(dst.nodes) - 2
	if parent == 0 && dst.name() == reserved {
		return metadata.Errorf(metadata.ErrInvalidPath, "Invalid path name Cannot rename to or from /%s", reserved)
	}
	if err := dst.checkNew(parent, dst.name()); err != nil {
		return err
	}
	if src.parent() == dst.parent() {
		return nil
	}
	return dst.checkRoom(parent)
}

// moveQuota checks the quotas that n comes under when it moves into the directory to, in place of old, and charges them,
// and those that it leaves. known is what n uses, if that was counted; free is what old did, where there are quotas.
//
// Errors: those of checkQuota; errLargeTree.
func (ns *Namespace) moveQuota(n, old, to *inode, known usage) (free usage, err error) {
	if ns.meta.quotas == 0 {
		return free, nil
	}
	from := n.parent
	if old != nil { // a file or an empty directory
		if free, err = ns.usageOf(old, 1); err != nil {
			return free, err
		}
	}
	common := commonAncestor(from, to)
	if ns.limited(from, common) || ns.limited(to, common) {
		u := known
		if tree := ns.foresaw(n); tree.counted {
			u = tree.usage
		}
		if u.names <= 0 || u.space < 0 {
			if u, err = ns.usageOf(n, smallTree); err != nil {
				return free, err
			}
		}
		more := u
		if old == nil || !ns.inSnapshot(old) { // else nothing is given back
			more = u.minus(free)
		}
		if err := ns.checkQuota(to, common, usage{}, more); err != nil {
			return free, err
		}
		ns.charge(from, usage{}.minus(u))
		ns.charge(to, u)
	}
	ns.charge(to, usage{}.minus(free))
	return free, nil
}

// commonAncestor is the deepest directory that is at or above both.
func commonAncestor(a, b *inode) *inode {
	for left, right := a.depth(), b.depth(); a != b; {
		if left >= right {
			a, left = a.parent, left-1
		} else {
			b, right = b.parent, right-1
		}
	}
	return a
}

// depth is how many directories are above n.
func (n *inode) depth() (depth int) {
	for n = n.parent; n != nil; n = n.parent {
		depth++
	}
	return depth
}

// move puts n where dst is; replaced is what was there, nil for nothing.
func (ns *Namespace) move(n *inode, dst *place, replaced *inode) {
	from, to := n.parent, dst.parent()
	ns.rerouted(n)
	event := ns.tell(metadata.EventRename, n)
	ns.detach(n)
	ns.attach(to, cloneName(dst.name()), n)
	ns.tellRename(event, n, replaced)
	ns.modified(from)
	ns.modified(to)
	if n.mtime > to.mtime { // as HDFS has it: a directory is not older than what is put into it
		to.mtime = n.mtime
	}
}
