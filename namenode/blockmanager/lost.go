package blockmanager

import (
	"math/bits"
	"slices"

	"github.com/gohops/hops/metadata"
)

// lostSet holds block ids, and lists them in ascending order from any of them on without looking at the others. Ids are handed
// out one after the other, so that pages of bits are small: 512 bytes where few blocks of a page are lost, a bit for each where all are.
type lostSet struct {
	pages map[int64]*lostPage
	order []int64 // of the pages
}

const lostBits = 4096

type lostPage struct {
	bits [lostBits / 64]uint64
	n    int
}

func (s *lostSet) add(id metadata.BlockID) {
	number, bit := int64(id)>>12, uint64(id)%lostBits
	p := s.pages[number]
	if p == nil {
		if s.pages == nil {
			s.pages = map[int64]*lostPage{}
		}
		p = &lostPage{}
		s.pages[number] = p
		i, _ := slices.BinarySearch(s.order, number)
		s.order = slices.Insert(s.order, i, number)
	}
	if mask := uint64(1) << (bit % 64); p.bits[bit/64]&mask == 0 {
		p.bits[bit/64] |= mask
		p.n++
	}
}

func (s *lostSet) drop(id metadata.BlockID) {
	number, bit := int64(id)>>12, uint64(id)%lostBits
	p := s.pages[number]
	if p == nil {
		return
	}
	if mask := uint64(1) << (bit % 64); p.bits[bit/64]&mask != 0 {
		p.bits[bit/64] &^= mask
		p.n--
	}
	if p.n == 0 {
		delete(s.pages, number)
		i, _ := slices.BinarySearch(s.order, number)
		s.order = slices.Delete(s.order, i, i+1)
	}
}

// after appends up to limit ids above id to list, in ascending order.
func (s *lostSet) after(id metadata.BlockID, list []metadata.BlockID, limit int) []metadata.BlockID {
	i, _ := slices.BinarySearch(s.order, int64(id)>>12)
	for ; i < len(s.order); i++ {
		number := s.order[i]
		for word, set := range s.pages[number].bits {
			for ; set != 0; set &= set - 1 {
				found := metadata.BlockID(number<<12 | int64(word<<6|bits.TrailingZeros64(set)))
				if found <= id {
					continue
				}
				if len(list) == limit {
					return list
				}
				list = append(list, found)
			}
		}
	}
	return list
}

// Lost lists up to limit complete blocks without a good replica, those that Statistics counts as missing, in ascending order of their ids above
// after.
func (m *Manager) Lost(after metadata.BlockID, limit int) []metadata.BlockID {
	return m.lost.after(after, nil, limit)
}
