package search

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/feed"
	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/kv/mem"
	logpb "github.com/gohops/hops/metadata/logpb/v1"
	"github.com/gohops/hops/metadata/namespace"
)

// processor is the processor time that this process has taken, in nanoseconds.
func processor(b *testing.B) int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// opened is a namespace with a feed, and an index on a disk if there is to be one.
func opened(b *testing.B, on bool) (ns *namespace.Namespace, x *Index, dir string) {
	b.Helper()
	log := slog.New(slog.DiscardHandler)
	l, err := feed.Open(feed.Config{Dir: b.TempDir(), Logger: log})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	ns, err = namespace.Open(namespace.Config{
		Store: mem.New(), Owner: "hops", Supergroup: "supergroup",
		OnEvents: func(index uint64, at namespace.LogTime, events []metadata.Event) { l.Append(index, int64(at), events) },
	})
	if err != nil {
		b.Fatal(err)
	}
	if !on {
		return ns, nil, ""
	}
	dir = b.TempDir()
	store, err := badger.Open(dir, badger.Options{Memtable: 8 << 20, Logger: log})
	if err != nil {
		b.Fatal(err)
	}
	if x, err = Open(Config{Store: store, Namespace: ns, Feed: l, Applied: ns.AppliedIndex, Logger: log}); err != nil {
		b.Fatal(err)
	}
	run, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		x.Run(run)
	}()
	b.Cleanup(func() {
		stop()
		<-stopped
		x.Close()
		store.Close()
	})
	for x.Status().State != Following { // it begins with an empty one
		time.Sleep(time.Millisecond)
	}
	return ns, x, dir
}

func encoded(b *testing.B, cmd *logpb.Command) []byte {
	b.Helper()
	data, err := cmd.MarshalVT()
	if err != nil {
		b.Fatal(err)
	}
	return data
}

// creates are entries of 64 commands that make and close files in /a/b/c.
func creates(b *testing.B, n int) (entries [][][]byte) {
	b.Helper()
	mkdirs := namespace.NewCommand(super, nil, -1, 1)
	mkdirs.Op = &logpb.Command_Mkdirs{Mkdirs: &logpb.Mkdirs{Target: target(b, "/a/b/c"), Mode: 0o777, CreateParent: true}}
	entries = [][][]byte{{encoded(b, mkdirs)}}
	const first = uint64(metadata.RootID) + 4 // behind /a/b/c
	for i := 0; i < n; i += 64 {
		var creates, completes [][]byte
		for j := i; j < min(i+64, n); j++ {
			c := namespace.NewCommand(super, nil, -1, metadata.Time(j))
			c.Op = &logpb.Command_Create{Create: &logpb.Create{
				Target: target(b, fmt.Sprintf("/a/b/c/part-%08d", j)), Mode: 0o644, ClientName: "client", Create: true, Replication: 3, BlockSize: 128 << 20,
			}}
			creates = append(creates, encoded(b, c))
			c = namespace.NewCommand(super, nil, -1, metadata.Time(j))
			c.Op = &logpb.Command_Complete{Complete: &logpb.Complete{Inode: first + uint64(j), ClientName: "client"}}
			completes = append(completes, encoded(b, c))
		}
		entries = append(entries, creates, completes)
	}
	return entries
}

func applied(b *testing.B, ns *namespace.Namespace, entries [][][]byte) {
	b.Helper()
	for _, entry := range entries {
		for _, r := range ns.Apply(ns.AppliedIndex()+1, entry) {
			if r := r.(*namespace.Result); r.Err != nil || !r.OK {
				b.Fatal(r.Err)
			}
		}
	}
}

// One operation is a create and the complete that closes the file, with a feed, in entries of 64 commands: without an index and with one. The processor time
// is that of everything, until the index has all of it.
func BenchmarkCreateComplete(b *testing.B) {
	for _, on := range []bool{false, true} {
		b.Run(map[bool]string{false: "without", true: "with"}[on], func(b *testing.B) {
			ns, x, dir := opened(b, on)
			entries := creates(b, b.N)
			b.ReportAllocs()
			b.ResetTimer()
			begin := processor(b)
			applied(b, ns, entries)
			if on {
				if err := x.Await(b.Context(), metadata.EndOf(ns.AppliedIndex())); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(processor(b)-begin)/float64(b.N), "cpu-ns/op")
			if on {
				b.ReportMetric(float64(onDisk(b, dir))/float64(b.N), "index-bytes/op")
			}
		})
	}
}

// One operation is a search in an index of a million files: for the one with a name, for a page of a hundred, and for what is not there and has to be looked for
// among all of them.
func BenchmarkFind(b *testing.B) {
	const files = 1_000_000
	ns, x, _ := opened(b, true)
	for entries := creates(b, files); len(entries) > 0; entries = entries[min(1000, len(entries)):] {
		applied(b, ns, entries[:min(1000, len(entries))])
	}
	if err := x.Await(b.Context(), metadata.EndOf(ns.AppliedIndex())); err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name string
		q    metadata.Query
	}{
		{"name", metadata.Query{Path: "/", Name: "part-00123456"}},
		{"hundred", metadata.Query{Path: "/", Name: "part-001*", Limit: 100}},
		{"suffix", metadata.Query{Path: "/", Name: "*-nothing"}},
		{"greedy", metadata.Query{Path: "/", Name: "*a*r*t*-*0*x"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			begin, looked := processor(b), 0
			for b.Loop() {
				page, err := x.Find(b.Context(), alice, c.q)
				if err != nil {
					b.Fatal(err)
				}
				looked += page.Looked
			}
			b.ReportMetric(float64(processor(b)-begin)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(float64(looked)/float64(b.N), "entries/op")
		})
	}
}

// onDisk is the size of a directory's files.
func onDisk(b *testing.B, dir string) (bytes int64) {
	b.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".sst" {
			if info, err := d.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return nil // files go meanwhile
	})
	if err != nil {
		b.Fatal(err)
	}
	return bytes
}
