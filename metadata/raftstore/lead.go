package raftstore

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata/raftstore/journal"
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
	// abandoned is closed when this member gives up its leadership although raft cannot hear of it yet, or because of a state machine that carries out nothing:
	// what is under way has no known outcome then.
	abandoned chan struct{}
	leaving   sync.Once // closes abandoned
	// asks is who is asked whether the reign still holds.
	asks inquiry
}

func (g *Group) newReign() *reign {
	r := &reign{term: g.raft.CurrentTerm(), lost: make(chan struct{}), abandoned: make(chan struct{})}
	r.asks.group, r.asks.reign = g, r
	return r
}

func (r *reign) abandon() { r.leaving.Do(func() { close(r.abandoned) }) }

// ended: raft has said so. It is never ready again.
func (r *reign) ended() bool {
	select {
	case <-r.lost:
		return true
	default:
		return false
	}
}

func (r *reign) end() {
	close(r.lost)
	r.asks.close()
}

// slowWrite is a write of the log that takes too long.
type slowWrite struct {
	what string
	took time.Duration
}

// appended is told by the journal of an append.
func (g *Group) appended(first, last uint64, took time.Duration) {
	if slow := g.host.cfg.SlowAppend; slow.Slow(took) { // JournalNode's words
		slow.Tell("Sync of transaction range %d-%d took %dms (threshold=%dms), group=%s", first, last, took.Milliseconds(), slow.Limit().Milliseconds(), g.name)
	}
}

// tardy is told by the journal of a slow write.
func (g *Group) tardy(what string, took time.Duration) {
	select {
	case g.slow <- slowWrite{what, took}:
	default:
	}
}

// patient is asked by the journal whether a write that does not end is waited for: by the only voter of its group it is, because nobody could go on when it
// ends, and it could not either. One that makes its group, or starts, is it if it knows of no others; later its group may have shrunk to it.
func (g *Group) patient(what string, took time.Duration) bool {
	if g.started.Load() {
		if c := g.raft.GetConfiguration().Configuration(); voters(c) != 1 || !votes(c, raft.ServerID(g.host.cfg.ID)) {
			return false
		}
	} else if g.others() {
		return false
	}
	g.log.Error("the log's disk does not answer; nothing is acknowledged until it does", "write", what, "for", took.Round(time.Millisecond))
	return true
}

// abandon ends the reign of a leader whose disk is slow. raft's main loop waits for the disk, and its heartbeats go on
// without it (hashicorp/raft#503), so the wire falls silent: raft here, when it goes on, misses the others' answers and steps
// down. The others need not miss the leader first: the best of them is told to stand for election, as in a handover, which
// raft's main loop cannot do now. Who hears that stands in the next term, wins only with all that is committed, and the
// others vote for it although they know a leader; nobody waits for this member's log. Where it does not get through, the
// others elect one of themselves when their timers end. Commands under way have an unknown outcome.
func (g *Group) abandon(s slowWrite, current *reign) {
	if g.raft.State() != raft.Leader || voters(g.raft.GetConfiguration().Configuration()) < 2 || g.wire.silent.Swap(true) {
		return
	}
	term := g.raft.CurrentTerm()
	g.log.Warn("giving up leadership: the log's disk is slow", "write", s.what, "for", s.took.Round(time.Millisecond))
	if current != nil {
		current.abandon()
	}
	g.workers.Go(func() {
		if to, found := g.heir(term); found {
			g.log.Info("it is to lead in place of this member", "to", to.ID)
			g.wire.nominate(to)
		}
	})
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
		case s := <-g.slow:
			if g.abandon(s, g.reign.Load()); g.wire.silent.Load() {
				end()
			}
		case elected := <-notify:
			slow := g.wire.silent.Swap(false) // raft has heard of it
			if r := g.reign.Load(); r != nil || candidate != nil || slow {
				g.log.Info("leadership ended", "cause", g.endOfReign(r, slow))
			}
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
			g.lastReign.Store(b.reign)
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

// endOfReign says why raft has stepped down.
func (g *Group) endOfReign(r *reign, slow bool) string {
	switch term := g.raft.CurrentTerm(); {
	case slow:
		return "the log's disk was slow"
	case g.over.Load():
		return "the member stops"
	case r != nil && term > r.term:
		return fmt.Sprintf("term %d has begun: another member was handed leadership or was elected", term)
	}
	return fmt.Sprintf("no majority has answered for %v, or the log refused an entry", g.cfg.Timers.Lease)
}

// barrierAgain is how soon a barrier that raft refuses is tried again.
const barrierAgain = 10 * time.Millisecond

// barrier waits until an entry of the present term is committed and everything before it applied: VerifyLeader alone is
// not linearizable on a fresh leader (hashicorp/raft#359). A handover that was under way when this member last led may
// make raft refuse for a moment, or, by hashicorp/raft#696, for ever.
func (g *Group) barrier(r *reign) (uint64, error) {
	if !g.outlast(r) {
		return 0, g.notLeader()
	}
	refused := journal.Patience{Tick: barrierAgain}
	for {
		future := g.raft.Apply(encodeBatch(nil), 0) // raft's own barrier is nothing that followers notice (Current)
		err := g.settle(future)
		if err == nil {
			if f, ok := future.(raft.IndexFuture); ok {
				return f.Index(), nil
			}
			return 0, nil
		}
		if !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
			return 0, err
		}
		if refused.Pass(time.Now()) > transferPatience {
			g.fail(errStuckTransfer)
			return 0, err
		}
		select {
		case <-time.After(barrierAgain):
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
