package feed

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gohops/hops/metadata"
)

// End is the position behind the last event.
func (l *Log) End() metadata.Position {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Read returns the events behind a position: up to a number of them, and no more once they take so many bytes of memory, about. A page without
// events is of the end of the feed. Where events are missing a page ends, and the next one begins behind them and says so.
//
// Errors: those of reading the files, which may pass; what cannot be read for a minute is missing.
func (l *Log) Read(after metadata.Position, events, bytes int) (metadata.EventPage, error) {
	page := metadata.EventPage{From: after, Next: after}
	pos := max(after, metadata.EndOf(0)) // there is no entry 0
	for {
		p, err := l.find(pos)
		if err != nil {
			return page, partly(&page, err)
		}
		if p.gone > pos {
			if len(page.Events) > 0 {
				return page, nil
			}
			pos, page.Missing, page.From, page.Next = p.gone, true, p.gone, p.gone
		}
		if p.segment == nil {
			page.Next = max(page.Next, p.end)
			return page, nil
		}
		data, err := l.fetch(p)
		if err != nil && !l.believe(p, err) {
			return page, partly(&page, err)
		}
		for err == nil && len(data) > 0 {
			payload, size := payloadAt(data)
			if size == 0 {
				err = errDamaged
				break
			}
			data = data[size:]
			r := &reader{b: payload}
			if h, _ := readHead(r); metadata.EndOf(h.index) <= pos {
				continue
			}
			filled := false
			err = decode(payload, func(e metadata.Event) bool {
				if e.Position <= pos {
					return true
				}
				// What belongs to one operation stays together.
				if filled = !e.Continued && len(page.Events) > 0 && (len(page.Events) >= events || bytes <= 0); filled {
					return false
				}
				bytes -= sizeOf(&e)
				page.Events = append(page.Events, e)
				page.Next, pos = e.Position, e.Position
				return true
			})
			if filled {
				return page, nil
			}
		}
		if err != nil {
			l.spoil(p, err)
			continue
		}
		pos = max(pos, metadata.EndOf(p.piece.last))
	}
}

// partly is the error of a page: what was read in front of it comes first.
func partly(page *metadata.EventPage, err error) error {
	if len(page.Events) > 0 {
		return nil
	}
	return err
}

// sizeOf is about how many bytes an event takes in memory.
func sizeOf(e *metadata.Event) int {
	size := 320 + len(e.Path) + len(e.Target) + 40*len(e.ACL)
	for _, x := range e.XAttrs {
		size += 48 + len(x.Name) + len(x.Value)
	}
	return size
}

// place is a piece of a segment.
type place struct {
	segment *segment
	piece   piece
	// gone is behind which position there are events again, where those behind the one that was looked for are missing; else 0.
	gone metadata.Position
	// end is up to where there are no more events, where there is no segment: it is the end of the feed.
	end metadata.Position
}

// find finds the piece with the first events behind a position. Error: that of looking for it, which may pass.
func (l *Log) find(pos metadata.Position) (place, error) {
	for {
		p, unknown := l.look(pos)
		if unknown == nil {
			return p, nil
		}
		if _, _, err := l.survey(unknown); err != nil {
			l.mu.Lock()
			stays := l.stays(&unknown.failing, err)
			if stays {
				unknown.known, unknown.damaged = true, true
			}
			l.mu.Unlock()
			if !stays {
				return p, err
			}
			if !errors.Is(err, fs.ErrNotExist) { // one that is too old by now
				l.log.Warn("a file of the feed of changes cannot be read: readers are told that its events are gone", "file", unknown.name(), "error", err)
			}
		}
	}
}

// stays reports whether an error of reading does not pass, and notes since when there is one. It is called with mu held.
func (l *Log) stays(since *time.Time, err error) bool {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ENOMEM):
		return false
	}
	if since.IsZero() {
		*since = time.Now()
		return false
	}
	return time.Since(*since) >= l.patience
}

// believe is stays for a piece.
func (l *Log) believe(p place, err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range p.segment.pieces {
		if have := &p.segment.pieces[i]; have.at == p.piece.at {
			return l.stays(&have.failing, err)
		}
	}
	return true // it was too old
}

// look is find as far as the pieces of the segments are known.
func (l *Log) look(pos metadata.Position) (at place, unknown *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i, _ := slices.BinarySearchFunc(l.segments, pos, func(s *segment, pos metadata.Position) int {
		if metadata.EndOf(s.base) <= pos {
			return -1
		}
		return 1
	})
	for i = max(i-1, 0); i < len(l.segments); i++ {
		s := l.segments[i]
		if begin := metadata.EndOf(s.base); begin > pos {
			if i == 0 || !s.follows(l.segments[i-1]) || l.segments[i-1].damaged {
				at.gone = begin
			}
			pos = begin
		}
		if !s.known {
			return at, s
		}
		for _, p := range s.pieces {
			switch {
			case metadata.EndOf(p.last) <= pos:
			case p.bad:
				pos = metadata.EndOf(p.last)
				at.gone = pos
			default:
				at.segment, at.piece = s, p
				return at, nil
			}
		}
	}
	at.end = metadata.EndOf(l.covered)
	return at, nil
}

// fetch is the bytes of a piece.
func (l *Log) fetch(p place) ([]byte, error) {
	if p.piece.data != nil {
		return p.piece.data[:p.piece.size], nil
	}
	f, err := l.disk.Open(filepath.Join(l.cfg.Dir, p.segment.name()))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data := make([]byte, p.piece.size)
	if _, err := f.ReadAt(data, p.piece.at); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if p.piece.failing.IsZero() {
		return data, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range p.segment.pieces {
		if have := &p.segment.pieces[i]; have.at == p.piece.at {
			have.failing = time.Time{}
		}
	}
	return data, nil
}

// spoil notes that a piece cannot be read.
func (l *Log) spoil(p place, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.segments, p.segment) {
		return // it was too old
	}
	for i := range p.segment.pieces {
		if have := &p.segment.pieces[i]; have.at == p.piece.at {
			have.bad = true
		}
	}
	l.log.Warn("the feed of changes is damaged: readers are told that events are gone", "file", p.segment.name(), "at", p.piece.at, "error", err)
}

// Wait waits until there are events behind a position, or it is known that they are missing. Errors: that of ctx; fs.ErrClosed.
func (l *Log) Wait(ctx context.Context, pos metadata.Position) error {
	for {
		l.mu.Lock()
		end, closed, more := l.end, l.closed, l.more
		l.waiting++
		l.mu.Unlock()
		if end > pos {
			return nil
		}
		if closed {
			return fs.ErrClosed
		}
		select {
		case <-more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
