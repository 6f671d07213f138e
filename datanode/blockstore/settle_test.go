package blockstore

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// unsynced opens a store that does not sync what it finalizes, and counts the syncs of its disk from then on.
func unsynced(t *testing.T, inner *mem.FS) (*harness, *atomic.Int64) {
	disk := faulty.New(inner)
	h := open(t, disk)
	h.cfg.Unsynced = true
	n := new(atomic.Int64)
	disk.Set(func(op faulty.Op) error {
		if strings.Contains(op.Call, "sync") {
			n.Add(1)
		}
		return nil
	})
	return h, n
}

func (h *harness) suffixOf(id metadata.BlockID) suffix {
	r := h.get(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.suffix
}

func (h *harness) settleAll() {
	for _, v := range h.all() {
		h.settle(context.Background(), v, time.Now())
	}
}

func TestFinalizedWithoutSync(t *testing.T) {
	inner := mem.New(1 << 20)
	h, syncs := unsynced(t, inner)
	h.put(1, 5, pattern(300)) // makes the pack
	before := syncs.Load()
	h.put(2, 5, pattern(301))
	h.put(300, 5, pattern(40_001)) // makes a directory
	h.put(301, 5, pattern(40_002))
	if made := syncs.Load() - before; made > 2 {
		t.Errorf("%d syncs for a packed block, one in a new directory and one in the same", made)
	}
	before = syncs.Load()
	h.put(3, 5, pattern(100))
	h.put(302, 5, pattern(70_003))
	if syncs.Load() != before {
		t.Errorf("%d syncs for two blocks where there is nothing to make", syncs.Load()-before)
	}
	h.settleAll()
	after := syncs.Load()
	if after == before {
		t.Error("nothing was synced later")
	}
	if h.settleAll(); syncs.Load() != after {
		t.Error("and again")
	}
	crashed := open(t, inner.Crash(rand.New(rand.NewPCG(1, 1)), 0))
	for id, n := range map[int64]int{1: 300, 2: 301, 3: 100, 300: 40_001, 301: 40_002, 302: 70_003} {
		crashed.wantContent(id, pattern(n))
	}
}

func TestSettleLooksAgainAndAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := unsynced(t, mem.New(1<<20))
		go h.Settle(t.Context())
		for id := int64(1); id <= 3; id++ {
			h.put(id, 5, pattern(40_001))
			if time.Sleep(settleAfter / 2); h.suffixOf(metadata.BlockID(id)) != sufUnsynced {
				t.Errorf("block %d is synced at once", id)
			}
			if time.Sleep(settleAfter); h.suffixOf(metadata.BlockID(id)) != sufMeta {
				t.Errorf("block %d is not synced", id)
			}
		}
	})
}

// A client that syncs gets what it asked for, the name of a finished replica included.
func TestSyncedAsAWholeIsFinalizedSynced(t *testing.T) {
	inner := mem.New(1 << 20)
	h, _ := unsynced(t, inner)
	for id, n := range map[int64]int{1: 300, 2: 40_001} {
		w := must[datanode.Writer](t)(h.Create(block(id, 5, 0), datanode.CreateOptions{}))
		check(t, w.Write(0, pattern(n), nil))
		if w.Durable() {
			t.Error("the store says that it syncs")
		}
		check(t, w.Sync())
		w.Acked(int64(n))
		must[datanode.Replica](t)(w.Finalize())
	}
	crashed := open(t, inner.Crash(rand.New(rand.NewPCG(1, 1)), 0))
	crashed.wantContent(1, pattern(300))
	crashed.wantContent(2, pattern(40_001))
}

// A replica of which something is durable is durable at its end: of one that is not whole after a power cut nobody gets anything, and so is a copy, for which the
// replica that it was copied from may go.
func TestWhatIsCountedOnIsFinalizedSynced(t *testing.T) {
	for name, write := range map[string]func(h *harness) datanode.Writer{
		"synced before": func(h *harness) datanode.Writer {
			w := must[datanode.Writer](t)(h.Create(block(1, 5, 0), datanode.CreateOptions{}))
			check(t, w.Write(0, pattern(300), nil))
			check(t, w.Sync())
			check(t, w.Write(300, pattern(40_001)[300:], nil))
			return w
		},
		"appended to": func(h *harness) datanode.Writer {
			h.put(1, 5, pattern(40_000))
			h.settleAll()
			w := must[datanode.Writer](t)(h.Append(block(1, 5, 40_000), 6, false))
			check(t, w.Write(40_000, pattern(40_001)[40_000:], nil))
			return w
		},
		"a copy": func(h *harness) datanode.Writer {
			w := must[datanode.Writer](t)(h.Create(block(1, 5, 0), datanode.CreateOptions{Temporary: true}))
			check(t, w.Write(0, pattern(40_001), nil))
			if !w.Durable() {
				t.Error("the store says that it does not sync")
			}
			return w
		},
	} {
		t.Run(name, func(t *testing.T) {
			inner := mem.New(1 << 20)
			h, _ := unsynced(t, inner)
			w := write(h)
			w.Acked(40_001)
			must[datanode.Replica](t)(w.Finalize())
			open(t, inner.Crash(rand.New(rand.NewPCG(1, 1)), 0)).wantContent(1, pattern(40_001))
		})
	}
}

// What cannot be synced because the disk is full, or too many files are open, is synced later.
func TestSettleTriesAgain(t *testing.T) {
	inner := mem.New(1 << 20)
	disk := faulty.New(inner)
	h := open(t, disk)
	h.cfg.Unsynced = true
	h.put(1, 5, pattern(40_001))
	for _, rule := range []faulty.Rule{
		faulty.Nth(1, "open", "", true, syscall.EMFILE), faulty.Nth(1, "write", "", true, syscall.ENOSPC), faulty.Nth(1, "rename", "", true, syscall.ENOSPC),
	} {
		disk.Set(rule)
		if h.settleAll(); h.suffixOf(1) != sufUnsynced {
			t.Fatal("it was synced")
		}
	}
	disk.Set(nil)
	if h.settleAll(); h.suffixOf(1) != sufMeta {
		t.Error("it is not synced")
	}
}

// Replicas are synced side by side: one after another, small ones come faster than they are synced.
func TestSettleSyncsSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := faulty.New(mem.New(1 << 24))
		h := open(t, disk)
		h.cfg.Unsynced = true
		for id := int64(1); id <= 10*settlers; id++ {
			h.put(id, 5, pattern(packLimit+1))
		}
		disk.Set(func(op faulty.Op) error {
			if strings.Contains(op.Call, "sync") {
				time.Sleep(time.Second)
			}
			return nil
		})
		begin := time.Now()
		h.settleAll()
		if took := time.Since(begin); took > 10*settlers*time.Second {
			t.Errorf("%d replicas took %v", 10*settlers, took)
		}
	})
}

// What is found of a replica that was finalized unsynced: whole, it is finalized whoever asks, and is synced; not whole, it is what a datanode leaves that ended
// while it was written, of which the namenode thinks nothing if it knows of a finished one.
func TestUnsyncedAtStart(t *testing.T) {
	const length = 5000
	for name, damage := range map[string]func(t *testing.T, disk vfs.FS, data, sums string){
		"whole":        func(*testing.T, vfs.FS, string, string) {},
		"a wrong byte": func(t *testing.T, disk vfs.FS, data, _ string) { writeAt(t, disk, data, 3000, 1) },
		"a wrong sum":  func(t *testing.T, disk vfs.FS, _, sums string) { writeAt(t, disk, sums, sumOffset(3000), 4) },
		"no header":    func(t *testing.T, disk vfs.FS, _, sums string) { writeAt(t, disk, sums, 0, headerSize) },
		"shorter": func(t *testing.T, disk vfs.FS, data, sums string) {
			cut(t, disk, data, 2048)
			cut(t, disk, sums, sumsSize(2048))
		},
		"data is empty": func(t *testing.T, disk vfs.FS, data, _ string) { cut(t, disk, data, 0) },
		"sums are empty": func(t *testing.T, disk vfs.FS, _, sums string) {
			cut(t, disk, sums, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inner := mem.New(1 << 20)
			h, _ := unsynced(t, inner)
			h.all()[0].packLimit = 0
			h.put(1, 5, pattern(length))
			r := h.get(1)
			data, sums := r.vol.dataPath(1), r.sumsPath()
			check(t, h.Shutdown())
			damage(t, inner, data, sums)
			h, _ = unsynced(t, inner)
			rep, _ := h.Replica(1)
			if name != "whole" {
				if rep.State != datanode.RWR || rep.Block.Length >= length || rep.Block.Generation != 5 {
					t.Fatalf("is %v", rep)
				}
				_, err := h.Store.Open(rep.Block)
				wantKind(t, err, metadata.ErrReplicaNotFound)
				return
			}
			h.wantContent(1, pattern(length))
			if h.suffixOf(1) != sufUnsynced {
				t.Error("it was synced at once")
			}
			if h.settleAll(); h.suffixOf(1) != sufMeta {
				t.Error("it is not synced later")
			}
		})
	}
}

func writeAt(t *testing.T, disk vfs.FS, name string, off int64, n int) {
	f := must[vfs.File](t)(disk.OpenFile(name, os.O_RDWR, 0))
	b := make([]byte, n)
	_, err := f.ReadAt(b, off)
	check(t, err)
	for i := range b {
		b[i] ^= 0x55
	}
	_, err = f.WriteAt(b, off)
	check(t, err)
	check(t, f.Close())
}

func cut(t *testing.T, disk vfs.FS, name string, n int64) {
	f := must[vfs.File](t)(disk.OpenFile(name, os.O_RDWR, 0))
	check(t, f.Truncate(n))
	check(t, f.Close())
}

// Whatever is done to a replica that is not synced yet is done to its files under their names.
func TestUnsyncedReplicaIsAsAnyOther(t *testing.T) {
	for name, do := range map[string]func(h *harness, b metadata.Block){
		"delete":  func(h *harness, b metadata.Block) { check(h.t, h.Delete(b)) },
		"discard": func(h *harness, b metadata.Block) { check(h.t, h.Discard(b)) },
		"restamp": func(h *harness, b metadata.Block) { must[datanode.Replica](h.t)(h.Store.Close(b, 9)) },
		"recover": func(h *harness, b metadata.Block) {
			must[datanode.Replica](h.t)(h.InitRecovery(b, 9))
			must[datanode.Replica](h.t)(h.UpdateReplica(b, 9, 1234))
		},
		"append": func(h *harness, b metadata.Block) {
			w := must[datanode.Writer](h.t)(h.Append(b, 9, false))
			check(h.t, w.Write(b.Length, pattern(60_000)[b.Length:], nil))
			w.Acked(60_000)
			must[datanode.Replica](h.t)(w.Finalize())
		},
	} {
		t.Run(name, func(t *testing.T) {
			inner := mem.New(1 << 20)
			h, _ := unsynced(t, inner)
			h.put(1, 5, pattern(40_001))
			do(h, block(1, 5, 40_001))
			h.settleAll()
			rep, have := h.Replica(1)
			var want []byte
			if have {
				want = h.content(1)
			}
			names := []string{}
			for _, e := range must[[]vfs.Entry](t)(inner.ReadDir("/v/blocks/00/00")) {
				if !strings.Contains(e.Name, ".lost") {
					names = append(names, e.Name)
				}
			}
			if have && len(names) != 2 || !have && len(names) != 0 {
				t.Errorf("the files are %q", names)
			}
			check(t, h.Shutdown())
			after := open(t, inner.Crash(rand.New(rand.NewPCG(1, 1)), 1))
			if again, found := after.Replica(1); found != have || again.Block != rep.Block || again.State != rep.State {
				t.Errorf("%v, %v comes back as %v, %v", rep, have, again, found)
			}
			if have {
				after.wantContent(1, want)
			}
		})
	}
}

// A program that does not know such replicas would take their files for rubbish.
func TestVolumeOfUnsyncedReplicasIsMarkedAsSuch(t *testing.T) {
	inner := mem.New(1 << 20)
	for i, want := range []string{"layoutVersion=3\n", "layoutVersion=4\n", "layoutVersion=4\n"} {
		s := must[*Store](t)(Open(Config{FS: inner, Volumes: []VolumeConfig{{Path: "/v"}}, Reserve: -1, Unsynced: i == 1}))
		check(t, s.Join("c", "BP"))
		check(t, s.Shutdown())
		if text := string(must[[]byte](t)(readFile(inner, "/v/VERSION"))); !strings.HasPrefix(text, want) {
			t.Errorf("start %d: VERSION is\n%s", i, text)
		}
	}
}
