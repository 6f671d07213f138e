package smallfile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gohops/hops/metadata"
)

// scrubFile says how far a pass has come. It is replaced by rename and not synced: what a crash takes of it is verified twice.
const scrubFile = "SCRUB"

// maxScrubFile is how long that file is at most, in bytes.
const maxScrubFile = 256

// Pass is how far the verification of all segments has come. The zero value is that there was none.
type Pass struct {
	Begun time.Time
	// After is the sequence of the last segment that was verified, Last that of the last one of the pass: what is written later is for the next.
	After, Last uint64
	Done        bool
}

// Scrubbed is what a step of a pass has done. Damaged are bodies that live and that this Store does not have sound anywhere; they are in Figures and
// Damaged from then on.
type Scrubbed struct {
	Records, Bytes int64
	Damaged        int
}

// NewPass begins a pass over all segments that are there.
func (s *Store) NewPass(now time.Time) Pass {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return Pass{Begun: now, Last: s.next - 1}
}

// LastPass is how far the last pass has come, over restarts. Errors: metadata.ErrCorrupt; those of ctx and of the disk.
func (s *Store) LastPass(ctx context.Context) (Pass, error) {
	var p Pass
	var fault error
	if err := unless(ctx, func() { p, fault = s.loadPass() }); err != nil {
		return Pass{}, err
	}
	return p, fault
}

func (s *Store) loadPass() (p Pass, err error) {
	f, err := s.disk.Open(filepath.Join(s.cfg.Dir, scrubFile))
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return p, err
	}
	defer f.Close()
	size, err := f.Size()
	b := make([]byte, min(size, maxScrubFile))
	if err == nil {
		err = readFull(f, b, 0)
	}
	if err != nil {
		return p, err
	}
	text, sum, _ := strings.Cut(string(b), "crc32c=")
	var begun int64
	_, err = fmt.Sscanf(text, "begun=%d\nafter=%d\nlast=%d\ndone=%t\n", &begun, &p.After, &p.Last, &p.Done)
	if err != nil || strings.TrimSpace(sum) != fmt.Sprintf("%08x", crc32.Checksum([]byte(text), castagnoli)) {
		return Pass{}, metadata.Errorf(metadata.ErrCorrupt, "%s in %s is damaged", scrubFile, s.cfg.Dir)
	}
	p.Begun = time.Unix(begun, 0)
	return p, nil
}

func (s *Store) savePass(p Pass) error {
	text := fmt.Sprintf("begun=%d\nafter=%d\nlast=%d\ndone=%t\n", p.Begun.Unix(), p.After, p.Last, p.Done)
	text += fmt.Sprintf("crc32c=%08x\n", crc32.Checksum([]byte(text), castagnoli))
	name := filepath.Join(s.cfg.Dir, scrubFile)
	f, err := s.disk.Create(name + ".new")
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(text), 0)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return s.disk.Rename(name+".new", name)
}

// Scrub verifies the next segment of a pass as it is on the disk, all records and both ends, and notes it in p, which is kept over restarts. pace is called
// before n bytes are read, and ends Scrub by its error. A segment in which something is damaged is one that Compact copies. It holds no lock while it reads,
// and returns when ctx is done though the disk may hang. Errors: those of ctx and pace, with p as it was; fs.ErrClosed; those of the disk that say nothing
// of the bytes, as when there are no descriptors, or that p was not kept: p has gone on then.
func (s *Store) Scrub(ctx context.Context, p *Pass, pace func(n int64) error) (done Scrubbed, err error) {
	g, entries, sealed := s.after(p.After, p.Last)
	next := *p
	var fault error
	if g == nil {
		next.Done = true
	} else {
		next.After = g.seq
		if done, fault, err = s.verify(ctx, g, entries, pace); err == nil && sealed {
			err = s.verifyEnds(ctx, g, pace)
		}
		if err != nil {
			return done, err
		}
	}
	var saved error
	if err := unless(ctx, func() { saved = s.savePass(next) }); err != nil {
		return done, err
	}
	*p = next
	return done, errors.Join(fault, saved)
}

// after finds the first segment of a range of sequences, and its bodies in the order in which they lie. One that is not sealed is being written.
func (s *Store) after(after, last uint64) (g *segment, entries []entry, sealed bool) {
	s.mu.RLock()
	in := func(o *segment) bool { return o.seq > after && o.seq <= last && (g == nil || o.seq < g.seq) }
	for _, o := range s.segments {
		if in(o) {
			g, sealed = o, true
		}
	}
	if a := s.grows; a != nil && in(a) {
		g, sealed = a, false
		for _, f := range s.fresh {
			if f.body == nil && f.segment == a {
				entries = append(entries, f.entry)
			}
		}
	}
	s.mu.RUnlock()
	if sealed {
		for i := range g.len() {
			entries = append(entries, g.entry(i))
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.at, b.at) })
	return g, entries, sealed
}

// verify reads a segment. fault is an error of the disk that says nothing of bytes.
func (s *Store) verify(ctx context.Context, g *segment, entries []entry, pace func(n int64) error) (done Scrubbed, fault, err error) {
	for len(entries) > 0 {
		var want []wanted
		var size int64
		for len(entries) > 0 && size < pieceBytes {
			if e := entries[0]; !e.lost {
				want = append(want, wanted{place: place{g, e}})
			}
			size += entries[0].size()
			entries = entries[1:]
		}
		if err := s.proceed(ctx, pace, size); err != nil {
			return done, fault, err
		}
		var bad []wanted
		if err := unless(ctx, func() { bad = s.unsound(g, want) }); err != nil {
			return done, fault, err
		}
		done.Records += int64(len(want))
		done.Bytes += size
		if len(bad) == 0 {
			continue
		}
		ids := make([]metadata.BlockID, 0, len(bad))
		for _, w := range bad {
			ids = append(ids, w.id)
		}
		for from := 0; from < len(ids); from += askAtOnce {
			turn := ids[from:min(from+askAtOnce, len(ids))]
			lives, err := s.cfg.Live(slices.Clone(turn))
			for i, id := range turn {
				if err == nil && i < len(lives) && !lives[i] {
					continue
				}
				var trouble error
				if err := unless(ctx, func() { _, trouble = s.Get(id) }); err != nil {
					return done, fault, err
				}
				switch {
				case trouble == nil || errors.Is(trouble, fs.ErrNotExist): // elsewhere, or gone meanwhile
				case errors.Is(trouble, metadata.ErrCorrupt):
					done.Damaged++
				default:
					fault = trouble
				}
			}
		}
	}
	return done, fault, nil
}

func (s *Store) proceed(ctx context.Context, pace func(n int64) error, n int64) error {
	if err := s.wait(ctx, 0); err != nil {
		return err
	}
	return pace(n)
}

// unsound reads neighbours from the disk, and returns those that are not what was written, or cannot be read.
func (s *Store) unsound(g *segment, want []wanted) (bad []wanted) {
	if len(want) == 0 {
		return nil
	}
	last := want[len(want)-1]
	s.forget(g, int64(want[0].at), int64(last.at)+last.size())
	s.gather(want, func(w wanted, _ []byte, err error) {
		if err == nil {
			return
		}
		g.wear(err)
		bad = append(bad, w)
	})
	return bad
}

// verifyEnds looks at what is in front of the records of a segment and behind them.
func (s *Store) verifyEnds(ctx context.Context, g *segment, pace func(n int64) error) error {
	s.mu.RLock()
	copied := g.suspect || g.victim
	s.mu.RUnlock()
	if copied {
		return nil
	}
	size := int64(g.len())*indexEntry + trailerSize
	if err := s.proceed(ctx, pace, recordsBegin+size); err != nil {
		return err
	}
	return unless(ctx, func() {
		err := s.isAt(g, 0, encodeHeader(g.salt))
		if err == nil {
			err = s.isAt(g, g.bytes-size, g.encodeFooter(g.salt, g.bytes-size))
		}
		if errors.Is(err, errDamaged) || errors.Is(err, syscall.EIO) {
			g.worn.Store(true)
			s.log.Warn("the index of a segment of small files is damaged on the disk: it is copied to another one", "file", segmentName(g.seq), "error", err)
		}
	})
}

// isAt reports whether some bytes are on the disk at a place. Errors: errDamaged; those of the disk.
func (s *Store) isAt(g *segment, at int64, content []byte) error {
	end := at + int64(len(content))
	s.forget(g, at, end)
	b, err := s.piece(g, at, end)
	if err == nil && !bytes.Equal(b, content) {
		err = errDamaged
	}
	return err
}

// forget has what is read next come from the disk, where the disk's files know how.
func (s *Store) forget(g *segment, from, to int64) {
	h, err := s.files.take(g.seq)
	if err != nil {
		return // who reads finds that
	}
	defer s.files.release(h)
	if f, ok := h.File.(interface{ Forget(from, n int64) }); ok {
		f.Forget(from, to-from)
	}
}

// unless runs f, and gives it up when ctx is done: where a disk hangs f ends by itself later, and nobody looks at what it has found.
func unless(ctx context.Context, f func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
