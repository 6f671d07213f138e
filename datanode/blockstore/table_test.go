package blockstore

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/gohops/hops/metadata"
)

func TestEntryHoldsWhatFits(t *testing.T) {
	for _, c := range []struct {
		gen         uint64
		place       uint32
		off, length int64
		fits        bool
	}{
		{1001, 1, 0, 128 << 20, true},
		{0, 1, 0, 0, true},
		{1<<genBits - 1, 1<<placeBits - 1, (1<<pageBits - 1) * packAlign, 1<<lengthBits - 1, true},
		{1 << genBits, 1, 0, 1, false},
		{math.MaxUint64, 1, 0, 1, false},
		{1, 0, 0, 1, false},
		{1, 1 << placeBits, 0, 1, false},
		{1, 1, 100, 1, false},
		{1, 1, 1 << pageBits * packAlign, 1, false},
		{1, 1, 0, 1 << lengthBits, false},
		{1, 1, 0, -1, false},
		{1, 1, -packAlign, 1, false},
	} {
		for _, id := range []metadata.BlockID{0, 1, -1, math.MinInt64, math.MaxInt64} {
			for _, usual := range []bool{false, true} {
				e, ok := makeEntry(id, metadata.Generation(c.gen), c.place, c.off, c.length, usual)
				if ok != c.fits {
					t.Errorf("%+v fits: %v", c, ok)
				}
				if ok && (e.id != id || uint64(e.gen()) != c.gen || e.place() != c.place || e.off() != c.off || e.length() != c.length || e.usual() != usual || e.empty()) {
					t.Errorf("%+v became generation %d, place %d, offset %d, length %d, usual %v", c, e.gen(), e.place(), e.off(), e.length(), e.usual())
				}
			}
		}
	}
}

// A table is a map, whatever comes and goes, in order or not, and takes no more than 40 bytes an entry.
func TestTableIsAMap(t *testing.T) {
	for seed := range uint64(50) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			var tab table
			want := map[metadata.BlockID]entry{}
			ids := 1 + r.Int64N(3000)
			step := []int64{1, 16, -16, 1 << 20, 1 << 54, 0x9e3779b97f4a7c1}[r.IntN(6)]
			grow := 500
			for i := range 20_000 {
				if i%2000 == 0 {
					grow = r.IntN(1000)
				}
				id := metadata.BlockID(r.Int64N(ids) * step)
				got, ok := tab.get(id)
				old, there := want[id]
				if ok != there || got != old {
					t.Fatalf("%d: got %v, %v, want %v, %v", id, got, ok, old, there)
				}
				switch more := r.IntN(1000) < grow; {
				case more && there:
					if tab.put(entry{id: id, a: 1}) {
						t.Fatalf("%d: put twice", id)
					}
				case more && !there:
					e, _ := makeEntry(id, metadata.Generation(r.Uint64N(1<<genBits)), 1+r.Uint32N(1<<placeBits-1), r.Int64N(1<<pageBits)*packAlign, r.Int64N(1<<lengthBits), r.IntN(2) == 0)
					if want[id] = e; !tab.put(e) {
						t.Fatalf("%d: not put", id)
					}
				case !more:
					if got, ok := tab.remove(id); ok != there || got != old {
						t.Fatalf("%d: removed %v, %v, want %v, %v", id, got, ok, old, there)
					}
					delete(want, id)
				}
				if tab.n != len(want) || len(tab.slots) > slotsMin && entrySize*len(tab.slots) > 40*max(tab.n, slotsMin) {
					t.Fatalf("%d slots for %d entries, of which %d are there", len(tab.slots), tab.n, len(want))
				}
			}
			all := map[metadata.BlockID]entry{}
			tab.all(func(e entry) { all[e.id] = e })
			if !maps.Equal(all, want) {
				t.Fatalf("%d entries listed, %d are there, or others", len(all), len(want))
			}
			for id := range want {
				tab.remove(id)
			}
			if tab.n != 0 || len(tab.slots) > slotsMin {
				t.Fatalf("%d slots, %d entries when all have gone", len(tab.slots), tab.n)
			}
		})
	}
}

func TestPlacesGiveANumberAgainWhenItIsFree(t *testing.T) {
	var p places
	v, w := &volume{}, &volume{}
	a, b := &pack{v: v}, &pack{v: w}
	numbers := []uint32{p.add(place{v: v}), p.add(place{v, a}), p.add(place{v: w}), p.add(place{w, b})}
	for i, n := range numbers {
		if n != uint32(i+1) {
			t.Fatalf("numbers %v", numbers)
		}
	}
	if packs := p.remove(v); len(packs) != 1 || packs[0] != a {
		t.Errorf("of a volume with one pack %d were removed", len(packs))
	}
	p.drop(2, place{v, a}) // which has gone with its volume
	if packs := p.remove(v); len(packs) != 0 {
		t.Errorf("and %d again", len(packs))
	}
	e, _ := makeEntry(1, 1, 4, packAlign, 1, true)
	if got := p.at(e); got != (place{w, b}) {
		t.Errorf("another place has changed: %v", got)
	}
	if n := p.add(place{v: v}); n != 1 && n != 2 {
		t.Errorf("new number %d", n)
	}
	p.add(place{v: v})
	if n := p.add(place{v: v}); n != 5 {
		t.Errorf("new number %d when none is free", n)
	}
	p.drop(4, place{v, b}) // it is another one's
	p.drop(0, place{})     // of a pack that has none
	if got := p.packs(); len(got) != 1 || got[0] != b {
		t.Errorf("packs %v", got)
	}
	p.drop(4, place{w, b})
	if got := p.at(e); got != (place{}) || len(p.packs()) > 0 {
		t.Errorf("a place that was dropped is %v", got)
	}
	if n := p.add(place{v: w}); n != 4 {
		t.Errorf("new number %d, not that of the one that was dropped", n)
	}
}

// What a place costs does not grow with their number: neither to come nor to go, while others look.
func TestPlacesAreNotCopied(t *testing.T) {
	const n = 20_000
	var p places
	v := &volume{}
	packs := make([]*pack, n)
	for i := range packs {
		packs[i] = &pack{v: v}
	}
	p.add(place{v: v})
	stop := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		for r := rand.New(rand.NewPCG(1, 2)); ; runtime.Gosched() {
			select {
			case <-stop:
				return
			default:
			}
			p.mu.Lock()
			last := p.last
			p.mu.Unlock()
			if one := p.at(entry{a: 1 + r.Uint64N(uint64(last))}); one != (place{}) && one.v != v {
				t.Errorf("a place is %v", one)
			}
		}
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 2 {
		for _, k := range packs {
			k.at = p.add(place{v, k})
		}
		for i := range packs { // the first one last
			k := packs[n-1-i]
			if got := p.at(entry{a: uint64(k.at)}); got != (place{v, k}) {
				t.Fatalf("the place of pack %d is %v", i, got)
			}
			p.drop(k.at, place{v, k})
		}
	}
	runtime.ReadMemStats(&after)
	close(stop)
	g.Wait()
	if each := (after.TotalAlloc - before.TotalAlloc) / (2 * n); each > 200 {
		t.Errorf("%d bytes were allocated for each", each)
	}
	if p.last != n+1 {
		t.Errorf("%d numbers for %d places", p.last, n+1)
	}
}
