package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/cmd/bench"
	"github.com/gohops/hops/cmd/processes"
)

// local starts a namenode and a datanode with a Unix-domain socket, as processes.
func local(t testing.TB) (*Cluster, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hops-s") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "dn._PORT")
	return Start(t, processes.Config{Namenodes: 1, Datanodes: 1, Properties: map[string]string{"dfs.replication": "1", "dfs.domain.socket.path": path}}), path
}

// files is a client with another configuration than the one that is written.
func files(t testing.TB, k *Cluster, change func(*dfs.Config)) *dfs.Client {
	t.Helper()
	conf, err := dfs.LoadHadoopConf(k.Conf())
	k.must(err)
	l, err := conf.Locate("/")
	k.must(err)
	change(&l.Config)
	c, err := dfs.New(l.Config)
	k.must(err)
	t.Cleanup(func() { c.Close() })
	return c
}

// descriptors counts those of a process.
func descriptors(t testing.TB, pid int) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// Descriptors pass between processes: what was handed over is read on while the datanode is stopped, and after it was killed; who
// has none meanwhile is told as over TCP; and the next datanode takes the place of the socket that was left behind.
func TestLocalReadsBetweenProcesses(t *testing.T) {
	k, path := local(t)
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience)
	defer cancel()
	data := make([]byte, 20<<20+5)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	k.must(files(t, k, func(*dfs.Config) {}).WriteFile(ctx, "/tmp/f", data, true))
	same := func(c *dfs.Client) {
		t.Helper()
		got, err := c.ReadFile(ctx, "/tmp/f")
		k.must(err)
		if !bytes.Equal(got, data) {
			t.Fatal("other bytes")
		}
	}
	// near has a client do something by descriptors alone. One that has waited for a second or two on a busy machine uses TCP: then another one tries.
	near := func(what string, do func(*dfs.Client) int64) {
		t.Helper()
		k.Await(what+" by descriptors", func() error {
			fs := files(t, k, func(*dfs.Config) {})
			n := do(fs)
			if c := fs.LocalCounts(); c.Opened != 1 || c.Bytes < n || c.Abandoned+c.Refused+c.Unreached != 0 {
				return fmt.Errorf("%+v", c)
			}
			return nil
		})
	}
	near("all of a file is read", func(fs *dfs.Client) int64 {
		same(fs)
		return int64(len(data))
	})
	// Clients that read, and go, leave nothing in the datanode: neither connections nor memory.
	pid := k.Pid("dn1")
	same(files(t, k, func(*dfs.Config) {}))
	before := descriptors(t, pid)
	for range 20 {
		c := files(t, k, func(*dfs.Config) {})
		same(c)
		c.Close()
	}
	k.Await("the datanode has closed what it opened", func() error {
		if now := descriptors(t, pid); now > before {
			return fmt.Errorf("%d descriptors, there were %d", now, before)
		}
		return nil
	})
	var r *dfs.Reader
	head := make([]byte, 1<<20)
	near("a file is begun", func(fs *dfs.Client) int64 {
		var err error
		r, err = fs.Open(ctx, "/tmp/f")
		k.must(err)
		t.Cleanup(func() { r.Close() })
		_, err = io.ReadFull(r, head)
		k.must(err)
		return int64(len(head))
	})
	k.must(k.Signal("dn1", syscall.SIGSTOP))
	at := make([]byte, 5000)
	_, err := r.ReadAt(at, 7<<20+3)
	k.must(err)
	if !bytes.Equal(at, data[7<<20+3:][:5000]) {
		t.Error("other bytes of a stopped datanode")
	}
	k.must(k.Signal("dn1", syscall.SIGCONT))
	k.must(k.Kill("dn1"))
	rest, err := io.ReadAll(r)
	k.must(err)
	if !bytes.Equal(append(head, rest...), data) {
		t.Error("other bytes of a datanode that was killed")
	}
	if left, _ := filepath.Glob(strings.ReplaceAll(path, "_PORT", "*[0-9]")); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	k.must(k.Start("dn1"))
	k.Ready()
	k.Await("the file by descriptors of the datanode that has come back", func() error {
		again := files(t, k, func(*dfs.Config) {}) // one that has tried in vain uses TCP for a while
		got, err := again.ReadFile(ctx, "/tmp/f")
		if err == nil && !bytes.Equal(got, data) {
			return errors.New("other bytes")
		}
		if c := again.LocalCounts(); err == nil && c.Opened == 0 {
			return fmt.Errorf("%+v", c)
		}
		return err
	})
}

// BenchmarkLocal compares the ways to a datanode on the same machine, in one run: TCP, its Unix-domain socket, and descriptors. 1 GiB is read
// in order, and written, and 4 KiB are read at random places.
func BenchmarkLocal(b *testing.B) {
	k, _ := local(b)
	ctx := context.Background()
	const size = 1 << 30
	ways := []struct {
		name   string
		change func(*dfs.Config)
	}{
		{"tcp", func(c *dfs.Config) { c.DomainSocket = "" }},
		{"unix", func(c *dfs.Config) { c.NoShortCircuit = true }},
		{"descriptors", func(*dfs.Config) {}},
	}
	cpu := func() (client, datanode float64) {
		var u syscall.Rusage
		_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
		return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e3, bench.ProcessCPU(k.Pid("dn1"))
	}
	measure := func(b *testing.B, per float64, unit string, work func() error) {
		c0, d0 := cpu()
		started := time.Now()
		for range b.N {
			if err := work(); err != nil {
				b.Fatal(err)
			}
		}
		took := time.Since(started).Seconds()
		c1, d1 := cpu()
		n := per * float64(b.N)
		b.ReportMetric(n/took, unit+"/s")
		b.ReportMetric((c1-c0)/n, "client-us/"+unit)
		b.ReportMetric((d1-d0)/n, "datanode-us/"+unit)
	}
	chunk := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(chunk)
	put := func(c *dfs.Client) error {
		w, err := c.Create(ctx, "/tmp/big", dfs.CreateOptions{Overwrite: true})
		for i := 0; err == nil && i < size/len(chunk); i++ {
			_, err = w.Write(chunk)
		}
		if err == nil {
			err = w.Close()
		}
		return err
	}
	for _, way := range ways {
		c := files(b, k, way.change)
		if way.name != "descriptors" {
			b.Run("write/"+way.name, func(b *testing.B) { measure(b, size/1e6, "MB", func() error { return put(c) }) })
		}
	}
	for _, way := range ways {
		c := files(b, k, way.change)
		b.Run("read/"+way.name, func(b *testing.B) {
			measure(b, size/1e6, "MB", func() error {
				r, err := c.Open(ctx, "/tmp/big")
				if err != nil {
					return err
				}
				defer r.Close()
				n, err := r.WriteTo(io.Discard)
				if err == nil && n != size {
					err = io.ErrUnexpectedEOF
				}
				return err
			})
		})
	}
	for _, way := range ways {
		c := files(b, k, way.change)
		r, err := c.Open(ctx, "/tmp/big")
		if err != nil {
			b.Fatal(err)
		}
		random, p := rand.New(rand.NewPCG(1, 2)), make([]byte, 4096)
		b.Run("random/"+way.name, func(b *testing.B) {
			const reads = 5000
			measure(b, reads, "read", func() error {
				for range reads {
					if _, err := r.ReadAt(p, random.Int64N(size/4096)*4096); err != nil {
						return err
					}
				}
				return nil
			})
		})
		r.Close()
	}
}
