package raftstore

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// reader collects reads while a check of leadership is under way; the next check is for all of them.
type reader struct {
	mu      sync.Mutex
	waiting []func(error)
	closed  bool
	wake    chan struct{}
}

// Read calls done(nil) when the local state is at least as new as every write acknowledged before the call, by any
// member; a *NotLeader when this member does not lead. Calls come one after the other on the group's reader goroutine,
// so a done that takes long delays all reads: such work goes elsewhere. In a group of one voter done is called before
// Read returns, and several may run at a time.
func (g *Group) Read(done func(error)) {
	if g.current() {
		done(nil)
		return
	}
	r := &g.reads
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		done(g.notLeader())
		return
	}
	r.waiting = append(r.waiting, done)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// current reports that the local state is new enough without asking anybody. The only voter of a group answers a write
// after it has applied it, and what a former life acknowledged lies before the barrier with which its reign began.
func (g *Group) current() bool {
	if !g.solo.Load() || g.over.Load() {
		return false
	}
	reign := g.reign.Load()
	return reign != nil && g.raft.State() == raft.Leader && g.raft.CurrentTerm() == reign.term
}

// ReadWait is Read for callers that wait.
func (g *Group) ReadWait(ctx context.Context) error {
	result := make(chan error, 1)
	g.Read(func(err error) { result <- err })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// serveReads runs the checks until the group ends; then waiting reads are refused.
func (g *Group) serveReads() {
	r := &g.reads
	var batch []func(error)
	for {
		select {
		case <-r.wake:
		case <-g.dying:
			r.mu.Lock()
			r.closed = true
			batch, r.waiting = r.waiting, nil
			r.mu.Unlock()
			for _, done := range batch {
				done(g.notLeader())
			}
			return
		}
		r.mu.Lock()
		batch, r.waiting = r.waiting, batch[:0]
		r.mu.Unlock()
		err := g.confirm()
		for i, done := range batch {
			done(err)
			batch[i] = nil
		}
	}
}

// Current reports whether this member's state was lately all that the group had acknowledged: it leads, or it hears a leader and has applied what
// that one has said is committed. One that has started, or is cut off, is not current before it hears a leader. It asks nobody.
func (g *Group) Current() bool {
	l := g.Leadership()
	heard := g.wire.commit()
	return l.Leader || l.LeaderID != "" && heard > 0 && g.fsm.applied.Load() >= heard
}

// Applied is the last entry that this member's state contains.
func (g *Group) Applied() uint64 { return g.fsm.applied.Load() }

// Shown is the last entry that a read which has ended may have seen: Applied, or the one that is being carried out.
func (g *Group) Shown() uint64 { return max(g.fsm.begun.Load(), g.fsm.applied.Load()) }

// confirm is ReadIndex: note the commit index, make sure that this member still leads, wait until the noted entry is
// applied.
//
// A member is asked in a message of our own, which its connection's goroutine answers (ask.go); what it accepts from raft
// in the meantime counts too. raft's VerifyLeader counts every acknowledgement that arrives after it was called, also of
// heartbeats that were sent before: after a process was stopped and goes on, those lie in its socket buffers, and a
// majority of them proves nothing about now. So the check here is on acknowledgements of what was sent after it began, and
// VerifyLeader only makes raft send heartbeats where questions do not get through.
func (g *Group) confirm() error {
	reign := g.reign.Load()
	if reign == nil || g.over.Load() {
		return g.notLeader()
	}
	commit := g.raft.CommitIndex()
	self := raft.ServerID(g.host.cfg.ID)
	round := g.wire.round.Add(1)
	configuration := g.raft.GetConfiguration().Configuration()
	if !g.wire.confirmed(self, configuration, reign.term, round) {
		g.wire.waiting.Store(true)
		defer g.wire.waiting.Store(false)
		if !reign.asks.ask(configuration, round, false) {
			g.raft.VerifyLeader()
		}
		late := time.NewTimer(askPatience)
		defer late.Stop()
		for !g.wire.confirmed(self, configuration, reign.term, round) {
			select {
			case <-g.wire.acked:
				if !reign.asks.again(configuration, round) {
					g.raft.VerifyLeader()
				}
			case <-late.C:
				reign.asks.late(configuration, round)
				g.raft.VerifyLeader()
			case <-reign.lost:
				return g.notLeader()
			case <-g.dying:
				return g.notLeader()
			}
			configuration = g.raft.GetConfiguration().Configuration()
		}
	}
	if g.raft.State() != raft.Leader || !g.stands(reign.term) {
		return g.notLeader()
	}
	if g.fsm.applied.Load() >= commit {
		return nil
	}
	g.fsm.awaited.Store(commit)
	defer g.fsm.awaited.Store(0)
	for g.fsm.applied.Load() < commit {
		select {
		case <-g.fsm.progress:
		case <-reign.lost:
			return g.notLeader()
		case <-g.dying:
			return g.notLeader()
		}
	}
	return nil
}
