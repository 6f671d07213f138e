package smallfile

import (
	"errors"
	"syscall"

	"github.com/gohops/hops/metadata"
)

// suspects are marked to be removed.
func (s *Store) suspects() (all []*segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segments {
		if g.suspect {
			g.victim = true
			all = append(all, g)
		}
	}
	return all
}

func (s *Store) mark(all []*segment, victim bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range all {
		g.victim = victim
	}
}

// rescue copies what can be read of a segment to the active one, but what is durable elsewhere. It is called with ioMu held.
func (s *Store) rescue(g *segment) error {
	for i := 0; i < g.len(); {
		var want []wanted
		var batch []pending
		var size int64
		for ; i < g.len() && size < batchBytes; i++ {
			e := g.entry(i)
			switch {
			case s.growsWith(e.id) || s.elsewhere(g, e.id):
			case e.lost:
				batch = append(batch, pending{id: e.id, lost: e.length})
			default:
				want = append(want, wanted{place: place{g, e}})
			}
			size += e.size()
		}
		var passing error
		s.gather(want, func(w wanted, body []byte, err error) {
			switch {
			case err == nil:
				batch = append(batch, pending{id: w.id, body: body})
			case errors.Is(err, syscall.EIO): // that may pass
				s.spoil(w.id, w.place, err)
				passing = err
			case damage(err):
				s.spoil(w.id, w.place, err)
				s.mu.Lock()
				if _, bad := s.damaged[w.id]; bad {
					s.owed[w.id] = struct{}{}
				}
				s.mu.Unlock()
				batch = append(batch, pending{id: w.id, lost: w.length})
			default:
				passing = err
			}
		})
		if passing != nil {
			return passing
		}
		for len(batch) > 0 {
			n := s.cut(batch)
			if err := s.append(batch[:n]); err != nil {
				return err
			}
			batch = batch[n:]
		}
	}
	return nil
}

// growsWith reports whether a body is in the active segment, which is not durable before it is synced.
func (s *Store) growsWith(id metadata.BlockID) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	f, ok := s.fresh[id]
	return ok && f.body == nil && !f.lost
}

// elsewhere reports whether a body is in another segment, too, that is durable, but for its name, and stays.
func (s *Store) elsewhere(g *segment, id metadata.BlockID) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found [4]place
	for _, p := range s.table.places(id, found[:0]) {
		if p.segment != g && !p.lost && !p.suspect && !p.victim {
			return true
		}
	}
	return false
}
