package raftstore

import (
	"sync/atomic"
	"testing"
	"time"
)

// Under load a snapshot waits for SnapshotBytes; at rest it comes sooner, and not again and again for nothing.
func TestSnapshotsAreDueByLoadAndRest(t *testing.T) {
	const mib = 1 << 20
	start := time.Unix(1000, 0)
	tick := func(d *due, from, step int64, ticks int) (at int64) {
		for i := range ticks {
			size := from + int64(i)*step
			if d.at(start.Add(time.Duration(i)*500*time.Millisecond), size) {
				return size
			}
		}
		return -1
	}
	for _, c := range []struct {
		what             string
		from, step, want int64
		ticks            int
	}{
		{"load", 0, mib, 64 * mib, 1000},
		{"rest with much behind", 8 * mib, 0, 8 * mib, 121},
		{"rest too short", 8 * mib, 0, -1, 120},
		{"rest with little behind", 8*mib - 1, 0, -1, 1000},
		{"a trickle is rest", 8 * mib, 100, 8*mib + 12000, 1000},
	} {
		d := due{bytes: 64 * mib}
		if got := tick(&d, c.from, c.step, c.ticks); got != c.want {
			t.Errorf("%s: due at %d, want %d", c.what, got, c.want)
		}
	}
	d := due{bytes: 64 * mib}
	d.taken = 7 * mib
	if got := tick(&d, 7*mib, 0, 1000); got != -1 {
		t.Errorf("at rest after a snapshot: due at %d", got)
	}
}

// crowded is a machine whose memory is full until a snapshot is taken.
type crowded struct {
	*machine
	full atomic.Bool
}

func (c *crowded) Crowded() bool { return c.full.Load() }

func (c *crowded) Freeze() (Snapshot, error) {
	c.full.Store(false)
	return c.machine.Freeze()
}

// A machine that is out of memory gets a snapshot, however short the log is.
func TestCrowdedMachineGetsASnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	nd := c.host("m1")
	m := &crowded{machine: newMachine()}
	g, err := nd.host.Open(c.config("a", true), m)
	if err != nil {
		t.Fatal(err)
	}
	nd.groups["a"] = g
	c.propose("a", set("x", 1))
	if at := g.Status().Snapshot; at != 0 {
		t.Fatalf("a snapshot at %d without a reason", at)
	}
	m.full.Store(true)
	eventually(t, "a snapshot is taken", func() bool { return g.Status().Snapshot > 0 && !m.full.Load() })
}
