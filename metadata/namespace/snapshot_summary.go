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
		if !c.may(dir, metadata.Read|metadata.Execute) {
			return denied(c, dir, dir.path(), metadata.Read|metadata.Execute)
		}
		for after, end := "", false; !end; {
			err := ns.read(func() error {
				if s := ns.snaps.byID[dir.snapshot()]; s == nil || s.deleted { // meanwhile
					stack, end = nil, true
					return nil
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

// summarizeLost adds what was in a directory and is gone, but for the snapshots that have it, as HDFS counts it. It does not add
// what is in counted already.
func (ns *Namespace) summarizeLost(dir metadata.INodeID, counted map[metadata.INodeID]bool, sum *metadata.ContentSummary) error {
	for stack := []metadata.INodeID{dir}; len(stack) > 0; {
		id := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		prefix := idKey(classSnapshotEntry, uint64(id))
		for from := prefix; from != ""; {
			err := ns.read(func() error {
				var ids []metadata.INodeID
				if ns.meta.snapshots > 0 {
					var bad error
					next, seen := "", 0
					err := ns.scanKept(prefix, from, func(key, value []byte) bool {
						if seen++; seen > entriesPerTurn {
							next = string(key)
							return false
						}
						var was metadata.INodeID
						if was, bad = entryOfRecord(value); was != 0 && !counted[was] {
							ids = append(ids, was)
						}
						return bad == nil
					})
					if err == nil {
						err = bad
					}
					if err != nil {
						return err
					}
					from = next
				} else {
					from = ""
				}
				for _, was := range ids {
					n, err := ns.lost(was)
					if err != nil {
						return err
					}
					if n == nil || counted[was] {
						continue
					}
					counted[was] = true
					var one metadata.ContentSummary
					if n.isDir() {
						one.Directories++
						stack = append(stack, was)
					} else {
						count(&one, n)
					}
					sum.Length += one.Length
					sum.Files += one.Files
					sum.Directories += one.Directories
					sum.SpaceConsumed += one.SpaceConsumed
					s := &sum.Snapshot
					s.Length, s.Files = s.Length+one.Length, s.Files+one.Files
					s.Directories, s.SpaceConsumed = s.Directories+one.Directories, s.SpaceConsumed+one.SpaceConsumed
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
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
