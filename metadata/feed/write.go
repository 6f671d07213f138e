package feed

import (
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/gohops/hops/metadata"
)

// write is the writer: it puts into files what waits, when there is a piece of it.
func (l *Log) write() {
	defer close(l.done)
	for range l.due {
		l.failed(l.flush(false))
	}
}

// failed says, once a minute at most, that the disk is in trouble.
func (l *Log) failed(err error) {
	if err == nil {
		return
	}
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	if time.Since(l.warned) < warnEvery {
		return
	}
	l.warned = time.Now()
	l.log.Warn("the feed of changes cannot be written; the namespace goes on. Events wait in memory, then they are lost and readers are told", "error", err, "bytes", maxUnwritten)
}

// flush writes what waits; with durable it is durable then. What cannot be written goes on waiting.
func (l *Log) flush(durable bool) error {
	l.ioMu.Lock()
	defer l.ioMu.Unlock()
	var err error
	for again := true; again; {
		if err := l.tidy(); err != nil {
			return err
		}
		again, err = l.fill()
	}
	if err == nil && durable {
		if l.file != nil {
			err = l.file.Sync()
		}
		if err == nil && l.unnamed {
			if err = l.disk.SyncDir(l.cfg.Dir); err == nil {
				l.unnamed = false
			}
		}
	}
	if full(err) && time.Since(l.gave) >= l.pause {
		// The oldest events make room for the newest. One file at a time: others free space as well, and that shows with delay.
		l.mu.Lock()
		if len(l.segments) > 1 && l.segments[0].written > 0 && l.segments[0] != l.open {
			l.gave = time.Now()
			l.drop()
		}
		l.mu.Unlock()
	}
	return err
}

// tidy lets go of what is to go.
func (l *Log) tidy() error {
	l.mu.Lock()
	doomed := l.doomed
	l.doomed = nil
	gone := l.open != nil && !slices.Contains(l.segments, l.open)
	l.mu.Unlock()
	if gone {
		l.file.Close()
		l.open, l.file = nil, nil
	}
	err := l.removeOld(doomed)
	if err != nil {
		l.mu.Lock()
		l.doomed = append(l.doomed, doomed...)
		l.mu.Unlock()
	}
	return err
}

// removeOld removes files for good: their names may be used again, and after a power cut the old one would stand in front of what followed the new one.
func (l *Log) removeOld(doomed []string) error {
	if len(doomed) == 0 {
		return nil
	}
	for _, name := range doomed {
		// One that cannot be removed is looked at again at the next start.
		if err := l.disk.Remove(filepath.Join(l.cfg.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			l.log.Warn("an old file of the feed of changes cannot be removed", "file", name, "error", err)
		}
	}
	return l.disk.SyncDir(l.cfg.Dir)
}

func full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, metadata.ErrNoSpace)
}

// fill writes what waits, segment after segment, until there is no more, or something is to go first.
func (l *Log) fill() (again bool, err error) {
	for {
		s, at, parts, again := l.waits()
		if s == nil {
			return again, nil
		}
		err := l.put(s, at, parts)
		var size int64
		for _, part := range parts {
			size += int64(len(part))
		}
		l.mu.Lock()
		l.writing = nil
		if err == nil {
			before := s.written
			s.written = max(min(s.size, at+size), headerSize)
			l.unwritten = max(l.unwritten-(s.written-max(before, headerSize)), 0)
			l.forget()
		}
		l.mu.Unlock()
		if err != nil {
			return false, err
		}
	}
}

// waits is the first segment of which something is not in a file, from where on, and what; none while there are files to go, which may have its name.
func (l *Log) waits() (s *segment, at int64, parts [][]byte, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.doomed) > 0 {
		return nil, 0, nil, true
	}
	for _, s := range l.segments {
		if s.written >= s.size || s.size == headerSize {
			continue
		}
		at := max(s.written, headerSize)
		for _, p := range s.pieces {
			if end := p.at + p.size; end > at {
				parts = append(parts, p.data[max(at-p.at, 0):p.size:p.size])
			}
		}
		l.writing = s
		return s, at, parts, false
	}
	return nil, 0, nil, false
}

// put writes into the file of a segment, which it makes if need be. The file before is durable then, so that only the last one can be torn.
func (l *Log) put(s *segment, at int64, parts [][]byte) error {
	if l.cfg.Room != nil {
		if err := l.cfg.Room(); err != nil {
			return err
		}
	}
	if l.open != s {
		if l.file != nil {
			if err := l.file.Sync(); err != nil {
				// What is not there after a power cut is found missing when it is read.
				l.log.Warn("a file of the feed of changes may not be durable", "file", l.open.name(), "error", err)
			}
			l.file.Close()
			l.file, l.open = nil, nil
		}
		f, err := l.disk.Create(filepath.Join(l.cfg.Dir, s.name()))
		if err != nil {
			return err
		}
		l.file, l.open, l.unnamed = f, s, true
		if _, err := f.WriteAt(s.encode(), 0); err != nil {
			l.file.Close()
			l.file, l.open = nil, nil
			return err
		}
	}
	for _, part := range parts {
		if _, err := l.file.WriteAt(part, at); err != nil {
			return err
		}
		at += int64(len(part))
	}
	return nil
}

// forget lets pieces go that are in a file, but for the newest.
func (l *Log) forget() {
	kept := 0
	for i := len(l.segments) - 1; i >= 0; i-- {
		s := l.segments[i]
		for j := len(s.pieces) - 1; j >= 0; j-- {
			p := &s.pieces[j]
			if p.data == nil {
				return // all before were let go
			}
			if kept++; kept > keptPieces && p.at+p.size <= s.written {
				p.data = nil
			}
		}
	}
}
