package blockmanager

import (
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
)

// Whatever wakes and rests, the table has what a plain map has.
func TestQuietBlocksAreAsTheyWere(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	s, want := newBlocks(), map[metadata.BlockID]block{}
	change := func(b *block) {
		b.generation, b.length, b.want = metadata.Generation(r.Int64()), r.Int64(), uint16(r.IntN(512))
		b.health, b.priority, b.open = health(r.IntN(int(healths))), int8(r.IntN(priorities+1)-1), r.IntN(8) == 0
		b.good = b.good[:0]
		for range r.IntN(5) {
			b.good = append(b.good, place(r.Int32()))
		}
		if b.more = nil; r.IntN(8) == 0 {
			b.more = &more{odd: []odd{{at: 3}}}
		}
	}
	note := func(id metadata.BlockID, b *block) {
		c := *b
		c.good = slices.Clone(b.good)
		want[id] = c
	}
	same := func(id metadata.BlockID, b *block) {
		t.Helper()
		w, ok := want[id]
		if ok != (b != nil) {
			t.Fatalf("%d: there %v, want %v", id, b != nil, ok)
		}
		if ok && (!slices.Equal(b.good, w.good) || b.generation != w.generation || b.length != w.length || b.want != w.want || b.health != w.health ||
			b.priority != w.priority || b.open != w.open || !reflect.DeepEqual(b.more, w.more)) {
			t.Fatalf("%d: %+v, want %+v", id, b, w)
		}
	}
	for step := range 200_000 {
		id := metadata.BlockID(1<<30 + r.Int64N(1500))
		if r.IntN(20) == 0 {
			id = -id
		}
		switch r.IntN(8) {
		case 0, 1:
			b := s.borrow(id)
			same(id, b)
			if b == nil {
				b = &block{}
				s.put(id, b)
			}
			change(b)
			if other := s.borrow(id + 1); other != nil { // one while another is lent
				same(id+1, other)
				s.rest(id+1, other)
			}
			note(id, b)
			same(id, s.peek(id))
			s.rest(id, b)
		case 2, 3:
			if b := s.get(id); b != nil {
				same(id, b)
				change(b)
				note(id, b)
			}
		case 4:
			if b := s.borrow(id); b != nil {
				s.drop(id)
				delete(want, id)
				s.rest(id, b)
			}
		case 5:
			s.drop(id)
			delete(want, id)
		case 6:
			same(id, s.peek(id))
		case 7:
			if r.IntN(100) == 0 {
				s.sweep()
			}
		}
		if step%20_000 == 0 {
			n := 0
			for id, b := range s.all() {
				same(id, b)
				n++
			}
			if n != len(want) || s.n != n {
				t.Fatalf("%d blocks, counted %d, want %d", n, s.n, len(want))
			}
		}
	}
	for id := range want {
		s.drop(id)
	}
	if len(s.pages)+len(s.awake)+s.n != 0 || s.busy {
		t.Fatalf("something is left of %d pages, %d awake", len(s.pages), len(s.awake))
	}
}

// BenchmarkBlockMemory is what a block with three replicas takes.
func BenchmarkBlockMemory(b *testing.B) {
	const blocks = 1_000_000
	for b.Loop() {
		heap := func() uint64 {
			var s runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&s)
			return s.HeapAlloc
		}
		before := heap()
		m, now := fleet(30, 0, 3)
		for id := range metadata.BlockID(blocks) {
			blk := metadata.Block{ID: id + 1, Generation: 1, Length: 1 << 20}
			m.Put(now, Block{Block: blk, Replication: 3})
			for r := range 3 {
				n := m.order[(int(id)*7+r*11)%30]
				m.apply(n.order[0].place, namenode.Replica{Block: blk, State: namenode.Finalized})
			}
		}
		for range 2000 {
			m.Tick(now)
		}
		b.ReportMetric(float64(heap()-before)/blocks, "B/block")
		runtime.KeepAlive(m)
	}
}
