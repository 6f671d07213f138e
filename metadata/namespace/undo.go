package namespace

import (
	"slices"

	"github.com/gohops/hops/metadata"
)

// journal is how what a command has changed is taken back: what Publish needs, whose steps each look and change in one go. The few functions that its
// steps change the state by note what is to be done, and all of it is done in the reverse order. Afterwards the state is the one from before to the last
// bit, so that its hash is, too; only what a checkpoint writes may be more: what was touched, as it is.
type journal struct {
	back []func()
	seen map[*inode]struct{} // which are as they were noted first

	meta    meta
	hash    uint64
	told    int
	effects Effects
	owed    int

	thrownOut int // inodes that went to the reclaim directory
	looks     int // see looked
	turn      int // of these, with the lock held at a time

	// foreseen are the trees that steps delete, or move, and nothing was changed in yet.
	foreseen map[metadata.INodeID]foreseen
}

// foreseen is what is known of a tree before the first step.
type foreseen struct {
	free    bool // the caller may delete it
	counted bool // usage is what it uses
	usage   usage
}

// beginUndo starts to note what the command changes.
func (ns *Namespace) beginUndo() {
	ns.undo = &journal{seen: map[*inode]struct{}{}, meta: ns.meta, hash: ns.hash, told: len(ns.events), effects: ns.effects, owed: ns.owed}
}

// rollBack takes back what was changed since beginUndo. Nobody has seen it: the lock was held.
func (ns *Namespace) rollBack() {
	j := ns.undo
	ns.undo = nil
	for _, back := range slices.Backward(j.back) {
		back()
	}
	ns.meta, ns.hash, ns.events, ns.effects, ns.owed = j.meta, j.hash, ns.events[:j.told], j.effects, j.owed
	ns.snaps.leaving, ns.snaps.last = leaving{}, retention{}
	ns.snaps.forgetKnown() // directories were elsewhere meanwhile
}

// What a publish looks at, in units of some 30 ns. Each step may look at as much as an operation by itself, and
// others wait for all of them. This is part of the state machine.
const (
	maxPublishLooks = 1 << 17
	// A name of a path is looked at several times: by rights, quotas and snapshots of all that is above.
	looksPerName = 2
	// Each directory may have to be read by itself, and what is in it is counted, or its rights are.
	looksPerDirectory = 32
	looksPerEntry     = 2
	// What was kept of a file in a snapshot is read from the store.
	looksPerHistory = 32
	// rootsPerLook is how many snapshottable directories are one look.
	rootsPerLook = 16
	// looksAtATime is after how many looks others have a turn while nothing was changed. It may be anything.
	looksAtATime = 2048
)

var errManyLooks = metadata.Errorf(metadata.ErrInvalidArgument,
	"the steps up to this one look at too much while all others wait: paths that are very deep, or trees with too many entries together. Publish fewer of them at a time")

// looked counts what a step is about to look at; of operations that are no steps nothing. Errors: errManyLooks.
func (ns *Namespace) looked(looks int) error {
	j := ns.undo
	if j == nil {
		return nil
	}
	j.turn += looks
	ns.looksMost = max(ns.looksMost, j.turn)
	if j.looks += looks; j.looks > maxPublishLooks {
		return errManyLooks
	}
	return nil
}

// breathe lets others have the lock if much was looked at since they had. Nothing was changed yet.
func (ns *Namespace) breathe() {
	j := ns.undo
	if j.turn < looksAtATime {
		return
	}
	ns.undo = nil // what others read is no step
	ns.pause()
	ns.undo = j
	j.turn = 0
}

func (j *journal) note(back func()) { j.back = append(j.back, back) }

// noteState notes what n is, before it changes for the first time. Its place is noted by attach and cut.
func (j *journal) noteState(n *inode) {
	if _, ok := j.seen[n]; ok {
		return
	}
	j.seen[n] = struct{}{}
	for at := n; at != nil && len(j.foreseen) > 0; at = at.parent {
		delete(j.foreseen, at.id)
	}
	mtime, x := n.mtime, n.extra.clone()
	j.note(func() { n.mtime, n.extra = mtime, x })
}

// notePending notes what a checkpoint will write under a key. It has to be called before that changes.
func (ns *Namespace) notePending(key string) {
	if ns.undo == nil {
		return
	}
	value, ok := ns.pending[key]
	ns.undo.note(func() {
		if ok {
			ns.pending[key] = value
		} else {
			delete(ns.pending, key)
		}
	})
}

// clone is a copy of what commands change in place. nil: nil.
func (x *extra) clone() *extra {
	if x == nil {
		return nil
	}
	c := *x
	c.xattrs = slices.Clone(x.xattrs)
	if x.quota != nil {
		q := *x.quota
		if q.types != nil {
			t := *q.types
			q.types = &t
		}
		c.quota = &q
	}
	return &c
}
