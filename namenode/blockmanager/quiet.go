package blockmanager

import (
	"iter"
	"slices"

	"github.com/gohops/hops/metadata"
)

// blocks are all blocks that the namespace has. Nearly all of them are quiet: complete, and every replica known is what is wanted. Such a block
// is a slot of 32 bytes in a page of its neighbours, in which the collector finds no pointers. What somebody works on, or has something special, is
// awake besides, and its slot is not looked at.
//
//	quiet ──get, borrow──▶ awake ──rest (Put, a report, a sweep by each Tick)──▶ quiet
//	      ──peek──▶ a copy to look at
//
// A block of get or borrow is good until the call of Manager that asked for it ends, one of peek until the next peek.
type blocks struct {
	awake map[metadata.BlockID]*block
	pages map[int64]*page
	n     int
	// lent is the block that borrow gives away, if busy, seen that of peek.
	lent, seen     block
	lentAt, seenAt [quietReplicas]place
	busy           bool
}

const (
	pageBits      = 8
	quietReplicas = 3
)

// page has the slots of up to 256 ids, in their order.
type page struct{ slots []slot }

type slot struct {
	generation metadata.Generation
	length     int64
	good       [quietReplicas]place
	want       uint16 // replicas (12 bits), storage policy (4)
	low        uint8  // of the id
	state      uint8  // number of replicas (2 bits), health (2), priority + 1 (3)
}

// maxPolicy is the highest number of a storage policy.
const maxPolicy = 15

func newBlocks() blocks {
	return blocks{awake: map[metadata.BlockID]*block{}, pages: map[int64]*page{}}
}

// slot finds the slot of a block; nil: there is no such block.
func (s *blocks) slot(id metadata.BlockID) *slot {
	p := s.pages[int64(id)>>pageBits]
	if p == nil {
		return nil
	}
	at, ok := p.find(uint8(id))
	if !ok {
		return nil
	}
	return &p.slots[at]
}

func (p *page) find(low uint8) (int, bool) {
	return slices.BinarySearchFunc(p.slots, low, func(q slot, low uint8) int { return int(q.low) - int(low) })
}

func (q *slot) read(b *block, room []place) {
	*b = block{
		generation: q.generation, length: q.length, want: q.want & (1<<12 - 1), policy: uint8(q.want >> 12),
		health: health(q.state >> 2 & 3), priority: int8(q.state>>4) - 1,
		good: append(room, q.good[:q.state&3]...),
	}
}

func (q *slot) write(b *block) {
	q.generation, q.length, q.want = b.generation, b.length, b.want|uint16(b.policy)<<12
	q.state = uint8(len(b.good)) | uint8(b.health)<<2 | uint8(b.priority+1)<<4
	copy(q.good[:], b.good)
}

func (b *block) quiet() bool { return !b.open && b.more == nil && len(b.good) <= quietReplicas }

// get finds a block; nil: there is none.
func (s *blocks) get(id metadata.BlockID) *block {
	if b := s.awake[id]; b != nil {
		return b
	}
	q := s.slot(id)
	if q == nil {
		return nil
	}
	b := &block{}
	q.read(b, nil)
	s.awake[id] = b
	return b
}

// borrow is get for a caller that calls rest when it is done. It allots nothing for a quiet block.
func (s *blocks) borrow(id metadata.BlockID) *block {
	if s.busy || s.awake[id] != nil {
		return s.get(id)
	}
	q := s.slot(id)
	if q == nil {
		return nil
	}
	q.read(&s.lent, s.lentAt[:0])
	s.awake[id], s.busy = &s.lent, true
	return &s.lent
}

// rest ends the work on a block of get or borrow.
func (s *blocks) rest(id metadata.BlockID, b *block) {
	borrowed := b == &s.lent
	s.busy = s.busy && !borrowed
	switch {
	case s.awake[id] != b: // it is gone
	case b.quiet():
		s.slot(id).write(b)
		delete(s.awake, id)
	case borrowed:
		kept := *b
		kept.good = slices.Clone(b.good)
		s.awake[id] = &kept
	}
}

// peek finds a block for somebody who only looks at it; nil: there is none.
func (s *blocks) peek(id metadata.BlockID) *block {
	if b := s.awake[id]; b != nil {
		return b
	}
	q := s.slot(id)
	if q == nil {
		return nil
	}
	q.read(&s.seen, s.seenAt[:0])
	return &s.seen
}

// put adds a block.
func (s *blocks) put(id metadata.BlockID, b *block) {
	number := int64(id) >> pageBits
	p := s.pages[number]
	if p == nil {
		p = &page{}
		s.pages[number] = p
	}
	at, there := p.find(uint8(id))
	if !there {
		if len(p.slots) == cap(p.slots) { // ids come one after the other: a page is filled at once, or stays small
			p.slots = slices.Grow(p.slots, min(max(len(p.slots)/2, 4), 1<<pageBits-len(p.slots)))
		}
		p.slots = slices.Insert(p.slots, at, slot{low: uint8(id)})
		s.n++
	}
	s.awake[id] = b
}

func (s *blocks) drop(id metadata.BlockID) {
	delete(s.awake, id)
	number := int64(id) >> pageBits
	p := s.pages[number]
	if p == nil {
		return
	}
	at, there := p.find(uint8(id))
	if !there {
		return
	}
	s.n--
	if p.slots = slices.Delete(p.slots, at, at+1); len(p.slots) == 0 {
		delete(s.pages, number)
	} else if len(p.slots) <= cap(p.slots)/4 {
		p.slots = append(make([]slot, 0, 2*len(p.slots)), p.slots...)
	}
}

// all goes through all blocks, in no order, as peek shows them.
func (s *blocks) all() iter.Seq2[metadata.BlockID, *block] {
	return func(yield func(metadata.BlockID, *block) bool) {
		for number, p := range s.pages {
			for i := range p.slots {
				id := metadata.BlockID(number<<pageBits | int64(p.slots[i].low))
				if !yield(id, s.peek(id)) {
					return
				}
			}
		}
	}
}

// sweepAwake is how many blocks that are awake a Tick looks at, besides a tenth of them.
const sweepAwake = 2000

// sweep lets blocks rest that nobody works on any more.
func (s *blocks) sweep() {
	left := sweepAwake + len(s.awake)/10
	for id, b := range s.awake { // begins somewhere else each time
		if left--; left < 0 {
			return
		}
		s.rest(id, b)
	}
}
