package namespace

import (
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
	dirty   []*inode
	pending map[string][]byte // nobody writes to it any more
	marker  []byte
	// reference names the version that the checkpoint makes.
	reference raftstore.Reference

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
	f.kept = appendRecords(f.kept, &f.bytes, enc, n)
}

// appendRecords encodes the records of a live inode, into bytes from arena.
func appendRecords(records []record, arena *arena, enc *encoder, n *inode) []record {
	key, value := enc.entry(n)
	key = arena.keep(key)
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
type arena struct{ free []byte }

const arenaPiece = 64 << 10

// keep copies b.
func (a *arena) keep(b []byte) []byte {
	if len(b) > cap(a.free)-len(a.free) {
		a.free = make([]byte, 0, max(arenaPiece, len(b)))
	}
	start := len(a.free)
	a.free = append(a.free, b...)
	return a.free[start:len(a.free):len(a.free)]
}

func (a *arena) id(class byte, n *inode) []byte {
	var buf [9]byte
	return a.keep(appendID(buf[:0], class, uint64(n.id)))
}

// reset takes back all that keep gave.
func (a *arena) reset() { a.free = a.free[:0] }

// snapshot is a raftstore.Checkpoint.
type snapshot struct {
	ns      *Namespace
	frozen  *frozen
	release sync.Once
	written bool
}

var errBusy = errors.New("namespace: another snapshot is being taken")

// Freeze marks the state after the last applied entry for a snapshot, in constant time. It runs on the goroutine of
// Apply. One snapshot exists at a time.
func (ns *Namespace) Freeze() (raftstore.Snapshot, error) {
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
	m := ns.meta.marker()
	m.Index, m.Hash = ns.applied, ns.hash
	ns.frozen = &frozen{
		index: ns.applied, epoch: ns.epoch,
		dirty: ns.dirty, pending: ns.pending,
		marker: marshal(nil, &m), reference: raftstore.Reference{Index: m.Index, Hash: m.Hash, Bytes: ns.meta.about() + int64(ns.retries.size()+ns.itemBytes)},
	}
	ns.epoch++
	ns.dirty, ns.deadDirty, ns.pending = nil, 0, map[string][]byte{}
	ns.snaps.freeze()
	return &snapshot{ns: ns, frozen: ns.frozen}, nil
}

func (s *snapshot) Index() uint64 { return s.frozen.index }

// Write writes what has changed since the last checkpoint, and makes the new one durable and current. It runs beside Apply. An
// error is fatal to the member; what had changed stays marked as changed. The version stays until another one is current and
// Retain does not name it.
func (s *snapshot) Write() (raftstore.Reference, error) {
	s.ns.checkpointMu.Lock()
	defer s.ns.checkpointMu.Unlock()
	if !s.written {
		if err := s.ns.writeCheckpoint(s.frozen); err != nil {
			return raftstore.Reference{}, fmt.Errorf("namespace: checkpoint at %d: %w", s.frozen.index, err)
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
		s.ns.mu.Lock()
		defer s.ns.mu.Unlock()
		if s.ns.frozen == s.frozen {
			s.ns.thaw()
		}
	})
}

// inodesPerTurn is how many inodes are encoded before waiting commands get a turn.
const inodesPerTurn = 64

// writeCheckpoint writes what f froze. The order is the crash argument (DESIGN.md): everything else, sync, the marker,
// sync.
func (ns *Namespace) writeCheckpoint(f *frozen) error {
	ns.mu.RLock()
	current := ns.frozen == f
	ns.mu.RUnlock()
	if !current {
		return errors.New("was given up")
	}
	store := ns.cfg.Store
	if err := ns.writeRecords(store, f); err != nil {
		return err
	}
	if err := store.Sync(); err != nil {
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
	ns.openView(f.index, metadata.INodeID(m.NextInode), metadata.BlockID(m.NextBlock))
	ns.frozen = nil
	ns.snaps.written()
	for _, l := range ns.listings {
		l.changed = append(l.changed, f.dirty)
	}
	ns.mu.Unlock()
	ns.shrink()
	return nil
}

// writeRecords writes one class after the other, in their order and each about in the order of its keys: a store has
// little to sort then.
func (ns *Namespace) writeRecords(store kv.Store, f *frozen) error {
	b := store.Batch(f.index)
	defer b.Cancel()
	pending := slices.Sorted(maps.Keys(f.pending))
	write := func(upTo byte) error { // what is pending of the classes up to this one
		for len(pending) > 0 && pending[0][0] <= upTo {
			key := pending[0]
			pending = pending[1:]
			if err := put(b, record{[]byte(key), f.pending[key]}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := write(classEntry); err != nil {
		return err
	}
	derived, err := ns.writeINodes(b, f)
	if err != nil {
		return err
	}
	for _, class := range []byte{classINode, classOpen} {
		if err := write(class); err != nil {
			return err
		}
		for _, r := range derived {
			if r.key[0] == class {
				if err := put(b, r); err != nil {
					return err
				}
			}
		}
	}
	if err := write(0xff); err != nil {
		return err
	}
	// Everything has been seen: nothing is kept any more from here on.
	ns.mu.RLock()
	kept := f.kept
	ns.mu.RUnlock()
	for _, r := range kept {
		if err := put(b, r); err != nil {
			return err
		}
	}
	return b.Flush()
}

// writeINodes writes the entries that changed and returns the other records of their inodes.
func (ns *Namespace) writeINodes(b kv.Batch, f *frozen) (derived []record, err error) {
	var enc encoder
	var records []record
	var bytes, others arena
	for rest := f.dirty; len(rest) > 0; {
		turn := rest[:min(len(rest), inodesPerTurn)]
		rest = rest[len(turn):]
		records = records[:0]
		bytes.reset()
		ns.mu.RLock() // keeps Apply out; readers do not look at what changes here
		for _, n := range turn {
			if n.epoch == f.epoch && !n.saved {
				n.saved = true
				if !n.dead {
					records = appendRecords(records, &bytes, &enc, n)
				}
			}
		}
		ns.mu.RUnlock()
		runtime.Gosched() // commands wait, and a checkpoint is in no hurry
		for _, r := range records {
			if r.key[0] == classEntry {
				if err := put(b, r); err != nil {
					return nil, err
				}
				continue
			}
			r.key = others.keep(r.key)
			if r.value != nil {
				r.value = others.keep(r.value)
			}
			derived = append(derived, r)
		}
	}
	return derived, nil
}

func put(b kv.Batch, r record) error {
	if r.value == nil {
		return b.Delete(r.key)
	}
	return b.Put(r.key, r.value)
}

// thaw returns what was frozen to the current epoch. mu is held.
func (ns *Namespace) thaw() {
	f := ns.frozen
	ns.frozen = nil
	for _, n := range f.dirty {
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
			ns.dirty = append(ns.dirty, n)
		}
	}
	for key, value := range f.pending {
		if _, ok := ns.pending[key]; ok {
			continue // a later change of the same record
		}
		if value == nil && key[0] == classEntry {
			// The deletion of an entry counts unless something took the name meanwhile: that is in memory then.
			parent, name, _ := splitEntry([]byte(key[1:]))
			if dir := ns.inodes[parent]; dir != nil && dir.isDir() {
				if n, ok := dir.dir.children.Get(name); ok {
					ns.touchStored(n)
					continue
				}
			}
		}
		ns.pending[key] = value
	}
	ns.snaps.thaw()
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
	case classEntry, classLease, classRetry, classItem, classToken, classSnapshottable, classSnapshot, classSnapshotINode, classSnapshotEntry:
		return true
	}
	return false
}
