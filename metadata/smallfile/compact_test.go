package smallfile

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"syscall"
	"testing"

	"github.com/gohops/hops/metadata"
)

// Segments without a living body are removed, and nothing of them is read.
func TestDeadSegmentsAreNotRead(t *testing.T) {
	const n, most = 200, 300
	disk, names := stored(t, n, most, true)
	names.ids = map[metadata.BlockID]bool{}
	s := open(t, Config{Disk: disk, Live: names.live})
	defer s.Close()
	before := disk.size()
	disk.trouble(func(op, path string) error {
		if op == "read" || op == "write" || op == "create" {
			t.Errorf("%s %s", op, path)
		}
		return nil
	})
	freed, err := s.Compact(context.Background())
	if err != nil || freed != before || disk.size() != 0 {
		t.Fatal(freed, before, disk.size(), err)
	}
	if f := s.Figures(); f.Segments != 0 || f.Bodies != 0 || f.Bytes != 0 || f.Freed != freed {
		t.Fatalf("%+v", f)
	}
}

// What is put again while compaction has found it dead is not lost with its segment.
func TestPutWhileCompacting(t *testing.T) {
	const n, most = 60, 300
	for _, at := range []string{"live", "create", "syncdir", "remove"} {
		disk, names := stored(t, n, most, true)
		var s *Store
		put := func() {
			for id := firstID; id < firstID+n; id++ {
				s.Put(id, bodyOf(id, most))
			}
		}
		dead := func(ids []metadata.BlockID) ([]bool, error) {
			lives := make([]bool, len(ids))
			for i, id := range ids {
				lives[i] = id%5 == 0
			}
			if at == "live" && len(s.table.segments) > 0 && s.table.segments[0].victim {
				put()
			}
			return lives, nil
		}
		s = open(t, Config{Disk: disk, Live: dead})
		disk.trouble(func(op, _ string) error {
			if op == at {
				put()
			}
			return nil
		})
		if freed, err := s.Compact(context.Background()); err != nil || freed == 0 {
			t.Fatal(freed, err)
		}
		disk.trouble(nil)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if bad := flawed(t, s, n, most); len(bad) > 0 {
			t.Fatalf("%s: %v", at, bad)
		}
		s.Close()
		s = open(t, Config{Disk: disk, Live: names.live})
		if bad := flawed(t, s, n, most); len(bad) > 0 {
			t.Fatalf("%s: %v", at, bad)
		}
		s.Close()
	}
}

// While somebody holds the store nothing is removed, also by a call that began before.
func TestHold(t *testing.T) {
	const n, most = 60, 300
	disk, names := stored(t, n, most, true)
	var s *Store
	release := func() {}
	held := false
	s = open(t, Config{Disk: disk, Live: func(ids []metadata.BlockID) ([]bool, error) {
		if !held && s.table.segments[0].victim {
			release, held = s.Hold(), true
		}
		lives := make([]bool, len(ids))
		for i, id := range ids {
			lives[i] = id%5 == 0
		}
		return lives, nil
	}})
	defer s.Close()
	before := len(disk.files)
	for range 2 {
		if freed, err := s.Compact(context.Background()); err != nil || freed != 0 || len(disk.files) != before {
			t.Fatal(freed, err, len(disk.files))
		}
	}
	if bad := flawed(t, s, n, most); len(bad) > 0 {
		t.Fatal(bad)
	}
	release()
	release()
	if freed, err := s.Compact(context.Background()); err != nil || freed == 0 {
		t.Fatal(freed, err)
	}
	for id := range names.ids {
		if b, err := s.Get(id); id%5 == 0 && (err != nil || !bytes.Equal(b, bodyOf(id, most))) || id%5 != 0 && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(id, err)
		}
	}
}

// Compaction ends when it is told to, when the namespace cannot say what lives, and when the disk is full; nothing is left of it.
func TestCompactionThatEnds(t *testing.T) {
	const n, most = 400, 300
	disk, names := stored(t, n, most, true)
	ctx, cancel := context.WithCancel(context.Background())
	broken := errors.New("no checkpoint")
	asked := 0
	s := open(t, Config{Disk: disk, Live: func(ids []metadata.BlockID) ([]bool, error) {
		asked++
		if ctx.Err() == nil {
			return nil, broken
		}
		return names.live(ids)
	}})
	defer s.Close()
	for id := firstID; id < firstID+n; id++ {
		names.set(id, id%4 == 0)
	}
	if _, err := s.Compact(ctx); !errors.Is(err, broken) || asked != 1 {
		t.Fatal(err, asked)
	}
	cancel()
	if _, err := s.Compact(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	before := disk.size()
	disk.room = before + 100
	if freed, err := s.Compact(context.Background()); !errors.Is(err, metadata.ErrNoSpace) || disk.size() != before-freed {
		t.Fatal(freed, err, before, disk.size())
	}
	later, stop := context.WithCancel(context.Background())
	disk.trouble(func(op, _ string) error {
		if op == "create" {
			stop()
		}
		return nil
	})
	disk.room = -1
	before, files := disk.size(), len(disk.files)
	if _, err := s.Compact(later); !errors.Is(err, context.Canceled) || disk.size() != before || len(disk.files) != files {
		t.Fatal(err, before, disk.size())
	}
	disk.trouble(nil)
	if bad := flawed(t, s, n, most); len(bad) > 0 {
		t.Fatal(bad)
	}
	if freed, err := s.Compact(context.Background()); err != nil || freed < before/3 {
		t.Fatal(freed, err)
	}
	for id := range names.ids {
		if b, err := s.Get(id); id%4 == 0 && (err != nil || !bytes.Equal(b, bodyOf(id, most))) {
			t.Fatal(id, err)
		}
	}
}

// Hints say where to look: segments of which nothing was removed are copied neither for hints that were wrong.
func TestHintsAreVerified(t *testing.T) {
	const n, most = 400, 300
	disk, names := stored(t, n, most, true)
	s := open(t, Config{Disk: disk, Live: names.live})
	defer s.Close()
	for id := firstID; id < firstID+n; id++ {
		s.Removed(id, len(bodyOf(id, most))) // a snapshot has them
	}
	if f := s.Figures(); f.Dead == 0 {
		t.Fatalf("%+v", f)
	}
	if freed, err := s.Compact(context.Background()); err != nil || freed != 0 {
		t.Fatal(freed, err)
	}
	if f := s.Figures(); f.Dead != 0 || f.Copied != 0 {
		t.Fatalf("%+v", f)
	}
	if bad := flawed(t, s, n, most); len(bad) > 0 {
		t.Fatal(bad)
	}
}

// Starts that leave small segments do not leave ever more of them.
func TestSmallSegmentsAreMerged(t *testing.T) {
	disk, names := newDisk(), newLiving()
	for i := range 60 {
		s := open(t, Config{Disk: disk, Live: names.live})
		id := firstID + metadata.BlockID(i)
		s.Put(id, bodyOf(id, 60))
		names.set(id, true)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Compact(context.Background()); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			disk = disk.crash(nil)
		}
		s.Close()
	}
	if len(disk.files) > 8 {
		t.Fatalf("%d segments", len(disk.files))
	}
	s := open(t, Config{Disk: disk, Live: names.live})
	defer s.Close()
	if bad := flawed(t, s, 60, 60); len(bad) > 0 {
		t.Fatal(bad)
	}
}

// A segment that the disk cannot read keeps no other one from being compacted, and goes when what it has was put again.
func TestCompactionAroundWhatCannotBeRead(t *testing.T) {
	const n, most = 400, 300
	disk, names := stored(t, n, most, true)
	s := open(t, Config{Disk: disk, Live: names.live})
	defer s.Close()
	for id := firstID; id < firstID+n; id++ {
		names.set(id, id%5 == 0)
	}
	bad := "/bodies/" + segmentName(3)
	disk.trouble(func(op, path string) error {
		if op == "read" && path == bad {
			return syscall.EIO
		}
		return nil
	})
	freed, err := s.Compact(context.Background())
	if !errors.Is(err, syscall.EIO) || freed == 0 || disk.files[bad] == nil {
		t.Fatal(freed, err)
	}
	damaged := s.Damaged(100)
	if len(damaged) == 0 {
		t.Fatal("nobody knows what is damaged")
	}
	for _, id := range damaged {
		s.Put(id, bodyOf(id, most))
	}
	for id := firstID + n; id < firstID+2*n; id++ { // so that what was put again is in a segment that is full
		s.Put(id, bodyOf(id, most))
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Compact(context.Background()); err != nil || disk.files[bad] != nil {
		t.Fatal(err)
	}
	for id := range names.ids {
		if b, err := s.Get(id); err != nil || !bytes.Equal(b, bodyOf(id, most)) {
			t.Fatal(id, err)
		}
	}
}
