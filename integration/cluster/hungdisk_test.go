package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/client/dfs"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/integration/process"
)

// hangingDisk is the disk of all datanodes, of which chosen calls do not come back before it is let go.
type hangingDisk struct {
	*faulty.FS
	stuck chan faulty.Op
	freed chan struct{}
	free  func()
}

func newHangingDisk(t *testing.T) *hangingDisk {
	d := &hangingDisk{FS: faulty.New(vfs.OS), stuck: make(chan faulty.Op, 10_000), freed: make(chan struct{})}
	d.free = sync.OnceFunc(func() {
		d.Set(nil)
		close(d.freed)
	})
	t.Cleanup(d.free)
	return d
}

// hang lets the calls hang that match.
func (d *hangingDisk) hang(matches func(faulty.Op) bool) {
	d.Set(func(op faulty.Op) error {
		if matches(op) {
			select {
			case d.stuck <- op:
			default:
			}
			<-d.freed
		}
		return nil
	})
}

// hungWriter is a file that is written through a datanode whose disk hangs.
type hungWriter struct {
	*dfs.Writer
	name, what string
	data       []byte
	block      uint64
	calls      []string // those that hang
	rest       func(*hungWriter) error
	longest    time.Duration
}

// step is one call of the writer.
func (w *hungWriter) step(f func() error) error {
	began := time.Now()
	err := f()
	w.longest = max(w.longest, time.Since(began))
	return err
}

func (w *hungWriter) more(n int) error {
	data := make([]byte, n)
	for i := range data {
		at := len(w.data) + i
		data[i] = byte(at>>16) ^ byte(at>>8) ^ byte(at)
	}
	w.data = append(w.data, data...)
	return w.step(func() error {
		_, err := w.Write(data)
		return err
	})
}

// position is where a datanode is in the pipeline of a file's last block, and the block.
func position(ctx context.Context, fs *dfs.Client, name, addr string) (int, uint64, error) {
	blocks, err := fs.BlockLocations(ctx, name, 0, 1<<40)
	if err != nil || len(blocks) == 0 {
		return -1, 0, errors.Join(err, errors.New("there is no block"))
	}
	b := blocks[len(blocks)-1]
	return slices.IndexFunc(b.Datanodes, func(d dfs.Datanode) bool {
		return strings.HasSuffix(addr, ":"+strconv.Itoa(d.TransferPort))
	}), uint64(b.Block.ID), nil
}

// A disk of one datanode of a pipeline does not answer: its writers go on without it, at whatever call it hangs and wherever it is in the pipeline, and lose nothing. Who uses the
// other disk of that datanode does not notice.
func TestWritersLeaveADatanodeWhoseDiskHangs(t *testing.T) {
	disk := newHangingDisk(t)
	k := Start(t, Config{Datanodes: 3, Disk: disk, Types: []string{"DISK", "SSD"}})
	t.Cleanup(disk.free) // before the servers end
	fs := k.Client("").FS()
	ctx := process.Context(t)
	addr := k.Server("dn1").Datanode.Transfer
	hung := filepath.Join(k.Dir, "dn1", "DISK") + "/"
	if err := fs.Mkdirs(ctx, "/ssd", 0o755, true); err != nil {
		t.Fatal(err)
	}
	if err := fs.SetStoragePolicy(ctx, "/ssd", "ALL_SSD"); err != nil {
		t.Fatal(err)
	}

	flush := func(w *hungWriter) error { return w.step(func() error { return w.Hflush(ctx) }) }
	hsync := func(w *hungWriter) error { return w.step(func() error { return w.Hsync(ctx) }) }
	shut := func(w *hungWriter) error { return w.step(w.Close) }
	goOn := func(w *hungWriter) error { // much more than the window
		for range 12 {
			if err := w.more(1 << 20); err != nil {
				return err
			}
		}
		return errors.Join(hsync(w), shut(w))
	}
	moments := []struct {
		what  string
		calls []string
		rest  func(*hungWriter) error
	}{
		{"writes", []string{"write"}, goOn},
		{"a write that is flushed", []string{"write"}, func(w *hungWriter) error { return errors.Join(w.more(1000), flush(w), w.more(1000), flush(w), shut(w)) }},
		{"the fsync of hsync", []string{"sync"}, func(w *hungWriter) error { return errors.Join(w.more(1000), hsync(w), w.more(1000), shut(w)) }},
		{"the fsync at the end", []string{"sync"}, func(w *hungWriter) error { return errors.Join(w.more(1000), flush(w), shut(w)) }},
		{"the rename at the end", []string{"rename"}, func(w *hungWriter) error { return errors.Join(w.more(1000), flush(w), shut(w)) }},
	}
	var writers []*hungWriter
	create := func(name string) *hungWriter {
		w, err := fs.Create(ctx, name, dfs.CreateOptions{Replication: 3, Parents: true})
		if err != nil {
			t.Fatal(err)
		}
		return &hungWriter{Writer: w, name: name}
	}
	for m, moment := range moments {
		for at := range 3 {
			for try := 0; ; try++ {
				w := create(fmt.Sprintf("/w/%d-%d-%d", m, at, try))
				if err := errors.Join(w.more(100_000), w.Hflush(ctx)); err != nil {
					t.Fatal(err)
				}
				p, block, err := position(ctx, fs, w.name, addr)
				if err != nil {
					t.Fatal(err)
				}
				if p != at {
					w.Abort()
					continue
				}
				w.what, w.block, w.calls, w.rest = fmt.Sprintf("%s, datanode %d of 3", moment.what, at+1), block, moment.calls, moment.rest
				writers = append(writers, w)
				break
			}
		}
	}
	beside := create("/ssd/beside")
	beside.what, beside.rest = "another disk", goOn
	writers = append(writers, beside)
	of := map[string][]string{}
	for _, w := range writers {
		of[fmt.Sprintf("blk_%d", w.block)] = w.calls
	}
	disk.hang(func(op faulty.Op) bool {
		if !strings.HasPrefix(op.Name, hung) {
			return false
		}
		base := filepath.Base(op.Name)
		name, _, _ := strings.Cut(strings.TrimPrefix(base, "blk_"), "_")
		calls, known := of["blk_"+name]
		return !known && op.Call != "stat" && op.Call != "usage" && op.Call != "syncdir" || slices.Contains(calls, op.Call)
	})
	for i := range 4 { // their blocks are begun while it hangs
		w := create(fmt.Sprintf("/w/new-%d", i))
		w.what, w.rest = "everything, from the first write on", goOn
		writers = append(writers, w)
	}
	small := create("/w/small")
	small.what, small.rest = "a small block", func(w *hungWriter) error { return errors.Join(w.more(1000), shut(w)) }
	writers = append(writers, small)

	var all sync.WaitGroup
	for _, w := range writers {
		all.Go(func() {
			if err := w.rest(w); err != nil {
				t.Errorf("%s: %v", w.what, err)
			}
		})
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(Patience): // less than writers wait for a datanode without a word
		disk.free()
		<-done
		t.Error("writers have waited for the disk")
	}
	if len(disk.stuck) == 0 {
		t.Error("nothing hung")
	}
	for _, w := range writers {
		t.Logf("%s: the longest wait was %v", w.what, w.longest.Round(10*time.Millisecond))
		r, err := fs.Open(ctx, w.name)
		if err != nil {
			t.Errorf("%s: %v", w.what, err)
			continue
		}
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil || !bytes.Equal(got, w.data) {
			t.Errorf("%s: %d bytes that are not the %d written, %v", w.what, len(got), len(w.data), err)
		}
	}
}

// A disk of a datanode does not answer when it is read: who reads many blocks turns to other datanodes, also when there is no budget for hedged reads any more, and back when
// the disk answers.
func TestReadersLeaveADatanodeWhoseDiskHangs(t *testing.T) {
	disk := newHangingDisk(t)
	k := Start(t, Config{Datanodes: 3, Disk: disk, Types: []string{"DISK", "SSD"}})
	t.Cleanup(disk.free) // before the servers end
	fs := k.Client("").FS()
	ctx := process.Context(t)
	data := bytes.Repeat([]byte("a hanging disk. "), 12_800) // whole chunks: who opens such a replica reads nothing
	const files = 80
	if err := fs.Mkdirs(ctx, "/r", 0o755, true); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		if err := fs.WriteFile(ctx, fmt.Sprintf("/r/%d", i), data, false); err != nil {
			t.Fatal(err)
		}
	}
	hung := filepath.Join(k.Dir, "dn1", "DISK", "blocks") + "/"
	disk.hang(func(op faulty.Op) bool { return op.Call == "read" && strings.HasPrefix(op.Name, hung) })
	reader := k.Client("").FS()
	var longest time.Duration
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range files {
			began := time.Now()
			got, err := reader.ReadFile(ctx, fmt.Sprintf("/r/%d", i))
			longest = max(longest, time.Since(began))
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes that are not the %d written, %v", len(got), len(data), err)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(Patience - time.Second): // less than a reader waits for a datanode without a word
		disk.free()
		<-done
		t.Error("a reader has waited for the disk")
	}
	if len(disk.stuck) == 0 {
		t.Error("nothing hung")
	}
	t.Logf("%d calls hung, the longest read took %v", len(disk.stuck), longest.Round(10*time.Millisecond))
}
