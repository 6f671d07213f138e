package namespace

import (
	"errors"
	"fmt"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// delete removes an inode, with all that is below it when that is asked for. OK when something was removed; a missing
// path and the root are not.
//
// A directory with entries is only cut off, whatever its size: it goes to the hidden reclaim directory, from which this
// and later commands take it apart in small steps, reporting its blocks as they go.
//
// Errors: ErrNotEmpty; ErrPermission, also for a directory below that the caller may not empty; ErrRetriable with INode for
// a tree that has to be surveyed, again if op carries a survey.
func (ns *Namespace) delete(t *txn, op *logpb.Delete) {
	p := newPlace()
	defer p.release()
	if err := checkNotReserved(op.Target); err != nil {
		t.fail(err)
		return
	}
	if err := ns.resolveTarget(p, t, op.Target, toUse); err != nil {
		t.fail(err)
		return
	}
	n := p.last()
	full := n != nil && n.isDir() && n.dir.entries > 0
	free, counted := ns.surveyed(&t.caller, n, op.Survey)
	if err := ns.check(p, &t.caller, checks{parent: metadata.Write, subtree: !free}, true); err != nil {
		t.fail(err)
		if errors.Is(err, errLargeTree) {
			t.result.INode = n.id
		}
		return
	}
	if full && !op.Recursive {
		t.failf(metadata.ErrNotEmpty, "`%s is non empty': Directory is not empty", p)
		return
	}
	if n == nil || p.isRoot() {
		return
	}
	parent := n.parent
	if ns.limited(parent, nil) {
		u := usage{op.Names, op.Space}
		if !counted || u.names <= 0 || u.space < 0 {
			var err error
			if u, err = ns.usageOf(n, smallTree, true); err != nil {
				t.fail(err)
				if errors.Is(err, errLargeTree) {
					t.result.INode = n.id
				}
				return
			}
		}
		ns.charge(parent, usage{}.minus(u))
	}
	ns.detach(n)
	ns.modified(parent)
	if full {
		ns.attach(ns.trash, fmt.Sprintf("%016x", uint64(n.id)), n)
		ns.reclaim(ReclaimDelete)
	} else {
		ns.bury(n)
	}
	t.result.OK = true
}

// reclaim removes up to limit inodes of deleted directories, from the bottom up and in the order of names, so that every
// member removes the same ones.
func (ns *Namespace) reclaim(limit int) {
	for ; limit > 0 && ns.trash.dir.entries > 0; limit-- {
		n := ns.trash
		for n.isDir() && n.dir.entries > 0 {
			first, err := ns.firstEntry(n)
			if err != nil {
				ns.fatal(err)
			}
			n = first
		}
		parent := n.parent
		ns.detach(n)
		ns.bury(n)
		if parent != ns.trash {
			parent.dir.swept = n.name
		}
	}
}

// firstEntry returns the entry of a directory that is first by name, without loading the others.
func (ns *Namespace) firstEntry(dir *inode) (*inode, error) {
	name, n, ok := dir.dir.children.Min()
	if dir.complete() {
		return n, nil
	}
	prefix := appendID(nil, classEntry, uint64(dir.id))
	from := append(append([]byte(nil), prefix...), dir.dir.swept...)
	err := ns.view.Scan(prefix, from, func(key, _ []byte) bool {
		stored := string(key[len(prefix):])
		if ok && stored >= name {
			return false
		}
		if ns.deleted(string(key)) {
			return true
		}
		name, ok = stored, true
		return false
	})
	if err != nil {
		return nil, err
	}
	if ok {
		n, err = ns.lookup(dir, name, true)
	}
	if err == nil && n == nil {
		err = fmt.Errorf("directory %d has %d entries and no first one: %w", dir.id, dir.dir.entries, metadata.ErrCorrupt)
	}
	return n, err
}
