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
		from := i
		for ; i < g.len() && size < batchBytes; i++ {
			e := g.entry(i)
			size += e.size()
		}
		there, _ := s.elsewhere(g, g.ids[from:i])
		for k, sound := range there {
			e := g.entry(from + k)
			switch {
			case sound || s.growsWith(e.id):
			case e.lost:
				batch = append(batch, pending{id: e.id, lost: e.length})
			default:
				want = append(want, wanted{place: place{g, e}})
			}
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

// elsewhere says which of some bodies of a segment are in another one, too, that is durable, but for its name, and stays. Those copies are read, from the
// disk: an index does not know what has rotted since, and a body that was put again lies beside the one that it was put again for. size is how many
// bytes were read.
func (s *Store) elsewhere(g *segment, ids []metadata.BlockID) (sound []bool, size int64) {
	var others []wanted
	var found [4]place
	s.mu.RLock()
	for i, id := range ids {
		if i%lookAtOnce == lookAtOnce-1 {
			s.mu.RUnlock()
			s.mu.RLock()
		}
		for _, p := range s.table.places(id, found[:0]) {
			if p.segment != g && !p.lost && !p.suspect && !p.victim {
				others = append(others, wanted{p, i})
				size += p.size()
			}
		}
	}
	s.mu.RUnlock()
	for _, w := range others {
		s.forget(w.segment, int64(w.at), int64(w.at)+w.size())
	}
	sound = make([]bool, len(ids))
	s.gather(others, func(w wanted, _ []byte, err error) {
		if err == nil {
			sound[w.i] = true
		}
		w.wear(err)
	})
	return sound, size
}
