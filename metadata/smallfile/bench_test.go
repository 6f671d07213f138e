package smallfile

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

const benchBody = 4 << 10

func benchStore(b *testing.B, n, size int) (*Store, []metadata.BlockID) {
	b.Helper()
	s := open(b, Config{Dir: b.TempDir(), SegmentBytes: defaultSegment})
	b.Cleanup(func() { s.Close() })
	body := slices.Clone(noise[:size])
	ids := make([]metadata.BlockID, n)
	for i := range ids {
		ids[i] = firstID + metadata.BlockID(i)
		s.Put(ids[i], body)
	}
	if err := s.Sync(); err != nil {
		b.Fatal(err)
	}
	return s, ids
}

// One operation is a Put of 4 KiB, with what writing it takes of the writer; at the end everything is synced.
func BenchmarkPut(b *testing.B) {
	s := open(b, Config{Dir: b.TempDir(), SegmentBytes: defaultSegment})
	defer s.Close()
	body := slices.Clone(noise[:benchBody])
	b.SetBytes(benchBody)
	b.ReportAllocs()
	id := firstID
	for b.Loop() {
		s.Put(id, body)
		id++
	}
	if err := s.Sync(); err != nil {
		b.Fatal(err)
	}
}

// One operation is a Get of 4 KiB of 20,000 in any order, from the page cache.
func BenchmarkGet(b *testing.B) {
	s, ids := benchStore(b, 20_000, benchBody)
	r := rand.New(rand.NewPCG(1, 1))
	b.ReportAllocs()
	var took []time.Duration
	for b.Loop() {
		id := ids[r.IntN(len(ids))]
		begin := time.Now()
		if _, err := s.Get(id); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
}

// One operation is a GetMany of 64 bodies of 4 KiB: neighbours, or any.
func BenchmarkGetMany(b *testing.B) {
	for _, near := range []bool{true, false} {
		b.Run(map[bool]string{true: "neighbours", false: "any"}[near], func(b *testing.B) {
			s, ids := benchStore(b, 20_000, benchBody)
			r := rand.New(rand.NewPCG(1, 1))
			want := make([]metadata.BlockID, 64)
			b.SetBytes(64 * benchBody)
			n := 0
			for b.Loop() {
				from := r.IntN(len(ids) - len(want))
				for i := range want {
					if want[i] = ids[from+i]; !near {
						want[i] = ids[r.IntN(len(ids))]
					}
				}
				s.GetMany(want, func(i int, body []byte, err error) {
					if err != nil || len(body) != benchBody {
						b.Error(err)
					}
					n++
				})
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "bodies/s")
		})
	}
}

// One operation opens a store with a million bodies; memory is what it has on the heap then.
func BenchmarkOpenMillion(b *testing.B) {
	const n = 1_000_000
	dir := b.TempDir()
	s := open(b, Config{Dir: dir, SegmentBytes: 4 << 20})
	body := slices.Clone(noise[:100])
	for i := range metadata.BlockID(n) {
		s.Put(firstID+i, body)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	var opened []*Store
	b.ResetTimer()
	for range b.N {
		opened = append(opened, open(b, Config{Dir: dir, SegmentBytes: 4 << 20}))
	}
	b.StopTimer()
	if f := s.Figures(); f.Bodies != n {
		b.Fatalf("%+v", f)
	}
	b.ReportMetric(float64(heap()-before)/float64(len(opened))/n, "bytes/body")
	b.ReportMetric(float64(s.Figures().Segments), "segments")
	for _, s := range opened {
		s.Close()
	}
}

// One operation looks a body up among 4,096 segments, of which one in 16 spans many others, as compaction makes them.
func BenchmarkLookup(b *testing.B) {
	const segments, each = 4096, 256
	var all []*segment
	for i := range metadata.BlockID(segments) {
		step := metadata.BlockID(1)
		if i%16 == 0 {
			step = 64
		}
		var entries []entry
		for j := range metadata.BlockID(each) {
			entries = append(entries, entry{id: firstID + i*each + j*step, at: recordsBegin, length: 1})
		}
		all = append(all, &segment{seq: uint64(i), index: newIndex(entries)})
	}
	t := newTable(all)
	r := rand.New(rand.NewPCG(1, 1))
	b.ReportAllocs()
	var took []time.Duration
	for b.Loop() {
		id := firstID + metadata.BlockID(r.IntN(segments*each))
		begin := time.Now()
		var found [4]place
		if len(t.places(id, found[:0])) > 8 {
			b.Fatal("too many")
		}
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
}
