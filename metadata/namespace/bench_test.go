package namespace

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

const benchBatch = 64

// cpu makes a benchmark report the processor time of an operation, which a busy machine does not change much.
func cpu(b *testing.B) func() {
	start := processorTime(b)
	return func() { b.ReportMetric(float64(processorTime(b)-start)/float64(b.N), "cpu-ns/op") }
}

func processorTime(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func benchNamespace(b *testing.B) *Namespace {
	ns := fresh(b, mem.New(), 0)
	ns.Apply(1, [][]byte{encode(b, command(super, &logpb.Mkdirs{Target: to("/a/b/c"), Mode: 0o777, CreateParent: true}))})
	return ns
}

func encode(b *testing.B, cmd *logpb.Command) []byte {
	data, err := cmd.MarshalVT()
	if err != nil {
		b.Fatal(err)
	}
	return data
}

// One operation is a create and the complete that closes the file, with answers kept for repetition, in entries of 64
// commands.
func BenchmarkCreateComplete(b *testing.B) {
	ns := benchNamespace(b)
	next := uint64(ns.meta.nextINode)
	entries := make([][][]byte, 0, 2*b.N/benchBatch+2)
	var creates, completes [][]byte
	flush := func() {
		entries = append(entries, creates, completes)
		creates, completes = nil, nil
	}
	for i := range b.N {
		client := fmt.Sprintf("DFSClient_NONMAPREDUCE_%d_1", i%256)
		c := command(bob, create(fmt.Sprintf("/a/b/c/part-%08d", i), client))
		c.ClientId, c.CallId, c.Now = fmt.Appendf(nil, "client%010d", i%256), int32(i), int64(i)
		creates = append(creates, encode(b, c))
		completes = append(completes, encode(b, command(bob, &logpb.Complete{Inode: next + uint64(i), ClientName: client})))
		if len(creates) == benchBatch {
			flush()
		}
	}
	flush()
	b.ReportAllocs()
	b.ResetTimer()
	defer cpu(b)()
	for i, e := range entries {
		for _, r := range ns.Apply(uint64(i+2), e) {
			if r := r.(*Result); r.Err != nil || !r.OK {
				b.Fatal(r.Err)
			}
		}
	}
}

func BenchmarkCreate(b *testing.B) {
	ns := benchNamespace(b)
	var entries [][][]byte
	var creates [][]byte
	for i := range b.N {
		c := command(bob, create(fmt.Sprintf("/a/b/c/part-%08d", i), fmt.Sprintf("DFSClient_NONMAPREDUCE_%d_1", i%256)))
		c.ClientId, c.CallId, c.Now = fmt.Appendf(nil, "client%010d", i%256), int32(i), int64(i)
		if creates = append(creates, encode(b, c)); len(creates) == benchBatch || i == b.N-1 {
			entries = append(entries, creates)
			creates = nil
		}
	}
	b.ReportAllocs()
	b.ResetTimer()
	defer cpu(b)()
	for i, e := range entries {
		ns.Apply(uint64(i+2), e)
	}
	b.StopTimer()
	if c := ns.Counts(); c.Files != int64(b.N) {
		b.Fatal(c)
	}
}

// depth-5 paths in a namespace of 200 directories of 500 files.
func statNamespace(b *testing.B) (*Namespace, []string) { return fillStat(b, benchNamespace(b)) }

func fillStat(b *testing.B, ns *Namespace) (*Namespace, []string) {
	var paths []string
	var commands [][]byte
	for d := range 200 {
		for f := range 500 {
			path := fmt.Sprintf("/a/b/c/dir-%04d/part-%05d", d, f)
			paths = append(paths, path)
			commands = append(commands, encode(b, command(super, create(path, "c"))))
		}
	}
	for i := 0; i < len(commands); i += 1000 {
		ns.Apply(ns.AppliedIndex()+1, commands[i:i+1000])
	}
	return ns, paths
}

func BenchmarkStat(b *testing.B) {
	ns, paths := statNamespace(b)
	b.ReportAllocs()
	i := 0
	defer cpu(b)()
	for b.Loop() {
		i = (i + 7919) % len(paths)
		if st, err := ns.Stat(bob, paths[i]); st == nil || err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStatParallel(b *testing.B) {
	ns, paths := statNamespace(b)
	b.ResetTimer()
	defer cpu(b)()
	b.RunParallel(func(pb *testing.PB) {
		i := 0
		for pb.Next() {
			i = (i + 7919) % len(paths)
			if st, err := ns.Stat(bob, paths[i]); st == nil || err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkList1000(b *testing.B) {
	ns := benchNamespace(b)
	var commands [][]byte
	for i := range 3000 {
		commands = append(commands, encode(b, command(super, create(fmt.Sprintf("/a/b/c/part-%05d", i), "c"))))
	}
	ns.Apply(2, commands)
	b.ReportAllocs()
	for b.Loop() {
		if l, err := ns.List(bob, "/a/b/c", "part-01000", 1000); err != nil || len(l.Entries) != 1000 || l.Remaining != 999 {
			b.Fatal(l, err)
		}
	}
}

// Memory per closed file without blocks, everything resident and written.
func BenchmarkMemoryPerFile(b *testing.B) {
	for b.Loop() {
		before := heap()
		ns, paths := statNamespace(b)
		files := uint64(len(paths))
		paths = nil
		var completes [][]byte
		for id := range ns.leases["c"].files {
			completes = append(completes, encode(b, command(super, &logpb.Complete{Inode: uint64(id), ClientName: "c"})))
		}
		ns.Apply(ns.AppliedIndex()+1, completes)
		completes = nil
		takeSnapshot(b, ns, io.Discard)
		ns.cfg.Store, ns.view = nil, nil // the store is not what is measured
		b.ReportMetric(float64(heap()-before)/float64(files), "B/file")
		runtime.KeepAlive(ns)
		runtime.KeepAlive(paths)
		runtime.KeepAlive(completes)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// smallDirectories are 6250 directories of 16 files.
func smallDirectories(b *testing.B) (ns *Namespace, dirs []string) {
	ns = benchNamespace(b)
	var commands [][]byte
	for d := range 6250 {
		dirs = append(dirs, fmt.Sprintf("/a/b/c/w%02d/d%d", d%64, d))
		for f := range 16 {
			commands = append(commands, encode(b, command(super, create(fmt.Sprintf("%s/f%d", dirs[d], f), "c"))))
		}
	}
	for i := 0; i < len(commands); i += 1000 {
		ns.Apply(uint64(i/1000+2), commands[i:i+1000])
	}
	return ns, dirs
}

// Files of small directories, in no order: nothing of their paths is in the processor's caches.
func BenchmarkStatSmallDirectories(b *testing.B) {
	ns, dirs := smallDirectories(b)
	var paths []string
	for f := range 16 {
		for _, d := range dirs {
			paths = append(paths, fmt.Sprintf("%s/f%d", d, f))
		}
	}
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
	b.ReportAllocs()
	i := 0
	defer cpu(b)()
	for b.Loop() {
		if i++; i == len(paths) {
			i = 0
		}
		if st, err := ns.Stat(bob, paths[i]); st == nil || err != nil {
			b.Fatal(err)
		}
	}
}

// A page of 16 out of 6250 directories, in no order.
func BenchmarkList16(b *testing.B) {
	ns, dirs := smallDirectories(b)
	var room [16]metadata.FileStatus
	b.ReportAllocs()
	i := 0
	defer cpu(b)()
	for b.Loop() {
		i = (i + 3907) % len(dirs)
		if l, err := ns.ListInto(room[:], bob, dirs[i], "", 1000); err != nil || len(l.Entries) != 16 {
			b.Fatal(l, err)
		}
	}
}

// coldNamespace is a namespace of 200 directories of 500 files on disk, with next to nothing in memory.
func coldNamespace(b *testing.B) (*Namespace, []string) {
	dir := b.TempDir()
	store, err := badger.Open(dir, badger.Options{Apart: Apart, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { store.Close() })
	ns, paths := fillStat(b, fresh(b, store, 0))
	takeSnapshot(b, ns, io.Discard)
	return fresh(b, store, 1<<20), paths
}

// A file that is not in memory; the directories are, mostly.
func BenchmarkColdStat(b *testing.B) {
	ns, paths := coldNamespace(b)
	var took []time.Duration
	i := 0
	defer cpu(b)()
	for b.Loop() {
		i = (i + 7919) % len(paths)
		began := time.Now()
		if st, err := ns.Stat(bob, paths[i]); st == nil || err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
}

// A file is made in a directory that is not in memory: the store has to say that the name is free.
func BenchmarkColdCreate(b *testing.B) {
	ns, _ := coldNamespace(b)
	var entries [][][]byte
	var creates [][]byte
	for i := range b.N {
		c := command(super, create(fmt.Sprintf("/a/b/c/dir-%04d/new-%08d", i%200, i), fmt.Sprintf("DFSClient_NONMAPREDUCE_%d_1", i%256)))
		if creates = append(creates, encode(b, c)); len(creates) == benchBatch || i == b.N-1 {
			entries = append(entries, creates)
			creates = nil
		}
	}
	b.ResetTimer()
	defer cpu(b)()
	for _, e := range entries {
		ns.Apply(ns.AppliedIndex()+1, e)
	}
}
