package server

import (
	"testing"
	"time"
	"unsafe"

	"github.com/gohops/hops/metadata"
)

// leading is a reign that began at a moment, where a notice is a minute.
func leading(t *testing.T, began time.Time, read func() (time.Time, time.Duration)) *reign {
	s := &Server{clock: newClock(testLog(t), read), log: testLog(t)}
	s.config.Preemption.Notice = time.Minute
	return &reign{s: s, began: began}
}

// Leaders that do not last put off no end for ever, of a container that has a notice or on a node that leaves.
func TestStandstillsAreNotForEver(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct{ given, least, most time.Duration }{
		"a notice":                       {time.Minute, time.Minute, 3 * time.Minute},
		"a short notice":                 {20 * time.Second, 20 * time.Second, time.Minute},
		"a drain":                        {time.Hour, time.Hour, time.Hour + 2*time.Minute},
		"now":                            {0, 0, 0},
		"now, for a node that is listed": {24 * time.Hour, 24 * time.Hour, 24*time.Hour + 2*time.Minute},
	} {
		since, deadline := metadata.TimeOf(noon), metadata.TimeOf(noon.Add(c.given))
		for _, every := range []time.Duration{15 * time.Second, 45 * time.Second, 100 * time.Hour} {
			r := leading(t, noon, machineClock)
			wanted := c.least
			if every < min(c.given, time.Minute) {
				wanted = c.most
			}
			for led := time.Duration(0); ; led += time.Second {
				if led > 30*time.Hour {
					t.Fatalf("%s, a standstill every %v: it is never carried out", name, every)
				}
				now := noon.Add(led)
				if led > 0 && led%every == 0 {
					r.began = now
				}
				if at(now).State < deadline || !r.heeded(at(now), since, deadline) {
					continue
				}
				if late := led - wanted; late < 0 || late > 15*time.Second {
					t.Errorf("%s, a standstill every %v: carried out after %v, want %v", name, every, led, wanted)
				}
				break
			}
		}
	}
	// However late it is, a leader asks for a while first.
	r := leading(t, noon, machineClock)
	if since := metadata.TimeOf(noon.Add(-time.Hour)); r.heeded(at(noon.Add(hearing-time.Second)), since, since+60_000) || !r.heeded(at(noon.Add(hearing)), since, since+60_000) {
		t.Error("who leads after an outage asks first, and not for ever")
	}
}

// A deadline is told by the clock of now, also by a leader that began when it was a day fast.
func TestADeadlineIsToldByTheClockOfNow(t *testing.T) {
	began := time.Now()
	now := began
	parts := (*struct { // as a clock that is set later leaves it: the wall's seconds are wrong, what is monotonic is not
		wall uint64
		ext  int64
		loc  *time.Location
	})(unsafe.Pointer(&began))
	parts.wall += 24 * 3600 << 30
	if fast := began.Round(0).Sub(now.Round(0)); fast != 24*time.Hour || began.Sub(now) != 0 {
		t.Fatalf("%v and %v fast", fast, began.Sub(now))
	}
	r := leading(t, began, machineClock)
	since := metadata.TimeOf(now.Add(-59 * time.Second))
	if told := r.deadline(since, since+60_000).Time().Sub(now); told < 30*time.Second || told > 5*time.Minute {
		t.Errorf("it is told that there are %v left of a minute", told)
	}
}

// While the state's time is ahead of the clock, what is told of a deadline stays the same for minutes, and is not after what counts.
func TestWhatIsToldOfADeadlineStays(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	passed := time.Duration(0)
	r := leading(t, noon.Add(-time.Hour), func() (time.Time, time.Duration) { return noon.Add(passed), passed })
	r.s.clock.begin(metadata.TimeOf(noon.Add(2 * time.Hour)))
	first := r.s.clock.moment()
	since, short, long := first.State, first.after(time.Minute), first.after(3*time.Hour)
	told := func(f func() metadata.Time) func() int {
		var last metadata.Time
		changes := 0
		return func() int {
			if now := f(); now != last {
				last = now
				changes++
			}
			return changes
		}
	}
	notice := told(func() metadata.Time { return r.deadline(since, short) })
	drain := told(func() metadata.Time { return r.deadline(since, long) })
	from := told(func() metadata.Time { return r.stamp(since) })
	for ; r.s.clock.moment().State < short; passed += time.Second {
		notice()
		if n := notice() + drain() + from(); n != 3 {
			t.Fatalf("after %v: %d", passed, n)
		}
	}
	if due := metadata.TimeOf(noon.Add(passed)); r.deadline(since, short) > due+1000 {
		t.Errorf("told %v, and it counts at %v", r.deadline(since, short).Time(), due.Time())
	}
	for ; passed < 40*time.Minute; passed += time.Second {
		drain()
	}
	if n := drain(); n < 2 || n > 7 {
		t.Errorf("a drain's deadline was told in %d ways in %v", n, passed)
	}
	if off := r.deadline(since, long) - r.s.clock.told(long); off > 0 || off < -60_000 {
		t.Errorf("what is told is off by %v ms", off)
	}
}
