package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// Covered says what a snapshot contains: everything up to Index, whose entry had Term. Zero: there is no snapshot.
type Covered struct{ Index, Term uint64 }

// Config describes a journal. Dir and Fatal are required.
type Config struct {
	// Dir exists and belongs to this journal alone; the caller holds the lock on it.
	Dir string
	// Disk is where Dir lies; nil: FileSystem.
	Disk Disk
	// SegmentBytes is the size of the log's files, which are written in full before they are used; default 4 MiB, at least
	// 8 KiB. An append that is larger gets a file of its own. Larger ones mean fewer rotations and coarser truncation.
	SegmentBytes int
	// CacheBytes limits the entries kept in memory for followers that are not far behind; default 16 MiB.
	CacheBytes int64
	// Deadline is how long one write may take before Fatal is called; default 5 s, negative: forever. Time in which this
	// process was stopped does not count: see Patience.
	Deadline time.Duration
	// Slow, if not nil, is called again and again while a write takes longer than SlowAfter; default a fifth of Deadline.
	Slow      func(what string, took time.Duration)
	SlowAfter time.Duration
	// Patient, if not nil, is asked when a write has taken Deadline, and whenever as much has gone by again: true, it is waited for.
	Patient func(what string, took time.Duration) bool
	// Appended, if not nil, is told of each append, and what it took. It must not block.
	Appended func(first, last uint64, took time.Duration)
	// Covered is the newest snapshot.
	Covered Covered
	// Voted: the member may have voted, so that there has to be a file of its votes.
	Voted bool
	// Refuse, if not nil, is asked before entries of so many bytes are written; its error is returned, and what the log keeps
	// for later is given back to the disk. It is asked before another file of the log is made as well, of its size, unless the log has none, or the
	// entries take the place of a deleted tail.
	Refuse func(bytes int) error
	// Fatal is called once, from any goroutine, when the journal can no longer be trusted: a write failed or hangs, an
	// entry does not match its checksum. It is expected to end the process; when it returns, all calls fail. It does not call
	// Close, which waits for the write under way.
	Fatal  func(error)
	Logger *slog.Logger
}

// Journal is a raft.LogStore and raft.StableStore. Writes come from one goroutine at a time, as raft does it.
type Journal struct {
	cfg    Config
	log    *slog.Logger
	disk   Disk
	state  *stateFile
	pool   *pool
	watch  *watch // nil without a deadline
	failed atomic.Pointer[error]
	closed atomic.Bool
	// appended counts the bytes written since Open plus those that Open found behind the snapshot.
	appended atomic.Int64
	// took is how long the last appends took, in nanoseconds, by index.
	took [64]atomic.Int64

	writeMu sync.Mutex // held for every change of the log
	buffer  []byte     // of appends
	// truncated: a tail was deleted, and nothing stored in its place yet. raft still takes it for stored.
	truncated bool
	// making: a goroutine makes the next segment ready, or there was no space for it.
	making atomic.Bool
	makers sync.WaitGroup

	mu sync.RWMutex // guards what follows
	// segments are those with entries, in order. Entries are appended to the last one.
	segments []*segment
	cache    cache
	acked    uint64
	keep     uint64
	covered  Covered
	// ghost is the last index of a log that was deleted as a whole, until the next append. See ghostLog.
	ghost uint64
}

const (
	defaultSegment = 4 << 20
	minSegment     = 2 * entriesBegin
	// keptBuffer is how much memory for appends is kept, in bytes.
	keptBuffer = 1 << 20
)

// Open opens or creates the journal in cfg.Dir and reads all of it.
//
// Errors of kind metadata.ErrCorrupt mean that this member may not serve: an acknowledged entry is damaged or missing.
func Open(cfg Config) (*Journal, error) {
	if cfg.Disk == nil {
		cfg.Disk = FileSystem{}
	}
	if cfg.SegmentBytes <= 0 {
		cfg.SegmentBytes = defaultSegment
	}
	if cfg.CacheBytes <= 0 {
		cfg.CacheBytes = 16 << 20
	}
	if cfg.Deadline == 0 {
		cfg.Deadline = 5 * time.Second
	}
	log := cfg.Logger
	if log == nil {
		log = slog.Default()
	}
	j := &Journal{cfg: cfg, log: log, disk: cfg.Disk, covered: cfg.Covered, cache: cache{limit: cfg.CacheBytes}}
	j.pool = &pool{disk: cfg.Disk, dir: cfg.Dir, size: int64(min(max(cfg.SegmentBytes, minSegment), maxEntry)), short: func() bool {
		return cfg.Refuse != nil && cfg.Refuse(max(cfg.SegmentBytes, minSegment)) != nil
	}}
	if cfg.Deadline > 0 {
		if cfg.SlowAfter <= 0 {
			cfg.SlowAfter = cfg.Deadline / 5
		}
		j.watch = newWatch(cfg.Deadline, cfg.SlowAfter)
		go j.watch.run(cfg.Slow, cfg.Patient, func(err error) { j.fail(err) })
	}
	if err := j.open(); err != nil {
		j.Close()
		return nil, fmt.Errorf("raft log %s: %w", cfg.Dir, err)
	}
	return j, nil
}

// fail records why the journal is over and reports it once.
func (j *Journal) fail(err error) error {
	err = fmt.Errorf("raft log %s: %w", j.cfg.Dir, err)
	if !j.closed.Load() && j.failed.CompareAndSwap(nil, &err) {
		j.cfg.Fatal(err)
	}
	return err
}

func (j *Journal) usable() error {
	if err := j.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// write runs one change of the disk under the deadline. Whatever goes wrong is final: after a failed fsync the kernel may have
// dropped the pages, and a second try that succeeds proves nothing. The exception is that there is no space for something new,
// which is found out before anything is touched.
func (j *Journal) write(what string, change func() error) error {
	if err := j.usable(); err != nil {
		return err
	}
	if j.watch != nil {
		u := j.watch.begin(what)
		defer j.watch.end(u)
	}
	if err := change(); err != nil {
		if errors.Is(err, metadata.ErrNoSpace) {
			return err
		}
		return j.fail(fmt.Errorf("%s: %w", what, err))
	}
	return j.usable()
}

// FirstIndex implements raft.LogStore; 0 for an empty log.
func (j *Journal) FirstIndex() (uint64, error) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.firstLocked(), nil
}

func (j *Journal) firstLocked() uint64 {
	if len(j.segments) == 0 {
		return 0
	}
	return j.segments[0].base
}

// LastIndex implements raft.LogStore; 0 for an empty log.
func (j *Journal) LastIndex() (uint64, error) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.lastLocked(), nil
}

func (j *Journal) lastLocked() uint64 {
	if len(j.segments) == 0 {
		return 0
	}
	return j.segments[len(j.segments)-1].last()
}

// IsMonotonic implements raft.MonotonicLogStore. Were it hidden, raft would leave a gap in the log when it installs a
// snapshot.
func (j *Journal) IsMonotonic() bool { return true }

// GetLog implements raft.LogStore. The entry's data is shared: callers do not change it.
func (j *Journal) GetLog(index uint64, entry *raft.Log) error {
	if err := j.usable(); err != nil {
		return err
	}
	j.mu.RLock()
	cached := j.cache.get(index)
	j.mu.RUnlock()
	if cached != nil {
		*entry = *cached
		return nil
	}
	got, err := j.read(index)
	switch {
	case err == nil:
		*entry = *got
		return nil
	case errors.Is(err, raft.ErrLogNotFound):
		return j.ghostLog(index, entry)
	case errors.Is(err, metadata.ErrCorrupt):
		return j.fail(err)
	}
	return err
}

// ghostLog answers for entries that raft believes in after it deleted the whole log behind an installed snapshot. raft
// keeps the last index of the deleted log in memory, so that when the deleted tail had diverged and was longer than the
// snapshot, it looks up entries that are gone, refuses what the leader sends, and gets the same snapshot again for ever
// (hashicorp/raft#697). The entry at the snapshot's index has the snapshot's term, and those behind it a term that
// matches nothing, which makes raft overwrite them. The first append ends this.
func (j *Journal) ghostLog(index uint64, entry *raft.Log) error {
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.ghost <= j.covered.Index || index < j.covered.Index || index > j.ghost {
		return raft.ErrLogNotFound
	}
	*entry = raft.Log{Index: index, Type: raft.LogNoop}
	if index == j.covered.Index {
		entry.Term = j.covered.Term
	}
	return nil
}

// errClosed is what a read finds that the end of the journal overtook.
var errClosed = errors.New("the journal is closed")

// read fetches an entry from its file. While it does so the entry may be deleted and its file used for another, so what looks
// damaged is read a second time while nobody writes.
func (j *Journal) read(index uint64) (*raft.Log, error) {
	e, err := j.fetch(index)
	if !errors.Is(err, metadata.ErrCorrupt) {
		return e, err
	}
	j.writeMu.Lock()
	defer j.writeMu.Unlock()
	return j.fetch(index)
}

// fetch reads an entry from its file and checks it.
func (j *Journal) fetch(index uint64) (*raft.Log, error) {
	file, of, where, ok := j.locate(index)
	if !ok {
		return nil, raft.ErrLogNotFound
	}
	raw := make([]byte, where.size)
	if _, err := file.ReadAt(raw, int64(where.at)); err != nil {
		if j.closed.Load() {
			return nil, errClosed
		}
		return nil, metadata.Errorf(metadata.ErrCorrupt, "entry %d cannot be read: %v", index, err)
	}
	e, ok := decodeEnvelope(raw, of)
	if !ok || e.index != index || e.size() != len(raw) {
		return nil, metadata.Errorf(metadata.ErrCorrupt, "entry %d: the envelope is damaged", index)
	}
	return e.entry(raw[envelopeBytes:])
}

// locate finds where an entry lies.
func (j *Journal) locate(index uint64) (file File, of salt, where span, ok bool) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	n := sort.Search(len(j.segments), func(i int) bool { return j.segments[i].last() >= index })
	if n == len(j.segments) || index < j.segments[n].base {
		return nil, of, where, false
	}
	s := j.segments[n]
	return s.file, s.salt, s.entries[index-s.base], true
}

// StoreLog implements raft.LogStore.
func (j *Journal) StoreLog(entry *raft.Log) error { return j.StoreLogs([]*raft.Log{entry}) }

// piece is the part of an append that goes into one segment.
type piece struct {
	to      *segment // nil: a new one
	entries []*raft.Log
	bytes   int64
}

// divide decides which segments the entries go to, in order.
func (j *Journal) divide(entries []*raft.Log) []piece {
	p := piece{entries: entries[:0]}
	room := int64(0)
	j.mu.RLock()
	if n := len(j.segments); n > 0 {
		p.to = j.segments[n-1]
		room = p.to.size - p.to.end()
	}
	j.mu.RUnlock()
	var pieces []piece
	for i, e := range entries {
		size := int64(sizeOf(e))
		if p.bytes+size > room {
			if len(p.entries) > 0 {
				pieces = append(pieces, p)
			}
			p = piece{entries: entries[i:i]}
			room = max(j.pool.size-entriesBegin, size)
		}
		p.entries = p.entries[:len(p.entries)+1]
		p.bytes += size
	}
	return append(pieces, p)
}

// StoreLogs implements raft.LogStore. The entries are durable and acknowledged when it returns nil. metadata.ErrNoSpace, and any
// other error of Config.Refuse, leaves everything as it was; any other is fatal. Entries that take the place of a deleted tail are not
// refused: raft would go on with the tail in mind, and take what the leader sends for a gap until it starts anew.
func (j *Journal) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	size := 0
	for _, e := range entries {
		if len(e.Data) > maxEntry || len(e.Extensions) > maxEntry-len(e.Data) {
			return fmt.Errorf("raft log: entry %d has %d bytes: an entry takes %d at most", e.Index, len(e.Data)+len(e.Extensions), maxEntry)
		}
		size += len(e.Data)
	}
	j.writeMu.Lock()
	defer j.writeMu.Unlock()
	if j.cfg.Refuse != nil && !j.truncated {
		if err := j.cfg.Refuse(size); err != nil {
			return errors.Join(err, j.write("give spare segments back", j.pool.release))
		}
	}
	last := entries[len(entries)-1]
	began := time.Now()
	if err := j.write("append", func() error { return j.append(entries) }); err != nil {
		if j.truncated && errors.Is(err, metadata.ErrNoSpace) {
			return j.fail(fmt.Errorf("replace a deleted tail: %w", err))
		}
		return err
	}
	j.truncated = false
	took := time.Since(began)
	for _, e := range entries {
		j.took[e.Index%uint64(len(j.took))].Store(int64(took))
	}
	if j.cfg.Appended != nil {
		j.cfg.Appended(entries[0].Index, last.Index, took)
	}
	j.mu.Lock()
	j.acked = last.Index
	j.ghost = 0
	for _, e := range entries {
		j.cache.append(e)
		j.appended.Add(int64(len(e.Data)))
	}
	tail := j.segments[len(j.segments)-1]
	j.mu.Unlock()
	if tail.end() > tail.size/2 {
		j.makeReady()
	}
	return nil
}

// append writes entries into one segment or several. The space for all of them is there before the first is written.
func (j *Journal) append(entries []*raft.Log) error {
	j.mu.RLock()
	last, acked := j.lastLocked(), j.acked
	needed := j.truncated || len(j.segments) == 0
	j.mu.RUnlock()
	for i, e := range entries {
		if want := last + 1 + uint64(i); e.Index != want && (last > 0 || e.Index == 0 || e.Index != entries[0].Index+uint64(i)) {
			return fmt.Errorf("entry %d follows entry %d", e.Index, want-1)
		}
	}
	pieces := j.divide(entries)
	for i := range pieces {
		if p := &pieces[i]; p.to == nil {
			s, err := j.pool.take(p.bytes, needed)
			if err != nil {
				for _, q := range pieces[:i] {
					if len(q.to.entries) == 0 {
						err = errors.Join(err, j.pool.drop(q.to, len(pieces)))
					}
				}
				return err
			}
			p.to = s
			j.making.Store(false)
		}
	}
	epoch := j.state.current().epoch
	for _, p := range pieces {
		b := j.buffer[:0]
		at := p.to.end()
		spans := make([]span, 0, len(p.entries))
		for _, e := range p.entries {
			begin := len(b)
			b = appendEntry(b, p.to.salt, epoch, acked, e)
			spans = append(spans, span{uint32(at) + uint32(begin), uint32(len(b) - begin)})
		}
		if cap(b) <= keptBuffer {
			j.buffer = b
		}
		if _, err := p.to.file.WriteAt(b, at); err != nil {
			return err
		}
		if err := p.to.file.Sync(); err != nil {
			return err
		}
		j.mu.Lock()
		if len(p.to.entries) == 0 {
			p.to.base = p.entries[0].Index
			j.segments = append(j.segments, p.to)
		}
		p.to.entries = append(p.to.entries, spans...)
		j.mu.Unlock()
		acked = p.entries[len(p.entries)-1].Index
	}
	return j.state.raise(acked, entries[len(entries)-1].Term)
}

// makeReady makes the next segment, so that the append that needs it does not wait.
func (j *Journal) makeReady() {
	if j.closed.Load() || j.making.Swap(true) {
		return
	}
	j.makers.Go(func() {
		err := j.pool.ready()
		if errors.Is(err, metadata.ErrNoSpace) {
			return // the append that needs it tries again, and those in front of it do not
		}
		j.making.Store(false)
		if err != nil {
			j.fail(fmt.Errorf("make a segment ready: %w", err))
		}
	})
}

// Took is how long it took to append an entry, of those appended lately.
func (j *Journal) Took(index uint64) time.Duration {
	return time.Duration(j.took[index%uint64(len(j.took))].Load())
}

// DeleteRange implements raft.LogStore. A range that reaches the end of the log goes as asked: a conflicting tail, or
// all of it behind an installed snapshot. A head goes only as far as Keep allows.
//
// raft deletes the whole log behind any installed snapshot, also behind one that comes late, or to a follower whose answers did
// not arrive, when the log has gone on from the snapshot's entry: what follows it was acknowledged, and stays (Ongaro and
// Ousterhout, ATC'14, section 7).
func (j *Journal) DeleteRange(low, high uint64) error {
	j.writeMu.Lock()
	defer j.writeMu.Unlock()
	j.mu.RLock()
	first, last, keep, covered := j.firstLocked(), j.lastLocked(), j.keep, j.covered
	j.mu.RUnlock()
	if high < last {
		return j.cutHead(min(high, keep))
	}
	if low <= first && first <= covered.Index && covered.Index <= last {
		e, err := j.fetch(covered.Index)
		if err != nil {
			return j.fail(err)
		}
		if e.Term == covered.Term {
			return errors.Join(j.retains(covered.Index+1, last), j.cutHead(min(covered.Index, keep)))
		}
	}
	return j.cutTail(low)
}

// retains ends the journal if one of the entries that stay changes the group's members: raft takes those of the snapshot until it starts
// anew. The caller holds writeMu.
func (j *Journal) retains(first, last uint64) error {
	for index := first; index <= last; index++ {
		if e, err := j.fetch(index); err != nil {
			return j.fail(err)
		} else if e.Type == raft.LogConfiguration {
			return j.fail(fmt.Errorf("a snapshot came late: entry %d behind it changes the members, which raft learns at its start", index))
		}
	}
	return nil
}

// cutHead drops segments all of whose entries lie at or in front of an index. The caller holds writeMu.
func (j *Journal) cutHead(high uint64) error {
	j.mu.Lock()
	n := 0
	for n < len(j.segments)-1 && j.segments[n].last() <= high {
		n++
	}
	gone := slices.Clone(j.segments[:n])
	j.segments = slices.Clone(j.segments[n:])
	live := len(j.segments)
	if n > 0 {
		j.cache.drop(0, j.segments[0].base-1)
	}
	j.mu.Unlock()
	return j.write("truncate", func() error { return j.retire(gone, live) })
}

// cutTail deletes the entries from low on. The caller holds writeMu.
//
// The state says, durably, that they are void, before their files are touched: from then on they are leftovers, wherever they
// lie. A crash in front of that leaves the log as it was, one behind it the shorter log.
func (j *Journal) cutTail(low uint64) error {
	j.mu.RLock()
	first, last, covered := j.firstLocked(), j.lastLocked(), j.covered
	j.mu.RUnlock()
	if last == 0 || low > last {
		return nil
	}
	var reached, term uint64
	if low > first {
		reached = low - 1
		if e, err := j.fetch(reached); err == nil {
			term = e.Term
		}
	}
	acked := Covered{reached, term}
	if covered.Index > reached { // which answers for what goes
		acked = covered
	}
	if err := j.write("truncate", func() error { return j.state.cutBehind(reached, acked) }); err != nil {
		return err
	}
	j.mu.Lock()
	j.acked = min(j.acked, reached)
	if reached == 0 {
		j.ghost = last
	} else {
		j.truncated = true
	}
	j.cache.drop(low, last)
	ends := make(map[*segment]int64)
	for _, s := range j.segments {
		ends[s] = s.end()
	}
	gone := j.trimLocked(1, reached)
	live := len(j.segments)
	j.mu.Unlock()
	// The next cut may lie behind what is void now: it has to be gone by then.
	return j.write("truncate", func() error {
		if live > 0 {
			if s := j.segments[live-1]; s.end() < ends[s] {
				if err := s.clear(s.end(), ends[s]); err != nil {
					return err
				}
			}
		}
		if err := j.retire(gone, live); err != nil || len(gone) == 0 {
			return err
		}
		return j.disk.SyncDir(j.cfg.Dir)
	})
}

// trimLocked forgets the entries in front of first and behind last and returns the segments that are left without one.
func (j *Journal) trimLocked(first, last uint64) (gone []*segment) {
	var kept []*segment
	for _, s := range j.segments {
		if s.trim(first, last); len(s.entries) == 0 {
			gone = append(gone, s)
		} else {
			kept = append(kept, s)
		}
	}
	j.segments = kept
	return gone
}

// retire gives the files of a log that has live others to the pool.
func (j *Journal) retire(gone []*segment, live int) error {
	for _, s := range gone {
		if err := j.pool.drop(s, live); err != nil {
			return err
		}
	}
	return nil
}

// Keep allows DeleteRange and Trim to remove a head of the log up to and including index: the last entry that the oldest kept
// snapshot covers. Initially nothing may go.
func (j *Journal) Keep(index uint64) {
	j.mu.Lock()
	j.keep = max(j.keep, index)
	j.mu.Unlock()
}

// Trim removes the head of the log as far as Keep allows, and gives what the log keeps for later back to the disk: for one that is nearly full, where raft
// calls DeleteRange no more, because no snapshot is taken. The last segment stays, and with it the last entry. It changes nothing, and waits for nobody, where no
// segment is needless.
func (j *Journal) Trim() error {
	j.mu.RLock()
	needless := len(j.segments) > 1 && j.segments[0].last() <= j.keep
	j.mu.RUnlock()
	if !needless {
		return nil
	}
	j.writeMu.Lock()
	defer j.writeMu.Unlock()
	j.mu.RLock()
	keep := j.keep
	j.mu.RUnlock()
	if err := j.cutHead(keep); err != nil {
		return err
	}
	return j.write("give spare segments back", j.pool.release)
}

// Failed reports whether the journal is over because of its disk: Config.Fatal is being called or was.
func (j *Journal) Failed() bool { return j.failed.Load() != nil }

// Cover tells that a snapshot was stored. One that is ahead of the log was installed: this member acknowledges its entries by
// that, and no longer starts without them.
func (j *Journal) Cover(c Covered) {
	j.mu.Lock()
	j.covered = c
	ahead := c.Index > j.lastLocked()
	j.mu.Unlock()
	if ahead {
		j.write("store the watermark", func() error { return j.state.cover(c) }) // which says itself that it failed
	}
}

// Appended is a counter of bytes: those in the log behind the snapshot at Open plus all written since.
func (j *Journal) Appended() int64 { return j.appended.Load() }

// Behind is how many bytes the entries behind an index take.
func (j *Journal) Behind(index uint64) (bytes int64) {
	j.mu.RLock()
	defer j.mu.RUnlock()
	for _, s := range j.segments {
		switch {
		case len(s.entries) == 0 || s.last() <= index:
		case s.base > index:
			bytes += s.end() - int64(s.entries[0].at)
		default:
			bytes += s.end() - int64(s.entries[index+1-s.base].at)
		}
	}
	return bytes
}

// Acked is the index up to which this member has acknowledged entries; 0 for an empty log.
func (j *Journal) Acked() uint64 {
	j.mu.RLock()
	defer j.mu.RUnlock()
	return j.acked
}

// Close releases the files. A hanging write makes it wait.
func (j *Journal) Close() error {
	if j.closed.Swap(true) {
		return nil
	}
	if j.watch != nil {
		j.watch.close()
	}
	j.writeMu.Lock()
	defer j.writeMu.Unlock()
	j.makers.Wait()
	var mistakes []error
	for _, s := range j.segments {
		mistakes = append(mistakes, s.file.Close())
	}
	mistakes = append(mistakes, j.pool.close())
	if j.state != nil {
		mistakes = append(mistakes, j.state.file.Close())
	}
	return errors.Join(mistakes...)
}
