package blockstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
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
			l.since = 0 // by the process that found it
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
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
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

// told is a log of which the lines of a level and more are kept.
type told struct {
	slog.Handler
	mu    sync.Mutex
	lines []string
}

func (l *told) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (l *told) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := r.Message
	r.Attrs(func(a slog.Attr) bool { line += " " + a.String(); return true })
	l.lines = append(l.lines, line)
	return nil
}

// take is what was said since it was asked last.
func (l *told) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := l.lines
	l.lines = nil
	return lines
}

// openHeard opens a volume, and keeps what it says.
func openHeard(t *testing.T, fsys vfs.FS, path string) (*harness, *told) {
	t.Helper()
	l := &told{}
	s, err := Open(Config{FS: fsys, Reserve: -1, Logger: slog.New(l), Volumes: []VolumeConfig{{Path: path}}})
	check(t, err)
	return &harness{Store: s, t: t}, l
}

// Where no index can be made the volume works without one, and says so once.
func TestVolumeWithoutAnIndexWorks(t *testing.T) {
	// denied fails what would change the index.
	denied := func(err error) faulty.Rule {
		return func(op faulty.Op) error {
			if strings.Contains(op.Name, "/index/") && (op.Call != "open" || strings.HasSuffix(op.Name, indexNew)) && op.Call != "stat" && op.Call != "read" && op.Call != "size" {
				return err
			}
			return nil
		}
	}
	readOnly := func(op faulty.Op) error {
		if op.Name == "/v/index" && op.Call == "mkdir" {
			return syscall.EROFS
		}
		return denied(syscall.EROFS)(op)
	}
	for name, c := range map[string]struct {
		rule    faulty.Rule
		indexed bool // there is one already
		file    bool // in place of the directory
	}{
		"read-only":              {rule: readOnly},
		"read-only, with one":    {rule: readOnly, indexed: true},
		"another user's":         {rule: denied(syscall.EACCES), indexed: true},
		"immutable":              {rule: denied(syscall.EPERM), indexed: true},
		"a file":                 {file: true},
		"a file where one was":   {file: true, indexed: true},
		"directories in its way": {rule: denied(syscall.ENOTEMPTY), indexed: true},
	} {
		t.Run(name, func(t *testing.T) {
			inner, clock := handDisk(1 << 24)
			disk := faulty.New(inner)
			h := open(t, disk)
			h.put(1, 1, pattern(50_000))
			h.put(2, 1, pattern(1000))
			clock.pass(3 * time.Second)
			check(t, h.Shutdown())
			if !c.indexed || c.file {
				removeIndexes(t, inner, "/v")
				check(t, inner.Remove("/v/index"))
			}
			if c.file {
				f, err := inner.OpenFile("/v/index", os.O_RDWR|os.O_CREATE, 0o600)
				check(t, errors.Join(err, f.Close()))
			}
			disk.Set(c.rule)
			h, heard := openHeard(t, disk, "/v")
			want := 0
			if c.indexed && !c.file {
				want = 2
			}
			if taken, scanned := parts(h.Store); taken != want || taken+scanned != 2 {
				t.Errorf("%d taken, %d scanned", taken, scanned)
			}
			if lines := heard.take(); len(lines) > 0 {
				t.Errorf("it opens and says %q", lines)
			}
			var g sync.WaitGroup
			for turn := range 3 { // all that there is, and what comes and goes
				id := int64(10 * (turn + 1))
				h.put(id, 1, pattern(40_000))
				h.put(id+1, 1, pattern(2000))
				check(t, h.Delete(block(id-10+2, 1, 0)))
				h.put(id+2, 1, pattern(2000))
				h.all()[0].endPack()
				clock.pass(time.Minute)
				h.indexTurn(t.Context(), &g)
				g.Wait()
			}
			lines := heard.take()
			if len(lines) != 1 || !strings.Contains(lines[0], "path=/v/index") {
				t.Errorf("of the index is said %q", lines)
			}
			check(t, h.all()[0].err())
			clock.pass(3 * time.Second)
			check(t, h.Shutdown())
			if lines := heard.take(); len(lines) > 0 {
				t.Errorf("and at the end %q", lines)
			}
			same(t, clone(inner), clone(inner), "/v")

			h, heard = openHeard(t, disk, "/v")
			for _, id := range []int64{10, 20, 30} {
				h.wantContent(id, pattern(40_000))
				h.wantContent(id+1, pattern(2000))
			}
			h.indexTurn(t.Context(), &g)
			g.Wait()
			if len(heard.take()) != 1 {
				t.Error("nothing is said after another start")
			}
			disk.Set(nil) // mended
			if c.file {
				check(t, inner.Remove("/v/index"))
			}
			h.indexTurn(t.Context(), &g)
			g.Wait()
			if _, err := inner.Stat("/v/index/0000"); err != nil || len(heard.take()) > 0 {
				t.Errorf("when it can be written it is not: %v", err)
			}
			disk.Set(c.rule)
			check(t, h.Delete(block(10, 1, 0)))
			if c.rule != nil {
				clock.pass(time.Minute)
				h.indexTurn(t.Context(), &g)
				g.Wait()
				if len(heard.take()) != 1 {
					t.Error("nothing is said the next time")
				}
			}
			check(t, h.all()[0].err())
			check(t, h.Shutdown())
		})
	}
}

// A file system that has become read-only fails its volume by what has to be written there, and not by the index.
func TestReadOnlyVolumeFailsByWhatItNeeds(t *testing.T) {
	inner, clock := handDisk(1 << 24)
	disk := faulty.New(inner)
	h := open(t, disk)
	h.put(1, 1, pattern(50_000))
	h.put(2, 1, pattern(1000))
	h.put(3, 1, pattern(1000))
	check(t, h.Delete(block(3, 1, 1000)))
	v := h.all()[0]
	v.endPack()
	clock.pass(time.Minute)
	readOnly := func(syncs bool) faulty.Rule {
		return func(op faulty.Op) error {
			switch op.Call {
			case "rename", "remove", "mkdir", "write", "truncate", "punch":
				return syscall.EROFS
			case "open":
				if _, err := inner.Stat(op.Name); err != nil {
					return syscall.EROFS
				}
			case "sync", "syncdir":
				if syncs {
					return syscall.EROFS
				}
			}
			return nil
		}
	}
	var g sync.WaitGroup
	for _, syncs := range []bool{false, true} {
		disk.Set(readOnly(syncs))
		h.indexTurn(t.Context(), &g)
		g.Wait()
		check(t, v.err())
	}
	// Or it becomes so in between.
	for _, call := range []string{"mkdir", "syncdir of the volume", "syncdir", "sync", "write", "rename"} {
		rule := faulty.Nth(1, call, "", true, syscall.EROFS)
		switch call {
		case "syncdir of the volume":
			rule = faulty.Nth(1, "syncdir", "", true, syscall.EROFS)
		case "syncdir":
			check(t, inner.Mkdir("/v/index", 0o700))
		}
		disk.Set(rule)
		if err := writeIndexes(h.Store); err == nil {
			t.Errorf("%s: the index was written", call)
		}
		check(t, v.err())
	}
	h.wantContent(1, pattern(50_000))
	h.wantContent(2, pattern(1000))
	disk.Set(readOnly(true))
	if w, err := h.Create(block(4, 1, 0), datanode.CreateOptions{}); err == nil {
		if err = w.Write(0, pattern(60_000), nil); err == nil {
			t.Error("a read-only disk was written to")
		}
	}
	if v.err() == nil {
		t.Error("a read-only volume has not failed by a write")
	}
	check(t, h.Shutdown())
}

// A disk that does not read an index, reads it short, or has that of another version or another time, has none: nothing that is there is missing, or wrong.
func TestIndexOfALyingDiskIsNone(t *testing.T) {
	base, clock := handDisk(1 << 20)
	furnished(t, base, clock)
	old := map[string][]byte{}
	for _, key := range []string{"0000", "1.pack"} {
		old[key] = must[[]byte](t)(readIndex(base, "/v/index/"+key))
	}
	clock.pass(time.Second)
	h := open(t, base)
	check(t, h.Delete(block(2, 1, 2000)))
	check(t, h.Delete(block(12, 1, 200)))
	h.put(21, 1, pattern(60_000))
	clock.pass(3 * time.Second)
	check(t, h.Shutdown())
	again := func(what string, with vfs.FS, fewer int) {
		t.Helper()
		a, heard := openHeard(t, with, "/v")
		bare := clone(base)
		removeIndexes(t, bare, "/v")
		b := open(t, bare)
		if got, want := describe(a.Store), describe(b.Store); got != want {
			t.Errorf("%s:\n%s\nwithout an index:\n%s", what, got, want)
		}
		if taken, scanned := parts(a.Store); taken+scanned < 2 || scanned != fewer {
			t.Errorf("%s: %d parts taken, %d scanned", what, taken, scanned)
		}
		if n := len(slices.DeleteFunc(heard.take(), func(s string) bool { return !strings.HasPrefix(s, "index ") })); n > 1 {
			t.Errorf("%s: it is said %d times", what, n)
		}
		check(t, errors.Join(a.Shutdown(), b.Shutdown()))
	}
	again("nothing", clone(base), 0)
	for _, key := range []string{"0000", "1.pack", ""} { // "": all
		n := 1
		if key == "" {
			n, _ = parts(open(t, clone(base)).Store)
		}
		for _, call := range []string{"open", "size", "read"} {
			for _, err := range []error{syscall.EIO, syscall.EUCLEAN, syscall.ESTALE} {
				disk := faulty.New(clone(base))
				disk.Set(func(op faulty.Op) error {
					if op.Call == call && strings.HasPrefix(op.Name, "/v/index/"+key) && !strings.HasSuffix(op.Name, indexNew) {
						return err
					}
					return nil
				})
				again(fmt.Sprint(call, " of ", key, ": ", err), disk, n)
			}
		}
	}
	for key, earlier := range old {
		now := must[[]byte](t)(readIndex(base, "/v/index/"+key))
		next := slices.Clone(now[:len(now)-4])
		next[7]++
		for what, b := range map[string][]byte{
			"another version": binary.BigEndian.AppendUint32(next, crcOf(next)),
			"another time":    earlier,
			"cut":             now[:len(now)/2],
			"empty":           nil,
		} {
			with := clone(base)
			f, err := with.OpenFile("/v/index/"+key, os.O_RDWR|os.O_TRUNC, 0o600)
			check(t, err)
			_, err = f.WriteAt(b, 0)
			check(t, errors.Join(err, f.Close()))
			again(key+": "+what, with, 1)
		}
	}
}

// A shutdown that has no time for all of the index leaves what it has written, which the next start uses and does not write again.
func TestIndexGoesOnWhereAShutdownEnded(t *testing.T) {
	const dirs = 12
	inner, clock := handDisk(1 << 24)
	disk := faulty.New(inner)
	h := open(t, disk)
	for i := range int64(dirs) {
		h.put(i<<8+1, 1, pattern(40_000))
		h.put(i<<8+2, 1, pattern(1000+int(i)))
		h.all()[0].endPack()
	}
	clock.pass(time.Minute)
	v := h.all()[0]
	v.indexWait, v.endWait = time.Second, time.Minute
	var mu sync.Mutex
	var written []string
	last := 5
	disk.Set(func(op faulty.Op) error {
		if op.Call != "rename" || !strings.HasPrefix(op.Name, "/v/index/") {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if written = append(written, filepath.Base(op.Name)); len(written) >= last {
			time.Sleep(v.indexWait) // the time is over
		}
		return nil
	})
	check(t, h.Shutdown())
	done := written
	if len(done) == 0 || len(done) == 2*dirs {
		t.Fatalf("%v were written", done)
	}
	written, last = nil, 2*dirs+1
	same(t, clone(inner), clone(inner), "/v")

	clock.pass(time.Second)
	h = open(t, disk)
	if taken, scanned := parts(h.Store); taken != len(done) || scanned != 2*dirs-len(done) {
		t.Errorf("%d taken, %d scanned, after %d were written", taken, scanned, len(done))
	}
	var g sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	h.indexTurn(ctx, &g) // long ago: nothing has to become old first
	until(t, "the background goes on", func() bool { mu.Lock(); defer mu.Unlock(); return len(written) > 2 })
	stop()
	g.Wait()
	check(t, h.Shutdown())
	all := append(slices.Clone(done), written...)
	if slices.Sort(all); len(all) != 2*dirs || len(slices.Compact(all)) != 2*dirs {
		t.Errorf("%v were written, and then %v", done, written)
	}
	disk.Set(nil)
	h = open(t, disk)
	if taken, scanned := parts(h.Store); taken != 2*dirs || scanned != 0 {
		t.Errorf("%d taken, %d scanned at last", taken, scanned)
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
