package namespace

import (
	"encoding/binary"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// What only snapshots have counts for quotas, as in HDFS:
//
//	a file that is there    with the blocks that only snapshots have of it, all of them with the most replicas that it or one of its
//	                        snapshots wants, wherever it is now
//	what is gone            itself and its blocks, for the quotas at and above the directory of the newest snapshot that has it (its kept)
//
// Both are functions of the records that were kept: whoever changes these tells the quotas of the difference, and fsck counts all again. A
// tree that is deleted goes on to count as a whole, as a claim, and is given back as it is taken apart: nobody gets its room twice.

// claim is what a deleted tree that is being taken apart takes of the kept of a directory.
type claim struct {
	root metadata.INodeID
	left total
}

func (c claim) encode() *logpb.SnapshotUsage {
	if c == (claim{}) {
		return nil
	}
	return &logpb.SnapshotUsage{Root: uint64(c.root), Names: uint64(c.left.names), Space: c.left.space}
}

func decodeClaim(u *logpb.SnapshotUsage) claim {
	return claim{metadata.INodeID(u.GetRoot()), total{int64(u.GetNames()), u.GetSpace()}}
}

func (n *inode) kept() usage {
	if n.extra == nil {
		return usage{}
	}
	return n.extra.kept.usage()
}

// historiesPerTurn is of how many inodes somebody who holds the lock may look for what was kept: each takes about 10 us.
const historiesPerTurn = 256

// history is what was kept of an inode.
type history struct {
	states      int
	newest      uint32 // the newest snapshot that something was kept for; 0: nothing was
	replication uint16 // the greatest, of states that are replicated
	// What blocks take that the inode does not have now: one replica of each of states that are replicated, and all that those of states
	// with an erasure coding policy take.
	bytes, coded int64
}

// historyOf reads what was kept of an inode, which is the file now; nil: a directory, or gone.
func (ns *Namespace) historyOf(id metadata.INodeID, now *file) (h history, err error) {
	var only map[metadata.BlockID]struct{}
	prefix := stateKey(id)
	var bad error
	err = ns.scanKept(prefix, prefix, func(key, value []byte) bool {
		var was *inode
		if was, _, bad = decodeKept("", value); bad != nil {
			return false
		}
		h.states++
		h.newest = binary.BigEndian.Uint32(key[len(prefix):])
		if was.file == nil {
			return true
		}
		if !was.file.coded() {
			h.replication = max(h.replication, was.file.replication)
		}
		for i, b := range was.finished() {
			if now != nil && i < len(now.blocks) && now.blocks[i].ID == b.ID {
				continue
			}
			if _, ok := only[b.ID]; ok {
				continue
			}
			if only == nil {
				only = map[metadata.BlockID]struct{}{}
			}
			only[b.ID] = struct{}{}
			if was.file.coded() {
				h.coded += was.file.blockSpace(b)
			} else {
				h.bytes += b.Length
			}
		}
		return true
	})
	if err == nil {
		err = bad
	}
	return h, err
}

// gone is what an inode that is not there any more counts.
func (h *history) gone() usage {
	if h.newest == 0 {
		return usage{}
	}
	return usage{names: 1, space: h.bytes*int64(h.replication) + h.coded}
}

// beyond is what a file counts beyond what it takes itself, if it has so many replicas.
func (h *history) beyond(f *file, replication uint16) int64 {
	if f.coded() {
		return h.bytes*int64(h.replication) + h.coded
	}
	bytes := f.space() / int64(f.replication)
	return (bytes+h.bytes)*int64(max(replication, h.replication)) - bytes*int64(replication) + h.coded
}

// keptSpace is what a file takes, with all its snapshots, beyond what it takes now.
func (ns *Namespace) keptSpace(n *inode) (int64, error) {
	h, err := ns.historyOf(n.id, n.file)
	return h.beyond(n.file, n.file.replication), err
}

// hasHistory reports whether something may have been kept of n.
func (ns *Namespace) hasHistory(n *inode) bool {
	if ns.meta.snapshots == 0 || n.id >= ns.snaps.born {
		return false
	}
	if len(ns.snaps.deleted) > 0 { // which no path and no note leads to
		return true
	}
	if n == ns.snaps.leaving.n {
		return ns.snaps.leaving.newest != 0
	}
	var buf [4]span
	return newest(ns.snaps.live, ns.spansOf(n, buf[:0]), n.id, ^uint32(0), 0) != 0
}

// spaceOf is what a file counts for quotas.
func (ns *Namespace) spaceOf(n *inode) (int64, error) {
	if !ns.hasHistory(n) {
		return n.file.space(), nil
	}
	if err := ns.looked(looksPerHistory); err != nil {
		return 0, err
	}
	more, err := ns.keptSpace(n)
	return n.file.space() + more, err
}

// keep adds u to what only snapshots of a directory have. One that has gone itself, with nothing but deleted snapshots, counts nothing.
func (ns *Namespace) keep(root metadata.INodeID, u usage) {
	if u == (usage{}) {
		return
	}
	dir, err := ns.byID(root)
	if err != nil {
		ns.fatal(err)
	}
	if dir == nil {
		return
	}
	ns.touch(dir)
	x := dir.own()
	x.kept = x.kept.usage().plus(u).total()
	dir.tidy()
	ns.charge(dir, u.total().usage())
}

// rootOf is the directory that a snapshot is of; 0 for none.
func (ns *Namespace) rootOf(s uint32) metadata.INodeID {
	if s := ns.snaps.byID[s]; s != nil {
		return s.root
	}
	return 0
}

// rewrite runs fn, which takes away something that was kept of an inode or hands it to the snapshot that it returns, and tells the quotas.
func (ns *Namespace) rewrite(id metadata.INodeID, fn func() (heir uint32, err error)) error {
	now, err := ns.stateNow(id)
	if err != nil {
		return err
	}
	if now != nil && (now.file == nil || !ns.meters()) {
		_, err := fn()
		return err
	}
	var f *file
	if now != nil {
		f = now.file
	}
	before, err := ns.historyOf(id, f)
	if err != nil {
		return err
	}
	heir, err := fn()
	if err != nil {
		return err
	}
	after := history{}
	switch {
	case before.states > 1:
		if after, err = ns.historyOf(id, f); err != nil {
			return err
		}
	case heir != 0:
		after = before
		after.newest = heir
	}
	if now == nil {
		was, is := ns.rootOf(before.newest), ns.rootOf(after.newest)
		if was == is {
			ns.keep(is, after.gone().minus(before.gone()))
			return nil
		}
		ns.keep(was, usage{}.minus(before.gone()))
		ns.keep(is, after.gone())
		return nil
	}
	if less := before.beyond(f, f.replication) - after.beyond(f, f.replication); less != 0 {
		n, err := ns.byID(id)
		if err != nil {
			return err
		}
		ns.charge(n.parent, usage{space: -less})
	}
	return nil
}

// lose counts an inode that is gone, for the snapshots that have it.
func (ns *Namespace) lose(n *inode) {
	if !ns.hasHistory(n) {
		return
	}
	h, err := ns.historyOf(n.id, nil)
	if err != nil {
		ns.fatal(err)
	}
	ns.keep(ns.rootOf(h.newest), h.gone())
}

// lay goes on to count a deleted tree, which is detached and uses u, for the newest snapshot that has its top.
func (ns *Namespace) lay(top *inode, s uint32, u usage) {
	root := ns.rootOf(s)
	if root == 0 {
		return
	}
	ns.keep(root, u)
	ns.touch(top)
	top.own().claim = claim{root, u.total()}
}

// redeem gives back what is about to be taken out of the deleted tree that is being taken apart: from here on it counts by itself.
func (ns *Namespace) redeem(n *inode) error {
	top := ns.trash.dir.children.first()
	if top.extra == nil || top.extra.claim.root == 0 {
		return nil
	}
	c := &top.extra.claim
	u := c.left.usage()
	if n != top {
		u = usage{names: 1}
		if n.file != nil {
			space, err := ns.spaceOf(n)
			if err != nil {
				return err
			}
			u.space = space
		}
		u = usage{names: min(u.names, c.left.names), space: min(u.space, c.left.space)}
	}
	ns.touch(top)
	ns.keep(c.root, usage{}.minus(u))
	c.left = c.left.usage().minus(u).total()
	return nil
}
