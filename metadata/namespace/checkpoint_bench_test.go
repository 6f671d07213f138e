package namespace

import (
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/metadata/kv/badger"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

var (
	benchFiles  = flag.Int("files", 0, "how many files BenchmarkCheckpoint's namespace has before")
	benchRounds = flag.Int("rounds", 6, "how many checkpoints BenchmarkCheckpoint writes")
	benchMemory = flag.Int64("memory", 0, "the budget of BenchmarkCheckpoint's namespace in MiB; 0: none")
	benchHeap   = flag.String("heap", "", "the file for a profile of BenchmarkCheckpoint's heap")
	benchAgain  = flag.Bool("again", false, "BenchmarkCheckpoint changes the same files in each round in place of new ones")
	benchGone   = flag.Bool("gone", false, "BenchmarkCheckpoint deletes files all over in each round in place of new ones, a quarter of a million each: -files has to be as many as all rounds delete")
)

// cpuTime is what the process has used.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// settled waits until the store has merged what it wanted to merge, and returns the processor time then.
func settled(b *testing.B) time.Duration {
	for used := cpuTime(b); ; {
		time.Sleep(200 * time.Millisecond)
		now := cpuTime(b)
		if now-used < 10*time.Millisecond {
			return now
		}
		used = now
	}
}

// checkpointCost is what a checkpoint takes: processor time, time, bytes that become garbage, and the processor time to collect them.
type checkpointCost struct {
	cpu, wall, collecting time.Duration
	garbage               uint64
}

// collected runs the collector, and returns how many bytes are live and how long it took.
func collected(b *testing.B) (live uint64, took time.Duration) {
	runtime.GC()
	start := cpuTime(b)
	runtime.GC()
	took = cpuTime(b) - start
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, took
}

// collecting is the processor time that the collector has taken until its last cycle ended, by the runtime's estimate.
func collecting() time.Duration {
	sample := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}}
	metrics.Read(sample)
	return time.Duration(sample[0].Value.Float64() * float64(time.Second))
}

// diskUse is how many bytes of tables there are.
func diskUse(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".sst" {
			if info, err := d.Info(); err == nil {
				sum += info.Size()
			}
		}
		return nil
	})
	return sum
}

// longestStat asks for a file again and again until fn returns, and gives the longest that one answer took.
func longestStat(b *testing.B, ns *Namespace, path string, fn func()) (longest time.Duration) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond): // more often, it would be a tenth of what a checkpoint costs
			}
			began := time.Now()
			if _, err := ns.Stat(super, path); err != nil {
				b.Error(err)
				return
			}
			longest = max(longest, time.Since(began))
		}
	}()
	fn()
	close(stop)
	<-ended
	return longest
}

// BenchmarkCheckpoint writes what 64 MiB of log changed, as a raft group does while the two newest snapshots refer to their versions:
//
//	go test -run '^$' -bench Checkpoint -benchtime 1x ./metadata/namespace -args -files 1000000
//
// Its figure is processor time for each file that was created and closed, or changed, with all that the store merges because of it. The collector does
// not run meanwhile, unless there is a limit (GOMEMLIMIT), where it has to: what it would cost to collect the garbage that was made, at GOGC=100, is a figure of its own. So a collection of the whole
// namespace that happens to fall into a checkpoint is not taken for a part of it; where there is a limit, the figure is too high by that. Afterwards it asks for files that are in memory, for any, for
// one after a restart, and then for any, of which nearly none are in memory.
func BenchmarkCheckpoint(b *testing.B) {
	dir := b.TempDir()
	store, err := badger.Open(dir, badger.Options{Apart: Apart, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { store.Close() }()
	ns, err := Open(Config{Store: store, Owner: "hops", Supergroup: "supergroup", Memory: *benchMemory << 20})
	if err != nil {
		b.Fatal(err)
	}
	ns.Apply(1, [][]byte{encode(b, command(super, &logpb.Mkdirs{Target: to("/a/b/c"), Mode: 0o777, CreateParent: true}))})
	index, files := uint64(1), 0
	path := func(i int) string { return fmt.Sprintf("/a/b/c/w%d/d%d/f%d", i%64, i/65536, i) }
	makeFiles := func() (bytes int) {
		var creates, completes [][]byte
		next := uint64(ns.meta.nextINode)
		for range benchBatch {
			client := fmt.Sprintf("DFSClient_NONMAPREDUCE_%d_1", files%64)
			c := command(bob, create(path(files), client))
			c.ClientId, c.CallId, c.Now = fmt.Appendf(nil, "client%010d", files%64), int32(files), int64(files)
			creates = append(creates, encode(b, c))
			completes = append(completes, encode(b, command(bob, &logpb.Complete{Inode: next + uint64(len(completes)), ClientName: client})))
			files++
		}
		if files%(1<<14) < benchBatch {
			ns.FitMemory()
		}
		for _, e := range [][][]byte{creates, completes} {
			index++
			ns.Apply(index, e)
			for _, c := range e {
				bytes += len(c) + 30
			}
		}
		return bytes
	}
	gone := 0
	deleteFiles := func() {
		var deletes [][]byte
		for range benchBatch {
			deletes = append(deletes, encode(b, command(super, &logpb.Delete{Target: to(path(gone * 7919 % *benchFiles))})))
			gone++
		}
		index++
		ns.Apply(index, deletes)
	}
	changed := 0
	changeFiles := func() (bytes int) {
		var changes [][]byte
		for range benchBatch {
			c := command(super, &logpb.SetTimes{Target: to(path(changed * 7919 % max(*benchFiles, 1))), Mtime: int64(changed), Atime: -1})
			changes = append(changes, encode(b, c))
			bytes += len(changes[len(changes)-1]) + 30
			changed++
		}
		index++
		ns.Apply(index, changes)
		return bytes
	}
	var kept []uint64
	var wait, idle time.Duration // the longest while a checkpoint is written, and while nothing is
	write := func() {
		s, err := ns.Freeze()
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.(*snapshot).Write(); err != nil {
			b.Fatal(err)
		}
		s.Release()
		kept = append(kept, index)
		kept = kept[max(0, len(kept)-2):]
		ns.Retain(kept)
	}
	checkpoint := func() (c checkpointCost) {
		live, collection := collected(b)
		if debug.SetMemoryLimit(-1) == math.MaxInt64 {
			defer debug.SetGCPercent(debug.SetGCPercent(-1))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		idle = max(idle, longestStat(b, ns, "/a/b/c", func() { time.Sleep(time.Second) }))
		collectedBefore := collecting()
		start, began := settled(b), time.Now()
		wait = max(wait, longestStat(b, ns, "/a/b/c", write))
		c.wall = time.Since(began)
		end := settled(b)
		runtime.ReadMemStats(&after)
		c.garbage = after.TotalAlloc - before.TotalAlloc
		c.collecting = time.Duration(float64(collection) * float64(c.garbage) / float64(live))
		if after.NumGC > before.NumGC { // with a limit on memory it did run: that is what it cost, in place of what it would have
			runtime.GC() // what the one before took is known when the next one ends
			c.collecting = collecting() - collectedBefore - (cpuTime(b) - end)
		}
		c.cpu = end - start
		if after.NumGC > before.NumGC {
			c.cpu -= c.collecting
		}
		return c
	}
	for files < *benchFiles {
		makeFiles()
		if files%(1<<18) < benchBatch {
			write()
		}
	}
	write()
	b.ResetTimer()
	var total checkpointCost
	done := 0
	for n := range *benchRounds {
		bytes, ops := 0, 0
		for bytes < 64<<20 && (!*benchGone || ops < 1<<18) {
			switch {
			case *benchGone:
				deleteFiles()
			case *benchAgain:
				bytes += changeFiles()
			default:
				bytes += makeFiles()
			}
			ops += benchBatch
		}
		c := checkpoint()
		total.cpu, total.collecting, total.garbage = total.cpu+c.cpu, total.collecting+c.collecting, total.garbage+c.garbage
		done += ops
		b.Logf("round %d: %d ops, checkpoint %.1f us/op, %v, %d MB on disk", n, ops, float64(c.cpu.Microseconds())/float64(ops), c.wall, diskUse(dir)>>20)
	}
	b.ReportMetric(float64(total.cpu)/float64(done), "cpu-ns/file")
	b.ReportMetric(float64(total.collecting)/float64(done), "gc-ns/file")
	b.ReportMetric(float64(total.garbage)/float64(done), "garbage-B/file")
	b.ReportMetric(float64(wait.Microseconds())/1000, "longest-ms")
	b.ReportMetric(float64(idle.Microseconds())/1000, "longest-idle-ms")

	// What is asked for afterwards: files that are in memory, any others, and the first one after a restart.
	ask := func(n, of int) (took []time.Duration) {
		for range n {
			file := path(rand.IntN(of)) //nolint:gosec // not a secret
			began := time.Now()
			if st, err := ns.Stat(super, file); st == nil && !*benchGone || err != nil {
				b.Fatal(file, err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		return took
	}
	any := ask(20_000, files)
	ask(20_000, 1000)
	hot := ask(200_000, 1000)
	live, _ := collected(b)
	b.ReportMetric(float64(any[len(any)/2].Nanoseconds()), "any-stat-p50-ns")
	b.ReportMetric(float64(any[len(any)*99/100].Nanoseconds()), "any-stat-p99-ns")
	b.ReportMetric(float64(hot[len(hot)/2].Nanoseconds()), "hot-stat-p50-ns")
	b.ReportMetric(float64(live)/(1<<20), "live-MiB")
	all, anonymous, peak := resident(b)
	b.ReportMetric(float64(all)/(1<<20), "resident-MiB")
	b.ReportMetric(float64(anonymous)/(1<<20), "anonymous-MiB")
	b.ReportMetric(float64(peak)/(1<<20), "most-resident-MiB")
	logMemory(b)
	if err := store.Close(); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	if store, err = badger.Open(dir, badger.Options{Apart: Apart, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		b.Fatal(err)
	}
	b.Logf("the store is open after %v", time.Since(began))
	if ns, err = Open(Config{Store: store, Owner: "hops", Supergroup: "supergroup", Memory: *benchMemory << 20}); err != nil {
		b.Fatal(err)
	}
	b.Logf("the namespace after %v", time.Since(began))
	ask(1, files)
	b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "restart-ms")
	cold := ask(20_000, files)
	b.ReportMetric(float64(cold[len(cold)/2].Nanoseconds()), "cold-stat-p50-ns")
	b.ReportMetric(float64(cold[len(cold)*99/100].Nanoseconds()), "cold-stat-p99-ns")
}

// logMemory says what the process has in memory: the runtime's accounts, mappings by kind of file, and a profile of the heap in -heap.
func logMemory(b *testing.B) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.Logf("heap: %d MiB live, %d in use, %d idle of which %d returned, %d of the runtime", m.HeapAlloc>>20, m.HeapInuse>>20, m.HeapIdle>>20, m.HeapReleased>>20, (m.Sys-m.HeapSys)>>20)
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		b.Fatal(err)
	}
	kinds := map[string]int64{}
	kind := ""
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) > 1 && f[0] == "Rss:" {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			kinds[kind] += n
		} else if !strings.HasSuffix(f[0], ":") {
			if kind = "anonymous"; len(f) > 5 {
				kind = "*" + filepath.Ext(f[5])
			}
		}
	}
	for k, n := range kinds {
		b.Logf("resident of %s: %d MiB", k, n>>10)
	}
	if *benchHeap != "" {
		f, err := os.Create(*benchHeap)
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		if err := pprof.WriteHeapProfile(f); err != nil {
			b.Fatal(err)
		}
	}
}

// resident is how much memory the process has, how much of it is of no file, because what is mapped of tables is the page cache's, and how much
// it ever had.
func resident(b *testing.B) (all, anonymous, most int64) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		var n int64
		if _, err := fmt.Sscanf(value, "%d kB", &n); err != nil {
			continue
		}
		switch name {
		case "VmRSS":
			all = n << 10
		case "RssAnon":
			anonymous = n << 10
		case "VmHWM":
			most = n << 10
		}
	}
	return all, anonymous, most
}
