package smallfile

import (
	"crypto/rand"
	"encoding/binary"
	"io/fs"
	"math"
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
)

// building is a segment that is being written. end is where the next record goes, high up to where something may have been written.
type building struct {
	*segment
	file      *handle
	entries   []entry
	end, high int64
	// synced: everything is durable. broken: a sync has failed, and what it was to make durable may be lost whatever the next one says.
	synced, broken bool
}

// sync makes what was written durable.
func (b *building) sync() error {
	err := b.file.Sync()
	b.synced, b.broken = err == nil, b.broken || err != nil
	return err
}

func randomSalt() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails (crypto/rand)
	return binary.LittleEndian.Uint64(b[:])
}

// create begins a segment. When it fails nothing is left of it, if the disk lets it go.
func (s *Store) create() (*building, error) {
	s.mu.Lock()
	seq := s.next
	s.next++
	s.mu.Unlock()
	f, err := s.disk.Create(s.files.path(seq))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.unnamed = true
	s.mu.Unlock()
	b := &building{segment: &segment{seq: seq, salt: s.salt()}, end: recordsBegin, high: recordsBegin}
	b.file = s.files.add(seq, f)
	if _, err := f.WriteAt(encodeHeader(b.salt), 0); err != nil {
		s.abandon(b)
		return nil, err
	}
	return b, nil
}

// abandon removes a segment with nothing in it that is needed.
func (s *Store) abandon(b *building) {
	s.files.drop(b.seq)
	s.files.release(b.file)
	s.remove(b.seq)
}

// remove removes a file. One that cannot be removed is found by the next start.
func (s *Store) remove(seq uint64) {
	if err := s.disk.Remove(s.files.path(seq)); err != nil {
		s.log.Warn("a segment of small files cannot be removed; what it has is not needed", "file", segmentName(seq), "error", err)
	}
}

// put writes records at the end. Until it succeeds nothing has changed, but bytes behind the end.
func (b *building) put(batch []pending, buffer *[]byte) ([]entry, error) {
	buf := (*buffer)[:0]
	first := len(b.entries)
	entries := b.entries
	for i := range batch {
		p := &batch[i]
		e := entry{id: p.id, at: uint32(b.end + int64(len(buf))), length: uint32(len(p.body)), lost: p.body == nil}
		if e.lost {
			e.length = p.lost
		}
		entries = append(entries, e)
		buf = appendRecord(buf, b.salt, e.at, p)
	}
	*buffer = buf
	end := b.end + int64(len(buf))
	b.high, b.synced = max(b.high, end), false
	if _, err := b.file.WriteAt(buf, b.end); err != nil {
		return nil, err
	}
	b.entries, b.end = entries, end
	return entries[first:], nil
}

// finish makes everything durable and writes the footer, behind whatever may have been written. The segment has its index then. A footer comes behind
// a sync of the records, so that none is believed that tells of what the disk has lost.
func (b *building) finish() error {
	if err := b.sync(); err != nil {
		return err
	}
	b.settle()
	footer := b.encodeFooter(b.salt, b.high)
	if _, err := b.file.WriteAt(footer, b.high); err != nil {
		return err
	}
	b.bytes = b.high + int64(len(footer))
	return b.sync()
}

// settle makes the index. What is behind another record of the same id is dead.
func (b *building) settle() {
	b.index = newIndex(b.entries)
	var size int64
	for i := range b.len() {
		e := b.entry(i)
		size += e.size()
	}
	b.dead.Store(max(b.high-recordsBegin-size, 0))
}

// write is the writer: it writes what waits, when there is much of it, and goes on by itself after a disk that refuses.
func (s *Store) write() {
	defer close(s.done)
	for {
		select {
		case <-s.due:
		case <-s.stop:
			return
		}
		for {
			s.ioMu.Lock()
			err := s.flush(math.MaxInt)
			s.ioMu.Unlock()
			if err == nil {
				break
			}
			s.complain(err)
			select {
			case <-time.After(s.pause):
			case <-s.stop:
				return
			}
		}
	}
}

// complain says, once a minute at most, that the disk is in trouble.
func (s *Store) complain(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.warned) < warnEvery {
		return
	}
	s.warned = time.Now()
	s.log.Error("bodies of small files cannot be written: they wait in memory, and are tried again; when there are too many the namenode waits",
		"error", err, "waiting", s.unwritten, "at most", s.limit)
}

// flush writes what waits, up to so many bodies. What cannot be written goes on waiting.
func (s *Store) flush(most int) error {
	for {
		s.mu.RLock()
		batch := s.queue[:s.cut(s.queue[:min(len(s.queue), max(most, 0))])]
		s.mu.RUnlock()
		if len(batch) == 0 {
			return nil
		}
		if err := s.append(batch); err != nil {
			return err
		}
		s.mu.Lock()
		for i := range batch {
			s.unwritten -= batch[i].cost()
		}
		clear(batch) // the bodies
		if s.queue = s.queue[len(batch):]; len(s.queue) == 0 {
			s.queue = nil
		}
		s.room.Broadcast()
		s.mu.Unlock()
		most -= len(batch)
	}
}

// cut is how many of some bodies are written at once: no more than the segment takes, about.
func (s *Store) cut(queue []pending) int {
	most, records := min(batchBytes, s.cfg.SegmentBytes), s.records
	if a := s.active; a != nil && a.end < s.cfg.SegmentBytes && len(a.entries) < s.records {
		most, records = min(most, s.cfg.SegmentBytes-a.end), s.records-len(a.entries)
	}
	queue = queue[:min(len(queue), records)]
	var size int64
	for i := range queue {
		if size += int64(len(queue[i].body)) + recordHeader; size >= most {
			return i + 1
		}
	}
	return len(queue)
}

// append writes bodies into the active segment, which it begins if need be. It is called with ioMu held.
func (s *Store) append(batch []pending) error {
	if s.cfg.Room != nil {
		if err := s.cfg.Room(); err != nil {
			return err
		}
	}
	if a := s.active; a != nil && (a.end >= s.cfg.SegmentBytes || len(a.entries) >= s.records) {
		if err := s.seal(); err != nil {
			return err
		}
	}
	if s.active == nil {
		b, err := s.create()
		if err != nil {
			return err
		}
		s.active = b
	}
	a := s.active
	entries, err := a.put(batch, &s.buffer)
	if err != nil {
		if !full(err) {
			s.retire(err)
		}
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.growing, s.grows = a.end, a.segment
	for _, e := range entries {
		f, ok := s.fresh[e.id]
		if ok && e.lost {
			continue // it was put again
		}
		f.body, f.place = nil, place{a.segment, e}
		s.fresh[e.id] = f
	}
	return nil
}

// seal ends the active segment.
func (s *Store) seal() error {
	err := s.active.finish()
	switch {
	case err == nil:
		s.publish()
	case !full(err) || s.active.broken:
		s.retire(err)
	}
	return err
}

// retire gives up writing into a segment after an error of the disk: what was not synced of it may be lost, also if a later sync should succeed. The next
// Sync copies what can still be read.
func (s *Store) retire(err error) {
	a := s.active
	s.log.Error("a segment of small files cannot be written, and is copied to another one", "file", segmentName(a.seq), "error", err)
	if len(a.entries) == 0 {
		s.active = nil
		s.abandon(a)
		return
	}
	a.suspect = true
	a.settle()
	a.bytes = a.high
	s.publish()
}

// publish moves the active segment to the table.
func (s *Store) publish() {
	a := s.active
	s.active = nil
	s.mu.Lock()
	defer s.mu.Unlock()
	s.segments = append(s.segments, a.segment)
	s.table = newTable(s.segments)
	s.growing, s.grows = 0, nil
	for i := range a.len() {
		f, ok := s.fresh[a.ids[i]]
		if !ok || f.segment != a.segment {
			continue
		}
		if f.removed {
			a.dead.Add(f.size())
		}
		if f.body == nil {
			delete(s.fresh, a.ids[i])
		}
	}
	s.files.release(a.file)
}

// Sync makes everything durable that was put before, and copies segments that a crash or an error of the disk has left. Errors: metadata.ErrNoSpace;
// metadata.ErrCorrupt, when bodies that were put since the last Sync cannot be read any more after an error of the disk, until they are put again; those
// of the disk; fs.ErrClosed. What is not durable waits, and the next Sync tries again. It waits as long as the disk does not answer.
func (s *Store) Sync() error {
	s.mu.RLock()
	closed := s.closed
	s.mu.RUnlock()
	if closed { // and Put does nothing any more
		return fs.ErrClosed
	}
	s.ioMu.Lock()
	defer s.ioMu.Unlock()
	return s.refused(s.sync())
}

func (s *Store) sync() error {
	s.mu.RLock()
	waits := len(s.queue)
	s.mu.RUnlock()
	if err := s.flush(waits); err != nil {
		return err
	}
	suspects := s.suspects()
	defer s.mark(suspects, false)
	for _, g := range suspects {
		if err := s.rescue(g); err != nil {
			return err
		}
	}
	if a := s.active; a != nil && !a.synced {
		if err := a.sync(); err != nil {
			s.retire(err)
			return err
		}
	}
	if err := s.syncNames(); err != nil {
		return err
	}
	s.replace(suspects, nil)
	s.mu.RLock()
	defer s.mu.RUnlock()
	for id := range s.owed {
		return metadata.Errorf(metadata.ErrCorrupt, "%d bodies of small files, %d among them, were lost by the disk before they were durable: they have to come from another namenode, or from the log at a restart", len(s.owed), id)
	}
	return nil
}

// syncNames makes names of segments durable.
func (s *Store) syncNames() error {
	s.namesMu.Lock()
	defer s.namesMu.Unlock()
	s.mu.Lock()
	unnamed := s.unnamed
	s.unnamed = false
	s.mu.Unlock()
	if !unnamed {
		return nil
	}
	err := s.disk.SyncDir(s.cfg.Dir)
	if err != nil {
		s.mu.Lock()
		s.unnamed = true
		s.mu.Unlock()
	}
	return err
}

// replace takes segments out of the table, and their files away.
func (s *Store) replace(old []*segment, by *segment) {
	if len(old) == 0 {
		return
	}
	s.mu.Lock()
	s.exchange(old, by)
	s.mu.Unlock()
	s.discard(old)
}

// exchange changes the table. It is called with mu held.
func (s *Store) exchange(old []*segment, by *segment) {
	s.segments = slices.DeleteFunc(slices.Clone(s.segments), func(g *segment) bool { return slices.Contains(old, g) })
	if by != nil {
		s.segments = append(s.segments, by)
	}
	s.table = newTable(s.segments)
}

// discard removes files of segments that are not in the table any more. Who reads them finishes; who opens one that is removed already finds none.
func (s *Store) discard(old []*segment) {
	for _, g := range old {
		s.remove(g.seq)
		s.files.drop(g.seq)
	}
}
