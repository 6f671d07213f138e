package cluster

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
	"sync"
	"testing"

	"github.com/gohops/hops/client/dfs"
)

// startLocal starts a cluster whose datanodes have Unix-domain sockets.
func startLocal(t *testing.T, datanodes int) (*Cluster, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hops-s") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s", "dn._PORT")
	return Start(t, Config{Datanodes: datanodes, Properties: map[string]string{"dfs.domain.socket.path": path}}), path
}

// What is written over Unix-domain sockets is read by descriptors, byte for byte, in order and at random places, by many at a
// time; appends, truncations and deletions are seen by who opens the file anew.
func TestLocalReadsAndWrites(t *testing.T) {
	k, path := startLocal(t, 3)
	site, err := os.ReadFile(filepath.Join(k.Conf(), "hdfs-site.xml"))
	if err != nil || !bytes.Contains(site, []byte("<name>dfs.domain.socket.path</name><value>"+path+"</value>")) || bytes.Contains(site, []byte("shortcircuit")) {
		t.Fatalf("hdfs-site.xml: %s, %v", site, err)
	}
	data := make([]byte, 9<<20+777)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	round := 0
	k.until("nothing is read or written otherwise, as a client does that has waited for a second or two on a busy machine", func() bool {
		round++
		return k.locally(t, fmt.Sprintf("/tmp/f%d", round), data)
	})
}

// locally writes and reads a file with a client of its own, and reports whether it was by sockets and descriptors alone.
func (k *Cluster) locally(t *testing.T, file string, data []byte) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience)
	defer cancel()
	fs := k.Client("").FS()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	otherwise := func(what string, c dfs.LocalCounts) bool {
		t.Helper()
		t.Logf("%s: %+v", what, c)
		return false
	}
	write := func(name string, b []byte) {
		t.Helper()
		w, err := fs.Create(ctx, name, dfs.CreateOptions{BlockSize: 4 << 20})
		must(err)
		_, err = w.Write(b)
		must(err)
		must(w.Close())
	}
	write(file, data)
	wrote := fs.LocalCounts()
	if wrote.Connections == 0 || wrote.Unreached != 0 {
		return otherwise("written", wrote)
	}
	same := func(name string, want []byte) {
		t.Helper()
		got, err := fs.ReadFile(ctx, name)
		must(err)
		if !bytes.Equal(got, want) {
			t.Fatalf("%s has other bytes", name)
		}
	}
	same(file, data)
	read := fs.LocalCounts()
	if read.Opened != 3 || read.Bytes != int64(len(data)) || read.Refused+read.Abandoned+read.Unreached != 0 {
		return otherwise("read", read)
	}
	r, err := fs.Open(ctx, file)
	must(err)
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range 200 {
				off, p := random.Int64N(int64(len(data))), make([]byte, 1+random.IntN(20000))
				n, err := r.ReadAt(p, off)
				if want := data[off:min(off+int64(len(p)), int64(len(data)))]; err != nil && err != io.EOF || !bytes.Equal(p[:n], want) {
					t.Errorf("%d bytes at %d: %d, %v", len(p), off, n, err)
					return
				}
			}
		})
	}
	wait.Wait()
	must(r.Close())
	if now := fs.LocalCounts(); now.Opened != read.Opened || now.Abandoned != 0 {
		return otherwise("descriptors are not kept", now)
	}
	// An append changes the generation: what is kept does not count for the new one.
	a, err := fs.Append(ctx, file)
	must(err)
	more := data[:2<<20]
	_, err = a.Write(more)
	must(err)
	must(a.Hflush(ctx))
	same(file, append(data[:len(data):len(data)], more...))
	must(a.Close())
	same(file, append(data[:len(data):len(data)], more...))
	_, err = fs.Delete(ctx, file, false)
	must(err)
	write(file, data[100:])
	same(file, data[100:])
	if now := fs.LocalCounts(); now.Abandoned != 0 {
		return otherwise("in the end", now)
	}
	return true
}

// Bytes that rot on the disk are never handed out: the reader turns to another replica, and the namenode hears of it.
func TestLocalReadOfDamage(t *testing.T) {
	k, _ := startLocal(t, 2)
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience)
	defer cancel()
	fs := k.Client("").FS()
	data := make([]byte, 1<<20)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(data)
	if err := fs.WriteFile(ctx, "/tmp/f", data, true); err != nil {
		t.Fatal(err)
	}
	flipped := 0
	err := filepath.Walk(filepath.Join(k.Dir, "dn1"), func(name string, info os.FileInfo, err error) error {
		if errors.Is(err, os.ErrNotExist) { // it goes while we look
			return nil
		}
		if err != nil || !strings.HasPrefix(filepath.Base(name), "blk_") || info.Size() != int64(len(data)) {
			return err
		}
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		flipped++
		_, err = f.WriteAt([]byte{^data[500_000]}, 500_000)
		return errors.Join(err, f.Close())
	})
	if err != nil || flipped != 1 {
		t.Fatalf("%d files damaged, %v", flipped, err)
	}
	for range 8 { // of two replicas either may be the first
		got, err := fs.ReadFile(ctx, "/tmp/f")
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
	}
}

// A datanode that ends takes its descriptors along for nobody: what was handed over is read on, and its socket is gone for others.
func TestLocalReadOutlivesDatanode(t *testing.T) {
	k, path := startLocal(t, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 4*Patience)
	defer cancel()
	fs := k.Client("").FS()
	data := make([]byte, 3<<20)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(data)
	if err := fs.WriteFile(ctx, "/tmp/f", data, true); err != nil {
		t.Fatal(err)
	}
	r, err := fs.Open(ctx, "/tmp/f")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	head := make([]byte, 1<<20)
	if _, err := io.ReadFull(r, head); err != nil {
		t.Fatal(err)
	}
	k.Stop("dn1")
	rest, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(append(head, rest...), data) {
		t.Fatalf("%d bytes, %v", len(head)+len(rest), err)
	}
	if left, _ := filepath.Glob(strings.ReplaceAll(path, "_PORT", "*")); len(left) != 1 { // the lock
		t.Errorf("left behind: %v", left)
	}
	k.Start("dn1")
	k.Ready()
	k.until("it is read by descriptors again", func() bool { // who has waited for them for seconds uses TCP for a while
		fresh := k.Client("").FS()
		got, err := fresh.ReadFile(ctx, "/tmp/f")
		if err != nil || !bytes.Equal(got, data) {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		return fresh.LocalCounts().Opened == 1
	})
}
