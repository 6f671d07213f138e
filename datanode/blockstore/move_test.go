package blockstore

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// on is the type of the volume where a block's replica lies.
func (h *harness) on(id int64) datanode.StorageType {
	h.t.Helper()
	r, ok := h.Replica(metadata.BlockID(id))
	if !ok {
		h.t.Fatalf("block %d is not there", id)
	}
	for _, v := range h.all() { // no disk is asked, as Volumes does on several goroutines
		if v.id.Storage == r.Volume {
			return v.typ
		}
	}
	h.t.Fatalf("block %d is on volume %q", id, r.Volume)
	return 0
}

func TestMovedReplicasAreWhatTheyWere(t *testing.T) {
	disk := mem.New(1 << 24)
	h := open(t, disk, "/v", "/ssd")
	sizes := []int{1, chunk, 3000, packLimit, packLimit + 1, 700_000}
	for i, n := range sizes {
		h.put(int64(i+1), 7, pattern(n))
	}
	for i, n := range sizes {
		id := int64(i + 1)
		before := must[datanode.Reader](t)(h.Store.Open(block(id, 7, 0)))
		paced := int64(0)
		check(t, h.Move(t.Context(), block(id, 7, 0), datanode.SSD, func(n int64) error { paced += n; return nil }))
		if got := h.on(id); got != datanode.SSD || paced != int64(n) {
			t.Fatalf("block %d is on %v after %d bytes", id, got, paced)
		}
		h.wantContent(id, pattern(n))
		p := make([]byte, n)
		if _, err := before.ReadAt(p, 0); err != nil || !bytes.Equal(p, pattern(n)) {
			t.Fatalf("a reader that had block %d open: %v", id, err)
		}
		check(t, before.Close())
		// Again, it is only said.
		check(t, h.Move(t.Context(), block(id, 7, 0), datanode.SSD, nil))
		if got := h.kinds(metadata.BlockID(id)); got != "RECEIVING RECEIVED RECEIVED RECEIVED" {
			t.Fatalf("block %d: %s", id, got)
		}
	}
	for _, v := range h.Volumes() {
		if want := map[datanode.StorageType]int{datanode.Disk: 0, datanode.SSD: len(sizes)}[v.Type]; v.Replicas != want || v.Type == datanode.Disk && v.Used != 0 {
			t.Fatalf("%+v", v)
		}
	}
	check(t, h.Shutdown())
	h = open(t, disk, "/v", "/ssd")
	for i, n := range sizes {
		h.wantContent(int64(i+1), pattern(n))
		if h.on(int64(i+1)) != datanode.SSD {
			t.Fatalf("block %d is back", i+1)
		}
	}
	// It is appended to as any.
	w := must[datanode.Writer](t)(h.Append(block(3, 7, 3000), 8, false))
	check(t, w.Write(3000, []byte("more"), nil))
	w.Acked(3004)
	must[datanode.Replica](t)(w.Finalize())
	h.wantContent(3, append(pattern(3000), "more"...))
}

func TestMovesThatAreRefused(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	h := open(t, disk, "/v", "/ssd")
	h.put(1, 7, pattern(100_000))
	wantKind(t, h.Move(t.Context(), block(2, 7, 0), datanode.SSD, nil), metadata.ErrReplicaNotFound)
	wantKind(t, h.Move(t.Context(), block(1, 6, 0), datanode.SSD, nil), metadata.ErrInvalidArgument)
	wantKind(t, h.Move(t.Context(), block(1, 7, 0), datanode.Archive, nil), metadata.ErrNoSpace)
	w := must[datanode.Writer](t)(h.Create(block(3, 7, 0), datanode.CreateOptions{}))
	check(t, w.Write(0, pattern(40_000), nil))
	wantKind(t, h.Move(t.Context(), block(3, 7, 0), datanode.SSD, nil), metadata.ErrInvalidArgument)
	check(t, w.Close())
	// Somebody changes it meanwhile, or deletes it.
	changing := func(id int64, change func()) error {
		return h.Move(t.Context(), block(id, 7, 0), datanode.SSD, func(int64) error { change(); change = func() {}; return nil })
	}
	wantKind(t, changing(1, func() {
		wantKind(t, h.Move(t.Context(), block(1, 7, 0), datanode.SSD, nil), metadata.ErrRetriable)
		must[datanode.Replica](t)(h.InitRecovery(block(1, 7, 0), 9))
	}), metadata.ErrRetriable)
	must[datanode.Replica](t)(h.UpdateReplica(block(1, 7, 0), 9, 100_000))
	h.put(4, 7, pattern(50_000))
	wantKind(t, changing(4, func() { check(t, h.Delete(block(4, 7, 0))) }), metadata.ErrRetriable)
	// A wrong byte stays where it is.
	h.put(5, 7, pattern(50_000))
	f := must[vfs.File](t)(disk.OpenFile(h.all()[0].dataPath(5), os.O_RDWR, 0))
	if _, err := f.WriteAt([]byte{0, 1, 2}, 2222); err != nil {
		t.Fatal(err)
	}
	check(t, f.Close())
	wantKind(t, h.Move(t.Context(), block(5, 7, 0), datanode.SSD, nil), metadata.ErrCorrupt)
	if got := h.kinds(5); !strings.HasSuffix(got, "CORRUPT") {
		t.Fatal(got)
	}
	wantKind(t, h.Move(t.Context(), block(5, 7, 0), datanode.SSD, nil), metadata.ErrCorrupt)
	// The disk becomes full.
	h.put(6, 7, pattern(50_000))
	disk.Set(faulty.Nth(2, "write", "movingsums", true, syscall.ENOSPC))
	wantKind(t, h.Move(t.Context(), block(6, 7, 0), datanode.SSD, nil), metadata.ErrNoSpace)
	disk.Set(nil)
	h.wantContent(6, pattern(50_000))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantKind(t, h.Move(ctx, block(6, 7, 0), datanode.SSD, nil), context.Canceled)
	if v := h.Volumes()[1]; v.Used != 0 || v.Replicas != 0 || h.all()[1].expected.Load() != 0 {
		t.Fatalf("%+v", v)
	}
	entries, err := disk.ReadDir(h.all()[1].dirOf(6))
	if err != nil || len(entries) > 0 {
		t.Fatalf("left behind: %v %v", entries, err)
	}
}

// A volume whose disk fails in the middle of a move is given up, and the replica stays where it is.
func TestEveryCallOfAMoveMayFail(t *testing.T) {
	for n := 1; ; n++ {
		disk := faulty.New(mem.New(1 << 24))
		h := open(t, disk, "/v", "/ssd")
		h.put(1, 7, pattern(300_000))
		calls := atomic.Int64{}
		disk.Set(func(op faulty.Op) error {
			if strings.HasPrefix(op.Name, "/ssd") && calls.Add(1) == int64(n) {
				return syscall.EIO
			}
			return nil
		})
		err := h.Move(t.Context(), block(1, 7, 0), datanode.SSD, nil)
		disk.Set(nil)
		if err == nil {
			if n < 10 {
				t.Fatalf("only %d calls", n)
			}
			return
		}
		h.wantContent(1, pattern(300_000))
		if h.on(1) != datanode.Disk {
			t.Fatalf("call %d: %v", n, err)
		}
	}
}

func TestReadersAndWritersGoOnWhileAReplicaMoves(t *testing.T) {
	h := open(t, mem.New(1<<26), "/v", "/ssd")
	data := pattern(400_000)
	h.put(1, 7, data)
	var moved, done atomic.Bool
	var g sync.WaitGroup
	for range 2 {
		g.Go(func() {
			for !done.Load() {
				if got := h.content(1); !bytes.Equal(got, data[:len(got)]) || len(got) < 300_000 {
					t.Errorf("%d bytes, equal up to %d", len(got), commonPrefix(got, data))
					return
				}
			}
		})
	}
	g.Go(func() { // recoveries, of the same length, take turns with the moves
		for gen := metadata.Generation(8); !done.Load(); gen++ {
			r, err := h.InitRecovery(block(1, 7, 0), gen)
			if err == nil {
				_, err = h.UpdateReplica(r.Block, gen, r.Block.Length)
			}
			if err != nil {
				t.Errorf("recovery %d: %v", gen, err)
				return
			}
			moved.Store(false)
			for !moved.Load() && !done.Load() {
				h.Store.Wait(t.Context(), 1, 0)
			}
		}
	})
	for i := 0; i < 40; {
		r, ok := h.Replica(1)
		if !ok {
			t.Fatal("it is gone")
		}
		to := datanode.SSD
		if h.on(1) == datanode.SSD {
			to = datanode.Disk
		}
		if h.Move(t.Context(), r.Block, to, nil) == nil {
			i++
			moved.Store(true)
		}
	}
	done.Store(true)
	g.Wait()
	h.wantContent(1, data)
}
