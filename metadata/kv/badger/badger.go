// Package badger is the kv.Store on disk, over dgraph-io/badger in managed mode. Every option that matters to safety is
// set here and explained in ../DESIGN.md.
package badger

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/gohops/hops/metadata/kv"
)

// Options tunes a store; the zero value is the default.
type Options struct {
	// Memtable is the size in bytes of badger's memory table, 16 MiB by default. Up to four of them are in memory, and a
	// write transaction holds 15 % of one.
	Memtable int64
	// Logger receives what badger has to say; nil means slog.Default().
	Logger *slog.Logger
}

// Store is a badger database in the folder "data" of its directory. The directory may also hold "data.new" and
// "data.old", remains of a Replace, and "condemned", the request to start empty.
type Store struct {
	dir string
	opt Options

	mu     sync.RWMutex // guards db against Replace and Close
	db     *badger.DB
	closed bool

	complaint atomic.Pointer[string] // the first error that badger only logged
}

// Names inside the directory.
const (
	current   = "data"
	fresh     = "data.new"
	former    = "data.old"
	condemned = "condemned"
)

// Open opens the store in dir and makes it when it is not there. A database that badger cannot open is thrown away,
// because it is a derived cache; one that another process holds is an error.
func Open(dir string, opt Options) (*Store, error) {
	if opt.Memtable == 0 {
		opt.Memtable = 16 << 20
	}
	if opt.Logger == nil {
		opt.Logger = slog.Default()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &Store{dir: dir, opt: opt}
	if err := s.tidy(); err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", dir, err)
	}
	db, err := s.open(s.path(current))
	if err != nil && !locked(err) {
		opt.Logger.Warn("checkpoint is damaged and starts empty", "dir", dir, "error", err)
		if err := os.RemoveAll(s.path(current)); err != nil {
			return nil, err
		}
		db, err = s.open(s.path(current))
	}
	if err != nil {
		if held(err) {
			return nil, fmt.Errorf("checkpoint %s is in use by another process", dir)
		}
		return nil, fmt.Errorf("checkpoint %s: %w", dir, err)
	}
	s.db = db
	return s, nil
}

// locked: the database may be sound, but it is not ours to open.
func locked(err error) bool { return held(err) || errors.Is(err, fs.ErrPermission) }

// held: another process has the database open. Badger has no error of its own for it.
func held(err error) bool { return strings.Contains(err.Error(), "Cannot acquire directory lock") }

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

// tidy finishes or undoes what a crash left half done.
func (s *Store) tidy() error {
	if _, err := os.Stat(s.path(condemned)); err == nil {
		s.opt.Logger.Warn("checkpoint was condemned and starts empty", "dir", s.dir)
		for _, name := range []string{current, former, fresh, condemned} {
			if err := os.RemoveAll(s.path(name)); err != nil {
				return err
			}
		}
		return syncDir(s.dir)
	}
	if _, err := os.Stat(s.path(current)); errors.Is(err, fs.ErrNotExist) {
		// Replace died between its two renames: the former content is the current one again.
		if err := os.Rename(s.path(former), s.path(current)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, name := range []string{former, fresh} {
		if err := os.RemoveAll(s.path(name)); err != nil {
			return err
		}
	}
	return syncDir(s.dir)
}

func (s *Store) open(path string) (*badger.DB, error) {
	opt := badger.DefaultOptions(path)
	opt.Logger = logger{s}
	opt.MetricsEnabled = false

	opt.DetectConflicts = false
	opt.NumVersionsToKeep = 1
	opt.SyncWrites = true
	opt.ChecksumVerificationMode = options.OnBlockRead

	opt.ValueThreshold = kv.MaxValue + 1 // what is shorter is in the tables
	opt.ValueLogFileSize = 1 << 20

	opt.MemTableSize = s.opt.Memtable
	opt.NumMemtables = 2
	opt.NumCompactors = 2
	opt.BaseTableSize = 1 << 20 // the builders of tables, which badger pools, are a multiple of it
	opt.NumLevelZeroTables = 3
	opt.NumLevelZeroTablesStall = 8
	opt.Compression = options.None
	opt.BlockCacheSize = 0
	opt.IndexCacheSize = 0
	return badger.OpenManaged(opt)
}

// View implements kv.Store.
func (s *Store) View(at uint64) kv.View {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return &view{txn: s.db.NewTransactionAt(at, false)}
}

// Batch implements kv.Store.
func (s *Store) Batch(at uint64) kv.Batch {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return newBatch(s.db, at)
}

func newBatch(db *badger.DB, at uint64) *batch {
	b := &batch{wb: db.NewWriteBatchAt(at)}
	b.wb.SetMaxPendingTxns(2)
	return b
}

// Sync implements kv.Store. It also fails when badger has logged an error since Open: some of badger's background
// failures (a value-log sync, a memory-table flush) surface in no other way.
func (s *Store) Sync() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return fs.ErrClosed
	}
	if err := s.db.Sync(); err != nil {
		return err
	}
	if c := s.complaint.Load(); c != nil {
		return fmt.Errorf("checkpoint %s: badger reported: %s", s.dir, *c)
	}
	return nil
}

// Discard implements kv.Store.
func (s *Store) Discard(at uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.closed {
		s.db.SetDiscardTs(at)
	}
}

// Replace implements kv.Store: it fills a second database beside the current one and exchanges the folders.
func (s *Store) Replace(at uint64, fill func(put func(key, value []byte) error) error) error {
	if err := s.fill(at, fill); err != nil {
		os.RemoveAll(s.path(fresh))
		return fmt.Errorf("checkpoint %s: %w", s.dir, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fs.ErrClosed
	}
	if err := s.exchange(); err != nil {
		return fmt.Errorf("checkpoint %s: %w", s.dir, err)
	}
	return nil
}

func (s *Store) fill(at uint64, fill func(put func(key, value []byte) error) error) error {
	if err := os.RemoveAll(s.path(fresh)); err != nil {
		return err
	}
	db, err := s.open(s.path(fresh))
	if err != nil {
		return err
	}
	b := newBatch(db, at)
	err = fill(b.Put)
	if err == nil {
		err = b.Flush()
	} else {
		b.Cancel()
	}
	if err == nil {
		err = db.Sync()
	}
	return errors.Join(err, db.Close())
}

func (s *Store) exchange() error {
	if err := s.db.Close(); err != nil {
		return err
	}
	if err := os.Rename(s.path(current), s.path(former)); err != nil {
		return err
	}
	if err := os.Rename(s.path(fresh), s.path(current)); err != nil {
		return err
	}
	if err := syncDir(s.dir); err != nil {
		return err
	}
	if err := os.RemoveAll(s.path(former)); err != nil {
		return err
	}
	db, err := s.open(s.path(current))
	if err != nil {
		return err
	}
	s.db = db
	return nil
}

// Condemn implements kv.Store.
func (s *Store) Condemn() error {
	if err := os.WriteFile(s.path(condemned), nil, 0o600); err != nil {
		return err
	}
	return syncDir(s.dir)
}

// Close implements kv.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return s.db.Close()
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type view struct{ txn *badger.Txn }

func (v *view) Get(key []byte) ([]byte, error) {
	item, err := v.txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, kv.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return item.ValueCopy(nil)
}

func (v *view) Scan(prefix, from []byte, fn func(key, value []byte) bool) error {
	opt := badger.DefaultIteratorOptions
	opt.Prefix = prefix
	opt.PrefetchValues = false
	it := v.txn.NewIterator(opt)
	defer it.Close()
	start := prefix
	if string(from) > string(start) {
		start = from
	}
	for it.Seek(start); it.ValidForPrefix(prefix); it.Next() {
		item, more := it.Item(), false
		err := item.Value(func(value []byte) error {
			more = fn(item.Key(), value)
			return nil
		})
		if err != nil {
			return err
		}
		if !more {
			return nil
		}
	}
	return nil
}

func (v *view) Close() { v.txn.Discard() }

type batch struct {
	wb   *badger.WriteBatch
	free []byte // memory for copies of keys and values, which badger keeps until it has written them
	done bool
}

// copied returns a copy of p that badger may keep.
func (b *batch) copied(p []byte) []byte {
	const piece = 256 << 10
	if len(p) > cap(b.free)-len(b.free) {
		b.free = make([]byte, 0, max(piece, len(p)))
	}
	start := len(b.free)
	b.free = append(b.free, p...)
	return b.free[start:len(b.free):len(b.free)]
}

func (b *batch) Put(key, value []byte) error {
	if err := kv.CheckSize(key, value); err != nil {
		return err
	}
	return b.wb.Set(b.copied(key), b.copied(value))
}

func (b *batch) Delete(key []byte) error { return b.wb.Delete(b.copied(key)) }

func (b *batch) Flush() error {
	b.done = true
	return b.wb.Flush()
}

func (b *batch) Cancel() {
	if !b.done {
		b.done = true
		b.wb.Cancel()
	}
}

// logger passes badger's lines on; what badger calls info is debug to everybody else.
type logger struct{ store *Store }

func (l logger) Errorf(format string, args ...any) {
	text := line(format, args)
	l.store.complaint.CompareAndSwap(nil, &text)
	l.store.opt.Logger.Error(text, "from", "badger")
}

func (l logger) Warningf(format string, args ...any) {
	l.store.opt.Logger.Warn(line(format, args), "from", "badger")
}

func (l logger) Infof(format string, args ...any) {
	l.store.opt.Logger.Debug(line(format, args), "from", "badger")
}

func (l logger) Debugf(string, ...any) {}

func line(format string, args []any) string {
	return strings.TrimSpace(fmt.Sprintf(format, args...))
}
