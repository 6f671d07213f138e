package namespace

import (
	"encoding/binary"

	"github.com/gohops/hops/metadata"
)

// summarizeGhost counts what a snapshot has at and below a ghost, in turns.
func (ns *Namespace) summarizeGhost(c *caller, top *inode, sum *metadata.ContentSummary) error {
	if !top.isDir() {
		count(sum, top)
		return nil
	}
	for stack := []*inode{top}; len(stack) > 0; {
		dir := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		sum.Directories++
		for after, end := "", false; !end; {
			err := ns.read(func() error {
				if s := ns.snaps.byID[dir.snapshot()]; s == nil || s.deleted { // meanwhile
					stack, end = nil, true
					return nil
				}
				if !c.may(dir, metadata.Read|metadata.Execute) {
					return denied(c, dir, dir.path(), metadata.Read|metadata.Execute) // its path ends in what is there now
				}
				entries, upTo, last, err := ns.entriesAt(dir.id, dir.snapshot(), after, entriesPerTurn)
				if err != nil {
					return err
				}
				for _, e := range entries {
					n, err := ns.ghostOf(e.id, dir.snapshot(), e.name, dir)
					if err != nil {
						return err
					}
					if n.isDir() {
						stack = append(stack, n)
					} else {
						count(sum, n)
					}
				}
				after, end = upTo, last
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// countKept adds what the blocks take that only snapshots have of a file in a directory, and the replicas that one of them wants
// more. HDFS counts that of the file, and not of the snapshots.
func (ns *Namespace) countKept(sum *metadata.ContentSummary, n, dir *inode) error {
	if ns.meta.snapshots == 0 {
		return nil
	}
	if n.past() == nil {
		var buf [4]span
		if newest(ns.snaps.live, ns.spansOf(dir, buf[:0]), n.id, ^uint32(0), 0) == 0 {
			return nil
		}
	}
	more, err := ns.keptSpace(n)
	sum.SpaceConsumed += more
	return err
}

// gone is an entry of a directory that is not there any more.
type gone struct {
	name string
	s    uint32 // for which it was kept
	id   metadata.INodeID
}

// summarizeLost adds what was in a directory and is gone, but for the snapshots that have it, as HDFS counts it: what was deleted
// as it was last, what was moved away as it was then. It does not add what is in counted already.
func (ns *Namespace) summarizeLost(dir metadata.INodeID, counted map[metadata.INodeID]bool, sum *metadata.ContentSummary) error {
	for stack := []metadata.INodeID{dir}; len(stack) > 0; {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		prefix := idKey(classSnapshotEntry, uint64(id))
		for from := prefix; from != ""; {
			var moved []gone
			err := ns.read(func() error {
				moved = moved[:0]
				var all []gone
				next := ""
				if ns.meta.snapshots > 0 {
					var bad error
					seen := 0
					err := ns.scanKept(prefix, from, func(key, value []byte) bool {
						if seen++; seen > entriesPerTurn {
							next = string(key)
							return false
						}
						var was metadata.INodeID
						if was, bad = entryOfRecord(value); was != 0 && !counted[was] {
							all = append(all, gone{string(key[len(prefix) : len(key)-5]), binary.BigEndian.Uint32(key[len(key)-4:]), was})
						}
						return bad == nil
					})
					if err == nil {
						err = bad
					}
					if err != nil {
						return err
					}
				}
				from = next
				for _, was := range all {
					if counted[was.id] {
						continue
					}
					n, err := ns.lost(was.id)
					if err != nil {
						return err
					}
					if n == nil {
						if now, err := ns.entryAt(id, was.name, present); err != nil {
							return err
						} else if now != was.id {
							counted[was.id] = true
							moved = append(moved, was)
						}
						continue
					}
					counted[was.id] = true
					var one metadata.ContentSummary
					if n.isDir() {
						one.Directories++
						stack = append(stack, was.id)
					} else {
						count(&one, n)
						more, err := ns.keptSpace(n)
						if err != nil {
							return err
						}
						one.SpaceConsumed += more
					}
					addLost(sum, &one)
				}
				return nil
			})
			if err != nil {
				return err
			}
			for _, was := range moved {
				if err := ns.summarizeMoved(was, sum); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// addLost adds what only snapshots have.
func addLost(sum, one *metadata.ContentSummary) {
	sum.Length += one.Length
	sum.Files += one.Files
	sum.Directories += one.Directories
	sum.SpaceConsumed += one.SpaceConsumed
	s := &sum.Snapshot
	s.Length, s.Files = s.Length+one.Length, s.Files+one.Files
	s.Directories, s.SpaceConsumed = s.Directories+one.Directories, s.SpaceConsumed+one.SpaceConsumed
}

// summarizeMoved adds what was moved away, as a snapshot has it.
func (ns *Namespace) summarizeMoved(was gone, sum *metadata.ContentSummary) error {
	var top *inode
	err := ns.read(func() (err error) {
		top, err = ns.stateAt(was.id, was.s)
		return err
	})
	if err != nil || top == nil {
		return err
	}
	var one metadata.ContentSummary
	root := caller{}
	root.superuser = true
	if err := ns.summarizeGhost(&root, top, &one); err != nil {
		return err
	}
	addLost(sum, &one)
	return nil
}

// lost is the last state of an inode that only snapshots have; nil for any other.
func (ns *Namespace) lost(id metadata.INodeID) (*inode, error) {
	if now, err := ns.stateNow(id); now != nil || err != nil {
		return nil, err
	}
	prefix := stateKey(id)
	at := uint32(0)
	err := ns.scanKept(prefix, prefix, func(key, _ []byte) bool {
		at = binary.BigEndian.Uint32(key[len(prefix):])
		return true
	})
	if err != nil || at == 0 {
		return nil, err
	}
	return ns.stateAt(id, at)
}
