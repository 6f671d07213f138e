package blockstore

import (
	"fmt"
	"hash/crc32"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
)

// InitRecovery implements datanode.BlockStore. The promise not to obey lower ids is kept in memory, as in HDFS: a
// datanode that restarts offers the replica as RWR, and the namenode begins again under a higher id.
func (s *Store) InitRecovery(b metadata.Block, recovery metadata.Generation) (datanode.Replica, error) {
	return again(s, b, func(r *replica) (datanode.Replica, error) { return s.initRecovery(r, b, recovery) })
}

func (s *Store) initRecovery(r *replica, b metadata.Block, recovery metadata.Generation) (datanode.Replica, error) {
	check := func() error { // r.mu is held
		switch {
		case r.gone || r.state == datanode.Temporary:
			return notFound(b)
		case r.gen < b.Generation:
			return metadata.Errorf(metadata.ErrReplicaNotFound, "replica %v is older than %v and takes no part in its recovery", r.blockLocked(), b)
		case r.gen >= recovery:
			return metadata.Errorf(metadata.ErrRecoveryInProgress, "replica %v is not older than recovery %d", r.blockLocked(), recovery)
		case r.recovery >= recovery:
			return metadata.Errorf(metadata.ErrRecoveryInProgress, "replica %v is in recovery %d, not older than %d", r.blockLocked(), r.recovery, recovery)
		case r.bad && r.suffix == sufUnsynced: // see judge: of its bytes nobody knows whether they are whole, and others may be
			return metadata.Errorf(metadata.ErrIO, "replica %v was never synced, and is damaged", r.blockLocked())
		}
		return nil
	}
	if r.saved.Load() != nil && r.acquire(&r.io) { // as in takeOver
		s.instead(r, false)
		r.io.Unlock()
	}
	if !r.acquire(&r.mu) {
		return datanode.Replica{}, r.vol.err()
	}
	err := check()
	if err == nil {
		r.recovery = recovery
		r.fenceLocked()
	}
	r.mu.Unlock()
	if err != nil {
		return datanode.Replica{}, err
	}
	if !r.acquire(&r.io) { // the writer's last call is over
		return datanode.Replica{}, r.vol.err()
	}
	defer r.io.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return datanode.Replica{}, notFound(b)
	}
	r.fenceLocked() // who was about to take it over has it by now
	if r.recovery != recovery {
		return datanode.Replica{}, metadata.Errorf(metadata.ErrRecoveryInProgress, "replica %v is in recovery %d by now", r.blockLocked(), r.recovery)
	}
	return r.viewLocked(), nil
}

// UpdateReplica implements datanode.BlockStore.
//
// It may stop at any point: the checksum file keeps the suffix rbw until the cut is durable, and the tail slot holds the
// new length before a checksum is overwritten, so that the replica comes back as RWR with at least that length.
func (s *Store) UpdateReplica(b metadata.Block, recovery metadata.Generation, length int64) (datanode.Replica, error) {
	r := s.get(b.ID)
	if r == nil {
		return datanode.Replica{}, notFound(b)
	}
	defer s.letGo(r)
	if !r.acquire(&r.io) {
		return datanode.Replica{}, r.vol.err()
	}
	defer r.io.Unlock()
	if err := r.vol.err(); err != nil { // as in takeOver
		return datanode.Replica{}, err
	}
	v, err := s.update(r, b, recovery, length)
	if err != nil {
		return v, fmt.Errorf("update replica of %v to recovery %d: %w", b, recovery, err)
	}
	return v, nil
}

func (s *Store) update(r *replica, b metadata.Block, recovery metadata.Generation, length int64) (datanode.Replica, error) {
	r.mu.Lock()
	var err error
	switch {
	case r.gone:
		err = notFound(b)
	case r.recovery != recovery:
		err = metadata.Errorf(metadata.ErrRecoveryInProgress, "the replica is in recovery %d", r.recovery)
	case length < 0 || length > r.length:
		err = metadata.Errorf(metadata.ErrInvalidArgument, "length %d of a replica of %d bytes", length, r.length)
	}
	final, have := r.state == datanode.Finalized, r.length
	r.mu.Unlock()
	if err != nil {
		return datanode.Replica{}, err
	}
	if final && length == have {
		return s.restamp(r, recovery)
	}
	w := newWriter(s, r)
	if err := w.openFiles(); err != nil {
		return datanode.Replica{}, err
	}
	defer w.closeFiles()
	if final {
		if err := w.reopenFinalized(r.view().Block.Generation); err != nil {
			return datanode.Replica{}, err
		}
	} else {
		o, err := w.readTail(have)
		if err != nil {
			return datanode.Replica{}, err
		}
		r.mu.Lock()
		if r.open != nil {
			o.visible, o.visibleCRC = r.open.visible, r.open.visibleCRC
		}
		r.settleLocked()
		r.open = o
		r.mu.Unlock()
		if err := w.cutRest(have, o.lastCRC); err != nil {
			return datanode.Replica{}, err
		}
	}
	if length < have {
		if err := w.cutDurably(length); err != nil {
			return datanode.Replica{}, err
		}
	}
	v, err := w.finalize(recovery, false)
	if err != nil {
		return v, err
	}
	r.mu.Lock()
	r.recovery = 0
	r.mu.Unlock()
	return v, nil
}

// cutRest cuts off what a start could not read, and left where it was: the replica ends before it, with a whole chunk, and is about to be finalized. r.io is held.
func (w *writer) cutRest(have int64, crc uint32) error {
	size, err := w.data.Size()
	if err != nil {
		return w.r().vol.check(err)
	}
	if size <= have || have%chunk != 0 {
		return nil
	}
	return w.truncate(have, crc)
}

// cutDurably cuts the replica to length. r.io is held.
func (w *writer) cutDurably(length int64) error {
	r := w.r()
	var crc uint32
	if n := length % chunk; n != 0 {
		buf := make([]byte, min(chunk, r.view().Block.Length-(length-n)))
		if _, err := w.data.ReadAt(buf, length-n); err != nil {
			return w.store.readFailed(r, err)
		}
		var sum [4]byte
		if _, err := w.sums.ReadAt(sum[:], sumOffset(length)); err != nil {
			return w.store.readFailed(r, err)
		}
		if err := verify(tableOf(w.Checksum()), buf, sum[:]); err != nil {
			w.store.markCorrupt(r)
			return err
		}
		crc = crc32.Checksum(buf[:n], tableOf(w.Checksum()))
		// A tail may only speak of data that is durable: the next one takes the place of the last that was.
		if err := r.vol.checkSync(w.data.Sync()); err != nil {
			return err
		}
		r.mu.Lock()
		r.open.tailSeq++
		t := tail{length: length, crc: crc, seq: r.open.tailSeq}
		r.mu.Unlock()
		if _, err := w.sums.WriteAt(t.encode(), t.offset()); err != nil {
			return r.vol.check(err)
		}
		if err := r.vol.checkSync(w.sums.Sync()); err != nil {
			return err
		}
	}
	r.mu.Lock()
	if length < r.open.visible { // who reads knows before it happens
		r.open.visible, r.open.visibleCRC = length, crc
	}
	r.mu.Unlock()
	if err := w.truncate(length, crc); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.length, r.open.lastCRC, r.open.ends = length, crc, nil
	return nil
}
