package raftstore

import (
	"log/slog"

	"github.com/hashicorp/raft"
)

// Leadership is what a member knows about who leads.
type Leadership struct {
	// Leader: this member leads, and its state contains everything that was ever acknowledged: an entry of its own term
	// has been applied.
	Leader bool
	// LeaderID and LeaderAddress are empty when no leader is known.
	LeaderID      string
	LeaderAddress string
	// Term is raft's term; for a leader the one in which it was elected.
	Term uint64
}

// reign is one period of leadership, from the barrier to its loss.
type reign struct {
	term uint64
	lost chan struct{}
}

// Leadership returns the present view without asking anybody. A leader that was cut off learns it when its lease ends;
// Read and Propose do not rely on this.
func (g *Group) Leadership() Leadership { return *g.leadership.Load() }

// Watch calls fn with the present view, and then on every change, in order, one call at a time. fn is quick and does not
// call Watch.
func (g *Group) Watch(fn func(Leadership)) {
	g.watchMu.Lock()
	defer g.watchMu.Unlock()
	g.watchers = append(g.watchers, fn)
	fn(g.Leadership())
}

// publish makes l the view and tells the watchers. Nothing comes after the group has failed or closed but that it does
// not lead.
func (g *Group) publish(l Leadership) {
	g.watchMu.Lock()
	defer g.watchMu.Unlock()
	if g.over.Load() {
		l.Leader = false
	}
	old := g.Leadership()
	if old == l {
		return
	}
	g.leadership.Store(&l)
	if old.Leader != l.Leader || old.LeaderID != l.LeaderID {
		g.log.Info("leadership changed", slog.Bool("leader", l.Leader), slog.String("leads", l.LeaderID), slog.Uint64("term", l.Term))
	}
	for _, fn := range g.watchers {
		fn(l)
	}
}

// follow turns raft's notices into Leadership until stop is closed. raft waits for notify to be read, so that gain and
// loss cannot overtake each other; observed only says that something may have changed.
func (g *Group) follow(notify <-chan bool, observed <-chan raft.Observation, stop <-chan struct{}) {
	type barrier struct {
		reign *reign
		index uint64
		err   error
	}
	ready := make(chan barrier, 1)
	var candidate *reign // elected, barrier not done
	end := func() {
		if r := g.reign.Swap(nil); r != nil {
			close(r.lost)
		}
		candidate = nil
	}
	defer end()
	for {
		select {
		case elected := <-notify:
			end()
			if elected {
				r := &reign{term: g.raft.CurrentTerm(), lost: make(chan struct{})}
				candidate = r
				g.workers.Go(func() {
					index, err := g.barrier()
					select {
					case ready <- barrier{r, index, err}:
					case <-stop:
					}
				})
			}
		case b := <-ready:
			if b.reign != candidate {
				break // of an earlier reign
			}
			candidate = nil
			if b.err != nil {
				g.log.Debug("barrier of a new leader failed", "err", b.err)
				break
			}
			g.fsm.advance(b.index)
			g.reign.Store(b.reign)
		case <-observed:
		case <-stop:
			return
		}
		l := Leadership{Term: g.raft.CurrentTerm()}
		addr, id := g.raft.LeaderWithID()
		l.LeaderID, l.LeaderAddress = string(id), string(addr)
		if r := g.reign.Load(); r != nil {
			l = Leadership{Leader: true, LeaderID: g.host.cfg.ID, LeaderAddress: g.host.cfg.Advertise, Term: r.term}
		}
		g.publish(l)
	}
}

// barrier waits until an entry of the present term is committed and everything before it applied: VerifyLeader alone is
// not linearizable on a fresh leader (hashicorp/raft#359).
func (g *Group) barrier() (uint64, error) {
	future := g.raft.Barrier(0)
	if err := future.Error(); err != nil {
		return 0, err
	}
	if f, ok := future.(raft.IndexFuture); ok {
		return f.Index(), nil
	}
	return 0, nil
}

func (g *Group) notLeader() error {
	l := g.Leadership()
	return &NotLeader{LeaderID: l.LeaderID, LeaderAddress: l.LeaderAddress}
}
