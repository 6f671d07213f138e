// Package feed keeps the events of a namespace in files of its own, so that readers can follow what changes: in order, from any position that is
// still kept. Each member of a group has one, and all have the same events at the same positions.
//
// The feed is made of what the state machine applies, and what the log still has is applied again after a crash. So nothing is synced but in
// front of a checkpoint of the namespace; DESIGN.md tells why no event is lost, and who is told when one is.
package feed

import (
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

// Config describes a Log. Dir is required.
type Config struct {
	// Dir holds the files, and nothing else.
	Dir string
	// Bytes is how much the files may take together, about; the oldest events go first. Default 256 MiB.
	Bytes int64
	// Age is after how long events go, in log time; 0: never.
	Age time.Duration
	// Applied is the last entry in the namespace's checkpoint: those behind it are applied again.
	Applied uint64
	// Room is nil while there is room on the disk for more than what keeps the namenode going; nil: there is always.
	Room func() error
	// Disk is what files are made on; nil: the operating system's.
	Disk journal.Disk
	// Logger; nil means slog.Default().
	Logger *slog.Logger
}

const (
	// pieceSize is about how much is read at a time.
	pieceSize = 64 << 10
	// keptPieces are in memory for who follows closely.
	keptPieces = 64
	// maxUnwritten is how many bytes wait in memory for a disk that is slow or full, before they are lost.
	maxUnwritten = 16 << 20
	// segments is into how many files the whole is divided, about: with the oldest one a part of that size goes.
	segments       = 16
	maxSegment     = 16 << 20
	minSegment     = 64 << 10
	defaultBytes   = 256 << 20
	suffix         = ".feed"
	nameDigits     = 16
	warnEvery      = time.Minute
	minSegmentTime = int64(time.Second / time.Millisecond)
	// believed is after how long a disk that cannot read something is believed that it never will.
	believed = time.Minute
	// settles is how long the space of a file that was removed may take to show.
	settles = time.Second
)

// Log is the feed of one member. Append, Reset and Sync are called by who applies entries and writes checkpoints; the rest by anybody.
type Log struct {
	cfg         Config
	disk        journal.Disk
	log         *slog.Logger
	segmentSize int64
	segmentTime int64         // in milliseconds; 0: any
	patience    time.Duration // believed
	pause       time.Duration // settles

	due  chan struct{} // capacity 1: there is something to write
	done chan struct{} // closed when the writer has ended

	// ioMu is held while files change; it is taken before mu.
	ioMu    sync.Mutex
	open    *segment     // the one with an open file, the only one that may not be durable
	file    journal.File // of open
	unnamed bool         // names of files are not durable
	warned  time.Time
	gave    time.Time // when the oldest file went last, to make room

	mu       sync.Mutex
	segments []*segment // oldest first; the last one grows
	covered  uint64     // all events of entries up to it are here, or gone
	end      metadata.Position
	now      int64 // log time
	lost     int64 // how often events were lost
	// unwritten is how much is not in a file.
	unwritten int64
	writing   *segment
	doomed    []string
	more      chan struct{} // closed when events come, if somebody waits
	waiting   int
	closed    bool
}

// segment is one file, or what is to become one. Fields are guarded by Log.mu.
type segment struct {
	header
	// size is how much of it counts, written how much of that is in the file.
	size, written int64
	// known: pieces are all that there are. Those of a file of an earlier process are looked for when they are needed.
	known  bool
	pieces []piece
	// damaged: what is behind the pieces cannot be read.
	damaged bool
	// short: it has less than the one behind it says.
	short bool
	// failing is since when its pieces cannot be looked for.
	failing time.Time
}

// piece is a stretch of records, which is read at once.
type piece struct {
	first, last uint64 // entries of the first and the last record
	at, size    int64
	// data is nil where the piece is only in the file.
	data []byte
	// bad: it cannot be read. failing is since when, where that may pass.
	bad     bool
	failing time.Time
}

// Open reads what is there, and goes on behind it. What was written of entries that the namespace does not have in its checkpoint comes again,
// and is not written twice. Where the files end in front of the checkpoint there are events missing.
func Open(cfg Config) (*Log, error) {
	if cfg.Disk == nil {
		cfg.Disk = journal.FileSystem{}
	}
	if cfg.Bytes <= 0 {
		cfg.Bytes = defaultBytes
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	l := &Log{
		cfg: cfg, disk: cfg.Disk, log: cfg.Logger, due: make(chan struct{}, 1), done: make(chan struct{}), more: make(chan struct{}),
		segmentSize: min(max(cfg.Bytes/segments, minSegment), maxSegment), unnamed: true, patience: believed, pause: settles,
	}
	if cfg.Age > 0 {
		l.segmentTime = max(cfg.Age.Milliseconds()/segments, minSegmentTime)
	}
	if err := l.load(); err != nil {
		return nil, err
	}
	go l.write()
	return l, nil
}

// load lists the files and begins a new one behind them.
func (l *Log) load() error {
	names, err := l.disk.List(l.cfg.Dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	for _, name := range names {
		base, ok := baseOf(name)
		if !ok {
			continue
		}
		h, size, err := readHeader(l.disk, filepath.Join(l.cfg.Dir, name))
		if err != nil && !errors.Is(err, errDamaged) {
			return err
		}
		if err != nil || h.base != base {
			l.log.Warn("a file of the feed of changes cannot be read and is removed: readers are told that its events are gone", "file", name)
			l.doomed = append(l.doomed, name)
			continue
		}
		s := &segment{header: h, size: size, written: size}
		if n := len(l.segments); n > 0 && s.follows(l.segments[n-1]) {
			former := l.segments[n-1]
			former.size, former.short = min(former.size, s.formerSize), former.size < s.formerSize
		}
		l.segments = append(l.segments, s)
		l.now = max(l.now, s.began)
	}
	// Behind a hole that the checkpoint does not cover everything comes again, and with it what is missing.
	for i, s := range l.segments {
		if s.base > l.cfg.Applied && (i == 0 || !s.follows(l.segments[i-1]) || l.segments[i-1].short) {
			if i > 0 {
				l.segments[i-1].short = false
			}
			for _, late := range l.segments[i:] {
				l.doomed = append(l.doomed, late.name())
			}
			l.segments = l.segments[:i]
			break
		}
	}
	next := &segment{header: header{base: l.cfg.Applied, former: none}, known: true}
	if n := len(l.segments); n > 0 {
		last := l.segments[n-1]
		covered, now, err := l.settle(last)
		if err != nil {
			return err
		}
		l.now = max(l.now, now)
		switch {
		case covered < l.cfg.Applied:
			l.log.Warn("the feed of changes ends in front of the checkpoint: readers are told that events are gone", "feed", covered, "checkpoint", l.cfg.Applied)
			l.lost++
		case covered == last.base: // nothing is in it: it is begun anew
			next.header = last.header
			l.doomed = append(l.doomed, last.name())
			l.segments = l.segments[:n-1]
		default:
			next.header = header{base: covered, former: last.base, formerSize: last.size}
		}
	}
	next.began, next.size = max(l.now, next.began), headerSize
	l.segments = append(l.segments, next)
	l.covered, l.end = next.base, metadata.EndOf(next.base)
	l.retain()
	return nil
}

// settle finds the end of the last file of an earlier process, and makes it durable: nobody writes it again. A torn tail does not count.
func (l *Log) settle(s *segment) (covered uint64, logTime int64, err error) {
	f, err := l.disk.Open(filepath.Join(l.cfg.Dir, s.name()))
	if err != nil {
		return 0, 0, err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return 0, 0, err
	}
	covered, logTime, err = l.survey(s)
	s.damaged = false
	return max(covered, s.base), logTime, err
}

// last is the segment that grows.
func (l *Log) last() *segment { return l.segments[len(l.segments)-1] }

// Append adds the events of an entry, unless they are here. Entries come in order. It does not wait for a disk, and keeps nothing of events.
func (l *Log) Append(index uint64, logTime int64, events []metadata.Event) {
	if len(events) == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if index <= l.covered || l.closed {
		return
	}
	if len(events) > metadata.MaxEvents { // no entry is so large
		l.begin(index, logTime)
		return
	}
	l.add(index, logTime, events)
	l.end = metadata.PositionOf(index, len(events)-1)
	l.tell()
}

// tell wakes who waits.
func (l *Log) tell() {
	if l.waiting > 0 {
		close(l.more)
		l.more, l.waiting = make(chan struct{}), 0
	}
}

// add adds a record.
func (l *Log) add(index uint64, logTime int64, events []metadata.Event) {
	l.now = max(l.now, logTime)
	s := l.last()
	if s.size > headerSize && (s.size >= l.segmentSize || l.segmentTime > 0 && l.now-s.began > l.segmentTime) {
		former := s
		s = &segment{header: header{base: l.covered, began: l.now, former: former.base, formerSize: former.size}, size: headerSize, known: true}
		l.segments = append(l.segments, s)
		l.retain()
	}
	n := len(s.pieces)
	if n == 0 || s.pieces[n-1].size >= pieceSize {
		s.pieces = append(s.pieces, piece{first: index, at: s.size, data: make([]byte, 0, pieceSize+pieceSize/16)})
		n++
		l.wakeWriter()
	}
	p := &s.pieces[n-1]
	p.data = appendRecord(p.data, index, logTime, events)
	grown := int64(len(p.data)) - p.size
	p.size += grown
	p.last = index
	s.size += grown
	l.covered = index
	if l.unwritten += grown; l.unwritten > maxUnwritten {
		l.lose()
	}
}

// wakeWriter is called with mu held.
func (l *Log) wakeWriter() {
	if l.closed {
		return
	}
	select {
	case l.due <- struct{}{}:
	default:
	}
}

// begin goes on behind an entry, with nothing of what lies between.
func (l *Log) begin(base uint64, logTime int64) {
	l.lost++
	l.covered, l.end, l.now = base, metadata.EndOf(base), max(l.now, logTime)
	if n := len(l.segments); n > 0 {
		if s := l.last(); s.size == headerSize && s != l.writing && s.written == 0 {
			l.segments = l.segments[:n-1]
		}
	}
	l.segments = append(l.segments, &segment{header: header{base: base, began: l.now, former: none}, size: headerSize, known: true})
	l.tell()
}

// lose gives up what waits for the disk.
func (l *Log) lose() {
	l.unwritten = 0
	stay := l.segments[:0]
	for _, s := range l.segments {
		if s.written == 0 && s.size > headerSize && s != l.writing {
			continue
		}
		if s.written < s.size {
			s.size = max(s.written, headerSize)
			for n := len(s.pieces); n > 0; n = len(s.pieces) {
				p := &s.pieces[n-1]
				if p.at < s.size {
					p.cut(s.size - p.at)
					break
				}
				s.pieces = s.pieces[:n-1]
			}
		}
		stay = append(stay, s)
	}
	clear(l.segments[len(stay):])
	l.segments = stay
	base := l.covered
	l.lost++
	l.end = max(l.end, metadata.EndOf(base))
	l.segments = append(l.segments, &segment{header: header{base: base, began: l.now, former: none}, size: headerSize, known: true})
}

// cut leaves the first bytes of a piece in memory, where a record ends.
func (p *piece) cut(size int64) {
	if size >= p.size {
		return
	}
	p.size, p.data = size, p.data[:size]
	for rest := p.data; len(rest) > 0; {
		payload, n := payloadAt(rest)
		if n == 0 {
			break
		}
		h, _ := readHead(&reader{b: payload})
		p.last, rest = h.index, rest[n:]
	}
}

// Reset says that the state was replaced by that of an entry. If that is ahead, what lies between never comes. If it is behind, it may be of a group
// that was made anew, in which other entries have the numbers that were known here: everything goes, and what is behind the entry comes.
func (l *Log) Reset(index uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || index == l.covered {
		return
	}
	for index < l.covered && len(l.segments) > 0 {
		l.drop()
	}
	l.begin(index, l.now)
}

// retain forgets the oldest segments that are too much, or too old.
func (l *Log) retain() {
	var all int64
	for _, s := range l.segments {
		all += s.size
	}
	for len(l.segments) > 1 {
		old := l.cfg.Age > 0 && l.now-l.segments[1].began > l.cfg.Age.Milliseconds()
		if all <= l.cfg.Bytes && !old {
			return
		}
		all -= l.segments[0].size
		l.drop()
	}
}

// drop forgets the oldest segment.
func (l *Log) drop() {
	s := l.segments[0]
	l.unwritten -= s.size - max(s.written, headerSize)
	if s.written > 0 || s == l.writing {
		l.doomed = append(l.doomed, s.name())
	}
	l.segments = slices.Delete(l.segments, 0, 1)
	l.wakeWriter()
}

// Sync makes all events of entries up to index durable: after that they need not come again.
func (l *Log) Sync(index uint64) error {
	l.mu.Lock()
	if index > l.covered && !l.closed {
		l.add(index, l.now, nil) // those up to it had none
	}
	l.mu.Unlock()
	return l.flush(true)
}

// Close writes what waits and ends the writer. Who waits for events is told.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.tell()
	close(l.due)
	l.mu.Unlock()
	<-l.done
	err := l.flush(true)
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	if l.file != nil {
		err = errors.Join(err, l.file.Close())
		l.file, l.open = nil, nil
	}
	return err
}

// Figures are what there is to say of a feed.
type Figures struct {
	// Oldest is the position behind which nothing is missing but for gaps, Newest that of the last event.
	Oldest, Newest metadata.Position
	Bytes          int64
	// Waiting is how many bytes wait for the disk.
	Waiting int64
	// Gaps is how often events were lost since the start, of a disk that was full or slow, or because the state was pulled from another member.
	Gaps int64
}

// Figures says them.
func (l *Log) Figures() Figures {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := Figures{Oldest: metadata.EndOf(l.segments[0].base), Newest: l.end, Waiting: l.unwritten, Gaps: l.lost}
	for _, s := range l.segments {
		f.Bytes += s.size
	}
	return f
}

var _ io.Closer = (*Log)(nil)
