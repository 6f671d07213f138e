package smallfile

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal(what)
		}
	}
}

// A disk that is full keeps nobody from putting until too much waits, is told by Sync, and is written by itself when there is room. Nothing is lost.
func TestFullDisk(t *testing.T) {
	for _, reserve := range []bool{false, true} {
		disk := newDisk()
		var none atomic.Bool
		c := Config{Disk: disk, SegmentBytes: 64 << 10}
		if reserve {
			c.Room = func() error {
				if none.Load() {
					return metadata.Errorf(metadata.ErrNoSpace, "the reserve")
				}
				return nil
			}
		}
		s := open(t, c)
		s.limit, s.pause = 64<<10, time.Millisecond
		put := func(from, to metadata.BlockID) {
			for id := from; id < to; id++ {
				s.Put(id, bodyOf(id, 8000))
			}
		}
		put(firstID, firstID+20)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		disk.mu.Lock()
		if reserve {
			none.Store(true)
		} else {
			disk.room = 0
			for _, f := range disk.files {
				disk.room += int64(len(f.content))
			}
			disk.room += 1000
		}
		disk.mu.Unlock()
		put(firstID+20, firstID+23)
		for range 3 {
			if err := s.Sync(); !errors.Is(err, metadata.ErrNoSpace) {
				t.Fatal(err)
			}
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			put(firstID+23, firstID+100) // more than may wait
		}()
		until(t, "nobody waits", func() bool { return s.Figures().Waiting >= s.limit })
		select {
		case <-done:
			t.Fatal("more was put than may wait")
		default:
		}
		check := func(from, to metadata.BlockID) {
			t.Helper()
			for id := from; id < to; id++ {
				if b, err := s.Get(id); err != nil || !bytes.Equal(b, bodyOf(id, 8000)) {
					t.Fatalf("%d: %v", id, err)
				}
			}
		}
		check(firstID, firstID+23)
		none.Store(false)
		disk.mu.Lock()
		disk.room = -1
		disk.mu.Unlock()
		<-done
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		check(firstID, firstID+100)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, Config{Disk: disk, SegmentBytes: 64 << 10})
		check(firstID, firstID+100)
		s.Close()
	}
}

// A disk that hangs stops neither who puts, until too much waits, nor who reads what waits, nor figures.
func TestDiskThatHangs(t *testing.T) {
	disk := newDisk()
	s := open(t, Config{Disk: disk, SegmentBytes: 1 << 20})
	s.limit = 512 << 10
	hangs := make(chan struct{})
	disk.trouble(func(op, _ string) error {
		if op == "write" {
			<-hangs
		}
		return nil
	})
	const n = 40
	done := make(chan struct{})
	go func() {
		defer close(done)
		for id := firstID; id < firstID+n; id++ {
			s.Put(id, bodyOf(id, MaxBody))
		}
	}()
	until(t, "nobody waits", func() bool { return s.Figures().Waiting >= s.limit })
	for id := firstID; s.Has(id); id++ {
		if b, err := s.Get(id); err != nil || !bytes.Equal(b, bodyOf(id, MaxBody)) {
			t.Fatal(err)
		}
	}
	close(hangs)
	<-done
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Disk: disk, SegmentBytes: 1 << 20})
	defer s.Close()
	for id := firstID; id < firstID+n; id++ {
		if b, err := s.Get(id); err != nil || !bytes.Equal(b, bodyOf(id, MaxBody)) {
			t.Fatal(err)
		}
	}
}

// Close ends who waits in Put, and says what is not durable.
func TestCloseOfAFullDisk(t *testing.T) {
	disk := newDisk()
	s := open(t, Config{Disk: disk})
	s.limit = 10 << 10
	disk.trouble(func(op, _ string) error {
		if op == "write" {
			return syscall.ENOSPC
		}
		return nil
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for id := firstID; id < firstID+100; id++ {
			s.Put(id, bodyOf(id, 1000))
		}
	}()
	until(t, "nobody waits", func() bool { return s.Figures().Waiting >= s.limit })
	if err := s.Close(); !errors.Is(err, metadata.ErrNoSpace) {
		t.Fatal(err)
	}
	<-done
	s.Put(1, []byte("late"))
	if err := s.Sync(); s.Has(1) || !errors.Is(err, fs.ErrClosed) {
		t.Fatal("put after Close", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestMisuse(t *testing.T) {
	s := open(t, Config{Disk: newDisk()})
	defer s.Close()
	for _, c := range []struct {
		id   metadata.BlockID
		size int
	}{{0, 1}, {-1, 1}, {1, 0}, {1, MaxBody + 1}} {
		func() {
			defer func() {
				if v, ok := recover().(string); !ok || !strings.HasPrefix(v, "smallfile: ") {
					t.Errorf("%+v: %v", c, v)
				}
			}()
			s.Put(c.id, make([]byte, c.size))
		}()
	}
	s.Put(1<<62, make([]byte, MaxBody))
	s.Put(1, []byte{7})
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if b, err := s.Get(1 << 62); err != nil || len(b) != MaxBody {
		t.Fatal(err)
	}
	if _, err := s.Get(-5); !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	s.Removed(-5, 3)
	s.GetMany(nil, nil)
}

// A reader of a segment that is removed meanwhile finishes; so does one that comes late.
func TestReadersOfWhatIsRemoved(t *testing.T) {
	const n, most, id = 60, 300, firstID + 2
	for _, op := range []string{"read", "open"} {
		disk, names := stored(t, n, most, true)
		s := open(t, Config{Disk: disk, Live: names.live})
		for other := firstID; other < firstID+n; other++ {
			names.set(other, other%3 == id%3)
		}
		s.files.close()
		reading, goOn := make(chan struct{}), make(chan struct{})
		var first atomic.Bool
		disk.trouble(func(o, _ string) error {
			if o == op && first.CompareAndSwap(false, true) {
				close(reading)
				<-goOn
			}
			return nil
		})
		var body []byte
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			body, err = s.Get(id)
		}()
		<-reading
		if freed, err := s.Compact(context.Background()); err != nil || freed == 0 {
			t.Fatal(freed, err)
		}
		close(goOn)
		<-done
		if err != nil || !bytes.Equal(body, bodyOf(id, most)) {
			t.Fatalf("%s: %v", op, err)
		}
		s.Close()
	}
}

// lateDisk holds up who has opened a file.
type lateDisk struct {
	*memoryDisk
	opened func(path string)
}

func (d lateDisk) Open(path string) (journal.File, error) {
	f, err := d.memoryDisk.Open(path)
	d.opened(path)
	return f, err
}

// Who had opened a segment just before it was removed reads it, and nobody keeps it open: its bytes would stay on the disk. The same goes for a Store that ends.
func TestSegmentsThatAreRemovedWhileTheyAreOpened(t *testing.T) {
	const n, most, id = 60, 300, firstID + 2
	for _, ends := range []bool{false, true} {
		disk, names := stored(t, n, most, true)
		files := maps.Clone(disk.files)
		var reading, goOn chan struct{}
		var first atomic.Bool
		first.Store(true)
		s := open(t, Config{Disk: lateDisk{disk, func(string) {
			if first.CompareAndSwap(false, true) {
				close(reading)
				<-goOn
			}
		}}, Live: names.live})
		for other := firstID; other < firstID+n; other++ {
			names.set(other, other%3 == id%3)
		}
		s.files.close()
		reading, goOn = make(chan struct{}), make(chan struct{})
		first.Store(false)
		var body []byte
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			body, err = s.Get(id)
		}()
		<-reading
		if ends {
			s.Abandon()
		} else if freed, err := s.Compact(context.Background()); err != nil || freed == 0 {
			t.Fatal(freed, err)
		}
		close(goOn)
		<-done
		if err != nil || !bytes.Equal(body, bodyOf(id, most)) {
			t.Fatal(err)
		}
		disk.mu.Lock()
		for path, f := range files {
			if f.opened != 0 && (f.removed || ends) {
				t.Errorf("%s is open %d times", path, f.opened)
			}
		}
		disk.mu.Unlock()
		if len(s.files.opening) != 0 {
			t.Error("somebody is taken to be about to open something")
		}
		s.Close()
	}
}

// Put, reads, Sync and Compact at the same time, on files.
func TestAllAtOnce(t *testing.T) {
	names := newLiving()
	s := open(t, Config{Dir: t.TempDir(), Live: names.live, SegmentBytes: 32 << 10})
	n := metadata.BlockID(6000)
	if testing.Short() {
		n = 1000
	}
	var put atomic.Int64 // ids in front of it are put
	put.Store(int64(firstID))
	var all sync.WaitGroup
	stop := make(chan struct{})
	again := func(do func()) {
		all.Go(func() {
			for {
				select { // the others are to get on, too
				case <-stop:
					return
				case <-time.After(100 * time.Microsecond):
					do()
				}
			}
		})
	}
	keeps := func(id metadata.BlockID) bool { return id%4 == 0 }
	for reader := range 2 {
		at := metadata.BlockID(reader)
		again(func() {
			end := metadata.BlockID(put.Load())
			at = (at*7 + 5) % n
			id := (firstID + at%max(end-firstID, 1)) &^ 3
			if id < firstID || id >= end {
				return
			}
			if b, err := s.Get(id); err != nil || !bytes.Equal(b, bodyOf(id, 600)) {
				t.Errorf("%d: %v", id, err)
			}
		})
	}
	again(func() {
		end := metadata.BlockID(put.Load())
		var ids []metadata.BlockID
		for id := max(firstID, end-200) + 3; id < end; id++ {
			if keeps(id) {
				ids = append(ids, id)
			}
		}
		s.GetMany(ids, func(i int, b []byte, err error) {
			if err != nil || !bytes.Equal(b, bodyOf(ids[i], 600)) {
				t.Errorf("%d: %v", ids[i], err)
			}
		})
	})
	again(func() {
		if err := s.Sync(); err != nil {
			t.Error(err)
		}
		s.Figures()
	})
	again(func() {
		if _, err := s.Compact(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for id := firstID; id < firstID+n; id++ {
		names.set(id, true)
		s.Put(id, bodyOf(id, 600))
		put.Store(int64(id + 1))
		if old := id - 50; old >= firstID && !keeps(old) {
			names.set(old, false)
			s.Removed(old, len(bodyOf(old, 600)))
		}
	}
	close(stop)
	all.Wait()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Dir: s.cfg.Dir, Live: names.live, SegmentBytes: 32 << 10})
	defer s.Close()
	for id := firstID; id < firstID+n; id++ {
		if keeps(id) {
			if b, err := s.Get(id); err != nil || !bytes.Equal(b, bodyOf(id, 600)) {
				t.Errorf("%d: %v", id, err)
			}
		}
	}
}

// What a write that failed has left behind the end hides no footer.
func TestFooterBehindWhatFailed(t *testing.T) {
	disk := newDisk()
	s := open(t, Config{Disk: disk})
	s.Put(firstID, bodyOf(firstID, 100))
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	disk.trouble(func(op, _ string) error {
		if op == "write" {
			return syscall.ENOSPC
		}
		return nil
	})
	s.ioMu.Lock()
	err := s.append([]pending{{id: 5, body: bodyOf(5, 3000)}})
	s.ioMu.Unlock()
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	disk.trouble(nil)
	s.Put(firstID+1, bodyOf(firstID+1, 100))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Disk: disk})
	defer s.Close()
	if bad := flawed(t, s, 2, 100); len(bad) > 0 || s.Figures().Unreadable > 0 || s.Figures().Bodies != 2 {
		t.Fatalf("%v, %+v", bad, s.Figures())
	}
}
