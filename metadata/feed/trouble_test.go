package feed

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"
)

// stored is a feed that was closed well and opened again, with some files.
func stored(t *testing.T, h *history, disk *memoryDisk, upTo uint64) *Log {
	t.Helper()
	l := openLog(t, Config{Disk: disk})
	l.segmentSize = 4 << 10
	h.feed(l, 1, upTo)
	if err := l.Sync(upTo); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return openLog(t, Config{Disk: disk, Applied: upTo})
}

// A process without a descriptor left, or a disk that fails for a moment, loses no event: readers are told, and read on when it is over.
func TestTroubleThatPasses(t *testing.T) {
	for _, op := range []string{"open", "read"} {
		for _, failure := range []error{syscall.EMFILE, syscall.EIO} {
			h := newHistory(11)
			disk := newDisk()
			l := stored(t, h, disk, 500)
			disk.failing(func(o string) error {
				if o == op {
					return failure
				}
				return nil
			})
			for range 3 {
				if page, err := l.Read(0, 100, 1<<20); !errors.Is(err, failure) || page.Missing {
					t.Errorf("%s fails with %v: %v, missing: %v", op, failure, err, page.Missing)
				}
			}
			disk.failing(nil)
			if gaps := h.check(t, l, 500, 100); len(gaps) > 0 {
				t.Errorf("%s failed with %v: gaps %v for ever", op, failure, gaps)
			}
			l.Close()
		}
	}
}

// What a disk cannot read for good holds up no reader for ever.
func TestTroubleThatStays(t *testing.T) {
	for _, op := range []string{"open", "read"} {
		h := newHistory(11)
		disk := newDisk()
		l := stored(t, h, disk, 500)
		l.patience = 0
		first := l.segments[0].name()
		disk.failing(func(o string) error {
			if o == op+" /feed/"+first {
				return syscall.EIO
			}
			return nil
		})
		if _, err := l.Read(0, 100, 1<<20); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s fails: %v", op, err)
		}
		if gaps := h.check(t, l, 500, 100); len(gaps) != 1 {
			t.Errorf("%s fails for good: gaps %v", op, gaps)
		}
		l.Close()
	}
}

// A file that is shorter than the one behind it says has a hole at its end.
func TestAFileThatIsTooShort(t *testing.T) {
	h := newHistory(12)
	disk := newDisk()
	l := stored(t, h, disk, 500)
	cut := l.segments[1]
	if _, _, err := l.survey(cut); err != nil || len(l.segments) < 4 {
		t.Fatal(err, len(l.segments))
	}
	l.Close()
	f := disk.files["/feed/"+cut.name()]
	_, size := payloadAt(f.content[headerSize:])
	f.content = f.content[:headerSize+size]
	l = openLog(t, Config{Disk: disk, Applied: 500})
	defer l.Close()
	if gaps := h.check(t, l, 500, 100); len(gaps) != 1 {
		t.Errorf("gaps: %v", gaps)
	}
}

// A disk that is full for a moment does not cost the whole history.
func TestAFullDiskTakesOneFileAtATime(t *testing.T) {
	h := newHistory(13)
	disk := newDisk()
	l := openLog(t, Config{Disk: disk})
	l.segmentSize, l.pause = 8<<10, time.Hour
	h.feed(l, 1, 5000)
	if err := l.Sync(5000); err != nil {
		t.Fatal(err)
	}
	before := len(disk.files)
	disk.failing(func(op string) error {
		if strings.HasPrefix(op, "remove") {
			return nil
		}
		return syscall.ENOSPC
	})
	h.feed(l, 5001, 5200)
	for range 20 {
		l.flush(false)
	}
	disk.mu.Lock()
	defer disk.mu.Unlock()
	if n := len(disk.files); n < before-1 {
		t.Errorf("of %d files %d are left", before, n)
	}
}
