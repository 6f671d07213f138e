package smallfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/gohops/hops/metadata"
)

const (
	// compactRate is how many bytes a second Compact copies.
	compactRate = 64 << 20
	// askAtOnce is how many ids Live is asked at a time.
	askAtOnce = 1024
	// sweepIDs is of how many ids, of segments that were not asked for longest, each call asks, though nothing says that there are dead ones.
	sweepIDs = 256 << 10
	// A segment is copied when a third of it is dead, or with mergeLeast others that are not half full.
	deadShare  = 3
	mergeLeast = 4
)

// Compact gives back the space of bodies that are dead: it copies the live ones of segments that have few of them to new segments, and removes segments
// without any. One call looks at all segments of which Removed has said that a third is dead, and those that Scrub has found damaged, and asks Live of some more. It returns by how much the
// files are smaller. It reads and writes 64 MiB a second at most; it can be stopped at any time through ctx, and what it has done until then counts.
// While somebody holds the Store it removes nothing. It goes on with other segments where the disk cannot read one. Errors: that of ctx, of Live, of
// the disk; metadata.ErrNoSpace; fs.ErrClosed.
func (s *Store) Compact(ctx context.Context) (freed int64, err error) {
	s.compacting.Lock()
	defer s.compacting.Unlock()
	s.passes++
	if err := s.sweep(ctx); err != nil {
		return 0, err
	}
	for _, group := range s.groups() {
		n, fault := s.compact(ctx, group)
		freed += n
		if fault != nil {
			err = s.refused(fault)
		}
		if full(fault) || s.wait(ctx, 0) != nil {
			break
		}
	}
	return freed, err
}

// sweep asks of segments that were not asked for longest what is dead of them.
func (s *Store) sweep(ctx context.Context) error {
	s.mu.RLock()
	all := slices.DeleteFunc(slices.Clone(s.segments), func(g *segment) bool { return g.suspect })
	slices.SortFunc(all, func(a, b *segment) int { return cmp.Or(cmp.Compare(a.asked, b.asked), cmp.Compare(a.seq, b.seq)) })
	s.mu.RUnlock()
	asked := 0
	for _, g := range all {
		if asked += g.len(); asked > sweepIDs && asked > g.len() {
			return nil
		}
		if _, err := s.ask(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// ask finds out which bodies of a segment live, and are nowhere else, and corrects what is known to be dead.
func (s *Store) ask(ctx context.Context, g *segment) (live []entry, err error) {
	var size int64
	for from := 0; from < g.len(); from += askAtOnce {
		if err := s.wait(ctx, 0); err != nil {
			return nil, err
		}
		ids := g.ids[from:min(from+askAtOnce, g.len())]
		lives, err := s.cfg.Live(slices.Clone(ids))
		if err == nil && len(lives) != len(ids) {
			err = fmt.Errorf("smallfile: Live was asked of %d ids and answers %d", len(ids), len(lives))
		}
		if err != nil {
			return nil, err
		}
		var needed []metadata.BlockID
		var at []int
		for i, id := range ids {
			if lives[i] {
				needed, at = append(needed, id), append(at, from+i)
				continue
			}
			s.mu.Lock()
			if s.fresh[id].body == nil && s.holds == 0 { // else a state may come that has it
				delete(s.damaged, id)
				delete(s.owed, id)
			}
			s.mu.Unlock()
		}
		there, read := s.elsewhere(g, needed)
		if err := s.wait(ctx, s.slowly(read)); err != nil {
			return nil, err
		}
		for k, sound := range there {
			if !sound {
				e := g.entry(at[k])
				live = append(live, e)
				size += e.size()
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.asked = s.passes
	g.dead.Add(g.live() - size)
	return live, nil
}

// worthy reports whether a segment is copied: so much of it is dead, or it is damaged.
func (g *segment) worthy() bool {
	return g.worn.Load() || g.dead.Load() > 0 && g.dead.Load() >= g.bytes/deadShare || g.len() == 0
}

// groups divides the segments that are to be copied into groups each of which becomes one segment: neighbours by their ids, so that few segments have
// the same range. Those that give back most come first.
func (s *Store) groups() (groups [][]*segment) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var some []*segment
	for _, g := range s.segments {
		if !g.suspect && (g.worthy() || g.bytes < s.cfg.SegmentBytes/2) {
			some = append(some, g)
		}
	}
	slices.SortFunc(some, func(a, b *segment) int {
		return cmp.Or(cmp.Compare(a.first(), b.first()), cmp.Compare(a.seq, b.seq))
	})
	for len(some) > 0 {
		size, records, n := some[0].live(), some[0].len(), 1
		for n < len(some) && size+some[n].live() <= s.cfg.SegmentBytes && records+some[n].len() <= s.records {
			size, records = size+some[n].live(), records+some[n].len()
			n++
		}
		if n >= mergeLeast || slices.ContainsFunc(some[:n], (*segment).worthy) {
			groups = append(groups, some[:n])
		}
		some = some[n:]
	}
	share := func(group []*segment) float64 {
		var live, all int64
		for _, g := range group {
			live, all = live+g.live(), all+g.bytes
		}
		return float64(live) / float64(all)
	}
	slices.SortStableFunc(groups, func(a, b []*segment) int { return cmp.Compare(share(a), share(b)) })
	return groups
}

// compact makes one segment of those of a group, or none.
func (s *Store) compact(ctx context.Context, group []*segment) (freed int64, err error) {
	// What is put from here on is written anew if only these segments have it; what was put before lives, or Live says that it is dead.
	s.mu.Lock()
	if s.holds > 0 || s.closed {
		s.mu.Unlock()
		return 0, nil
	}
	for _, g := range group {
		g.victim = true
	}
	s.mu.Unlock()
	defer s.mark(group, false)
	type member struct {
		*segment
		live []entry
	}
	var worthy, small []member
	for _, g := range group {
		entries, err := s.ask(ctx, g)
		switch {
		case err != nil:
			return 0, err
		case g.worthy():
			worthy = append(worthy, member{g, entries})
		case g.bytes < s.cfg.SegmentBytes/2:
			small = append(small, member{g, entries})
		}
	}
	if len(worthy)+len(small) >= mergeLeast {
		worthy = append(worthy, small...)
	}
	var old []*segment
	var live []place
	var size int64
	for _, m := range worthy {
		// Where hints were wrong there may be more than fits into one.
		if more := m.segment.live(); len(old) == 0 || size+more <= s.cfg.SegmentBytes && len(live)+len(m.live) <= s.records {
			for _, e := range m.live {
				live = append(live, place{m.segment, e})
			}
			old, size = append(old, m.segment), size+more
		}
	}
	if len(old) == 0 || len(old) == 1 && !old[0].worthy() {
		return 0, nil
	}
	out, err := s.copy(ctx, live)
	if err != nil {
		return 0, err
	}
	if err := s.syncNames(); err != nil { // that of the copy, and those of segments that have a body, too
		if out != nil {
			s.abandon(out)
		}
		return 0, err
	}
	s.mu.Lock()
	given := s.holds == 0 && !s.closed
	if given {
		for _, g := range old {
			freed += g.bytes
		}
		var by *segment
		if out != nil {
			by = out.segment
			by.asked = s.passes
			s.copied += by.bytes
			freed -= by.bytes
		}
		s.freed += freed
		s.exchange(old, by)
	}
	s.mu.Unlock()
	switch {
	case given && out != nil:
		s.files.release(out.file)
	case out != nil:
		s.abandon(out)
	}
	if given {
		s.discard(old)
	}
	return freed, nil
}

// copy writes bodies, in the order of their ids, into a new segment, which is durable then but for its name. nil: there are none.
func (s *Store) copy(ctx context.Context, live []place) (_ *building, err error) {
	if len(live) == 0 {
		return nil, nil
	}
	slices.SortStableFunc(live, func(a, b place) int { return cmp.Compare(a.id, b.id) })
	out, err := s.create()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.abandon(out)
		}
	}()
	var buffer []byte
	for len(live) > 0 {
		var want []wanted
		var size int64
		for n := 0; n < len(live) && (size < batchBytes || live[n].id == live[n-1].id); n++ {
			want = append(want, wanted{live[n], n})
			size += live[n].size()
		}
		live = live[len(want):]
		batch, err := s.best(want)
		if err != nil {
			return nil, err
		}
		if _, err := out.put(batch, &buffer); err != nil {
			return nil, err
		}
		if err := s.wait(ctx, s.slowly(size)); err != nil {
			return nil, err
		}
	}
	return out, out.finish()
}

// slowly is how long Compact takes for so many bytes.
func (s *Store) slowly(size int64) time.Duration {
	return time.Duration(float64(size) / float64(s.rate) * float64(time.Second))
}

// best reads bodies, and of those with one id, which are neighbours, takes one that is sound, or else says that it is lost. Error: that of the disk, which
// may pass, when there is no other.
func (s *Store) best(want []wanted) (batch []pending, err error) {
	all, faults := make([]pending, len(want)), make([]error, len(want))
	s.gather(slices.Clone(want), func(w wanted, body []byte, fault error) {
		all[w.i], faults[w.i] = pending{id: w.id, body: body, lost: w.length}, fault
		if w.lost {
			faults[w.i] = errDamaged
		}
	})
	for i := 0; i < len(all); {
		p, fault := all[i], faults[i]
		at := want[i].place
		for i++; i < len(all) && all[i].id == p.id; i++ {
			if fault != nil && !errors.Is(faults[i], errDamaged) {
				p, fault = all[i], faults[i]
			}
		}
		if fault != nil && damage(fault) && !s.growsWith(p.id) { // where it is when it was put again
			s.spoil(p.id, at, fault)
		}
		if fault != nil && !errors.Is(fault, errDamaged) {
			err = fault
		}
		batch = append(batch, p)
	}
	return batch, err
}

// wait waits a while, unless Compact is to end.
func (s *Store) wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.stop:
		return fs.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	default:
	}
	select {
	case <-t.C:
		return nil
	case <-s.stop:
		return fs.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}
