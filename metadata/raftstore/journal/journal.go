package journal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// Backend is where entries lie. One log per group is WAL; a log that all groups of a process share would be another
// implementation. All writes are durable when they return.
type Backend interface {
	raft.LogStore
	raft.MonotonicLogStore
	io.Closer
}

// tailer is implemented by backends whose recovery may drop what lies behind a damaged spot of the last file. RawTail
// returns that file's bytes.
type tailer interface{ RawTail() ([]byte, error) }

// Covered says what a snapshot contains: everything up to Index, whose entry had Term. Zero: there is no snapshot.
type Covered struct{ Index, Term uint64 }

// Config describes a journal. Dir and Fatal are required.
type Config struct {
	// Dir exists and belongs to this journal alone; the caller holds the lock on it.
	Dir string
	// Open opens the backend; nil means WAL.
	Open func(dir string, segmentBytes int) (Backend, error)
	// SegmentBytes is the size of WAL's files, which are allocated in full; default 16 MiB. Larger ones mean fewer
	// rotations and coarser truncation.
	SegmentBytes int
	// CacheBytes limits the entries kept in memory for followers that are not far behind; default 16 MiB.
	CacheBytes int64
	// Deadline is how long one write may take before Fatal is called; default 5 s, negative: forever. Time in which this
	// process was stopped does not count: see Patience.
	Deadline time.Duration
	// Slow, if not nil, is called again and again while a write takes longer than SlowAfter; default a fifth of Deadline.
	Slow      func(what string, took time.Duration)
	SlowAfter time.Duration
	// Appended, if not nil, is told of each append, and what it took. It must not block.
	Appended func(first, last uint64, took time.Duration)
	// Covered is the newest snapshot.
	Covered Covered
	// Refuse, if not nil, is asked before entries of so many bytes are written; its error is returned and nothing is touched.
	Refuse func(bytes int) error
	// Fatal is called once, from any goroutine, when the journal can no longer be trusted: a write failed or hangs, an
	// entry does not match its checksum. It is expected to end the process; when it returns, all calls fail.
	Fatal  func(error)
	Logger *slog.Logger
}

// Journal is a raft.LogStore and raft.StableStore. Writes come from one goroutine at a time, as raft does it.
type Journal struct {
	cfg     Config
	log     *slog.Logger
	backend Backend
	failed  atomic.Pointer[error]
	closed  atomic.Bool
	// appended counts the bytes written since Open plus those that Open found behind the snapshot.
	appended atomic.Int64
	// took is how long the last appends took, in nanoseconds, by index.
	took [64]atomic.Int64

	writeMu sync.Mutex // held for every write to the backend and to mark
	mark    *mark

	ballots *ballots
	watch   *watch // nil without a deadline

	mu      sync.RWMutex // guards what follows
	cache   cache
	acked   uint64
	keep    uint64
	covered Covered
	// ghost is the last index of a log that was deleted as a whole, until the next append. See ghostLog.
	ghost uint64
}

// Open opens or creates the journal in cfg.Dir and reads all of it.
//
// Errors of kind metadata.ErrCorrupt mean that this member may not serve: an acknowledged entry is damaged or missing.
func Open(cfg Config) (*Journal, error) {
	if cfg.Open == nil {
		cfg.Open = WAL
	}
	if cfg.SegmentBytes <= 0 {
		cfg.SegmentBytes = 16 << 20
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
	j := &Journal{cfg: cfg, log: log, covered: cfg.Covered, cache: cache{limit: cfg.CacheBytes}}
	if cfg.Deadline > 0 {
		if cfg.SlowAfter <= 0 {
			cfg.SlowAfter = cfg.Deadline / 5
		}
		j.watch = newWatch(cfg.Deadline, cfg.SlowAfter)
		go j.watch.run(cfg.Slow, func(err error) { j.fail(err) })
	}
	if err := j.open(); err != nil {
		j.Close()
		return nil, fmt.Errorf("raft log %s: %w", cfg.Dir, err)
	}
	return j, nil
}

func (j *Journal) open() (err error) {
	if j.mark, err = openMark(j.cfg.Dir); err != nil {
		return err
	}
	var fresh bool
	if j.ballots, fresh, err = openBallots(j.cfg.Dir); err != nil {
		return err
	}
	if j.backend, err = guard(func() (Backend, error) { return j.cfg.Open(j.cfg.Dir, j.cfg.SegmentBytes) }); err != nil {
		return err
	}
	if err := j.recover(); err != nil {
		return err
	}
	last, err := j.backend.LastIndex()
	if err != nil {
		return err
	}
	if fresh && max(last, j.mark.acked) > 0 {
		return metadata.Errorf(metadata.ErrCorrupt, "there are entries but no ballot: this member has forgotten whom it voted for")
	}
	return nil
}

// recover reads the whole log, decides what is a torn tail and what is corruption, and joins log and snapshot.
func (j *Journal) recover() error {
	scan, err := j.scan()
	if err != nil {
		return err
	}
	first, last, covered := scan.first, scan.last, j.covered
	if scan.bad != 0 {
		if scan.bad <= scan.acked {
			return fmt.Errorf("%w; entries up to %d were acknowledged", scan.damage, scan.acked)
		}
		j.log.Warn("cutting torn tail of raft log", "from", scan.bad, "to", last, "acknowledged", scan.acked, "cause", scan.damage)
		if err := j.truncate(scan.bad, last, true); err != nil {
			return err
		}
		last = scan.bad - 1
		if last < first {
			first, last = 0, 0
		}
	}
	if reached := max(last, covered.Index); reached < scan.acked {
		return metadata.Errorf(metadata.ErrCorrupt, "the log ends at entry %d, but entries up to %d were acknowledged", reached, scan.acked)
	}
	if scan.marked != 0 && scan.marked != j.mark.term && j.mark.term != 0 {
		return metadata.Errorf(metadata.ErrCorrupt, "entry %d has term %d, but was acknowledged with term %d", j.mark.acked, scan.marked, j.mark.term)
	}
	conflict := scan.coveredTerm != 0 && scan.coveredTerm != covered.Term
	switch {
	case last == 0:
	case last < covered.Index, conflict, scan.headBad && last == covered.Index:
		// The member stopped between installing a snapshot and dropping the log that it replaces, or all that is
		// damaged lies in the snapshot too. raft-wal would refuse every append behind the gap.
		j.log.Info("dropping raft log that a snapshot replaces", "from", first, "to", last, "snapshot", covered.Index)
		if err := j.truncate(first, last, true); err != nil {
			return err
		}
		last = 0
	case scan.headBad:
		j.log.Warn("dropping damaged head of raft log that a snapshot replaces", "from", first, "to", covered.Index)
		if err := j.truncate(first, covered.Index, false); err != nil {
			return err
		}
	case first > covered.Index+1:
		return metadata.Errorf(metadata.ErrCorrupt, "the log begins at entry %d, but the newest snapshot ends at %d", first, covered.Index)
	}
	j.acked = last // all of it has been read back and is durable
	j.ghost = 0
	return nil
}

// scanned is what reading the whole log found.
type scanned struct {
	first, last uint64
	// acked is the highest watermark anywhere.
	acked uint64
	// bad is the first damaged entry behind the snapshot, and damage says what is wrong with it.
	bad    uint64
	damage error
	// headBad: an entry that the snapshot covers is damaged.
	headBad bool
	// coveredTerm is the term of the entry at the snapshot's index, 0 when it is not in the log.
	coveredTerm uint64
	// marked is the term of the entry at the mark's index, 0 when it is not in the log.
	marked uint64
}

func (j *Journal) scan() (s scanned, err error) {
	if s.first, err = j.backend.FirstIndex(); err != nil {
		return s, err
	}
	if s.last, err = j.backend.LastIndex(); err != nil {
		return s, err
	}
	s.acked = j.mark.acked
	var term uint64
	for i := s.first; i <= s.last && i > 0; i++ {
		entry, acked, err := j.read(i)
		if err == nil && entry.Term < term {
			err = metadata.Errorf(metadata.ErrCorrupt, "entry %d: term %d follows term %d", i, entry.Term, term)
		}
		switch {
		case err != nil && !errors.Is(err, metadata.ErrCorrupt):
			return s, err
		case err != nil && i <= j.covered.Index:
			s.headBad = true
		case err != nil && s.bad == 0:
			s.bad, s.damage = i, err
		case err == nil:
			s.acked = max(s.acked, acked)
			term = entry.Term
			if i == j.covered.Index {
				s.coveredTerm = term
			}
			if i == j.mark.acked {
				s.marked = term
			}
			if i > j.covered.Index && s.bad == 0 {
				j.appended.Add(int64(len(entry.Data)))
				j.cache.append(entry)
			}
		}
	}
	if t, ok := j.backend.(tailer); ok {
		raw, err := t.RawTail()
		if err != nil {
			return s, err
		}
		s.acked = max(s.acked, scanAcked(raw, j.mark.salt))
	}
	return s, nil
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

// write runs one change of the backend under the deadline. Whatever goes wrong is final: after a failed fsync the
// kernel may have dropped the pages, and a second try that succeeds proves nothing.
func (j *Journal) write(what string, change func() error) error {
	if err := j.usable(); err != nil {
		return err
	}
	if j.watch != nil {
		u := j.watch.begin(what)
		defer j.watch.end(u)
	}
	if _, err := guard(func() (struct{}, error) { return struct{}{}, change() }); err != nil {
		return j.fail(fmt.Errorf("%s: %w", what, err))
	}
	return j.usable()
}

// guard turns the panics of a library that met bytes it did not expect into errors, faults in mapped files included.
func guard[T any](call func() (T, error)) (v T, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = metadata.Errorf(metadata.ErrCorrupt, "the log store panicked: %v", p)
		}
	}()
	return call()
}

// FirstIndex implements raft.LogStore.
func (j *Journal) FirstIndex() (uint64, error) { return j.backend.FirstIndex() }

// LastIndex implements raft.LogStore.
func (j *Journal) LastIndex() (uint64, error) { return j.backend.LastIndex() }

// IsMonotonic implements raft.MonotonicLogStore. Were it hidden, raft would leave a gap in the log when it installs a
// snapshot, and raft-wal refuses the first append behind a gap.
func (j *Journal) IsMonotonic() bool { return j.backend.IsMonotonic() }

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
	got, _, err := j.read(index)
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

// read fetches an entry from the backend and takes off its envelope. It returns the watermark of the envelope too.
func (j *Journal) read(index uint64) (*raft.Log, uint64, error) {
	entry := new(raft.Log)
	if _, err := guard(func() (struct{}, error) { return struct{}{}, j.backend.GetLog(index, entry) }); err != nil {
		if errors.Is(err, raft.ErrLogNotFound) || errors.Is(err, errClosed) {
			return nil, 0, err
		}
		return nil, 0, metadata.Errorf(metadata.ErrCorrupt, "entry %d cannot be read: %v", index, err)
	}
	acked, err := unwrap(index, entry)
	if err != nil {
		return nil, 0, err
	}
	return entry, acked, nil
}

// StoreLog implements raft.LogStore.
func (j *Journal) StoreLog(entry *raft.Log) error { return j.StoreLogs([]*raft.Log{entry}) }

// StoreLogs implements raft.LogStore. The entries are durable and acknowledged when it returns nil. An error of
// Config.Refuse leaves everything as it was; any other is fatal.
func (j *Journal) StoreLogs(entries []*raft.Log) error {
	if len(entries) == 0 {
		return nil
	}
	if j.cfg.Refuse != nil {
		size := 0
		for _, e := range entries {
			size += len(e.Data)
		}
		if err := j.cfg.Refuse(size); err != nil {
			return err
		}
	}
	j.writeMu.Lock()
	defer j.writeMu.Unlock()
	j.mu.RLock()
	acked := j.acked
	j.mu.RUnlock()
	last := entries[len(entries)-1]
	began := time.Now()
	err := j.write("append", func() error {
		if err := j.backend.StoreLogs(wrap(entries, j.mark.salt, acked)); err != nil {
			return err
		}
		return j.mark.raise(last.Index, last.Term)
	})
	if err != nil {
		return err
	}
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
	j.mu.Unlock()
	return nil
}

// Took is how long it took to append an entry, of those appended lately.
func (j *Journal) Took(index uint64) time.Duration {
	return time.Duration(j.took[index%uint64(len(j.took))].Load())
}

// DeleteRange implements raft.LogStore. A range that reaches the end of the log goes as asked: a conflicting tail, or
// all of it behind an installed snapshot. A head goes only as far as Keep allows.
func (j *Journal) DeleteRange(low, high uint64) error {
	last, err := j.backend.LastIndex()
	if err != nil {
		return err
	}
	tail := high >= last
	if !tail {
		j.mu.RLock()
		high = min(high, j.keep)
		j.mu.RUnlock()
	}
	return j.truncate(low, high, tail)
}

// truncate deletes a head or a tail of the log.
func (j *Journal) truncate(low, high uint64, tail bool) error {
	j.writeMu.Lock()
	defer j.writeMu.Unlock()
	first, err := j.backend.FirstIndex()
	if err != nil {
		return err
	}
	last, err := j.backend.LastIndex()
	if err != nil {
		return err
	}
	if first == 0 || low > high || low > last || high < first {
		return nil
	}
	if tail {
		// The watermark goes down, durably, before the entries go: a crash between the two leaves a log that is
		// longer than its watermark, which is no damage.
		var reached, term uint64
		if low > first {
			reached = low - 1
			if e, _, err := j.read(reached); err == nil {
				term = e.Term
			}
		}
		if err := j.write("lower watermark", func() error { return j.mark.lower(reached, term) }); err != nil {
			return err
		}
		j.mu.Lock()
		j.acked = min(j.acked, reached)
		if reached == 0 {
			j.ghost = last
		}
		j.mu.Unlock()
	}
	j.mu.Lock()
	j.cache.drop(low, high)
	j.mu.Unlock()
	return j.write("truncate", func() error { return j.backend.DeleteRange(low, high) })
}

// Keep allows DeleteRange to remove a head of the log up to and including index: the last entry that the oldest kept
// snapshot covers. Initially nothing may go.
func (j *Journal) Keep(index uint64) {
	j.mu.Lock()
	j.keep = max(j.keep, index)
	j.mu.Unlock()
}

// Cover tells that a snapshot was stored.
func (j *Journal) Cover(c Covered) {
	j.mu.Lock()
	j.covered = c
	j.mu.Unlock()
}

// Appended is a counter of bytes: those in the log behind the snapshot at Open plus all written since.
func (j *Journal) Appended() int64 { return j.appended.Load() }

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
	var mistakes []error
	if j.backend != nil {
		mistakes = append(mistakes, j.backend.Close())
	}
	if j.ballots != nil {
		mistakes = append(mistakes, j.ballots.slots.close())
	}
	if j.mark != nil {
		mistakes = append(mistakes, j.mark.close())
	}
	return errors.Join(mistakes...)
}
