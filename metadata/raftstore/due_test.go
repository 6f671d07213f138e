package raftstore

import (
	"testing"
	"time"
)

// Under load a snapshot waits for SnapshotBytes, longer for a large state, but not for ever; at rest it comes sooner,
// and not again and again for nothing.
func TestSnapshotsAreDueByLoadSizeAndRest(t *testing.T) {
	const mib = 1 << 20
	start := time.Unix(1000, 0)
	tick := func(d *due, from, step, snapshot int64, ticks int) (at int64) {
		for i := range ticks {
			size := from + int64(i)*step
			if d.at(start.Add(time.Duration(i)*500*time.Millisecond), size, snapshot) {
				return size
			}
		}
		return -1
	}
	for _, c := range []struct {
		what           string
		from, step     int64
		snapshot, want int64
		ticks          int
	}{
		{"load, small state", 0, mib, 10 * mib, 128 * mib, 1000},
		{"load, larger state", 0, mib, 800 * mib, 200 * mib, 1000},
		{"load, huge state", 0, mib, 10_000 * mib, 256 * mib, 1000},
		{"rest with much behind", 4 * mib, 0, 256 * mib, 4 * mib, 5},
		{"rest with too little behind for a huge state", 4 * mib, 0, 10_000 * mib, -1, 1000},
		{"rest too short", 4 * mib, 0, 0, -1, 4},
		{"rest with little behind", 4*mib - 1, 0, 0, -1, 1000},
		{"a trickle is rest", 4 * mib, 100, 0, 4*mib + 400, 1000},
	} {
		d := due{bytes: 128 * mib}
		if got := tick(&d, c.from, c.step, c.snapshot, c.ticks); got != c.want {
			t.Errorf("%s: due at %d, want %d", c.what, got, c.want)
		}
	}
	d := due{bytes: 128 * mib}
	d.taken = 7 * mib
	if got := tick(&d, 7*mib, 0, 0, 1000); got != -1 {
		t.Errorf("at rest after a snapshot: due at %d", got)
	}
}
