package blockstore

import (
	"sync"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/metadata"
)

// A block's replica is either at rest, as an entry of its shard's table, or it has a handle there, never both. Who asks for it holds the handle, which is made of the entry if there is
// none, and lets it go. A handle that nobody holds stays for a while, so that what is wanted again and again costs nothing: when there are too many in a shard, those that can rest do.
// Since a held handle does not rest, there are no two of one replica. Some have a handle that they do not hold: writers, whose replica is no more at rest than they are its owners, the
// lists of volumes in memory, where nothing rests, and the list of replicas to be synced, which do not rest before.

// shard is a part of the block ids.
type shard struct {
	mu       sync.RWMutex
	replicas map[metadata.BlockID]*replica // those with a handle; nil before the first
	resting  table
	limit    int // of the handles; with so many it is looked which can rest
}

const shardBits = 10

// idleHandles is how many handles of a shard stay while they may rest. In tests it is 0 as well: then each rests as soon as it is let go.
var idleHandles = 16

func (s *Store) shard(id metadata.BlockID) *shard { return &s.shards[mix(id)>>(64-shardBits)] }

// get holds the replica of a block; nil if there is none or its volume has failed. The caller lets it go, when it has no lock of it any more.
func (s *Store) get(id metadata.BlockID) *replica {
	r := s.hold(id)
	if r == nil || r.vol.failed.Load() == nil {
		return r
	}
	s.letGo(r)
	return nil
}

// hold is get whatever the volume does.
func (s *Store) hold(id metadata.BlockID) *replica {
	sh := s.shard(id)
	sh.mu.RLock()
	r := sh.replicas[id]
	if r != nil {
		r.users.Add(1)
	}
	rests := r == nil && sh.resting.find(id) >= 0
	sh.mu.RUnlock()
	if !rests {
		return r
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	return s.holdLocked(sh, id)
}

// holdLocked is hold with sh.mu held.
func (s *Store) holdLocked(sh *shard, id metadata.BlockID) *replica {
	r := sh.replicas[id]
	if r == nil {
		e, ok := sh.resting.remove(id)
		if !ok {
			return nil
		}
		at := s.places.at(e)
		r = &replica{vol: at.v, id: id, gen: e.gen(), length: e.length(), state: datanode.Finalized, suffix: sufMeta, usual: e.usual()}
		if at.p != nil {
			r.suffix, r.packed = 0, &slot{p: at.p, off: e.off(), length: e.length()}
		}
		s.enterLocked(sh, r)
	}
	r.users.Add(1)
	return r
}

// enterLocked makes a handle the one of its block, in place of another one, if there is one. None is at rest. sh.mu is held.
func (s *Store) enterLocked(sh *shard, r *replica) {
	if len(sh.replicas) >= sh.limit {
		sh.tidy()
	}
	if sh.replicas == nil {
		sh.replicas = map[metadata.BlockID]*replica{}
	}
	sh.replicas[r.id] = r
}

// letGo ends what hold began. r may be nil.
func (s *Store) letGo(r *replica) {
	if r == nil || r.users.Add(-1) > 0 || idleHandles > 0 {
		return
	}
	sh := s.shard(r.id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.rest(r)
}

// rest makes a handle an entry again, if it is the block's, and nobody holds it or works on it. sh.mu is held.
func (sh *shard) rest(r *replica) {
	if sh.replicas[r.id] != r || r.users.Load() > 0 || r.vol.inMemory() || !r.io.TryLock() { // who evicts passes over a replica in memory that is locked
		return
	}
	defer r.io.Unlock()
	if !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	e, ok := r.entryLocked()
	if !ok {
		return
	}
	delete(sh.replicas, r.id)
	sh.resting.put(e)
	r.gone = true // for who has it without holding it
	r.away.Store(true)
}

// tidy lets rest what can. sh.mu is held.
func (sh *shard) tidy() {
	for _, r := range sh.replicas {
		sh.rest(r)
	}
	sh.limit = max(idleHandles, 2*len(sh.replicas))
}

// tidyStep is how many shards are looked through at a tick of the watchdog.
const tidyStep = 8

// tidy looks through some shards that have had many handles at a time. The watchdog calls it.
func (s *Store) tidy() {
	for range tidyStep {
		sh := &s.shards[s.tidying]
		s.tidying = (s.tidying + 1) % len(s.shards)
		sh.mu.Lock()
		if len(sh.replicas) > idleHandles {
			sh.tidy()
		}
		sh.mu.Unlock()
	}
}

// entryLocked is what a replica is at rest; false if it cannot be. r.io and r.mu are held, or nobody else knows it.
func (r *replica) entryLocked() (entry, bool) {
	if r.state != datanode.Finalized || r.open != nil || r.recovery != 0 || r.bad || r.gone || r.vol.inMemory() || r.vol.leaving.Load() {
		return entry{}, false
	}
	if at := r.packed; at != nil {
		e, ok := makeEntry(r.id, r.gen, at.p.at, at.off, r.length, r.usual)
		return e, ok && at.length == r.length
	}
	e, ok := makeEntry(r.id, r.gen, r.vol.at, 0, r.length, r.usual)
	return e, ok && r.suffix == sufMeta
}

// admitResting enters a replica found on a volume that is at rest there: finalized, durable, its files of the right sizes; at is where it lies if that is a pack. It makes a handle only
// where the block is here already. Errors are those of admit.
func (s *Store) admitResting(v *volume, at *slot, b metadata.Block) error {
	place, off := v.at, int64(0)
	if at != nil {
		place, off = at.p.at, at.off
	}
	if e, ok := makeEntry(b.ID, b.Generation, place, off, b.Length, false); ok && !v.inMemory() && s.enterResting(v, e) {
		return nil
	}
	r := &replica{vol: v, id: b.ID, gen: b.Generation, length: b.Length, state: datanode.Finalized, packed: at}
	if at == nil {
		r.suffix = sufMeta
	}
	return s.admit(r)
}

// enterResting enters and counts a replica, unless the block is here or nothing may come to the volume any more.
func (s *Store) enterResting(v *volume, e entry) bool {
	sh := s.shard(e.id)
	sh.mu.Lock()
	entered := sh.replicas[e.id] == nil && !v.leaving.Load() && v.failed.Load() == nil && sh.resting.put(e)
	sh.mu.Unlock()
	if !entered {
		return false
	}
	v.replicas.Add(1)
	v.used.Add(e.length() + sumsSize(e.length()))
	return true
}

// enterAllResting is enterResting for the replicas of an index that lie at a place: shard by shard, because what it waits for is memory, and a shard's is less. It returns those that were not entered;
// of one block they are in order.
func (s *Store) enterAllResting(v *volume, place uint32, all []listed) (left []listed) {
	if v.inMemory() {
		return all
	}
	shardOf := func(e *listed) int { return int(mix(e.id) >> (64 - shardBits)) }
	var ends [1 << shardBits]int32
	for i := range all {
		ends[shardOf(&all[i])]++
	}
	sum := int32(0)
	for i, n := range ends {
		ends[i] = sum // where those of the shard begin, as long as none is there
		sum += n
	}
	order := make([]int32, len(all))
	for i := range all {
		end := &ends[shardOf(&all[i])]
		order[*end] = int32(i)
		*end++
	}
	begin := int32(0)
	for i, end := range ends {
		mine := order[begin:end]
		begin = end
		if len(mine) == 0 {
			continue
		}
		entered, used := int64(0), int64(0)
		sh := &s.shards[i]
		sh.mu.Lock()
		comes := !v.leaving.Load() && v.failed.Load() == nil
		for _, k := range mine {
			one := &all[k]
			e, ok := makeEntry(one.id, one.gen, place, one.at, one.length, false)
			if !ok || !comes || sh.replicas[one.id] != nil || !sh.resting.put(e) {
				left = append(left, *one)
				continue
			}
			entered++
			used += one.length + sumsSize(one.length)
		}
		sh.mu.Unlock()
		v.replicas.Add(entered)
		v.used.Add(used)
	}
	return left
}

// forgetResting forgets the replicas at rest of a volume that is leaving: no other one will rest there.
func (s *Store) forgetResting(v *volume) {
	var ids []metadata.BlockID
	for i := range s.shards {
		sh := &s.shards[i]
		ids = s.idsOn(sh, ids[:0], v) // whoever has got a handle meanwhile, or has gone, is none of them below
		sh.mu.Lock()
		for _, id := range ids {
			if e, ok := sh.resting.get(id); ok && s.places.at(e).v == v {
				sh.resting.remove(id)
				v.replicas.Add(-1)
			}
		}
		sh.mu.Unlock()
	}
}

// is reports whether a handle is that of its block, and its volume works.
func (s *Store) is(r *replica) bool {
	sh := s.shard(r.id)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	return sh.replicas[r.id] == r && r.vol.failed.Load() == nil
}

// whereIs is the volume of a block's replica, which may have failed, and the one that it is leaving memory for; nil if there is none.
func (s *Store) whereIs(id metadata.BlockID) (v, onto *volume) {
	sh := s.shard(id)
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	if r := sh.replicas[id]; r != nil {
		return r.vol, r.onto.Load()
	}
	if e, ok := sh.resting.get(id); ok {
		return s.places.at(e).v, nil
	}
	return nil, nil
}

// idsOn appends the blocks of a shard that have a replica on a volume.
func (s *Store) idsOn(sh *shard, ids []metadata.BlockID, v *volume) []metadata.BlockID {
	sh.mu.RLock()
	defer sh.mu.RUnlock()
	for id, r := range sh.replicas {
		if r.vol == v {
			ids = append(ids, id)
		}
	}
	sh.resting.all(func(e entry) {
		if s.places.at(e).v == v {
			ids = append(ids, e.id)
		}
	})
	return ids
}
