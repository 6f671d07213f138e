package namespace

import (
	"slices"
	"strings"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// concat moves the blocks of the sources, bodies of small files among them, in order, to the end of the target, and removes the sources. Nothing is copied.
//
// Errors: ErrInvalidArgument for no source, one twice, the target among them, one in another directory, open or empty,
// one with larger blocks or another erasure coding policy than the target's, and an open target; ErrNotExist; ErrIO for too many blocks;
// ErrPermission without WRITE on the target, READ on a source, WRITE on the directory; ErrSpaceQuota when the target
// wants more replicas than the sources.
func (ns *Namespace) concat(t *txn, op *logpb.Concat) {
	target := newPlace()
	defer target.release()
	bad := func(format string, args ...any) { t.failf(metadata.ErrInvalidArgument, format, args...) }
	if len(op.Sources) == 0 {
		bad("No sources given")
		return
	}
	for _, one := range append([]*logpb.Target{op.Target}, op.Sources...) {
		if one.GetVersion() == 0 && one.GetBase() != 0 || strings.HasPrefix(one.GetPath(), strings.Trim(inodesPrefix, "/")) {
			t.failf(metadata.ErrIO, "Concat operation doesn't support .reserved relative path : %s%d/%s", inodesPrefix, one.GetBase(), printable(one.GetPath()))
			return
		}
	}
	if err := ns.resolveTarget(target, t, op.Target, toUse); err != nil {
		t.fail(err)
		return
	}
	if err := ns.check(target, &t.caller, checks{last: metadata.Write}); err != nil {
		t.fail(err)
		return
	}
	n, err := fileAt(target)
	if err != nil {
		t.fail(err)
		return
	}
	if n.file.open != nil {
		bad("concat: target file %s is under construction", target)
		return
	}
	if n.file.openEnd() {
		bad("concat: the end of the target file %s is replicated, though the file has an erasure coding policy", target)
		return
	}
	sources := ns.concatSources(t, op, target, n)
	if t.result.Err != nil {
		return
	}
	var free, more usage
	blocks := len(n.file.blocks)
	for _, s := range sources {
		free.names++
		blocks += len(s.file.blocks)
		space := s.file.space()
		if !n.file.coded() {
			space = s.file.length * int64(n.file.replication)
		}
		more = more.plus(n.uses(space)).minus(s.uses(s.file.space()))
	}
	if blocks > MaxBlocks {
		t.failf(metadata.ErrIO, "File has reached the limit on maximum number of blocks "+
			"(dfs.namenode.fs-limits.max-blocks-per-file): %d >= %d", blocks, MaxBlocks)
		return
	}
	if err := ns.checkQuota(n.parent, nil, usage{}, more); err != nil {
		t.fail(err)
		return
	}
	told := len(ns.events)
	before := ns.metered(n)
	for _, s := range sources {
		before = before.plus(ns.metered(s))
	}
	ns.tellAppend(n, false)
	ns.touch(n)
	for _, s := range sources {
		ns.tellUnlink(s)
		ns.detach(s)
		for i, b := range s.file.blocks {
			if s.isBody(i) {
				ns.adoptBody(n, s.bodyAt(i))
			} else {
				ns.adoptBlock(n, b)
			}
		}
		s.file.blocks, s.file.length = nil, 0
		ns.bury(s)
	}
	ns.allChanged(n)
	n.mtime = ns.meta.now
	ns.modified(n.parent)
	ns.charge(n.parent, ns.metered(n).minus(before).minus(usage{names: free.names}))
	ns.tellClose(n)
	ns.continued(told)
	t.changed(n)
}

// concatSources are the sources of a concat, checked in the order in which HDFS checks them.
func (ns *Namespace) concatSources(t *txn, op *logpb.Concat, target *place, n *inode) []*inode {
	p := newPlace()
	defer p.release()
	bad := func(format string, args ...any) { t.failf(metadata.ErrInvalidArgument, format, args...) }
	var sources []*inode
	repeated := false
	for _, source := range op.Sources {
		err := ns.resolveTarget(p, t, source, toUse)
		if err == nil {
			err = ns.check(p, &t.caller, checks{last: metadata.Read, parent: metadata.Write})
		}
		var s *inode
		if err == nil {
			s, err = fileAt(p)
		}
		if err != nil {
			t.fail(err)
			return nil
		}
		switch {
		case s.parent != n.parent:
			bad("Source file %s is not in the same directory with the target %s", p, target)
		case ns.inSnapshot(s):
			t.failf(metadata.ErrSnapshot, "Concat: the source file %s is in snapshot", p)
		case s == n:
			bad("concat: the src file %s is the same with the target file %s", p, target)
		case s.file.open != nil || len(s.file.blocks) == 0:
			bad("concat: source file %s is invalid or empty or underConstruction", p)
		case s.file.blockSize > n.file.blockSize:
			bad("concat: source file %s has preferred block size %d which is greater than the target file's preferred block size %d",
				p, s.file.blockSize, n.file.blockSize)
		case s.file.erasure != n.file.erasure:
			bad("Source file %s and target file %s have different erasure coding policy", p, target)
		case s.file.openEnd():
			bad("concat: the end of the source file %s is replicated, though the file has an erasure coding policy", p)
		}
		if t.result.Err != nil {
			return nil
		}
		repeated = repeated || slices.Contains(sources, s)
		sources = append(sources, s)
	}
	if repeated {
		bad("concat: at least two of the source files are the same")
	}
	return sources
}
