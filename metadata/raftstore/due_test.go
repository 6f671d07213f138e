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
		{"load, small state", 0, mib, 10 * mib, 64 * mib, 1000},
		{"load, larger state", 0, mib, 400 * mib, 100 * mib, 1000},
		{"load, huge state", 0, mib, 10_000 * mib, 128 * mib, 1000},
		{"rest with much behind", 8 * mib, 0, 256 * mib, 8 * mib, 121},
		{"rest with too little behind for a huge state", 8 * mib, 0, 10_000 * mib, -1, 1000},
		{"rest too short", 8 * mib, 0, 0, -1, 120},
		{"rest with little behind", 8*mib - 1, 0, 0, -1, 1000},
		{"a trickle is rest", 8 * mib, 100, 0, 8*mib + 12000, 1000},
	} {
		d := due{bytes: 64 * mib}
		if got := tick(&d, c.from, c.step, c.snapshot, c.ticks); got != c.want {
			t.Errorf("%s: due at %d, want %d", c.what, got, c.want)
		}
	}
	d := due{bytes: 64 * mib}
	d.taken = 7 * mib
	if got := tick(&d, 7*mib, 0, 0, 1000); got != -1 {
		t.Errorf("at rest after a snapshot: due at %d", got)
	}
}
