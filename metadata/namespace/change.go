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
	if ns.meta.snapshots > 0 {
		ns.preserve(n)
	}
	if n.epoch != ns.epoch {
		if ns.frozen != nil && n.epoch == ns.frozen.epoch && !n.saved {
			ns.frozen.keep(&ns.enc, n)
		}
		n.epoch = ns.epoch
		n.saved, n.moved = false, false
		n.entryStored, n.idStored = true, true
		n.openStored = n.file != nil && (n.file.open != nil || ns.repeating())
		ns.dirty.list.add(n)
	}
	if !n.touched {
		n.touched = true
		ns.touched = append(ns.touched, n)
	}
	if ns.undo != nil {
		ns.undo.noteState(n)
	}
}

// repeating reports whether a checkpoint that was cut by the end of an earlier process may have what the current command
// makes: what comes and goes from here on needs a deletion, although the complete checkpoint never had it.
func (ns *Namespace) repeating() bool { return ns.applied < ns.leftover }

// goneINodes are inodes that are gone.
type goneINodes map[metadata.INodeID]struct{}

// has reports whether the key is that of one's record of class inode.
func (g goneINodes) has(key string) bool {
	_, ok := g[metadata.INodeID(binary.BigEndian.Uint64([]byte(key[1:])))]
	return ok
}

// born registers a new inode.
func (ns *Namespace) born(n *inode) {
	ns.changed = true
	n.epoch = ns.epoch
	n.moved = true
	n.idStored = ns.repeating()
	n.openStored = n.file != nil && n.idStored
	n.touched = true
	ns.dirty.list.add(n)
	ns.touched = append(ns.touched, n)
	ns.enter(n)
}

// attach makes n the entry name of the directory parent.
func (ns *Namespace) attach(parent *inode, name string, n *inode) {
	ns.touch(parent)
	ns.touch(n)
	if ns.meta.snapshots > 0 {
		ns.arrive(parent, name, n)
	}
	var buf [9 + metadata.MaxNameLength]byte
	key := appendEntryKey(buf[:0], parent.id, name)
	key[0] = ns.entryClass(n)
	if ns.undo != nil {
		ns.notePending(string(key))
		former, stored := n.name, n.entryStored
		ns.undo.note(func() {
			parent.dir.children.remove(name)
			parent.dir.entries--
			n.parent, n.name, n.entryStored = nil, former, stored
		})
	}
	n.parent, n.name, n.moved = parent, name, true
	parent.dir.entries++
	parent.dir.children.add(n)
	_, deleted := ns.pending[string(key)]
	if deleted {
		delete(ns.pending, string(key)) // n's record takes the place of the deletion
	}
	n.entryStored = deleted || ns.repeating()
	ns.disturb(n, true)
}

// detach takes n out of its parent.
func (ns *Namespace) detach(n *inode) {
	ns.unsettle(n.parent)
	ns.cut(n)
}

// cut is detach where no survey is: in what was deleted.
func (ns *Namespace) cut(n *inode) {
	parent := n.parent
	ns.touch(parent)
	ns.touch(n)
	if ns.meta.snapshots > 0 {
		ns.depart(n)
	}
	if ns.undo != nil {
		ns.notePending(ns.storedKey(n))
		ns.undo.note(func() {
			n.parent = parent
			parent.dir.children.add(n)
			parent.dir.entries++
		})
	}
	parent.dir.entries--
	parent.dir.children.remove(n.name)
	if n.entryStored {
		ns.pending[ns.storedKey(n)] = nil
	}
	n.parent = nil
}

// bury removes a detached inode for good: its blocks, its lease, itself.
func (ns *Namespace) bury(n *inode) {
	ns.touch(n)
	if n.file != nil {
		source := metadata.BlockID(0)
		if o := n.file.open; o != nil {
			source = o.source.ID
			ns.closeFile(n)
		}
		for i := range n.file.blocks {
			ns.dropBlock(n, i)
		}
		ns.dropSource(n, source)
		ns.meta.files--
	} else {
		ns.meta.directories--
		if q := n.quota(); q != nil {
			ns.meta.quotas--
			if q.types != nil {
				ns.meta.typeQuotas--
			}
		}
		if _, ok := ns.snaps.allowed[n.id]; ok {
			ns.setAllowed(n.id, false)
		}
	}
	n.dead = true
	ns.dirty.dead++
	ns.hash -= n.hash
	n.hash = 0
	ns.leave(n)
	if ns.meta.snapshots > 0 {
		ns.lose(n)
	}
	if n.idStored {
		ns.gone[n.id] = struct{}{}
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
	ns.pending[idKey(classBlock, uint64(b.ID))] = blockRecord(n.id, nil)
	ns.meta.blocks++
}

// adoptBlock moves a block, whose file goes, to a touched file.
func (ns *Namespace) adoptBlock(n *inode, b metadata.Block) {
	n.file.blocks = append(n.file.blocks, b)
	n.file.length += b.Length
	ns.blocks[b.ID] = n
	ns.pending[idKey(classBlock, uint64(b.ID))] = blockRecord(n.id, nil)
}

// removeLast takes the last block off a touched file.
func (ns *Namespace) removeLast(n *inode) {
	length, i := n.file.last().Length, len(n.file.blocks)-1
	if ns.dropBlock(n, i); n.isBody(i) {
		n.looseBody()
	}
	n.file.blocks = n.file.blocks[:i]
	n.file.length -= length
}

// dropBlock lets the ith block of a touched file go, unless a snapshot has it.
func (ns *Namespace) dropBlock(n *inode, i int) {
	body := n.isBody(i)
	if ns.meta.snapshots > 0 && ns.retain(n, i) {
		return
	}
	b := n.file.blocks[i]
	delete(ns.blocks, b.ID)
	ns.pending[idKey(classBlock, uint64(b.ID))] = nil
	ns.meta.blocks--
	if body {
		ns.bodyGone(b, n.hasInlined(i))
		return
	}
	ns.effects.Removed = append(ns.effects.Removed, b)
}

// settle brings the hash up to date with what was touched.
func (ns *Namespace) settle() {
	changed, turn := len(ns.touched), 0
	for i, n := range ns.touched {
		if turn++; turn > changesPerTurn {
			ns.pause()
			turn = 1
		}
		n.touched = false
		if !n.dead {
			if n.file != nil {
				turn += len(n.file.blocks) / 16
			}
			h := hashRecord(ns.enc.entry(n))
			ns.hash += h - n.hash
			n.hash = h
			ns.reweigh(n)
		}
		ns.touched[i] = nil
	}
	ns.touched = ns.touched[:0]
	ns.dirty.letDeadGo(changed)
	ns.settleLeases()
	ns.settleRetries()
	ns.publishMeta()
	m := ns.meta.hash()
	ns.hash += m - ns.metaHash
	ns.metaHash = m
	ns.published = ns.hash
}

// changes are the inodes that have changed, and how many of them are dead.
type changes struct {
	list inodeList
	dead int
	// When the dead are the most of it, list becomes old and begins anew, and those that live follow a few at a time. Nothing is taken out of
	// a list: a listing of blocks may be reading it.
	old inodeList
}

// size is how many of them live, or a few more.
func (c *changes) size() int { return c.list.size + c.old.size - c.dead }

// lists are all of them.
func (c *changes) lists() [][]*inode { return slices.Concat(c.old.chunks, c.list.chunks) }

// letDeadGo takes inodes that are gone off the list of changes when they are the most of it: what a checkpoint has of
// them is in pending, and what comes and goes between two checkpoints should not be in memory until the second. changed is how many
// the entry has changed.
func (c *changes) letDeadGo(changed int) {
	const few = 8
	if c.old.size == 0 {
		if c.dead < few || c.dead < c.list.size/2 {
			return
		}
		c.list, c.old = inodeList{}, c.list
	}
	for looks := 4 * (changed + changesPerTurn); looks > 0 && c.old.size > 0; {
		turn := c.old.take(looks)
		looks -= len(turn)
		for _, n := range turn {
			if n.dead {
				c.dead--
			} else {
				c.list.add(n)
			}
		}
	}
}

// inodesPerChunk is how many inodes a chunk of a list has at most.
const inodesPerChunk = 2048

// inodeList is a list of inodes in chunks: it is never copied as a whole because it grows, which would be milliseconds for a million.
type inodeList struct {
	chunks [][]*inode
	size   int
}

func (l *inodeList) add(n *inode) {
	last := len(l.chunks) - 1
	if last < 0 || len(l.chunks[last]) >= inodesPerChunk {
		l.chunks = append(l.chunks, nil)
		last++
	}
	l.chunks[last] = append(l.chunks[last], n)
	l.size++
}

// take takes some of the inodes at the front, most at most, off a list that has any.
func (l *inodeList) take(most int) []*inode {
	first := l.chunks[0]
	n := min(len(first), most)
	if l.chunks[0] = first[n:]; n == len(first) {
		l.chunks = l.chunks[1:]
	}
	if l.size -= n; l.size == 0 {
		l.chunks = nil
	}
	return first[:n]
}

// modified raises the modification time of a directory, as an entry came or went. As in HDFS it never falls, so that one
// that was set into the future, by a user or by a clock that was ahead, stays until somebody sets it again.
func (ns *Namespace) modified(dir *inode) {
	if ns.meta.now > dir.mtime {
		ns.touch(dir)
		dir.mtime = ns.meta.now
	}
}

// fatal stops the process: a member that cannot apply a committed command must not go on.
func (ns *Namespace) fatal(err error) {
	ns.doubt(err)
	panic(fatal{fmt.Errorf("namespace: cannot apply the log behind %d: %w", ns.applied, err)})
}
