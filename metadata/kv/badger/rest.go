package badger

import (
	"slices"
	"sync"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/dgraph-io/badger/v4"
)

// Each database of badger has two goroutines that look 20 times a second for something to merge. There is nothing but after tables have come to level 0, which come of
// batches. So they rest while nobody writes and no level has too much, and begin with the next batch.

// restsAfter is for how long nobody has written, and no level has had too much, when they rest: what was full of memory tables is in level 0 by then, and what was being merged, which is not told, is merged.
// Where it is not, the one is seen at the next look, and the other one waited for.
const restsAfter = time.Minute

// merging is whether the goroutines that merge run. Its lock is taken below the store's, which is held as long as the databases must be the same.
type merging struct {
	mu     sync.Mutex
	rests  bool
	writes int       // batches under way
	busy   time.Time // when there was something to do last
}

// begun notes that databases were opened: badger has begun to look.
func (m *merging) begun() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rests, m.busy = false, time.Now()
}

// begin has the databases merge until a batch has ended.
func (m *merging) begin(db databases) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes++
	m.set(db, false)
}

func (m *merging) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.writes--
	m.busy = time.Now()
}

// look has the databases rest, or merge, as there is need for it at a moment.
func (m *merging) look(db databases, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writes > 0 || !db.merged() {
		m.busy = now
	}
	m.set(db, now.Sub(m.busy) >= restsAfter)
}

func (m *merging) set(db databases, rests bool) {
	if m.rests == rests || slices.ContainsFunc(db, func(d database) bool { return d.IsClosed() }) { // closed: what should take its place could not be opened
		return
	}
	m.rests = rests
	for _, d := range db {
		if rests {
			stopCompactions(d.DB) // and waits for what they do
		} else {
			startCompactions(d.DB)
		}
	}
}

// look has the databases of the store rest, or merge, as there is need for it at a moment.
func (s *Store) look(now time.Time) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.closed {
		s.merging.look(s.db, now)
	}
}

// merged reports whether badger, which tells the score only of levels that have too much, has nothing to merge.
func (db databases) merged() bool {
	for _, d := range db {
		for _, l := range d.Levels() {
			if l.Score > 0 {
				return false
			}
		}
	}
	return true
}

// What badger calls itself, around a Flatten for one. Stopping waits until they have ended, and may come twice; Close stops them, too. Neither may be called beside the other, or beside Close.
//
//go:linkname stopCompactions github.com/dgraph-io/badger/v4.(*DB).stopCompactions
func stopCompactions(*badger.DB)

//go:linkname startCompactions github.com/dgraph-io/badger/v4.(*DB).startCompactions
func startCompactions(*badger.DB)
