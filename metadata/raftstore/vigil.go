package raftstore

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// A leader whose process has ended is missed sooner than one that is silent. Its connections end with it, and its address refuses new ones: whoever
// notices stands for election when its promise is over, one member after the other, and does not wait for raft's timer. That an address refuses
// connections proves nothing, because a firewall may do it, so nothing but the time of an election rests on it: promises last as long as ever, and who
// has the leader's heartbeats gives no pre-vote.

const (
	// turns is how many members of a group may stand one after the other within Timers.Heartbeat.
	turns = 5
	// knocks is how often within Timers.Heartbeat a leader's address is tried whose connection has ended: it may take connections for a moment while
	// its process ends.
	knocks = 20
)

// watchLeader has this member stand for election when the leader's process is gone, or when a candidate has less than it.
func (g *Group) watchLeader() {
	for {
		select {
		case <-g.streams.ended:
			promised := g.wire.lease.promised.Load()
			if leader, term := g.wire.leader(); g.gone(leader, term, promised) {
				if g.wire.lease.gone.Swap(term) != term { // its other connections end as well
					g.log.Info("the leader's process is gone: its connections have ended and its address refuses others", "leader", string(leader), "term", term)
					g.acquaint(leader)
				}
				g.succeed(term, promised, g.turn(leader))
			}
		case candidate := <-g.wire.lesser:
			leader, _ := g.wire.leader()
			g.succeed(g.raft.CurrentTerm(), g.wire.lease.promised.Load(), g.turn(leader, candidate))
		case <-g.dying:
			return
		}
	}
}

// gone reports whether the address of the leader of a term refuses connections, while this member follows and does not hear it again, as promised would
// show.
func (g *Group) gone(leader raft.ServerID, term uint64, promised int64) bool {
	address, err := g.members.ServerAddr(leader)
	if err != nil || string(leader) == g.host.cfg.ID {
		return false
	}
	for g.follows(term) && g.wire.lease.promised.Load() == promised && g.wire.quiet() < g.cfg.Timers.Heartbeat {
		ctx, cancel := context.WithTimeout(context.Background(), g.cfg.Timers.Lease)
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", string(address))
		cancel()
		switch {
		case err == nil:
			conn.Close()
		case errors.Is(err, syscall.ECONNREFUSED):
			return g.follows(term) && g.wire.lease.promised.Load() == promised
		}
		if !g.wire.rest(g.cfg.Timers.Heartbeat / knocks) {
			return false
		}
	}
	return false
}

// acquaint makes the connections to the other voters that an election needs, while there is time: a handshake takes long on a busy machine. What is
// asked is a pre-vote in a term that is over, to which raft says no.
func (g *Group) acquaint(but raft.ServerID) {
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter && string(s.ID) != g.host.cfg.ID && s.ID != but {
			g.workers.Go(func() {
				request := &raft.RequestPreVoteRequest{RPCHeader: g.wire.header()}
				if err := g.wire.NetworkTransport.RequestPreVote(s.ID, s.Address, request, new(raft.RequestPreVoteResponse)); err != nil {
					g.log.Debug("no connection to a member whose vote may be needed", "to", s.ID, "err", err)
				}
			})
		}
	}
}

// follows reports whether this member is a follower in a term.
func (g *Group) follows(term uint64) bool {
	return g.raft.State() == raft.Follower && g.raft.CurrentTerm() == term
}

// turn is how many other voters stand before this one, but for some.
func (g *Group) turn(but ...raft.ServerID) (turn int) {
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter && string(s.ID) < g.host.cfg.ID && !slices.Contains(but, s.ID) {
			turn++
		}
	}
	return turn
}

// succeed stands for election in the term behind one when this member's promise is over and it has heard no leader, as promised would show, and no
// candidate with as much as it has until its turn has come. One connection of a leader's may end while another still has requests: then there is a next
// time.
func (g *Group) succeed(term uint64, promised int64, turn int) {
	began, called, t := time.Now(), int64(g.wire.lease.now()), g.cfg.Timers
	wait := max(g.wire.binding(), t.Lease-time.Since(g.raft.LastContact()), 0) + time.Millisecond // clocks are not read all at once
	over, due := began.Add(wait), began.Add(wait+time.Duration(turn)*t.Heartbeat/turns)
	for time.Now().Before(due) {
		select {
		case <-g.wire.lesser: // nobody who has more comes first
			due = over
		case <-time.After(min(time.Until(due), t.Heartbeat/knocks)):
		case <-g.dying:
			return
		}
		if !g.follows(term) || g.wire.lease.promised.Load() != promised || g.wire.courted.Load() > called {
			return
		}
	}
	if g.follows(term) && g.wire.content() <= 0 && !g.holdsBack() && votes(g.raft.GetConfiguration().Configuration(), raft.ServerID(g.host.cfg.ID)) {
		g.stand()
	}
}

// stand has raft stand for election, with pre-votes, as when its timer ends: raft looks at how long it has heard nothing when that timer becomes
// shorter. It gets its former length again when raft has looked.
func (g *Group) stand() {
	t := g.cfg.Timers
	timers := func(heartbeat, election time.Duration) {
		if err := g.raft.ReloadConfig(raft.ReloadableConfig{
			TrailingLogs: trailingLogs, SnapshotInterval: snapshotInterval, SnapshotThreshold: snapshotThreshold,
			HeartbeatTimeout: heartbeat, ElectionTimeout: election,
		}); err != nil {
			g.log.Error("raft does not take its timers", "err", err)
		}
	}
	longer := t.Heartbeat + time.Nanosecond
	timers(longer, max(t.Election, longer))
	timers(t.Lease, t.Election)
	defer timers(t.Heartbeat, t.Election)
	for looked := time.Now(); g.raft.State() == raft.Follower && time.Since(looked) < t.Lease; {
		if !g.wire.rest(holdLook) {
			return
		}
	}
}

// compare looks at the end of a candidate's log, and reports whether this member's has no more.
func (w *wire) compare(header raft.RPCHeader, index, term uint64) bool {
	own := w.end()
	if cmp.Or(cmp.Compare(own.Term, term), cmp.Compare(own.Index, index)) <= 0 {
		w.courted.Store(int64(w.lease.now()))
		return true
	}
	if w.content() <= 0 {
		select {
		case w.lesser <- raft.ServerID(header.ID):
		default:
		}
	}
	return false
}

// end is the last entry that this member has in its log or its newest snapshot; all of it but index and term may be missing.
func (w *wire) end() (last raft.Log) {
	g := w.group
	index := g.raft.LastIndex()
	if index == 0 || g.journal.GetLog(index, &last) == nil {
		return last
	}
	if list := g.snapshots.all(); len(list) > 0 {
		return raft.Log{Index: list[0].meta.Index, Term: list[0].meta.Term}
	}
	return raft.Log{}
}

// votes reports whether a member is a voter.
func votes(c raft.Configuration, id raft.ServerID) bool {
	return slices.ContainsFunc(c.Servers, func(s raft.Server) bool { return s.ID == id && s.Suffrage == raft.Voter })
}
