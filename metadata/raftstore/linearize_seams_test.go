package raftstore

import "time"

// What a test of state machines on a group needs of its inside.

// Cut separates the member from the others, for good.
func (g *Group) Cut() { g.wire.cut.Store(true) }

// Reach has the member reach another one at an address.
func (g *Group) Reach(m Member) { g.members.set(m) }

// SetClock is the clock of leases.
func (c *GroupConfig) SetClock(clock func() time.Duration) { c.clock = clock }

// BootTime is the clock that leases have otherwise.
var BootTime = bootTime
