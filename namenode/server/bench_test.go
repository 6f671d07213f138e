package server

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/internal/hrpc"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/namenode"
	"github.com/gohops/hops/namenode/hdfs/clientprotocol"
	hadoop "github.com/gohops/hops/namenode/hdfs/hadooppb"
)

// outstanding is how many calls the benchmarks keep under way.
const outstanding = 256

func pump(b *testing.B, connections int, m *member, call func(c *hrpc.Client, i int64) error) {
	var clients []*hrpc.Client
	for range connections {
		c, err := hrpc.Dial(b.Context(), m.ipc, hrpc.DialConfig{Protocol: clientprotocol.Name, User: m.config.Door.Daemon(), DialTimeout: limit})
		if err != nil {
			b.Fatal(err)
		}
		defer c.Close()
		clients = append(clients, c)
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	before := cpu(b)
	for w := range outstanding {
		wg.Go(func() {
			for {
				i := next.Add(1)
				if i > int64(b.N) {
					return
				}
				if err := call(clients[w%connections], i); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/call") // of both ends
}

// cpu is the processor time that this process has had.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkStat and BenchmarkCreateComplete run everything in one process: clients, and one or three namenodes with real
// sockets and fsyncs.
func BenchmarkStat(b *testing.B) {
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := newCluster(b, n, nil)
			if err := c.root().Mkdirs(b.Context(), "/a/b/c", 0o755, true); err != nil {
				b.Fatal(err)
			}
			path := "/a/b/c"
			b.ReportAllocs()
			pump(b, 4, c.leader(), func(c *hrpc.Client, _ int64) error {
				var r hadoop.GetFileInfoResponseProto
				return c.Call(b.Context(), clientprotocol.Name, "getFileInfo", &hadoop.GetFileInfoRequestProto{Src: &path}, &r)
			})
		})
	}
}

// BenchmarkOpen and BenchmarkList are of an empty file, and of a directory of 16.
func BenchmarkOpen(b *testing.B) {
	c := newCluster(b, 1, nil)
	files(b, c)
	path := "/a/b/f0"
	b.ReportAllocs()
	pump(b, 4, c.leader(), func(c *hrpc.Client, _ int64) error {
		var r hadoop.GetBlockLocationsResponseProto
		return c.Call(b.Context(), clientprotocol.Name, "getBlockLocations", &hadoop.GetBlockLocationsRequestProto{Src: &path, Offset: ptr(uint64(0)), Length: ptr(uint64(1 << 30))}, &r)
	})
}

func BenchmarkList(b *testing.B) {
	c := newCluster(b, 1, nil)
	files(b, c)
	path := "/a/b"
	b.ReportAllocs()
	pump(b, 4, c.leader(), func(c *hrpc.Client, _ int64) error {
		var r hadoop.GetListingResponseProto
		return c.Call(b.Context(), clientprotocol.Name, "getListing", &hadoop.GetListingRequestProto{Src: &path, StartAfter: []byte{}, NeedLocation: ptr(false)}, &r)
	})
}

// files makes 16 empty ones in /a/b.
func files(b *testing.B, c *cluster) {
	for i := range 16 {
		w, err := c.root().Create(b.Context(), fmt.Sprintf("/a/b/f%d", i), dfs.CreateOptions{Parents: true})
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCreateComplete(b *testing.B) {
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := newCluster(b, n, nil)
			b.ReportAllocs()
			pump(b, 4, c.leader(), func(c *hrpc.Client, i int64) error {
				path, client := fmt.Sprintf("/d%d/f%d", i%64, i), "bench"
				var r hadoop.CreateResponseProto
				err := c.Call(b.Context(), clientprotocol.Name, "create", &hadoop.CreateRequestProto{
					Src: &path, Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o644))}, ClientName: &client, CreateFlag: ptr(uint32(1)),
					CreateParent: ptr(true), Replication: ptr(uint32(1)), BlockSize: ptr(uint64(1 << 20)),
				}, &r)
				if err != nil {
					return err
				}
				return c.Call(b.Context(), clientprotocol.Name, "complete", &hadoop.CompleteRequestProto{Src: &path, ClientName: &client, FileId: r.Fs.FileId}, new(hadoop.CompleteResponseProto))
			})
		})
	}
}

// BenchmarkMkdirRenameDelete is a directory that is made, renamed and deleted: three changes.
func BenchmarkMkdirRenameDelete(b *testing.B) {
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			c := newCluster(b, n, nil)
			b.ReportAllocs()
			pump(b, 4, c.leader(), func(c *hrpc.Client, i int64) error {
				path, moved := fmt.Sprintf("/d%d/f%d", i%64, i), fmt.Sprintf("/d%d/r%d", i%64, i)
				err := c.Call(b.Context(), clientprotocol.Name, "mkdirs", &hadoop.MkdirsRequestProto{
					Src: &path, Masked: &hadoop.FsPermissionProto{Perm: ptr(uint32(0o755))}, CreateParent: ptr(true),
				}, new(hadoop.MkdirsResponseProto))
				if err == nil {
					err = c.Call(b.Context(), clientprotocol.Name, "rename", &hadoop.RenameRequestProto{Src: &path, Dst: &moved}, new(hadoop.RenameResponseProto))
				}
				if err != nil {
					return err
				}
				return c.Call(b.Context(), clientprotocol.Name, "delete", &hadoop.DeleteRequestProto{Src: &moved, Recursive: ptr(false)}, new(hadoop.DeleteResponseProto))
			})
		})
	}
}

// BenchmarkStatMany is one client that asks about directories many at a time, and for comparison one by one, 32 at once; an operation is a path.
func BenchmarkStatMany(b *testing.B) {
	const dirs, paths = 16, 4096
	c := newCluster(b, 1, nil)
	client := c.root()
	var names []string
	for i := range dirs {
		if err := client.Mkdirs(b.Context(), fmt.Sprintf("/data/part-%02d", i), 0o755, true); err != nil {
			b.Fatal(err)
		}
	}
	answers := make(chan error, paths)
	m := c.leader()
	for i := range paths {
		names = append(names, fmt.Sprintf("/data/part-%02d/sample-%05d", i%dirs, i))
		m.Mkdirs(m.caller(), namenode.MkdirsRequest{Path: names[i], Mode: 0o755}, func(err error) { answers <- err })
	}
	for range paths {
		if err := <-answers; err != nil {
			b.Fatal(err)
		}
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	measure := func(b *testing.B, stat func(some []string) error) {
		b.ReportAllocs()
		b.ResetTimer()
		before := cpu(b)
		for done := 0; done < b.N; {
			some := names[:min(len(names), b.N-done)]
			if err := stat(some); err != nil {
				b.Fatal(err)
			}
			done += len(some)
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "paths/s")
		b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/path") // of both ends
	}
	b.Run("many", func(b *testing.B) {
		measure(b, func(some []string) error {
			many, err := client.StatMany(b.Context(), some)
			if err != nil {
				return err
			}
			return errors.Join(many.Errors...)
		})
	})
	b.Run("each", func(b *testing.B) {
		measure(b, func(some []string) error {
			group, ctx := errgroup.WithContext(b.Context())
			group.SetLimit(32)
			for _, name := range some {
				group.Go(func() error { _, err := client.Stat(ctx, name); return err })
			}
			return group.Wait()
		})
	})
}

// BenchmarkReadMany is one client that reads small files of 4 KiB many at a time, from one namenode in the same process; an operation is a file.
func BenchmarkReadMany(b *testing.B) {
	const files, size = 4096, 4 << 10
	c := newCluster(b, 1, nil)
	m := c.raised()
	answers := make(chan error, files)
	var names []string
	for i := range files {
		names = append(names, fmt.Sprintf("/data/part-%02d/sample-%05d", i/256, i))
		m.StoreFile(m.caller(), storing(names[i]), smallBytes(size, byte(i)), func(_ *metadata.FileStatus, err error) { answers <- err })
	}
	for range files {
		if err := <-answers; err != nil {
			b.Fatal(err)
		}
	}
	if err := m.bodies.Sync(); err != nil {
		b.Fatal(err)
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	client := c.root()
	b.SetBytes(size)
	b.ReportAllocs()
	b.ResetTimer()
	before := cpu(b)
	for done := 0; done < b.N; {
		some := names[:min(len(names), b.N-done)]
		read, err := client.ReadMany(b.Context(), some, size)
		if err != nil {
			b.Fatal(err)
		}
		for i, data := range read.Data {
			if len(data) != size || read.Errors[i] != nil {
				b.Fatal(some[i], len(data), read.Errors[i])
			}
		}
		done += len(some)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "files/s")
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/file") // of both ends
}
