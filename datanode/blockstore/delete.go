package blockstore

import (
	"errors"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
)

// Delete implements datanode.BlockStore. Readers that have the replica open can finish.
func (s *Store) Delete(b metadata.Block) error { return s.delete(b, false) }

func (s *Store) delete(b metadata.Block, keep bool) error {
	r := s.get(b.ID)
	if r == nil {
		return nil
	}
	defer s.letGo(r)
	if !r.acquire(&r.mu) {
		return r.vol.err()
	}
	if r.gone {
		r.mu.Unlock()
		if r.away.Load() {
			return s.delete(b, keep)
		}
		return nil
	}
	if r.gen > b.Generation {
		gen := r.gen
		r.mu.Unlock()
		return metadata.Errorf(metadata.ErrInvalidArgument, "delete of %v: the replica is of the newer generation %d", b, gen)
	}
	r.fenceLocked()
	r.mu.Unlock()

	if !r.acquire(&r.io) {
		return r.vol.err()
	}
	err := s.removeReplica(r, b.Generation, keep)
	r.io.Unlock()
	if err == nil && r.away.Load() { // meanwhile
		return s.delete(b, keep)
	}
	return err
}

// removeReplica removes the files, or keeps them in the trash, and forgets the replica, unless it is of a generation above
// limit by now. r.io is held.
func (s *Store) removeReplica(r *replica, limit metadata.Generation, keep bool) error {
	r.mu.Lock()
	if r.gone || r.gen > limit {
		r.mu.Unlock()
		return nil
	}
	temporary := r.state == datanode.Temporary
	view := r.viewLocked()
	r.gone = true
	r.fenceLocked() // who was about to take it over has it by now
	r.settleLocked()
	c := r.parted()
	r.mu.Unlock() // nobody needs to wait for a disk to find that it is gone
	remove := r.discard
	if keep {
		remove = r.bin
	}
	var err error
	if c != nil && c.v.err() == nil {
		err = c.v.remove(c.b.ID, c.b.Generation, sufMeta)
	}
	err = errors.Join(err, remove())
	r.mu.Lock()
	r.packed = nil
	r.vol.used.Add(-(r.length + sumsSize(r.length)))
	r.mu.Unlock()
	if !temporary {
		s.emit(datanode.Deleted, view) // before another replica of the block can be announced
	}
	s.forget(r)
	return err
}

// Disown announces that there is no replica of a block, unless there is one: somebody takes one to be here. Of what was on a volume
// that has failed nothing is said; it may come back.
func (s *Store) Disown(id metadata.BlockID) {
	sh := s.shard(id)
	sh.mu.RLock() // a replica that comes is announced behind
	defer sh.mu.RUnlock()
	if sh.replicas[id] == nil && sh.resting.find(id) < 0 {
		s.emit(datanode.Deleted, datanode.Replica{Block: metadata.Block{ID: id}})
	}
}

func (s *Store) forget(r *replica) {
	sh := s.shard(r.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.replicas[r.id] == r {
		delete(sh.replicas, r.id)
		r.vol.replicas.Add(-1)
	}
}
