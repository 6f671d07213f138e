package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"

	"github.com/gohops/hops/metadata"
)

func testConfig(dir string) Config {
	return Config{
		Dir: dir, SegmentBytes: 64 << 10, Logger: slog.New(slog.DiscardHandler),
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

// fill appends entries in batches of different sizes.
func fill(t *testing.T, j *Journal, from, to uint64) {
	t.Helper()
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

func TestHeadGoesOnlyBehindTheOlderSnapshot(t *testing.T) {
	cfg := testConfig(t.TempDir())
	j := open(t, cfg)
	fill(t, j, 1, 100)
	if err := j.DeleteRange(1, 90); err != nil {
		t.Fatal(err)
	}
	holds(t, j, 1, 100)
	j.Keep(40)
	if err := j.DeleteRange(1, 90); err != nil {
		t.Fatal(err)
	}
	holds(t, j, 41, 100)
	j.Close()
	if _, err := Open(cfg); !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatalf("a log that begins at 41 without a snapshot opened: %v", err)
	}
	cfg.Covered = Covered{Index: 40, Term: 1}
	holds(t, open(t, cfg), 41, 100)
}

func TestLogGoesOnBehindAnInstalledSnapshot(t *testing.T) {
	cfg := testConfig(t.TempDir())
	j := open(t, cfg)
	if !j.IsMonotonic() {
		t.Fatal("raft would leave a gap behind an installed snapshot, and raft-wal refuses to append behind one")
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

func TestLogGoesOnAfterCrashBetweenSealAndRotation(t *testing.T) {
	cfg := testConfig(t.TempDir())
	j := open(t, cfg)
	big := make([]byte, 10<<10)
	for i := range uint64(7) { // the seventh seals the segment; closing is faster than the rotation
		if err := j.StoreLog(&raft.Log{Index: i + 1, Term: 1, Data: big}); err != nil {
			t.Fatal(err)
		}
	}
	j.Close()
	for range 3 {
		j = open(t, cfg)
		last, _ := j.LastIndex()
		for i := range uint64(7) {
			if err := j.StoreLog(&raft.Log{Index: last + i + 1, Term: 1, Data: big}); err != nil {
				t.Fatal(err)
			}
		}
		j.Close()
	}
	if last, _ := open(t, cfg).LastIndex(); last != 28 {
		t.Fatalf("last entry %d, want 28", last)
	}
}

// tear appends entries that nobody acknowledged, as a process does that dies in the middle of StoreLogs, and damages
// them in the way given.
func tear(t *testing.T, dir string, acked uint64, n int, damage func(file string, from, to int64)) {
	t.Helper()
	m, err := openMark(dir)
	if err != nil {
		t.Fatal(err)
	}
	m.close()
	b, err := WAL(dir, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	var batch []*raft.Log
	for i := range uint64(n) {
		batch = append(batch, entry(acked+1+i))
	}
	before, _ := b.(*walBackend).RawTail()
	if err := b.StoreLogs(wrap(batch, m.salt, acked)); err != nil {
		t.Fatal(err)
	}
	after, _ := b.(*walBackend).RawTail()
	file, _ := b.(*walBackend).tail()
	b.Close()
	from, to := 0, len(after)
	for from < len(before) && before[from] == after[from] {
		from++
	}
	for to > from && after[to-1] == 0 {
		to--
	}
	damage(file, int64(from), int64(to))
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
		"all missing":    func(t *testing.T, file string, from, to int64) { overwrite(t, file, from, make([]byte, to-from)) },
		"commit missing": func(t *testing.T, file string, _, to int64) { overwrite(t, file, to-8, make([]byte, 8)) },
		"file cut":       func(_ *testing.T, file string, from, to int64) { os.Truncate(file, from+(to-from)/3) },
		"rotten": func(t *testing.T, file string, from, to int64) {
			overwrite(t, file, from+(to-from)/2, []byte("rot"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t.TempDir())
			j := open(t, cfg)
			fill(t, j, 1, 20)
			j.Close()
			tear(t, cfg.Dir, 20, 5, func(file string, from, to int64) { damage(t, file, from, to) })
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
	src := t.TempDir()
	cfg := testConfig(src)
	j := open(t, cfg)
	fill(t, j, 1, 1000)
	j.DeleteRange(995, 1000) // a tail segment with little in it, and deleted entries in a sealed one
	fill(t, j, 995, 1200)
	if err := j.SetUint64([]byte(keyTerm), 13); err != nil {
		t.Fatal(err)
	}
	j.Close()
	files, _ := os.ReadDir(src)
	rng := rand.New(rand.NewPCG(1, 2))
	trials := 30
	if testing.Short() {
		trials = 10
	}
	var refused, harmless int
	for _, f := range files {
		content, err := os.ReadFile(filepath.Join(src, f.Name()))
		if err != nil {
			t.Fatal(err)
		}
		used := len(bytes.TrimRight(content, "\x00"))
		for n := range trials {
			dir := t.TempDir()
			for _, g := range files {
				other, _ := os.ReadFile(filepath.Join(src, g.Name()))
				if g.Name() == f.Name() {
					other = bytes.Clone(other)
					at := rng.IntN(used)
					if n%10 == 9 { // cut instead
						other = other[:at]
					} else {
						other[at] ^= 1 << rng.IntN(8)
					}
				}
				if err := os.WriteFile(filepath.Join(dir, g.Name()), other, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c := cfg
			c.Dir = dir
			c.Fatal = func(error) {}
			j, err := Open(c)
			if err != nil {
				if !errors.Is(err, metadata.ErrCorrupt) {
					t.Fatalf("%s: want corruption, got %v", f.Name(), err)
				}
				refused++
				continue
			}
			harmless++
			holds(t, j, 1, 1200)
			if term, _ := j.GetUint64([]byte(keyTerm)); term != 13 {
				t.Fatalf("%s: term is %d", f.Name(), term)
			}
			j.Close()
		}
	}
	t.Logf("%d refused, %d harmless", refused, harmless)
	if refused < trials {
		t.Fatalf("only %d of %d damages were found", refused, refused+harmless)
	}
}

// raft-wal leaves its meta store open when it refuses a log, and that store's lock is waited for without end.
func TestRefusedLogIsRefusedAgain(t *testing.T) {
	cfg := testConfig(t.TempDir())
	j := open(t, cfg)
	fill(t, j, 1, 5)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	segments, err := filepath.Glob(filepath.Join(cfg.Dir, "*.wal"))
	if err != nil || len(segments) != 1 {
		t.Fatal(segments, err)
	}
	raw, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	raw[0] ^= 1 // of its head
	if err := os.WriteFile(segments[0], raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		refused := make(chan error, 1)
		go func() {
			_, err := Open(cfg)
			refused <- err
		}()
		select {
		case err := <-refused:
			if !errors.Is(err, metadata.ErrCorrupt) {
				t.Fatalf("got %v", err)
			}
		case <-time.After(time.Minute):
			t.Fatal("opening it hangs")
		}
	}
}

func TestRotMetAtRunTimeIsFatal(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.CacheBytes = 1
	var fatal []error
	cfg.Fatal = func(err error) { fatal = append(fatal, err) }
	j := open(t, cfg)
	fill(t, j, 1, 20)
	file, _ := j.backend.(*walBackend).tail()
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

// faulty is a file layer whose syncs can hang or fail.
type faulty struct {
	types.VFS
	hang  chan struct{}
	armed atomic.Bool
	err   error
}

type faultyFile struct {
	types.WritableFile
	v *faulty
}

func (v *faulty) Create(dir, name string, size uint64) (types.WritableFile, error) {
	f, err := v.VFS.Create(dir, name, size)
	return &faultyFile{f, v}, err
}

func (f *faultyFile) Sync() error {
	if f.v.armed.Load() {
		if f.v.hang != nil {
			<-f.v.hang
		}
		if f.v.err != nil {
			return f.v.err
		}
	}
	return f.WritableFile.Sync()
}

func TestHangingDiskIsFatalWithinTheDeadline(t *testing.T) {
	v := &faulty{VFS: walfs.New(), hang: make(chan struct{})}
	cfg := testConfig(t.TempDir())
	cfg.Deadline = 50 * time.Millisecond // no write may come before the one that hangs: the real disk may take longer
	cfg.Open = func(dir string, n int) (Backend, error) { return openWAL(dir, n, v) }
	fatal := make(chan error, 2)
	cfg.Fatal = func(err error) { fatal <- err }
	j := open(t, cfg)
	v.armed.Store(true)
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
	close(v.hang) // the disk comes back: too late
	if err := <-stored; err == nil {
		t.Fatal("an entry was acknowledged after the deadline")
	}
	if len(fatal) != 0 {
		t.Fatal("Fatal was called twice")
	}
}

func TestFailedSyncIsFinal(t *testing.T) {
	v := &faulty{VFS: walfs.New(), err: syscall.EIO}
	cfg := testConfig(t.TempDir())
	cfg.Open = func(dir string, n int) (Backend, error) { return openWAL(dir, n, v) }
	var fatal []error
	cfg.Fatal = func(err error) { fatal = append(fatal, err) }
	j := open(t, cfg)
	fill(t, j, 1, 5)
	v.armed.Store(true)
	if err := j.StoreLog(entry(6)); !errors.Is(err, syscall.EIO) {
		t.Fatalf("got %v", err)
	}
	v.armed.Store(false)
	if err := j.StoreLog(entry(6)); !errors.Is(err, syscall.EIO) {
		t.Fatalf("a second try was made: %v", err)
	}
	if len(fatal) != 1 {
		t.Fatalf("Fatal was called %d times", len(fatal))
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
