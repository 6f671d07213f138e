package blockstore

import (
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gohops/hops/metadata"
)

// Most replicas are at rest: finalized, durably named, and nobody is at work on them. Such a one is an entry of its shard's table, 24 bytes without a pointer, of
// which the collector knows nothing; who wants more of it than a look gets a handle (replica) made of the entry, which is one again when the handle is put away.

// entry is a replica at rest.
type entry struct {
	id metadata.BlockID
	// a is the generation, and in its low bits the place, which is never 0: an entry with 0 here is empty.
	a uint64
	// b is the length, then the page of the pack where the record begins, then whether its checksums are known to be the usual ones.
	b uint64
}

const (
	placeBits  = 24
	genBits    = 64 - placeBits
	pageBits   = 23
	lengthBits = 64 - pageBits - 1
)

// makeEntry is false if something does not fit.
func makeEntry(id metadata.BlockID, gen metadata.Generation, place uint32, off, length int64, usual bool) (entry, bool) {
	page := uint64(off) / packAlign
	if uint64(gen)>>genBits != 0 || place == 0 || place>>placeBits != 0 || page>>pageBits != 0 || uint64(off)%packAlign != 0 || uint64(length)>>lengthBits != 0 {
		return entry{}, false
	}
	e := entry{id: id, a: uint64(gen)<<placeBits | uint64(place), b: uint64(length)<<(pageBits+1) | page<<1}
	if usual {
		e.b |= 1
	}
	return e, true
}

func (e entry) gen() metadata.Generation { return metadata.Generation(e.a >> placeBits) }
func (e entry) place() uint32            { return uint32(e.a & (1<<placeBits - 1)) }
func (e entry) length() int64            { return int64(e.b >> (pageBits + 1)) }
func (e entry) off() int64               { return int64(e.b>>1&(1<<pageBits-1)) * packAlign }
func (e entry) usual() bool              { return e.b&1 != 0 }
func (e entry) empty() bool              { return e.a == 0 }

// block is the entry's block.
func (e entry) block() metadata.Block {
	return metadata.Block{ID: e.id, Generation: e.gen(), Length: e.length()}
}

// table is a set of entries by block id, with open addressing: an entry lies where its hash says, or behind, with no empty slot between. Slots are in the order of the
// hashes, so growing reads and writes memory from the start to the end. The zero value is empty.
type table struct {
	slots []entry
	n     int
}

// Of 100 slots so many are in use at least and at most, else there is a new array. It is asked for with fillNew, and has all the room that the allocator gives, up to a quarter more: still
// more than fillLeast are in use then. So an entry takes 28 to 40 bytes.
const (
	fillLeast = 61
	fillNew   = 77
	fillMost  = 86
	slotsMin  = 8
	entrySize = 24
)

// mix spreads block ids, which come in sequences, over 64 bits. The upper ones choose the shard, the others the slot.
func mix(id metadata.BlockID) uint64 {
	x := uint64(id)
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	return x ^ x>>32
}

// home is the slot where an entry is to be.
func (t *table) home(id metadata.BlockID) int {
	hi, _ := bits.Mul64(mix(id)<<shardBits, uint64(len(t.slots)))
	return int(hi)
}

func (t *table) next(i int) int {
	if i++; i < len(t.slots) {
		return i
	}
	return 0
}

// find is the slot of an entry, -1 if there is none.
func (t *table) find(id metadata.BlockID) int {
	if t.n == 0 {
		return -1
	}
	for i := t.home(id); !t.slots[i].empty(); i = t.next(i) {
		if t.slots[i].id == id {
			return i
		}
	}
	return -1
}

func (t *table) get(id metadata.BlockID) (entry, bool) {
	if i := t.find(id); i >= 0 {
		return t.slots[i], true
	}
	return entry{}, false
}

// put enters an entry, unless there is one of the block.
func (t *table) put(e entry) bool {
	if (t.n+1)*100 > len(t.slots)*fillMost {
		t.rebuild(t.n + 1)
	}
	i := t.home(e.id)
	for ; !t.slots[i].empty(); i = t.next(i) {
		if t.slots[i].id == e.id {
			return false
		}
	}
	t.slots[i] = e
	t.n++
	return true
}

// remove takes an entry out. What lies behind it moves up, as far as its home lets it.
func (t *table) remove(id metadata.BlockID) (entry, bool) {
	at := t.find(id)
	if at < 0 {
		return entry{}, false
	}
	e := t.slots[at]
	for i := t.next(at); !t.slots[i].empty(); i = t.next(i) {
		h := t.home(t.slots[i].id)
		if between := at < h && h <= i || i < at && (at < h || h <= i); !between {
			t.slots[at], at = t.slots[i], i
		}
	}
	t.slots[at] = entry{}
	if t.n--; len(t.slots) > slotsMin && t.n*100 < len(t.slots)*fillLeast {
		t.rebuild(t.n)
	}
	return e, true
}

// rebuild makes an array for n entries.
func (t *table) rebuild(n int) {
	old := t.slots
	t.slots = slices.Grow([]entry(nil), max(n*100/fillNew+1, slotsMin))
	t.slots = t.slots[:cap(t.slots)]
	clear(t.slots)
	for _, e := range old {
		if e.empty() {
			continue
		}
		i := t.home(e.id)
		for !t.slots[i].empty() {
			i = t.next(i)
		}
		t.slots[i] = e
	}
}

// all calls f for each entry, which must not change the table.
func (t *table) all(f func(entry)) {
	for _, e := range t.slots {
		if !e.empty() {
			f(e)
		}
	}
}

// place is where replicas lie: in files of their own on a volume, or in a pack of it.
type place struct {
	v *volume
	p *pack
}

// places gives places numbers, from 1 on. A number is given again only when nobody has it any more: that of a pack when no record of it is in use, and all of a volume when it was taken out of the store.
// They lie in leaves, of which none moves, so that whoever looks one up waits for nobody, and one more, or one less, costs the same among a million.
type places struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*leaf] // only made longer
	last uint32                  // the highest number so far
	free []uint32
}

const leafBits = 8

// leaf is 256 places; nil: nobody has the number.
type leaf [1 << leafBits]atomic.Pointer[place]

// slot is where the place of a number that was given lies.
func (p *places) slot(n uint32) *atomic.Pointer[place] {
	return &(*p.list.Load())[(n-1)>>leafBits][(n-1)%(1<<leafBits)]
}

// at is the place of an entry that is in a table now; of one that was, it may be nowhere, or another one.
func (p *places) at(e entry) place {
	if one := p.slot(e.place()).Load(); one != nil {
		return *one
	}
	return place{}
}

func (p *places) add(one place) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var n uint32
	if last := len(p.free) - 1; last >= 0 {
		n, p.free = p.free[last], p.free[:last]
	} else {
		if p.last%(1<<leafBits) == 0 {
			var list []*leaf
			if old := p.list.Load(); old != nil {
				list = *old
			}
			list = append(list, new(leaf)) // behind the end of every list that somebody has
			p.list.Store(&list)
		}
		p.last++
		n = p.last
	}
	p.slot(n).Store(&one)
	return n
}

// drop takes out the place of a number, if that is it still.
func (p *places) drop(n uint32, one place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n == 0 || n > p.last {
		return
	}
	if at := p.slot(n); at.Load() != nil && *at.Load() == one {
		at.Store(nil)
		p.free = append(p.free, n)
	}
}

// remove takes out a volume with its packs, and returns these.
func (p *places) remove(v *volume) []*pack {
	p.mu.Lock()
	defer p.mu.Unlock()
	var packs []*pack
	for n := uint32(1); n <= p.last; n++ {
		at := p.slot(n)
		one := at.Load()
		if one == nil || one.v != v {
			continue
		}
		if one.p != nil {
			packs = append(packs, one.p)
		}
		at.Store(nil)
		p.free = append(p.free, n)
	}
	return packs
}

// packs are those of all volumes.
func (p *places) packs() []*pack {
	p.mu.Lock()
	defer p.mu.Unlock()
	var packs []*pack
	for n := uint32(1); n <= p.last; n++ {
		if one := p.slot(n).Load(); one != nil && one.p != nil {
			packs = append(packs, one.p)
		}
	}
	return packs
}
