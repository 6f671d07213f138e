package server

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
)

// roomEvery is how many bytes of a checkpoint are written between two looks at the disk.
const roomEvery = 4 << 20

// guarded is a kv.Store that gives up before the disk is full. badger maps sparse files: the kernel ends a process that
// writes into one when the disk is full (SIGBUS).
type guarded struct {
	kv.Store
	// room is nil while there is space.
	room func() error
}

// Batch implements kv.Store.
func (g guarded) Batch(at uint64) kv.Batch {
	return &guardedBatch{Batch: g.Store.Batch(at), room: g.room}
}

// Replace implements kv.Store.
func (g guarded) Replace(at uint64, fill func(put func(key, value []byte) error) error) error {
	return g.Store.Replace(at, func(put func(key, value []byte) error) error {
		m := meter{room: g.room}
		return fill(func(key, value []byte) error {
			if err := m.more(len(key) + len(value)); err != nil {
				return err
			}
			return put(key, value)
		})
	})
}

type guardedBatch struct {
	kv.Batch
	room  func() error
	meter meter
}

// Put implements kv.Batch.
func (b *guardedBatch) Put(key, value []byte) error {
	b.meter.room = b.room
	if err := b.meter.more(len(key) + len(value)); err != nil {
		return err
	}
	return b.Batch.Put(key, value)
}

// meter asks for room at the first byte and every few MiB.
type meter struct {
	room    func() error
	unasked int
	begun   bool
}

func (m *meter) more(n int) error {
	if m.unasked += n; m.begun && m.unasked < roomEvery {
		return nil
	}
	m.begun, m.unasked = true, 0
	return m.room()
}

// What badger writes without being asked: two memory tables of each of the four databases of a checkpoint, of 32 MiB in the first and 8 in the three of what
// is kept apart, mapped with twice their size each, and what its compactors rewrite. That is at most the sixteen tables of level 0, all of the first level, which is
// 4 GiB, and as much as the merge before has brought; and as much as a third of it where two levels are merged at once.
const (
	headroomTables  = (128 + 3*32) << 20
	headroomCompact = ((4096 + 2*512) + 3*(4096+2*128)) << 20 * 4 / 3
)

// headroom is how much the checkpoint may write that guarded does not see.
type headroom struct {
	dir string

	mu   sync.Mutex
	at   time.Time
	last int64
}

// headroom is that of the checkpoint, and of the search index if there is one.
func (s *Server) headroom(checkpoint string) func() int64 {
	namespace := &headroom{dir: checkpoint}
	if s.search.index == nil {
		return namespace.bytes
	}
	index := &headroom{dir: s.search.dir}
	return func() int64 { return namespace.bytes() + index.bytes() }
}

// bytes looks at the checkpoint every 10 s.
func (h *headroom) bytes() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.last > 0 && time.Since(h.at) < 10*time.Second {
		return h.last
	}
	var tables int64
	// A file that goes while this looks does not matter.
	_ = filepath.WalkDir(h.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".sst") {
			return nil
		}
		if info, err := d.Info(); err == nil {
			tables += info.Size()
		}
		return nil
	})
	h.at, h.last = time.Now(), headroomTables+min(2*tables, headroomCompact)
	return h.last
}

// openable refuses to open a checkpoint on a disk on which badger would end the process while it replays its memory tables.
func openable(dir string) error {
	if _, err := os.Stat(dir); err != nil {
		return nil // nothing to replay
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Bsize; free < headroomTables {
		return metadata.Errorf(metadata.ErrNoSpace, "%s has %d MiB free, %d MiB are needed to open the checkpoint: make space, then start again",
			dir, free>>20, headroomTables>>20)
	}
	return nil
}
