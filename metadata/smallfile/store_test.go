package smallfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/gohops/hops/metadata"
)

var errNoSpace = fmt.Errorf("write: %w", syscall.ENOSPC)

const firstID = metadata.FirstBlockID

// bodyOf is the body of an id, the same always.
func bodyOf(id metadata.BlockID, most int) []byte {
	h := uint64(id) * 0x9e3779b97f4a7c15
	from, n := int(h>>16%MaxBody), 1+int(h>>40)%most
	return noise[from : from+n : from+n]
}

// noise is what bodies are cut from.
var noise = func() []byte {
	r := rand.New(rand.NewPCG(1, 7))
	b := make([]byte, 2*MaxBody)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}()

// living is a namespace: what lives.
type living struct {
	mu  sync.Mutex
	ids map[metadata.BlockID]bool
}

func newLiving() *living { return &living{ids: map[metadata.BlockID]bool{}} }

func (l *living) live(ids []metadata.BlockID) ([]bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lives := make([]bool, len(ids))
	for i, id := range ids {
		lives[i] = l.ids[id]
	}
	return lives, nil
}

func (l *living) set(id metadata.BlockID, lives bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lives {
		l.ids[id] = true
	} else {
		delete(l.ids, id)
	}
}

func open(t testing.TB, c Config) *Store {
	t.Helper()
	s, err := tryOpen(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func tryOpen(c Config) (*Store, error) {
	if c.Dir == "" {
		c.Dir = "/bodies"
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = leastSegment
	}
	if c.Live == nil {
		c.Live = func(ids []metadata.BlockID) ([]bool, error) { return make([]bool, len(ids)), nil }
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := Open(c)
	if err == nil {
		s.rate = 1 << 40
	}
	return s, err
}

func TestPutAndGet(t *testing.T) {
	disk, names := newDisk(), newLiving()
	s := open(t, Config{Disk: disk, Live: names.live})
	const n = 300
	check := func(s *Store) {
		t.Helper()
		for id := firstID; id < firstID+n; id++ {
			b, err := s.Get(id)
			if err != nil || !bytes.Equal(b, bodyOf(id, 500)) {
				t.Fatalf("%d: %v", id, err)
			}
		}
		if _, err := s.Get(firstID + n); !errors.Is(err, fs.ErrNotExist) || s.Has(firstID+n) {
			t.Fatal(err)
		}
	}
	for id := firstID; id < firstID+n; id++ {
		s.Put(id, bodyOf(id, 500))
		names.set(id, true)
	}
	check(s)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Disk: disk, Live: names.live})
	check(s)
	for id := firstID; id < firstID+n; id += 2 {
		names.set(id, false)
	}
	freed, err := s.Compact(context.Background())
	if err != nil || freed == 0 {
		t.Fatal(freed, err)
	}
	t.Logf("%+v", s.Figures())
	for id := firstID; id < firstID+n; id++ {
		if b, err := s.Get(id); err != nil && id%2 == (firstID+1)%2 || err == nil && !bytes.Equal(b, bodyOf(id, 500)) {
			t.Fatalf("%d: %v", id, err)
		}
	}
	s.Close()
}

// Who keeps a few bodies that lie far apart keeps them, and not what lies between.
func TestManyKeepNoGaps(t *testing.T) {
	disk := newDisk()
	s := open(t, Config{Disk: disk, SegmentBytes: 1 << 20})
	defer s.Close()
	const n, apart = 300, 7
	long := func(id metadata.BlockID) []byte { return noise[int(id)%1000:][:1000:1000] }
	for id := firstID; id < firstID+n; id++ {
		s.Put(id, long(id))
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	f := disk.files["/bodies/"+segmentName(1)]
	for _, step := range []metadata.BlockID{1, apart} {
		var ids []metadata.BlockID
		for id := firstID; id < firstID+n; id += step {
			ids = append(ids, id, id) // some are wanted twice
		}
		before := f.reads
		kept := map[*byte]int{}
		seen := 0
		s.GetMany(ids, func(i int, body []byte, err error) {
			if err != nil || !bytes.Equal(body, long(ids[i])) {
				t.Fatal(i, err)
			}
			seen++
			kept[&body[0]]++
		})
		if seen != len(ids) || f.reads-before > 3 {
			t.Fatalf("%d of %d bodies with %d reads", seen, len(ids), f.reads-before)
		}
		if alone := len(kept) == len(ids); alone != (step == apart) {
			t.Errorf("%d of %d bodies, each %d apart, have memory of their own", len(kept), len(ids), step)
		}
	}
}

// A body that is in memory is had at once, one that is not is not waited for, and one that is damaged is left to Get.
func TestGetNow(t *testing.T) {
	const n, most = 60, 300
	disk, names := stored(t, n, most, true)
	s := open(t, Config{Disk: disk, Live: names.live})
	defer s.Close()
	if _, ok := s.GetNow(firstID + n); ok {
		t.Error("what is not here can be had")
	}
	s.Put(firstID+n, bodyOf(firstID+n, most))
	for id := firstID; id <= firstID+n; id++ {
		if b, ok := s.GetNow(id); !ok || !bytes.Equal(b, bodyOf(id, most)) {
			t.Fatal(id, ok)
		}
	}
	disk.trouble(func(op, path string) error {
		t.Errorf("%s %s", op, path)
		return nil
	})
	disk.mu.Lock()
	disk.cold = true
	disk.mu.Unlock()
	for id := firstID; id < firstID+n; id++ {
		if _, ok := s.GetNow(id); ok {
			t.Fatal(id)
		}
	}
	if b, ok := s.GetNow(firstID + n); !ok || !bytes.Equal(b, bodyOf(firstID+n, most)) {
		t.Error("what waits to be written cannot be had")
	}
	s.files.close()
	disk.mu.Lock()
	disk.cold = false
	disk.mu.Unlock()
	if _, ok := s.GetNow(firstID); ok {
		t.Error("a segment was opened")
	}
	disk.trouble(nil)
	p := s.table.places(firstID, nil)[0]
	disk.files["/bodies/"+segmentName(p.seq)].content[p.at+recordHeader] ^= 1
	if _, ok := s.GetNow(firstID); ok || s.Figures().Damaged != 0 {
		t.Error("what is damaged can be had")
	}
	if _, err := s.Get(firstID); !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatal(err)
	}
	if _, ok := s.GetNow(firstID); ok {
		t.Error("what is known to be damaged can be had")
	}
}

// A body that did not come is known to be missing, also after a restart, until it is put or nobody needs it.
func TestLack(t *testing.T) {
	const n, most = 60, 300
	for _, how := range []string{"close", "kill"} {
		disk, names := stored(t, n, most, true)
		s := open(t, Config{Disk: disk, Live: names.live})
		here, later, dead := firstID, firstID+n, firstID+n+1
		for id := firstID; id < firstID+n+2; id++ {
			names.set(id, true)
		}
		lacks := func(what string, want ...metadata.BlockID) {
			t.Helper()
			got := s.Damaged(n)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("%s, %s: %v are missing, not %v", how, what, got, want)
			}
			for _, id := range want {
				if _, err := s.Get(id); s.Has(id) || !errors.Is(err, metadata.ErrCorrupt) {
					t.Fatal(what, id, err)
				}
			}
		}
		for range 2 {
			s.Lack(here, len(bodyOf(here, most)))
			s.Lack(later, len(bodyOf(later, most)))
			s.Lack(dead, MaxBody)
			lacks("at once", later, dead)
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		lacks("written", later, dead)
		if how == "kill" {
			disk = disk.crash(nil)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, Config{Disk: disk, Live: names.live})
		lacks("after a restart", later, dead)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		// A state that is being taken in does not live yet, and is not forgotten.
		names.set(later, false)
		names.set(dead, false)
		release := s.Hold()
		if _, err := s.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
		lacks("while a state is taken in", later, dead)
		names.set(later, true)
		release()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, Config{Disk: disk, Live: names.live})
		if _, err := s.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
		lacks("when the other one is dead", later)
		if all := scrubbed(t, s); all.Damaged != 0 {
			t.Errorf("%+v", all)
		}
		s.Put(later, bodyOf(later, most))
		lacks("when it has come")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, Config{Disk: disk, Live: names.live})
		if _, err := s.Compact(t.Context()); err != nil { // which forgets the dead one again
			t.Fatal(err)
		}
		lacks("when it has come, after a restart")
		if bad := flawed(t, s, n+1, most); len(bad) != 0 {
			t.Fatal(bad)
		}
		s.Close()
	}
}

// A store that is given up writes nothing, though the disk is full, and leaves no descriptor.
func TestAbandon(t *testing.T) {
	killed, names := stored(t, 60, 300, false)
	s := open(t, Config{Disk: killed, Live: names.live})
	killed.trouble(func(op, path string) error {
		if op != "open" && op != "read" {
			t.Errorf("%s %s", op, path)
		}
		return errNoSpace
	})
	seen := map[metadata.BlockID]bool{}
	for id := range s.IDs() {
		seen[id] = true
	}
	if len(seen) != 60 {
		t.Errorf("%d ids", len(seen))
	}
	s.Put(firstID+100, bodyOf(firstID+100, 300))
	s.Abandon()
	s.Abandon()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	for path, f := range killed.files {
		if f.opened > 0 {
			t.Errorf("%s is open %d times", path, f.opened)
		}
	}
}
