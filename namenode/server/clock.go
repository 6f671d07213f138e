package server

import (
	"sync"
	"time"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/namespace"
)

// clock gives the two times that commands carry.
//
// The wall clock is for what people read: modification and access times. Whatever an administrator or a bad time server
// does to it shows there, and is over when it is right again.
//
// Log time goes on from where the log has it, by this process's monotonic clock, while this member leads. Leases and
// everything else that ends is counted in it. While the process is stopped, or has no processor, it stands still: nobody
// can renew a lease then.
type clock struct {
	mu    sync.Mutex
	since time.Time         // when this reign's log time began, with its monotonic part; zero: it has not
	base  namespace.LogTime // what it was then
	alive time.Time         // of the last tick
}

// stall is the time between two ticks beyond which log time stands still. Ticks come every 200 ms.
const stall = 5 * time.Second

// wall is the time of the day.
func (c *clock) wall() metadata.Time { return metadata.Time(time.Now().UnixMilli()) }

// start begins the log time of a reign at the point of time now.
func (c *clock) start(base namespace.LogTime, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.base, c.since, c.alive = base, now, now
}

// tick says that the process runs.
func (c *clock) tick(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lost := now.Sub(c.alive) - stall; lost > 0 && !c.since.IsZero() {
		c.since = c.since.Add(lost)
	}
	c.alive = now
}

// stop ends a reign's log time.
func (c *clock) stop() { c.start(0, time.Time{}) }

// now is the log time now.
func (c *clock) now() namespace.LogTime { return c.log(time.Now()) }

// log is the log time at the point of time now; 0, which moves nothing, before start.
func (c *clock) log(now time.Time) namespace.LogTime {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		return 0
	}
	passed := min(now.Sub(c.since), c.alive.Add(stall).Sub(c.since))
	return c.base + namespace.LogTime(passed.Milliseconds())
}
