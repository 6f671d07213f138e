package controller

import (
	"context"
	"log/slog"
	"sync"

	"github.com/gohops/hops/training/experiment"
)

// shadow is a second experiment that follows the journal, behind the loop: encoding the state of a large search takes longer than its
// executors may wait, and what is encoded must not change meanwhile. It is the same experiment because state follows from entries.
type shadow struct {
	fs   FS
	path string
	log  *slog.Logger
	// entries is the least number of them between snapshots.
	entries int
	more    chan struct{} // capacity 1

	mu      sync.Mutex
	waiting []written

	x    *experiment.Experiment // nil: it could not follow, there are no snapshots any more
	last snapshotMark
}

// written are lines of the journal, which then has so many bytes. They are read anew, so that the two experiments share nothing.
type written struct {
	lines []line
	size  int64
}

// snapshotRatio: a snapshot saves reading the journal behind it, so that one is worth a few times its own size.
const snapshotRatio = 4

// snapshotMark is where the last snapshot was made: after entry n, at offset, of so many bytes.
type snapshotMark struct {
	n            int64
	offset, size int64
}

func (m snapshotMark) due(n, offset int64, entries int) bool {
	return n-m.n >= int64(entries) && offset-m.offset >= snapshotRatio*m.size
}

// newShadow follows x from where it is.
func newShadow(x *experiment.Experiment, f FS, path string, entries int, log *slog.Logger) *shadow {
	s := &shadow{fs: f, path: path, log: log, entries: entries, more: make(chan struct{}, 1), x: experiment.New()}
	if x.N > 0 {
		b, err := x.Snapshot(0)
		if err == nil {
			s.x, _, err = experiment.Restore(b)
		}
		if err != nil {
			s.x = nil
			log.Warn("there will be no snapshots", "err", err)
		}
	}
	return s
}

// add takes lines over.
func (s *shadow) add(lines []line, size int64) {
	if len(lines) == 0 {
		return
	}
	s.mu.Lock()
	s.waiting = append(s.waiting, written{lines, size})
	s.mu.Unlock()
	select {
	case s.more <- struct{}{}:
	default:
	}
}

// run follows until ctx ends.
func (s *shadow) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.more:
		}
		s.mu.Lock()
		waiting := s.waiting
		s.waiting = nil
		s.mu.Unlock()
		for _, w := range waiting {
			s.follow(ctx, w)
		}
	}
}

// follow applies entries, and makes a snapshot if one is due.
func (s *shadow) follow(ctx context.Context, w written) {
	if s.x == nil {
		return
	}
	for _, l := range w.lines {
		e, err := experiment.DecodeEntry(l.data)
		if err == nil {
			err = s.x.Apply(e)
		}
		if err != nil {
			s.log.Error("the journal does not make the state that the controller has: there are no snapshots any more", "err", err)
			s.x = nil
			return
		}
		s.x.Take()
	}
	if !s.last.due(s.x.N, w.size, s.entries) {
		return
	}
	b, err := s.x.Snapshot(w.size)
	if err == nil {
		s.last = snapshotMark{s.x.N, w.size, int64(len(b))}
		err = writeFile(ctx, s.fs, s.path, b)
	}
	if err != nil && ctx.Err() == nil {
		s.log.Warn("snapshot", "err", err)
	}
}
