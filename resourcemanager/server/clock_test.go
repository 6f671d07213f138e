package server

import (
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

// A clock that is set ends nobody's job by that, and is believed when it stays so; one that is slewed, and one of a machine that slept, is
// believed at once.
func TestAClockThatIsSetEndsNobody(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	wall, passed := noon, time.Duration(0)
	c := newClock(testLog(t), func() (time.Time, time.Duration) { return wall, passed })
	pass := func(d time.Duration) { wall, passed = wall.Add(d), passed+d }
	want := func(what string, at time.Duration) {
		t.Helper()
		if got := c.now(); !got.Equal(noon.Add(at)) {
			t.Errorf("%s: %v, want %v", what, got.Sub(noon), at)
		}
	}
	pass(time.Second)
	want("a second later", time.Second)
	wall = wall.Add(24 * time.Hour)
	want("set a day ahead", time.Second)
	pass(10 * time.Minute)
	want("ten minutes later", 10*time.Minute+time.Second)
	wall = wall.Add(-24*time.Hour + time.Second)
	want("set right", 10*time.Minute+2*time.Second)
	wall = wall.Add(-6 * time.Hour)
	want("set back", 10*time.Minute+2*time.Second)
	pass(59 * time.Minute)
	want("nearly an hour later", 69*time.Minute+2*time.Second)
	pass(2 * time.Minute)
	want("it stays so", 71*time.Minute+2*time.Second-6*time.Hour)
	pass(8 * time.Hour) // as when the machine was suspended
	want("a night later", 2*time.Hour+71*time.Minute+2*time.Second)
	for range 100 {
		wall = wall.Add(time.Second) // NTP, or a crystal
		pass(time.Minute)
		c.now()
	}
	want("slewed", 2*time.Hour+171*time.Minute+102*time.Second)
}

// What is measured between two times goes on while a clock is not believed.
func TestTheMachinesClockIsMonotonic(t *testing.T) {
	c := newClock(testLog(t), machineClock)
	before := time.Now()
	if now := c.now(); now.Before(before) || time.Since(now) < 0 {
		t.Errorf("%v is not between %v and now", now, before)
	}
	step := time.Duration(0)
	c.read = func() (time.Time, time.Duration) {
		wall, passed := machineClock()
		return wall.Round(0).Add(step), passed
	}
	step = 24 * time.Hour
	now := c.now()
	if past := time.Since(now); past < 0 || past > time.Minute {
		t.Errorf("it was %v ago", past)
	}
}

// The state's time goes on from where it was, whatever the clock says, a little slower until the clock has come up.
func TestTheTimeOfTheStateNeverGoesBack(t *testing.T) {
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	wall, passed := noon, time.Duration(0)
	c := newClock(testLog(t), func() (time.Time, time.Duration) { return wall, passed })
	pass := func(d time.Duration) { wall, passed = wall.Add(d), passed+d }
	want := func(what string, clock, state time.Duration) {
		t.Helper()
		if m := c.moment(); !m.Time.Equal(noon.Add(clock)) || m.State != metadata.TimeOf(noon.Add(state)) {
			t.Errorf("%s: %v and %v, want %v and %v", what, m.Time.Sub(noon), m.State.Time().Sub(noon), clock, state)
		}
	}
	if ahead := c.begin(metadata.TimeOf(noon.Add(-time.Hour))); ahead != 0 {
		t.Errorf("behind the clock: %v ahead", ahead)
	}
	want("behind the clock", 0, 0)
	if ahead := c.begin(metadata.TimeOf(noon.Add(2 * time.Hour))); ahead != 2*time.Hour {
		t.Errorf("two hours ahead: %v", ahead)
	}
	want("ahead", 0, 2*time.Hour)
	pass(8 * time.Minute)
	want("eight minutes later", 8*time.Minute, 2*time.Hour+7*time.Minute)
	pass(16 * time.Hour)
	want("the next day", 16*time.Hour+8*time.Minute, 16*time.Hour+8*time.Minute)
	wall = wall.Add(-30 * time.Second) // too little to be a step
	want("set back a little", 16*time.Hour+7*time.Minute+30*time.Second, 16*time.Hour+8*time.Minute)
	pass(4 * time.Minute)
	want("and the clock has come up", 16*time.Hour+11*time.Minute+30*time.Second, 16*time.Hour+11*time.Minute+30*time.Second)
	wall = wall.Add(-6 * time.Hour)
	want("set back", 16*time.Hour+11*time.Minute+30*time.Second, 16*time.Hour+11*time.Minute+30*time.Second)
	pass(61 * time.Minute)
	want("which is believed", 11*time.Hour+12*time.Minute+30*time.Second, 16*time.Hour+11*time.Minute+30*time.Second)
	pass(8 * time.Minute)
	want("and it goes on", 11*time.Hour+20*time.Minute+30*time.Second, 16*time.Hour+18*time.Minute+30*time.Second)
}
