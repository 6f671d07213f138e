package server

import (
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gohops/hops/metadata"
)

const (
	// clockStep is by how much the wall clock may differ from the time that has passed, before somebody has set it.
	clockStep = time.Minute
	// clockDoubt is for how long a wall clock that was set is not believed.
	clockDoubt = time.Hour
	// catchUp: of what passes while the state's time is ahead of the clock, one part in so many is taken off.
	catchUp = 8
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

	ahead time.Duration // by how much the state's time is ahead of the clock
	state time.Time     // the state's time at the last moment; zero: nobody has asked
	at    time.Duration // what had passed then
}

// moment is one moment by both clocks of a resource manager.
type moment struct {
	// Time is that of its machine, but for steps: what passes in this process is measured by it, and what users say is compared with it.
	time.Time
	// State is that of the replicated state: its stamps are made with it, and compared with nothing else.
	State metadata.Time
}

// after is the state's time after so long.
func (m moment) after(d time.Duration) metadata.Time {
	return m.State + metadata.Time(d.Milliseconds())
}

// passed is how much of the state's time has passed since a stamp.
func (m moment) passed(since metadata.Time) time.Duration {
	return time.Duration(m.State-since) * time.Millisecond
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
	return c.look()
}

// moment is now by both clocks. The state's time never goes back: a leader before may have had a clock that was fast, and a clock that was set
// back is believed in the end. Else all stamps would be one and the same until the clock has come up, and nothing that is measured from a
// stamp would pass. It goes on from where it was, and while it is ahead a little slower, until it is the clock's again.
func (c *clock) moment() moment {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.look()
	if c.ahead > 0 {
		c.ahead = max(0, c.ahead-(c.passed-c.at)/catchUp)
	}
	at := now.Round(0).Add(c.ahead)
	if back := c.state.Sub(at); !c.state.IsZero() && back > 0 {
		c.ahead += back
		at = c.state
	}
	c.state, c.at = at, c.passed
	return moment{now, metadata.TimeOf(at)}
}

// begin has the state's time go on from what the state says, and returns by how much that is ahead of the clock.
func (c *clock) begin(says metadata.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.look().Round(0)
	c.ahead = max(0, says.Time().Sub(at))
	c.state, c.at = at.Add(c.ahead), c.passed
	return c.ahead
}

// told is what the clock will say when the state's time is at a stamp, about: what those are told who have a clock and no state. A part of a second
// that the state is ahead is left out, so that what is told stays the same.
func (c *clock) told(at metadata.Time) metadata.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return at - metadata.Time(c.ahead.Truncate(time.Second).Milliseconds())
}

// look is now. c.mu is held.
func (c *clock) look() time.Time {
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
