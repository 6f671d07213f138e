package server

import (
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// clockStep is by how much the wall clock may differ from the time that has passed, before somebody has set it.
	clockStep = time.Minute
	// clockDoubt is for how long a wall clock that was set is not believed.
	clockDoubt = time.Hour
)

// clock is the wall clock, but for its steps: timeouts, deadlines and the age of logs go by it, and a machine whose clock is set a day
// ahead would end everybody's jobs at once. A step is believed when the clock has stood by it for an hour, which is time to set it right, or
// when the server starts again. A machine that was suspended makes no step: its time has passed.
type clock struct {
	read func() (wall time.Time, passed time.Duration) // passed counts while the machine is suspended, too
	log  *slog.Logger

	mu     sync.Mutex
	wall   time.Time     // at the last look
	passed time.Duration // likewise
	base   time.Time     // the last time that was believed
	from   time.Duration // what had passed then
	off    time.Duration // by how much the wall clock was set since, as far as it is not believed
	since  time.Duration // when it was set for the last time
}

func newClock(log *slog.Logger, read func() (time.Time, time.Duration)) *clock {
	c := &clock{read: read, log: log}
	c.wall, c.passed = read()
	c.base, c.from = c.wall, c.passed
	return c
}

// machineClock reads the clocks of this machine.
func machineClock() (time.Time, time.Duration) {
	var t unix.Timespec
	wall := time.Now()
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		return wall, wall.Sub(processBegan) // a kernel older than 2.6.39
	}
	return wall, time.Duration(t.Nano())
}

var processBegan = time.Now()

// now is the time that the cluster goes by.
func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall, passed := c.read()
	since := passed - c.passed
	step := wall.Round(0).Sub(c.wall.Round(0)) - since
	c.wall, c.passed = wall, passed
	if step.Abs() > clockStep+since/1000 { // what NTP slews is less
		c.off += step
		c.since = passed
		c.log.Warn("the clock of this machine was set: what ends by the clock goes by the old time for an hour, or until this resource manager starts again",
			"by", step, "to", wall.UTC().Format(time.RFC3339))
	}
	if c.off.Abs() <= clockStep || passed-c.since > clockDoubt {
		c.off, c.base, c.from = 0, wall, passed
		return wall
	}
	return c.base.Add(passed - c.from)
}
