package raftstore

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// A member that does not lead answers reads whose callers say how old an answer may be. What it hears from its leader by itself does not tell how old
// its own state is: a request may have lain in the buffers of a process that stood still. So it asks: it looks at its clock, asks the leader
// up to which entry everything is acknowledged, and has applied that entry when the answer counts. DESIGN.md has the argument.

// horizon says that every write that was acknowledged before a time, by this member's clock of leases, is among the entries up to index.
type horizon struct {
	at    time.Duration
	index uint64
}

// horizons are what a member finds out about the age of its state.
type horizons struct {
	// newest is the last horizon to which the state has come.
	newest atomic.Pointer[horizon]
	wake   chan struct{} // capacity 1

	mu      sync.Mutex
	waiting []awaited // for the next round
	closed  bool
	// of the goroutine that asks
	conn net.Conn
	to   raft.ServerID
}

// awaited is a read that waits for a round.
type awaited struct {
	age  time.Duration
	done func(error)
}

// horizonPatience is how long a round may take at most.
const horizonPatience = time.Second

// ErrTooOld is why a member does not answer a read: it cannot tell that its state is as new as the caller wants it, or it is not.
var ErrTooOld = metadata.Errorf(metadata.ErrStandby, "this member's state may be older than the caller allows")

// ReadWithin calls done(fresh, nil) when the local state contains every write that any member acknowledged more than age ago; fresh tells, behind the read,
// whether what was read contains every one that had been acknowledged age before fresh was called, also if the process stood still meanwhile. If not, it
// must not be answered. done(nil, err): this member cannot tell, its state is older, or its leader is not to be reached; another one has to be asked.
// A read that is younger than half its age has the next one's question asked beside it, so a member that is read from all the time keeps nobody waiting.
func (g *Group) ReadWithin(age time.Duration, done func(fresh func() bool, err error)) {
	h := &g.horizons
	if g.cfg.QuorumReads || g.over.Load() { // or clocks may stand still with the machine
		done(nil, ErrTooOld)
		return
	}
	if n := h.newest.Load(); n != nil && g.within(n, age) {
		if !g.within(n, age/2) {
			h.rouse()
		}
		done(func() bool { return g.within(n, age) }, nil)
		return
	}
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		done(nil, ErrTooOld)
		return
	}
	h.waiting = append(h.waiting, awaited{age, func(err error) {
		n := h.newest.Load()
		if err != nil || n == nil || !g.within(n, age) {
			done(nil, ErrTooOld)
			return
		}
		done(func() bool { return g.within(n, age) }, nil)
	}})
	h.mu.Unlock()
	h.rouse()
}

// within reports whether a state that has come to a horizon contains what was acknowledged more than age ago. Clocks may go wrong by a tenth.
func (g *Group) within(n *horizon, age time.Duration) bool {
	return !g.over.Load() && g.wire.lease.now()-n.at < time.Duration(leasePart*float64(age))
}

// rouse begins another round, when the present one is over.
func (h *horizons) rouse() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// serveHorizons asks until the group ends; then waiting reads are refused.
func (g *Group) serveHorizons() {
	h := &g.horizons
	defer h.hangUp()
	for {
		ends := false
		select {
		case <-h.wake:
		case <-g.dying:
			ends = true
		}
		h.mu.Lock()
		waiting := h.waiting
		h.waiting, h.closed = nil, ends
		h.mu.Unlock()
		err := error(ErrTooOld)
		if !ends {
			err = g.lookOut(waiting)
		}
		for _, w := range waiting {
			go w.done(err) // a read may take long
		}
		if ends {
			return
		}
	}
}

// lookOut makes a round for some reads: it takes no longer than the most patient of them can use what it finds.
func (g *Group) lookOut(waiting []awaited) error {
	patience := time.Duration(0)
	for _, w := range waiting {
		patience = max(patience, w.age)
	}
	if len(waiting) == 0 || patience > horizonPatience {
		patience = horizonPatience
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n := &horizon{at: g.wire.lease.now()}
	var err error
	if n.index, err = g.ask(ctx); err != nil {
		return err
	}
	if err := g.AwaitApplied(ctx, n.index); err != nil {
		return err
	}
	g.horizons.newest.Store(n)
	return nil
}

// acknowledged is an entry up to which there is everything that any member acknowledged before the call; 0: this member does not lead.
func (g *Group) acknowledged(ctx context.Context) (index uint64) {
	if g.Glance(func() { index = g.Applied() }) {
		return index
	}
	if g.ReadWait(ctx) != nil {
		return 0
	}
	return g.Applied()
}

// ask asks the leader up to which entry everything is acknowledged that was before the call. A connection that has lain may have ended: there is
// another one then.
func (g *Group) ask(ctx context.Context) (uint64, error) {
	h := &g.horizons
	leader := raft.ServerID(g.Leadership().LeaderID)
	if g.wire.cut.Load() || leader == "" {
		return 0, g.notLeader()
	}
	if string(leader) == g.host.cfg.ID {
		return known(g.acknowledged(ctx))
	}
	if h.conn != nil && h.to == leader {
		if index, err := h.exchange(ctx); err == nil {
			return known(index)
		}
	}
	h.hangUp()
	address, err := g.members.ServerAddr(leader)
	if err != nil {
		return 0, err
	}
	deadline, _ := ctx.Deadline()
	if h.conn, err = g.streams.dial(ctx, questionMagic, address, time.Until(deadline)); err != nil {
		h.conn = nil
		return 0, err
	}
	h.to = leader
	index, err := h.exchange(ctx)
	if err == nil && g.wire.cut.Load() {
		err = errCut
	}
	if err != nil {
		h.hangUp()
		return 0, err
	}
	return known(index)
}

var errKnowsNothing = errors.New("the member that was asked does not lead any more")

func known(index uint64) (uint64, error) {
	if index == 0 {
		return 0, errKnowsNothing
	}
	return index, nil
}

// exchange sends a question and waits for its answer. With an error the connection is of no use any more: the answer may come later.
func (h *horizons) exchange(ctx context.Context) (uint64, error) {
	deadline, _ := ctx.Deadline()
	if err := h.conn.SetDeadline(deadline); err != nil {
		return 0, err
	}
	var b [questionBytes]byte
	binary.BigEndian.PutUint64(b[:], anyTerm)
	if _, err := h.conn.Write(b[:]); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(h.conn, b[:]); err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(b[:]), nil
}

func (h *horizons) hangUp() {
	if h.conn != nil {
		h.conn.Close()
		h.conn = nil
	}
}
