package smallfile

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gohops/hops/metadata"
)

// stored is a disk with the bodies of ids from the first on, and what lives. With sealed the store was closed well, else its process was killed after a
// Sync.
func stored(t *testing.T, n, most int, sealed bool) (*memoryDisk, *living) {
	t.Helper()
	disk, names := newDisk(), newLiving()
	s := open(t, Config{Disk: disk, Live: names.live})
	for id := firstID; id < firstID+metadata.BlockID(n); id++ {
		s.Put(id, bodyOf(id, most))
		names.set(id, true)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	killed := disk.crash(nil)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !sealed {
		return killed, names
	}
	return disk, names
}

// flawed reads all bodies, and returns the ids that cannot be read. None is wrong.
func flawed(t *testing.T, s *Store, n, most int) (bad []metadata.BlockID) {
	t.Helper()
	var ids []metadata.BlockID
	for id := firstID; id < firstID+metadata.BlockID(n); id++ {
		ids = append(ids, id)
		b, err := s.Get(id)
		switch {
		case err == nil && !bytes.Equal(b, bodyOf(id, most)):
			t.Fatalf("body %d is wrong", id)
		case err == nil:
			continue
		case !errors.Is(err, metadata.ErrCorrupt) && !errors.Is(err, fs.ErrNotExist):
			t.Fatal(err)
		}
		if s.Has(id) {
			t.Fatalf("body %d is said to be here: %v", id, err)
		}
		bad = append(bad, id)
	}
	var many []metadata.BlockID
	s.GetMany(ids, func(i int, body []byte, err error) {
		if err != nil {
			many = append(many, ids[i])
		} else if !bytes.Equal(body, bodyOf(ids[i], most)) {
			t.Fatalf("body %d of many is wrong", ids[i])
		}
	})
	slices.Sort(many)
	if !slices.Equal(many, bad) {
		t.Fatalf("one by one %v cannot be read, together %v", bad, many)
	}
	return bad
}

// Whatever bit of a segment is another one, no body is wrong, one at most is lost, that is known, and putting it again heals.
func TestFlippedBits(t *testing.T) {
	const n, most = 60, 300
	offsets := 1000
	if testing.Short() {
		offsets = 150
	}
	for _, sealed := range []bool{true, false} {
		disk, names := stored(t, n, most, sealed)
		r := rand.New(rand.NewPCG(3, 3))
		lost := 0
		for range offsets {
			d := disk.crash(nil)
			paths := slices.Sorted(maps.Keys(d.files))
			f := d.files[paths[r.IntN(len(paths))]]
			at := r.IntN(len(f.content))
			f.content[at] ^= 1 << r.IntN(8)
			s := open(t, Config{Disk: d, Live: names.live})
			bad := flawed(t, s, n, most)
			if len(bad) > 1 {
				t.Fatalf("a bit at %d of %s costs %v", at, f.path, bad)
			}
			lost += len(bad)
			// What is damaged stays so, and only that, through a copy and a restart.
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			for id := firstID; id < firstID+n; id += 2 {
				names.set(id, len(bad) > 0 && bad[0] == id)
			}
			if _, err := s.Compact(context.Background()); err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, Config{Disk: d, Live: names.live})
			for _, id := range flawed(t, s, n, most) {
				if names.ids[id] && !slices.Contains(bad, id) {
					t.Fatalf("a bit at %d of %s costs %d when it is copied", at, f.path, id)
				}
			}
			for _, id := range bad {
				s.Put(id, bodyOf(id, most))
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
				if b, err := s.Get(id); err != nil || !bytes.Equal(b, bodyOf(id, most)) || !s.Has(id) {
					t.Fatalf("body %d was put again: %v", id, err)
				}
			}
			if f := s.Figures(); f.Damaged > 0 {
				t.Fatalf("%+v", f)
			}
			s.Close()
			for id := firstID; id < firstID+n; id++ {
				names.set(id, true)
			}
		}
		if lost < offsets/2 {
			t.Errorf("%d bits cost %d bodies", offsets, lost)
		}
	}
}

// Wherever the last segment ends, what is in front of its last record is there; and what was damaged counts as that until it is put again.
func TestTorn(t *testing.T) {
	const n, most = 40, 300
	for _, sealed := range []bool{true, false} {
		disk, names := stored(t, n, most, sealed)
		paths := slices.Sorted(maps.Keys(disk.files))
		last := paths[len(paths)-1]
		whole := disk.files[last].content
		salt, _ := decodeHeader(whole)
		entries, _ := parse(whole, salt)
		if len(entries) < 3 {
			t.Fatal(len(entries))
		}
		for size := len(whole); size >= 0; size-- {
			d := disk.crash(nil)
			d.files[last].content = d.files[last].content[:size]
			s := open(t, Config{Disk: d, Live: names.live})
			bad := flawed(t, s, n, most)
			var want []metadata.BlockID
			for _, e := range entries {
				if int(e.at)+int(e.size()) > size || size < headerSize {
					want = append(want, e.id)
				}
			}
			if !slices.Equal(bad, want) {
				t.Fatalf("of %d bytes %d are left: %v cannot be read, want %v", len(whole), size, bad, want)
			}
			for _, id := range bad {
				s.Put(id, bodyOf(id, most))
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, Config{Disk: d, Live: names.live})
			if bad := flawed(t, s, n, most); len(bad) > 0 || s.Figures().Damaged > 0 {
				t.Fatalf("%d bytes were left: %v", size, bad)
			}
			s.Close()
		}
	}
}

// A disk that cannot read for a moment costs nothing; a process without descriptors is no damage.
func TestReadsThatFail(t *testing.T) {
	const n, most = 60, 300
	disk, names := stored(t, n, most, true)
	for _, failure := range []error{syscall.EIO, syscall.EMFILE} {
		s := open(t, Config{Disk: disk, Live: names.live})
		s.files.close()
		disk.trouble(func(op, path string) error {
			if failure == syscall.EIO && op == "read" || failure == syscall.EMFILE && op == "open" {
				return failure
			}
			return nil
		})
		_, err := s.Get(firstID)
		if damaged := s.Figures().Damaged; failure == syscall.EIO && (!errors.Is(err, metadata.ErrCorrupt) || damaged != 1) || failure == syscall.EMFILE && (!errors.Is(err, failure) || damaged != 0) {
			t.Errorf("%v: %v, %d", failure, err, damaged)
		}
		for id := firstID; id < firstID+n; id += 2 {
			names.set(id, false)
		}
		if freed, err := s.Compact(context.Background()); !errors.Is(err, failure) || freed > 0 {
			t.Errorf("compaction of what cannot be read: %d, %v", freed, err)
		}
		for id := firstID; id < firstID+n; id += 2 {
			names.set(id, true)
		}
		disk.trouble(nil)
		if bad := flawed(t, s, n, most); len(bad) > 0 || s.Figures().Damaged > 0 {
			t.Errorf("%v: %v", failure, bad)
		}
		s.Close()
	}
}

// What a disk loses before it is durable lets no Sync succeed, until it is put again; the damage is known after a restart, too.
func TestLostBeforeItIsDurable(t *testing.T) {
	disk, names := newDisk(), newLiving()
	s := open(t, Config{Disk: disk, Live: names.live})
	for id := firstID; id < firstID+5; id++ {
		s.Put(id, bodyOf(id, 100))
		names.set(id, true)
	}
	disk.trouble(func(op, _ string) error {
		if op == "sync" {
			return syscall.EIO
		}
		return nil
	})
	if err := s.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	disk.trouble(nil)
	f := disk.files["/bodies/"+segmentName(1)]
	f.content[recordsBegin+recordHeader] ^= 1 // the disk gives another byte now
	for range 2 {
		if err := s.Sync(); !errors.Is(err, metadata.ErrCorrupt) || !strings.Contains(err.Error(), "1 bodies") {
			t.Fatal(err)
		}
	}
	if d := s.Damaged(10); len(d) != 1 || d[0] != firstID {
		t.Fatal(d)
	}
	again := open(t, Config{Disk: disk.crash(nil), Live: names.live})
	if bad := flawed(t, again, 5, 100); len(bad) != 1 || again.Figures().Damaged != 1 {
		t.Fatal(bad)
	}
	again.Close()
	s.Put(firstID, bodyOf(firstID, 100))
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if bad := flawed(t, s, 5, 100); len(bad) > 0 {
		t.Fatal(bad)
	}
	s.Close()
}

// What was lost so, and is lacked by who sends the state, too, holds up no Sync: it stays damaged, and nothing more would come.
func TestLostBeforeItIsDurableAndLacked(t *testing.T) {
	disk, names := newDisk(), newLiving()
	s := open(t, Config{Disk: disk, Live: names.live})
	for id := firstID; id < firstID+5; id++ {
		s.Put(id, bodyOf(id, 100))
		names.set(id, true)
	}
	disk.trouble(func(op, _ string) error {
		if op == "sync" {
			return syscall.EIO
		}
		return nil
	})
	if err := s.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	disk.trouble(nil)
	disk.files["/bodies/"+segmentName(1)].content[recordsBegin+recordHeader] ^= 1
	if err := s.Sync(); !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatal("this shows nothing:", err)
	}
	s.Lack(firstID, len(bodyOf(firstID, 100)))
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Disk: disk.crash(nil), Live: names.live})
	defer s.Close()
	if d := s.Damaged(10); len(d) != 1 || d[0] != firstID {
		t.Error("it is not known to be damaged after a restart:", d)
	}
}

// A file that cannot be a segment keeps the store from being opened, and says so; what has another name is nobody's business.
func TestForeignFiles(t *testing.T) {
	disk, names := stored(t, 10, 100, true)
	disk.files["/bodies/README"] = &memoryFile{disk: disk, path: "/bodies/README", content: []byte("x")}
	disk.files["/bodies/0001.bodies"] = &memoryFile{disk: disk, path: "/bodies/0001.bodies", content: []byte("x")}
	s := open(t, Config{Disk: disk, Live: names.live})
	if bad := flawed(t, s, 10, 100); len(bad) > 0 {
		t.Fatal(bad)
	}
	s.Close()
	if len(disk.files["/bodies/README"].content) != 1 {
		t.Fatal("a foreign file was changed")
	}
	for _, c := range []Config{{}, {Dir: "x"}, {Dir: "x", Live: names.live, SegmentBytes: 5}, {Dir: "x", Live: names.live, SegmentBytes: 1 << 40}} {
		if _, err := Open(c); err == nil || !strings.HasPrefix(err.Error(), "smallfile: ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A copy that is not durable is no reason to let go of one that is, though that could not be read for a moment.
func TestPutAgainIsNotDurableBeforeSync(t *testing.T) {
	const n, most, id = 60, 300, firstID + 7
	for seed := range uint64(20) {
		disk, names := stored(t, n, most, true)
		names.ids = map[metadata.BlockID]bool{id: true}
		s := open(t, Config{Disk: disk, Live: names.live})
		disk.trouble(func(op, _ string) error {
			if op == "read" {
				return syscall.EIO
			}
			return nil
		})
		if _, err := s.Get(id); !errors.Is(err, metadata.ErrCorrupt) {
			t.Fatal(err)
		}
		disk.trouble(nil)
		s.Put(id, bodyOf(id, most))
		s.ioMu.Lock()
		err := s.flush(1)
		s.ioMu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if freed, err := s.Compact(context.Background()); err != nil || freed == 0 {
			t.Fatal(freed, err)
		}
		after := disk.crash(rand.New(rand.NewPCG(seed, 1)))
		s.Close()
		s = open(t, Config{Disk: after, Live: names.live})
		if b, err := s.Get(id); err != nil || !bytes.Equal(b, bodyOf(id, most)) {
			t.Fatal(err)
		}
		s.Close()
	}
}

// again is a body that has rotted in a sealed segment, was found to be damaged by who read it, and was put again, and is durable beside it.
func again(t *testing.T, n, most int, id metadata.BlockID) (disk *memoryDisk, names *living, s *Store) {
	t.Helper()
	disk, names = stored(t, n, most, true)
	s = open(t, Config{Disk: disk, Live: names.live})
	p := s.table.places(id, nil)
	if len(p) != 1 {
		t.Fatal(p)
	}
	disk.files["/bodies/"+segmentName(p[0].seq)].content[p[0].at+recordHeader] ^= 1
	if _, err := s.Get(id); !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatal(err)
	}
	if worn(s) != 1 {
		t.Errorf("%d segments are known to be damaged by who read the body", worn(s))
	}
	if !s.Offer(id, bodyOf(id, most)) {
		t.Fatal("it is not taken")
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Get(id); err != nil || !bytes.Equal(b, bodyOf(id, most)) {
		t.Fatal(err)
	}
	return disk, names, s
}

// A body that was put again is not given up for the record that it was put again for: not by the first Sync after a crash, and not by compaction.
func TestPutAgainIsKeptBesideWhatHasRotted(t *testing.T) {
	const n, most, id = 60, 300, firstID + 7
	sound := func(t *testing.T, s *Store, what string) {
		t.Helper()
		if b, err := s.Get(id); err != nil || !bytes.Equal(b, bodyOf(id, most)) || !s.Has(id) {
			t.Fatalf("%s: %v", what, err)
		}
		if d := s.Damaged(n); len(d) != 0 {
			t.Fatalf("%s: %v", what, d)
		}
	}
	t.Run("crash", func(t *testing.T) {
		disk, names, before := again(t, n, most, id)
		after := disk.crash(nil)
		before.Close()
		s := open(t, Config{Disk: after, Live: names.live})
		sound(t, s, "after a kill")
		for range 2 {
			if err := s.Sync(); err != nil {
				t.Fatal(err)
			}
			sound(t, s, "after a kill and a Sync")
		}
		for range 2 {
			if _, err := s.Compact(t.Context()); err != nil {
				t.Fatal(err)
			}
			sound(t, s, "after a kill, a Sync and Compact")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, Config{Disk: after, Live: names.live})
		defer s.Close()
		sound(t, s, "after another start")
	})
	t.Run("compaction", func(t *testing.T) {
		for _, known := range []bool{true, false} { // what has rotted is known, or a restart has forgotten it
			disk, names, s := again(t, n, most, id)
			for other := firstID + n; other < firstID+n+12; other++ {
				names.set(other, true)
				s.Put(other, bodyOf(other, most))
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, Config{Disk: disk, Live: names.live})
			sound(t, s, "after a restart") // which finds out
			if known && worn(s) != 1 {
				t.Error("who reads the body finds nothing")
			}
			if !known {
				s.Close()
				s = open(t, Config{Disk: disk, Live: names.live})
			}
			for other := firstID + n; other < firstID+n+12; other++ {
				names.set(other, false)
				s.Removed(other, len(bodyOf(other, most)))
			}
			for range 3 {
				if _, err := s.Compact(t.Context()); err != nil {
					t.Fatal(err)
				}
				sound(t, s, "after Compact")
			}
			if all := scrubbed(t, s); all.Damaged != 0 || worn(s) != 0 {
				t.Errorf("%+v and %d damaged segments are left", all, worn(s))
			}
			s.Close()
		}
	})
}

// A lenient store has what can be read of a directory in which some segments cannot be opened or read at all, and says that there are some; others refuse such a directory. A process without
// descriptors is refused by both.
func TestSegmentsThatCannotBeOpened(t *testing.T) {
	const n, most = 60, 300
	disk, names := stored(t, n, most, true)
	sick := slices.Sorted(maps.Keys(disk.files))[0]
	for _, c := range []struct {
		op  string
		err error
	}{{"open", syscall.EIO}, {"open", syscall.EISDIR}, {"read", syscall.EUCLEAN}, {"read", syscall.EBADMSG}, {"open", syscall.EMFILE}} {
		disk.trouble(func(op, path string) error {
			if op == c.op && path == sick {
				return c.err
			}
			return nil
		})
		if _, err := tryOpen(Config{Disk: disk, Live: names.live}); !errors.Is(err, c.err) {
			t.Errorf("%s with %v: %v", c.op, c.err, err)
		}
		s, err := tryOpen(Config{Disk: disk, Live: names.live, Lenient: true})
		if c.err == syscall.EMFILE {
			if !errors.Is(err, c.err) {
				t.Error(err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s with %v: %v", c.op, c.err, err)
		}
		if err := s.Unread(); !errors.Is(err, c.err) || !strings.Contains(err.Error(), sick) {
			t.Errorf("%s with %v: %v", c.op, c.err, err)
		}
		if bad := flawed(t, s, n, most); len(bad) == 0 || len(bad) > n/2 {
			t.Errorf("%s with %v: %v cannot be read", c.op, c.err, bad)
		}
		s.Abandon()
	}
	disk.trouble(nil)
	s := open(t, Config{Disk: disk, Live: names.live, Lenient: true})
	defer s.Abandon()
	if bad := flawed(t, s, n, most); len(bad) > 0 || s.Unread() != nil {
		t.Error(bad, s.Unread())
	}
}

// What the disk did not give of a segment without an index is told, as it may come the next time; a torn tail is no such thing, nor is an index that was read with the rest after all.
func TestPartsThatWereNotRead(t *testing.T) {
	const n, most = 60, 300
	for _, sealed := range []bool{false, true} {
		disk, names := stored(t, n, most, sealed)
		paths := slices.Sorted(maps.Keys(disk.files))
		sick := paths[len(paths)-1]
		if !sealed {
			f := disk.files[sick]
			f.content = append(f.content, 1, 2, 3)
		}
		for reads := 1; ; reads++ {
			left := reads
			disk.trouble(func(op, path string) error {
				if op == "read" && path == sick {
					if left--; left == 0 {
						return syscall.EIO
					}
				}
				return nil
			})
			s := open(t, Config{Disk: disk, Live: names.live})
			disk.trouble(nil)
			unread := s.Unread()
			bad := flawed(t, s, n, most)
			s.Abandon()
			if left > 0 { // that was all
				if unread != nil || len(bad) > 0 {
					t.Error(unread, bad)
				}
				if reads < 3 {
					t.Error("this shows nothing")
				}
				break
			}
			if len(bad) > 0 && !errors.Is(unread, syscall.EIO) {
				t.Errorf("sealed %t, read %d: %v are not here, and %v", sealed, reads, bad, unread)
			}
			if len(bad) == 0 && unread != nil {
				t.Errorf("sealed %t, read %d: everything is here, and %v", sealed, reads, unread)
			}
		}
	}
}
