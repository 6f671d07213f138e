package blockstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// writer implements datanode.Writer. Its methods hold r.io, so that whoever takes the replica over waits for the one
// that runs and the next one finds the writer lost.
type writer struct {
	store *Store
	at    atomic.Pointer[replica] // what is written; another one when it has left memory, see r, lock and look
	lost  chan struct{}
	once  sync.Once // closes lost

	// Guarded by r.io.
	data, sums vfs.File
	scratch    []byte // checksums that are computed or gathered here
	pieces     [][]byte
	flushed    int64 // where writeback has begun
	allocated  int64 // up to where the disk has been asked for room, if that is behind the end
	closed     bool
}

func newWriter(s *Store, r *replica) *writer {
	w := &writer{store: s, lost: make(chan struct{})}
	w.at.Store(r)
	return w
}

// r is the replica. Who holds its io knows that it stays so.
func (w *writer) r() *replica { return w.at.Load() }

// lock takes the io of the replica.
func (w *writer) lock() *replica {
	for {
		r := w.r()
		r.io.Lock()
		if r == w.r() {
			return r
		}
		r.io.Unlock()
	}
}

// look takes the mu of the replica.
func (w *writer) look() *replica {
	for {
		r := w.r()
		r.mu.Lock()
		if r == w.r() {
			return r
		}
		r.mu.Unlock()
	}
}

// errLost is what a writer gets whose replica somebody else has now.
func (w *writer) errLost() error {
	return metadata.Errorf(metadata.ErrIO, "replica of block %d was taken over by a recovery or another writer", w.r().id)
}

func (w *writer) Lost() <-chan struct{} { return w.lost }

// Durable implements datanode.Writer.
func (w *writer) Durable() bool {
	r := w.look()
	defer r.mu.Unlock()
	return !r.vol.inMemory() && (!w.store.cfg.Unsynced || r.state == datanode.Temporary)
}

func (w *writer) Replica() datanode.Replica {
	r := w.look()
	defer r.mu.Unlock()
	return r.viewLocked()
}

// Checksum implements datanode.Writer. Of a replica that is not open any more nothing is written.
func (w *writer) Checksum() datanode.Checksum {
	r := w.look()
	defer r.mu.Unlock()
	if r.open == nil {
		return datanode.DefaultChecksum
	}
	return r.open.sum
}

// fenceLocked takes the replica away from its writer. r.mu is held; the writer may be inside a method until r.io is free.
func (r *replica) fenceLocked() {
	if r.open != nil && r.open.owner != nil {
		w := r.open.owner
		r.open.owner = nil
		r.releaseLocked()
		w.once.Do(func() { close(w.lost) })
	}
}

// owns reports whether the writer still has the replica. r.io is held.
func (w *writer) owns() bool {
	r := w.look()
	defer r.mu.Unlock()
	return !w.closed && !r.gone && r.open != nil && r.open.owner == w
}

// ready is the check at the start of every method. r.io is held.
func (w *writer) ready() error {
	if !w.owns() {
		w.closeFiles()
		return w.errLost()
	}
	return w.r().vol.err()
}

func (w *writer) closeFiles() {
	w.closed = true
	if w.data != nil {
		_ = w.giveBack() // a failing disk is known by then
		w.data.Close()
	}
	if w.sums != nil {
		w.sums.Close()
	}
	w.data, w.sums = nil, nil
}

// Acked implements datanode.Writer.
func (w *writer) Acked(n int64) {
	r := w.look()
	defer r.mu.Unlock()
	if r.open == nil || r.open.owner != w || n <= r.open.visible {
		return
	}
	o := r.open
	i := 0
	for ; i < len(o.ends) && o.ends[i].off <= n; i++ {
		o.visible, o.visibleCRC = o.ends[i].off, o.ends[i].crc
	}
	if i > 0 {
		o.ends = append(o.ends[:0], o.ends[i:]...)
		r.wakeLocked()
	}
}

// Sync implements datanode.Writer.
func (w *writer) Sync() error {
	r := w.lock()
	defer func() { r.io.Unlock() }()
	if err := w.ready(); err != nil {
		return err
	}
	if err := w.openFiles(); err != nil {
		return fmt.Errorf("sync block %d: %w", r.id, err)
	}
	if r.vol.inMemory() {
		n, err := w.leave(r)
		if err != nil {
			return fmt.Errorf("sync block %d, which has to leave memory for it: %w", r.id, err)
		}
		r.io.Unlock()
		r = n
	}
	c := w.durable()
	r.mu.Lock()
	if r.open.unsynced {
		c.dir = r.vol.dirOf(r.id)
	}
	r.mu.Unlock()
	if err := r.vol.commit(c); err != nil {
		return fmt.Errorf("sync block %d: %w", r.id, err)
	}
	r.mu.Lock()
	r.open.unsynced, r.open.promised = false, true
	r.mu.Unlock()
	return nil
}

// durable prepares the commit that makes everything written so far durable: if the length lies inside a chunk, the tail
// slot remembers it, because later bytes overwrite the chunk's checksum. r.io is held.
func (w *writer) durable() *commit {
	r := w.r()
	c := &commit{files: []vfs.File{w.data, w.sums}}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.length%chunk != 0 {
		r.open.tailSeq++
		c.tail = &tail{length: r.length, crc: r.open.lastCRC, seq: r.open.tailSeq}
	}
	return c
}

// Finalize implements datanode.Writer.
func (w *writer) Finalize() (datanode.Replica, error) {
	r := w.lock()
	defer r.io.Unlock()
	if err := w.ready(); err != nil {
		return datanode.Replica{}, err
	}
	r.mu.Lock()
	gen := r.gen
	r.mu.Unlock()
	if r.packed == nil {
		if err := w.openFiles(); err != nil {
			return datanode.Replica{}, fmt.Errorf("finalize block %d: %w", r.id, err)
		}
	}
	return w.finalize(gen, w.store.cfg.Unsynced)
}

// finalize makes the replica complete, and durable unless it may be unsynced, announces it and closes the writer. It gets generation gen, which a
// packed one has already. r.io is held.
func (w *writer) finalize(gen metadata.Generation, unsynced bool) (datanode.Replica, error) {
	r := w.r()
	unsynced = unsynced && !r.mustLast()
	var c *commit
	var err error
	if at := r.packed; at != nil {
		c, err = &commit{pack: at.p}, at.finish()
	} else if err = w.giveBack(); err != nil {
		return datanode.Replica{}, fmt.Errorf("finalize block %d: %w", r.id, err)
	} else if unsynced {
		err = r.vol.check(r.rename(gen, sufUnsynced))
	} else {
		c = w.durable()
		c.rename = func() error { return r.rename(gen, sufMeta) }
		c.dir = r.vol.dirOf(r.id)
	}
	if err == nil && !unsynced {
		err = r.vol.commit(c)
	}
	if err != nil {
		return datanode.Replica{}, fmt.Errorf("finalize block %d: %w", r.id, err)
	}
	r.mu.Lock()
	r.state = datanode.Finalized
	instead := ""
	if r.open != nil {
		instead = r.open.instead
	}
	r.settleLocked()
	view := r.viewLocked()
	r.mu.Unlock()
	w.closeFiles()
	r.vol.finalized(r)
	if unsynced {
		r.vol.unsettled.add(r)
	}
	w.store.announce(datanode.Change{Kind: datanode.Received, Block: view.Block, Volume: view.Volume, Instead: instead})
	return view, nil
}

// rename gives the checksum file, and so the replica, another generation and state on disk.
func (r *replica) rename(gen metadata.Generation, s suffix) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if gen == r.gen && s == r.suffix {
		return nil
	}
	old, oldGen, oldSuffix := r.sumsPath(), r.gen, r.suffix
	r.gen, r.suffix = gen, s
	if err := r.vol.fs.Rename(old, r.sumsPath()); err != nil {
		r.gen, r.suffix = oldGen, oldSuffix
		return err
	}
	if r.open != nil {
		r.open.unsynced = true
	}
	return nil
}

// Promote implements datanode.Writer.
func (w *writer) Promote() (datanode.Replica, error) {
	r := w.lock()
	defer r.io.Unlock()
	if err := w.ready(); err != nil {
		return datanode.Replica{}, err
	}
	if err := r.rename(r.gen, sufRBW); err != nil {
		return datanode.Replica{}, fmt.Errorf("promote block %d: %w", r.id, r.vol.check(err))
	}
	r.mu.Lock()
	r.state = datanode.RBW
	r.open.visible, r.open.visibleCRC, r.open.ends = r.length, r.open.lastCRC, nil
	r.open.owner = nil
	view := r.viewLocked()
	r.mu.Unlock()
	w.closeFiles()
	w.store.emit(datanode.Receiving, view)
	return view, nil
}

// Close implements datanode.Writer.
func (w *writer) Close() error {
	r := w.lock()
	defer r.io.Unlock()
	if w.closed || !w.owns() {
		w.closeFiles()
		return nil
	}
	w.closeFiles()
	r.mu.Lock()
	r.open.owner = nil
	r.releaseLocked()
	gen, temporary := r.gen, r.state == datanode.Temporary
	r.mu.Unlock()
	if temporary {
		return w.store.removeReplica(r, gen, false)
	}
	return nil
}

// Append implements datanode.BlockStore.
func (s *Store) Append(b metadata.Block, gen metadata.Generation, recovery bool) (datanode.Writer, error) {
	w, err := again(s, b, func(r *replica) (*writer, error) { return s.append(r, b, gen, recovery) })
	if err != nil {
		return nil, fmt.Errorf("append to %v: %w", b, err)
	}
	return w, nil
}

func (s *Store) append(r *replica, b metadata.Block, gen metadata.Generation, recovery bool) (*writer, error) {
	if r.saved.Load() == nil { // takeOver has one that was saved leave memory, and the next try looks at its disk
		if room, err := r.vol.room(1); err != nil {
			return nil, err
		} else if room == 0 {
			return nil, metadata.Errorf(metadata.ErrNoSpace, "volume %s is at its reserve", r.vol.path)
		}
	}
	accept := func() error {
		switch {
		case r.state == datanode.Finalized:
		case recovery && r.state == datanode.RBW:
		default:
			return stateError(r)
		}
		if !recovery && r.gen != b.Generation {
			return metadata.Errorf(metadata.ErrInvalidArgument, "the replica has generation %d, not %d", r.gen, b.Generation)
		}
		if r.length != b.Length || r.viewLocked().Visible != b.Length {
			return metadata.Errorf(metadata.ErrInvalidArgument, "the replica %v does not have %d bytes, all acknowledged", r.viewLocked(), b.Length)
		}
		return nil
	}
	if err := s.takeOver(r, b.Generation, gen, accept); err != nil {
		return nil, err
	}
	defer r.io.Unlock()
	w := newWriter(s, r)
	w.flushed = r.length
	r.mu.Lock()
	wasFinal := r.state == datanode.Finalized
	r.mu.Unlock()
	err := w.openFiles()
	if err != nil {
		return nil, err
	}
	if wasFinal {
		err = w.reopenFinalized(gen)
	} else {
		err = r.vol.check(r.rename(gen, sufRBW))
	}
	if err != nil {
		w.closeFiles()
		return nil, err
	}
	r.mu.Lock()
	r.open.owner = w
	view := r.viewLocked()
	r.mu.Unlock()
	s.emit(datanode.Receiving, view)
	return w, nil
}

// reopenFinalized turns a finalized replica into RBW. The new name is durable before a byte follows: a crash must not
// leave a longer file under the name that says finalized. r.io is held.
func (w *writer) reopenFinalized(gen metadata.Generation) error {
	r := w.r()
	if r.vol.leaving.Load() { // and nobody would bring what is written from here on to a disk
		return errRemoved
	}
	o, err := w.readTail(r.length)
	if err != nil {
		if errors.Is(err, metadata.ErrCorrupt) {
			w.store.markCorrupt(r)
		}
		return err
	}
	o.visible, o.visibleCRC, o.promised = r.length, o.lastCRC, r.suffix != sufUnsynced
	if err := r.unsave(); err != nil {
		return err
	}
	if err := r.vol.commit(&commit{rename: func() error { return r.rename(gen, sufRBW) }, dir: r.vol.dirOf(r.id)}); err != nil {
		return err
	}
	r.mu.Lock()
	r.state, r.open = datanode.RBW, o
	r.mu.Unlock()
	return nil
}

// readTail rebuilds from disk what is known of an open replica of the given length; its last chunk is verified.
func (w *writer) readTail(length int64) (*opened, error) {
	r := w.r()
	header := make([]byte, headerSize)
	if _, err := w.sums.ReadAt(header, 0); err != nil {
		return nil, w.store.readFailed(r, err)
	}
	sum, err := decodeHeader(header, r.id)
	if err != nil {
		return nil, err
	}
	o := &opened{sum: sum}
	for _, t := range decodeTails(header) {
		o.tailSeq = max(o.tailSeq, t.seq)
	}
	n := length % chunk
	if n == 0 {
		return o, nil
	}
	buf := make([]byte, n)
	if _, err := w.data.ReadAt(buf, length-n); err != nil {
		return nil, w.store.readFailed(r, err)
	}
	var last [4]byte
	if _, err := w.sums.ReadAt(last[:], sumOffset(length)); err != nil {
		return nil, w.store.readFailed(r, err)
	}
	o.lastCRC = binary.BigEndian.Uint32(last[:])
	if crc32.Checksum(buf, tableOf(sum)) != o.lastCRC {
		return nil, fmt.Errorf("last chunk of block %d does not match its checksum: %w", r.id, metadata.ErrCorrupt)
	}
	return o, nil
}

// Resume implements datanode.BlockStore.
func (s *Store) Resume(b metadata.Block, gen metadata.Generation, minimum, maximum int64) (datanode.Writer, error) {
	w, err := again(s, b, func(r *replica) (*writer, error) { return s.resume(r, b, gen, minimum, maximum) })
	if err != nil {
		return nil, fmt.Errorf("resume %v: %w", b, err)
	}
	return w, nil
}

func (s *Store) resume(r *replica, b metadata.Block, gen metadata.Generation, minimum, maximum int64) (*writer, error) {
	accept := func() error {
		if r.state != datanode.RBW {
			return stateError(r)
		}
		if r.open.visible < minimum || r.length > maximum {
			return metadata.Errorf(metadata.ErrInvalidArgument, "%d bytes acknowledged and %d received are not within [%d, %d]", r.open.visible, r.length, minimum, maximum)
		}
		return nil
	}
	if err := s.takeOver(r, b.Generation, gen, accept); err != nil {
		return nil, err
	}
	defer r.io.Unlock()
	w := newWriter(s, r)
	r.mu.Lock()
	visible := r.open.visible
	r.mu.Unlock()
	err := w.openFiles()
	if err != nil {
		return nil, err
	}
	if err = w.cutTo(visible); err == nil {
		err = r.vol.check(r.rename(gen, sufRBW))
	}
	if err != nil {
		w.closeFiles()
		return nil, err
	}
	w.flushed = visible
	r.mu.Lock()
	r.open.owner = w
	view := r.viewLocked()
	r.mu.Unlock()
	s.emit(datanode.Receiving, view)
	return w, nil
}

// cutTo drops what lies behind the visible length. r.io is held.
func (w *writer) cutTo(visible int64) error {
	r := w.r()
	r.mu.Lock()
	length, crc := r.length, r.open.visibleCRC
	r.mu.Unlock()
	if length == visible {
		return nil
	}
	if err := w.truncate(visible, crc); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.length, r.open.lastCRC, r.open.ends = visible, crc, nil
	return nil
}

// truncate cuts both files to length; crc is the checksum of the chunk that it cuts. r.io is held.
func (w *writer) truncate(length int64, crc uint32) error {
	r := w.r()
	if err := w.data.Truncate(length); err != nil {
		return r.vol.check(err)
	}
	if length%chunk != 0 {
		if _, err := w.sums.WriteAt(binary.BigEndian.AppendUint32(nil, crc), sumOffset(length)); err != nil {
			return r.vol.check(err)
		}
	}
	if err := w.sums.Truncate(sumsSize(length)); err != nil {
		return r.vol.check(err)
	}
	r.vol.used.Add(length + sumsSize(length) - r.length - sumsSize(r.length))
	return nil
}

// Close implements datanode.BlockStore.
func (s *Store) Close(b metadata.Block, gen metadata.Generation) (datanode.Replica, error) {
	v, err := again(s, b, func(r *replica) (datanode.Replica, error) { return s.closeReplica(r, b, gen) })
	if err != nil {
		return v, fmt.Errorf("close %v: %w", b, err)
	}
	return v, nil
}

func (s *Store) closeReplica(r *replica, b metadata.Block, gen metadata.Generation) (datanode.Replica, error) {
	accept := func() error {
		if r.state != datanode.RBW && r.state != datanode.Finalized {
			return stateError(r)
		}
		if r.length != b.Length || r.state == datanode.RBW && r.open.visible != r.length {
			return metadata.Errorf(metadata.ErrInvalidArgument, "the replica %v does not have %d bytes, all acknowledged", r.viewLocked(), b.Length)
		}
		return nil
	}
	if err := s.takeOver(r, b.Generation, gen, accept); err != nil {
		return datanode.Replica{}, err
	}
	defer r.io.Unlock()
	if r.view().State == datanode.Finalized {
		return s.restamp(r, gen)
	}
	w := newWriter(s, r)
	if err := w.openFiles(); err != nil {
		return datanode.Replica{}, err
	}
	v, err := w.finalize(gen, s.cfg.Unsynced)
	if err != nil {
		w.closeFiles()
	}
	return v, err
}

// restamp gives a finalized replica another generation, durably, and announces it. r.io is held.
func (s *Store) restamp(r *replica, gen metadata.Generation) (datanode.Replica, error) {
	if r.packed != nil { // a record keeps its generation
		w := newWriter(s, r)
		if err := w.openFiles(); err != nil {
			return datanode.Replica{}, err
		}
		w.closeFiles()
	}
	if err := r.unsave(); err != nil {
		return datanode.Replica{}, err
	}
	if err := s.makeDurable(r, gen); err != nil {
		return datanode.Replica{}, err
	}
	r.mu.Lock()
	r.recovery = 0
	view := r.viewLocked()
	r.mu.Unlock()
	s.emit(datanode.Received, view)
	return view, nil
}

// takeOver prepares a replica for a new owner: its generation must be in [low, high], no recovery may run, and accept,
// called with r.mu held, must agree; then the writer is stopped. r.io is held on return, unless there is an error.
//
// The check is made twice: the writer may have finished while it was being stopped.
func (s *Store) takeOver(r *replica, low, high metadata.Generation, accept func() error) error {
	check := func() error {
		if !r.acquire(&r.mu) {
			return r.vol.err()
		}
		defer r.mu.Unlock()
		switch {
		case r.gone:
			return notFound(metadata.Block{ID: r.id, Generation: low})
		case r.recovery != 0:
			return metadata.Errorf(metadata.ErrRecoveryInProgress, "block recovery %d of block %d is in progress", r.recovery, r.id)
		case r.gen < low || r.gen > high:
			return metadata.Errorf(metadata.ErrInvalidArgument, "the replica has generation %d, not within [%d, %d]", r.gen, low, high)
		}
		if err := accept(); err != nil {
			return err
		}
		r.fenceLocked()
		return nil
	}
	if err := check(); err != nil {
		return err
	}
	if !r.acquire(&r.io) {
		return r.vol.err()
	}
	s.instead(r, false) // what is on a disk already stays there, under whatever comes: the replica is gone then, and the caller begins again
	err := check()
	if err == nil {
		err = r.vol.err() // then a commit that nobody waits for any more may still rename it
	}
	if err != nil {
		r.io.Unlock()
	}
	return err
}

// stateError refuses a replica of the wrong state. r.mu is held.
func stateError(r *replica) error {
	return metadata.Errorf(metadata.ErrInvalidArgument, "the replica %v is %v", r.blockLocked(), r.state)
}
