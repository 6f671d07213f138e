package namespace

import (
	"runtime"
	"strings"
	"sync/atomic"
)

// What is in memory follows Config.Memory. Every inode counts for an estimate of the bytes that it takes with all that leads
// to it; when all of them take more than the budget, a hand goes round the ring of those in memory and lets go what the
// checkpoint has and nobody has used since the hand was there last (the clock of Corbató). It takes a few looks at a time,
// when an entry was applied or something was read, so that nobody waits for it.

// ring has the inodes that are in memory, in no order. It grows without being copied.
type ring struct {
	pieces []*[ringPiece]*inode
	size   int
	hand   int
	// vain is how many looks of the hand in a row let nothing go. After two rounds of them there is nothing to look for.
	vain int
}

const ringPiece = 1 << 12

func (r *ring) at(i int) **inode { return &r.pieces[i/ringPiece][i%ringPiece] }

func (r *ring) add(n *inode) {
	if r.size == len(r.pieces)*ringPiece {
		r.pieces = append(r.pieces, new([ringPiece]*inode))
	}
	*r.at(r.size) = n
	n.slot = uint32(r.size)
	r.size++
}

// remove takes n out; the last one takes its place.
func (r *ring) remove(n *inode) {
	r.size--
	last := r.at(r.size)
	(*last).slot = n.slot
	*r.at(int(n.slot)) = *last
	*last = nil
	if spare := len(r.pieces) - 1; spare > r.size/ringPiece+1 {
		r.pieces[spare] = nil
		r.pieces = r.pieces[:spare]
	}
}

// Estimates of bytes, of a 64-bit machine's size classes, checked by TestEstimateOfMemory.
const (
	fileBytes         = 176 // inode and file are one piece of memory
	directoryBytes    = 128 + 96 + 48
	entryBytes        = 72 // in the parent's tree, the table of inodes and the ring
	blockBytes        = 24 + 36
	constructionBytes = 256
	// weightUnit is in what an inode's weight is counted, so that it fits into two bytes.
	weightUnit = 16
)

// weigh estimates how many bytes of memory n takes, in units.
func (n *inode) weigh() uint16 {
	bytes := entryBytes + len(n.name)
	if f := n.file; f != nil {
		bytes += fileBytes + blockBytes*len(f.blocks)
		if f.open != nil {
			bytes += constructionBytes
		}
	} else {
		bytes += directoryBytes
	}
	if x := n.extra; x != nil {
		bytes += 192 + 64*(len(x.access)+len(x.inherited)) + len(x.data) + 8*len(x.later)
		for _, a := range x.xattrs {
			bytes += 64 + len(a.Name) + len(a.Value)
		}
	}
	return uint16(min(bytes/weightUnit+1, 1<<16-1))
}

// enter counts an inode that has come into memory; it has a weight when it was settled, or read.
func (ns *Namespace) enter(n *inode) {
	n.used = 1
	ns.inodes[n.id] = n
	ns.ring.add(n)
}

// leave is its end.
func (ns *Namespace) leave(n *inode) {
	delete(ns.inodes, n.id)
	ns.ring.remove(n)
	ns.resident -= int64(n.weight) * weightUnit
	n.weight = 0
}

// reweigh brings what n counts for up to date.
func (ns *Namespace) reweigh(n *inode) {
	w := n.weigh()
	ns.resident += (int64(w) - int64(n.weight)) * weightUnit
	n.weight = w
}

// use notes that somebody was interested in n. Readers of hot inodes write nothing.
func (n *inode) use() {
	if atomic.LoadUint32(&n.used) == 0 {
		atomic.StoreUint32(&n.used, 1)
	}
}

// over reports whether there is more in memory than there should be.
func (ns *Namespace) over() bool { return ns.memory > 0 && ns.resident > ns.memory }

// Looks of the hand at a time: some tens of microseconds. Forgetting so many blocks takes as long as a look.
const (
	looksPerTurn  = 256
	blocksPerLook = 4
)

// evict forgets what nobody uses, until the budget is kept or the hand has looked at so many inodes; a file's blocks count
// as well. It reports whether more looks are of use. mu is held alone.
func (ns *Namespace) evict(looks int) (more bool) {
	r := &ns.ring
	for ; ns.over() && r.vain < 2*r.size; looks-- {
		if looks <= 0 {
			return true
		}
		if r.hand >= r.size {
			r.hand = 0
		}
		n := *r.at(r.hand)
		if !ns.evictable(n) {
			r.hand++
			r.vain++
			continue
		}
		if n.used != 0 {
			n.used = 0
			r.hand++
			r.vain++
			continue
		}
		if n.file != nil {
			looks -= len(n.file.blocks) / blocksPerLook
		}
		ns.forget(n)
		r.vain = 0
	}
	return false
}

// readSlack is by how much what is read may be over the budget. One request may need as much as a small directory at a time.
const readSlack = 1 << 20

// makeRoom evicts before something that was read comes into memory.
func (ns *Namespace) makeRoom() {
	if ns.over() && ns.resident > ns.memory+readSlack {
		ns.evict(looksPerTurn)
	}
}

// evictable reports whether the current checkpoint has n, and nothing in memory needs it. Open files stay: their writers
// come back.
func (ns *Namespace) evictable(n *inode) bool {
	return n.parent != nil && !ns.unsaved(n) &&
		(n.file != nil && n.file.open == nil || n.dir != nil && n.dir.children.count() == 0)
}

// unsaved reports whether the last complete checkpoint does not have n as it is.
func (ns *Namespace) unsaved(n *inode) bool {
	return n.epoch == ns.epoch || ns.frozen != nil && n.epoch == ns.frozen.epoch
}

// forget takes an evictable inode out of memory.
func (ns *Namespace) forget(n *inode) {
	if n.dir != nil {
		ns.forgetNear(n)
	} else {
		for _, b := range n.file.blocks {
			delete(ns.blocks, b.ID)
		}
	}
	n.parent.dir.children.remove(n.name)
	n.parent = nil // whoever remembers n sees by that that it is not there any more
	ns.leave(n)
	ns.evicted++
}

// forgetNear makes what is remembered of paths let go of a directory.
func (ns *Namespace) forgetNear(n *inode) {
	if t := ns.near.Load(); t != nil {
		t.forget(hashName(strings.TrimPrefix(n.path(), "/")), n)
	}
}

// shrink evicts in turns until the budget is kept or nothing can go.
func (ns *Namespace) shrink() {
	for more := true; more; {
		ns.mu.Lock()
		more = ns.evict(looksPerTurn)
		ns.mu.Unlock()
		runtime.Gosched()
	}
}

// behindSlack is by how many bytes more than twice the budget memory has to be until commands are held back.
const behindSlack = 64 << 20

// Behind is not nil while commands change more than the checkpoint that is being written lets go, and memory is far over its budget; it is
// closed when that checkpoint has ended.
func (ns *Namespace) Behind() <-chan struct{} {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if ns.frozen == nil || ns.memory <= 0 || ns.resident <= 2*ns.memory+behindSlack {
		return nil
	}
	return ns.frozen.done
}

// Crowded reports whether memory is over its budget because of what changed since the last checkpoint: only another one
// lets that go.
func (ns *Namespace) Crowded() bool {
	ns.mu.RLock()
	defer ns.mu.RUnlock()
	if !ns.over() || ns.frozen != nil {
		return false
	}
	dirty := ns.resident / int64(max(ns.ring.size, 1)) * int64(ns.dirty.size())
	return dirty > ns.memory/4
}
