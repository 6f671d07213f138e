package blockstore

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/metadata"
)

const benchBlock = 128 << 20

func BenchmarkWriteBlock(b *testing.B) {
	h := open(b, vfs.OS, b.TempDir())
	data := pattern(64 << 10)
	sums := sumsOf(data)
	for _, name := range []string{"written", "finalized", "unsynced"} {
		final := name != "written"
		h.cfg.Unsynced = name == "unsynced"
		id := int64(1)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(benchBlock)
			for b.Loop() {
				w := must[datanode.Writer](b)(h.Create(block(id, 1, 0), datanode.CreateOptions{}))
				for off := int64(0); off < benchBlock; off += 64 << 10 {
					check(b, w.Write(off, data, sums))
					w.Acked(off + 64<<10)
				}
				if final {
					must[datanode.Replica](b)(w.Finalize())
				}
				b.StopTimer()
				check(b, w.Close())
				check(b, h.Delete(block(id, 1, 0)))
				b.StartTimer()
			}
		})
	}
}

// BenchmarkFile is what dd does, with and without fsync: the yardstick.
func BenchmarkFile(b *testing.B) {
	data := pattern(1 << 20)
	for _, final := range []bool{false, true} {
		name := "written"
		if final {
			name = "synced"
		}
		b.Run(name, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "f")
			b.SetBytes(benchBlock)
			for b.Loop() {
				f, err := os.Create(path)
				check(b, err)
				for range benchBlock >> 20 {
					_, err = f.Write(data)
					check(b, err)
				}
				if final {
					check(b, f.Sync())
				}
				b.StopTimer()
				check(b, f.Close())
				check(b, os.Remove(path))
				b.StartTimer()
			}
		})
	}
}

var openReplicas = flag.Int("replicas", 20_000, "how many replicas BenchmarkOpen finds on its volume")

// BenchmarkOpen opens a volume of -replicas replicas in files (without data), or in packs, by a scan and with an index. All is in the page cache. It reports the time and the heap per replica,
// and in indexed the time of the shutdown that has to write the whole index.
func BenchmarkOpen(b *testing.B) {
	for _, kind := range []struct {
		name string
		fill func(b *testing.B, h *harness, n int)
	}{{"files", fillFiles}, {"packs", fillPacks}} {
		b.Run(kind.name, func(b *testing.B) {
			dir := b.TempDir()
			h := open(b, vfs.OS, dir)
			kind.fill(b, h, *openReplicas)
			for young := 1; young > 0; time.Sleep(indexSure / 8) { // until all is old enough to be indexed
				var err error
				young, err = h.index(context.Background(), h.all()[0], indexSure, func(time.Duration) {})
				check(b, err)
			}
			check(b, h.Shutdown())
			removeIndexes(b, vfs.OS, dir)
			b.Run("scanned", func(b *testing.B) { benchOpen(b, dir, false) })
			h = open(b, vfs.OS, dir)
			began := time.Now()
			check(b, h.Shutdown())
			last := time.Since(began)
			b.Run("indexed", func(b *testing.B) {
				benchOpen(b, dir, true)
				b.ReportMetric(last.Seconds(), "s/shutdown")
			})
		})
	}
}

func benchOpen(b *testing.B, dir string, indexed bool) {
	var before, after runtime.MemStats
	var cpu time.Duration
	for b.Loop() {
		b.StopTimer()
		runtime.GC()
		runtime.ReadMemStats(&before)
		if !indexed {
			removeIndexes(b, vfs.OS, dir)
		}
		began := processorTime(b)
		b.StartTimer()
		h := open(b, vfs.OS, dir)
		b.StopTimer()
		cpu += processorTime(b) - began
		runtime.GC()
		runtime.ReadMemStats(&after)
		if n := h.all()[0].replicas.Load(); n != int64(*openReplicas) {
			b.Fatalf("%d replicas", n)
		}
		if taken, scanned := parts(h.Store); indexed && scanned > 0 || !indexed && taken > 0 {
			b.Fatalf("%d parts taken from the index, %d scanned", taken, scanned)
		}
		h.all()[0].index.busy.Store(true) // nothing is written at the end
		check(b, h.Shutdown())
		b.StartTimer()
	}
	n := float64(*openReplicas)
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/n, "us/replica")
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N)/n, "cpu-us/replica")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/replica")
}

// processorTime is what the process has used so far.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	check(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func fillFiles(b *testing.B, h *harness, n int) {
	v := h.all()[0]
	for id := metadata.BlockID(1); id <= metadata.BlockID(n); id++ {
		check(b, v.ensureDir(id))
		check(b, os.WriteFile(v.dataPath(id), nil, 0o600))
		check(b, os.WriteFile(v.sumsPath(id, 1, sufMeta), encodeHeader(id, datanode.DefaultChecksum), 0o600))
	}
}

func fillPacks(b *testing.B, h *harness, n int) {
	v := h.all()[0]
	data := pattern(100)
	for id := metadata.BlockID(1); id <= metadata.BlockID(n); id++ {
		at, err := v.addRecord(id, 1, sumsOf(data), data)
		check(b, err)
		check(b, at.finish())
		if id%1000 == 0 {
			check(b, at.p.sync())
		}
	}
	p := v.pack
	v.pack = nil
	p.release()
}
