package namespace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
	"github.com/gohops/hops/metadata/raftstore"
)

// frozen is what changed up to an index, while a checkpoint of it is being written.
type frozen struct {
	index   uint64
	epoch   uint32
	apart   bool // directories have a class of their own
	dirty   [][]*inode
	pending map[string][]byte // nobody writes to it any more
	gone    goneINodes        // nor to it
	marker  []byte
	// reference names the version that the checkpoint makes.
	reference raftstore.Reference

	// done is closed when it is written or given up.
	done chan struct{}

	// kept are records of inodes that changed again before the checkpoint came to them. Guarded by Namespace.mu.
	kept  []record
	bytes arena // of kept
}

// record is a record to write; a nil value deletes it.
type record struct{ key, value []byte }

// keep encodes n as the frozen epoch knows it, because it is about to change.
func (f *frozen) keep(enc *encoder, n *inode) {
	n.saved = true
	if n.dead {
		return
	}
	f.kept = appendRecords(f.kept, &f.bytes, enc, n, f.apart)
}

// appendRecords encodes the records of a live inode, into bytes from arena. apart: directories have a class of their own.
func appendRecords(records []record, arena *arena, enc *encoder, n *inode, apart bool) []record {
	key, value := enc.entry(n)
	key = arena.keep(key)
	if apart && n.isDir() {
		key[0] = classDirectory
	}
	records = append(records, record{key, arena.keep(value)})
	if n.moved {
		records = append(records, record{arena.id(classINode, n), key[1:]})
	}
	if n.file != nil && n.file.open != nil {
		records = append(records, record{arena.id(classOpen, n), []byte(n.file.open.holder)})
	} else if n.openStored {
		records = append(records, record{arena.id(classOpen, n), nil})
	}
	return records
}

// arena is memory for the bytes of many records. The zero value is ready.
type arena struct {
	free  []byte
	full  [][]byte
	again [][]byte // to be used again
	size  int      // of what was kept
}

const arenaPiece = 64 << 10

// keep copies b.
func (a *arena) keep(b []byte) []byte {
	if len(b) > cap(a.free)-len(a.free) {
		a.full = append(a.full, a.free)
		if n := len(a.again); n > 0 && len(b) <= arenaPiece {
			a.free, a.again = a.again[n-1], a.again[:n-1]
		} else {
			a.free = make([]byte, 0, max(arenaPiece, len(b)))
		}
	}
	a.size += len(b)
	start := len(a.free)
	a.free = append(a.free, b...)
	return a.free[start:len(a.free):len(a.free)]
}

func (a *arena) id(class byte, n *inode) []byte {
	var buf [9]byte
	return a.keep(appendID(buf[:0], class, uint64(n.id)))
}

// reset takes back all that keep gave.
func (a *arena) reset() {
	for _, piece := range append(a.full, a.free) {
		if cap(piece) == arenaPiece {
			a.again = append(a.again, piece[:0])
		}
	}
	a.free, a.full, a.size = nil, a.full[:0], 0
}

// snapshot is a raftstore.Checkpoint.
type snapshot struct {
	ns      *Namespace
	frozen  *frozen
	release sync.Once
	written bool
}

var errThawed = errors.New("was given up")

var errBusy = errors.New("namespace: another snapshot is being taken")

// Freeze marks the state after the last applied entry for a snapshot, in constant time. It runs on the goroutine of
// Apply. One snapshot exists at a time.
func (ns *Namespace) Freeze() (raftstore.Snapshot, error) {
	may := ns.cfg.Sheets == nil || ns.cfg.Sheets()
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.broken != nil {
		return nil, ns.broken
	}
	if ns.frozen != nil {
		return nil, errBusy
	}
	if ns.applied == 0 {
		return nil, errors.New("namespace: nothing to take a snapshot of")
	}
	if !ns.decided { // nothing was ever written, not by a checkpoint that was given up either
		ns.apart, ns.decided = may, true
	}
	m := ns.meta.marker()
	m.Index, m.Hash, m.Sheets, m.DirectoriesApart = ns.applied, ns.hash, uint64(ns.sheets(may)), ns.apart
	ns.frozen = &frozen{
		index: ns.applied, epoch: ns.epoch, apart: ns.apart, done: make(chan struct{}),
		dirty: ns.dirty.lists(), pending: ns.pending, gone: ns.gone,
		marker: marshal(nil, &m), reference: raftstore.Reference{Index: m.Index, Hash: m.Hash, Bytes: ns.meta.about() + int64(ns.retries.size()+ns.itemBytes)},
	}
	ns.epoch++
	ns.dirty, ns.pending, ns.gone = changes{}, map[string][]byte{}, goneINodes{}
	ns.snaps.freeze()
	return &snapshot{ns: ns, frozen: ns.frozen}, nil
}

// sheets is the first inode that the next checkpoint has on sheets, or 0: those that come behind the first checkpoint for which there may be any, and behind
// what a cut one may have left.
func (ns *Namespace) sheets(may bool) metadata.INodeID {
	if ns.view.sheets != 0 {
		return ns.view.sheets
	}
	if ns.repeating() || !may {
		return 0
	}
	return sheetsFrom(ns.meta.nextINode)
}

func (s *snapshot) Index() uint64 { return s.frozen.index }

// Write writes what has changed since the last checkpoint, and makes the new one durable and current. It runs beside Apply. After an
// error what had changed stays marked as changed. The version stays until another one is current and Retain does not name it.
//
// Errors: raftstore.ErrStoreFailed when the store fails, which may take nothing more from then on, whatever it says to the next attempt.
func (s *snapshot) Write() (raftstore.Reference, error) {
	s.ns.checkpointMu.Lock()
	defer s.ns.checkpointMu.Unlock()
	if !s.written {
		switch err := s.ns.writeCheckpoint(s.frozen); {
		case errors.Is(err, errThawed), errors.Is(err, kv.ErrTooLarge), errors.Is(err, errBodies):
			return raftstore.Reference{}, fmt.Errorf("namespace: checkpoint at %d: %w", s.frozen.index, err)
		case err != nil:
			if errors.Is(err, metadata.ErrCorrupt) { // what was read of the one before makes no sense: the next start needs another
				err = errors.Join(err, s.ns.cfg.Store.Condemn())
			}
			return raftstore.Reference{}, fmt.Errorf("namespace: checkpoint at %d: %w: %w", s.frozen.index, raftstore.ErrStoreFailed, err)
		}
		s.written = true
		s.ns.discard()
	}
	return s.frozen.reference, nil
}

// WriteTo writes a copy of the state, after Write.
func (s *snapshot) WriteTo(w io.Writer) (int64, error) {
	ref, err := s.Write()
	if err != nil {
		return 0, err
	}
	v, err := s.ns.Version(ref)
	if err != nil {
		return 0, err
	}
	defer v.Close()
	return v.WriteTo(w)
}

// Release gives the snapshot up. Without a WriteTo that succeeded, its changes go to the next one.
func (s *snapshot) Release() {
	s.release.Do(func() {
		s.ns.checkpointMu.Lock()
		defer s.ns.checkpointMu.Unlock()
		s.ns.thaw(s.frozen)
	})
}

// So many inodes, or bytes, are encoded before waiting commands get a turn.
const (
	inodesPerTurn = 64
	bytesPerTurn  = 32 << 10
)

// writeCheckpoint writes what f froze. The order is the crash argument (DESIGN.md): everything else, sync, bodies too, the marker,
// sync.
func (ns *Namespace) writeCheckpoint(f *frozen) error {
	ns.mu.RLock()
	current := ns.frozen == f
	ns.mu.RUnlock()
	if !current {
		return errThawed
	}
	store := ns.cfg.Store
	if err := ns.writeRecords(store, f); err != nil {
		return err
	}
	if err := store.Sync(); err != nil {
		return err
	}
	if err := ns.syncBodies(); err != nil {
		return err
	}
	if ns.cfg.OnCheckpoint != nil {
		ns.cfg.OnCheckpoint(f.index)
	}
	b := store.Batch(f.index)
	defer b.Cancel()
	if err := b.Put(markerKey, f.marker); err != nil {
		return err
	}
	if err := b.Flush(); err != nil {
		return err
	}
	if err := store.Sync(); err != nil {
		return err
	}
	m, err := decodeMarker(f.marker)
	if err != nil {
		return err
	}
	ns.mu.Lock()
	ns.closeView()
	ns.openView(f.index, metaOf(m).ids, layoutOf(m))
	ns.frozen = nil
	close(f.done)
	ns.snaps.written()
	for _, l := range ns.listings {
		l.changed = append(l.changed, f.dirty...)
	}
	ns.mu.Unlock()
	ns.shrink()
	return nil
}

// writeRecords writes one class after the other, each from its last key to its first: where a store keeps what it gets sorted, the place of a
// key that is before all others is the one that is found soonest.
func (ns *Namespace) writeRecords(store kv.Store, f *frozen) error {
	b := store.Batch(f.index)
	defer b.Cancel()
	pending := make([]record, 0, len(f.pending))
	for key, value := range f.pending {
		pending = append(pending, record{[]byte(key), value})
	}
	slices.SortFunc(pending, compareKeys)
	write := func(upTo byte) error { // what is pending of the classes up to this one
		n := 0
		for n < len(pending) && pending[n].key[0] <= upTo {
			n++
		}
		class := pending[:n]
		pending = pending[n:]
		return putBackward(b, class)
	}
	if err := write(classEntry); err != nil {
		return err
	}
	derived, err := ns.writeINodes(b, f)
	if err != nil {
		return err
	}
	// Everything has been seen: nothing is kept any more from here on.
	ns.mu.RLock()
	kept, current := f.kept, ns.frozen == f
	v := ns.pin()
	ns.mu.RUnlock()
	defer ns.unpin(v)
	if !current {
		return errThawed
	}
	if err := write(classINode); err != nil {
		return err
	}
	if err := writeWays(b, v, waysOf(f, append(derived, kept))); err != nil {
		return err
	}
	if err := write(classOpen); err != nil {
		return err
	}
	for _, records := range slices.Backward(derived) {
		for _, r := range slices.Backward(records) {
			if r.key[0] == classOpen {
				if err := put(b, r); err != nil {
					return err
				}
			}
		}
	}
	if err := write(0xff); err != nil {
		return err
	}
	for _, r := range kept {
		if r.key[0] == classINode {
			continue
		}
		if err := put(b, r); err != nil {
			return err
		}
	}
	return b.Flush()
}

// waysOf collects the ways that have changed.
func waysOf(f *frozen, derived [][]record) []way {
	n := len(f.gone)
	for _, records := range derived {
		n += len(records)
	}
	ways := make([]way, 0, n)
	for id := range f.gone {
		ways = append(ways, way{id: id})
	}
	for _, records := range derived {
		for _, r := range records {
			if r.key[0] == classINode {
				ways = append(ways, way{metadata.INodeID(binary.BigEndian.Uint64(r.key[1:])), r.value})
			}
		}
	}
	return ways
}

// batchBytes is how many bytes of entries are sorted at a time: those of a checkpoint of 64 MiB of log together.
const batchBytes = 32 << 20

// writeINodes writes the entries that changed and returns the other records of their inodes. Entries are sorted directory by directory, because names often
// come in their order by themselves; so do ids.
func (ns *Namespace) writeINodes(b kv.Batch, f *frozen) (derived [][]record, err error) {
	var enc encoder
	var records []record
	var entries, others arena
	rest := slices.Clone(f.dirty) // which thaw, and listings of blocks, need as it is
	for len(rest) > 0 {
		// By directory, and those of the class of directories apart.
		groups, apart := map[uint64][]record{}, map[uint64][]record{}
		entries.reset()
		for len(rest) > 0 && entries.size < batchBytes {
			rest, records = ns.encodeSome(rest, records[:0], f, &entries, &enc)
			runtime.Gosched() // commands wait, and a checkpoint is in no hurry
			for _, r := range records {
				if into := groups; r.key[0] == classEntry || r.key[0] == classDirectory {
					if r.key[0] == classDirectory {
						into = apart
					}
					dir := binary.BigEndian.Uint64(r.key[1:])
					into[dir] = append(into[dir], r)
					continue
				}
				r.key = others.keep(r.key)
				if r.value != nil {
					r.value = others.keep(r.value)
				}
				if last := len(derived) - 1; last >= 0 && len(derived[last]) < cap(derived[last]) {
					derived[last] = append(derived[last], r)
				} else {
					derived = append(derived, append(make([]record, 0, 1024), r))
				}
			}
		}
		for _, groups := range []map[uint64][]record{groups, apart} {
			for _, dir := range slices.Backward(slices.Sorted(maps.Keys(groups))) {
				records := groups[dir]
				slices.SortFunc(records, compareKeys)
				if err := putBackward(b, records); err != nil {
					return nil, err
				}
			}
		}
	}
	return derived, nil
}

// encodeSome encodes those of the first inodes of lists that nobody has encoded, for one turn, and returns what is left of the lists.
func (ns *Namespace) encodeSome(lists [][]*inode, records []record, f *frozen, into *arena, enc *encoder) ([][]*inode, []record) {
	ns.mu.RLock() // keeps Apply out; readers do not look at what changes here
	defer ns.mu.RUnlock()
	before := into.size
	for looks := inodesPerTurn; looks > 0 && into.size-before < bytesPerTurn && len(lists) > 0; looks-- {
		if len(lists[0]) == 0 {
			lists = lists[1:]
			continue
		}
		n := lists[0][0]
		lists[0] = lists[0][1:]
		if n.epoch != f.epoch || n.saved {
			continue
		}
		if n.saved = true; !n.dead {
			records = appendRecords(records, into, enc, n, f.apart)
		}
	}
	return lists, records
}

func put(b kv.Batch, r record) error {
	if r.value == nil {
		return b.Delete(r.key)
	}
	return b.Put(r.key, r.value)
}

// putBackward puts records in ascending order from the last to the first.
func putBackward(b kv.Batch, records []record) error {
	for _, r := range slices.Backward(records) {
		if err := put(b, r); err != nil {
			return err
		}
	}
	return nil
}

func compareKeys(a, b record) int { return bytes.Compare(a.key, b.key) }

// thawsPerTurn is how many inodes, or records, are thawed before waiting commands get a turn.
var thawsPerTurn = 512

// thaw returns what f froze to the current epoch, in turns, if it is still frozen. What commands find meanwhile is as if all of it was, until the
// end. checkpointMu is held.
func (ns *Namespace) thaw(f *frozen) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.frozen != f {
		return
	}
	thawed := 0
	turn := func() {
		if thawed++; thawed%thawsPerTurn == 0 {
			ns.mu.Unlock()
			runtime.Gosched()
			ns.mu.Lock()
		}
	}
	for _, list := range f.dirty {
		for _, n := range list {
			turn()
			if n.dead {
				if n.file != nil {
					ns.pending[idKey(classOpen, uint64(n.id))] = nil
				}
				continue
			}
			// A part of the checkpoint may have been written, and another part that should have been is not.
			n.moved = true
			n.openStored = n.file != nil
			if n.epoch == f.epoch {
				n.epoch, n.saved = ns.epoch, false
				n.entryStored, n.idStored = true, true
				ns.dirty.list.add(n)
			}
		}
	}
	for id := range f.gone {
		turn()
		ns.gone[id] = struct{}{}
	}
	for key, value := range f.pending {
		turn()
		if _, ok := ns.pending[key]; ok {
			continue // a later change of the same record
		}
		if value == nil && (key[0] == classEntry || key[0] == classDirectory) {
			// The deletion of an entry counts unless something took its key meanwhile: that is in memory then.
			parent, name, _ := splitEntry([]byte(key[1:]))
			if dir := ns.inodes[parent]; dir != nil && dir.isDir() {
				if n := dir.dir.children.get(name); n != nil && ns.entryClass(n) == key[0] {
					ns.touchStored(n)
					continue
				}
			}
		}
		ns.pending[key] = value
		ns.snaps.thaw(key)
	}
	ns.frozen = nil
	close(f.done)
	ns.snaps.written()
}

// touchStored marks that the checkpoint may have something under the key of n's entry.
func (ns *Namespace) touchStored(n *inode) {
	if n.epoch == ns.epoch {
		n.entryStored = true
	}
}

// hashed reports whether a record counts for the state's hash: the derived ones do not.
func hashed(key []byte) bool {
	switch key[0] {
	case classEntry, classDirectory, classLease, classRetry, classItem, classToken, classPool, classCache, classSnapshottable, classSnapshot, classSnapshotINode, classSnapshotEntry:
		return true
	}
	return false
}
