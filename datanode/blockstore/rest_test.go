package blockstore

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// TestMain runs every test twice: with handles that rest as soon as they can, and with such that stay for a while.
func TestMain(m *testing.M) {
	flag.Parse()
	usual := idleHandles
	if flag.Lookup("test.bench").Value.String() == "" {
		idleHandles = 0
		if code := m.Run(); code != 0 {
			fmt.Println("with idleHandles 0")
			os.Exit(code)
		}
	}
	idleHandles = usual
	os.Exit(m.Run())
}

// rests reports whether a block's replica is at rest, after what can rest does.
func (h *harness) rests(id int64) bool {
	sh := h.shard(metadata.BlockID(id))
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.tidy()
	return sh.resting.find(metadata.BlockID(id)) >= 0
}

// once compares that no block has a handle and is at rest, that nobody holds a handle, and that what can rest does when it is looked at.
func (h *harness) once() {
	h.t.Helper()
	for i := range h.shards {
		sh := &h.shards[i]
		sh.mu.Lock()
		sh.tidy()
		for id, r := range sh.replicas {
			if n := r.users.Load(); n != 0 {
				h.t.Errorf("block %d: its handle is held %d times", id, n)
			}
			if sh.resting.find(id) >= 0 {
				h.t.Errorf("block %d has a handle and is at rest", id)
			}
		}
		sh.mu.Unlock()
	}
}

func TestWhichReplicasRest(t *testing.T) {
	h := open(t, mem.New(1<<24), "/v", "/ram")
	rest := func(id int64, want bool, what string) {
		t.Helper()
		if got := h.rests(id); got != want {
			t.Errorf("one that %s rests: %v", what, got)
		}
	}
	w := must[datanode.Writer](t)(h.Create(block(1, 7, 0), datanode.CreateOptions{}))
	check(t, w.Write(0, pattern(40_000), nil))
	w.Acked(40_000)
	rest(1, false, "is being written")
	must[datanode.Replica](t)(w.Finalize())
	rest(1, true, "is finalized")
	rd := must[datanode.Reader](t)(h.Store.Open(block(1, 7, 0)))
	rest(1, false, "is being read")
	check(t, rd.Close())
	rest(1, true, "was read")
	must[datanode.Replica](t)(h.InitRecovery(block(1, 7, 0), 8))
	rest(1, false, "is being recovered")
	must[datanode.Replica](t)(h.UpdateReplica(block(1, 7, 0), 8, 40_000))
	rest(1, true, "was recovered")
	r := h.get(1)
	h.markCorrupt(r)
	h.letGo(r)
	rest(1, false, "is damaged, as far as is known,")
	check(t, h.Verify(t.Context(), 1, datanode.VerifyOptions{}))
	rest(1, true, "is not damaged after all")
	if err := w.Write(40_000, pattern(1), nil); err == nil {
		t.Error("its writer goes on")
	}
	check(t, w.Close())

	h.put(2, 7, pattern(100))
	rest(2, true, "is packed")
	h.wantContent(2, pattern(100))
	if w := must[datanode.Writer](t)(h.Append(block(2, 7, 100), 8, false)); w.Close() != nil {
		t.Error("it is not closed")
	}
	rest(2, false, "was appended to")

	h.lazy(3, pattern(100))
	rest(3, false, "is in memory")
	h.put(4, math.MaxInt64, pattern(100))
	rest(4, false, "has a large generation")
	h.wantContent(4, pattern(100))

	h.cfg.Unsynced = true
	h.put(5, 7, pattern(40_000))
	rest(5, false, "is not synced")
	h.settleAll()
	rest(5, true, "was synced")
	h.wantContent(5, pattern(40_000))
	h.once()
	h.settled()
}

// Of what is at rest in a pack the pack knows: it goes with its last record, and its place is free.
func TestPackGoesWithTheLastOfWhatRests(t *testing.T) {
	disk := mem.New(1 << 24)
	h := open(t, disk, "/v")
	h.put(1, 7, pattern(100))
	h.put(2, 7, pattern(200))
	check(t, h.Shutdown())
	h = open(t, disk, "/v")
	if !h.rests(1) || !h.rests(2) {
		t.Fatal("what is found does not rest")
	}
	h.wantContent(2, pattern(200))
	packs := func() int { return len(h.places.packs()) }
	check(t, h.Delete(block(1, 7, 0)))
	if packs() != 1 {
		t.Errorf("%d packs with one record", packs())
	}
	check(t, h.Delete(block(2, 7, 0)))
	left := must[[]vfs.Entry](t)(disk.ReadDir(filepath.Join("/v", packsDir)))
	if packs() != 0 || len(left) != 0 {
		t.Errorf("%d packs, and %d files, without a record", packs(), len(left))
	}
	h.settled()
}

// Replicas at rest go with their volume, and a volume that failed has them no more.
func TestVolumeGoesWithWhatRests(t *testing.T) {
	h := open(t, mem.New(1<<24), "/a", "/b")
	for id := range int64(100) {
		h.put(id, 7, pattern(100+int(id%2)*packLimit))
	}
	for id := range int64(100) {
		if !h.rests(id) {
			t.Fatalf("block %d does not rest", id)
		}
	}
	v := h.all()[0]
	before := v.replicas.Load()
	check(t, h.Remove("/a"))
	if here := h.all()[0].replicas.Load(); v.replicas.Load() != 0 || before == 0 || before+here != 100 {
		t.Errorf("%d of %d replicas are left, and %d on the other volume", v.replicas.Load(), before, here)
	}
	h.settled()
	check(t, h.Add(VolumeConfig{Path: "/a"}))
	for id := range int64(100) {
		h.wantContent(id, pattern(100+int(id%2)*packLimit))
	}
	h.all()[1].fail(errors.New("it burns"))
	seen := 0
	every(h.Store, func(datanode.Replica) bool { seen++; return true })
	gone := 0
	for id := range int64(100) {
		if _, ok := h.Replica(metadata.BlockID(id)); !ok {
			gone++
			if _, ok := h.VolumeOf(metadata.BlockID(id)); ok || !h.GaveUp(metadata.BlockID(id)) {
				t.Errorf("block %d is somewhere", id)
			}
			h.put(id, 8, pattern(5))
		}
	}
	if seen+gone != 100 || gone != int(before) {
		t.Errorf("%d replicas on the volume that works, %d gone", seen, gone)
	}
	h.once()
}

// Nothing rests on a volume that is being taken out: it would stay in the table.
func TestNothingRestsOnAVolumeThatLeaves(t *testing.T) {
	h := open(t, mem.New(1<<24), "/a", "/b")
	v := h.all()[0]
	var on []*replica
	for id := int64(1); len(on) < 3; id++ {
		h.put(id, 7, pattern(100))
		if r := h.get(metadata.BlockID(id)); r.vol == v {
			on = append(on, r)
		} else {
			h.letGo(r)
		}
	}
	order := func(r *replica) int { return int(mix(r.id) >> (64 - shardBits)) }
	slices.SortFunc(on, func(a, b *replica) int { return order(a) - order(b) })
	for _, r := range on {
		r.users.Add(-1) // but nothing rests yet
	}
	on[1].mu.Lock()
	var g sync.WaitGroup
	g.Go(func() { check(t, h.Remove("/a")) })
	until(t, "the first is gone", func() bool { return on[0].mu.TryLock() && func() bool { defer on[0].mu.Unlock(); return on[0].gone }() })
	if h.rests(int64(on[2].id)) {
		t.Error("the last rests")
	}
	on[1].mu.Unlock()
	g.Wait()
	for _, r := range on {
		if v, _ := h.whereIs(r.id); v != nil {
			t.Errorf("block %d is on volume %s", r.id, v.path)
		}
	}
	h.settled()
}

// Each block has an owner, who knows at any time what it is, while everybody reads it and everything rests that can.
func TestReplicasRestWhileTheyAreWanted(t *testing.T) {
	const blocks, steps = 4, 150
	h := open(t, mem.New(1<<28), "/v", "/ssd", "/w")
	for _, v := range h.all() {
		v.packSize = 64 << 10
	}
	data := pattern(60_000)
	var owners, others sync.WaitGroup
	stop := make(chan struct{})
	stopped := func() bool {
		select {
		case <-stop:
			return true
		default:
			return false
		}
	}
	for id := int64(1); id <= blocks; id++ {
		owners.Go(func() { own(t, h, id, steps, data) })
	}
	for i := range 3 {
		others.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 3))
			p := make([]byte, len(data))
			for !stopped() {
				id := r.Int64N(blocks) + 1
				rd, err := h.Store.Open(block(id, 0, 0))
				if err == nil {
					n := rd.Replica().Visible
					if n > 0 {
						_, err = rd.ReadAt(p[:n], 0)
					}
					if err == nil && string(p[:n]) != string(data[:n]) {
						t.Errorf("block %d: %d bytes are others", id, n)
					}
					rd.Close()
				}
				err = errors.Join(err, h.Verify(t.Context(), metadata.BlockID(id), datanode.VerifyOptions{}), h.CheckSizes(metadata.BlockID(id)))
				if errors.Is(err, metadata.ErrCorrupt) || errors.Is(err, metadata.ErrIO) {
					t.Errorf("block %d: %v", id, err)
				}
				runtime.Gosched()
			}
		})
	}
	others.Go(func() {
		for !stopped() {
			h.tidy()
			runtime.Gosched()
		}
	})
	owners.Wait()
	close(stop)
	others.Wait()
	h.once()
	h.settled()
	for id := int64(1); id <= blocks; id++ {
		if i := slices.IndexFunc(h.changes, func(c datanode.Change) bool { return c.Kind == datanode.Corrupt }); i >= 0 {
			t.Fatalf("%v was announced as corrupt", h.changes[i])
		}
	}
}

// own changes one block at random and compares what the store says of it after each step.
func own(t *testing.T, h *harness, id int64, steps int, data []byte) {
	r := rand.New(rand.NewPCG(uint64(id), 2))
	gen, length, have := int64(1), int64(0), false
	ok := func(what string, err error) bool {
		if err != nil {
			t.Errorf("block %d: %s: %v", id, what, err)
		}
		return err == nil
	}
	write := func(w datanode.Writer, n int64) bool {
		if n > length && !ok("write", w.Write(length, data[length:n], nil)) {
			return false
		}
		w.Acked(n)
		_, err := w.Finalize()
		length = n
		return ok("finalize", errors.Join(err, w.Close()))
	}
	for range steps {
		b := block(id, gen, length)
		switch what := r.IntN(7); {
		case !have:
			gen, length = gen+1, 0
			w, err := h.Create(block(id, gen, 0), datanode.CreateOptions{})
			if !ok("create", err) || !write(w, 1+r.Int64N([]int64{packLimit, int64(len(data))}[r.IntN(2)])) {
				return
			}
			have = true
		case what < 2:
			gen++
			w, err := h.Append(b, metadata.Generation(gen), false)
			if !ok("append", err) || !write(w, length+r.Int64N(int64(len(data))-length+1)) {
				return
			}
		case what == 2:
			var err error
			if r.IntN(2) == 0 {
				err = h.Discard(b)
			} else {
				err = h.Delete(b)
			}
			if !ok("delete", err) {
				return
			}
			have = false
		case what == 3:
			gen++
			length = r.Int64N(length + 1)
			if _, err := h.InitRecovery(b, metadata.Generation(gen)); !ok("recovery", err) {
				return
			}
			if _, err := h.UpdateReplica(b, metadata.Generation(gen), length); !ok("update", err) {
				return
			}
		case what == 4:
			gen++
			if _, err := h.Close(b, metadata.Generation(gen)); !ok("close", err) {
				return
			}
		default:
			if !ok("move", h.Move(t.Context(), b, []datanode.StorageType{datanode.Disk, datanode.SSD}[r.IntN(2)], nil)) {
				return
			}
		}
		view, there := h.Replica(metadata.BlockID(id))
		if there != have || have && (view.Block != block(id, gen, length) || view.State != datanode.Finalized || view.Visible != length) {
			t.Errorf("block %d is %v, %v, not of generation %d with %d bytes, %v", id, view, there, gen, length, have)
			return
		}
		listed := 0
		every(h.Store, func(r datanode.Replica) bool {
			if r.Block.ID == metadata.BlockID(id) {
				if listed++; r != view {
					t.Errorf("block %d is listed as %v, not %v", id, r, view)
				}
			}
			return true
		})
		if (listed == 1) != have {
			t.Errorf("block %d is listed %d times", id, listed)
		}
	}
}

// Of what an index lists each replica is entered that can rest, once; the others come back, those of one block in order.
func TestReplicasOfAnIndexAreEntered(t *testing.T) {
	h := open(t, mem.New(1<<24), "/v")
	v := h.all()[0]
	h.put(7, 1, pattern(100))
	h.put(8, 1, pattern(200))
	r := h.get(8) // has a handle
	var all []listed
	for id := range int64(3000) {
		all = append(all, listed{id: metadata.BlockID(id), gen: 5, length: id})
	}
	all = append(all, listed{id: 9, gen: 6}, listed{id: 9, gen: 4}, listed{id: 5000, gen: 1 << genBits}, listed{id: 5001, gen: 1, at: 100}, listed{id: 5002, gen: 1, length: -1}, listed{id: -1, gen: 1, length: 3})
	before, used := v.replicas.Load(), v.used.Load()
	left := h.enterAllResting(v, v.at, all)
	var got []string
	for _, e := range left {
		got = append(got, fmt.Sprint(e.id, "_", e.gen))
	}
	slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:strings.Index(a, "_")], b[:strings.Index(b, "_")]) })
	if want := "[5000_1099511627776 5001_1 5002_1 7_5 8_5 9_6 9_4]"; fmt.Sprint(got) != want {
		t.Errorf("not entered are %v, not %v", got, want)
	}
	for _, e := range all[:3000] {
		size := e.length + sumsSize(e.length)
		if e.id == 7 || e.id == 8 {
			continue
		}
		if used += size; !h.rests(int64(e.id)) {
			t.Fatalf("block %d does not rest", e.id)
		}
		if rep, ok := h.Replica(e.id); !ok || rep.Block != (metadata.Block{ID: e.id, Generation: 5, Length: e.length}) {
			t.Fatalf("block %d is %v, %v", e.id, rep, ok)
		}
	}
	if got := v.replicas.Load(); got != before+2998+1 {
		t.Errorf("%d replicas", got)
	}
	if got := v.used.Load(); got != used+3+sumsSize(3) {
		t.Errorf("%d bytes are used, not %d", got, used+3+sumsSize(3))
	}
	h.letGo(r)
	v.leaving.Store(true)
	if left := h.enterAllResting(v, v.at, []listed{{id: 6000, gen: 1}}); len(left) != 1 {
		t.Error("a replica has come to a volume that leaves")
	}
	v.leaving.Store(false)
	h.settled()
}

// Memory is 40 bytes a replica at most, whatever their number, and listing all of them takes a batch of block ids.
func TestReplicasAtRestTakeFewBytes(t *testing.T) {
	h := open(t, mem.New(1<<20), "/v")
	v := h.all()[0]
	const most = 300_000
	for n, next := 1, 50_000; n <= most; n++ {
		check(t, h.admitResting(v, nil, block(int64(1<<30+n), 1001, 128<<20)))
		if n == next || n == most {
			if got := float64(h.tableBytes()) / float64(n); got > 40 {
				t.Errorf("%d replicas take %.1f bytes each", n, got)
			}
			next += next / 7
		}
	}
	seen := 0
	listed := testing.AllocsPerRun(1, func() {
		seen = 0
		h.Each(v.id.Storage, func(datanode.Replica) bool { seen++; return true })
	})
	if seen != most || listed > 40 {
		t.Errorf("%d replicas listed with %v allocations", seen, listed)
	}
	if got := v.replicas.Load(); got != most {
		t.Errorf("%d counted", got)
	}
	h.settled()
}

// tableBytes is what all tables take, with the shards around them.
func (s *Store) tableBytes() int {
	n := 0
	for i := range s.shards {
		n += cap(s.shards[i].resting.slots) * entrySize
	}
	return n
}

// BenchmarkTable enters a million replicas, and looks for them at random.
func BenchmarkTable(b *testing.B) {
	const n = 1_000_000
	var before, after runtime.MemStats
	h := open(b, mem.New(1<<20), "/v")
	v := h.all()[0]
	runtime.GC()
	runtime.ReadMemStats(&before)
	used := cpuTime(b)
	for id := range int64(n) {
		check(b, h.admitResting(v, nil, block(1<<30+id, 1001, 128<<20)))
	}
	used = cpuTime(b) - used
	runtime.GC()
	runtime.ReadMemStats(&after)
	heap := float64(after.HeapAlloc-before.HeapAlloc) / n
	random := func() metadata.BlockID { return metadata.BlockID(1<<30 + rand.Int64N(n)) }
	run := func(name string, f func()) {
		b.Run(name, func(b *testing.B) {
			before := cpuTime(b)
			for b.Loop() {
				f()
			}
			b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
			b.ReportMetric(heap, "heap-B/replica")
			b.ReportMetric(float64(used)/n, "admit-ns/replica")
		})
	}
	run("look", func() { _, _ = h.Replica(random()) })
	run("absent", func() { _, _ = h.Replica(-random()) })
	run("hold", func() { h.letGo(h.get(random())) })
	run("each", func() { h.Each(v.id.Storage, func(datanode.Replica) bool { return true }) })
}

// BenchmarkOpenSmall opens a small replica and closes it: the same one again and again, one of a thousand, or of many. CPU is the process's.
func BenchmarkOpenSmall(b *testing.B) {
	for _, kind := range []struct {
		name string
		size int
		n    int64
	}{{"packed", 4 << 10, 20_000}, {"files", packLimit + 1, 2000}} {
		h := open(b, vfs.OS, b.TempDir())
		h.cfg.Unsynced = true
		data := pattern(kind.size)
		sums := sumsOf(data)
		for id := range kind.n {
			w := must[datanode.Writer](b)(h.Create(block(id+1, 1, 0), datanode.CreateOptions{}))
			check(b, w.Write(0, data, sums))
			must[datanode.Replica](b)(w.Finalize())
		}
		for _, v := range h.all() {
			h.settle(b.Context(), v, v.trash.now())
		}
		for _, which := range []struct {
			name string
			n    int64
		}{{"same", 1}, {"thousand", 1000}, {"any", kind.n}} {
			b.Run(kind.name+"/"+which.name, func(b *testing.B) {
				before := cpuTime(b)
				for b.Loop() {
					rd := must[datanode.Reader](b)(h.Open(block(1+rand.Int64N(which.n), 1, 0)))
					check(b, rd.Close())
				}
				b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

// cpuTime is what the process has used so far, in ns.
func cpuTime(b *testing.B) int64 {
	var u syscall.Rusage
	check(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}
