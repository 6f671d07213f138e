package namespace

import (
	"encoding/binary"
	"slices"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// snapshots looks at what there is of snapshots, and at what was kept for them.
func (c *checker) snapshots() {
	ns := c.ns
	for id := range ns.snaps.allowed {
		key := idKey(classSnapshottable, uint64(id))
		c.countRecord(key)
		if s := c.inodes[id]; s == nil || !s.dir {
			c.report("inode %d is snapshottable, and no directory", id)
		}
	}
	live := 0
	for id, s := range ns.snaps.byID {
		c.countRecord(snapshotKey(id))
		if value, err := ns.getNow(snapshotKey(id)); err != nil || string(value) != string(s.encode()) {
			c.report("snapshot %d is not that of its record (%v)", id, err)
		}
		if !s.deleted {
			live++
			if _, ok := ns.snaps.allowed[s.root]; !ok {
				c.report("snapshot %d is of inode %d, which is not snapshottable", id, s.root)
			}
		}
		if id > ns.meta.lastSnapshot {
			c.report("snapshot %d was never taken", id)
		}
	}
	if m := &ns.meta; int(m.snapshots) != len(ns.snaps.byID) || int(m.snapshottable) != len(ns.snaps.allowed) || len(ns.snaps.deleted) != len(ns.snaps.byID)-live {
		c.report("%d snapshots of %d directories, %d of them deleted, are there; %d of %d, %d, are counted",
			len(ns.snaps.byID), len(ns.snaps.allowed), len(ns.snaps.byID)-live, m.snapshots, m.snapshottable, len(ns.snaps.deleted))
	}
	index := map[string]bool{}
	c.each(classSnapshotIndex, func(key string, _ []byte) { index[key] = true })
	blocks := map[metadata.BlockID]metadata.INodeID{}
	owners := map[metadata.INodeID]bool{}
	c.each(classSnapshotINode, func(key string, value []byte) {
		n, spans, err := decodeKept("", value)
		if err != nil {
			c.report("record %q: %w", key, err)
			return
		}
		if len(key) != 13 || uint64(n.id) != binary.BigEndian.Uint64([]byte(key[1:9])) {
			c.report("record %q is of inode %d", key, n.id)
			return
		}
		c.keptRecord(key, value, n.id, spans, index)
		owners[n.id] = true
		for _, b := range n.finished() {
			if other, ok := blocks[b.ID]; ok && other != n.id {
				c.report("block %v of inode %d is of inode %d, too, in a snapshot", b, n.id, other)
			}
			blocks[b.ID] = n.id
		}
	})
	c.each(classSnapshotEntry, func(key string, value []byte) {
		var r logpb.SnapshotEntry
		if err := r.UnmarshalVT(value); err != nil || len(key) < 14 {
			c.report("record %q: %v", key, err)
			return
		}
		c.keptRecord(key, value, metadata.INodeID(binary.BigEndian.Uint64([]byte(key[1:9]))), decodeSpans(r.Spans), index)
	})
	for key := range index {
		c.report("record %q leads to nothing that was kept", key)
	}
	only := map[metadata.BlockID]bool{}
	c.each(classSnapshotBlock, func(key string, value []byte) {
		id := metadata.BlockID(binary.BigEndian.Uint64([]byte(key[1:])))
		owner, err := decodeKeptBlock(id, value)
		had := blocks[id]
		if source, err := c.ns.sourceOf(owner.INode); err == nil && source == id {
			had = owner.INode
		}
		if err != nil || had != owner.INode || c.blocks[id] != 0 {
			c.report("block %d is kept for inode %d; snapshots have it for inode %d, and inode %d has it (%v)", id, owner.INode, had, c.blocks[id], err)
		}
		only[id] = true
		if owner.body {
			r := &BodyRef{Block: owner.Block, CRC: owner.crc}
			if owner.inlined {
				if r.Data, err = c.ns.inlinedOf(owner.INode, id); err != nil {
					c.report("body %d: %w", id, err)
				}
			}
			c.body(owner.INode, r)
		}
	})
	for id, owner := range blocks {
		if c.blocks[id] != owner && !only[id] && c.wanted(owner, id) {
			c.report("block %d of inode %d is in a snapshot and is gone", id, owner)
		}
	}
	c.kept = uint64(len(only))
	c.keptUsage(owners)
}

// keptUsage counts what only snapshots have, of the inodes that something was kept of.
func (c *checker) keptUsage(owners map[metadata.INodeID]bool) {
	kept := map[metadata.INodeID]usage{}
	for id := range owners {
		now, err := c.ns.stateNow(id)
		var f *file
		if now != nil {
			f = now.file
		}
		h, herr := c.ns.historyOf(id, f)
		s := c.inodes[id]
		switch {
		case err != nil || herr != nil || (s == nil) != (now == nil):
			c.report("inode %d is there: %v; its state is %v, what was kept of it %+v (%v, %v)", id, s != nil, now, h, err, herr)
		case s == nil:
			root := c.ns.rootOf(h.newest)
			kept[root] = kept[root].plus(h.gone())
		case f != nil:
			s.usage.space += h.beyond(f, f.replication)
		}
	}
	for id, s := range c.inodes {
		if s.claim == (claim{}) {
			continue
		}
		if s.parent != reclaimID {
			c.report("inode %d has a claim of %+v and was not deleted", id, s.claim)
		}
		kept[s.claim.root] = kept[s.claim.root].plus(s.claim.left.usage())
	}
	for id, s := range c.inodes {
		if s.kept != kept[id].total() {
			c.report("only snapshots of directory %d have %+v, it says %+v", id, kept[id], s.kept)
		}
	}
}

// wanted reports whether a snapshot that is not deleted has a block. What deleted ones had may be gone before they are.
func (c *checker) wanted(owner metadata.INodeID, id metadata.BlockID) bool {
	for _, s := range c.ns.snaps.byID {
		if s.deleted {
			continue
		}
		_, value, err := c.ns.kept(stateKey(owner), s.id)
		if err != nil || value == nil {
			continue
		}
		n, spans, err := decodeKept("", value)
		if err == nil && newest(c.ns.snaps.live, spans, owner, s.id, 0) == s.id && slices.ContainsFunc(n.finished(), func(b metadata.Block) bool { return b.ID == id }) {
			return true
		}
	}
	return false
}

// each calls fn for the records of a class of snapshots, which may read others.
func (c *checker) each(class byte, fn func(key string, value []byte)) {
	var all []record
	err := c.ns.scanKept(string(class), string(class), func(key, value []byte) bool {
		all = append(all, record{slices.Clone(key), slices.Clone(value)})
		return true
	})
	if err != nil {
		c.report("reading what was kept for snapshots: %w", err)
	}
	for _, r := range all {
		fn(string(r.key), r.value)
	}
}

// countRecord adds a record to the hash.
func (c *checker) countRecord(key string) {
	value, err := c.ns.getNow(key)
	if err != nil || value == nil {
		c.report("record %q is missing (%v)", key, err)
		return
	}
	c.hash += hashRecord([]byte(key), value)
}

// keptRecord looks at what a record that was kept has in common with the others.
func (c *checker) keptRecord(key string, value []byte, owner metadata.INodeID, spans []span, index map[string]bool) {
	c.hash += hashRecord([]byte(key), value)
	_, s := splitKept(key)
	if c.ns.snaps.byID[s] == nil {
		c.report("record %q was kept for snapshot %d, which is not there", key, s)
	}
	if newest(c.ns.snaps.of, spans, owner, s, 0) != s {
		c.report("record %q was kept for snapshot %d, which does not have it", key, s)
	}
	if !index[indexKey(key)] {
		c.report("record %q is not in the index", key)
	}
	delete(index, indexKey(key))
}
