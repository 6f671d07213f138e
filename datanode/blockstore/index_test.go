package blockstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// ticking is a clock of a file system that mostly stands still, and now and then leaps.
func ticking(disk *mem.FS, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 11))
	now := time.Unix(1_000_000_000, 0)
	disk.SetClock(func() time.Time { // the disk's lock is held
		switch n := r.IntN(20); {
		case n < 4:
			now = now.Add(3 * time.Second)
		case n < 8:
			now = now.Add(time.Millisecond)
		}
		return now
	})
}

// hand is a clock that is moved by hand.
type hand struct {
	mu  sync.Mutex
	now time.Time
}

func (h *hand) Now() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

func (h *hand) pass(d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = h.now.Add(d)
}

// handDisk is a disk whose clock is moved by hand.
func handDisk(size int64) (*mem.FS, *hand) {
	disk, h := mem.New(size), &hand{now: time.Unix(1_000_000_000, 0)}
	disk.SetClock(h.Now)
	return disk, h
}

// writeIndexes writes the indexes of all that is old enough.
func writeIndexes(s *Store) error {
	var errs []error
	for _, v := range s.all() {
		_, err := s.index(context.Background(), v, indexSure, func(time.Duration) {})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// describe is everything that a start finds, except on which of two volumes one of two equal replicas was kept.
func describe(s *Store) string {
	var all []string
	every(s, func(rep datanode.Replica) bool {
		r := s.get(rep.Block.ID)
		defer s.letGo(r)
		all = append(all, fmt.Sprint(rep.Block, rep.State, rep.Visible, r.suffix, r.bad, r.packed != nil))
		return true
	})
	var used, replicas, trash int64
	for _, v := range s.all() {
		used, replicas, trash = used+v.used.Load(), replicas+v.replicas.Load(), trash+v.trash.bytes.Load()
		for _, l := range v.trash.items {
			all = append(all, fmt.Sprint("trash ", l))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "\n") + fmt.Sprintf("\n%d replicas, %d used, %d in the trash", replicas, used, trash)
}

// parts counts what was taken from the index, and what was scanned.
func parts(s *Store) (taken, scanned int) {
	for _, v := range s.all() {
		taken, scanned = taken+int(v.index.taken.Load()), scanned+int(v.index.scanned.Load())
	}
	return taken, scanned
}

func removeIndexes(t testing.TB, disk vfs.FS, volumes ...string) {
	t.Helper()
	for _, path := range volumes {
		dir := filepath.Join(path, indexDir)
		entries, err := disk.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		check(t, err)
		for _, e := range entries {
			check(t, disk.Remove(filepath.Join(dir, e.Name)))
		}
	}
}

// same opens a disk with its indexes, and a copy of it without them, and wants to find the same.
func same(t testing.TB, with, without *mem.FS, volumes ...string) (taken int) {
	t.Helper()
	removeIndexes(t, without, volumes...)
	a, b := open(t, with, volumes...), open(t, without, volumes...)
	if got, want := describe(a.Store), describe(b.Store); got != want {
		t.Fatalf("with an index:\n%s\nwithout:\n%s", got, want)
	}
	taken, _ = parts(a.Store)
	if n, _ := parts(b.Store); n > 0 {
		t.Fatalf("%d parts were taken from an index that is not there", n)
	}
	check(t, errors.Join(a.Shutdown(), b.Shutdown()))
	return taken
}

// Whatever happens to a store, and whenever it ends, a start that has an index finds what one finds that scans.
func TestAStartWithAnIndexFindsWhatAScanFinds(t *testing.T) {
	seeds := 300
	if testing.Short() {
		seeds = 60
	}
	taken := 0
	for seed := range uint64(seeds) {
		inner := mem.New(1 << 20)
		disk := faulty.New(inner)
		s := newStory(t, seed, disk)
		s.indexed(inner, seed)
		s.cfg.Unsynced = seed%5 < 2
		volumes := []string{}
		for _, v := range s.all() {
			volumes = append(volumes, v.path)
		}
		cut := rand.New(rand.NewPCG(seed, 12))
		type end struct{ with, without *mem.FS }
		var ends []end
		var calls sync.Mutex
		disk.Set(func(faulty.Op) error {
			calls.Lock()
			defer calls.Unlock()
			if cut.IntN(40) == 0 {
				survive := []float64{0, 0.5, 0.9, 1, 1}[cut.IntN(5)] // 1: the process was killed
				n := cut.Uint64()
				ends = append(ends, end{inner.Crash(rand.New(rand.NewPCG(n, 1)), survive), inner.Crash(rand.New(rand.NewPCG(n, 1)), survive)})
			}
			return nil
		})
		for range 120 {
			check(t, s.step())
		}
		disk.Set(nil)
		for _, e := range ends {
			taken += same(t, e.with, e.without, volumes...)
		}
		check(t, s.Shutdown())
		taken += same(t, inner.Crash(cut, 1), inner.Crash(cut, 1), volumes...)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if taken < 5*seeds {
		t.Errorf("only %d directories and packs were taken from an index", taken)
	}
}

// furnished is a store that has one of everything, with an index of all of it; its process has ended.
func furnished(t *testing.T, disk *mem.FS, clock *hand) {
	t.Helper()
	h := open(t, disk)
	for _, v := range h.all() {
		v.packLimit = 300
	}
	for id := int64(1); id <= 3; id++ {
		h.put(id, 1, pattern(int(1000*id)))
		h.put(10+id, 1, pattern(int(100*id))) // in a pack
	}
	h.cfg.Unsynced = true
	h.put(4, 1, pattern(5000))
	h.cfg.Unsynced = false
	h.put(5, 1, pattern(5000))
	check(t, h.Discard(block(5, 1, 5000)))
	for id, n := range map[int64]int{6: 3000, 16: 200} {
		w := must[datanode.Writer](t)(h.Create(block(id, 1, 0), datanode.CreateOptions{}))
		check(t, w.Write(0, pattern(n), nil))
		w.Acked(int64(n))
	}
	f, err := disk.OpenFile("/v/blocks/00/00/foreign", 0x42, 0o600)
	check(t, errors.Join(err, f.Close(), disk.Mkdir("/v/blocks/00/00/blk_77", 0o700)))
	clock.pass(3 * time.Second)
	check(t, h.Shutdown())
}

// clone is the disk as another process finds it.
func clone(disk *mem.FS) *mem.FS { return disk.Crash(rand.New(rand.NewPCG(1, 1)), 1) }

// What is open, in the trash, or foreign keeps nothing from being indexed.
func TestEverythingIsIndexedAtTheEnd(t *testing.T) {
	disk, clock := handDisk(1 << 20)
	furnished(t, disk, clock)
	with, without := clone(disk), clone(disk)
	if same(t, with, without, "/v") != 2 {
		t.Error("not all was taken from the index")
	}
	h := open(t, clone(disk))
	if taken, scanned := parts(h.Store); taken != 2 || scanned != 0 {
		t.Errorf("%d taken, %d scanned", taken, scanned)
	}
	for id := int64(1); id <= 3; id++ {
		for _, id := range []int64{id, 10 + id} {
			if rep, ok := h.Replica(metadata.BlockID(id)); !ok || rep.State != datanode.Finalized {
				t.Errorf("block %d is %v, %v", id, rep, ok)
			}
		}
	}
	check(t, h.Shutdown())
}

// An index that is torn anywhere, or in which a byte has changed, is none.
func TestDamagedIndexIsNone(t *testing.T) {
	disk, clock := handDisk(1 << 20)
	furnished(t, disk, clock)
	random := rand.New(rand.NewPCG(3, 4))
	for _, key := range []string{"0000", "1.pack"} {
		whole, err := readIndex(disk, "/v/index/"+key)
		check(t, err)
		try := func(what string, b []byte) {
			t.Helper()
			with := clone(disk)
			f, err := with.OpenFile("/v/index/"+key, 0x202, 0o600) // cut
			check(t, err)
			_, err = f.WriteAt(b, 0)
			check(t, errors.Join(err, f.Close()))
			if n := same(t, with, clone(disk), "/v"); n != 1 {
				t.Fatalf("%s of %s: %d parts taken", what, key, n)
			}
		}
		for n := range whole {
			try(fmt.Sprint("byte ", n, " torn off"), whole[:n])
			changed := slices.Clone(whole)
			changed[n] ^= byte(1 + random.IntN(255))
			try(fmt.Sprint("byte ", n, " changed"), changed)
			zeros := slices.Clone(whole)
			clear(zeros[n:])
			try(fmt.Sprint("zeros from byte ", n), zeros)
		}
		try("too much", append(slices.Clone(whole), 0))
	}
}

// What an index says of one volume, or one directory, is not taken for another.
func TestIndexOfSomethingElseIsNone(t *testing.T) {
	disk, clock := handDisk(1 << 20)
	furnished(t, disk, clock)
	b, err := readIndex(disk, "/v/index/0000")
	check(t, err)
	h := open(t, disk)
	defer h.Shutdown()
	owner := h.all()[0].indexOwner("0000")
	if decodeListing(b, owner) == nil {
		t.Fatal("the index is none")
	}
	for _, other := range []string{"DS-other/0000", h.all()[0].indexOwner("0001"), ""} {
		if decodeListing(b, other) != nil {
			t.Errorf("the index of %s is taken for that of %s", owner, other)
		}
	}
}

// While the clock of a file system stands still no stamp tells anything, and nothing is indexed; nor what has changed a moment ago.
func TestNothingYoungIsIndexed(t *testing.T) {
	disk, clock := handDisk(1 << 20)
	h := open(t, disk)
	h.put(1, 1, pattern(50_000))
	for after := time.Duration(0); after <= indexSure; after += indexSure / 4 {
		check(t, writeIndexes(h.Store))
		want := 0
		if after == indexSure {
			want = 1
		}
		if entries, err := disk.ReadDir("/v/index"); err != nil || len(entries) != want {
			t.Errorf("after %v: %v, %v", after, entries, err)
		}
		clock.pass(indexSure / 4)
	}
	disk2, _ := handDisk(1 << 20)
	h2 := open(t, disk2)
	h2.put(1, 1, pattern(50_000))
	check(t, writeIndexes(h2.Store))
	check(t, h2.Shutdown())
	if entries, err := disk2.ReadDir("/v/index"); err != nil || len(entries) > 0 {
		t.Errorf("with a clock that stands still: %v, %v", entries, err)
	}
	check(t, h.Shutdown())
}

// An index that is older than what is there is none: of a directory and of a pack, after every kind of change.
func TestStaleIndexIsNone(t *testing.T) {
	for what, change := range map[string]func(h *harness) error{
		"delete":  func(h *harness) error { return h.Delete(block(2, 1, 2000)) },
		"discard": func(h *harness) error { return h.Discard(block(2, 1, 2000)) },
		"create":  func(h *harness) error { h.put(7, 1, pattern(4000)); return nil },
		"append": func(h *harness) error {
			w, err := h.Append(block(2, 1, 2000), 1, false)
			return errors.Join(err, w.Write(2000, pattern(2100)[2000:], nil))
		},
		"append to all": func(h *harness) error { // with the same generation, and finalized again
			w, err := h.Append(block(2, 1, 2000), 1, false)
			check(h.t, errors.Join(err, w.Write(2000, pattern(2100)[2000:], nil)))
			w.Acked(2100)
			_, err = w.Finalize()
			return err
		},
		"delete from a pack": func(h *harness) error { return h.Delete(block(12, 1, 200)) },
		"leave a pack":       func(h *harness) error { _, err := h.Append(block(12, 1, 200), 1, false); return err },
		"delete all packed": func(h *harness) error {
			return errors.Join(h.Delete(block(11, 1, 100)), h.Delete(block(12, 1, 200)), h.Delete(block(13, 1, 300)), h.Delete(block(16, 1, 200)))
		},
	} {
		t.Run(what, func(t *testing.T) {
			disk, clock := handDisk(1 << 20)
			furnished(t, disk, clock)
			clock.pass(time.Millisecond)
			h := open(t, disk) // which changes the directory, and so it has to be indexed again
			for _, v := range h.all() {
				v.packLimit = 300
			}
			clock.pass(3 * time.Second)
			check(t, writeIndexes(h.Store))
			clock.pass(time.Millisecond)
			check(t, change(h))
			before := describe(h.Store)
			for _, survive := range []float64{0, 0.5, 1} {
				with, without := disk.Crash(rand.New(rand.NewPCG(5, 6)), survive), disk.Crash(rand.New(rand.NewPCG(5, 6)), survive)
				same(t, with, without, "/v")
			}
			check(t, h.Shutdown())
			h = open(t, disk)
			if after := describe(h.Store); strings.Count(after, "FINALIZED") != strings.Count(before, "FINALIZED") {
				t.Errorf("it was\n%s\nand is\n%s", before, after)
			}
			check(t, h.Shutdown())
		})
	}
}

// While the store serves, what is quiet is indexed, also beside a disk that does not answer, and nothing on one that is slow.
func TestIndexIsWrittenOfWhatIsQuiet(t *testing.T) {
	inner, clock := handDisk(1 << 20)
	disk := faulty.New(inner)
	h := open(t, disk, "/a", "/b", "/ssd")
	for id := int64(1); id <= 6; id++ {
		h.put(id, 1, pattern(50_000))
	}
	dirs := map[string]bool{} // volumes that have a directory
	for _, v := range h.all() {
		dirs[v.path] = len(v.dirs) > 0
		v.slow.Store(v.path == "/ssd")
	}
	if !dirs["/a"] || !dirs["/b"] {
		t.Fatalf("replicas are on %v", dirs)
	}
	written := func(path string) bool {
		_, err := inner.Stat(path + "/index/0000")
		return err == nil
	}
	answer := make(chan struct{})
	disk.Set(func(op faulty.Op) error {
		if strings.HasPrefix(op.Name, "/b/index") {
			<-answer
		}
		return nil
	})
	var g sync.WaitGroup
	clock.pass(indexQuiet - time.Second)
	h.indexTurn(t.Context(), &g)
	until(t, "nothing is old enough", func() bool { return !h.all()[0].index.busy.Load() })
	if written("/a") {
		t.Error("what has just changed was indexed")
	}
	clock.pass(2 * time.Second)
	h.indexTurn(t.Context(), &g)
	until(t, "the index beside a disk that does not answer", func() bool { return written("/a") })
	if written("/b") || written("/ssd") {
		t.Error("the index was written on a disk that does not answer")
	}
	close(answer)
	g.Wait()
	h.indexTurn(t.Context(), &g)
	g.Wait()
	if !written("/b") || written("/ssd") {
		t.Errorf("on the disk that answers again there is %v, on the slow one %v", written("/b"), written("/ssd"))
	}
	check(t, h.Shutdown())
}

// What has changed in the last moment is waited for at the end, where to scan it would take longer.
func TestShutdownWaitsForWhatIsManyAndYoung(t *testing.T) {
	disk := mem.New(1 << 20)
	h := open(t, disk)
	h.put(1, 1, pattern(50_000))
	v := h.all()[0]
	v.endWait = time.Minute
	v.replicas.Store(indexWorth + 1)
	check(t, h.Shutdown())
	h = open(t, disk)
	if taken, scanned := parts(h.Store); taken != 1 || scanned != 0 {
		t.Errorf("%d taken, %d scanned", taken, scanned)
	}
	check(t, h.Shutdown())
}

// What an index lists is durable: a start that takes it syncs nothing, and removes other files for what it finds.
func TestWhatIsIndexedIsDurable(t *testing.T) {
	disk, clock := handDisk(1 << 20)
	h := open(t, disk)
	h.cfg.Unsynced = true
	h.all()[0].packSize = packAlign + 1 // a pack for each
	h.put(1, 1, pattern(50_000))
	h.put(2, 1, pattern(1000))
	h.put(3, 1, pattern(1000))
	clock.pass(3 * time.Second)
	check(t, writeIndexes(h.Store))
	c := disk.Crash(rand.New(rand.NewPCG(1, 2)), 0)
	before, err := disk.ReadDir("/v/blocks/00/00")
	check(t, err)
	if after, err := c.ReadDir("/v/blocks/00/00"); err != nil || !slices.Equal(before, after) || len(after) != 2 {
		t.Errorf("of %v is left %v, %v", before, after, err)
	}
	survivor := open(t, c)
	survivor.wantContent(2, pattern(1000))
	check(t, errors.Join(survivor.Shutdown(), h.Shutdown()))
}

// A directory that changes while it is looked at is not indexed as what it was before: a power cut may bring that back.
func TestChangeWhileItIsLookedAt(t *testing.T) {
	inner, clock := handDisk(1 << 20)
	disk := faulty.New(inner)
	h := open(t, disk)
	h.put(1, 1, pattern(50_000))
	clock.pass(3 * time.Second)
	var once sync.Once
	disk.Set(func(op faulty.Op) error {
		if op.Call == "readdir" && op.Name == "/v/blocks/00/00" {
			once.Do(func() {
				for _, name := range []string{"blk_9_1.meta", "blk_9"} {
					f, err := inner.OpenFile(op.Name+"/"+name, 0x42, 0o600)
					check(t, err)
					if name != "blk_9" {
						_, err = f.WriteAt(encodeHeader(9, datanode.DefaultChecksum), 0)
					}
					check(t, errors.Join(err, f.Sync(), f.Close()))
				}
			})
		}
		return nil
	})
	check(t, writeIndexes(h.Store))
	disk.Set(nil)
	for n := range uint64(300) {
		same(t, inner.Crash(rand.New(rand.NewPCG(n, 1)), 0.9), inner.Crash(rand.New(rand.NewPCG(n, 1)), 0.9), "/v")
	}
	check(t, h.Shutdown())
}

// On a full disk there is no index, and nothing else is amiss.
func TestFullDiskHasNoIndex(t *testing.T) {
	inner, clock := handDisk(1 << 20)
	disk := faulty.New(inner)
	h := open(t, disk)
	h.put(1, 1, pattern(50_000))
	clock.pass(3 * time.Second)
	check(t, writeIndexes(h.Store))
	clock.pass(3 * time.Second)
	h.put(2, 1, pattern(50_000))
	clock.pass(3 * time.Second)
	disk.Set(func(op faulty.Op) error {
		if op.Call == "write" && strings.Contains(op.Name, "/index/") {
			return syscall.ENOSPC
		}
		return nil
	})
	if err := writeIndexes(h.Store); !errors.Is(err, metadata.ErrNoSpace) {
		t.Errorf("the index was written on a full disk: %v", err)
	}
	if entries, err := inner.ReadDir("/v/index"); err != nil || len(entries) > 0 {
		t.Errorf("there is %v, %v", entries, err)
	}
	check(t, h.all()[0].err())
	check(t, h.Shutdown())
	disk.Set(nil)
	if same(t, clone(inner), clone(inner), "/v") != 0 {
		t.Error("an index that could not be written was taken")
	}
}

// A disk that fails while its index is written has failed.
func TestFailingDiskFailsWithItsIndex(t *testing.T) {
	inner, clock := handDisk(1 << 20)
	disk := faulty.New(inner)
	h := open(t, disk)
	h.put(1, 1, pattern(50_000))
	clock.pass(3 * time.Second)
	disk.Set(faulty.Nth(1, "write", "/index/", true, syscall.EIO))
	if err := writeIndexes(h.Store); !errors.Is(err, metadata.ErrIO) || h.all()[0].err() == nil {
		t.Errorf("%v, %v", err, h.all()[0].err())
	}
	check(t, h.Shutdown())
	disk.Set(faulty.Nth(1, "read", "/index/", true, syscall.EIO)) // one that cannot be read is only not there
	h = open(t, disk)
	if h.content(1) == nil {
		t.Error("the replica is gone")
	}
	check(t, h.Shutdown())
}

// A shutdown does not wait for a disk that does not answer.
func TestShutdownLeavesTheIndexOfASilentDisk(t *testing.T) {
	inner, clock := handDisk(1 << 20)
	disk := faulty.New(inner)
	h := open(t, disk)
	h.put(1, 1, pattern(50_000))
	clock.pass(3 * time.Second)
	v := h.all()[0]
	v.endWait = 20 * time.Millisecond
	answer := make(chan struct{})
	disk.Set(func(op faulty.Op) error {
		if strings.Contains(op.Name, "/index/") {
			<-answer
		}
		return nil
	})
	check(t, h.Shutdown())
	close(answer)
	for v.index.busy.Load() {
		time.Sleep(time.Millisecond)
	}
	same(t, clone(inner), clone(inner), "/v")
}

// What no stamp tells, a file that was cut behind the store's back, is found by who reads it.
func TestFileCutBehindAnIndexIsFoundByReading(t *testing.T) {
	disk, clock := handDisk(1 << 20)
	h := open(t, disk)
	h.put(1, 1, pattern(50_000))
	clock.pass(3 * time.Second)
	check(t, h.Shutdown())
	f, err := disk.OpenFile("/v/blocks/00/00/blk_1", 2, 0)
	check(t, errors.Join(err, f.Truncate(10_000), f.Close()))
	h = open(t, disk)
	if taken, _ := parts(h.Store); taken != 1 {
		t.Fatal("the directory was scanned")
	}
	rd, err := h.Store.Open(block(1, 1, 50_000))
	if err == nil {
		defer rd.Close()
		err = h.Verify(context.Background(), metadata.BlockID(1), datanode.VerifyOptions{})
	}
	if err == nil || len(h.Corrupt()) != 1 {
		t.Errorf("reading: %v, corrupt %v", err, h.Corrupt())
	}
	clock.pass(3 * time.Second)
	check(t, h.Shutdown())
}

// Nothing that is read as an index, whole by its checksum, brings the store down.
func FuzzListing(f *testing.F) {
	l := &listing{version: version{vfs.Stamp{Inode: 1, Modified: 2, Changed: 3}, 4}, salt: make([]byte, saltSize), final: []listed{{4096, 1, 2, 3}, {8192, -5, 1, 0}}, other: []string{"a", ""}}
	whole := l.encode("o")
	if got := decodeListing(whole, "o"); got == nil || fmt.Sprint(*got) != fmt.Sprint(*l) {
		f.Fatalf("%v came back as %v", l, got)
	}
	f.Add(whole[:len(whole)-4])
	f.Fuzz(func(t *testing.T, b []byte) {
		sealed := binary.BigEndian.AppendUint32(slices.Clone(b), crcOf(b))
		if l := decodeListing(sealed, "o"); l != nil && 4*len(l.final)+len(l.other) > len(b) {
			t.Errorf("%d replicas and %d names of %d bytes", len(l.final), len(l.other), len(b))
		}
	})
}

// What is given back has an index of what was there then, also when somebody writes it in no hurry.
func TestAVolumeThatIsGivenBackIsIndexed(t *testing.T) {
	disk, clock := handDisk(1 << 24)
	h := open(t, disk, "/a", "/b")
	for id := range int64(20) {
		h.put(id, 1, pattern(1000+int(id/2%2)*packLimit))
	}
	clock.pass(3 * time.Second)
	v := h.all()[0]
	ctx, stop := context.WithCancel(t.Context())
	v.index.stop.Store(&stop)
	v.index.busy.Store(true)
	go func() {
		<-ctx.Done()
		v.index.busy.Store(false)
	}()
	before := v.replicas.Load()
	check(t, h.Remove("/a"))
	check(t, h.Add(VolumeConfig{Path: "/a"}))
	v = h.all()[1]
	if taken, scanned := v.index.taken.Load(), v.index.scanned.Load(); taken != 2 || scanned != 0 || v.replicas.Load() != before {
		t.Errorf("%d taken, %d scanned, %d replicas of %d", taken, scanned, v.replicas.Load(), before)
	}
	for id := range int64(20) {
		h.wantContent(id, pattern(1000+int(id/2%2)*packLimit))
	}
}

// What cannot be read is not indexed, and no reason to give the volume up while it takes writes.
func TestWhatCannotBeReadIsNotIndexed(t *testing.T) {
	for _, c := range []struct {
		call, path, unread, other, indexed string
		nth                                int
	}{
		{"read", "/packs/", "/v/index/1.pack", "/v/index/0000", "blocks/00/00", 2}, // not the head of the pack
		{"readdir", "/blocks/", "/v/index/0000", "/v/index/1.pack", "packs/1.pack", 1},
	} {
		inner, clock := handDisk(1 << 24)
		disk := faulty.New(inner)
		h := open(t, disk)
		h.put(1, 1, pattern(50_000))
		for id := int64(10); id < 13; id++ {
			h.put(id, 1, pattern(1000))
		}
		v := h.all()[0]
		v.endPack()
		clock.pass(3 * time.Second)
		check(t, writeIndexes(h.Store))
		clock.pass(3 * time.Second)
		h.put(2, 1, pattern(50_000))
		check(t, h.Delete(block(10, 1, 1000)))
		clock.pass(3 * time.Second)
		disk.Set(faulty.Nth(c.nth, c.call, c.path, true, syscall.EIO))
		check(t, writeIndexes(h.Store))
		check(t, v.err())
		if _, err := inner.Stat(c.unread); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: what could not be read has an index: %v", c.call, err)
		}
		if info, err := inner.Stat(filepath.Join("/v", c.indexed)); err != nil || v.index.get(filepath.Base(c.other)) != versionOf(info) {
			t.Errorf("%s: the rest was not indexed: %v", c.call, err)
		}
		asked := 0
		disk.Set(func(op faulty.Op) error {
			if op.Call == c.call && strings.Contains(op.Name, c.path) {
				asked++
			}
			return nil
		})
		if check(t, writeIndexes(h.Store)); asked > 0 {
			t.Errorf("%s: what could not be read and has not changed is read again", c.call)
		}
		disk.Set(nil)
		h.put(3, 1, pattern(50_000))
		check(t, h.Delete(block(11, 1, 1000)))
		clock.pass(3 * time.Second)
		read := faulty.Nth(c.nth, c.call, c.path, true, syscall.EIO)
		disk.Set(func(op faulty.Op) error {
			if strings.HasSuffix(op.Name, probeFile) {
				return syscall.EIO
			}
			return read(op)
		})
		if err := writeIndexes(h.Store); err == nil || v.err() == nil {
			t.Errorf("%s: a volume that takes no writes either: %v, %v", c.call, err, v.err())
		}
		check(t, h.Shutdown())
	}
}

// A pack that was indexed goes on no more: a record that takes the place of a torn one changes no size, and its stamp may be lost in a power cut.
func TestNothingIsAppendedToAnIndexedPack(t *testing.T) {
	disk, clock := handDisk(1 << 20)
	h := open(t, disk)
	h.put(1, 1, pattern(1000))
	clock.pass(3 * time.Second)
	h.indexAtEnd(h.all()[0])
	if _, err := disk.Stat("/v/index/1.pack"); err != nil {
		t.Errorf("the pack is not indexed: %v", err)
	}
	h.put(2, 1, pattern(1000))
	r := h.get(2)
	defer h.letGo(r)
	if at := r.packed; at == nil || at.p.seq != 2 {
		t.Errorf("the next record lies at %+v", at)
	}
}
