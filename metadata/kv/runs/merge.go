package runs

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gohops/hops/metadata"
)

// mergeAt is how many runs have to lie behind an old one before it is worth merging with them.
const mergeAt = 8

func (s *Store) mergeLoop() {
	for {
		select {
		case <-s.stop:
			return
		case <-s.merge:
		}
		for {
			again, err := s.mergeSome()
			if err != nil && !errors.Is(err, errStopped) && !errors.Is(err, fs.ErrClosed) {
				s.opt.Logger.Warn("merging parts of the checkpoint failed", "dir", s.dir, "error", err)
				if errors.Is(err, metadata.ErrCorrupt) {
					s.fail(err)
				}
			}
			if !again || err != nil {
				break
			}
		}
	}
}

// fail makes Sync fail from now on, and the next Open start empty.
func (s *Store) fail(err error) {
	s.mu.Lock()
	if s.broken == nil {
		s.broken = fmt.Errorf("checkpoint %s: %w", s.dir, err)
	}
	s.mu.Unlock()
	if err := s.Condemn(); err != nil {
		s.opt.Logger.Error("cannot condemn the checkpoint", "dir", s.dir, "error", err)
	}
}

// choose finds the oldest run that is at most twice as large as all behind it together, of which there are at least
// mergeAt: so a record is merged again only when its run has grown by half, and the number of runs stays near mergeAt
// plus the logarithm of the store. Runs that a view may still need apart are left out.
func choose(runs []*run, discarded uint64) (from, to int) {
	for to < len(runs) && runs[to].at <= discarded {
		to++
	}
	newer := int64(0)
	for _, r := range runs[:to] {
		newer += r.size
	}
	for i, r := range runs[:to] {
		newer -= r.size
		if to-i < mergeAt {
			break
		}
		if r.size <= 2*newer {
			return i, to
		}
	}
	return 0, 0
}

var errStopped = errors.New("the store is being closed")

// mergeSome merges once, if there is something to merge.
func (s *Store) mergeSome() (again bool, err error) {
	s.mu.Lock()
	from, to := choose(s.runs, s.discarded)
	parts := slices.Clone(s.runs[from:to])
	for _, r := range parts {
		r.hold()
	}
	s.mu.Unlock()
	if len(parts) == 0 {
		return false, nil
	}
	defer func() {
		for _, r := range parts {
			r.release()
		}
	}()
	merged, err := s.mergeRuns(parts, from == 0)
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Replace may have taken everything away meanwhile. What was inserted lies behind or in front of the parts, because
	// equal timestamps go behind; the parts still lie together unless something of an older time came between them.
	at := slices.Index(s.runs, parts[0])
	if at < 0 || at+len(parts) > len(s.runs) || !slices.Equal(s.runs[at:at+len(parts)], parts) || from == 0 && at > 0 {
		s.drop([]*run{merged})
		return false, nil
	}
	list := slices.Concat(s.runs[:at], []*run{merged}, s.runs[at+len(parts):])
	if err := s.publish(list); err != nil {
		merged.release() // its file stays: the manifest may name it
		return false, err
	}
	s.runs = list
	s.drop(parts)
	return true, nil
}

// mergeRuns writes what the newest of parts say of every key. Deletions are kept unless nothing older is below.
func (s *Store) mergeRuns(parts []*run, bottom bool) (*run, error) {
	expect := uint64(0)
	for _, r := range parts {
		expect += r.count
	}
	w, err := newRunWriter(s.newPath(), max(expect, 1))
	if err != nil {
		return nil, err
	}
	m, err := newMerger(parts, nil)
	if err != nil {
		w.cancel()
		return nil, err
	}
	defer m.close()
	var failed error
	n := 0
	err = m.each(func(key, value []byte, deleted bool) bool {
		if n++; n%1024 == 0 {
			select {
			case <-s.stop:
				failed = errStopped
				return false
			default:
			}
		}
		if deleted && bottom {
			return true
		}
		failed = w.add(key, value, deleted)
		return failed == nil
	})
	if err = errors.Join(err, failed); err != nil {
		w.cancel()
		return nil, err
	}
	r, err := w.finish()
	if err != nil {
		return nil, err
	}
	r.at = parts[len(parts)-1].at
	return r, nil
}
