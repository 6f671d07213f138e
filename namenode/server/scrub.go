package server

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/gohops/hops/internal/pace"
	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
	"github.com/gohops/hops/metadata/smallfile"
)

// DefaultScrubRate and DefaultScrubEvery are those of a datanode.
const (
	DefaultScrubRate  = 8 << 20
	DefaultScrubEvery = 21 * 24 * time.Hour
)

const (
	// scrubIdle is how often a scrubber without work looks whether a pass is due, and scrubRest how long it leaves a disk alone that refuses.
	scrubIdle, scrubRest = time.Minute, time.Minute
	// scrubMends is how many damaged bodies are looked for with the other namenodes in one turn, scrubMendTime how long that may take, and scrubMendEvery when
	// those are looked for again that nobody had: after scrubRest where somebody has not answered.
	scrubMends, scrubMendTime, scrubMendEvery = 1 << 16, time.Minute, 10 * time.Minute
	// scrubReadTime is for how long of a turn damaged bodies are read once more before they are asked for.
	scrubReadTime = scrubMendTime / 4
	// scrubNamed is how many bodies a line of the log names.
	scrubNamed = 20
)

// bodyScrub reads the bodies of small files before somebody needs them: bits that rotted where nobody reads are found while other namenodes have them intact. It
// gets from them what is damaged, as whoever reads does.
type bodyScrub struct {
	bytes, damaged, passes atomic.Int64
	lost                   atomic.Int64 // bodies that are damaged here, and that nobody who answered had at the last look
}

// scrubbing is what the scrubber's goroutine knows.
type scrubbing struct {
	*Server
	budget pace.Budget
	mendAt time.Time
	gaps   int64 // of the namespace, when it was looked at last
	lost   map[metadata.BlockID]struct{}
	bad    map[metadata.BlockID]struct{} // found damaged, and counted
	// reading is closed when the disk has answered that was asked for a damaged body last; nil: it was not.
	reading chan struct{}
}

// scrubBodies verifies bodies in passes until ctx is done. A disk that hangs holds up it alone, and not its end.
func (s *Server) scrubBodies(ctx context.Context) error {
	b := &scrubbing{Server: s, lost: map[metadata.BlockID]struct{}{}, bad: map[metadata.BlockID]struct{}{}}
	p, err := s.bodies.LastPass(ctx)
	if err != nil && ctx.Err() == nil {
		s.log.Warn("how far the small files were scrubbed is not known, a pass begins", "error", err)
	}
	for ctx.Err() == nil {
		now := time.Now()
		if gaps := b.ns.BodyGaps(); gaps != b.gaps { // a version has come without some
			b.gaps, b.mendAt = gaps, time.Time{}
		}
		if !now.Before(b.mendAt) && b.served() {
			b.mend(ctx)
		}
		switch {
		case !p.Begun.IsZero() && !p.Done:
			b.step(ctx, &p)
		case p.Begun.IsZero() || now.Sub(p.Begun) >= s.config.ScrubEvery || p.Begun.After(now): // in the future: by a clock that was wrong
			p = s.bodies.NewPass(now)
		default:
			_ = pace.Wait(ctx, min(scrubIdle, s.config.ScrubEvery))
		}
	}
	return nil
}

// served reports whether this namenode has been ready: before that it does not know who the others are.
func (b *scrubbing) served() bool {
	select {
	case <-b.ready:
		return true
	default:
		return false
	}
}

// step verifies a segment.
func (b *scrubbing) step(ctx context.Context, p *smallfile.Pass) {
	before := *p
	done, err := b.bodies.Scrub(ctx, p, func(n int64) error { return b.budget.Take(ctx, n, b.config.ScrubRate) })
	b.scrub.bytes.Add(done.Bytes)
	if done.Damaged > 0 {
		b.count(b.bodies.Damaged(scrubMends))
		b.mendAt = time.Time{}
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		b.log.Warn("small files could not be scrubbed as they should", "after", before.After, "error", err)
		_ = pace.Wait(ctx, scrubRest)
	case p.Done:
		b.scrub.passes.Add(1)
		b.log.Info("all small files were scrubbed", "began", p.Begun, "damaged", len(b.bodies.Damaged(scrubMends)))
	}
}

// count counts those of the bodies that are known to be damaged that were not counted before, or were intact in between.
func (b *scrubbing) count(known []metadata.BlockID) {
	bad := make(map[metadata.BlockID]struct{}, len(known))
	for _, id := range known {
		bad[id] = struct{}{}
		if _, before := b.bad[id]; !before {
			b.scrub.damaged.Add(1)
		}
	}
	b.bad = bad
}

// mend reads bodies that are known to be damaged, whoever has found them, once more, since a disk may have failed for a moment only, or else gets them from the other namenodes, and tells of
// those that none of them has.
func (b *scrubbing) mend(ctx context.Context) {
	b.mendAt = time.Now().Add(scrubMendEvery)
	known := b.bodies.Damaged(scrubMends)
	still := make(map[metadata.BlockID]struct{}, len(b.bad))
	for _, id := range known {
		if _, before := b.bad[id]; before {
			still[id] = struct{}{}
		}
	}
	b.bad = still
	lost := map[metadata.BlockID]struct{}{}
	var named []metadata.BlockID
	healed, sound, silent := 0, 0, false
	turn, cancel := context.WithTimeout(ctx, scrubMendTime)
	defer cancel()
	reading, cancel := context.WithTimeout(turn, scrubReadTime)
	defer cancel()
	peers, err := b.bodyPeers()
	if err != nil {
		b.log.Warn("damaged small files cannot be asked for", "error", err)
		return
	}
	defer peers.close()
	for _, id := range known {
		_, said := b.lost[id]
		if turn.Err() != nil {
			if said {
				lost[id] = struct{}{}
			}
			continue
		}
		r, err := b.ns.FindBody(id, 0)
		if err == nil && (r == nil || r.Data != nil) {
			continue // no file and no snapshot needs it: Compact forgets it
		}
		if err == nil && b.readAgain(reading, r) {
			sound++
			continue
		}
		var data []byte
		if err == nil {
			data, _, err = b.fetchBody(turn, peers, r)
		}
		switch {
		case err == nil && b.bodies.Offer(id, data):
			b.mended.Add(1)
			healed++
		case err == nil: // the disk is behind
			b.mendAt = time.Now().Add(scrubRest)
		case turn.Err() == nil && metadata.KindOf(err) == metadata.ErrCorrupt:
			if lost[id] = struct{}{}; !said {
				named = append(named, id)
			}
			silent = silent || errors.Is(err, errUnanswered) || b.formerPending.Load()
		}
	}
	if ctx.Err() != nil {
		return
	}
	if turn.Err() != nil || silent {
		b.mendAt = time.Now().Add(scrubRest)
	}
	b.lost = lost
	b.scrub.lost.Store(int64(len(lost)))
	if sound > 0 {
		b.log.Warn("small files could not be read here for a while, and can be again", "bodies", sound)
	}
	if healed > 0 {
		b.log.Warn("small files were damaged here, and came from other namenodes", "bodies", healed)
	}
	if len(named) > 0 {
		b.log.Error("small files are damaged on this namenode, and no other one that answers has them: `hops fsck / -list-corruptfileblocks` names the files",
			"bodies", len(lost), "new", len(named), "ids", named[:min(len(named), scrubNamed)])
	}
}

// readAgain reports whether a body that is known to be damaged can be read after all; it is damaged no more then. It gives up when ctx is done, and while the disk has not answered the time
// before.
func (b *scrubbing) readAgain(ctx context.Context, r *namespace.BodyRef) bool {
	if b.reading != nil {
		select {
		case <-b.reading:
		default:
			return false
		}
	}
	if ctx.Err() != nil {
		return false
	}
	done, sound := make(chan struct{}), false
	b.reading = done
	go func() {
		defer close(done)
		_, err := b.ns.ReadBody(*r)
		sound = err == nil
	}()
	select {
	case <-done:
		return sound
	case <-ctx.Done():
		return false
	}
}
