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
// and in indexed the time of the shutdown that has to write the whole index, and how much of it was written then: what it has no time for is indexed before that is measured.
func BenchmarkOpen(b *testing.B) {
	for _, kind := range []struct {
		name string
		fill func(b *testing.B, h *harness, n int)
	}{{"files", fillFiles}, {"packs", fillPacks}} {
		b.Run(kind.name, func(b *testing.B) {
			dir := b.TempDir()
			h := open(b, vfs.OS, dir)
			kind.fill(b, h, *openReplicas)
			time.Sleep(indexSure + indexSure/8) // all is old enough to be indexed
			shutNoIndex(b, h)
			b.Run("scanned", func(b *testing.B) { benchOpen(b, dir, false) })
			removeIndexes(b, vfs.OS, dir)
			h = open(b, vfs.OS, dir)
			began := time.Now()
			check(b, h.Shutdown())
			last := time.Since(began)
			h = open(b, vfs.OS, dir)
			done, left := parts(h.Store)
			for rest := left; rest > 0; {
				_, err := h.index(context.Background(), h.all()[0], indexSure, func(time.Duration) {})
				check(b, err)
				check(b, h.Shutdown())
				h = open(b, vfs.OS, dir)
				before := rest
				if _, rest = parts(h.Store); rest >= before {
					b.Fatalf("%d parts are scanned by every opening", rest)
				}
			}
			check(b, h.Shutdown())
			b.Run("indexed", func(b *testing.B) {
				benchOpen(b, dir, true)
				b.ReportMetric(last.Seconds(), "s/shutdown")
				b.ReportMetric(100*float64(done)/float64(done+left), "%/shutdown")
			})
		})
	}
}

// shutNoIndex ends a store that writes no index of its one volume.
func shutNoIndex(b *testing.B, h *harness) {
	h.all()[0].slow.Store(true)
	check(b, h.Shutdown())
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
		shutNoIndex(b, h)
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

// BenchmarkOpenIndexed is BenchmarkOpen/packs/indexed with packs that are their heads and nothing else, as no more of them is read: ten million replicas take 100 MB of the disk, and not 40 GB.
func BenchmarkOpenIndexed(b *testing.B) {
	dir := b.TempDir()
	h := open(b, vfs.OS, dir)
	v := h.all()[0]
	check(b, v.mkdir(filepath.Join(dir, indexDir)))
	for id := 1; id <= *openReplicas; {
		p := must[*pack](b)(v.newPack())
		l := &listing{salt: p.salt}
		for ; id <= *openReplicas && p.end < v.packSize; id++ {
			l.final = append(l.final, listed{at: p.end, id: metadata.BlockID(1<<30 + id), gen: 1001, length: 100})
			p.end += packAlign
		}
		check(b, p.f.Truncate(p.end))
		part := v.packPart(p.seq)
		l.version = versionOf(must[vfs.Info](b)(v.fs.Stat(part.path)))
		check(b, v.writeIndex(part.key, l))
	}
	shutNoIndex(b, h)
	benchOpen(b, dir, true)
}

// fillPacks writes packs as the store would, but many records with one call, and syncs each pack once.
func fillPacks(b *testing.B, h *harness, n int) {
	const batch = 256
	v := h.all()[0]
	data := pattern(100)
	sums := sumsOf(data)
	buf := make([]byte, 0, batch*packAlign)
	for id := 1; id <= n; {
		p := must[*pack](b)(v.newPack())
		for id <= n && p.end < v.packSize {
			buf = buf[:0]
			for range min(batch, n-id+1) {
				at := len(buf)
				buf = p.encodeRecord(buf, metadata.BlockID(id), 1, p.end, sums, data)
				buf[at+stateAt] = stateFinal
				end := len(buf)
				buf = buf[:at+packAlign]
				clear(buf[end:])
				id++
				p.live.Add(1)
			}
			must[int](b)(p.f.WriteAt(buf, p.end))
			p.end += int64(len(buf))
		}
		check(b, p.sync())
		p.release()
	}
}
