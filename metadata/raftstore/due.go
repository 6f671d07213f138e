package raftstore

import (
	"errors"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/internal/pace"
)

// due decides when a snapshot is worth its cost, which is that of what changed.
type due struct {
	bytes int64 // GroupConfig.SnapshotBytes
	taken int64 // how long the log was when the last one was taken
	// seen is how long the log was at the time since which it has hardly grown.
	seen  int64
	since time.Time
}

// restFor is how long a group has to be at rest before what it has done is worth a snapshot.
const restFor = time.Minute

// at reports whether one is due when the log, whose bytes are counted from the group's start, has this size. Under load it waits
// for SnapshotBytes. At rest an eighth is enough: a member that is restarted then has little to replay.
func (d *due) at(now time.Time, size int64) bool {
	if size-d.seen > d.bytes/4096 || d.since.IsZero() {
		d.seen, d.since = size, now
	}
	grown := size - d.taken
	return grown >= d.bytes || grown >= max(d.bytes/8, 1) && now.Sub(d.since) >= restFor
}

// watchSize takes snapshots when they are due, until the group ends.
func (g *Group) watchSize() {
	const interval = 500 * time.Millisecond
	t := pace.NewBeat(interval)
	defer t.Stop()
	d := due{bytes: g.cfg.SnapshotBytes}
	var pause time.Time
	forced := false // until one was taken
	for {
		select {
		case <-g.dying:
			return
		case <-g.snapNow:
			forced = true
		case <-t.C:
			t.Next()
		}
		now, size := time.Now(), g.journal.Appended()
		crowded, _ := g.fsm.machine.(Crowded)
		forced = forced || crowded != nil && crowded.Crowded()
		if !d.at(now, size) && !forced || now.Before(pause) {
			continue
		}
		if err := g.host.space.room(g.snapshotTakes()); err != nil {
			continue // writing it would fill the disk; proposals have stopped, so the log does not grow
		}
		switch err := g.snapshot(); {
		case err == nil, errors.Is(err, raft.ErrNothingNewToSnapshot):
			d.taken, forced = size, false
			select {
			case g.copyNow <- struct{}{}:
			default:
			}
		default:
			// Out of space, or a change of membership is not committed yet.
			g.log.Warn("snapshot failed", "err", err)
			pause = time.Now().Add(10 * time.Second)
		}
	}
}
