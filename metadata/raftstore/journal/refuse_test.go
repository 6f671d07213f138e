package journal

import (
	"errors"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// memoryConfig is that of a journal on a disk in memory whose segments are small.
func memoryConfig(disk Disk) Config {
	cfg := testConfig("/log")
	cfg.Disk, cfg.SegmentBytes, cfg.Deadline, cfg.Fatal = disk, 8<<10, -1, func(error) {}
	return cfg
}

// refuses checks that a journal is not opened because something that was acknowledged is missing.
func refuses(t *testing.T, cfg Config, what string) {
	t.Helper()
	if j, err := Open(cfg); !errors.Is(err, metadata.ErrCorrupt) {
		if err == nil {
			j.Close()
		}
		t.Fatalf("%s: %v", what, err)
	}
}

// raft deletes a conflicting tail and then stores what the leader has in its place. If that is refused raft goes on with the tail in mind,
// and finds no entry where it compares the next time.
func TestEntriesInPlaceOfADeletedTailAreNotRefused(t *testing.T) {
	disk := newMemoryDisk()
	cfg := memoryConfig(disk)
	cfg.Refuse = func(int) error { return metadata.ErrNoSpace }
	fatal := 0
	cfg.Fatal = func(error) { fatal++ }
	j := open(t, cfg)
	j.cfg.Refuse = nil
	fill(t, j, 1, 10)
	j.cfg.Refuse = cfg.Refuse
	if err := j.DeleteRange(6, 10); err != nil {
		t.Fatal(err)
	}
	if err := j.StoreLog(entry(6)); err != nil {
		t.Fatal(err)
	}
	if err := j.StoreLog(entry(7)); !errors.Is(err, metadata.ErrNoSpace) {
		t.Fatalf("got %v", err)
	}
	if err := j.DeleteRange(6, 6); err != nil || fatal > 0 {
		t.Fatal(err)
	}
	disk.failing("create", 1, syscall.ENOSPC)
	if err := j.StoreLog(&raft.Log{Index: 6, Term: 1, Data: make([]byte, 32<<10)}); err == nil || fatal != 1 {
		t.Fatalf("there is no room for the entry, and raft goes on: %v", err)
	}
}

// A directory that has lost log and state, of a member that may have voted.
func TestEmptyDirectoryOfAVoterIsRefused(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.Voted = true
	refuses(t, cfg, "neither log nor state")
	cfg.Voted = false
	open(t, cfg).Close()
	cfg.Voted = true
	open(t, cfg)
}

// forgetful returns a disk on which the state is as the last fsync left it, as after a power cut; all else is as it was.
func forgetful(disk *memoryDisk) *memoryDisk {
	after := disk.restart()
	for path, inode := range disk.names {
		content := inode.content
		if filepath.Base(path) == stateName {
			content = inode.durable
		}
		after.names[path] = &memoryInode{path: path, content: slices.Clone(content), durable: slices.Clone(content), dirty: make(map[int64]bool)}
	}
	after.durable, after.changes = maps.Clone(after.names), nil
	return after
}

// A segment's header says how to find its entries. If it is damaged they must be missed, whatever the state has forgotten.
func TestDamagedHeaderHidesNoEntries(t *testing.T) {
	disk := newMemoryDisk()
	j := open(t, memoryConfig(disk))
	last := uint64(1)
	for ; len(j.segments) < 3 || len(j.segments[2].entries) < 5; last++ {
		fill(t, j, last, last)
	}
	last--
	tail := j.segments[2].sequence
	j.makeReady()
	j.makers.Wait()
	next := j.pool.next.sequence
	path := func(sequence uint64) string { return j.pool.path(sequence, segmentSuffix) }
	j.Close()
	holds(t, open(t, memoryConfig(forgetful(disk))), 1, last)
	for what, damage := range map[string]func([]byte) []byte{
		"header rotten": func(b []byte) []byte { b[17] ^= 1; return b },
		"file cut":      func(b []byte) []byte { return b[:20] },
	} {
		for sequence := tail - 1; sequence <= tail; sequence++ {
			after := forgetful(disk)
			i := after.names[path(sequence)]
			i.content = damage(i.content)
			refuses(t, memoryConfig(after), what)
		}
	}
	after := forgetful(disk)
	after.names[path(next)].content[17] ^= 1 // there is nothing in this one
	holds(t, open(t, memoryConfig(after)), 1, last)
}

// A kernel that could not write pages marks them clean. The process ends; its next life finds the entries in the page cache.
func TestEntriesOfAFailedSyncAreDurableOnceTheyAreTaken(t *testing.T) {
	disk := newMemoryDisk()
	j := open(t, memoryConfig(disk))
	fill(t, j, 1, 10)
	disk.mu.Lock()
	disk.before = func(op, path string) error {
		if op == "sync" && filepath.Ext(path) == segmentSuffix {
			disk.clean(path)
			return syscall.EIO
		}
		return nil
	}
	disk.mu.Unlock()
	if err := j.StoreLogs([]*raft.Log{entry(11), entry(12)}); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	j.Close()
	disk = disk.restart()
	j = open(t, memoryConfig(disk))
	holds(t, j, 1, 12) // what raft believes in from now on
	j.Close()
	for seed := range uint64(5) {
		j = open(t, memoryConfig(disk.crash(rand.New(rand.NewPCG(seed, 1)))))
		holds(t, j, 1, 12)
		j.Close()
	}
}

// A tail that was cleared comes back: the disk has lost a write that it had confirmed.
func TestTailThatComesBackIsRefused(t *testing.T) {
	disk := newMemoryDisk()
	j := open(t, memoryConfig(disk))
	fill(t, j, 1, 20)
	s := j.segments[0]
	at, path := s.entries[10].at, j.pool.path(s.sequence, segmentSuffix)
	before := disk.content(path)
	if err := j.DeleteRange(11, 20); err != nil {
		t.Fatal(err)
	}
	var batch []*raft.Log // which go into another file
	for i := range uint64(10) {
		batch = append(batch, &raft.Log{Index: 11 + i, Term: 1, Data: []byte(strings.Repeat("y", int(1+i/9*7000)))})
	}
	batch[0].Data = make([]byte, 7000)
	if err := j.StoreLogs(batch); err != nil {
		t.Fatal(err)
	}
	j.Close()
	open(t, memoryConfig(disk)).Close() // which moves the cut
	disk.overwrite(path, int64(at), before[at:])
	refuses(t, memoryConfig(disk), "two tails")
}

// A state that lacks terms of this life, because it was put back by hand or the disk has lost it.
func TestStateBehindTheEntriesTermIsRefused(t *testing.T) {
	cfg := testConfig(t.TempDir())
	j := open(t, cfg)
	fill(t, j, 1, 5)
	path := filepath.Join(cfg.Dir, stateName)
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, j, 6, 150)
	j.Close()
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, cfg, "a state of an earlier term")
}

// blindDisk cannot read one of the records of the state.
type blindDisk struct {
	Disk
	at int64
}

type blindFile struct {
	File
	at int64
}

func (d blindDisk) Open(path string) (File, error) {
	f, err := d.Disk.Open(path)
	if err == nil && filepath.Base(path) == stateName {
		return blindFile{f, d.at}, nil
	}
	return f, err
}

func (f blindFile) ReadAt(b []byte, at int64) (int, error) {
	if at <= f.at && f.at < at+int64(len(b)) {
		return int(f.at - at), syscall.EIO
	}
	return f.File.ReadAt(b, at)
}

func TestOneUnreadableRecordOfTheStateLosesNothing(t *testing.T) {
	for _, at := range []int64{0, recordApart} {
		disk := newMemoryDisk()
		j := open(t, memoryConfig(disk))
		fill(t, j, 1, 150)
		j.Close()
		j = open(t, memoryConfig(blindDisk{disk, at}))
		holds(t, j, 1, 150)
		if term, _ := j.GetUint64([]byte(keyTerm)); term != 2 {
			t.Fatalf("term %d", term)
		}
	}
}

// What bears the name of a segment is one, or is refused.
func TestSegmentThatIsNoPlainFile(t *testing.T) {
	cfg := testConfig(t.TempDir())
	cfg.SegmentBytes = 8 << 10
	j := open(t, cfg)
	fill(t, j, 1, 300)
	j.Close()
	files, err := filepath.Glob(filepath.Join(cfg.Dir, "*"+segmentSuffix))
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := filepath.Join(t.TempDir(), "segment")
	if err := errors.Join(os.Rename(files[1], elsewhere), os.Symlink(elsewhere, files[1])); err != nil {
		t.Fatal(err)
	}
	j = open(t, cfg)
	holds(t, j, 1, 300)
	j.Close()
	if err := os.Mkdir(filepath.Join(cfg.Dir, segmentName(0xffff, segmentSuffix)), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(cfg); !errors.Is(err, syscall.EISDIR) {
		t.Fatalf("a directory: %v", err)
	}
	if err := errors.Join(os.Remove(filepath.Join(cfg.Dir, segmentName(0xffff, segmentSuffix))), os.Truncate(files[0], maxSegment+1)); err != nil {
		t.Fatal(err)
	}
	refuses(t, cfg, "a file that is larger than memory, perhaps")
}
