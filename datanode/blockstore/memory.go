package blockstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

// A volume of type RAM_DISK is lost with its machine. It takes replicas of new blocks that are to lie there and nothing else, and a finalized one is copied to a disk of
// this datanode soon: saved. The copy is what a move to that disk would make (move.go), with the names of a finalized replica, so that a start that finds the memory empty finds the
// replica there; only that the one in memory stays, and is what readers and namenodes know, until its room is wanted, or somebody is about to change it: then it is evicted, which is the
// second half of the move.

// memory is what a volume of type RAM_DISK knows of its replicas.
type memory struct {
	mu    sync.Mutex
	fresh []*replica // finalized, and not saved yet
	saved []*replica // the first goes first
	work  sync.Mutex // held by who saves them
	// bytes of the saved ones are as good as free.
	bytes atomic.Int64
}

// Memory counts what has happened to replicas on volumes of type RAM_DISK since the store was opened.
type Memory struct {
	// Written replicas were made there, Fallbacks on a disk for want of room. Saved are copies on disks, of SavedBytes; Evicted have left, and Left are those that left because they were
	// synced while they were written.
	Written, Fallbacks, Saved, SavedBytes, Evicted, Left int64
}

type memoryCounts struct{ written, fallbacks, saved, savedBytes, evicted, left atomic.Int64 }

// Memory tells what has happened to replicas in memory.
func (s *Store) Memory() Memory {
	c := &s.memory
	return Memory{c.written.Load(), c.fallbacks.Load(), c.saved.Load(), c.savedBytes.Load(), c.evicted.Load(), c.left.Load()}
}

func (v *volume) inMemory() bool { return v.typ == datanode.RAMDisk }

// finalized notes that a replica can be saved.
func (v *volume) finalized(r *replica) {
	if v.inMemory() {
		v.memory.mu.Lock()
		v.memory.fresh = append(v.memory.fresh, r)
		v.memory.mu.Unlock()
	}
}

// isSaved notes that c is a replica's copy.
func (r *replica) isSaved(c *moved) {
	r.saved.Store(c)
	r.read.Store(false) // by who made the copy
	r.vol.memory.bytes.Add(c.size())
	c.v.used.Add(c.size())
	r.vol.memory.mu.Lock()
	r.vol.memory.saved = append(r.vol.memory.saved, r)
	r.vol.memory.mu.Unlock()
}

// parted takes a replica's copy off it, if it has one; what becomes of the files is the caller's. r.io is held.
func (r *replica) parted() *moved {
	c := r.saved.Swap(nil)
	if c != nil {
		r.vol.memory.bytes.Add(-c.size())
		c.v.used.Add(-c.size())
	}
	return c
}

// unsave removes the copy of a replica that is about to change, durably, where it could not take the replica's place: of two with the same generation a start might take the one that did
// not change. What is on a volume that has failed nobody can remove. r.io is held.
func (r *replica) unsave() error {
	c := r.saved.Load()
	if c == nil {
		return nil
	}
	if c.v.err() == nil {
		if err := c.discard(); err != nil {
			return err
		}
	}
	r.parted()
	r.vol.finalized(r) // it will be again
	return nil
}

// save copies a replica in memory to a disk. Errors are those of Move, and errSilent: the disk does not answer, and is not waited for.
func (s *Store) save(ctx context.Context, r *replica) error {
	m, err := s.beginMove(r.id)
	if err != nil {
		return err
	}
	return patiently(m, func() error {
		defer s.moves.CompareAndDelete(r.id, m)
		return s.saveTo(ctx, r, m)
	})
}

// saveTo is save for who has begun the move.
func (s *Store) saveTo(ctx context.Context, r *replica, m *atomic.Pointer[volume]) error {
	if !r.acquire(&r.mu) {
		return r.vol.err()
	}
	view, fit := r.viewLocked(), !r.gone && !r.bad && r.state == datanode.Finalized && r.recovery == 0
	r.mu.Unlock()
	if !fit || r.saved.Load() != nil {
		return nil
	}
	b := view.Block
	v, err := s.choose(datanode.Disk, b.Length)
	if err != nil {
		return err
	}
	if m.Store(v); v.slow.Load() { // and there is no other
		return fmt.Errorf("volume %s: %w", v.path, errSilent)
	}
	v.expected.Add(b.Length)
	defer v.expected.Add(-b.Length)
	c, err := s.copyAway(ctx, r, b, v, nil)
	if err != nil {
		return err
	}
	if !r.acquire(&r.io) {
		return errors.Join(r.vol.err(), c.discard())
	}
	defer r.io.Unlock()
	if !c.copies(r) || !s.is(r) { // on a volume that has failed: another one may have its place
		return errors.Join(errChanged, c.discard())
	}
	if err := c.name(); err != nil {
		return errors.Join(err, c.discard())
	}
	r.mu.Lock()
	still := c.copiesLocked(r) && v.failed.Load() == nil
	if still {
		r.isSaved(c)
	}
	r.mu.Unlock()
	if !still { // a recovery has begun
		return errors.Join(errChanged, c.discard())
	}
	s.memory.saved.Add(1)
	s.memory.savedBytes.Add(b.Length)
	return nil
}

// evict lets saved replicas leave a volume until about n bytes are free, those first that were not read since they were looked at last. It waits for nobody; false: nothing has left.
func (s *Store) evict(v *volume, n int64) bool {
	m := &v.memory
	m.mu.Lock()
	turns := 2 * len(m.saved)
	m.mu.Unlock()
	freed := int64(0)
	for ; turns > 0 && freed < n; turns-- {
		m.mu.Lock()
		if len(m.saved) == 0 {
			m.mu.Unlock()
			break
		}
		r := m.saved[0]
		m.saved = m.saved[1:]
		if r.read.Swap(false) && r.saved.Load() != nil {
			m.saved = append(m.saved, r)
			m.mu.Unlock()
			continue
		}
		m.mu.Unlock()
		freed += s.leave(r, false)
	}
	return freed > 0
}

// leave puts a replica's copy in its place, and returns the bytes that are free by that. Who is worked on stays. damaged: so be it that the one in memory is.
func (s *Store) leave(r *replica, damaged bool) int64 {
	c := r.saved.Load()
	if c == nil {
		return 0
	}
	if c.v.err() == nil && r.io.TryLock() {
		defer r.io.Unlock()
		if s.instead(r, damaged) {
			return c.size()
		}
	}
	m := &r.vol.memory
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved = append(m.saved, r)
	return 0
}

// instead makes the saved copy the block's replica, if it is a copy of what is in memory. r.io is held.
func (s *Store) instead(r *replica, damaged bool) bool {
	c := r.saved.Load()
	if c == nil || c.v.err() != nil {
		return false
	}
	size := c.size()
	if err := s.replace(r, c, damaged); err != nil {
		return false
	}
	s.memory.evicted.Add(1)
	r.saved.Store(nil) // replace has counted what it takes on the disk
	r.vol.memory.bytes.Add(-size)
	c.v.used.Add(-size)
	return true
}

// Persist saves replicas in memory, every so often, until ctx is done; 0 is a minute.
func (s *Store) Persist(ctx context.Context, every time.Duration) {
	if every <= 0 {
		every = time.Minute
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-s.rescue: // a volume has failed
		}
		for _, v := range s.all() {
			if v.inMemory() {
				s.persist(ctx, v)
			}
		}
	}
}

// persist saves what is not saved yet on a volume. Where the volume has failed, or a replica is damaged, the copies take over.
func (s *Store) persist(ctx context.Context, v *volume) {
	m := &v.memory
	m.work.Lock()
	defer m.work.Unlock()
	m.mu.Lock()
	saved := m.saved
	m.saved = nil
	m.mu.Unlock()
	for _, r := range saved {
		c := r.saved.Load()
		switch {
		case c == nil: // it is gone, or has changed
		case c.v.err() != nil && r.io.TryLock(): // so is the disk, and nobody waits for it with the replica in hand
			if r.saved.Load() == c {
				r.parted()
				v.finalized(r)
			}
			r.io.Unlock()
		case v.err() != nil || r.damaged():
			s.leave(r, true)
		default:
			m.mu.Lock()
			m.saved = append(m.saved, r)
			m.mu.Unlock()
		}
	}
	m.mu.Lock()
	fresh := m.fresh
	m.fresh = nil
	m.mu.Unlock()
	var last error
	for _, r := range fresh {
		if v.err() != nil {
			return
		}
		if ctx.Err() != nil {
			v.finalized(r)
			continue
		}
		if err := s.save(ctx, r); err != nil && !errors.Is(err, metadata.ErrReplicaNotFound) && !errors.Is(err, metadata.ErrCorrupt) {
			last = err
			v.finalized(r) // again the next time
		}
	}
	if last != nil && ctx.Err() == nil {
		s.log.Warn("what is in memory cannot be saved on a disk yet", "volume", v.id.Storage, "err", last)
	}
}

// damaged: it was announced as corrupt.
func (r *replica) damaged() bool {
	if !r.mu.TryLock() {
		return false
	}
	defer r.mu.Unlock()
	return r.bad && !r.gone
}

// clear brings all finalized replicas of a volume in memory to disks.
func (s *Store) clear(v *volume) error {
	s.persist(context.Background(), v)
	m := &v.memory
	for v.err() == nil && m.bytes.Load() > 0 && s.evict(v, m.bytes.Load()) {
	}
	m.mu.Lock()
	left := slices.Concat(m.fresh, m.saved)
	m.mu.Unlock()
	for _, r := range left {
		r.mu.Lock()
		stays := !r.gone && !r.bad && r.state == datanode.Finalized
		r.mu.Unlock()
		if stays && v.err() == nil {
			return metadata.Errorf(metadata.ErrRetriable, "volume %s has replicas in memory that could not be brought to a disk: try again when one has room and answers", v.path)
		}
	}
	return nil
}

// vacate brings all replicas of a volume in memory to disks, where those that are being written go on. Without an error the volume is leaving then, and nothing
// more is written there.
func (s *Store) vacate(v *volume) error {
	if err := s.clear(v); err != nil { // most of it, before anybody has to wait
		return err
	}
	v.leaving.Store(true)
	err := error(nil)
	for _, r := range s.on(v) {
		if err = patiently(&r.onto, func() error { return s.depart(r) }); err != nil {
			break
		}
	}
	if err == nil {
		err = s.clear(v) // what was finalized meanwhile
	}
	if err != nil {
		v.leaving.Store(false)
	}
	return err
}

// depart has a replica in memory that is being written go on on a disk. What nobody can write any more, because the datanode was started since, goes.
func (s *Store) depart(r *replica) error {
	for end := time.Now().Add(r.vol.endWait); !r.io.TryLock(); time.Sleep(time.Millisecond) {
		switch {
		case r.vol.err() != nil:
			return nil
		case time.Now().After(end): // its writer waits for a disk, as for a sync, that does not answer
			return metadata.Errorf(metadata.ErrRetriable, "block %d on volume %s is being written by somebody who waits for a disk: try again", r.id, r.vol.path)
		}
	}
	defer func() { r.io.Unlock() }()
	r.mu.Lock()
	finished, gen, recovered := r.gone || r.state == datanode.Finalized, r.gen, r.recovery != 0
	open, orphan := r.open != nil, false
	var w *writer
	if open && !finished && !recovered {
		if orphan = r.open.owner == nil; orphan { // its writer is gone, but not what was acknowledged to it
			r.open.owner = newWriter(s, r)
		}
		w = r.open.owner
	}
	r.mu.Unlock()
	switch {
	case finished:
		return nil
	case recovered:
		return beingRecovered(r)
	case !open:
		return s.removeReplica(r, gen, false)
	}
	err := w.openFiles()
	if err == nil {
		var n *replica
		if n, err = w.leave(r); err == nil {
			r.io.Unlock()
			r = n
		}
	}
	r.mu.Lock()
	recovered = r.recovery != 0
	if orphan && r.open != nil && r.open.owner == w {
		r.open.owner = nil
	}
	r.mu.Unlock()
	if orphan {
		w.closeFiles()
	}
	switch {
	case err != nil && recovered: // since it was looked at
		return beingRecovered(r)
	case err != nil:
		return fmt.Errorf("block %d, which is being written in memory: %w", r.id, err)
	}
	return nil
}

func beingRecovered(r *replica) error {
	return metadata.Errorf(metadata.ErrRetriable, "block %d on volume %s is being recovered: try again", r.id, r.vol.path)
}

// leave brings a replica that is being written to a disk, because it is to be durable. r.io is held; without an error that of the new one is held as well.
func (w *writer) leave(r *replica) (*replica, error) {
	s := w.store
	r.mu.Lock()
	gen, length, sum, expect := r.gen, r.length, r.open.sum, r.open.expect
	r.mu.Unlock()
	v, err := s.choose(datanode.Disk, length+expect)
	if err == nil && !s.setOff(r, v) {
		err = w.errLost()
	}
	if err == nil {
		defer r.onto.Store(nil) // when what was made there in vain is gone
		err = v.ensureDir(r.id)
	}
	if err != nil {
		return nil, err
	}
	// A start that finds this one and the one in memory keeps the longer one.
	data, sums, err := v.createFiles(r.id, gen, sufRBW, sum)
	if err != nil {
		return nil, err
	}
	if err = copyFile(v, data, w.data, length); err == nil {
		err = copyFile(v, sums, w.sums, sumsSize(length))
	}
	n := &replica{vol: v, id: r.id, gen: gen, length: length, state: datanode.RBW, suffix: sufRBW, usual: r.usual}
	n.io.Lock()
	n.mu.Lock()
	r.mu.Lock()
	sh := s.shard(r.id)
	sh.mu.Lock()
	switch {
	case err == nil && (r.gone || r.open == nil || r.open.owner != w || sh.replicas[r.id] != r):
		err = w.errLost()
	case err == nil && v.leaving.Load():
		err = errRemoved
	}
	if err != nil {
		sh.mu.Unlock()
		r.mu.Unlock()
		return nil, errors.Join(err, data.Close(), sums.Close(), v.remove(r.id, gen, sufRBW))
	}
	r.wakeLocked()
	n.open, r.open = r.open, nil
	n.open.unsynced = true
	r.gone = true
	r.away.Store(true)
	s.enterLocked(sh, n)
	w.at.Store(n)
	sh.mu.Unlock()
	size := length + sumsSize(length)
	r.vol.replicas.Add(-1)
	r.vol.used.Add(-size)
	r.vol.expected.Add(-n.open.expect)
	v.replicas.Add(1)
	v.used.Add(size)
	v.expected.Add(n.open.expect)
	r.mu.Unlock()
	s.emit(datanode.Receiving, n.viewLocked())
	n.mu.Unlock()
	err = errors.Join(w.data.Close(), w.sums.Close(), r.discard())
	if err != nil {
		s.log.Warn("what a replica that has left memory has left is not removed", "block", r.id, "volume", r.vol.id.Storage, "err", err)
	}
	w.data, w.sums, w.flushed, w.allocated = data, sums, 0, 0
	s.memory.left.Add(1)
	return n, nil
}

// setOff notes that a replica leaves memory for v, unless the block has another one by now: from then on no other one takes its place, under names that it is about to have there (arrives).
func (s *Store) setOff(r *replica, v *volume) bool {
	sh := s.shard(r.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.replicas[r.id] != r {
		return false
	}
	r.onto.Store(v)
	return true
}

// copyFile copies the first n bytes of a file in memory to one on v.
func copyFile(v *volume, to, from vfs.File, n int64) error {
	buf := make([]byte, min(verifyStep, n))
	for off := int64(0); off < n; off += verifyStep {
		p := buf[:min(verifyStep, n-off)]
		if k, err := from.ReadAt(p, off); k < len(p) {
			return fmt.Errorf("read from memory: %w: %w", err, metadata.ErrIO)
		}
		if _, err := to.WriteAt(p, off); err != nil {
			return v.check(err)
		}
	}
	return nil
}
