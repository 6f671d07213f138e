package blockstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// until waits for a condition; the limit only bounds a hang.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("it does not come to this: %s", what)
		}
	}
}

// Who takes a replica over while a recovery of it begins, its volume goes, or it is deleted, has lost it when that has been answered.
func TestWhoTakesOverMeanwhileHasLost(t *testing.T) {
	for name, test := range map[string]struct {
		call    func(h *harness, path string) error
		waiting func(r *replica) bool // what call has done before it waits for who takes over
	}{
		"recovery": {
			func(h *harness, _ string) error { _, err := h.InitRecovery(block(1, 7, 0), 20); return err },
			func(r *replica) bool { return r.recovery == 20 },
		},
		"removal of the volume": {
			func(h *harness, path string) error { return h.Remove(path) },
			func(r *replica) bool { return r.gone },
		},
		"deletion": {
			func(h *harness, _ string) error { return h.Delete(block(1, 8, 0)) },
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk := faulty.New(mem.New(1 << 26))
			h := open(t, disk, "/a", "/b")
			h.put(1, 7, pattern(100_000))
			r := h.get(1)
			begun, let := make(chan struct{}), make(chan struct{})
			var once sync.Once
			disk.Set(func(op faulty.Op) error {
				if op.Call == "syncdir" && op.Name == r.vol.dirOf(1) {
					once.Do(func() { close(begun); <-let })
				}
				return nil
			})
			var g sync.WaitGroup
			var w datanode.Writer
			var err, callErr error
			g.Go(func() { w, err = h.Append(block(1, 7, 100_000), 8, false) })
			<-begun
			if test.waiting == nil { // it has done nothing that can be seen
				close(let)
				until(t, "appended to", func() bool { return r.view().State == datanode.RBW })
			}
			g.Go(func() { callErr = test.call(h, r.vol.path) })
			if test.waiting != nil {
				until(t, name, func() bool {
					r.mu.Lock()
					defer r.mu.Unlock()
					return test.waiting(r)
				})
				close(let)
			}
			g.Wait()
			check(t, callErr)
			check(t, err)
			select {
			case <-w.Lost():
			default:
				t.Error("the writer does not know that it has lost the replica")
			}
			if err := w.Write(100_000, pattern(10), nil); err == nil {
				t.Error("the writer goes on")
			}
			check(t, w.Close())
		})
	}
}

// A volume in memory that is to go does not look at its replicas while others are kept from its lists, which who saves one takes with the replica in hand.
func TestVolumeInMemoryIsClearedWhileReplicasAreSaved(t *testing.T) {
	h := open(t, mem.New(1<<24), "/v", "/ram")
	h.lazy(1, pattern(5000))
	v, r := h.ram(), h.get(1)
	h.persist(t.Context(), v)
	var clearing atomic.Bool
	clearing.Store(true)
	var g sync.WaitGroup
	v.memory.saved = append(v.memory.saved, r, r, r)
	r.io.Lock() // it cannot leave
	g.Go(func() {
		defer clearing.Store(false)
		for range 500 {
			if err := h.clear(v); !errors.Is(err, metadata.ErrRetriable) {
				t.Errorf("got %v", err)
			}
		}
	})
	for clearing.Load() {
		r.mu.Lock()
		runtime.Gosched()
		until(t, "the lists are free", v.memory.mu.TryLock) // as isSaved does
		v.memory.mu.Unlock()
		r.mu.Unlock()
	}
	g.Wait()
	r.io.Unlock()
}

// What was to be renamed by a commit is not once its volume has failed: who waited for the commit goes on as if it were not made.
func TestNothingIsRenamedOnAVolumeThatHasFailed(t *testing.T) {
	h := open(t, mem.New(1<<24), "/a", "/b")
	v := h.all()[0]
	v.lead <- struct{}{} // a batch is under way
	var g sync.WaitGroup
	var err error
	renamed := false
	g.Go(func() { err = v.commit(&commit{rename: func() error { renamed = true; return nil }}) })
	var batch []*commit
	until(t, "a commit waits", func() bool {
		v.queueMu.Lock()
		defer v.queueMu.Unlock()
		batch = v.queue
		return len(batch) > 0
	})
	v.queue = nil
	v.fail(syscall.EIO)
	g.Wait()
	wantKind(t, err, metadata.ErrIO)
	v.run(batch)
	if <-v.lead; renamed {
		t.Error("it was renamed")
	}
}

// Everybody at once: writers, appenders, recoveries, readers, moves, deletions, memory that is saved and evicted, volumes that come, go and fail. Nothing is said of who
// wins; nobody may see another's bytes, hang, or count wrongly.
func TestEverybodyAtOnce(t *testing.T) {
	rounds := 40
	if testing.Short() {
		rounds = 12
	}
	for round := range rounds {
		everybodyAtOnce(t, uint64(round))
	}
}

func everybodyAtOnce(t *testing.T, seed uint64) {
	inner := mem.New(1 << 25)
	ticking(inner, seed)
	disk := faulty.New(inner)
	h := open(t, disk, "/a", "/b", "/ssd", "/ram")
	data := pattern(100_000)
	const blocks = 4
	var gens atomic.Int64
	gens.Store(10)
	var g, helpers sync.WaitGroup
	stop := make(chan struct{})
	every := func(n int, do func(r *rand.Rand, b metadata.Block)) {
		r := rand.New(rand.NewPCG(seed, uint64(n)))
		g.Go(func() {
			for range 30 {
				have, ok := h.Replica(metadata.BlockID(r.IntN(blocks) + 1))
				if !ok {
					have.Block = block(int64(r.IntN(blocks)+1), gens.Add(1), 0)
				}
				do(r, have.Block)
			}
		})
	}
	write := func(r *rand.Rand, w datanode.Writer, err error) {
		if err != nil {
			return
		}
		at := w.Replica().Block.Length
		for at < int64(len(data)) && r.IntN(4) > 0 {
			n := min(int64(len(data))-at, int64(r.IntN(20_000)+1))
			if w.Write(at, data[at:at+n], nil) != nil {
				break
			}
			at += n
			w.Acked(at)
			if r.IntN(4) == 0 {
				_ = w.Sync()
			}
		}
		if r.IntN(3) > 0 {
			_, _ = w.Finalize()
		}
		_ = w.Close()
	}
	for i := range 3 {
		every(i, func(r *rand.Rand, b metadata.Block) {
			types := []datanode.StorageType{datanode.Disk, datanode.SSD, datanode.RAMDisk}
			w, err := h.Create(b, datanode.CreateOptions{Type: types[r.IntN(3)], Temporary: r.IntN(5) == 0, Expect: int64(r.IntN(50_000))})
			write(r, w, err)
		})
	}
	every(10, func(r *rand.Rand, b metadata.Block) {
		w, err := h.Append(b, metadata.Generation(gens.Add(1)), r.IntN(2) == 0)
		write(r, w, err)
	})
	every(11, func(r *rand.Rand, b metadata.Block) {
		w, err := h.Resume(b, metadata.Generation(gens.Add(1)), 0, b.Length)
		write(r, w, err)
	})
	every(12, func(_ *rand.Rand, b metadata.Block) { _, _ = h.Store.Close(b, metadata.Generation(gens.Add(1))) })
	every(13, func(r *rand.Rand, b metadata.Block) {
		id := metadata.Generation(gens.Add(1))
		if got, err := h.InitRecovery(b, id); err == nil {
			_, _ = h.UpdateReplica(got.Block, id, r.Int64N(got.Block.Length+1))
		}
	})
	every(14, func(r *rand.Rand, b metadata.Block) {
		if r.IntN(2) == 0 {
			_ = h.Delete(b)
		} else {
			_ = h.Discard(b)
		}
	})
	every(15, func(r *rand.Rand, b metadata.Block) {
		types := []datanode.StorageType{datanode.Disk, datanode.SSD}
		_ = h.Move(t.Context(), b, types[r.IntN(2)], nil)
	})
	for i := range 2 {
		every(20+i, func(_ *rand.Rand, b metadata.Block) {
			rd, err := h.Open(metadata.Block{ID: b.ID})
			if err != nil {
				return
			}
			defer rd.Close()
			got := make([]byte, rd.Replica().Visible)
			if n, err := rd.ReadAt(got, 0); err == nil && string(got[:n]) != string(data[:n]) {
				t.Errorf("block %v has other bytes", rd.Replica())
			}
		})
	}
	every(30, func(_ *rand.Rand, b metadata.Block) {
		_ = h.Verify(t.Context(), b.ID, datanode.VerifyOptions{Tell: true})
		_ = h.CheckSizes(b.ID)
		h.Corrupt()
		for _, v := range h.Volumes() {
			h.Each(v.ID, func(datanode.Replica) bool { return true })
			_ = h.EmptyTrash(v.ID)
		}
	})
	failing := []string{"/a", "/b", "/ssd", "/ram"}[seed%4]
	helpers.Go(func() { // the memory of which is full at times
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, v := range h.all() {
				if v.inMemory() {
					h.persist(t.Context(), v)
					h.evict(v, 1)
				}
			}
			runtime.Gosched()
		}
	})
	helpers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, v := range h.all() {
				if !v.inMemory() && v.err() == nil && v.index.busy.CompareAndSwap(false, true) {
					_, _ = h.index(t.Context(), v, indexSure, func(time.Duration) {}) // an error is the volume's end, or it is gone
					v.index.busy.Store(false)
				}
			}
			runtime.Gosched()
		}
	})
	g.Go(func() { // one comes and goes; another fails for good, or comes back
		for i := range 6 {
			var kind datanode.StorageType
			path := []string{"/a", "/ssd", "/ram"}[(uint64(i)+seed)%3]
			switch path {
			case "/ssd":
				kind = datanode.SSD
			case "/ram":
				kind = datanode.RAMDisk
			}
			if i == 3 {
				disk.Set(faulty.Nth(5, "sync", failing+"/", false, syscall.EIO))
			}
			if h.Remove(path) == nil || i > 3 {
				_ = h.Add(VolumeConfig{Path: path, Type: kind})
			}
		}
	})
	g.Wait()
	close(stop)
	helpers.Wait()
	disk.Set(nil)
	h.mu.Lock()
	for _, c := range h.changes {
		if c.Kind == datanode.Corrupt {
			t.Errorf("seed %d: %v", seed, fmt.Sprint(c))
		}
	}
	h.mu.Unlock()
	check(t, h.Shutdown())
}
