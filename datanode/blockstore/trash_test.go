package blockstore

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/datanode"
	"github.com/gohops/hops/datanode/vfs"
	"github.com/gohops/hops/datanode/vfs/faulty"
	"github.com/gohops/hops/datanode/vfs/mem"
	"github.com/gohops/hops/metadata"
)

// lostFiles are the names in the trash of a volume on the operating system's disk.
func lostFiles(t *testing.T, dir string) (names []string) {
	t.Helper()
	check(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if strings.Contains(filepath.Ext(path), "lost") {
			names = append(names, path)
		}
		return err
	}))
	return names
}

// What is discarded is not a replica any more, but its bytes are there for a day, over restarts, wherever they lay.
func TestDiscardedReplicasAreKeptForADay(t *testing.T) {
	dir := t.TempDir()
	h := open(t, vfs.OS, dir)
	h.put(7, 1, pattern(40_000)) // in files
	h.put(8, 1, pattern(1000))   // in a pack
	h.put(9, 2, pattern(40_000))
	check(t, h.Discard(block(7, 1, 0)))
	check(t, h.Discard(block(8, 1, 0)))
	check(t, h.Delete(block(9, 2, 0)))
	if _, ok := h.Replica(7); ok || h.kinds(7) != "RECEIVING RECEIVED DELETED" {
		t.Errorf("the replica is there, announced %s", h.kinds(7))
	}
	names := lostFiles(t, dir)
	if len(names) != 4 {
		t.Fatalf("in the trash are %v", names)
	}
	for _, name := range names {
		b := must[[]byte](t)(os.ReadFile(name))
		size := map[string]int{"7": 40_000, "8": 1000}[strings.Split(filepath.Base(name), "_")[1]]
		if filepath.Ext(name) == lostData && string(b) != string(pattern(size)) {
			t.Errorf("%s has other bytes", name)
		}
		if filepath.Ext(name) == lostSums && (checkHeader(b[:headerSize], b2id(name)) != nil || string(b[headerSize:]) != string(sumsOf(pattern(size)))) {
			t.Errorf("%s has other checksums", name)
		}
	}
	h.put(7, 3, pattern(50_000)) // its place is free
	check(t, h.Shutdown())

	h = open(t, vfs.OS, dir)
	h.wantContent(7, pattern(50_000))
	storage := h.Volumes()[0].ID
	check(t, h.EmptyTrash(storage))
	if names := lostFiles(t, dir); len(names) != 4 {
		t.Errorf("after a restart there are %v", names)
	}
	h.all()[0].trash.up = func() time.Duration { return upTime() + DefaultKeep + time.Minute }
	check(t, h.EmptyTrash(storage))
	if names := lostFiles(t, dir); len(names) > 0 {
		t.Errorf("after a day there are %v", names)
	}
	check(t, h.Shutdown())
}

// A clock that is wrong for a while neither keeps the trash from being emptied nor empties it.
func TestTheTrashLivesWithAWrongClock(t *testing.T) {
	const year = 365 * 24 * time.Hour
	disk := mem.New(8 << 20)
	h := open(t, disk)
	wall, up := time.Now(), upTime()
	clocks := func() {
		v := h.all()[0]
		v.trash.now, v.trash.up = func() time.Time { return wall }, func() time.Duration { return up }
	}
	pass := func(d time.Duration) { wall, up = wall.Add(d), up+d }
	left := func() int {
		t.Helper()
		v := h.all()[0]
		check(t, h.EmptyTrash(v.id.Storage))
		v.trash.mu.Lock()
		defer v.trash.mu.Unlock()
		return len(v.trash.items)
	}
	discard := func(id int64) {
		h.put(id, 1, pattern(40_000))
		check(t, h.Discard(block(id, 1, 0)))
	}
	clocks()
	discard(1)
	wall = wall.Add(year) // it jumps ahead
	discard(2)
	if n := left(); n != 2 {
		t.Errorf("a jump of the clock leaves %d", n)
	}
	wall = wall.Add(-year)
	discard(3)
	pass(DefaultKeep - time.Minute)
	if n := left(); n != 3 {
		t.Errorf("before a day has passed there are %d", n)
	}
	pass(2 * time.Minute)
	if n := left(); n != 0 {
		t.Errorf("after a day there are %d", n)
	}

	wall = time.Now().Add(year)
	discard(4) // by a clock that is ahead
	wall = time.Now()
	discard(5)
	check(t, h.Shutdown())
	h = open(t, disk)
	wall, up = time.Now(), upTime()
	clocks()
	if n := left(); n != 2 {
		t.Errorf("after a restart there are %d", n)
	}
	pass(DefaultKeep + time.Minute)
	if n := left(); n != 0 {
		t.Errorf("a day after the restart there are %d", n)
	}
}

func b2id(name string) metadata.BlockID {
	l, _, _ := parseLost(filepath.Base(name))
	return l.id
}

// The trash is what goes first when room is wanted, and it is never large.
func TestTheTrashMakesRoom(t *testing.T) {
	disk := mem.New(4 << 20)
	h := open(t, disk)
	room := func() int64 { return h.Volumes()[0].Remaining }
	before := room()
	for id := int64(1); id <= 3; id++ {
		h.put(id, 1, pattern(60_000))
		check(t, h.Discard(block(id, 1, 0)))
	}
	v := h.all()[0]
	if n := v.trash.bytes.Load(); n == 0 || n > v.trash.limit {
		t.Fatalf("%d bytes in the trash, which may have %d", n, v.trash.limit)
	}
	if left := room(); before-left > 20_000 { // directories
		t.Errorf("%d bytes remain, before there were %d: the trash counts as free", left, before)
	}
	w, err := h.Create(block(9, 1, 0), datanode.CreateOptions{Expect: room()})
	check(t, err)
	check(t, w.Close())
	if n := v.trash.bytes.Load(); n != 0 {
		t.Errorf("%d bytes are still in the trash", n)
	}
}

// A copy takes the place of a replica that was found damaged; of an intact one it does not.
func TestACopyTakesThePlaceOfADamagedReplica(t *testing.T) {
	disk := mem.New(8 << 20)
	h := open(t, disk)
	h.put(7, 1, pattern(40_000))
	_, err := h.Create(block(7, 1, 0), datanode.CreateOptions{Temporary: true})
	wantKind(t, err, metadata.ErrExist)
	h.markCorrupt(h.get(7))
	w, err := h.Create(block(7, 1, 0), datanode.CreateOptions{Temporary: true})
	check(t, err)
	check(t, w.Write(0, pattern(40_000), nil))
	must[datanode.Replica](t)(w.Finalize())
	h.wantContent(7, pattern(40_000))
	if k := h.kinds(7); k != "RECEIVING RECEIVED CORRUPT DELETED RECEIVED" || len(h.Corrupt()) > 0 {
		t.Errorf("announced %s, corrupt are %v", k, h.Corrupt())
	}
}

// What is told of damaged replicas once more is told before a copy takes the place of one, or of the copy not at all: the copy has the same generation.
func TestDamageIsToldAgainBeforeACopyIs(t *testing.T) {
	h := open(t, mem.New(8<<20))
	h.put(7, 1, pattern(40_000))
	r := h.get(7)
	h.markCorrupt(r)
	n := 0
	h.EachCorrupt(func(got datanode.Replica) {
		n++
		if got.Block != block(7, 1, 40_000) || r.mu.TryLock() {
			t.Errorf("%v may be gone while it is told", got)
		}
	})
	if n != 1 {
		t.Errorf("%d were told", n)
	}
}

// A replica that was announced as corrupt and is read without a fault again is announced as intact. One whose files have
// another length is found without reading it.
func TestVerdictsAreRevisedAndSizesCompared(t *testing.T) {
	dir := t.TempDir()
	h := open(t, vfs.OS, dir)
	h.put(7, 1, pattern(40_000))
	verify := func(tell bool) error { return h.Verify(t.Context(), 7, datanode.VerifyOptions{Tell: tell}) }
	check(t, verify(false))
	check(t, verify(true))
	h.markCorrupt(h.get(7))
	check(t, verify(false))
	name := h.all()[0].dataPath(7)
	check(t, h.CheckSizes(7))
	check(t, os.Truncate(name, 30_000))
	wantKind(t, h.CheckSizes(7), metadata.ErrCorrupt)
	wantKind(t, verify(false), metadata.ErrCorrupt)
	check(t, os.WriteFile(name, pattern(40_000), 0o600))
	check(t, verify(false))
	check(t, os.Remove(name))
	wantKind(t, h.CheckSizes(7), metadata.ErrReplicaNotFound)
	if k := h.kinds(7); k != "RECEIVING RECEIVED VERIFIED CORRUPT VERIFIED CORRUPT VERIFIED DELETED" {
		t.Errorf("announced %s", k)
	}
	wantKind(t, h.Verify(t.Context(), 8, datanode.VerifyOptions{Tell: true}), metadata.ErrReplicaNotFound)
	if k := h.kinds(8); k != "DELETED" {
		t.Errorf("of a replica that is not there is announced %s", k)
	}
}

func TestCursorIsKeptOverRestarts(t *testing.T) {
	dir := t.TempDir()
	h := open(t, vfs.OS, dir)
	id := h.Volumes()[0].ID
	if c, err := h.Cursor(id); err != nil || c != (datanode.Cursor{}) {
		t.Errorf("of a new volume: %v, %v", c, err)
	}
	want := datanode.Cursor{Begun: time.Unix(1e9, 0), After: 77}
	check(t, h.SetCursor(id, want))
	check(t, h.Shutdown())
	h = open(t, vfs.OS, dir)
	if c, err := h.Cursor(id); err != nil || c != want {
		t.Errorf("after a restart: %v, %v", c, err)
	}
	check(t, os.WriteFile(filepath.Join(dir, scrubFile), []byte("begun=1\nafter=2\n"), 0o600))
	_, err := h.Cursor(id)
	wantKind(t, err, metadata.ErrCorrupt)
	check(t, h.Shutdown())
}

// On a disk without room for what the trash would keep of a packed replica, that is removed at once, for good: its record
// does not come back with the next start, and nothing half is left.
func TestDiscardOnAFullDiskRemoves(t *testing.T) {
	disk := mem.New(1 << 30)
	full := faulty.New(disk)
	h := open(t, full)
	h.put(7, 1, pattern(1000))                                       // in a pack
	full.Set(faulty.Nth(1, "write", lostSums, true, syscall.ENOSPC)) // the data fits, the checksums do not
	check(t, h.Discard(block(7, 1, 0)))
	check(t, h.Shutdown())
	h = open(t, disk)
	if r, ok := h.Replica(7); ok {
		t.Errorf("after a restart there is %v", r)
	}
	if n := h.all()[0].trash.bytes.Load(); n != 0 {
		t.Errorf("%d bytes are in the trash", n)
	}
}
