package blockstore

import (
	"errors"
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
