package smallfile

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

const (
	// maxOpen is how many segments that nobody reads stay open.
	maxOpen = 256
	// pieceBytes is how much GetMany reads at once at most, gapBytes over how much that nobody wants.
	pieceBytes = 256 << 10
	gapBytes   = 8 << 10
	lookAtOnce = 256
)

// files are the open segments. One that is removed is closed when its last reader has finished.
type files struct {
	disk journal.Disk
	dir  string
	mu   sync.Mutex
	open map[uint64]*handle
	// opening are the segments that somebody is about to open.
	opening map[uint64]*opening
}

// opening is a segment that some readers are about to open. gone: it was removed meanwhile, so nobody keeps it open who has come in time.
type opening struct {
	readers int
	gone    bool
}

type handle struct {
	journal.File
	seq     uint64
	users   int
	removed bool
}

func (f *files) path(seq uint64) string { return filepath.Join(f.dir, segmentName(seq)) }

// opened is take of one that is open; nil: it is not.
func (f *files) opened(seq uint64) *handle {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.open[seq]
	if h != nil {
		h.users++
	}
	return h
}

// take opens a segment, unless it is open. fs.ErrNotExist: it was removed.
func (f *files) take(seq uint64) (*handle, error) {
	if h := f.opened(seq); h != nil {
		return h, nil
	}
	f.mu.Lock()
	o := f.opening[seq]
	if o == nil {
		o = &opening{}
		f.opening[seq] = o
	}
	o.readers++
	f.mu.Unlock()
	file, err := f.disk.Open(f.path(seq))
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.readers--; o.readers == 0 {
		delete(f.opening, seq)
	}
	if err != nil {
		return nil, err
	}
	return f.keep(seq, file, o.gone), nil
}

// add takes a file that was made.
func (f *files) add(seq uint64, file journal.File) *handle {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.keep(seq, file, false)
}

// keep takes an open file, or the one that is there meanwhile. One that is gone is closed when who has opened it has finished. It is called with mu held.
func (f *files) keep(seq uint64, file journal.File, gone bool) *handle {
	if h := f.open[seq]; h != nil {
		file.Close()
		h.users++
		return h
	}
	h := &handle{File: file, seq: seq, users: 1, removed: gone}
	if gone {
		return h
	}
	for old, h := range f.open {
		if len(f.open) < maxOpen {
			break
		}
		if h.users == 0 {
			h.Close()
			delete(f.open, old)
		}
	}
	f.open[seq] = h
	return h
}

func (f *files) release(h *handle) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.users--; h.users == 0 && h.removed {
		h.Close()
	}
}

// drop forgets a segment that was removed.
func (f *files) drop(seq uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o := f.opening[seq]; o != nil {
		o.gone = true
	}
	if h := f.open[seq]; h != nil {
		f.forget(h)
	}
}

func (f *files) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, o := range f.opening {
		o.gone = true
	}
	for _, h := range f.open {
		f.forget(h)
	}
}

// forget closes an open segment when its last reader has finished. It is called with mu held.
func (f *files) forget(h *handle) {
	delete(f.open, h.seq)
	if h.removed = true; h.users == 0 {
		h.Close()
	}
}

// Get returns a body, which nobody may change. Errors: fs.ErrNotExist; metadata.ErrCorrupt, when what is on the disk is not what was put: Put replaces
// it, and syscall.EIO too when the disk could not read it, which may pass; those of a process that has no descriptor or memory left.
func (s *Store) Get(id metadata.BlockID) ([]byte, error) {
	for {
		s.mu.RLock()
		body, t := s.fresh[id].body, s.table
		var buffer [4]place
		found := buffer[:0]
		if body == nil {
			found = s.places(id, found)
		}
		_, bad := s.damaged[id]
		s.mu.RUnlock()
		if body != nil {
			return body, nil
		}
		var last error
		gone := false
		for _, p := range found {
			body, err := s.fetch(p)
			if err == nil {
				if bad {
					s.healed(id)
				}
				return body, nil
			}
			p.wear(err)
			gone = gone || errors.Is(err, fs.ErrNotExist)
			last = err
		}
		switch {
		case gone && s.moved(t):
		case last == nil && !bad:
			return nil, metadata.Errorf(metadata.ErrNotExist, "the body %d of a small file is not here", id)
		case last == nil:
			return nil, corrupt(id, "", errDamaged)
		case damage(last):
			p := found[len(found)-1]
			s.spoil(id, p, last)
			return nil, corrupt(id, segmentName(p.seq), last)
		default:
			return nil, last
		}
	}
}

// GetNow is Get of a body that can be had without waiting for a disk, because it is in memory: here, where it waits to be written, or in that of the operating system. False: this one
// cannot, or it is damaged, or not here; Get tells.
func (s *Store) GetNow(id metadata.BlockID) ([]byte, bool) {
	s.mu.RLock()
	body := s.fresh[id].body
	var buffer [4]place
	found := buffer[:0]
	if _, bad := s.damaged[id]; body == nil && !bad {
		found = s.places(id, found)
	}
	s.mu.RUnlock()
	if body != nil {
		return body, true
	}
	if len(found) == 0 {
		return nil, false
	}
	p := found[0]
	h := s.files.opened(p.seq)
	if h == nil {
		return nil, false
	}
	defer s.files.release(h)
	f, ok := h.File.(interface {
		ReadNow(b []byte, at int64) (int, error)
	})
	if !ok {
		return nil, false
	}
	b := make([]byte, p.size())
	n, err := f.ReadNow(b, int64(p.at))
	if err != nil {
		return nil, false
	}
	body, err = bodyAt(b[:n], p.salt, p.at, p.id)
	return body, err == nil
}

func corrupt(id metadata.BlockID, file string, err error) error {
	damaged := metadata.Errorf(metadata.ErrCorrupt, "the body %d of a small file is damaged here (%s): %v", id, file, err)
	if errors.Is(err, syscall.EIO) {
		return unreadError{damaged}
	}
	return damaged
}

// unreadError is the damage of what the disk could not read: it may pass.
type unreadError struct{ error }

func (e unreadError) Unwrap() []error { return []error{e.error, syscall.EIO} }

// moved reports whether there is another table: what a segment had that was removed is in another one.
func (s *Store) moved(t *table) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.table != t
}

// damage reports whether an error of reading says that the bytes are not what was written, or will not be had. Others pass.
func damage(err error) bool {
	return errors.Is(err, errDamaged) || errors.Is(err, syscall.EIO) || errors.Is(err, fs.ErrNotExist)
}

// spoil notes that a body is damaged, and that its segment is, where the bytes are other ones.
func (s *Store) spoil(id metadata.BlockID, p place, err error) {
	p.wear(err)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.damaged[id]; known || s.fresh[id].body != nil {
		return
	}
	s.damaged[id] = struct{}{}
	s.log.Error("the body of a small file is damaged; it has to come from another namenode", "id", id, "file", segmentName(p.seq), "at", p.at, "error", err)
}

// healed notes that a body could be read after all.
func (s *Store) healed(id metadata.BlockID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.damaged, id)
}

// fetch reads one body.
func (s *Store) fetch(p place) ([]byte, error) {
	h, err := s.files.take(p.seq)
	if err != nil {
		return nil, err
	}
	defer s.files.release(h)
	b := make([]byte, p.size())
	n, err := h.ReadAt(b, int64(p.at))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return bodyAt(b[:n], p.salt, p.at, p.id)
}

// wanted is a body to be read, for the caller's ith id.
type wanted struct {
	place
	i int
}

// GetMany calls each with the body, or the error, of every id, i being its place in ids: as Get would return it, but in the order in which bodies lie
// on the disk, with few reads. A body stays in memory with its neighbours, 256 KiB at most, as long as somebody keeps it; who keeps all of them keeps no
// more than twice what they have.
func (s *Store) GetMany(ids []metadata.BlockID, each func(i int, body []byte, err error)) {
	var want []wanted
	type now struct {
		i    int
		body []byte
	}
	var have []now
	var found [4]place
	s.mu.RLock()
	for i, id := range ids {
		if i%lookAtOnce == lookAtOnce-1 { // who puts does not wait for a long list
			s.mu.RUnlock()
			s.mu.RLock()
		}
		if f, ok := s.fresh[id]; ok && f.body != nil {
			have = append(have, now{i, f.body})
		} else if found := s.places(id, found[:0]); len(found) > 0 {
			want = append(want, wanted{found[0], i})
		} else {
			have = append(have, now{i, nil})
		}
	}
	s.mu.RUnlock()
	for _, h := range have {
		var err error
		if h.body == nil {
			h.body, err = s.Get(ids[h.i])
		}
		each(h.i, h.body, err)
	}
	s.gather(want, func(w wanted, body []byte, err error) {
		if err != nil { // another copy, or the error in Get's words
			body, err = s.Get(w.id)
		}
		each(w.i, body, err)
	})
}

// gather reads bodies in the order in which they lie, neighbours at once. Where less than half of what was read is wanted each gets memory of its own.
func (s *Store) gather(want []wanted, each func(w wanted, body []byte, err error)) {
	slices.SortFunc(want, func(a, b wanted) int { return cmp.Or(cmp.Compare(a.seq, b.seq), cmp.Compare(a.at, b.at)) })
	for len(want) > 0 {
		first := want[0]
		start, end := int64(first.at), int64(first.at)+first.size()
		n, size := 1, first.size()
		for n < len(want) && want[n].seq == first.seq {
			at, to := int64(want[n].at), int64(want[n].at)+want[n].size()
			if at-end > gapBytes || to-start > pieceBytes {
				break
			}
			size += max(to-max(at, end), 0)
			end = max(end, to)
			n++
		}
		piece, err := s.piece(first.segment, start, end)
		for _, w := range want[:n] {
			var body []byte
			fault := err
			if fault == nil {
				b := piece[min(int64(w.at)-start, int64(len(piece))):]
				if body, fault = bodyAt(b, w.salt, w.at, w.id); 2*size < end-start {
					body = bytes.Clone(body)
				}
			}
			each(w, body, fault)
		}
		want = want[n:]
	}
}

func (s *Store) piece(g *segment, from, to int64) ([]byte, error) {
	h, err := s.files.take(g.seq)
	if err != nil {
		return nil, err
	}
	defer s.files.release(h)
	b := make([]byte, to-from)
	n, err := h.ReadAt(b, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return b[:n], nil
}
