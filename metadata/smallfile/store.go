// Package smallfile keeps the bodies of small files: those that the namenodes have instead of blocks on datanodes. A Store is one member's; the
// Raft log brings the same bodies to all of them.
//
// Bodies lie in segments, files that only grow. Nothing is synced but by Sync, in front of a checkpoint of the namespace: what the log still has is
// put again after a crash. DESIGN.md tells why no body is lost, FORMAT.md has the bytes.
package smallfile

import (
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

// MaxBody is how long a body may be, in bytes. It is not empty either.
const MaxBody = metadata.MaxBody

// Config describes a Store. Dir and Live are required.
type Config struct {
	// Dir holds the segments, and nothing else.
	Dir string
	// Disk is what files are made on; nil: the operating system's.
	Disk journal.Disk
	// Room is nil while there is room on the disk for more than what keeps the namenode going; nil: there is always. It is asked before bodies that
	// were put are written. Compaction does not ask: it takes a segment at most, and gives back more.
	Room func() error
	// Live says for each of some ids whether its body is still needed: by the current state, the last checkpoint, a version that is kept. It is asked
	// by Compact, up to 1,024 at a time, without any lock of the Store. An id that was put before the call, and not removed, must live; so it has
	// to wait for the entry that is being applied. A body that is dead stays dead, or is put again.
	Live func(ids []metadata.BlockID) ([]bool, error)
	// SegmentBytes is about how large a segment gets. Default 64 MiB; 4 KiB to 512 MiB.
	SegmentBytes int64
	// Lenient: a segment that cannot be opened, or read at all, is passed over, and Unread tells of it. It is for who only reads, and ends the Store by Abandon. It does not
	// forgive that descriptors or memory are short.
	Lenient bool
	// Logger; nil means slog.Default().
	Logger *slog.Logger
}

const (
	defaultSegment = 64 << 20
	leastSegment   = 4 << 10
	mostSegment    = 512 << 20
	// maxUnwritten is how many bytes wait in memory for the disk before Put waits, bodies and pendingOverhead.
	maxUnwritten    = 64 << 20
	pendingOverhead = 128
	// wakeBytes is how much waits before the writer writes without being asked to.
	wakeBytes = 256 << 10
	// batchBytes is about how much is written, or copied, at once.
	batchBytes = 1 << 20
	warnEvery  = time.Minute
	// retryEvery is how often a disk that refuses is tried again.
	retryEvery = time.Second
)

// Store has the bodies of one member. Put and Removed are called by who applies entries, Sync by who writes checkpoints, the rest by anybody.
type Store struct {
	cfg     Config
	disk    journal.Disk
	log     *slog.Logger
	files   files
	salt    func() uint64
	limit   int64         // maxUnwritten
	pause   time.Duration // retryEvery
	rate    int64         // compactRate
	records int           // maxRecords

	due  chan struct{} // capacity 1: there is something to write
	stop chan struct{} // closed by Close
	done chan struct{} // closed when the writer has ended

	// ioMu is held while bodies that were put are written; it is taken before mu.
	ioMu   sync.Mutex
	active *building // what bodies go to; nil: none is begun
	buffer []byte

	compacting sync.Mutex
	namesMu    sync.Mutex // held while names are made durable, so that nobody believes that they are before
	passes     uint64     // calls of Compact

	mu       sync.RWMutex
	room     *sync.Cond // of mu: less is unwritten, or the Store is closed
	table    *table
	segments []*segment
	next     uint64 // sequence of the next segment
	// fresh are the bodies that are in no segment of the table yet.
	fresh     map[metadata.BlockID]fresh
	queue     []pending // not written, in the order in which they came
	unwritten int64
	growing   int64    // size of active
	grows     *segment // that of active
	// damaged are ids of which there is a place, and no sound body. What was put since the last Sync and got lost is owed: no Sync succeeds without it,
	// until it is lacked.
	damaged, owed map[metadata.BlockID]struct{}
	unreadable    int64
	unread        []error // of Open; never changed after it
	unnamed       bool    // names of segments are not durable
	holds         int
	copied, freed int64
	warned        time.Time
	closed        bool
}

// fresh is a body that is not written, or in the segment that is being written.
type fresh struct {
	body []byte // nil: it is written
	place
	removed bool
}

// pending is a body to be written, or how long one was that is lost.
type pending struct {
	id   metadata.BlockID
	body []byte
	lost uint32
}

func (p *pending) cost() int64 { return int64(len(p.body)) + pendingOverhead }

// length is that of the body, in bytes.
func (p *pending) length() uint32 {
	if p.body == nil {
		return p.lost
	}
	return uint32(len(p.body))
}

// Open finds the segments in a directory, which exists. A segment without a sound footer, as a crash leaves it, is read through and copied by the
// next Sync; what of it is torn does not count. Errors: those of the disk.
func Open(cfg Config) (*Store, error) {
	if cfg.Live == nil || cfg.Dir == "" {
		return nil, errors.New("smallfile: Config needs Dir and Live")
	}
	if cfg.Disk == nil {
		cfg.Disk = journal.FileSystem{}
	}
	if cfg.SegmentBytes == 0 {
		cfg.SegmentBytes = defaultSegment
	}
	if cfg.SegmentBytes < leastSegment || cfg.SegmentBytes > mostSegment {
		return nil, fmt.Errorf("smallfile: SegmentBytes is %d, and has to be between %d and %d", cfg.SegmentBytes, leastSegment, mostSegment)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Store{
		cfg: cfg, disk: cfg.Disk, log: cfg.Logger, files: files{disk: cfg.Disk, dir: cfg.Dir, open: map[uint64]*handle{}, opening: map[uint64]*opening{}},
		salt: randomSalt, limit: maxUnwritten, pause: retryEvery, rate: compactRate, records: maxRecords,
		due: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
		fresh: map[metadata.BlockID]fresh{}, damaged: map[metadata.BlockID]struct{}{}, owed: map[metadata.BlockID]struct{}{},
		unnamed: true, next: 1,
	}
	s.room = sync.NewCond(&s.mu)
	if err := s.load(); err != nil {
		s.files.close()
		return nil, err
	}
	go s.write()
	return s, nil
}

// Put adds a body, unless it is there. It keeps body, which nobody may change any more, until it is written; until then it is read from memory.
// Put waits only while 64 MiB are unwritten, because the disk is slow, full or hangs. A body of another length than 1 byte to 64 KiB, or an
// id that is not positive, is a mistake of the program and panics. After Close it does nothing.
func (s *Store) Put(id metadata.BlockID, body []byte) { s.put(pending{id: id, body: body}, true) }

// Offer is Put for a body that will come again if it is not kept: it does not wait. False: too much is unwritten, or the Store is closed.
func (s *Store) Offer(id metadata.BlockID, body []byte) bool {
	return s.put(pending{id: id, body: body}, false)
}

// Lack says that a body of a length is needed that is not here and does not come, because who sent the state that has it lacks it, too. It is damaged then, until it is put, as one
// that has rotted: a record says so, also after a restart. Sync does not wait for it. Does nothing where the body is here. Waits as Put does, and panics as that.
func (s *Store) Lack(id metadata.BlockID, length int) {
	s.put(pending{id: id, lost: uint32(length)}, true)
}

func (s *Store) put(p pending, wait bool) bool {
	id, length := p.id, p.length()
	if length == 0 || length > MaxBody || id <= 0 {
		panic(fmt.Sprintf("smallfile: a body of %d bytes with id %d; 1 byte to %d, and a positive id", length, id, MaxBody))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if s.closed || s.keeps(id) {
			return !s.closed
		}
		if p.body == nil {
			delete(s.owed, id) // nobody has it whom the state comes from, which takes the place of the one that has it in its log
		}
		if _, known := s.damaged[id]; known && p.body == nil {
			return true
		}
		if s.unwritten < s.limit {
			break
		}
		s.wakeWriter()
		if !wait {
			return false
		}
		s.room.Wait()
	}
	s.queue = append(s.queue, p)
	if p.body == nil {
		s.damaged[id] = struct{}{}
	} else {
		s.fresh[id] = fresh{body: p.body, place: place{entry: entry{id: id, length: length}}}
		delete(s.damaged, id)
		delete(s.owed, id)
	}
	if s.unwritten += p.cost(); s.unwritten >= wakeBytes {
		s.wakeWriter()
	}
	return true
}

// keeps reports whether a body is here and will stay, as far as is known: it is not damaged, nor only in segments that are about to be removed.
// It is called with mu held.
func (s *Store) keeps(id metadata.BlockID) bool {
	if _, bad := s.damaged[id]; bad {
		return false
	}
	if f, ok := s.fresh[id]; ok && !f.lost {
		return true
	}
	var found [4]place
	for _, p := range s.table.places(id, found[:0]) {
		if !p.lost && !p.victim {
			return true
		}
	}
	return false
}

// wakeWriter is called with mu held.
func (s *Store) wakeWriter() {
	select {
	case s.due <- struct{}{}:
	default:
	}
}

// Has reports whether a body is here, and not known to be damaged.
func (s *Store) Has(id metadata.BlockID) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if _, bad := s.damaged[id]; bad {
		return false
	}
	var found [4]place
	return len(s.places(id, found[:0])) > 0
}

// Damaged are up to some ids that are known to be damaged here: bodies that have to come from another namenode, if they live.
func (s *Store) Damaged(most int) (ids []metadata.BlockID) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id := range s.damaged {
		if len(ids) == most {
			break
		}
		ids = append(ids, id)
	}
	return ids
}

// places appends to found where a body lies, in memory or in segments, without records that say that it is lost. It is called with mu held.
func (s *Store) places(id metadata.BlockID, found []place) []place {
	if f, ok := s.fresh[id]; ok && !f.lost {
		found = append(found, f.place)
	}
	return slices.DeleteFunc(s.table.places(id, found), func(p place) bool { return p.lost })
}

// Removed says that a body of a length is not needed by the current state any more. It is a hint, for what Compact looks at first.
func (s *Store) Removed(id metadata.BlockID, length int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.owed, id)
	if f, ok := s.fresh[id]; ok {
		f.removed = true
		s.fresh[id] = f
		return
	}
	var found [4]place
	for _, p := range s.table.places(id, found[:0]) {
		p.dead.Add(recordHeader + int64(length))
	}
}

// Hold keeps Compact from removing anything until release is called. Who puts bodies that no state has yet, of a version that is being taken in, holds
// the Store until the state has them.
func (s *Store) Hold() (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.holds--
	})
}

// Close makes everything durable that was put and ends the Store. Who waits in Put goes on, with nothing put. Error: that of Sync.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.room.Broadcast()
	close(s.stop)
	s.mu.Unlock()
	<-s.done
	s.compacting.Lock()
	defer s.compacting.Unlock()
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	err := s.sync()
	if s.active != nil && err == nil {
		err = s.seal()
	}
	s.files.close()
	return s.refused(err)
}

// Abandon ends a Store whose files go, or that was only read: nothing more is written, and what is not durable does not become so. Who waits in Put goes on,
// with nothing put.
func (s *Store) Abandon() {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.closed = true
	s.room.Broadcast()
	close(s.stop)
	s.mu.Unlock()
	<-s.done
	s.compacting.Lock()
	defer s.compacting.Unlock()
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	if a := s.active; a != nil {
		s.active = nil
		s.files.release(a.file)
	}
	s.files.close()
}

// IDs are those of the bodies that were here when the Store was opened, as far as their segments have not been copied since; some come twice.
func (s *Store) IDs() iter.Seq[metadata.BlockID] {
	s.mu.RLock()
	segments := slices.Clone(s.segments)
	s.mu.RUnlock()
	return func(yield func(metadata.BlockID) bool) {
		for _, g := range segments {
			for _, id := range g.ids {
				if !yield(id) {
					return
				}
			}
		}
	}
}

// Figures are what there is to say of a Store.
type Figures struct {
	// Segments and Bytes are the files and what they take, without what waits; Bodies are those that are there, with those that are dead.
	Segments int
	Bodies   int
	Bytes    int64
	// Dead is about how many of Bytes belong to bodies that were removed, as far as is known.
	Dead int64
	// Waiting is how many bytes wait for the disk, with what they take in memory beside the bodies.
	Waiting int64
	// Damaged is how many bodies are known to be damaged, and not put again since; Unreadable how many bytes of segments were found that
	// belong to nothing when the Store was opened: a crash leaves some.
	Damaged    int
	Unreadable int64
	// Copied and Freed are what Compact has written and given back since the start, in bytes.
	Copied, Freed int64
}

// Figures says them.
func (s *Store) Figures() Figures {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f := Figures{
		Segments: len(s.segments), Bodies: len(s.fresh), Bytes: s.growing, Waiting: s.unwritten, Damaged: len(s.damaged), Unreadable: s.unreadable,
		Copied: s.copied, Freed: s.freed,
	}
	if s.growing > 0 {
		f.Segments++
	}
	for _, g := range s.segments {
		f.Bodies += g.len()
		f.Bytes += g.bytes
		f.Dead += g.dead.Load()
	}
	for _, p := range s.fresh {
		if p.removed {
			f.Dead += p.size()
		}
	}
	return f
}

// refused gives an error that says that there is no room its kind.
func (s *Store) refused(err error) error {
	if err == nil || !full(err) || errors.Is(err, metadata.ErrNoSpace) {
		return err
	}
	return metadata.Errorf(metadata.ErrNoSpace, "no room for bodies of small files in %s: %v", s.cfg.Dir, err)
}

func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, metadata.ErrNoSpace)
}
