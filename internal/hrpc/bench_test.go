package hrpc

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// BenchmarkStat keeps calls outstanding on one connection; the goal is 60,000 a second with 256.
func BenchmarkStat(b *testing.B) {
	for _, outstanding := range []int{1, 256} {
		b.Run(map[int]string{1: "1", 256: "256"}[outstanding], func(b *testing.B) {
			s := newServer(b, ServerConfig{})
			status := &hadooppb.GetFileInfoResponseProto{Fs: &hadooppb.HdfsFileStatusProto{
				FileType: hadooppb.HdfsFileStatusProto_IS_FILE.Enum(), Path: []byte{}, Length: new(uint64(1 << 20)),
				Permission: &hadooppb.FsPermissionProto{Perm: new(uint32(0o644))}, Owner: new("alice"), Group: new("users"),
				ModificationTime: new(uint64(1700000000000)), AccessTime: new(uint64(1700000000000)),
				BlockReplication: new(uint32(3)), Blocksize: new(uint64(128 << 20)), FileId: new(uint64(16400)),
			}}
			s.Handle(nn, Method{
				Name: "stat", New: func() Message { return new(hadooppb.GetFileInfoRequestProto) }, Right: security.ByPath,
				Handle: func(c *Call) { c.Reply(status) },
			})
			f, err := NewFailover(FailoverConfig{Addresses: []string{start(b, s)}, DialConfig: DialConfig{Protocol: nn, User: "alice"}})
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			b.ReportAllocs()
			b.ResetTimer()
			var left atomic.Int64
			left.Store(int64(b.N))
			var wg sync.WaitGroup
			for range outstanding {
				wg.Go(func() {
					path := "/user/alice/experiments/run-17/checkpoint-000001.pt"
					for left.Add(-1) >= 0 {
						var answer hadooppb.GetFileInfoResponseProto
						if err := f.Call(context.Background(), nn, "stat", &hadooppb.GetFileInfoRequestProto{Src: &path}, &answer); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}
