package blockmanager

import (
	"iter"
	"math"

	"github.com/RoaringBitmap/roaring/v2/roaring64"

	"github.com/gohops/hops/metadata"
)

// idSet is a set of block ids in ascending order. Ids are handed out one after the other, so that a compressed bitmap takes two bytes for each at
// most where many are in it. The zero value is empty.
type idSet struct {
	bits *roaring64.Bitmap
	n    int
}

// bitOf keeps the order of ids, negative ones included.
func bitOf(id metadata.BlockID) uint64 { return uint64(id) ^ 1<<63 }

func idOf(bit uint64) metadata.BlockID { return metadata.BlockID(bit ^ 1<<63) }

// add reports whether the id is new.
func (s *idSet) add(id metadata.BlockID) bool {
	if s.bits == nil {
		s.bits = roaring64.New()
	}
	added := s.bits.CheckedAdd(bitOf(id))
	if added {
		s.n++
	}
	return added
}

// drop reports whether the id was there.
func (s *idSet) drop(id metadata.BlockID) bool {
	dropped := s.bits != nil && s.bits.CheckedRemove(bitOf(id))
	if dropped {
		s.n--
	}
	return dropped
}

func (s *idSet) has(id metadata.BlockID) bool { return s.bits != nil && s.bits.Contains(bitOf(id)) }

func (s *idSet) len() int { return s.n }

func (s *idSet) clear() { *s = idSet{} }

// after appends up to limit ids above id to list, in ascending order.
func (s *idSet) after(id metadata.BlockID, list []metadata.BlockID, limit int) []metadata.BlockID {
	if s.bits == nil || id == math.MaxInt64 {
		return list
	}
	at := s.bits.Iterator()
	for at.AdvanceIfNeeded(bitOf(id + 1)); at.HasNext() && len(list) < limit; {
		list = append(list, idOf(at.Next()))
	}
	return list
}

// list is all of them, in ascending order.
func (s *idSet) list() []metadata.BlockID {
	return s.after(math.MinInt64, make([]metadata.BlockID, 0, s.n), math.MaxInt)
}

// without is what the set has and the other has not, in ascending order.
func (s *idSet) without(o *idSet) []metadata.BlockID {
	switch {
	case s.bits == nil:
		return nil
	case o.bits == nil:
		return s.list()
	}
	rest := idSet{bits: roaring64.AndNot(s.bits, o.bits)}
	return rest.list()
}

// at is the id with i below it, of those that are there.
func (s *idSet) at(i int) metadata.BlockID {
	bit, err := s.bits.Select(uint64(i))
	if err != nil {
		return math.MaxInt64
	}
	return idOf(bit)
}

// idsAtOnce is how many ids all looks up at a time.
const idsAtOnce = 1024

// all goes through the ids in ascending order. The set may change between two of them.
func (s *idSet) all() iter.Seq[metadata.BlockID] { return s.from(math.MinInt64) }

// from is all without the ids below one.
func (s *idSet) from(id metadata.BlockID) iter.Seq[metadata.BlockID] {
	return func(yield func(metadata.BlockID) bool) {
		var buf [idsAtOnce]metadata.BlockID
		for last := max(id, math.MinInt64+1) - 1; ; {
			some := s.after(last, buf[:0], idsAtOnce)
			for _, id := range some {
				if s.has(id) && !yield(id) {
					return
				}
			}
			if len(some) < idsAtOnce {
				return
			}
			last = some[len(some)-1]
		}
	}
}
