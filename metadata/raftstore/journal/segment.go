package journal

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/gohops/hops/metadata"
)

// segment is one file of the log.
type segment struct {
	header
	file File
	size int64
	// entries[i] is where entry base+i lies. They change under Journal.mu.
	base    uint64
	entries []span
}

// span is a stretch of a file in bytes.
type span struct{ at, size uint32 }

// last is the index of the last entry; the segment has one.
func (s *segment) last() uint64 { return s.base + uint64(len(s.entries)) - 1 }

// end is where the next entry goes.
func (s *segment) end() int64 {
	if len(s.entries) == 0 {
		return entriesBegin
	}
	e := s.entries[len(s.entries)-1]
	return int64(e.at) + int64(e.size)
}

// trim forgets the entries in front of first and behind last.
func (s *segment) trim(first, last uint64) {
	if len(s.entries) == 0 {
		return
	}
	if last < s.base {
		s.entries = nil
		return
	}
	if last < s.last() {
		s.entries = s.entries[:last-s.base+1]
	}
	if drop := min(max(first, s.base)-s.base, uint64(len(s.entries))); drop > 0 {
		s.entries, s.base = s.entries[drop:], s.base+drop
	}
}

// zeros are what files are filled with. Nobody writes to them.
var zeros [fillBytes]byte

// clear overwrites a stretch of the file with zeros, durably.
func (s *segment) clear(from, to int64) error {
	for at := from; at < to; at += fillBytes {
		if _, err := s.file.WriteAt(zeros[:min(fillBytes, to-at)], at); err != nil {
			return err
		}
	}
	return s.file.Sync()
}

// clearRest overwrites what lies behind the entries if there are leftovers of this use of the file in it.
func (s *segment) clearRest() error {
	rest := make([]byte, max(s.size-s.end(), 0))
	n, err := s.file.ReadAt(rest, s.end())
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.Contains(rest[:n], s.salt[:]) {
		return nil
	}
	return s.clear(s.end(), s.size)
}

const (
	segmentSuffix = ".log"
	spareSuffix   = ".spare"
	temporary     = ".tmp"
	// fillBytes is how much of a new file is filled before it is synced, so that appends wait for no more than that.
	fillBytes = 512 << 10
)

func segmentName(sequence uint64, suffix string) string {
	return fmt.Sprintf("%016x%s", sequence, suffix)
}

// sequenceOf reads the name of a segment or a spare.
func sequenceOf(name, suffix string) (sequence uint64, ok bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	sequence, err := strconv.ParseUint(digits, 16, 64)
	return sequence, err == nil
}

// pool makes segments ready: files all of whose blocks have been written, so that an append overwrites and its fdatasync
// commits no metadata. A file whose entries have gone is used again. Lock order: Journal.writeMu, pool.mu, Journal.mu.
type pool struct {
	disk Disk
	dir  string
	size int64
	// short: the disk is nearly full: spares had better go, and files are made only for want of any.
	short func() bool

	mu       sync.Mutex // held while a segment is made
	sequence uint64     // the highest in use
	next     *segment   // ready, nil if none is
	spares   []*segment
	renamed  bool // the directory has not been synced since
}

func (p *pool) path(sequence uint64, suffix string) string {
	return filepath.Join(p.dir, segmentName(sequence, suffix))
}

// take returns a ready segment with room for some bytes of entries. needed: one is made also on a disk that is short. When it fails with an error
// of which full is true, nothing has changed.
func (p *pool) take(room int64, needed bool) (*segment, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.next
	p.next = nil
	if s != nil && s.size-entriesBegin < room { // it must not come behind the one that is made now
		if err := p.retire(s, 1); err != nil {
			return nil, err
		}
		s = nil
	}
	if s != nil {
		return s, nil
	}
	return p.make(max(p.size, (entriesBegin+room+entriesBegin-1)/entriesBegin*entriesBegin), needed)
}

// ready makes the next segment if there is none yet.
func (p *pool) ready() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next == nil {
		p.next, err = p.make(p.size, false)
	}
	return err
}

func (p *pool) make(size int64, needed bool) (s *segment, err error) {
	from := ""
	sequence := p.sequence + 1
	if n := len(p.spares); n > 0 && size == p.size {
		// What is written into the file next must not be found under its old name after a crash.
		if p.renamed {
			if err := p.disk.SyncDir(p.dir); err != nil {
				return nil, err
			}
			p.renamed = false
		}
		s = p.spares[n-1]
		p.spares = p.spares[:n-1]
		from = p.path(s.sequence, spareSuffix)
	} else if !needed && p.short() {
		return nil, metadata.Errorf(metadata.ErrNoSpace, "no other segment of the raft log is made in %s: the disk is nearly full", p.dir)
	} else {
		from = p.path(sequence, temporary)
		s = &segment{size: size}
		if s.file, err = p.create(from, size); err != nil {
			return nil, p.refused(sequence, err)
		}
	}
	s.sequence = sequence
	rand.Read(s.salt[:]) // never fails (crypto/rand)
	if _, err = s.file.WriteAt(s.encode(), 0); err == nil {
		err = s.file.Sync()
	}
	if err == nil {
		err = p.disk.Rename(from, p.path(sequence, segmentSuffix))
	}
	if err == nil {
		err = p.disk.SyncDir(p.dir)
	}
	if err != nil {
		return nil, errors.Join(p.refused(sequence, err), s.file.Close())
	}
	p.sequence = sequence
	return s, nil
}

// refused gives an error that touches nothing but a new file its kind.
func (p *pool) refused(sequence uint64, err error) error {
	if full(err) {
		return metadata.Errorf(metadata.ErrNoSpace, "no room for one more segment of the raft log in %s: %v", p.dir, err)
	}
	return fmt.Errorf("make segment %x ready: %w", sequence, err)
}

// create makes a file of zeros.
func (p *pool) create(path string, size int64) (_ File, err error) {
	f, err := p.disk.Create(path)
	if err != nil {
		return nil, err
	}
	s := segment{file: f}
	err = f.Allocate(size)
	for at := int64(0); at < size && err == nil; at += fillBytes {
		err = s.clear(at, min(at+fillBytes, size))
	}
	if err == nil {
		return f, nil
	}
	return nil, errors.Join(err, f.Close(), p.disk.Remove(path))
}

// drop takes a segment out of the log of which live are left.
func (p *pool) drop(s *segment, live int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.retire(s, live)
}

// retire keeps a file for later, unless there are as many as the log uses anyway: what the log loses at a snapshot is about
// what it takes until the next.
func (p *pool) retire(s *segment, live int) error {
	s.base, s.entries = 0, nil
	if s.size != p.size || len(p.spares) >= max(live, 1) || p.short() {
		return errors.Join(p.disk.Remove(p.path(s.sequence, segmentSuffix)), s.file.Close())
	}
	p.renamed = true
	if err := p.disk.Rename(p.path(s.sequence, segmentSuffix), p.path(s.sequence, spareSuffix)); err != nil {
		return errors.Join(err, s.file.Close())
	}
	p.spares = append(p.spares, s)
	return nil
}

// release gives the spares back to the disk.
func (p *pool) release() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var mistakes []error
	for _, s := range p.spares {
		mistakes = append(mistakes, p.disk.Remove(p.path(s.sequence, spareSuffix)), s.file.Close())
	}
	p.spares = nil
	return errors.Join(mistakes...)
}

func (p *pool) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var mistakes []error
	if p.next != nil {
		mistakes = append(mistakes, p.next.file.Close())
	}
	for _, s := range p.spares {
		mistakes = append(mistakes, s.file.Close())
	}
	p.next, p.spares = nil, nil
	return errors.Join(mistakes...)
}
