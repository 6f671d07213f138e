// Package runs is the kv.Store on disk: sorted, immutable files, each with what one flush wrote at one timestamp, merged
// as they become many. It has no log and no memory table, because a checkpoint counts as a whole or not at all, and
// Sync says when. ../DESIGN.md has the reasons and ../FORMAT.md the bytes.
package runs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/kv"
)

// Options tunes a store; the zero value is the default.
type Options struct {
	// Chunk is how many bytes of a batch are sorted at a time, 16 MiB by default; a batch holds so much in memory.
	Chunk int
	// Logger receives what a person should know; nil means slog.Default().
	Logger *slog.Logger
}

// Store is a directory of runs and a manifest, which says which of them count.
type Store struct {
	dir  string
	opt  Options
	lock *os.File

	mu        sync.Mutex
	runs      []*run // ascending timestamps; what lies later wins
	next      uint64 // number of the next file
	discarded uint64
	closed    bool
	broken    error // why the store cannot be trusted any more

	merge chan struct{} // capacity 1: look whether there is something to merge
	stop  chan struct{}
	done  sync.WaitGroup
}

const (
	runSuffix = ".run"
	condemned = "condemned"
	lockName  = "lock"
)

// Open opens the store in dir and makes it when it is not there. Files that cannot be understood are thrown away,
// because the store is a derived cache; one that another process holds is an error. Close ends what Open started.
func Open(dir string, opt Options) (*Store, error) {
	if opt.Chunk == 0 {
		opt.Chunk = 16 << 20
	}
	if opt.Logger == nil {
		opt.Logger = slog.Default()
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &Store{dir: dir, opt: opt, merge: make(chan struct{}, 1), stop: make(chan struct{})}
	if err := s.open(); err != nil {
		s.letGo()
		return nil, fmt.Errorf("checkpoint %s: %w", dir, err)
	}
	s.done.Go(s.mergeLoop)
	return s, nil
}

func (s *Store) open() error {
	var err error
	if s.lock, err = os.OpenFile(s.path(lockName), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return errors.New("it is in use by another process")
		}
		return err
	}
	if _, err := os.Stat(s.path(condemned)); err == nil {
		s.opt.Logger.Warn("checkpoint was condemned and starts empty", "dir", s.dir)
		if err := s.empty(); err != nil {
			return err
		}
	}
	if err := s.load(); errors.Is(err, metadata.ErrCorrupt) {
		s.opt.Logger.Warn("checkpoint is damaged and starts empty", "dir", s.dir, "error", err)
		s.letRunsGo()
		if err := s.empty(); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	return s.tidy()
}

// load opens what the manifest lists.
func (s *Store) load() error {
	m, err := readManifest(s.path(manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	s.next = m.Next
	for _, entry := range m.Runs {
		r, err := openRun(s.path(entry.Name))
		if errors.Is(err, fs.ErrNotExist) {
			err = corrupt(s.path(entry.Name), "missing")
		}
		if err != nil {
			return err
		}
		r.at = entry.At
		s.runs = append(s.runs, r)
	}
	return nil
}

// empty removes all content, the manifest first.
func (s *Store) empty() error {
	s.next = 0
	if err := os.Remove(s.path(manifestName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := syncDir(s.dir); err != nil {
		return err
	}
	if err := s.tidy(); err != nil {
		return err
	}
	if err := os.Remove(s.path(condemned)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDir(s.dir)
}

// tidy removes what the manifest does not list: what a crash left, and folders of an earlier format of this store, whose
// content the log and its snapshots have.
func (s *Store) tidy() error {
	listed := map[string]bool{}
	for _, r := range s.runs {
		listed[r.name] = true
	}
	names, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, n := range names {
		name := n.Name()
		old := name == "data" || name == "data.new" || name == "data.old"
		if !old && (!strings.HasSuffix(name, runSuffix) || listed[name]) && name != manifestName+".tmp" {
			continue
		}
		if err := os.RemoveAll(s.path(name)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, name) }

func (s *Store) newPath() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	return s.path(fmt.Sprintf("%010d%s", s.next, runSuffix))
}

// View implements kv.Store.
func (s *Store) View(at uint64) kv.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &view{}
	for _, r := range s.runs {
		if r.at > at {
			break
		}
		r.hold()
		v.runs = append(v.runs, r)
	}
	return v
}

// Batch implements kv.Store.
func (s *Store) Batch(at uint64) kv.Batch { return &batch{store: s, at: at} }

// insert adds runs with equal timestamps behind all that are not newer.
func (s *Store) insert(runs []*run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fs.ErrClosed
	}
	for _, r := range runs {
		i := len(s.runs)
		for i > 0 && s.runs[i-1].at > r.at {
			i--
		}
		s.runs = slices.Insert(s.runs, i, r)
	}
	return nil
}

// Sync implements kv.Store. The runs themselves are on disk since Flush; this makes them count.
func (s *Store) Sync() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.publish(s.runs)
}

// publish makes runs what the next Open finds. mu is held.
func (s *Store) publish(runs []*run) error {
	switch {
	case s.closed:
		return fs.ErrClosed
	case s.broken != nil:
		return s.broken
	}
	m := manifest{Next: s.next, Runs: []manifestRun{}}
	for _, r := range runs {
		m.Runs = append(m.Runs, manifestRun{Name: r.name, At: r.at})
	}
	if err := m.write(s.dir); err != nil {
		// It may be there or not: nothing that is written from now on could be told from what is not.
		s.broken = fmt.Errorf("checkpoint %s: %w", s.dir, err)
		return s.broken
	}
	return nil
}

// Discard implements kv.Store.
func (s *Store) Discard(at uint64) {
	s.mu.Lock()
	s.discarded = max(s.discarded, at)
	s.mu.Unlock()
	select {
	case s.merge <- struct{}{}:
	default:
	}
}

// Replace implements kv.Store: the new content is written beside the old, and one manifest exchanges them.
func (s *Store) Replace(at uint64, fill func(put func(key, value []byte) error) error) error {
	b := &batch{store: s, at: at}
	defer b.Cancel()
	if err := fill(b.Put); err != nil {
		return fmt.Errorf("checkpoint %s: %w", s.dir, err)
	}
	fresh, err := b.finish()
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", s.dir, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.publish(fresh); err != nil {
		for _, r := range fresh {
			r.release() // its file stays: the manifest may name it
		}
		return err
	}
	former := s.runs
	s.runs, s.discarded = fresh, 0
	s.drop(former)
	return nil
}

// drop removes runs that no manifest lists any more. Views that hold them can still read.
func (s *Store) drop(runs []*run) {
	for _, r := range runs {
		if err := os.Remove(r.path); err != nil {
			s.opt.Logger.Warn("cannot remove a part of the checkpoint that is not needed any more", "file", r.path, "error", err)
		}
		r.release()
	}
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
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	close(s.stop)
	s.mu.Unlock()
	s.done.Wait()
	return s.letGo()
}

func (s *Store) letGo() error {
	s.letRunsGo()
	if s.lock == nil {
		return nil
	}
	return s.lock.Close()
}

func (s *Store) letRunsGo() {
	for _, r := range s.runs {
		r.release()
	}
	s.runs = nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

type view struct{ runs []*run }

func (v *view) Get(key []byte) ([]byte, error) {
	h := hash(key)
	for _, r := range slices.Backward(v.runs) {
		value, deleted, found, err := r.get(key, h)
		switch {
		case err != nil:
			return nil, err
		case deleted:
			return nil, kv.ErrNotFound
		case found:
			return value, nil
		}
	}
	return nil, kv.ErrNotFound
}

func (v *view) Scan(prefix, from []byte, fn func(key, value []byte) bool) error {
	start := prefix
	if bytes.Compare(from, start) > 0 {
		start = from
	}
	m, err := newMerger(v.runs, start)
	if err != nil {
		return err
	}
	defer m.close()
	return m.each(func(key, value []byte, deleted bool) bool {
		switch {
		case !bytes.HasPrefix(key, prefix):
			return false
		case deleted:
			return true
		}
		return fn(key, value)
	})
}

func (v *view) Close() {
	for _, r := range v.runs {
		r.release()
	}
	v.runs = nil
}
