package namespace

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gohops/hops/metadata"
)

// How a change reaches the hash and the checkpoint:
//
//	touch(n)        before n changes: keeps what a running checkpoint still needs of it, puts it on the lists
//	...             change n
//	settle()        at the end of the log entry: hashes all that was touched
//	Freeze()        hands the list of changes to the checkpoint and starts the next epoch
//
// Records that are not live entries are encoded at once, into pending.

// touch announces a change of n. It has to be called before the change.
func (ns *Namespace) touch(n *inode) {
	ns.changed = true
	if n.epoch != ns.epoch {
		if ns.frozen != nil && n.epoch == ns.frozen.epoch && !n.saved {
			ns.frozen.keep(&ns.enc, n)
		}
		n.epoch = ns.epoch
		n.saved, n.moved = false, false
		n.entryStored, n.idStored = true, true
		n.openStored = n.file != nil && n.file.open != nil
		ns.dirty = append(ns.dirty, n)
	}
	if !n.touched {
		n.touched = true
		ns.touched = append(ns.touched, n)
	}
}

// born registers a new inode.
func (ns *Namespace) born(n *inode) {
	ns.changed = true
	n.epoch = ns.epoch
	n.moved = true
	n.touched = true
	ns.dirty = append(ns.dirty, n)
	ns.touched = append(ns.touched, n)
	ns.inodes[n.id] = n
}

// attach makes n the entry name of the directory parent.
func (ns *Namespace) attach(parent *inode, name string, n *inode) {
	ns.touch(parent)
	ns.touch(n)
	n.parent, n.name, n.moved = parent, name, true
	parent.dir.entries++
	parent.dir.children.Set(name, n)
	var buf [9 + metadata.MaxNameLength]byte
	key := appendEntryKey(buf[:0], parent.id, name)
	_, n.entryStored = ns.pending[string(key)]
	if n.entryStored {
		delete(ns.pending, string(key)) // n's record takes the place of the deletion
	}
	ns.disturb(n, true)
}

// detach takes n out of its parent.
func (ns *Namespace) detach(n *inode) {
	parent := n.parent
	ns.touch(parent)
	ns.touch(n)
	ns.unsettle(parent)
	parent.dir.entries--
	parent.dir.children.Delete(n.name)
	if n.entryStored {
		ns.pending[entryKey(parent.id, n.name)] = nil
	}
	n.parent = nil
}

// bury removes a detached inode for good: its blocks, its lease, itself.
func (ns *Namespace) bury(n *inode) {
	ns.touch(n)
	if n.file != nil {
		if n.file.open != nil {
			ns.closeFile(n)
		}
		for _, b := range n.file.blocks {
			ns.dropBlock(b)
		}
		ns.meta.files--
	} else {
		ns.meta.directories--
		if n.quota() != nil {
			ns.meta.quotas--
		}
	}
	n.dead = true
	ns.deadDirty++
	ns.hash -= n.hash
	n.hash = 0
	delete(ns.inodes, n.id)
	if n.idStored {
		ns.pending[idKey(classINode, uint64(n.id))] = nil
	}
	if n.openStored {
		ns.pending[idKey(classOpen, uint64(n.id))] = nil
	}
}

// appendBlock adds a block to a touched file.
func (ns *Namespace) appendBlock(n *inode, b metadata.Block) {
	n.file.blocks = append(n.file.blocks, b)
	n.file.length += b.Length
	ns.blocks[b.ID] = n
	ns.pending[idKey(classBlock, uint64(b.ID))] = binary.BigEndian.AppendUint64(nil, uint64(n.id))
	ns.meta.blocks++
}

// adoptBlock moves a block, whose file goes, to a touched file.
func (ns *Namespace) adoptBlock(n *inode, b metadata.Block) {
	n.file.blocks = append(n.file.blocks, b)
	n.file.length += b.Length
	ns.blocks[b.ID] = n
	ns.pending[idKey(classBlock, uint64(b.ID))] = binary.BigEndian.AppendUint64(nil, uint64(n.id))
}

// removeLast takes the last block off a touched file.
func (ns *Namespace) removeLast(n *inode) {
	b := *n.file.last()
	n.file.blocks = n.file.blocks[:len(n.file.blocks)-1]
	n.file.length -= b.Length
	ns.dropBlock(b)
}

func (ns *Namespace) dropBlock(b metadata.Block) {
	delete(ns.blocks, b.ID)
	ns.pending[idKey(classBlock, uint64(b.ID))] = nil
	ns.meta.blocks--
	ns.effects.Removed = append(ns.effects.Removed, b)
}

// settle brings the hash up to date with what was touched.
func (ns *Namespace) settle() {
	for i, n := range ns.touched {
		n.touched = false
		if !n.dead {
			h := hashRecord(ns.enc.entry(n))
			ns.hash += h - n.hash
			n.hash = h
		}
		ns.touched[i] = nil
	}
	ns.touched = ns.touched[:0]
	ns.letDeadGo()
	ns.settleLeases()
	ns.settleRetries()
	ns.safeMode.Store(ns.meta.safeMode)
	ns.publishForgotten()
	m := ns.meta.hash()
	ns.hash += m - ns.metaHash
	ns.metaHash = m
	ns.published = ns.hash
}

// letDeadGo takes inodes that are gone off the list of changes when they are the most of it: what a checkpoint has of
// them is in pending, and what comes and goes between two checkpoints should not be in memory until the second.
func (ns *Namespace) letDeadGo() {
	const few = 8
	if ns.deadDirty < few || ns.deadDirty < len(ns.dirty)/2 {
		return
	}
	ns.dirty = slices.DeleteFunc(ns.dirty, func(n *inode) bool { return n.dead })
	ns.deadDirty = 0
}

// modified raises the modification time of a directory, as an entry came or went. As in HDFS it never falls, so that one
// that was set into the future, by a user or by a clock that was ahead, stays until somebody sets it again.
func (ns *Namespace) modified(dir *inode) {
	if ns.meta.now > dir.mtime {
		ns.touch(dir)
		dir.mtime = ns.meta.now
	}
}

// evict forgets inodes that the checkpoint has, until Config.Resident are left or nothing can go.
func (ns *Namespace) evict() {
	if ns.cfg.Resident == 0 || len(ns.inodes) <= ns.cfg.Resident {
		return
	}
	for id, n := range ns.inodes {
		if len(ns.inodes) <= ns.cfg.Resident {
			return
		}
		if n.parent == nil || n.epoch == ns.epoch || ns.frozen != nil && n.epoch == ns.frozen.epoch ||
			n.isDir() && n.dir.children.Len() > 0 {
			continue
		}
		n.parent.dir.children.Delete(n.name)
		delete(ns.inodes, id)
		if n.file != nil {
			for _, b := range n.file.blocks {
				delete(ns.blocks, b.ID)
			}
		}
	}
}

// fatal stops the process: a member that cannot apply a committed command must not go on.
func (ns *Namespace) fatal(err error) {
	ns.doubt(err)
	panic(fatal{fmt.Errorf("namespace: cannot apply the log behind %d: %w", ns.applied, err)})
}
