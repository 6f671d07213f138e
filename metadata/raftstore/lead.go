package raftstore

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

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

var errStuckTransfer = fmt.Errorf("a handover of leadership has not ended for %v: raft takes no commands any more", transferPatience)

// reign is one period of leadership, from the barrier to its loss.
type reign struct {
	term uint64
	lost chan struct{}
	// asks is who is asked whether the reign still holds.
	asks inquiry
}

func (g *Group) newReign() *reign {
	r := &reign{term: g.raft.CurrentTerm(), lost: make(chan struct{})}
	r.asks.group, r.asks.reign = g, r
	return r
}

func (r *reign) end() {
	close(r.lost)
	r.asks.close()
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
			r.end()
		}
		if candidate != nil {
			candidate.end()
			candidate = nil
		}
	}
	defer end()
	for {
		select {
		case elected := <-notify:
			end()
			if elected {
				r := g.newReign()
				candidate = r
				g.workers.Go(func() {
					index, err := g.barrier(r)
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
			if b.err != nil { // raft has stepped down, and notify says so next
				g.log.Debug("barrier of a new leader failed", "err", b.err)
				break
			}
			candidate = nil
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
// not linearizable on a fresh leader (hashicorp/raft#359). A handover that was under way when this member last led may
// make raft refuse for a moment, or, by hashicorp/raft#696, for ever.
func (g *Group) barrier(r *reign) (uint64, error) {
	began := time.Now()
	for {
		future := g.raft.Barrier(0)
		err := future.Error()
		if err == nil {
			if f, ok := future.(raft.IndexFuture); ok {
				return f.Index(), nil
			}
			return 0, nil
		}
		if !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			return 0, err
		}
		if time.Since(began) > transferPatience {
			g.fail(errStuckTransfer)
			return 0, err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-r.lost:
			return 0, err
		case <-g.dying:
			return 0, err
		}
	}
}

func (g *Group) notLeader() error {
	l := g.Leadership()
	return &NotLeader{LeaderID: l.LeaderID, LeaderAddress: l.LeaderAddress}
}
