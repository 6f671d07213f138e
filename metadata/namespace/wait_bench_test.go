package namespace

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// others are clients who do small things beside a large one: one reads, one changes.
type others struct {
	b      *testing.B
	ns     *Namespace
	mu     sync.Mutex // the order of the log
	index  uint64
	stop   atomic.Bool
	ended  sync.WaitGroup
	read   time.Duration
	change time.Duration
	// lateness is what a goroutine that does nothing but sleep was late: what of the rest the scheduler made.
	lateness time.Duration
}

// apply appends an entry to the log, and returns how long it took, without waiting for others' entries.
func (o *others) apply(commands ...*logpb.Command) ([]any, time.Duration) {
	data := make([][]byte, len(commands))
	for i, c := range commands {
		data[i] = encode(o.b, c)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.index++
	began := time.Now()
	results := o.ns.Apply(o.index, data)
	return results, time.Since(began)
}

// beside runs fn while the others work, and returns the longest that one of them had to wait.
func (o *others) beside(fn func()) {
	o.stop.Store(false)
	o.read, o.change, o.lateness = 0, 0, 0
	o.ended.Go(func() {
		for !o.stop.Load() {
			time.Sleep(200 * time.Microsecond)
			began := time.Now()
			if _, err := o.ns.Stat(super, "/others"); err != nil {
				o.b.Error(err)
				return
			}
			o.read = max(o.read, time.Since(began))
		}
	})
	o.ended.Go(func() {
		for i := 0; !o.stop.Load(); i++ {
			time.Sleep(200 * time.Microsecond)
			began := time.Now()
			results, _ := o.apply(command(super, &logpb.SetTimes{Target: to("/others"), Mtime: int64(i), Atime: -1}))
			if r := results[0].(*Result); r.Err != nil {
				o.b.Error(r.Err)
				return
			}
			o.change = max(o.change, time.Since(began))
		}
	})
	o.ended.Go(func() {
		for !o.stop.Load() {
			began := time.Now()
			time.Sleep(200 * time.Microsecond)
			o.lateness = max(o.lateness, time.Since(began)-200*time.Microsecond)
		}
	})
	fn()
	o.stop.Store(true)
	o.ended.Wait()
}

func (o *others) report(took time.Duration) {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	o.b.ReportMetric(ms(o.read), "read-ms")
	o.b.ReportMetric(ms(o.change), "change-ms")
	o.b.ReportMetric(ms(o.lateness), "idle-goroutine-ms")
	o.b.ReportMetric(took.Seconds(), "took-s")
}

// largeNamespace is bob's directory /large of so many files, in directories of so many, and a small one.
func largeNamespace(b *testing.B, files, perDirectory int, memory int64) (*others, *badger.Store) {
	store, err := badger.Open(b.TempDir(), badger.Options{Apart: Apart, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	o := &others{b: b, ns: fresh(b, store, memory)}
	o.apply(command(super, &logpb.Mkdirs{Target: to("/others"), Mode: 0o777}), command(super, &logpb.Mkdirs{Target: to("/large"), Mode: 0o777}),
		command(super, &logpb.SetOwner{Target: to("/large"), Owner: "bob"}))
	var entry []*logpb.Command
	for i := range files {
		if i%perDirectory == 0 {
			entry = append(entry, command(bob, &logpb.Mkdirs{Target: to(fmt.Sprintf("/large/d%06d", i/perDirectory)), Mode: 0o755}))
		}
		entry = append(entry, command(bob, create(fmt.Sprintf("/large/d%06d/part-%08d", i/perDirectory, i), "c")))
		if len(entry) >= 1000 || i == files-1 {
			var completes []*logpb.Command
			results, _ := o.apply(entry...)
			for _, r := range results {
				if r := r.(*Result); r.Err != nil {
					b.Fatal(r.Err)
				} else if r.Status != nil {
					completes = append(completes, command(bob, &logpb.Complete{Inode: uint64(r.Status.ID), ClientName: "c"}))
				}
			}
			o.apply(completes...)
			entry = entry[:0]
		}
	}
	return o, store
}

func (o *others) checkpoint() {
	o.mu.Lock()
	s, err := o.ns.Freeze()
	o.mu.Unlock()
	if err != nil {
		o.b.Fatal(err)
	}
	defer s.Release()
	if _, err := s.(*snapshot).Write(); err != nil {
		o.b.Fatal(err)
	}
}

func largeFiles() int {
	if *benchFiles > 0 {
		return *benchFiles
	}
	return 1_000_000
}

// A tree of a million files is deleted by its owner, and taken apart, while others work: in memory, changed since the last checkpoint or not,
// and in the checkpoint alone.
func BenchmarkOthersWhileDeleting(b *testing.B) {
	for _, c := range []struct {
		name         string
		perDirectory int
		saved, cold  bool
	}{{"one directory", 1 << 30, true, false}, {"directories of 1000", 1000, true, false}, {"not saved", 1000, false, false}, {"cold", 1000, true, true}} {
		b.Run(c.name, func(b *testing.B) {
			o, store := largeNamespace(b, largeFiles(), c.perDirectory, 0)
			if c.saved {
				o.checkpoint()
			}
			if c.cold {
				o.ns = fresh(b, store, 256<<20)
			}
			b.ResetTimer()
			began := time.Now()
			o.beside(func() {
				results, _ := o.apply(command(bob, &logpb.SurveyTree{Target: to("/large")}))
				r := results[0].(*Result)
				if _, err := o.ns.Survey(bob, r.INode); err != nil {
					b.Fatal(err)
				}
				if results, _ = o.apply(command(super, &logpb.Delete{Target: to("/large"), Recursive: true, Survey: r.Survey})); !results[0].(*Result).OK {
					b.Fatal(results[0])
				}
				for o.ns.Counts().Reclaiming > 0 {
					o.apply(command(super, &logpb.Reclaim{Limit: ReclaimAtOnce})) // as a leader that has nothing else to do
				}
			})
			o.report(time.Since(began))
		})
	}
}

// A directory of a million entries that is not in memory is listed while others work.
func BenchmarkOthersWhileListing(b *testing.B) {
	for _, memory := range []int64{0, 64 << 20} {
		b.Run(fmt.Sprintf("%d MiB", memory>>20), func(b *testing.B) {
			o, store := largeNamespace(b, largeFiles(), 1<<30, 0)
			o.checkpoint()
			o.ns = fresh(b, store, memory)
			b.ResetTimer()
			began := time.Now()
			n := 0
			o.beside(func() {
				for after, more := "", true; more; {
					l, err := o.ns.List(bob, "/large/d000000", after, 1000)
					if err != nil {
						b.Fatal(err)
					}
					n += len(l.Entries)
					if more = l.Remaining > 0; more {
						after = l.Entries[len(l.Entries)-1].Name
					}
				}
			})
			if n != largeFiles() {
				b.Fatalf("%d entries", n)
			}
			o.report(time.Since(began))
		})
	}
}

// All that a million new files are is written while others work.
func BenchmarkOthersWhileCheckpointing(b *testing.B) {
	o, _ := largeNamespace(b, largeFiles(), 1000, 0)
	b.ResetTimer()
	began := time.Now()
	o.beside(o.checkpoint)
	o.report(time.Since(began))
}

// Files of many blocks are forgotten, and read again, while others work.
func BenchmarkOthersWhileFilesOfManyBlocksComeAndGo(b *testing.B) {
	const files, blocks = 64, MaxBlocks
	store, err := badger.Open(b.TempDir(), badger.Options{Apart: Apart, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	o := &others{b: b, ns: fresh(b, store, 0)}
	results, _ := o.apply(command(super, &logpb.ReserveIDs{Blocks: files * blocks, Generations: files * blocks}), command(super, &logpb.Mkdirs{Target: to("/others"), Mode: 0o777}),
		command(super, &logpb.Mkdirs{Target: to("/large"), Mode: 0o777}))
	next := logpb.Block{Id: int64(results[0].(*Result).Reserved.FirstBlock), Generation: uint64(results[0].(*Result).Reserved.FirstGeneration)}
	for f := range files {
		results, _ := o.apply(command(super, create(fmt.Sprintf("/large/f%d", f), "c")))
		id := uint64(results[0].(*Result).Status.ID)
		var entry []*logpb.Command
		var last *logpb.Block
		for range blocks {
			entry = append(entry, command(super, &logpb.AddBlock{Inode: id, ClientName: "c", Previous: last, Block: &logpb.Block{Id: next.Id, Generation: next.Generation}}))
			last = &logpb.Block{Id: next.Id, Generation: next.Generation, Length: 1 << 20}
			next.Id++
			next.Generation++
		}
		results, _ = o.apply(append(entry, command(super, &logpb.Complete{Inode: id, ClientName: "c", Last: last}))...)
		for _, r := range results {
			if r := r.(*Result); r.Err != nil {
				b.Fatal(r.Err)
			}
		}
	}
	o.checkpoint()
	o.ns = fresh(b, store, 8<<20)
	b.ResetTimer()
	began := time.Now()
	o.beside(func() {
		for round := range 4 {
			for f := range files {
				if _, err := o.ns.Stat(super, fmt.Sprintf("/large/f%d", f)); err != nil {
					b.Fatal(round, err)
				}
			}
		}
	})
	o.report(time.Since(began))
}

// A publish that looks at as much as one may, or deletes as many trees as it may, is applied while others work.
func BenchmarkOthersWhilePublishing(b *testing.B) {
	for _, c := range []struct {
		name string
		who  metadata.Caller
		ops  func(o *others, do func(metadata.Caller, any) *Result) []any
	}{
		{"deletions of trees", bob, func(o *others, do func(metadata.Caller, any) *Result) []any { return deletedTrees(o.b, do, 128) }},
		{"renames of a tree", super, func(o *others, do func(metadata.Caller, any) *Result) (ops []any) {
			for _, dir := range []string{"/bobs/a", "/bobs/b"} {
				do(super, &logpb.Mkdirs{Target: to(dir), Mode: 0o777, CreateParent: true})
				do(super, &logpb.SetQuota{Target: to(dir), Names: 1 << 20, Space: 1 << 50})
			}
			for i := range 1000 {
				do(super, &logpb.Mkdirs{Target: to(fmt.Sprintf("/bobs/a/d/%d", i)), Mode: 0o777, CreateParent: true})
			}
			one, other := "/bobs/a/d", "/bobs/b/d"
			for range maxPublishLooks/(looksPerEntry*1000+looksPerDirectory+2*looksPerName*4) - 1 {
				ops = append(ops, renameOf(one, other))
				one, other = other, one
			}
			return ops
		}},
		{"deep paths", super, func(o *others, do func(metadata.Caller, any) *Result) (ops []any) {
			deep := strings.Repeat("/x", 990)
			do(super, &logpb.Mkdirs{Target: to(deep), Mode: 0o777, CreateParent: true})
			for range maxPublishLooks/looksPerName/1000 - 1 {
				ops = append(ops, attributeOf(deep, "a", "1"))
			}
			return ops
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var read, change, late, took time.Duration
			for b.Loop() {
				b.StopTimer()
				o := &others{b: b, ns: fresh(b, mem.New(), 0)}
				o.apply(command(super, &logpb.Mkdirs{Target: to("/others"), Mode: 0o777}))
				op := publishOf(c.ops(o, func(who metadata.Caller, op any) *Result {
					results, _ := o.apply(command(who, op))
					return results[0].(*Result)
				})...)
				b.StartTimer()
				o.beside(func() {
					time.Sleep(5 * time.Millisecond)
					results, t := o.apply(command(c.who, op))
					if r := results[0].(*Result); r.Err != nil {
						b.Fatal(r.Err)
					}
					took += t
				})
				read, change, late = max(read, o.read), max(change, o.change), max(late, o.lateness)
			}
			ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
			b.ReportMetric(ms(read), "read-ms")
			b.ReportMetric(ms(change), "change-ms")
			b.ReportMetric(ms(late), "idle-goroutine-ms")
			b.ReportMetric(ms(took)/float64(b.N), "apply-ms")
		})
	}
}
