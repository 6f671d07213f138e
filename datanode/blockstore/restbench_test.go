package blockstore

import (
	"math/rand/v2"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
)

// BenchmarkOpenSmall opens a replica of 4 KiB and closes it: the same one again and again, or any of many.
func BenchmarkOpenSmall(b *testing.B) {
	for name, small := range map[string]int{"packed": 4 << 10, "files": packLimit + 1} {
		h := open(b, vfs.OS, b.TempDir())
		h.cfg.Unsynced = false
		n := map[string]int64{"packed": 20_000, "files": 2000}[name]
		data := pattern(small)
		sums := sumsOf(data)
		h.cfg.Unsynced = true
		for id := range n {
			w := must[datanode.Writer](b)(h.Create(block(id+1, 1, 0), datanode.CreateOptions{}))
			check(b, w.Write(0, data, sums))
			must[datanode.Replica](b)(w.Finalize())
		}
		for _, v := range h.all() {
			h.settle(b.Context(), v, v.trash.now())
		}
		for which, some := range map[string]int64{"same": 1, "some": 1000, "any": n} {
			b.Run(name+"/"+which, func(b *testing.B) {
				for b.Loop() {
					rd := must[datanode.Reader](b)(h.Open(block(1+rand.Int64N(some), 1, 0)))
					check(b, rd.Close())
				}
			})
		}
	}
}
