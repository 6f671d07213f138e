package raftstore

import "time"

// gatherMost bounds for how long an entry waits, whatever entries take.
const gatherMost = 2 * time.Millisecond

// gathering says for how long the next entry waits for commands after the last one has landed. Whoever had a command under way then, in the entry or
// behind it, is a crowd: those who have just been answered are expected back with their next one, and if what has gathered meanwhile went off
// without them, they would gather behind it, and so on, in entries of half the crowd. It waits until seven eighths of the crowd are there, but no
// command waits for longer than an entry takes. One is no crowd.
type gathering struct {
	// took is how long entries take, of late.
	took time.Duration
	// target is how many commands the next entry waits for, until a time; 0: it does not wait.
	target int
	until  time.Time
}

// most is for how long a command waits for others.
func (g *gathering) most() time.Duration { return min(g.took, gatherMost) }

// landed notes that an entry with n commands has landed, which took so long, and that so many wait.
func (g *gathering) landed(n, waiting int, took time.Duration, now time.Time) {
	if took = min(took, 2*gatherMost); g.took == 0 {
		g.took = took
	}
	g.took += (took - g.took) / 8
	g.target = 0
	if crowd := n + waiting; crowd > 1 {
		g.target, g.until = min(crowd-crowd/8, worthwhile), now.Add(g.most())
	}
}

// first notes that a command has come for which nobody waited: if it has come soon, it waits for others from now on.
func (g *gathering) first(now time.Time) {
	if !g.over(1, now) {
		g.until = now.Add(g.most())
	}
}

// over reports whether an entry with so many commands waits no longer.
func (g *gathering) over(waiting int, now time.Time) bool {
	if g.target > 0 && (waiting >= g.target || !now.Before(g.until)) {
		g.target = 0
	}
	return g.target == 0
}
