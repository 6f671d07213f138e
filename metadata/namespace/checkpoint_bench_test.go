package namespace

import (
	"fmt"
	"io"
	"testing"

	"github.com/gohops/hops/metadata/kv/badger"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
)

// A checkpoint and its snapshot of what 32 MiB of log made, on disk, in a namespace that grows from one to the next.
// One operation is a create and its complete.
func BenchmarkCheckpoint(b *testing.B) {
	store, err := badger.Open(b.TempDir(), badger.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	ns := fresh(b, store, 0)
	ns.Apply(1, [][]byte{encode(b, command(super, &logpb.Mkdirs{Target: to("/a/b/c"), Mode: 0o777, CreateParent: true}))})
	index, files := uint64(1), 0
	b.ResetTimer()
	b.StopTimer()
	var total int64
	for n := range 3 {
		bytes, ops := 0, 0
		for bytes < 32<<20 {
			var creates, completes [][]byte
			next := uint64(ns.meta.nextINode)
			for range benchBatch {
				client := fmt.Sprintf("DFSClient_NONMAPREDUCE_%d_1", files%64)
				c := command(bob, create(fmt.Sprintf("/a/b/c/w%d/d%d/f%d", files%64, files/1024, files), client))
				c.ClientId, c.CallId, c.Now = fmt.Appendf(nil, "client%010d", files%64), int32(files), int64(files)
				creates = append(creates, encode(b, c))
				completes = append(completes, encode(b, command(bob, &logpb.Complete{Inode: next + uint64(len(completes)), ClientName: client})))
				files++
			}
			for _, e := range [][][]byte{creates, completes} {
				index++
				ns.Apply(index, e)
				for _, c := range e {
					bytes += len(c) + 30
				}
			}
			ops += benchBatch
		}
		start := processorTime(b)
		s, err := ns.Freeze()
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := ns.writeCheckpoint(s.(*snapshot).frozen); err != nil {
			b.Fatal(err)
		}
		s.(*snapshot).written = true
		mid := processorTime(b)
		size, err := s.WriteTo(io.Discard)
		if err != nil {
			b.Fatal(err)
		}
		s.Release()
		b.StopTimer()
		end := processorTime(b)
		total += end - start
		b.Logf("round %d: %d ops, checkpoint %.1f us/op, stream %.1f us/op, %d MB stream", n, ops,
			float64(mid-start)/float64(ops)/1e3, float64(end-mid)/float64(ops)/1e3, size>>20)
	}
	b.ReportMetric(float64(total)/float64(files), "cpu-ns/file")
}
