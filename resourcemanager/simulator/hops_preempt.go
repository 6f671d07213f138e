package simulator

import (
	"slices"

	"github.com/gohops/hops/metadata"
	rm "github.com/gohops/hops/resourcemanager"
)

// The resource manager looks every second who is to make room, and gives a minute; the simulation looks less often.
const (
	preemptEvery = 15 * second
	notice       = minute
)

// id is a container as the scheduler knows it.
func (c *container) id() rm.ContainerID {
	return rm.ContainerID{Attempt: rm.AttemptID{Application: c.part.run.id(), Number: 1}, Number: c.serial}
}

// saved is until when a container's work is saved.
func (c *container) saved(now int64) int64 {
	k := &c.work
	if c.part.Gang > 0 {
		if k = &c.part.work; !c.part.running {
			return now
		}
	}
	ran := now - k.at + k.since
	if every := c.part.run.Checkpoint; every > 0 {
		ran %= every
	}
	return now - ran
}

// preempt tells containers to go as the scheduler decides, and ends those whose notice is over, or that have saved their work.
func (h *hops) preempt() {
	ended := false
	for _, r := range slices.Clone(h.live) {
		for _, p := range r.parts {
			for _, c := range slices.Clone(p.live) {
				switch answers := h.Answers && r.Checkpoint > 0; {
				case c.gone || c.marked < 0:
				case answers && h.now >= c.marked+notice/2:
					h.save(c)
					h.end(c)
					ended = true
				case h.now >= c.marked+notice:
					h.end(c)
					ended = true
				}
			}
		}
	}
	if ended {
		h.again = true // what they leave is planned before anybody else is told
		return
	}
	for _, n := range h.nodes { // what has been saved meanwhile
		if len(n.live) > 0 {
			h.touch(n)
		}
	}
	h.tell()
	byID := map[rm.ContainerID]*container{}
	for _, n := range h.nodes {
		for _, c := range n.live {
			byID[c.id()] = c
		}
	}
	out := h.model.Preempt(metadata.Time(h.now))
	for _, id := range out.Spared {
		if c := byID[id]; c != nil {
			c.marked, c.markedFor, c.moves = -1, "", false
			h.touch(c.node)
		}
	}
	for _, e := range out.Evictions {
		for _, v := range e.Victims {
			c := byID[v.Container]
			c.marked, c.markedFor, c.moves = h.now, e.Queue, e.Moves
			h.touch(c.node)
		}
	}
	if len(out.Evictions) > 0 {
		h.wake(h.now + notice/2)
		h.wake(h.now + notice)
	}
	h.wake((h.now/preemptEvery + 1) * preemptEvery)
}

// save writes a checkpoint.
func (h *hops) save(c *container) {
	k := &c.work
	if c.part.Gang > 0 {
		if k = &c.part.work; !c.part.running {
			return
		}
		k.advance(h.now, len(c.part.live), c.part.run.Checkpoint)
	} else {
		k.advance(h.now, 1, c.part.run.Checkpoint)
	}
	k.saved, k.since = k.left, 0
}

// end ends a container that was told to go; the rest of its gang waits for all of its members again.
func (h *hops) end(c *container) {
	h.stats.preemptions++
	before := h.stats.lostToPreemption
	h.lose(c, &h.stats.lostToPreemption, true)
	if c.moves {
		h.stats.moved++
		h.stats.lostToMoving += h.stats.lostToPreemption - before
	}
}
