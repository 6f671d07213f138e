package raftstore

import (
	"context"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/internal/latest"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

// A state machine may not come back with an entry: what it has beside the log, a checkpoint that it reads or files that it writes, lies on a disk that does not answer. The log may go on
// then, and with it heartbeats and the lease, so nobody would miss a leader that carries out nothing. It hands over, to a voter that has carried the entry out, and stands no more while
// another one does. It need not end: entries and votes are of the log alone. It goes on with them until raft has handed it 128 advances of the commit index, under load in less than a second; then raft's main loop
// waits, too, and the member answers heartbeats and questions only, as one that is away, until its state machine comes back. Where an entry takes all members as long, nobody is there to hand over to.

// stuckSays is how often a member whose state machine is stuck says so, or a leader that it hands over.
const stuckSays = 10 * time.Second

// hang is an entry at which the state machine is stuck, and since when.
type hang struct {
	entry uint64
	since time.Time
}

// slowApply is the default of HostConfig.SlowApply where there is none of WriteDeadline.
const slowApply = 5 * time.Second

// watchMachine looks for entries that the state machine does not come back with, and asks it what it has: where somebody who reads holds up all others, there may be no entry
// that shows it, because nobody comes to propose one. While the state is replaced by another member's it need not answer. Time counts while this process runs.
func (g *Group) watchMachine() {
	limit := g.host.cfg.SlowApply
	tick := max(limit/10, time.Millisecond)
	waited := journal.Patience{Tick: tick}
	var has latest.Value[uint64]
	var entry uint64
	var asked, said, gaveUp time.Time // asked: what it does not answer; zero: it does
	g.every(tick, func() (goOn bool) {
		at, silent := g.fsm.applying.Load(), time.Time{}
		if a := has.Ask(tick/2, g.fsm.machine.AppliedIndex); a.Since() >= tick && g.fsm.replacing.Load() == 0 {
			silent = a.Late
		}
		same := at != 0 && at == entry || !silent.IsZero() && silent.Equal(asked)
		if asked = silent; !same {
			if entry = at; entry == 0 && !silent.IsZero() {
				entry = g.fsm.applied.Load()
			}
			if g.stuck.Swap(false) {
				g.log.Info("the state machine goes on")
				gaveUp = time.Time{}
			}
			waited.Reset()
			waited.Pass(time.Now())
			return true
		}
		took := waited.Pass(time.Now())
		if took < limit {
			return true
		}
		if !g.stuck.Load() {
			g.hang.Store(&hang{entry, time.Now().Add(-took)})
			g.stuck.Store(true)
		}
		g.abandonEnded()
		if g.raft.State() != raft.Leader || voters(g.raft.GetConfiguration().Configuration()) < 2 {
			g.sayStuck(&said, slog.LevelWarn, "the state machine does not come back with an entry: is the disk of its checkpoint, or of its files, silent?", entry, took)
			return true
		}
		r := g.lastReign.Load()
		to, found := g.successor(g.raft.CurrentTerm(), func(k knowledge) bool { return k.Roomy && k.Applied >= entry })
		if !found {
			g.sayStuck(&said, slog.LevelError, "the state machine does not come back with an entry, and no other member is known to have carried it out: nothing is until it does", entry, took)
			return true
		}
		g.sayStuck(&gaveUp, slog.LevelWarn, "giving up leadership: the state machine does not come back with an entry", entry, took, "to", to.ID)
		if err := g.yield(to); err != nil {
			g.log.Debug("the handover failed", "to", to.ID, "err", err)
			return true
		}
		if r != nil { // what is committed is carried out, and nobody here learns with what result before the state machine comes back
			r.abandon()
		}
		return true
	})
}

// abandonEnded ends the wait for what the last reign has sent off, if it is over, however that came: what is committed is out of raft's hands, which answers when the
// state machine comes back. A new reign waits for nothing of an earlier one: it is ready when the state machine has carried all of that out.
func (g *Group) abandonEnded() {
	if r := g.lastReign.Load(); r != nil && r.ended() {
		r.abandon()
	}
}

// sayStuck says it now and then.
func (g *Group) sayStuck(said *time.Time, level slog.Level, what string, entry uint64, took time.Duration, more ...any) {
	if time.Since(*said) < stuckSays {
		return
	}
	*said = time.Now()
	g.log.Log(context.Background(), level, what, append([]any{"entry", entry, "for", took.Round(time.Millisecond)}, more...)...)
}

// willing: this member may well lead.
func (g *Group) willing() bool { return g.host.space.roomy() && !g.stuck.Load() }
