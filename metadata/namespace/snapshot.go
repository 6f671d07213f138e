package namespace

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/tidwall/btree"

	"github.com/gohops/hops/metadata"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// Snapshots of directories, as HDFS has them (HDFS-2802). Making one costs the same however large the directory is: before
// an inode, or what a name stands for in a directory, changes for the first time since the newest snapshot that has it, it
// is kept as it was, in a record of its own:
//
//	preserve(n)          touch: n is about to change
//	preserveEntry(...)   attach, detach: a name is about to stand for something else
//	retained(n)          bury, dropBlock: which blocks stay, because a snapshot has them
//
// A snapshot's state is what was kept for it, or else for the oldest of the newer ones, or else the present state.

// Limits that are part of the state machine. HDFS has the first two as dfs.namenode.snapshot.max.limit and
// dfs.namenode.snapshot.filesystem.limit.
const (
	// MaxSnapshots is how many snapshots a directory may have, and how many there may be at all.
	MaxSnapshots = 65536
	// MaxSnapshottable is how many directories may be snapshottable: a delete or rename of a directory looks at all of them.
	MaxSnapshottable = 10000
	// maxSpans is how many spans an inode may come to have by moving in and out of snapshottable directories.
	maxSpans = 32
)

// dirSnapshot is a snapshot of a directory. Nobody changes one but for name and deleted.
type dirSnapshot struct {
	id        uint32 // of all directories' snapshots, in the order in which they were taken
	root      metadata.INodeID
	name      string
	created   metadata.Time
	nextINode metadata.INodeID // inodes from this one on were made later
	deleted   bool             // it is being taken apart, and nobody finds it
}

// span is the snapshots of root with numbers above after, up to and including upTo.
type span struct {
	root        metadata.INodeID
	after, upTo uint32
}

// past is what an inode that was moved from or to below a snapshottable directory knows of where it was. Nobody changes one.
type past struct {
	since uint32 // of where it is now only later snapshots have it
	spans []span
}

// snapshots are the snapshots and the directories that they may be taken of. All are in memory.
type snapshots struct {
	allowed map[metadata.INodeID]int // snapshottable directories, with their limit
	byID    map[uint32]*dirSnapshot
	of      map[metadata.INodeID][]*dirSnapshot // by id, those that are deleted included
	live    map[metadata.INodeID][]*dirSnapshot // by id, without them
	deleted []uint32                            // ascending; the first one is being taken apart
	swept   string                              // of the first one nothing is left below this key of its index
	born    metadata.INodeID                    // no snapshot, deleted or not, has inodes from this one on

	// recent are the keys of what is kept, and of its index, in Namespace.pending, and frozen those in Namespace.frozen.pending:
	// maps know no order.
	recent, frozen *btree.Set[string]

	leaving leaving
	last    retention

	// known are the spans of some directories deep down in a tree. Readers look there, too.
	known map[*inode][]span
	// climbed is how many inodes changes have looked at for their spans. A test looks at it.
	climbed int
}

// leaving is the inode that was detached last, and what had it.
type leaving struct {
	n      *inode
	from   *inode // its parent
	spans  []span
	newest uint32
}

// retention is what retained found last, in the command that is being applied.
type retention struct {
	n      *inode
	blocks []metadata.Block
}

func newSnapshots() snapshots {
	return snapshots{
		allowed: map[metadata.INodeID]int{},
		byID:    map[uint32]*dirSnapshot{},
		of:      map[metadata.INodeID][]*dirSnapshot{},
		live:    map[metadata.INodeID][]*dirSnapshot{},
		recent:  new(btree.Set[string]),
		frozen:  new(btree.Set[string]),
	}
}

// add enters a snapshot into the tables. Ids come in any order when a checkpoint is read, and ascending later.
func (t *snapshots) add(s *dirSnapshot) {
	insert := func(all []*dirSnapshot) []*dirSnapshot {
		i := sort.Search(len(all), func(i int) bool { return all[i].id > s.id })
		return slices.Insert(all, i, s)
	}
	t.forgetKnown()
	t.byID[s.id] = s
	t.born = max(t.born, s.nextINode)
	t.of[s.root] = insert(t.of[s.root])
	if !s.deleted {
		t.live[s.root] = insert(t.live[s.root])
	} else {
		t.enqueue(s.id)
	}
}

// enqueue lists a snapshot as one to be taken apart. The oldest goes first.
func (t *snapshots) enqueue(id uint32) {
	i, _ := slices.BinarySearch(t.deleted, id)
	if t.deleted = slices.Insert(t.deleted, i, id); i == 0 {
		t.swept = ""
	}
}

func without(table map[metadata.INodeID][]*dirSnapshot, s *dirSnapshot) {
	if rest := slices.DeleteFunc(table[s.root], func(o *dirSnapshot) bool { return o == s }); len(rest) > 0 {
		table[s.root] = rest
	} else {
		delete(table, s.root)
	}
}

// find is the snapshot of root with a name; nil when there is none.
func (t *snapshots) find(root metadata.INodeID, name string) *dirSnapshot {
	for _, s := range t.live[root] {
		if s.name == name {
			return s
		}
	}
	return nil
}

// newest is the newest of the snapshots in table that are in spans, have the number below at most, and were taken after the
// inode n was made; 0 when there is none. except is left out.
func newest(table map[metadata.INodeID][]*dirSnapshot, spans []span, n metadata.INodeID, below, except uint32) uint32 {
	best := uint32(0)
	for _, sp := range spans {
		all := table[sp.root]
		i := sort.Search(len(all), func(i int) bool { return all[i].id > min(sp.upTo, below) })
		for i--; i >= 0 && all[i].id > max(sp.after, best) && all[i].nextINode > n; i-- {
			if all[i].id != except {
				best = all[i].id
				break
			}
		}
	}
	return best
}

func (n *inode) past() *past {
	if n.extra == nil {
		return nil
	}
	return n.extra.past
}

// spansOf appends the snapshots that have n to buf. They may have its place in an earlier state, or what is above it.
func (ns *Namespace) spansOf(n *inode, buf []span) []span {
	spans, _ := ns.climbSpans(n, buf)
	return spans
}

// farUp is after how many levels a climb looks for somebody who was there before. Trees have any depth: they are moved below each other.
const farUp = 64

// climbSpans is spansOf, and says how many inodes it looked at.
func (ns *Namespace) climbSpans(n *inode, buf []span) (_ []span, steps int) {
	after := uint32(0)
	for x := n; x != nil; x = x.parent {
		if steps++; steps > farUp {
			if above, ok := ns.snaps.known[x]; ok {
				for _, sp := range above {
					if sp.after = max(sp.after, after); sp.upTo > sp.after {
						buf = append(buf, sp)
					}
				}
				break
			}
		}
		if x.dir != nil {
			if all := ns.snaps.live[x.id]; len(all) > 0 && all[len(all)-1].id > after {
				buf = append(buf, span{x.id, after, all[len(all)-1].id})
			}
		}
		if p := x.past(); p != nil {
			for _, sp := range p.spans {
				if sp.after = max(sp.after, after); sp.upTo > sp.after {
					buf = append(buf, sp)
				}
			}
			after = max(after, p.since)
		}
	}
	return buf, steps
}

// spansToChange is spansOf for who holds the lock alone. What changes in a deep tree does not climb to its top each time.
func (ns *Namespace) spansToChange(n *inode, buf []span) []span {
	spans, steps := ns.climbSpans(n, buf)
	ns.snaps.climbed += steps
	if steps <= 4*farUp {
		return spans
	}
	var marks []*inode
	for x, i := n.parent, 1; x != nil; x, i = x.parent, i+1 {
		if _, ok := ns.snaps.known[x]; ok {
			break
		}
		if i%farUp == 0 {
			marks = append(marks, x)
		}
	}
	if len(ns.snaps.known)+len(marks) > maxKnown {
		ns.snaps.forgetKnown()
	}
	for _, x := range slices.Backward(marks) { // from the top, so that each finds the one above
		ns.snaps.know(x, ns.spansOf(x, nil))
	}
	return spans
}

// maxKnown bounds what is remembered of deep trees.
const maxKnown = 1 << 16

func (t *snapshots) know(n *inode, spans []span) {
	if t.known == nil {
		t.known = map[*inode][]span{}
	}
	t.known[n] = spans
}

// forgetKnown is called when a directory moves that has entries, or when there are other snapshots.
func (t *snapshots) forgetKnown() { t.known = nil }

// borderOf is the directory at or above n that decides which snapshots have what is below: nil for none. What moves between
// two that have the same one moves within it.
func (ns *Namespace) borderOf(n *inode) *inode {
	for ; n != nil; n = n.parent {
		if n.past() != nil {
			return n
		}
		if _, ok := ns.snaps.allowed[n.id]; ok {
			return n
		}
	}
	return nil
}

// preserve keeps n for the newest snapshot that has it, before it changes. While there is no snapshot nobody calls it.
func (ns *Namespace) preserve(n *inode) {
	if n == ns.snaps.leaving.n {
		return // detach has, where it was
	}
	var buf [4]span
	spans := ns.spansToChange(n, buf[:0])
	if s := newest(ns.snaps.live, spans, n.id, ^uint32(0), 0); s != 0 {
		ns.keepINode(n, s, spans)
	}
}

func (ns *Namespace) keepINode(n *inode, s uint32, spans []span) {
	prefix := stateKey(n.id)
	if ns.hasKept(prefix, s) {
		return
	}
	_, inode := ns.enc.entry(n)
	r := &logpb.SnapshotINode{Inode: inode, Spans: encodeSpans(spans), Name: n.name}
	if n.parent != nil {
		r.Parent = uint64(n.parent.id)
	}
	ns.putKept(keptKey(prefix, s), marshal(nil, r))
	ns.snaps.last = retention{}
}

// preserveEntry keeps what name stands for in a directory, before that changes; now is the inode, 0 for none.
func (ns *Namespace) preserveEntry(dir *inode, name string, now metadata.INodeID) {
	var buf [4]span
	spans := ns.spansToChange(dir, buf[:0])
	s := newest(ns.snaps.live, spans, dir.id, ^uint32(0), 0)
	if s == 0 {
		return
	}
	prefix := placeKey(dir.id, name)
	if ns.hasKept(prefix, s) {
		return
	}
	ns.putKept(keptKey(prefix, s), marshal(nil, &logpb.SnapshotEntry{Inode: uint64(now), Spans: encodeSpans(spans)}))
}

// hasKept reports whether something was kept for a snapshot, or a newer one that is being taken apart.
func (ns *Namespace) hasKept(prefix string, s uint32) bool {
	value, err := ns.getNow(keptKey(prefix, s))
	if err == nil && value == nil && len(ns.snaps.deleted) > 0 && ns.snaps.deleted[len(ns.snaps.deleted)-1] > s {
		_, value, err = ns.kept(prefix, s)
	}
	if err != nil {
		ns.fatal(err)
	}
	return value != nil
}

// depart notes what has n, which is about to leave its parent.
func (ns *Namespace) depart(n *inode) {
	ns.preserveEntry(n.parent, n.name, n.id)
	spans := ns.spansToChange(n, nil)
	ns.snaps.leaving = leaving{n: n, from: n.parent, spans: spans, newest: newest(ns.snaps.live, spans, n.id, ^uint32(0), 0)}
}

// arrive notes that n is about to become an entry of parent.
func (ns *Namespace) arrive(parent *inode, name string, n *inode) {
	ns.preserveEntry(parent, name, 0)
	l := ns.snaps.leaving
	ns.snaps.leaving = leaving{}
	if l.n != n {
		return // it is new
	}
	if n.isDir() && n.dir.entries > 0 {
		ns.snaps.forgetKnown()
	}
	if ns.borderOf(parent) == ns.borderOf(l.from) {
		return
	}
	spans := ns.tidySpans(l.spans)
	if len(spans) == 0 && len(ns.spansOf(parent, nil)) == 0 {
		if n.extra != nil {
			n.extra.past = nil
			n.tidy()
		}
		return
	}
	n.own().past = &past{since: ns.meta.lastSnapshot, spans: spans}
}

// tidySpans leaves out spans without a snapshot, and makes one of the oldest when there are too many: more than have an inode
// may seem to have it then, which costs room until they are deleted.
func (ns *Namespace) tidySpans(spans []span) []span {
	spans = slices.DeleteFunc(slices.Clone(spans), func(sp span) bool {
		return newest(ns.snaps.of, []span{sp}, 0, ^uint32(0), 0) == 0
	})
	for i := len(spans) - 1; i > 0 && len(spans) > maxSpans; i-- {
		j := slices.IndexFunc(spans[:i], func(sp span) bool { return sp.root == spans[i].root })
		if j < 0 {
			continue
		}
		spans[j].after, spans[j].upTo = min(spans[j].after, spans[i].after), max(spans[j].upTo, spans[i].upTo)
		spans = slices.Delete(spans, i, i+1)
	}
	return spans
}

// retained are the blocks of n that a snapshot has, each at its place in the file.
func (ns *Namespace) retained(n *inode) []metadata.Block {
	if ns.meta.snapshots == 0 {
		return nil
	}
	if ns.snaps.last.n == n {
		return ns.snaps.last.blocks
	}
	blocks, err := ns.findRetained(n)
	if err != nil {
		ns.fatal(err)
	}
	ns.snaps.last = retention{n, blocks}
	return blocks
}

// findRetained is retained for a reader: nothing is remembered.
func (ns *Namespace) findRetained(n *inode) ([]metadata.Block, error) {
	if ns.meta.snapshots == 0 {
		return nil, nil
	}
	s := ns.snaps.leaving.newest
	if ns.snaps.leaving.n != n {
		var buf [4]span
		s = newest(ns.snaps.live, ns.spansOf(n, buf[:0]), n.id, ^uint32(0), 0)
	}
	if s == 0 {
		return nil, nil
	}
	was := n
	_, value, err := ns.kept(stateKey(n.id), s)
	if err == nil && value != nil {
		was, _, err = decodeKept("", value)
	}
	if err != nil {
		return nil, err
	}
	return slices.Clone(was.finished()), nil
}

// snapshotHas reports whether a snapshot has the ith block of n, which never changes again then.
func (ns *Namespace) snapshotHas(n *inode, i int) bool {
	kept := ns.retained(n)
	return i >= 0 && i < len(kept) && kept[i].ID == n.file.blocks[i].ID
}

// retain keeps the ith block of n, which is about to go, if a snapshot has it, and reports whether it does.
func (ns *Namespace) retain(n *inode, i int) bool {
	if !ns.snapshotHas(n, i) {
		return false
	}
	b := n.file.blocks[i]
	delete(ns.blocks, b.ID)
	ns.pending[idKey(classBlock, uint64(b.ID))] = nil
	r := &logpb.SnapshotBlock{
		Inode: uint64(n.id), Generation: uint64(b.Generation), Length: b.Length, Replication: uint32(n.file.replicas()), Policy: uint32(n.placed()),
		Erasure: uint32(n.file.codingOf(b.ID)),
	}
	if n.isBody(i) {
		r.Body, r.Inlined = &logpb.Body{Crc: n.bodyAt(i).CRC}, n.hasInlined(i)
	}
	ns.putDerived(idKey(classSnapshotBlock, uint64(b.ID)), marshal(nil, r))
	if r.Body != nil {
		return true
	}
	ns.effects.Changed = append(ns.effects.Changed, BlockOwner{
		INode: n.id, Block: b, Replication: n.file.replicas(), Policy: n.placed(), Erasure: n.file.codingOf(b.ID),
	})
	return true
}

// finished are the blocks that a snapshot has of a file: not the last one while it is being written or recovered. Such a
// block never changes again, because an append begins a new one.
func (n *inode) finished() []metadata.Block {
	if n.file == nil {
		return nil
	}
	if n.file.lastState() != Complete {
		return n.file.blocks[:len(n.file.blocks)-1]
	}
	return n.file.blocks
}

// inSnapshot reports whether a snapshot has n.
func (ns *Namespace) inSnapshot(n *inode) bool {
	var buf [4]span
	return ns.meta.snapshots > 0 && newest(ns.snaps.live, ns.spansOf(n, buf[:0]), n.id, ^uint32(0), 0) != 0
}

// Records.

// stateKey is what the keys of an inode's kept states begin with, placeKey of what a name stood for: a number of a snapshot
// follows. Names have no NUL.
func stateKey(id metadata.INodeID) string { return idKey(classSnapshotINode, uint64(id)) }

func placeKey(dir metadata.INodeID, name string) string {
	return idKey(classSnapshotEntry, uint64(dir)) + name + "\x00"
}

func keptKey(prefix string, s uint32) string {
	var buf [4]byte
	binary.BigEndian.PutUint32(buf[:], s)
	return prefix + string(buf[:])
}

// splitKept is the inverse of keptKey.
func splitKept(key string) (prefix string, s uint32) {
	return key[:len(key)-4], binary.BigEndian.Uint32([]byte(key[len(key)-4:]))
}

// indexKey leads from a snapshot to what was kept for it.
func indexKey(key string) string {
	prefix, s := splitKept(key)
	return keptKey(string(classSnapshotIndex), s) + prefix
}

var indexValue = []byte{1}

// putKept writes a record that counts for the hash, with its index.
func (ns *Namespace) putKept(key string, value []byte) {
	ns.hash += hashRecord([]byte(key), value)
	ns.putDerived(key, value)
	ns.putDerived(indexKey(key), indexValue)
}

func (ns *Namespace) dropKept(key string, value []byte) {
	ns.hash -= hashRecord([]byte(key), value)
	ns.putDerived(key, nil)
	ns.putDerived(indexKey(key), nil)
}

// putDerived writes a record that is found in order; nil deletes it.
func (ns *Namespace) putDerived(key string, value []byte) {
	ns.changed = true
	if ns.undo != nil && !ns.snaps.recent.Contains(key) {
		ns.undo.note(func() { ns.snaps.recent.Delete(key) })
	}
	ns.notePending(key)
	ns.pending[key] = value
	ns.snaps.recent.Insert(key)
}

// freeze, written and thaw follow Namespace.pending.
func (t *snapshots) freeze() { t.frozen, t.recent = t.recent, new(btree.Set[string]) }

func (t *snapshots) written() { t.frozen = new(btree.Set[string]) }

func (t *snapshots) thaw(key string) {
	if t.frozen.Contains(key) {
		t.recent.Insert(key)
	}
}

// next is the first key of what changed that is not below from.
func (t *snapshots) next(from string) (key string, ok bool) {
	for _, set := range []*btree.Set[string]{t.recent, t.frozen} {
		set.Ascend(from, func(k string) bool {
			if !ok || k < key {
				key, ok = k, true
			}
			return false
		})
	}
	return key, ok
}

// scanKept calls fn for the records of snapshots whose keys begin with prefix and are not below from, in their order, until
// it returns false. Key and value are good during the call only.
func (ns *Namespace) scanKept(prefix, from string, fn func(key, value []byte) bool) error {
	key, more := ns.snaps.next(from)
	more = more && strings.HasPrefix(key, prefix)
	changed := func() bool { // calls fn for what changed under key
		k := key
		key, more = ns.snaps.next(k + "\x00")
		more = more && strings.HasPrefix(key, prefix)
		value, ok := ns.pending[k]
		if !ok {
			value = ns.frozen.pending[k]
		}
		return value == nil || fn([]byte(k), value)
	}
	end := false
	err := ns.view.Scan([]byte(prefix), []byte(from), func(stored, value []byte) bool {
		for more && key <= string(stored) {
			same := key == string(stored)
			if end = !changed(); end || same {
				return !end
			}
		}
		end = !fn(stored, value)
		return !end
	})
	for err == nil && !end && more {
		end = !changed()
	}
	return err
}

// kept finds what was kept under a prefix for a snapshot or, as it was the same then, for the oldest of the newer ones; nil
// when that is still so. The value is the caller's.
func (ns *Namespace) kept(prefix string, s uint32) (at uint32, value []byte, err error) {
	err = ns.scanKept(prefix, keptKey(prefix, s), func(k, v []byte) bool {
		if len(k) != len(prefix)+4 {
			return true
		}
		at, value = binary.BigEndian.Uint32(k[len(prefix):]), slices.Clone(v)
		return false
	})
	return at, value, err
}

// decodeKept makes the inode of a record of class snapshot inode, without parent.
func decodeKept(name string, value []byte) (*inode, []span, error) {
	var r logpb.SnapshotINode
	if err := r.UnmarshalVT(value); err != nil {
		return nil, nil, fmt.Errorf("record of a snapshot: %w: %w", err, metadata.ErrCorrupt)
	}
	n, err := decodeEntry(name, nil, r.Inode)
	if err != nil {
		return nil, nil, err
	}
	return n, decodeSpans(r.Spans), nil
}

func encodeSpans(spans []span) []*logpb.SnapshotSpan {
	var out []*logpb.SnapshotSpan
	for _, sp := range spans {
		out = append(out, &logpb.SnapshotSpan{Root: uint64(sp.root), After: sp.after, UpTo: sp.upTo})
	}
	return out
}

func decodeSpans(in []*logpb.SnapshotSpan) []span {
	var out []span
	for _, sp := range in {
		out = append(out, span{metadata.INodeID(sp.Root), sp.After, sp.UpTo})
	}
	return out
}

// putSnapshot writes the record of a snapshot, in place of the one that it had.
func (ns *Namespace) putSnapshot(s *dirSnapshot, former []byte) {
	key := snapshotKey(s.id)
	value := s.encode()
	if former != nil {
		ns.hash -= hashRecord([]byte(key), former)
	}
	ns.hash += hashRecord([]byte(key), value)
	ns.changed = true
	ns.pending[key] = value
}

func (s *dirSnapshot) encode() []byte {
	return marshal(nil, &logpb.Snapshot{
		Root: uint64(s.root), Name: s.name, Created: int64(s.created), NextInode: uint64(s.nextINode), Deleted: s.deleted,
	})
}

func snapshotKey(s uint32) string { return keptKey(string(classSnapshot), s) }

// setAllowed makes a directory snapshottable, or not.
func (ns *Namespace) setAllowed(dir metadata.INodeID, allow bool) {
	key := idKey(classSnapshottable, uint64(dir))
	value := marshal(nil, &logpb.Snapshottable{Limit: MaxSnapshots})
	ns.changed = true
	if allow {
		ns.snaps.allowed[dir] = MaxSnapshots
		ns.meta.snapshottable++
		ns.hash += hashRecord([]byte(key), value)
		ns.pending[key] = value
		return
	}
	delete(ns.snaps.allowed, dir)
	ns.meta.snapshottable--
	ns.hash -= hashRecord([]byte(key), value)
	ns.pending[key] = nil
}

// loadSnapshots reads which snapshots there are.
func (ns *Namespace) loadSnapshots() error {
	var bad error
	err := ns.view.Scan([]byte{classSnapshottable}, nil, func(key, value []byte) bool {
		var r logpb.Snapshottable
		if len(key) != 9 || r.UnmarshalVT(value) != nil || r.Limit != MaxSnapshots {
			bad = corrupt("record of a snapshottable directory %x", key)
			return false
		}
		ns.snaps.allowed[metadata.INodeID(binary.BigEndian.Uint64(key[1:]))] = int(r.Limit)
		return true
	})
	if err == nil && bad == nil {
		err = ns.view.Scan([]byte{classSnapshot}, nil, func(key, value []byte) bool {
			var r logpb.Snapshot
			if len(key) != 5 || r.UnmarshalVT(value) != nil {
				bad = corrupt("record of a snapshot %x", key)
				return false
			}
			ns.snaps.add(&dirSnapshot{
				id: binary.BigEndian.Uint32(key[1:]), root: metadata.INodeID(r.Root), name: r.Name,
				created: metadata.Time(r.Created), nextINode: metadata.INodeID(r.NextInode), deleted: r.Deleted,
			})
			return true
		})
	}
	if err != nil {
		return err
	}
	if bad == nil && (len(ns.snaps.byID) != int(ns.meta.snapshots) || len(ns.snaps.allowed) != int(ns.meta.snapshottable)) {
		bad = corrupt("%d snapshots of %d directories are there, %d of %d are counted",
			len(ns.snaps.byID), len(ns.snaps.allowed), ns.meta.snapshots, ns.meta.snapshottable)
	}
	return bad
}
