package feed_test

import (
	"fmt"
	"log/slog"
	"syscall"
	"testing"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/feed"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
)

// One operation is a create and the complete that closes the file, two events, in entries of 64 commands: without a feed and with one. The processor
// time counts writing the files.
func BenchmarkCreateComplete(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(map[bool]string{false: "without", true: "with"}[on], func(b *testing.B) {
			conf := namespace.Config{Store: mem.New(), Owner: "hops", Supergroup: "supergroup"}
			var l *feed.Log
			if on {
				var err error
				if l, err = feed.Open(feed.Config{Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler)}); err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				conf.OnEvents = func(index uint64, at namespace.LogTime, events []metadata.Event) { l.Append(index, int64(at), events) }
			}
			ns, err := namespace.Open(conf)
			if err != nil {
				b.Fatal(err)
			}
			encode := func(cmd *logpb.Command) []byte {
				data, err := cmd.MarshalVT()
				if err != nil {
					b.Fatal(err)
				}
				return data
			}
			const first = uint64(metadata.RootID) + 4 // behind /a/b/c
			mkdirs := namespace.NewCommand(super, nil, -1, 1)
			target := func(path string) *logpb.Target {
				t, err := namespace.TargetOf(path)
				if err != nil {
					b.Fatal(err)
				}
				return t
			}
			mkdirs.Op = &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: target("/a/b/c"), Mode: 0o777, CreateParent: true}}
			ns.Apply(1, [][]byte{encode(mkdirs)})
			var entries [][][]byte
			for i := 0; i < b.N; i += 64 {
				var creates, completes [][]byte
				for j := i; j < min(i+64, b.N); j++ {
					c := namespace.NewCommand(super, nil, -1, metadata.Time(j))
					c.Op = &logpb.Command_Create{Create: &logpb.Create{
						Target: target(fmt.Sprintf("/a/b/c/part-%08d", j)), Mode: 0o644, ClientName: "client", Create: true, Replication: 3, BlockSize: 128 << 20,
					}}
					creates = append(creates, encode(c))
					c = namespace.NewCommand(super, nil, -1, metadata.Time(j))
					c.Op = &logpb.Command_Complete{Complete: &logpb.Complete{Inode: first + uint64(j), ClientName: "client"}}
					completes = append(completes, encode(c))
				}
				entries = append(entries, creates, completes)
			}
			processor := func() int64 {
				var u syscall.Rusage
				if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
					b.Fatal(err)
				}
				return u.Utime.Nano() + u.Stime.Nano()
			}
			b.ReportAllocs()
			b.ResetTimer()
			begin := processor()
			for i, entry := range entries {
				for _, r := range ns.Apply(uint64(i+2), entry) {
					if r := r.(*namespace.Result); r.Err != nil || !r.OK {
						b.Fatal(r.Err)
					}
				}
			}
			b.ReportMetric(float64(processor()-begin)/float64(b.N), "cpu-ns/op")
			if on {
				b.ReportMetric(float64(l.Figures().Bytes)/float64(b.N), "feed-bytes/op")
			}
		})
	}
}
