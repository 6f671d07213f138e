package blockstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// lose empties what is in memory, as a machine that starts anew finds it.
func lose(t testing.TB, disk vfs.FS, dir string) {
	t.Helper()
	entries := must[[]vfs.Entry](t)(disk.ReadDir(dir))
	for _, e := range entries {
		if name := filepath.Join(dir, e.Name); e.Dir {
			lose(t, disk, name)
		} else {
			check(t, disk.Remove(name))
		}
	}
	if dir != "/ram" {
		check(t, disk.Remove(dir))
	}
}

// lazy writes a finalized block into memory.
func (h *harness) lazy(id int64, data []byte) {
	h.t.Helper()
	w := must[datanode.Writer](h.t)(h.Create(block(id, 7, 0), datanode.CreateOptions{Type: datanode.RAMDisk, Expect: int64(len(data))}))
	check(h.t, w.Write(0, data, sumsOf(data)))
	w.Acked(int64(len(data)))
	must[datanode.Replica](h.t)(w.Finalize())
}

func (h *harness) ram() *volume {
	for _, v := range h.all() {
		if v.inMemory() {
			return v
		}
	}
	h.t.Fatal("no memory")
	return nil
}

func (h *harness) wantOn(typ datanode.StorageType, ids ...int64) {
	h.t.Helper()
	for _, id := range ids {
		if got := h.on(id); got != typ {
			h.t.Fatalf("block %d is on %v, not %v", id, got, typ)
		}
	}
}

// settled compares what is counted with what is there.
func (h *harness) settled() {
	t, s := h.t, h.Store
	t.Helper()
	used, replicas := map[*volume]int64{}, map[*volume]int64{}
	saved := map[*volume]int64{}
	for i := range s.shards {
		for _, r := range s.shards[i].replicas {
			used[r.vol] += r.length + sumsSize(r.length)
			replicas[r.vol]++
			if c := r.saved.Load(); c != nil {
				used[c.v] += c.size()
				saved[r.vol] += c.size()
			}
		}
		s.shards[i].resting.all(func(e entry) {
			v := s.places.at(e).v
			used[v] += e.length() + sumsSize(e.length())
			replicas[v]++
		})
	}
	for _, v := range s.all() {
		if v.err() == nil && (v.used.Load() != used[v] || v.replicas.Load() != replicas[v] || v.memory.bytes.Load() != saved[v] || v.expected.Load() != 0) {
			t.Fatalf("%s: %d bytes of %d replicas, %d saved, %d expected, want %d, %d, %d, 0", v.path, v.used.Load(), v.replicas.Load(), v.memory.bytes.Load(), v.expected.Load(),
				used[v], replicas[v], saved[v])
		}
	}
}

var lazySizes = []int{1, chunk, 3000, packLimit, packLimit + 1, 700_000}

func TestWhatIsInMemoryIsSaved(t *testing.T) {
	disk := mem.New(1 << 24)
	h := open(t, disk, "/v", "/ram")
	ids := []int64{1, 2, 3, 4, 5, 6}
	for i, n := range lazySizes {
		h.lazy(ids[i], pattern(n))
	}
	h.lazy(7, pattern(5000)) // is not saved
	h.wantOn(datanode.RAMDisk, 1, 2, 3, 4, 5, 6, 7)
	h.ram().memory.fresh = h.ram().memory.fresh[:6]
	h.persist(t.Context(), h.ram())
	h.wantOn(datanode.RAMDisk, ids...)
	if m := h.Memory(); m.Written != 7 || m.Saved != 6 || m.Evicted+m.Fallbacks+m.Left != 0 {
		t.Fatalf("%+v", m)
	}
	if got := h.kinds(6); got != "RECEIVING RECEIVED" { // one replica is told of
		t.Fatal(got)
	}
	h.settled()
	check(t, h.Shutdown())
	// The process starts anew: all is there, and what was saved need not be saved again.
	h = open(t, disk, "/v", "/ram")
	h.wantOn(datanode.RAMDisk, 1, 2, 3, 4, 5, 6, 7)
	if slices.ContainsFunc(ids, func(id int64) bool { return h.get(metadata.BlockID(id)).saved.Load() == nil }) || h.get(7).saved.Load() != nil {
		t.Fatal("it is not known any more what was saved")
	}
	h.settled()
	check(t, h.Shutdown())
	// So does the machine.
	lose(t, disk, "/ram")
	h = open(t, disk, "/v", "/ram")
	h.wantOn(datanode.Disk, ids...)
	for i, n := range lazySizes {
		h.wantContent(ids[i], pattern(n))
	}
	if _, there := h.Replica(7); there {
		t.Fatal("what was not saved is there")
	}
	h.settled()
	h.lazy(8, pattern(100))
	h.wantOn(datanode.RAMDisk, 8)
}

func TestWhatIsSavedLeavesMemoryForOthers(t *testing.T) {
	disk := mem.New(1 << 26)
	h := open(t, disk, "/v", "/ram")
	v := h.ram()
	data := pattern(100_000)
	for id := range int64(4) {
		h.lazy(id+1, data)
	}
	half := func() { v.reserve = must[vfs.Usage](t)(v.usage()).Free - 50_000 } // room for half of one more
	half()
	w := must[datanode.Writer](t)(h.Create(block(5, 7, 0), datanode.CreateOptions{Type: datanode.RAMDisk, Expect: 100_000}))
	check(t, w.Close())
	h.wantOn(datanode.Disk, 5) // nothing is saved
	h.persist(t.Context(), v)
	half() // the volumes share a disk here
	for _, s := range h.Volumes() {
		if s.Type == datanode.RAMDisk && s.Remaining < 400_000 {
			t.Fatalf("%d bytes remain, the saved ones are as good as free", s.Remaining)
		}
	}
	h.wantContent(1, data) // so that it stays for a while
	before := must[datanode.Reader](t)(h.Store.Open(block(2, 7, 0)))
	h.lazy(6, data)
	h.wantOn(datanode.RAMDisk, 1, 4, 6)
	h.wantOn(datanode.Disk, 3)
	p := make([]byte, len(data))
	if _, err := before.ReadAt(p, 0); err != nil || !bytes.Equal(p, data) {
		t.Fatalf("a reader that had it open: %v", err)
	}
	check(t, before.Close())
	for id := range int64(4) {
		h.wantContent(id+1, data)
	}
	if m := h.Memory(); m.Evicted == 0 || m.Fallbacks != 1 {
		t.Fatalf("%+v", m)
	}
	check(t, h.Delete(block(5, 7, 0)))
	h.settled()
	if got := h.kinds(3); got != "RECEIVING RECEIVED RECEIVED" {
		t.Fatal(got)
	}
}

func TestWhatWasSavedChangesOnItsDisk(t *testing.T) {
	for _, n := range lazySizes {
		disk := mem.New(1 << 24)
		h := open(t, disk, "/v", "/ram")
		data := pattern(n)
		for id := range int64(6) {
			h.lazy(id+1, data)
		}
		h.persist(t.Context(), h.ram())
		h.ram().reserve = 1 << 40 // it is full
		w := must[datanode.Writer](t)(h.Append(block(1, 7, int64(n)), 8, false))
		check(t, w.Write(int64(n), []byte("more"), nil))
		w.Acked(int64(n) + 4)
		must[datanode.Replica](t)(w.Finalize())
		must[datanode.Replica](t)(h.Store.Close(block(2, 7, int64(n)), 9))
		must[datanode.Replica](t)(h.InitRecovery(block(3, 7, 0), 9))
		must[datanode.Replica](t)(h.UpdateReplica(block(3, 7, 0), 9, int64(n)/2))
		check(t, h.Move(t.Context(), block(4, 7, 0), datanode.Disk, func(int64) error { t.Error("it is there already"); return nil }))
		h.wantOn(datanode.Disk, 1, 2, 3, 4)
		check(t, h.Delete(block(5, 7, 0)))
		if entries := must[[]vfs.Entry](t)(disk.ReadDir(h.all()[0].dirOf(5))); strings.Contains(fmt.Sprint(entries), "blk_5") {
			t.Fatalf("what was deleted is there: %v", entries)
		}
		h.wantOn(datanode.RAMDisk, 6)
		h.settled()
		check(t, h.Shutdown())
		lose(t, disk, "/ram")
		h = open(t, disk, "/v", "/ram")
		h.wantContent(1, append(bytes.Clone(data), "more"...))
		h.wantContent(2, data)
		h.wantContent(3, data[:n/2])
		h.wantContent(4, data)
		h.wantContent(6, data)
		h.settled()
		check(t, h.Shutdown())
	}
}

func TestWhatIsSyncedLeavesMemory(t *testing.T) {
	for _, n := range lazySizes {
		inner := mem.New(1 << 24)
		h := open(t, inner, "/v", "/ram")
		data := pattern(2 * n)
		w := must[datanode.Writer](t)(h.Create(block(1, 7, 0), datanode.CreateOptions{Type: datanode.RAMDisk, Expect: 1 << 20}))
		check(t, w.Write(0, data[:n], nil))
		w.Acked(int64(n) / 2)
		h.wantOn(datanode.RAMDisk, 1)
		check(t, w.Sync())
		h.wantOn(datanode.Disk, 1)
		w.Acked(int64(n))
		crash := inner.Crash(rand.New(rand.NewPCG(1, 2)), 0)
		lose(t, crash, "/ram")
		c := open(t, crash, "/v", "/ram")
		if r, ok := c.Replica(1); !ok || r.State != datanode.RWR || r.Block.Length != int64(n) {
			t.Fatalf("after the sync of %d bytes there is %v", n, r)
		}
		check(t, c.Shutdown())
		check(t, w.Write(int64(n), data[n:], nil))
		if got := w.Replica(); got.Visible != int64(n) || got.Block.Length != int64(2*n) {
			t.Fatal(got)
		}
		w.Acked(int64(2 * n))
		must[datanode.Replica](t)(w.Finalize())
		h.wantContent(1, data)
		if m := h.Memory(); m.Left != 1 {
			t.Fatalf("%+v", m)
		}
		h.settled()
		check(t, h.Shutdown())
	}
}

// Power is cut before some call to the disks; memory is empty then, or is there when only the process ended.
func TestPowerCutLosesNothingSaved(t *testing.T) {
	seeds := 150
	if testing.Short() {
		seeds = 30
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inner := mem.New(1 << 20)
			disk := faulty.New(inner)
			s := newStoryOn(t, seed, disk, "/v", "/ram")
			s.memory = true
			cut := rand.New(rand.NewPCG(seed, 8))
			type crash struct {
				disk     *mem.FS
				promises map[int64]promise
			}
			var crashes []crash
			disk.Set(func(op faulty.Op) error {
				s.log = append(s.log, fmt.Sprint(op))
				if cut.IntN(40) != 0 {
					return nil
				}
				p := map[int64]promise{}
				for k, v := range s.promises {
					p[k] = v
				}
				survive := []float64{0, 0.1, 0.5, 0.9, 1}[cut.IntN(5)]
				left := inner.Crash(cut, survive)
				if survive < 1 {
					lose(t, left, "/ram")
				}
				s.log = append(s.log, fmt.Sprint("crash ", len(crashes), " with ", survive))
				crashes = append(crashes, crash{left, p})
				return nil
			})
			for range 150 {
				check(t, s.step())
			}
			disk.Set(nil)
			for _, w := range s.writers {
				check(t, w.Close())
			}
			s.settled()
			for i, c := range crashes {
				s.verify(t, i, c.disk, c.promises)
			}
		})
	}
}

// Each call of a save in turn fails: the replica stays in memory, and is saved elsewhere, or later.
func TestEveryCallOfASaveMayFail(t *testing.T) {
	for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
		for n := 1; ; n++ {
			inner := mem.New(1 << 24)
			disk := faulty.New(inner)
			h := open(t, disk, "/v1", "/v2", "/ram")
			h.lazy(1, pattern(300_000))
			var calls atomic.Int64
			failed := ""
			disk.Set(func(op faulty.Op) error {
				if strings.HasPrefix(op.Name, "/v") && calls.Add(1) == int64(n) {
					failed = fmt.Sprintf("%v at %v, call %d", cause, op, n)
					return cause
				}
				return nil
			})
			h.persist(t.Context(), h.ram())
			disk.Set(nil)
			h.wantOn(datanode.RAMDisk, 1)
			h.wantContent(1, pattern(300_000))
			h.persist(t.Context(), h.ram())
			h.settled()
			check(t, h.Shutdown())
			left := inner.Crash(rand.New(rand.NewPCG(uint64(n), 2)), 0)
			lose(t, left, "/ram")
			h = open(t, left, "/v1", "/v2", "/ram")
			if _, there := h.Replica(1); !there {
				t.Fatal(failed)
			}
			h.wantContent(1, pattern(300_000))
			check(t, h.Shutdown())
			if failed == "" {
				if n < 10 {
					t.Fatalf("only %d calls", n)
				}
				break
			}
		}
	}
}

// A volume in memory is taken out while blocks are written there, finished, recovered, and gone on with: nothing that was
// acknowledged is lost, and who writes goes on.
func TestMemoryGoesWhileItIsWrittenTo(t *testing.T) {
	h := open(t, mem.New(1<<26), "/v", "/ram")
	for round := range 10 {
		stop := make(chan struct{})
		var wg sync.WaitGroup
		written := make([][]metadata.Block, 4)
		for at := range written {
			wg.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					id := int64(1 + at + n*len(written) + round*100_000)
					w, err := h.Create(block(id, 7, 0), datanode.CreateOptions{Type: datanode.RAMDisk})
					length := 0
					for gen := int64(8); err == nil && length < 6000; gen++ {
						err = w.Write(int64(length), pattern(length + 2000)[length:], nil)
						length += 2000
						w.Acked(int64(length))
						if err != nil || (length/2000+n)%2 == 0 {
							continue
						}
						var r datanode.Replica
						if r, err = w.Finalize(); err == nil && length < 6000 { // what is finished is gone on with
							if w, err = h.Append(r.Block, metadata.Generation(gen), false); errors.Is(err, errRemoved) {
								err = nil
								break // it has to be brought to a disk first
							}
						}
					}
					if r, _ := h.Replica(metadata.BlockID(id)); err == nil && r.State != datanode.Finalized { // somebody else does the last part
						check(t, w.Close())
						if _, err = h.InitRecovery(r.Block, 99); err == nil {
							_, err = h.UpdateReplica(r.Block, 99, int64(length))
						}
					}
					if err != nil {
						t.Errorf("block %d: %v", id, err)
						return
					}
					written[at] = append(written[at], block(id, 7, int64(length)))
				}
			})
		}
		time.Sleep(time.Duration(round) * time.Millisecond)
		err := h.Remove("/ram")
		for errors.Is(err, metadata.ErrRetriable) {
			err = h.Remove("/ram")
		}
		check(t, err)
		close(stop)
		wg.Wait()
		for _, blocks := range written {
			for _, b := range blocks {
				h.wantOn(datanode.Disk, int64(b.ID))
				h.wantContent(int64(b.ID), pattern(int(b.Length)))
				check(t, h.Delete(must2(h.Replica(b.ID)).Block))
			}
		}
		check(t, h.Add(VolumeConfig{Path: "/ram", Type: datanode.RAMDisk}))
		h.settled()
	}
}

// A writer that waits for a disk which does not answer keeps its memory where it is, and nobody else waiting.
func TestMemoryStaysWhileAWriterWaitsForADisk(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	h := open(t, disk, "/v", "/ram")
	h.ram().endWait = 50 * time.Millisecond
	w := must[datanode.Writer](t)(h.Create(block(1, 7, 0), datanode.CreateOptions{Type: datanode.RAMDisk}))
	check(t, w.Write(0, pattern(50_000), nil))
	begun, let := make(chan struct{}), make(chan struct{})
	var once sync.Once
	disk.Set(func(op faulty.Op) error {
		if op.Call == "write" && strings.HasPrefix(op.Name, "/v/") {
			once.Do(func() { close(begun); <-let })
		}
		return nil
	})
	var syncing sync.WaitGroup
	syncing.Go(func() { check(t, w.Sync()) })
	<-begun
	wantKind(t, h.Remove("/ram"), metadata.ErrRetriable)
	h.lazy(2, pattern(100))
	h.wantOn(datanode.RAMDisk, 2)
	close(let)
	syncing.Wait()
	check(t, h.Remove("/ram"))
	must[datanode.Replica](t)(w.Finalize())
	h.wantOn(datanode.Disk, 1, 2)
	h.wantContent(1, pattern(50_000))
}

func TestMemoryThatFailsOrGoesLeavesWhatWasSaved(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	h := open(t, disk, "/v", "/v2", "/ram")
	for id := range int64(4) {
		h.lazy(id+1, pattern(50_000))
	}
	// The disk of the copies fails: they are made again on the other one.
	h.persist(t.Context(), h.ram())
	first := h.all()[0]
	first.fail(syscall.EIO)
	h.persist(t.Context(), h.ram())
	for _, r := range h.ram().memory.saved {
		if c := r.saved.Load(); c.v == first {
			t.Fatal("the copy is on a volume that has failed")
		}
	}
	// A damaged replica gives way to its copy.
	h.markCorrupt(h.get(1))
	h.persist(t.Context(), h.ram())
	h.wantOn(datanode.Disk, 1)
	h.wantContent(1, pattern(50_000))
	// The volume is given back.
	h.lazy(5, pattern(50_000))
	check(t, h.Remove("/ram"))
	h.wantOn(datanode.Disk, 2, 3, 4, 5)
	check(t, h.Add(VolumeConfig{Path: "/ram", Type: datanode.RAMDisk}))
	h.lazy(6, pattern(50_000))
	h.persist(t.Context(), h.ram())
	h.lazy(7, pattern(50_000))
	// It fails.
	h.ram().fail(syscall.EIO)
	if _, there := h.Replica(6); there {
		t.Fatal("it is there before its copy is")
	}
	h.persist(t.Context(), h.ram())
	h.wantOn(datanode.Disk, 6)
	if _, there := h.Replica(7); there {
		t.Fatal("it was not saved")
	}
	wantKind(t, h.Remove("/v2"), metadata.ErrInvalidArgument) // the last disk
	for id := range int64(6) {
		h.wantContent(id+1, pattern(50_000))
	}
	check(t, h.Shutdown())
}

// The block is not there while its volume has failed and its copy has not taken over, but the copy is.
func TestWhatWasSavedIsNotOverwritten(t *testing.T) {
	h := open(t, mem.New(1<<24), "/v", "/ram")
	h.lazy(1, pattern(50_000))
	h.persist(t.Context(), h.ram())
	h.ram().fail(syscall.EIO)
	if w, err := h.Create(block(1, 9, 0), datanode.CreateOptions{}); err == nil {
		_ = w.Close()
		t.Error("another replica of the block is begun where its copy is")
	} else {
		wantKind(t, err, metadata.ErrRetriable)
	}
	h.persist(t.Context(), h.ram())
	h.wantContent(1, pattern(50_000))
}

// A block that leaves memory for a disk is not begun anew there meanwhile, though its volume has failed: the files would be the same.
func TestWhatLeavesMemoryIsNotOverwritten(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	h := open(t, disk, "/v", "/ram")
	data := pattern(50_000)
	w := must[datanode.Writer](t)(h.Create(block(1, 7, 0), datanode.CreateOptions{Type: datanode.RAMDisk}))
	check(t, w.Write(0, data, nil))
	w.Acked(50_000)
	var met atomic.Bool
	disk.Set(func(op faulty.Op) error {
		if op.Call != "open" || !strings.HasPrefix(op.Name, "/v/blocks/") || !met.CompareAndSwap(false, true) {
			return nil
		}
		h.ram().fail(syscall.EIO)
		other, err := h.Create(block(1, 9, 0), datanode.CreateOptions{})
		if err == nil {
			t.Error("another replica of the block is begun where this one goes")
			check(t, other.Write(0, data, nil))
			must[datanode.Replica](t)(other.Finalize())
			return nil
		}
		if !errors.Is(err, metadata.ErrRetriable) {
			t.Errorf("got %v", err)
		}
		return nil
	})
	err := w.Sync()
	if !met.Load() {
		t.Fatal("it did not leave")
	}
	if err == nil {
		w.Acked(50_000)
		must[datanode.Replica](t)(w.Finalize())
	}
	h.wantOn(datanode.Disk, 1)
	h.wantContent(1, data)
	check(t, h.CheckSizes(1))
	h.settled()
	check(t, h.Shutdown())
}

// Who comes to bring a replica out of memory that has failed finds another one in its place, and leaves that alone.
func TestWhatWasBegunAnewIsNotOverwrittenFromMemory(t *testing.T) {
	h := open(t, mem.New(1<<24), "/v", "/ram")
	data := pattern(50_000)
	w := must[datanode.Writer](t)(h.Create(block(1, 7, 0), datanode.CreateOptions{Type: datanode.RAMDisk}))
	check(t, w.Write(0, data[:40_000], nil))
	old := h.get(1)
	h.ram().fail(syscall.EIO)
	other := must[datanode.Writer](t)(h.Create(block(1, 9, 0), datanode.CreateOptions{}))
	check(t, other.Write(0, data[:45_000], nil))
	if err := h.depart(old); err == nil {
		t.Error("it has left, with another one in its place")
	}
	check(t, other.Write(45_000, data[45_000:], nil))
	must[datanode.Replica](t)(other.Finalize())
	h.wantOn(datanode.Disk, 1)
	h.wantContent(1, data)
	check(t, h.CheckSizes(1))
	h.settled()
	check(t, w.Close())
	check(t, h.Shutdown())
}

func TestMemoryAloneIsNoDatanode(t *testing.T) {
	disk := faulty.New(mem.New(1 << 24))
	_, err := tryOpen(t, disk, "/ram")
	wantKind(t, err, metadata.ErrInvalidArgument)
	h := open(t, disk, "/v", "/ram")
	check(t, h.Shutdown())
	lose(t, disk, "/ram")
	disk.Set(faulty.Nth(1, "", "/v", true, syscall.EIO))
	if _, err := tryOpen(t, disk, "/v", "/ram"); err == nil {
		t.Fatal("it begins as another datanode")
	}
	disk.Set(nil)
	h = open(t, disk, "/v", "/ram", "/v2") // a disk that is new beside memory that is empty
	check(t, h.Shutdown())
}

// Readers, saves, evictions, appends and deletions of the same blocks at the same time.
func TestMemoryUnderLoad(t *testing.T) {
	h := open(t, mem.New(1<<26), "/v", "/ram")
	data := pattern(80_000)
	var done atomic.Bool
	var g sync.WaitGroup
	g.Go(func() {
		for !done.Load() {
			h.persist(context.Background(), h.ram())
			h.evict(h.ram(), 100_000)
		}
	})
	g.Go(func() {
		for i := 0; !done.Load(); i++ {
			rd, err := h.Store.Open(block(int64(i%4+1), 0, 0))
			if err != nil {
				continue
			}
			n := rd.Replica().Visible
			p := make([]byte, n)
			if _, err := rd.ReadAt(p, 0); err == nil && !bytes.Equal(p, data[:n]) {
				t.Error("other bytes")
			}
			rd.Close()
		}
	})
	for i := range int64(200) {
		id, gen := i%4+1, 100+i
		r, there := h.Replica(metadata.BlockID(id))
		switch {
		case !there:
			w := must[datanode.Writer](t)(h.Create(block(id, gen, 0), datanode.CreateOptions{Type: datanode.RAMDisk}))
			check(t, w.Write(0, data[:40_000], nil))
			w.Acked(40_000)
			if i%3 == 0 {
				check(t, w.Sync())
			}
			must[datanode.Replica](t)(w.Finalize())
		case r.Block.Length < 60_000:
			w := must[datanode.Writer](t)(h.Append(r.Block, metadata.Generation(gen), false))
			check(t, w.Write(r.Block.Length, data[r.Block.Length:r.Block.Length+20_000], nil))
			w.Acked(r.Block.Length + 20_000)
			must[datanode.Replica](t)(w.Finalize())
		default:
			h.wantContent(id, data[:r.Block.Length])
			check(t, h.Delete(r.Block))
		}
	}
	done.Store(true)
	g.Wait()
	h.settled()
}
