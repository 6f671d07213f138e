package blockstore

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
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
