package blockstore

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
)

// restart ends the process, as kill -9 does if its disk does not answer any more, and begins another one with what the page cache has.
func (s *story) restart(t *testing.T, disk *faulty.FS, rule faulty.Rule, unsynced bool, volumes []string) {
	t.Helper()
	_ = s.Shutdown()
	clear(s.writers)
	limit := s.all()[0].packLimit
	disk.Set(rule)
	s.harness = open(t, disk, volumes...)
	for _, v := range s.all() {
		v.packSize, v.packLimit = 16<<10, limit
	}
	s.cfg.Unsynced = unsynced
	every(s.Store, func(v datanode.Replica) bool {
		s.emptied[int64(v.Block.ID)] = s.emptied[int64(v.Block.ID)] || v.Block.Length == 0
		return true
	})
}

// reseat takes a volume out and puts it in again.
func (s *story) reseat(path string) error {
	limit := s.all()[0].packLimit
	err := s.Remove(path)
	if err == nil {
		err = s.Add(VolumeConfig{Path: path, Type: datanode.SSD})
	}
	for _, v := range s.all() {
		v.packSize, v.packLimit = 16<<10, limit
	}
	for id, w := range s.writers {
		select {
		case <-w.Lost():
			delete(s.writers, id)
		default:
		}
	}
	return err
}

// A datanode that is killed at any call of its disk starts again on what the page cache has, syncing what it closes or not, its disk is full now and then, a volume
// is taken out and put in again, and at any call the power fails: then nothing is lost that was synced, and what claims to be finalized is whole.
func TestPowerCutAfterKilledProcessesLosesNothingPromised(t *testing.T) {
	seeds := 200
	if testing.Short() {
		seeds = 40
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inner := mem.New(1 << 20)
			disk := faulty.New(inner)
			s := newStory(t, seed, disk)
			if seed%4 > 1 {
				s.indexed(inner, seed)
			}
			s.cfg.Unsynced = true
			var volumes []string
			for _, v := range s.all() {
				volumes = append(volumes, v.path)
			}
			random := rand.New(rand.NewPCG(seed, 8))
			type crash struct {
				disk     *mem.FS
				promises map[int64]promise
			}
			var crashes []crash
			calls := -1 // so many are made before the process ends; -1: it does not
			full, wasFull := false, false
			var mu sync.Mutex // volumes are opened side by side
			rule := func(op faulty.Op) error {
				mu.Lock()
				defer mu.Unlock()
				s.log = append(s.log, fmt.Sprint(op))
				if calls == 0 {
					return syscall.EIO
				}
				calls = max(calls-1, -1)
				if random.IntN(40) == 0 {
					survive := []float64{0, 0.1, 0.5, 0.9, 1}[random.IntN(5)]
					s.log = append(s.log, fmt.Sprint("crash ", len(crashes), " with ", survive))
					crashes = append(crashes, crash{inner.Crash(random, survive), maps.Clone(s.promises)})
				}
				if full && slices.Contains([]string{"write", "rename", "mkdir"}, op.Call) {
					return syscall.ENOSPC
				}
				return nil
			}
			disk.Set(rule)
			for range 120 {
				if random.IntN(6) == 0 {
					calls = random.IntN(20)
				}
				full = random.IntN(8) == 0
				var err error
				if len(volumes) > 1 && random.IntN(20) == 0 {
					full = false
					err = s.reseat("/ssd")
				} else {
					err = s.step()
				}
				if calls < 0 {
					if wasFull = wasFull || full; !wasFull { // after which a recovery may go on for ever
						check(t, err)
					}
					for _, v := range s.all() {
						check(t, v.err())
					}
					continue
				}
				s.log = append(s.log, "killed")
				calls, full, wasFull = -1, false, false
				s.restart(t, disk, rule, random.IntN(4) > 0, volumes)
			}
			disk.Set(nil)
			for i, c := range crashes {
				s.verify(t, i, c.disk, c.promises)
			}
		})
	}
}

// Bytes inside a chunk that an hsync has made durable stay, whatever a process was at when it was killed, and the next one when the power failed: no tail that is not
// durable yet takes the place of theirs.
func TestHsyncInsideAChunkOutlivesAKilledProcess(t *testing.T) {
	const synced, end = 700, 900
	b := block(1, 5, end)
	recovered := func(length int64) func(h *harness) error {
		return func(h *harness) error {
			_, err := h.InitRecovery(b, 9)
			if err == nil {
				_, err = h.UpdateReplica(b, 9, length)
			}
			return err
		}
	}
	for name, second := range map[string]func(h *harness) error{
		"recover": recovered(end),
		"cut":     recovered(end - 100),
		"append": func(h *harness) error {
			w, err := h.Append(b, 9, false)
			if err == nil {
				err = errors.Join(w.Write(end, pattern(end + 50)[end:], nil), w.Sync())
			}
			return err
		},
	} {
		for what, first := range map[string]func(w datanode.Writer) error{
			"sync":     datanode.Writer.Sync,
			"finalize": func(w datanode.Writer) error { _, err := w.Finalize(); return err },
		} {
			t.Run(what+" and "+name, func(t *testing.T) {
				for n, killed := 1, true; killed; n++ {
					inner := mem.New(1 << 20)
					disk := faulty.New(inner)
					h := open(t, disk)
					w := must[datanode.Writer](t)(h.Create(block(1, 5, 0), datanode.CreateOptions{}))
					check(t, w.Write(0, pattern(synced), nil))
					check(t, w.Sync())
					check(t, w.Write(synced, pattern(end)[synced:], nil))
					w.Acked(end)
					disk.Set(faulty.Nth(n, "", "", true, syscall.EIO))
					killed = first(w) != nil
					_ = h.Shutdown()
					disk.Set(nil)
					h = open(t, disk)
					random := rand.New(rand.NewPCG(uint64(n), 3))
					var crashes []*mem.FS
					disk.Set(func(op faulty.Op) error {
						if strings.Contains(op.Call, "sync") || op.Call == "rename" { // what was written before may be there or not
							for range 20 {
								crashes = append(crashes, inner.Crash(random, 0.5))
							}
						}
						return nil
					})
					_ = second(h) // some cannot be done to what is there
					disk.Set(nil)
					for _, c := range crashes {
						h := open(t, c)
						rep, ok := h.Replica(1)
						if !ok || rep.Block.Length < synced {
							t.Fatalf("killed at call %d: %v, %v is left", n, rep, ok)
						}
						check(t, h.Shutdown())
					}
				}
			})
		}
	}
}
