package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// testConfig is of a journal that waits for its disk as long as it takes: others use the machine's.
func testConfig(dir string) Config {
	return Config{
		Dir: dir, SegmentBytes: 64 << 10, Logger: slog.New(slog.DiscardHandler), Deadline: -1,
		Fatal: func(err error) { panic(err) },
	}
}

func open(t *testing.T, cfg Config) *Journal {
	t.Helper()
	j, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func entry(i uint64) *raft.Log {
	return &raft.Log{Index: i, Term: 1 + i/100, Type: raft.LogCommand, Data: fmt.Appendf(nil, "%d %s", i, strings.Repeat("x", int(i%200)))}
}

// reach takes a term if the member is behind it, as raft does before it stores entries of the term.
func reach(t *testing.T, j *Journal, term uint64) {
	t.Helper()
	if term <= j.state.current().term {
		return
	}
	if err := j.SetUint64([]byte(keyTerm), term); err != nil {
		t.Fatal(err)
	}
}

// fill appends entries in batches of different sizes.
func fill(t *testing.T, j *Journal, from, to uint64) {
	t.Helper()
	reach(t, j, entry(to).Term)
	for n := uint64(1); from <= to; n = n%7 + 1 {
		var batch []*raft.Log
		for ; len(batch) < int(n) && from <= to; from++ {
			batch = append(batch, entry(from))
		}
		if err := j.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
	}
}

// holds checks that exactly the entries first..last are there.
func holds(t *testing.T, j *Journal, first, last uint64) {
	t.Helper()
	gotFirst, _ := j.FirstIndex()
	gotLast, _ := j.LastIndex()
	if gotFirst != first || gotLast != last {
		t.Fatalf("log is %d..%d, want %d..%d", gotFirst, gotLast, first, last)
	}
	for i := first; i <= last && i > 0; i++ {
		var got raft.Log
		if err := j.GetLog(i, &got); err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
		if want := entry(i); got.Index != i || got.Term != want.Term || !bytes.Equal(got.Data, want.Data) || got.Extensions != nil {
			t.Fatalf("entry %d: got %+v", i, got)
		}
	}
}

func TestEntriesVoteAndWatermarkSurviveReopening(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.CacheBytes = 1000 // most reads go to the files
	j := open(t, cfg)
	fill(t, j, 1, 2000) // several segments
	holds(t, j, 1, 2000)
	if err := j.SetUint64([]byte(keyTerm), 21); err != nil {
		t.Fatal(err)
	}
	if err := j.SetUint64([]byte(keyVoteTerm), 21); err != nil {
		t.Fatal(err)
	}
	if got, _ := j.GetUint64([]byte(keyVoteTerm)); got != 0 {
		t.Fatalf("half a vote is visible: term %d", got)
	}
	if err := j.Set([]byte(keyCandidate), []byte("b:1")); err != nil {
		t.Fatal(err)
	}
	j.Close()
	j = open(t, cfg)
	holds(t, j, 1, 2000)
	term, _ := j.GetUint64([]byte(keyTerm))
	vote, _ := j.GetUint64([]byte(keyVoteTerm))
	candidate, _ := j.Get([]byte(keyCandidate))
	if term != 21 || vote != 21 || string(candidate) != "b:1" || j.Acked() != 2000 {
		t.Fatalf("term %d, vote %q in term %d, acked %d", term, candidate, vote, j.Acked())
	}
}

func TestTermNeverFalls(t *testing.T) {
	cfg := testConfig(t.TempDir())
	j := open(t, cfg)
	if err := j.SetUint64([]byte(keyTerm), 7); err != nil {
		t.Fatal(err)
	}
	if err := j.SetUint64([]byte(keyTerm), 6); err == nil {
		t.Error("term 6 was stored after term 7")
	}
	if err := j.SetUint64([]byte(keyTerm), 7); err != nil {
		t.Error(err)
	}
	j.Close()
	j = open(t, cfg)
	if term, err := j.GetUint64([]byte(keyTerm)); term != 7 || err != nil {
		t.Errorf("term %d, %v", term, err)
	}
}

func TestConflictingTailIsReplaced(t *testing.T) {
	cfg := testConfig(t.TempDir())
	j := open(t, cfg)
	fill(t, j, 1, 50)
	if err := j.DeleteRange(31, 50); err != nil {
		t.Fatal(err)
	}
	holds(t, j, 1, 30)
	if j.Acked() != 30 {
		t.Fatalf("watermark %d after the tail went, want 30", j.Acked())
	}
	j.Close()
	j = open(t, cfg)
	fill(t, j, 31, 40)
	j.Close()
	holds(t, open(t, cfg), 1, 40)
}

// What lies behind an index is what was appended since, wherever segments begin.
func TestWhatLiesBehindAnIndex(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.SegmentBytes = 8 << 10
	j := open(t, cfg)
	if n := j.Behind(0); n != 0 {
		t.Errorf("an empty log has %d bytes", n)
	}
	fill(t, j, 1, 300)
	if len(j.segments) < 3 {
		t.Fatalf("%d segments", len(j.segments))
	}
	if n := j.Behind(0); n < j.Appended() {
		t.Errorf("%d bytes, and %d were appended", n, j.Appended())
	}
	for _, s := range j.segments {
		for i, e := range s.entries {
			index := s.base + uint64(i)
			if n := j.Behind(index-1) - j.Behind(index); n != int64(e.size) {
				t.Fatalf("entry %d takes %d bytes, not %d", index, n, e.size)
			}
		}
	}
	if n := j.Behind(300); n != 0 {
		t.Errorf("%d bytes behind the last entry", n)
	}
}

func TestHeadGoesOnlyBehindTheOlderSnapshot(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.SegmentBytes = 8 << 10
	j := open(t, cfg)
	fill(t, j, 1, 300)
	if err := j.DeleteRange(1, 290); err != nil {
		t.Fatal(err)
	}
	holds(t, j, 1, 300)
	j.Keep(240)
	if err := j.DeleteRange(1, 290); err != nil {
		t.Fatal(err)
	}
	first, _ := j.FirstIndex()
	if first < 120 || first > 241 { // whole segments go
		t.Fatalf("the log begins at %d", first)
	}
	holds(t, j, first, 300)
	j.Close()
	if _, err := Open(cfg); !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatalf("a log that begins at %d without a snapshot opened: %v", first, err)
	}
	cfg.Covered = Covered{Index: 240, Term: 3}
	holds(t, open(t, cfg), first, 300)
}

// What may go goes without a snapshot when it has to, down to the last segment, and its files with it.
func TestHeadGoesForWantOfSpace(t *testing.T) {
	disk := newMemoryDisk()
	cfg := testConfig("/log")
	cfg.Disk, cfg.SegmentBytes = disk, 8<<10
	j := open(t, cfg)
	files := func() (n int) {
		j.makers.Wait()
		disk.mu.Lock()
		defer disk.mu.Unlock()
		return len(disk.names)
	}
	trim := func() (first uint64) {
		t.Helper()
		if err := j.Trim(); err != nil {
			t.Fatal(err)
		}
		first, _ = j.FirstIndex()
		return first
	}
	if first := trim(); first != 0 {
		t.Fatalf("an empty log begins at %d", first)
	}
	fill(t, j, 1, 600)
	before := files()
	if trim(); files() != before {
		t.Fatal("files go that are kept")
	}
	holds(t, j, 1, 600)
	j.Keep(400)
	first := trim()
	if first < 250 || first > 401 { // whole segments go
		t.Fatalf("the log begins at %d", first)
	}
	holds(t, j, first, 600)
	if now := files(); now > before/2+2 { // of state and of the one that is ready
		t.Fatalf("of %d files %d are left", before, now)
	}
	if err := j.DeleteRange(1, 300); err != nil { // raft had looked before
		t.Fatal(err)
	}
	holds(t, j, first, 600)
	fill(t, j, 601, 700)
	j.Keep(10_000)
	if first = trim(); first > 700 {
		t.Fatalf("the log begins at %d", first)
	}
	holds(t, j, first, 700)
	if now := files(); now > 3 {
		t.Fatalf("%d files for one segment, the state and the one that is ready", now)
	}
	fill(t, j, 701, 900)
	j.Close()
	cfg.Covered, cfg.Disk = Covered{Index: 700, Term: entry(700).Term}, disk.restart()
	holds(t, open(t, cfg), first, 900)
}

func TestLogGoesOnBehindAnInstalledSnapshot(t *testing.T) {
	cfg := testConfig(t.TempDir())
	j := open(t, cfg)
	if !j.IsMonotonic() {
		t.Fatal("raft would leave a gap behind an installed snapshot")
	}
	fill(t, j, 1, 10)
	j.Cover(Covered{Index: 500, Term: 6})
	if err := j.DeleteRange(1, 10); err != nil { // as raft does for a monotonic store
		t.Fatal(err)
	}
	fill(t, j, 501, 510)
	j.Close()
	cfg.Covered = Covered{Index: 500, Term: 6}
	holds(t, open(t, cfg), 501, 510)
}

func TestCrashBetweenSnapshotAndDroppingTheLog(t *testing.T) {
	for _, covered := range []Covered{{500, 6}, {5, 9}} { // ahead of the log; inside it with another term
		cfg := testConfig(t.TempDir())
		j := open(t, cfg)
		fill(t, j, 1, 10)
		j.Close()
		cfg.Covered = covered
		j = open(t, cfg)
		holds(t, j, 0, 0)
		reach(t, j, 9)
		if err := j.StoreLog(&raft.Log{Index: covered.Index + 1, Term: 9, Data: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		j.Close()
		open(t, cfg)
	}
}

// hashicorp/raft#697: after a snapshot replaced a longer, diverged log, raft asks for entries of that log.
func TestGhostsOfADivergedTailLetTheLeaderOverwriteIt(t *testing.T) {
	j := open(t, testConfig(t.TempDir()))
	fill(t, j, 1, 50)
	j.Cover(Covered{Index: 30, Term: 7})
	if err := j.DeleteRange(1, 50); err != nil {
		t.Fatal(err)
	}
	var got raft.Log
	if err := j.GetLog(30, &got); err != nil || got.Term != 7 {
		t.Fatalf("entry at the snapshot's index: %+v, %v", got, err)
	}
	if err := j.GetLog(31, &got); err != nil || got.Term != 0 {
		t.Fatalf("entry behind the snapshot: %+v, %v", got, err)
	}
	if err := j.DeleteRange(31, 50); err != nil {
		t.Fatal(err)
	}
	if err := j.StoreLog(&raft.Log{Index: 31, Term: 8}); err != nil {
		t.Fatal(err)
	}
	if err := j.GetLog(30, &got); !errors.Is(err, raft.ErrLogNotFound) {
		t.Fatalf("the ghosts stay: %+v, %v", got, err)
	}
}

// tear appends entries that nobody acknowledged, as a process does that dies in the middle of StoreLogs, and damages
// them in the way given.
func tear(t *testing.T, cfg Config, acked uint64, n int, damage func(file string, from, to int64)) {
	t.Helper()
	j, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tail := j.segments[len(j.segments)-1]
	from := tail.end()
	var b []byte
	for i := range uint64(n) {
		b = appendEntry(b, tail.salt, j.state.epoch, acked, entry(acked+1+i))
	}
	if _, err := tail.file.WriteAt(b, from); err != nil {
		t.Fatal(err)
	}
	j.Close()
	damage(j.pool.path(tail.sequence, segmentSuffix), from, from+int64(len(b)))
}

func overwrite(t *testing.T, file string, at int64, b []byte) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
}

func TestTornTailAboveTheWatermarkIsCut(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, file string, from, to int64){
		"second half missing": func(t *testing.T, file string, from, to int64) {
			overwrite(t, file, from+(to-from)/2, make([]byte, to-from-(to-from)/2))
		},
		"all missing": func(t *testing.T, file string, from, to int64) { overwrite(t, file, from, make([]byte, to-from)) },
		"end missing": func(t *testing.T, file string, _, to int64) { overwrite(t, file, to-8, make([]byte, 8)) },
		"file cut":    func(_ *testing.T, file string, from, to int64) { os.Truncate(file, from+(to-from)/3) },
		"rotten": func(t *testing.T, file string, from, to int64) {
			overwrite(t, file, from+(to-from)/2, []byte("rot"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			j := open(t, cfg)
			fill(t, j, 1, 20)
			j.Close()
			tear(t, cfg, 20, 5, func(file string, from, to int64) { damage(t, file, from, to) })
			j = open(t, cfg)
			last, _ := j.LastIndex()
			if last < 20 || last > 25 {
				t.Fatalf("last entry %d, want 20 to 25", last)
			}
			holds(t, j, 1, last)
			fill(t, j, last+1, 40)
			j.Close()
			holds(t, open(t, cfg), 1, 40)
		})
	}
}

// Whatever byte of whatever file changes, nothing that was acknowledged is lost or altered without a word.
func TestRotBelowTheWatermarkIsNeverServed(t *testing.T) {
	disk := newMemoryDisk()
	cfg := testConfig("/log")
	cfg.Disk, cfg.SegmentBytes, cfg.Deadline = disk, 32<<10, -1
	j := open(t, cfg)
	// Files that were used before, with a tail that was cut in one and a conflicting one behind it.
	fill(t, j, 1, 600)
	if err := j.DeleteRange(1, 600); err != nil {
		t.Fatal(err)
	}
	fill(t, j, 1, 1000)
	if err := j.DeleteRange(890, 1000); err != nil {
		t.Fatal(err)
	}
	fill(t, j, 890, 1200)
	if err := j.SetUint64([]byte(keyTerm), 14); err != nil {
		t.Fatal(err)
	}
	j.Close()
	trials := 50
	if testing.Short() {
		trials = 20
	}
	rng := rand.New(rand.NewPCG(1, 2))
	refused := make(map[string]int)
	for _, path := range slices.Sorted(maps.Keys(disk.names)) {
		inode, ext := disk.names[path], filepath.Ext(path)
		for n := range trials {
			rotten := disk.crash(rng) // all of it is synced
			i := rotten.names[path]
			at := rng.IntN(len(i.content))
			switch n % 10 {
			case 8: // a sector of something else
				at = at / sector * sector
				copy(i.content[at:min(at+sector, len(i.content))], inode.content[rng.IntN(len(inode.content)-sector):])
			case 9:
				i.content = i.content[:at]
			default:
				i.content[at] ^= 1 << rng.IntN(8)
			}
			c := cfg
			c.Disk = rotten
			c.Fatal = func(error) {}
			j, err := Open(c)
			if err != nil {
				otherFormat := errors.Is(err, metadata.ErrUnsupported) && at == len(headerMagic)-1 // the bit makes another digit of the format's
				if !errors.Is(err, metadata.ErrCorrupt) && !otherFormat {
					t.Fatalf("%s: want corruption, got %v", path, err)
				}
				if ext != "" || n%10 != 9 { // both records of the state are in what was cut off
					refused[ext]++
				}
				continue
			}
			holds(t, j, 1, 1200)
			if term, _ := j.GetUint64([]byte(keyTerm)); term != 14 {
				t.Fatalf("%s: term is %d", path, term)
			}
			j.Close()
		}
	}
	t.Logf("refused: %v", refused)
	if refused[segmentSuffix] < trials || refused[spareSuffix] > 0 || refused[""] > 0 {
		t.Fatalf("refused: %v of %d for each file", refused, trials)
	}
}

func TestRotMetAtRunTimeIsFatal(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.CacheBytes = 1
	var fatal []error
	cfg.Fatal = func(err error) { fatal = append(fatal, err) }
	j := open(t, cfg)
	fill(t, j, 1, 20)
	file := j.pool.path(j.segments[0].sequence, segmentSuffix)
	raw, _ := os.ReadFile(file)
	overwrite(t, file, int64(bytes.Index(raw, entry(10).Data)), []byte("y"))
	var got raft.Log
	if err := j.GetLog(10, &got); !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatalf("a rotten entry was read: %+v, %v", got, err)
	}
	if len(fatal) != 1 {
		t.Fatalf("Fatal was called %d times", len(fatal))
	}
	if err := j.StoreLog(entry(21)); err == nil {
		t.Fatal("the journal goes on after it met corruption")
	}
}

func TestHangingDiskIsFatalWithinTheDeadline(t *testing.T) {
	disk := newMemoryDisk()
	cfg := testConfig("/log")
	cfg.Disk = disk
	cfg.Deadline = 50 * time.Millisecond
	fatal := make(chan error, 2)
	cfg.Fatal = func(err error) { fatal <- err }
	j := open(t, cfg)
	hang := make(chan struct{})
	disk.before = func(op, _ string) error {
		if op == "sync" {
			<-hang
		}
		return nil
	}
	stored := make(chan error, 1)
	go func() { stored <- j.StoreLog(entry(1)) }()
	select {
	case err := <-fatal:
		if !strings.Contains(err.Error(), "hangs for 50ms") {
			t.Fatalf("unexpected reason: %v", err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a hanging fsync went unnoticed")
	}
	close(hang) // the disk comes back: too late
	if err := <-stored; err == nil {
		t.Fatal("an entry was acknowledged after the deadline")
	}
	if len(fatal) != 0 {
		t.Fatal("Fatal was called twice")
	}
}

func TestFailedWriteIsFinal(t *testing.T) {
	for _, op := range []string{"sync", "write"} {
		for _, cause := range []error{syscall.EIO, syscall.ENOSPC} { // the space was there: the disk is broken, or not ours
			disk := newMemoryDisk()
			cfg := testConfig("/log")
			cfg.Disk = disk
			var fatal []error
			cfg.Fatal = func(err error) { fatal = append(fatal, err) }
			j := open(t, cfg)
			fill(t, j, 1, 5)
			disk.failing(op, 1, cause)
			if err := j.StoreLog(entry(6)); !errors.Is(err, cause) {
				t.Fatalf("%s: got %v", op, err)
			}
			disk.failing("nothing", 1, nil)
			if err := j.StoreLog(entry(6)); !errors.Is(err, cause) {
				t.Fatalf("%s: a second try was made: %v", op, err)
			}
			if err := j.SetUint64([]byte(keyTerm), 7); err == nil {
				t.Fatalf("%s: a term was stored afterwards", op)
			}
			if len(fatal) != 1 {
				t.Fatalf("%s: Fatal was called %d times", op, len(fatal))
			}
		}
	}
}

// A full disk refuses entries before anything of them is written; when there is space again the log goes on.
func TestFullDiskRefusesEntriesAndLosesNone(t *testing.T) {
	for _, op := range []string{"create", "allocate", "syncdir", "rename"} {
		disk := newMemoryDisk()
		cfg := testConfig("/log")
		cfg.Disk, cfg.SegmentBytes = disk, 8<<10
		j := open(t, cfg)
		fill(t, j, 1, 5)
		disk.failing(op, 1, syscall.ENOSPC)
		last := uint64(5)
		for {
			err := j.StoreLogs([]*raft.Log{entry(last + 1), entry(last + 2)})
			if err == nil {
				last += 2
				continue
			}
			if !errors.Is(err, metadata.ErrNoSpace) {
				t.Fatalf("%s: got %v", op, err)
			}
			break
		}
		if err := j.StoreLogs([]*raft.Log{entry(last + 1), entry(last + 2)}); !errors.Is(err, metadata.ErrNoSpace) {
			t.Fatalf("%s: got %v", op, err)
		}
		holds(t, j, 1, last)
		if err := j.SetUint64([]byte(keyTerm), 9); err != nil { // its file is there
			t.Fatal(err)
		}
		disk.failing("nothing", 1, nil)
		fill(t, j, last+1, last+100)
		holds(t, j, 1, last+100)
		j.Close()
		cfg.Disk = disk.crash(rand.New(rand.NewPCG(1, 1)))
		holds(t, open(t, cfg), 1, last+100)
	}
}

// The log takes no more files than it has entries for twice, and gives the spare ones back when the disk is short.
func TestSegmentsAreUsedAgainAndSparesAreBounded(t *testing.T) {
	disk := newMemoryDisk()
	cfg := testConfig("/log")
	cfg.Disk, cfg.SegmentBytes = disk, 8<<10
	var short atomic.Bool
	cfg.Refuse = func(int) error {
		if short.Load() {
			return metadata.ErrNoSpace
		}
		return nil
	}
	j := open(t, cfg)
	count := func(suffix string) (n int) {
		disk.mu.Lock()
		defer disk.mu.Unlock()
		for path := range disk.names {
			if filepath.Ext(path) == suffix {
				n++
			}
		}
		return n
	}
	var created atomic.Int64 // also by who makes files ready
	disk.mu.Lock()
	disk.before = func(op, _ string) error {
		if op == "create" {
			created.Add(1)
		}
		return nil
	}
	disk.mu.Unlock()
	last, at := uint64(0), int64(0)
	for round := range 20 {
		fill(t, j, last+1, last+400)
		last += 400
		if round == 5 {
			at = created.Load()
		}
		j.Keep(last - 400)
		if err := j.DeleteRange(1, last-400); err != nil {
			t.Fatal(err)
		}
		j.makers.Wait()
		if logs, spares := count(segmentSuffix), count(spareSuffix); spares > logs {
			t.Fatalf("round %d: %d spares beside %d segments", round, spares, logs)
		}
	}
	if made := created.Load() - at; made > 3 {
		t.Errorf("%d files were made in rounds that could use old ones", made)
	}
	first, _ := j.FirstIndex()
	holds(t, j, first, last)
	j.Close()
	cfg.Covered = Covered{Index: last - 400, Term: entry(last - 400).Term}
	cfg.Disk = disk.restart()
	disk = cfg.Disk.(*memoryDisk)
	j = open(t, cfg)
	holds(t, j, first, last)
	if count(spareSuffix) == 0 {
		t.Fatal("there is no spare")
	}
	short.Store(true)
	if err := j.StoreLog(entry(last + 1)); !errors.Is(err, metadata.ErrNoSpace) {
		t.Fatal(err)
	}
	if n := count(spareSuffix); n > 0 {
		t.Fatalf("%d spares on a disk that is short", n)
	}
	short.Store(false)
	fill(t, j, last+1, last+400)
	holds(t, j, first, last+400)
}

// An append that is larger than a segment gets one of its own, and one that does not fit into the rest of one goes on in the next.
func TestLargeAppends(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.SegmentBytes = 8 << 10
	cfg.CacheBytes = 1
	j := open(t, cfg)
	reach(t, j, 1)
	rng := rand.New(rand.NewPCG(5, 6))
	var want [][]byte
	for len(want) < 200 {
		var batch []*raft.Log
		for range 1 + rng.IntN(20) {
			data := make([]byte, rng.IntN(1<<rng.IntN(16)))
			for i := range data {
				data[i] = byte(rng.Uint32())
			}
			want = append(want, data)
			batch = append(batch, &raft.Log{Index: uint64(len(want)), Term: 1, Data: data, Extensions: data[:len(data)/3], AppendedAt: time.Unix(0, 5)})
		}
		if err := j.StoreLogs(batch); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		for i, data := range want {
			var got raft.Log
			if err := j.GetLog(uint64(i+1), &got); err != nil || !bytes.Equal(got.Data, data) || !bytes.Equal(got.Extensions, data[:len(data)/3]) || !got.AppendedAt.Equal(time.Unix(0, 5)) {
				t.Fatalf("entry %d: %v", i+1, err)
			}
		}
		j.Close()
		j = open(t, cfg)
	}
}

// A state of another time has forgotten votes.
func TestStateThatIsOlderThanTheLogIsRefused(t *testing.T) {
	cfg := testConfig(t.TempDir())
	j := open(t, cfg)
	fill(t, j, 1, 5)
	j.Close()
	path := filepath.Join(cfg.Dir, stateName)
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	j = open(t, cfg)
	fill(t, j, 6, 10)
	j.Close()
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(cfg); !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatalf("an old state: %v", err)
	}
	os.Remove(path)
	if _, err := Open(cfg); !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatalf("no state: %v", err)
	}
}

func TestReadNeedsNoLockAndChangesNothing(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.SegmentBytes = 8 << 10
	j := open(t, cfg)
	fill(t, j, 1, 300)
	if err := j.SetUint64([]byte(keyTerm), 13); err != nil {
		t.Fatal(err)
	}
	read := func() Contents {
		t.Helper()
		next := uint64(1)
		c, err := Read(cfg.Dir, func(e *raft.Log, n int) error {
			if want := entry(next); e.Index != next || !bytes.Equal(e.Data, want.Data) || n < len(e.Data) {
				t.Fatalf("entry %d: %+v", next, e)
			}
			next++
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	if c := read(); c.First != 1 || c.Last != 300 || c.Acked != 300 || len(c.Damage) > 0 {
		t.Fatalf("%+v", c)
	}
	if h, err := ReadHead(cfg.Dir); err != nil || h.Acked != 300 || h.Term != 13 || h.Segments < 3 || h.Bytes < 3*8<<10 {
		t.Fatalf("%+v, %v", h, err)
	}
	j.Close()
	files, err := filepath.Glob(filepath.Join(cfg.Dir, "*"+segmentSuffix))
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, files[1], entriesBegin+100, []byte("rot"))
	var seen int
	c, err := Read(cfg.Dir, func(*raft.Log, int) error { seen++; return nil })
	if err != nil || len(c.Damage) != 1 || !strings.HasPrefix(c.Damage[0], filepath.Base(files[1])+" at 4") || seen != 299 {
		t.Fatalf("%d entries, %+v, %v", seen, c, err)
	}
	if _, err := Read(cfg.Dir, func(*raft.Log, int) error { return errPower }); !errors.Is(err, errPower) {
		t.Fatal(err)
	}
	// Of the first entries nothing tells what they are.
	overwrite(t, files[0], entriesBegin+8, []byte("rot"))
	c, err = Read(cfg.Dir, func(*raft.Log, int) error { return nil })
	if want := filepath.Base(files[0]) + " at 4096: what stands in front of entry 2 is damaged"; err != nil || len(c.Damage) != 2 || c.Damage[0] != want || c.First != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	overwrite(t, files[0], entriesBegin, make([]byte, 4<<10))
	c, err = Read(cfg.Dir, func(*raft.Log, int) error { return nil })
	if want := filepath.Base(files[0]) + " at 4096: there is no entry here, and there are some from entry "; err != nil || len(c.Damage) != 2 || !strings.HasPrefix(c.Damage[0], want) {
		t.Fatalf("%+v, %v", c, err)
	}
}

func TestRefusalLeavesTheLogAlone(t *testing.T) {
	cfg := testConfig(t.TempDir())
	var full atomic.Bool
	cfg.Refuse = func(int) error {
		if full.Load() {
			return metadata.ErrNoSpace
		}
		return nil
	}
	j := open(t, cfg)
	fill(t, j, 1, 5)
	full.Store(true)
	if err := j.StoreLog(entry(6)); !errors.Is(err, metadata.ErrNoSpace) {
		t.Fatalf("got %v", err)
	}
	full.Store(false)
	fill(t, j, 6, 10)
	holds(t, j, 1, 10)
}

// What is not refused on a disk that is nearly full goes into the files that are there: the disk is not filled to its end.
func TestEntriesThatAreNotRefusedMakeNoFile(t *testing.T) {
	disk := newMemoryDisk()
	cfg := testConfig("/log")
	cfg.Disk, cfg.SegmentBytes = disk, 8<<10
	var short atomic.Bool
	cfg.Refuse = func(bytes int) error {
		if short.Load() && bytes > 4<<10 {
			return metadata.ErrNoSpace
		}
		return nil
	}
	j := open(t, cfg)
	var created atomic.Int64 // also by who makes files ready
	disk.mu.Lock()
	disk.before = func(op, _ string) error {
		if op == "create" {
			created.Add(1)
		}
		return nil
	}
	disk.mu.Unlock()
	short.Store(true)
	reach(t, j, entry(1000).Term)
	last := uint64(0)
	var err error
	for ; err == nil && last < 1000; last++ {
		err = j.StoreLog(entry(last + 1))
	}
	j.makers.Wait()
	if last--; !errors.Is(err, metadata.ErrNoSpace) || last < 20 || created.Load() != 1 {
		t.Fatalf("%d entries were stored in %d files, then %v", last, created.Load(), err)
	}
	holds(t, j, 1, last)
	short.Store(false)
	fill(t, j, last+1, 1000)
	holds(t, j, 1, 1000)
	short.Store(true)
	if err := j.DeleteRange(10, 1000); err != nil {
		t.Fatal(err)
	}
	big := entry(10)
	big.Term, big.Data = entry(1000).Term, make([]byte, 12<<10)
	if err := j.StoreLog(big); err != nil {
		t.Fatalf("in place of a deleted tail: %v", err)
	}
}

func TestCacheIsLimitedInBytes(t *testing.T) {
	c := cache{limit: 10 * (entryOverhead + 100)}
	for i := range uint64(100) {
		c.append(&raft.Log{Index: i + 1, Data: make([]byte, 100)})
	}
	if c.get(90) != nil || c.get(91) == nil || c.get(100) == nil || c.get(101) != nil || c.bytes != c.limit {
		t.Fatalf("%d entries from %d, %d bytes", len(c.entries), c.base, c.bytes)
	}
	c.drop(95, 100)
	if c.get(94) == nil || c.get(95) != nil {
		t.Fatal("a deleted tail is still cached")
	}
	c.append(&raft.Log{Index: 500})
	if c.get(94) != nil || c.get(500) == nil {
		t.Fatal("a gap in the cache")
	}
}

// Replication reads while the head goes, tails are cut, and files are used again: a read finds its entry or none.
func TestReadsBesideTruncation(t *testing.T) {
	cfg := testConfig("/log")
	cfg.Disk, cfg.SegmentBytes, cfg.CacheBytes = newMemoryDisk(), 8<<10, 1
	cfg.Fatal = func(err error) { t.Error(err) }
	j := open(t, cfg)
	fill(t, j, 1, 100)
	done := make(chan struct{})
	var readers sync.WaitGroup
	for seed := range uint64(2) {
		readers.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 41))
			for {
				select {
				case <-done:
					return
				default:
				}
				first, _ := j.FirstIndex()
				last, _ := j.LastIndex()
				i := first + rng.Uint64N(last-first+1)
				var got raft.Log
				err := j.GetLog(i, &got)
				if err == nil && (got.Index != i || !bytes.Equal(got.Data, entry(i).Data)) || err != nil && !errors.Is(err, raft.ErrLogNotFound) {
					t.Errorf("entry %d: %+v, %v", i, got, err)
					return
				}
			}
		})
	}
	last := uint64(100)
	for range 100 {
		fill(t, j, last+1, last+100)
		last += 100
		if err := j.DeleteRange(last-40, last); err != nil {
			t.Fatal(err)
		}
		last -= 41
		j.Keep(last - 50)
		if err := j.DeleteRange(1, last-50); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	readers.Wait()
}

// raft deletes the whole log behind an installed snapshot. What the log has behind the snapshot's entry was acknowledged: a
// snapshot that comes late must not take it away.
func TestEntriesBehindASnapshotThatComesLateStay(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.SegmentBytes = 8 << 10
	j := open(t, cfg)
	fill(t, j, 1, 300)
	j.Cover(Covered{Index: 200, Term: entry(200).Term})
	if err := j.DeleteRange(1, 300); err != nil {
		t.Fatal(err)
	}
	holds(t, j, 1, 300) // there is no older snapshot yet
	j.Keep(200)
	if err := j.DeleteRange(1, 300); err != nil {
		t.Fatal(err)
	}
	first, _ := j.FirstIndex()
	if first == 1 || first > 201 {
		t.Fatalf("the log begins at %d", first)
	}
	holds(t, j, first, 300)
	j.Close()
	cfg.Covered = Covered{Index: 200, Term: entry(200).Term}
	fatal := 0
	cfg.Fatal = func(error) { fatal++ }
	j = open(t, cfg)
	holds(t, j, first, 300)
	fill(t, j, 301, 310)
	// raft believes in the members that the snapshot names.
	if err := j.StoreLog(&raft.Log{Index: 311, Term: 4, Type: raft.LogConfiguration}); err != nil {
		t.Fatal(err)
	}
	if err := j.DeleteRange(first, 311); err == nil || fatal != 1 {
		t.Fatalf("raft goes on with the members of the snapshot: %v", err)
	}
}

// Who has acknowledged entries by installing a snapshot does not start without it.
func TestInstalledSnapshotIsMissed(t *testing.T) {
	old, installed := Covered{Index: 5, Term: 1}, Covered{Index: 500, Term: 6}
	for name, install := range map[string]func(t *testing.T, j *Journal){
		"before the log has gone": func(t *testing.T, j *Journal) {
			fill(t, j, 1, 10)
			j.Cover(installed)
		},
		"behind a log": func(t *testing.T, j *Journal) {
			fill(t, j, 1, 10)
			j.Cover(installed)
			if err := j.DeleteRange(1, 10); err != nil {
				t.Fatal(err)
			}
		},
		"over a longer one that has diverged": func(t *testing.T, j *Journal) {
			fill(t, j, 1, 600)
			j.Cover(Covered{Index: 500, Term: 7})
			if err := j.DeleteRange(1, 600); err != nil {
				t.Fatal(err)
			}
		},
		"without a log": func(_ *testing.T, j *Journal) { j.Cover(installed) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			j := open(t, cfg)
			install(t, j)
			j.Close()
			for range 2 { // the second start finds what the first one has written
				cfg.Covered = old
				if _, err := Open(cfg); !errors.Is(err, metadata.ErrCorrupt) {
					t.Fatalf("with the snapshot at 5 in place of the one at 500: %v", err)
				}
				cfg.Covered = installed
				j = open(t, cfg)
				holds(t, j, 0, 0)
				j.Close()
			}
		})
	}
}
