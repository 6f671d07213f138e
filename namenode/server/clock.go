package server

import (
	"sync"
	"time"

	"github.com/gohops/hops/metadata"
)

// clock gives the times that commands carry: the wall clock's, but never backwards and never more than a tenth faster or
// slower than time really passes. Leases are counted in these times, so that an administrator who sets the clock, or a
// bad time server, does not end them.
type clock struct {
	mu   sync.Mutex
	last time.Time // with its monotonic part
	now  int64     // nanoseconds since 1970, what was given at last
}

func (c *clock) read() metadata.Time {
	now := time.Now() // one reading of both clocks: between two of them a busy machine may let milliseconds pass
	return c.at(now, now.UnixNano())
}

// at is read at a point of monotonic time when the wall clock shows wall.
func (c *clock) at(now time.Time, wall int64) metadata.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.IsZero() {
		c.now = wall
	} else if passed := now.Sub(c.last).Nanoseconds(); passed > 0 {
		limit := passed / 10
		ahead := wall - (c.now + passed)
		c.now += passed + min(max(ahead, -limit), limit)
	} else {
		now = c.last // calls that overtook each other
	}
	c.last = now
	return metadata.Time(c.now / int64(time.Millisecond))
}
