// Package badger is the kv.Store on disk, over dgraph-io/badger in managed mode. Every option that matters to safety is
// set here and explained in ../DESIGN.md.
package badger

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/pb"

	"github.com/gohops/hops/metadata/kv"
)

// Options tunes a store; the zero value is the default.
type Options struct {
	// Memtable is the size in bytes of badger's memory table, 32 MiB by default. Up to four of them are in memory, and a
	// write transaction holds 15 % of one.
	Memtable int64
	// Apart are classes of keys, letters or digits that keys begin with, each of which has a database of its own: those in which new keys lie behind all
	// old ones, so that badger has nothing to write again for them. It is what a new content gets; one that is there stays as it was made.
	Apart string
	// Logger receives what badger has to say; nil means slog.Default().
	Logger *slog.Logger
}

// Store is a badger database in the folder "data" of its directory, and one below it for each class of keys that is apart. The directory may
// also hold "data.new" and "data.old", remains of a Replace, "condemned", the request to start empty, and "data.damaged", the last content that
// was set aside.
type Store struct {
	dir      string
	opt      Options
	readOnly bool // nothing is merged

	mu     sync.RWMutex // guards db against Replace and Close
	db     databases
	closed bool

	merging merging

	complaint atomic.Pointer[string] // the first error that badger only logged
	rotten    atomic.Pointer[error]  // what is damaged

	verifying sync.WaitGroup
	stop      chan struct{} // ends verifying; nil: nothing was, or is, verified beside the work
	closing   chan struct{}
	readers   atomic.Int64 // calls of views under way
}

// Names inside the directory.
const (
	current   = "data"
	fresh     = "data.new"
	former    = "data.old"
	damaged   = "data.damaged"
	condemned = "condemned"
)

// Open opens the store in dir and makes it when it is not there. A database that badger cannot open is set aside, and the store starts
// empty, because it is a derived cache; one that another process holds is an error.
func Open(dir string, opt Options) (*Store, error) {
	if opt.Memtable == 0 {
		opt.Memtable = 32 << 20
	}
	if opt.Logger == nil {
		opt.Logger = slog.Default()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &Store{dir: dir, opt: opt, closing: make(chan struct{})}
	if err := s.tidy(); err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", dir, err)
	}
	db, err := s.open(s.path(current))
	if err != nil && !locked(err) {
		if err := s.moveAside(err); err != nil {
			return nil, fmt.Errorf("checkpoint %s: %w", dir, err)
		}
		s.complaint.Store(nil) // it was about the former content
		db, err = s.open(s.path(current))
	}
	if err != nil {
		if held(err) {
			return nil, fmt.Errorf("checkpoint %s is in use by another process", dir)
		}
		return nil, fmt.Errorf("checkpoint %s: %w", dir, err)
	}
	s.db = db
	s.merging.begun()
	if err := s.verify(); errors.Is(err, errRotten) {
		err = s.SetAside(err)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
	} else if err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint %s: %w", dir, err), s.Close())
	}
	go s.attend()
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
		if err := s.moveAside(errCondemned); err != nil {
			return err
		}
		for _, name := range []string{former, fresh, condemned} {
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

var errCondemned = errors.New("it was condemned when it was read")

// moveAside takes the present files out of the way; those that were set aside before go.
func (s *Store) moveAside(cause error) error {
	s.opt.Logger.Warn("the checkpoint is damaged and starts empty; its files are kept for people to look at, until the next time", "dir", s.dir, "kept", s.path(damaged), "error", cause)
	if err := os.RemoveAll(s.path(damaged)); err != nil {
		return err
	}
	if err := os.Rename(s.path(current), s.path(damaged)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDir(s.dir)
}

// SetAside implements kv.Store.
func (s *Store) SetAside(cause error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fs.ErrClosed
	}
	s.endVerifying()
	if err := s.db.Close(); err != nil {
		s.opt.Logger.Warn("closing a damaged checkpoint", "dir", s.dir, "error", err)
	}
	if err := s.moveAside(cause); err != nil {
		return fmt.Errorf("checkpoint %s: %w", s.dir, err)
	}
	db, err := s.open(s.path(current))
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", s.dir, err)
	}
	s.db = db
	s.merging.begun()
	s.complaint.Store(nil) // it was about the former content
	s.rotten.Store(nil)
	return nil
}

// firstLevel is how large a database gets, in bytes, before badger gives it a second level below level 0. Where new keys lie behind all old ones a merge
// of level 0 writes only what is new, and each further level writes it once more; where they lie all over, a merge writes all of the first level, but a
// further one would be written anew by then, too.
const firstLevel = 4 << 30

// options are those of the database of a class in the content in path.
func (s *Store) options(path string, class byte) badger.Options {
	opt := badger.DefaultOptions(folder(path, class))
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
	opt.BaseTableSize = 4 << 20 // the builders of tables, which badger pools, are a multiple of it
	opt.BaseLevelSize = firstLevel
	opt.NumLevelZeroTables = 16
	opt.NumLevelZeroTablesStall = 32
	opt.Compression = options.None
	opt.BlockCacheSize = 0
	opt.IndexCacheSize = 0

	if class != 0 {
		opt.MemTableSize = apartMemtable
		opt.NumMemtables = 1
	}
	if s.readOnly {
		opt.NumCompactors, opt.NumLevelZeroTables, opt.NumLevelZeroTablesStall = 0, math.MaxInt32-1, math.MaxInt32
	}
	return opt
}

// View implements kv.Store.
func (s *Store) View(at uint64) kv.View {
	s.mu.RLock()
	defer s.mu.RUnlock()
	v := &view{store: s}
	for _, d := range s.db {
		v.parts = append(v.parts, part{d.class, d.NewTransactionAt(at, false)})
	}
	return v
}

// Batch implements kv.Store.
func (s *Store) Batch(at uint64) kv.Batch {
	s.mu.RLock()
	defer s.mu.RUnlock()
	b := newBatch(s.db, at)
	if !s.closed && !s.readOnly {
		s.merging.begin(s.db)
		b.ended = s.merging.end
	}
	return b
}

// pendingWrites is how many pieces of a batch badger may have in its queue: a checkpoint is in no hurry, and others want the processors.
const pendingWrites = 1

func newBatch(db databases, at uint64) *batch {
	b := &batch{kv: pb.KV{Version: at}}
	for _, d := range db {
		b.loaders = append(b.loaders, loader{d.class, d.NewKVLoader(pendingWrites)})
	}
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
	for _, d := range s.db {
		if err := d.Sync(); err != nil {
			return err
		}
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
	if s.closed {
		return
	}
	for _, d := range s.db {
		d.SetDiscardTs(at)
	}
}

// Last implements kv.Store.
func (s *Store) Last() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.db.last()
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
	for _, d := range db {
		if err == nil {
			err = d.Sync()
		}
	}
	return errors.Join(err, db.Close())
}

// exchange puts what was filled in the place of the current content. When it fails, that is open again.
func (s *Store) exchange() error {
	verifying := s.endVerifying()
	err := s.db.Close()
	if err == nil {
		err = s.rename()
	}
	db, oerr := s.open(s.path(current))
	if oerr != nil {
		return errors.Join(err, oerr)
	}
	s.db = db
	s.merging.begun()
	if err != nil && verifying { // the former content, not all of which was read
		if rotten := s.verify(); rotten != nil {
			s.rot(rotten)
		}
	}
	return err
}

func (s *Store) rename() error {
	if err := os.Rename(s.path(current), s.path(former)); err != nil {
		return err
	}
	if err := os.Rename(s.path(fresh), s.path(current)); err != nil {
		return errors.Join(err, os.Rename(s.path(former), s.path(current)))
	}
	if err := syncDir(s.dir); err != nil {
		return errors.Join(err, os.Rename(s.path(current), s.path(fresh)), os.Rename(s.path(former), s.path(current)))
	}
	if err := os.RemoveAll(s.path(former)); err != nil {
		s.opt.Logger.Warn("the former content of a checkpoint cannot be removed; the next start tries again", "dir", s.path(former), "error", err)
	}
	return nil
}

// Condemn implements kv.Store. A store that is closed, or being closed, cannot be condemned: that reading it fails is no damage.
func (s *Store) Condemn() error {
	if s.ended() {
		return fs.ErrClosed
	}
	return s.condemn()
}

// ended reports whether Close was called.
func (s *Store) ended() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

func (s *Store) condemn() error {
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
	close(s.closing)
	s.endVerifying()
	for s.readers.Load() > 0 { // what they look at would go under them; none begins any more
		time.Sleep(time.Millisecond)
	}
	return s.db.Close()
}

// enter begins a call of a view, unless Close was called; leave ends it.
func (s *Store) enter() bool {
	s.readers.Add(1)
	if s.ended() {
		s.leave()
		return false
	}
	return true
}

func (s *Store) leave() { s.readers.Add(-1) }

// writeWhole makes a file in a directory, durably: whatever happens meanwhile, it has all of the content or is not there.
func writeWhole(dir, name string, content []byte) error {
	part := filepath.Join(dir, name+".part")
	f, err := os.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(part, filepath.Join(dir, name))
	}
	if err != nil {
		return err
	}
	return syncDir(dir)
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// view is a transaction of each database, the first of them the one of all classes that are not apart.
type view struct {
	store *Store
	parts []part
}

type part struct {
	class byte
	*badger.Txn
}

// of is the transaction of the database that keys like this one are in.
func (v *view) of(key []byte) *badger.Txn {
	if len(key) > 0 {
		for _, p := range v.parts[1:] {
			if p.class == key[0] {
				return p.Txn
			}
		}
	}
	return v.parts[0].Txn
}

func (v *view) Get(key []byte) ([]byte, error) {
	if !v.store.enter() {
		return nil, fs.ErrClosed
	}
	defer v.store.leave()
	item, err := v.of(key).Get(key)
	if err := v.store.sound(); err != nil {
		return nil, err
	}
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, kv.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return item.ValueCopy(nil)
}

func (v *view) Scan(prefix, from []byte, fn func(key, value []byte) bool) error {
	if !v.store.enter() {
		return fs.ErrClosed
	}
	defer v.store.leave()
	var err error
	if len(prefix) > 0 {
		_, err = v.scan(v.of(prefix), prefix, from, fn)
	} else {
		err = v.scanAll(from, fn)
	}
	if err != nil {
		return err
	}
	return v.store.sound()
}

// scanAll is a scan of all classes: before a key of the first database come the classes apart that are below it.
func (v *view) scanAll(from []byte, fn func(key, value []byte) bool) error {
	apart := v.parts[1:]
	for len(apart) > 0 && len(from) > 0 && apart[0].class < from[0] {
		apart = apart[1:]
	}
	more := true
	var err error
	upTo := func(class byte) bool {
		for len(apart) > 0 && more && err == nil && apart[0].class <= class {
			p := apart[0]
			apart = apart[1:]
			more, err = v.scan(p.Txn, []byte{p.class}, from, fn)
		}
		return more && err == nil
	}
	goOn, merr := v.scan(v.parts[0].Txn, nil, from, func(key, value []byte) bool {
		return upTo(key[0]) && fn(key, value)
	})
	if merr != nil {
		return merr
	}
	if goOn {
		upTo(0xff)
	}
	return err
}

// scan is a scan of one database. more: fn did not end it.
func (v *view) scan(txn *badger.Txn, prefix, from []byte, fn func(key, value []byte) bool) (more bool, err error) {
	opt := badger.DefaultIteratorOptions
	opt.Prefix = prefix
	opt.PrefetchValues = false
	it := txn.NewIterator(opt)
	defer it.Close()
	start := prefix
	if string(from) > string(start) {
		start = from
	}
	more = true
	for it.Seek(start); more && it.ValidForPrefix(prefix); it.Next() {
		item := it.Item()
		err := item.Value(func(value []byte) error {
			more = fn(item.Key(), value)
			return nil
		})
		if err == nil && v.store.ended() {
			err = fs.ErrClosed
		}
		if err != nil {
			return false, err
		}
	}
	return more, nil
}

func (v *view) Close() {
	for _, p := range v.parts {
		p.Discard()
	}
}

// batch hands badger what it takes without a transaction: nothing in a batch has to be atomic, and badger's transactions cost as much as
// writing.
type batch struct {
	loaders []loader // one for each database
	kv      pb.KV    // the one that is being handed over
	free    []byte   // memory for copies of values, which badger keeps until it has written them
	done    bool
	ended   func() // nil, or to be called once
}

type loader struct {
	class byte
	*badger.KVLoader
}

// deleted is badger's mark of a version that ends a key (bitDelete, which it does not export).
var deleted = []byte{1}

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
	b.kv.Key, b.kv.Value, b.kv.Meta = key, b.copied(value), nil // the loader copies the key
	return b.set()
}

func (b *batch) Delete(key []byte) error {
	b.kv.Key, b.kv.Value, b.kv.Meta = key, nil, deleted
	return b.set()
}

func (b *batch) set() error {
	if key := b.kv.Key; len(key) > 0 {
		for _, l := range b.loaders[1:] {
			if l.class == key[0] {
				return l.Set(&b.kv)
			}
		}
	}
	return b.loaders[0].Set(&b.kv)
}

func (b *batch) Flush() error {
	b.done = true
	var err error
	for _, l := range b.loaders {
		err = errors.Join(err, l.Finish())
	}
	if b.ended != nil {
		b.ended()
		b.ended = nil
	}
	return err
}

// Cancel waits for what badger has; the rest of it, less than a piece, goes there too, which does no harm.
func (b *batch) Cancel() {
	if !b.done {
		_ = b.Flush()
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
