package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

// A leader's lease is until when nobody else can have been elected: a majority has accepted requests of raft's that were sent at some time, each
// of that majority votes for nobody else for Timers.Lease after it has accepted one, and every later leader needs the vote of one of them.
// DESIGN.md has the argument, and what breaks it.
type lease struct {
	// now is the clock, which goes on while the machine sleeps; tests have their own.
	now func() time.Duration
	// until is when the lease of the term ends.
	until atomic.Pointer[leased]
	// led is the last term in which this member has led and all earlier leases were over. given is the last one in which it began a handover: who is
	// told to stand gets votes although a leader is known.
	led, given atomic.Uint64
	// named is the term of the leader that has told this member to stand for election, standing the one in which it stands although nobody has.
	named, standing atomic.Uint64
	// promised is when this member last took a request of a leader's, or started and may have forgotten one: a leader may rely on it for
	// Timers.Lease from then on. What raft knows of its leader says nothing about that: see passVote.
	promised atomic.Int64
	// gone is the term of a leader whose process has ended, as far as this member knows (vigil.go): no promise ends by it.
	gone atomic.Uint64
}

// anyTerm: this member stands in the next term in which it asks for votes. In a question: see answer.
const anyTerm = math.MaxUint64

type leased struct {
	term  uint64
	until time.Duration
}

// leasePart is what of Timers.Lease a lease lasts: clocks of two machines may differ in rate by a tenth.
const leasePart = 0.9

// bootTime is the time since the machine's start, sleep included.
func bootTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(fmt.Errorf("raftstore: CLOCK_BOOTTIME: %w", err)) // Linux has had it since 2.6.39
	}
	return time.Duration(t.Nano())
}

// Glance runs look on the local state and reports whether what it has seen is at least as new as every write acknowledged before the call, by any
// member: this member leads, and its lease held until look had returned, however long that took. It asks nobody, and does not run look where the
// lease does not hold. false: Read tells.
func (g *Group) Glance(look func()) bool {
	reign := g.reign.Load()
	if reign == nil || g.over.Load() {
		return false
	}
	if g.current() {
		look()
		return true
	}
	if g.cfg.QuorumReads || !g.leases(reign) {
		return false
	}
	look()
	return g.leases(reign) && g.reign.Load() == reign
}

// leases reports whether this member leads and nobody else can have been elected by now.
func (g *Group) leases(reign *reign) bool {
	l := &g.wire.lease
	u := l.until.Load()
	return u != nil && u.term == reign.term && l.given.Load() < reign.term && g.stands(reign.term) && g.raft.State() == raft.Leader && l.now() < u.until
}

// extend notes the lease after a member has accepted another request of a term. w.mu is held.
func (w *wire) extend(term uint64) {
	g := w.group
	if g.raft == nil {
		return
	}
	self := raft.ServerID(g.host.cfg.ID)
	var room [8]time.Duration
	sent := room[:0] // of the others
	voters, mine := 0, 0
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage != raft.Voter {
			continue
		}
		voters++
		if s.ID == self {
			mine = 1
		} else if p := w.peers[s.ID]; p.term == term && p.sent > 0 {
			sent = append(sent, p.sent)
		}
	}
	need := voters/2 + 1 - mine
	if need > len(sent) || need <= 0 {
		return
	}
	slices.Sort(sent)
	until := sent[len(sent)-need] + time.Duration(leasePart*float64(g.cfg.Timers.Lease))
	if u := w.lease.until.Load(); u == nil || u.term < term || u.term == term && u.until < until {
		w.lease.until.Store(&leased{term, until})
	}
}

// promise notes that a leader's request has come. That is before it is accepted, and so before a vote of a later term is given: raft accepts nothing
// of an earlier term after it has begun that one.
func (w *wire) promise(request *raft.AppendEntriesRequest) {
	if request.Term >= w.group.raft.CurrentTerm() {
		raise(&w.lease.promised, int64(w.lease.now()))
		w.lease.gone.CompareAndSwap(request.Term, 0)
	}
}

// quiet is for how long this member has taken no request of a leader's.
func (w *wire) quiet() time.Duration {
	return w.lease.now() - time.Duration(w.lease.promised.Load())
}

// bound reports whether a leader may still rely on this member's not voting for anybody.
func (w *wire) bound() bool { return w.binding() > 0 }

// binding is for how long this member is still bound.
func (w *wire) binding() time.Duration { return w.group.cfg.Timers.Lease - w.quiet() }

// content is for how long this member wants no other leader: while it is bound, and, when it does not know the leader's process to be gone, until it has
// heard nothing for Heartbeat, as a candidate has by raft's timer.
func (w *wire) content() time.Duration {
	if w.lease.gone.Load() == w.group.raft.CurrentTerm() {
		return w.binding()
	}
	return w.group.cfg.Timers.Heartbeat - w.quiet()
}

// withholds reports whether a vote must not be given yet, because a leader may rely on that, or a request to stand is ignored, because its sender
// does not lead any more. A candidate with nothing but the first entry founds the group.
func (w *wire) withholds(rpc raft.RPC) bool {
	withheld := w.binding
	switch request := rpc.Command.(type) {
	case *raft.RequestVoteRequest:
		if request.LeadershipTransfer || request.LastLogIndex <= 1 {
			return false
		}
	case *raft.RequestPreVoteRequest:
		if request.LastLogIndex <= 1 {
			return false
		}
		withheld = w.content
	case *raft.TimeoutNowRequest:
		if w.lease.named.Load() == w.group.raft.CurrentTerm() {
			return false
		}
		rpc.Respond(nil, errLateHandover)
		return true
	default:
		return false
	}
	if withheld() <= 0 {
		return false
	}
	go w.hold(rpc, withheld)
	return true
}

const (
	// holdLook is how often hold looks.
	holdLook = 5 * time.Millisecond
	// holdPart is what of Timers.Heartbeat a candidate is kept waiting at most.
	holdPart = 0.75
)

// hold answers a candidate when nothing is withheld any more, if that is soon: members have heard their leader at different times, and a no would
// have the candidate wait for its next election. It says no when a leader is heard meanwhile.
func (w *wire) hold(rpc raft.RPC, withheld func() time.Duration) {
	most := time.Duration(holdPart * float64(w.group.cfg.Timers.Heartbeat))
	promised, began := w.lease.promised.Load(), time.Now()
	for left := withheld(); left > 0; left = withheld() {
		if w.lease.promised.Load() != promised || time.Since(began)+left > most || !w.rest(min(left, holdLook)) {
			w.refuse(rpc)
			return
		}
	}
	if w.cut.Load() {
		rpc.Respond(nil, errCut)
		return
	}
	w.dispatch(rpc)
}

// refuse says no to a candidate.
func (w *wire) refuse(rpc raft.RPC) {
	switch term := w.group.raft.CurrentTerm(); rpc.Command.(type) {
	case *raft.RequestVoteRequest:
		rpc.Respond(&raft.RequestVoteResponse{RPCHeader: w.header(), Term: term}, nil)
	case *raft.RequestPreVoteRequest:
		rpc.Respond(&raft.RequestPreVoteResponse{RPCHeader: w.header(), Term: term}, nil)
	}
}

// passVote has raft vote, and keeps what it says to itself if a heartbeat came in beside. raft refuses while it knows a leader, which it forgets only
// when a timer of its own ends, up to twice Heartbeat after that one was heard last: a follower is asked as in a handover, where it does not look at
// that. What binds this member is bound alone.
func (w *wire) passVote(rpc raft.RPC) {
	request, ok := rpc.Command.(*raft.RequestVoteRequest)
	if !ok || request.LeadershipTransfer || request.LastLogIndex <= 1 {
		w.pass(rpc)
		return
	}
	w.compare(request.RPCHeader, request.LastLogIndex, request.LastLogTerm)
	if w.group.raft.State() == raft.Follower {
		asked := *request
		asked.LeadershipTransfer = true
		rpc.Command = &asked
	}
	answer, origin := make(chan raft.RPCResponse, 1), rpc.RespChan
	rpc.RespChan = answer
	w.pass(rpc)
	select {
	case a := <-answer:
		if r, ok := a.Response.(*raft.RequestVoteResponse); ok && r.Granted && w.bound() {
			r.Granted = false
		}
		origin <- a
	case <-w.done:
		origin <- raft.RPCResponse{Error: raft.ErrTransportShutdown}
	}
}

// passPreVote answers a candidate who asks whether it would get a vote: as raft does, but for a follower's leader, whom raft knows for longer than it
// is content with. Nothing rests on the answer.
func (w *wire) passPreVote(rpc raft.RPC, request *raft.RequestPreVoteRequest) {
	r := w.group.raft
	more := request.LastLogIndex > 1 && w.compare(request.RPCHeader, request.LastLogIndex, request.LastLogTerm)
	if _, leader := r.LeaderWithID(); leader == "" || request.LastLogIndex <= 1 || r.State() != raft.Follower {
		w.pass(rpc)
		return
	}
	answer := &raft.RequestPreVoteResponse{RPCHeader: w.header(), Term: r.CurrentTerm()}
	if request.Term >= answer.Term {
		answer.Term = request.Term
		answer.Granted = more && votes(r.GetConfiguration().Configuration(), raft.ServerID(request.ID))
	}
	rpc.Respond(answer, nil)
}

var errLateHandover = errors.New("a handover of leadership by a member that does not lead any more, or not yet")

// TimeoutNow implements raft.Transport: a handover. This member's leases are over for its term. The other one is told the term, because what it is
// told may reach it when another member leads; it is the term in which this member leads, or did, whichever raft is in by now.
func (w *wire) TimeoutNow(id raft.ServerID, target raft.ServerAddress, req *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	if w.cut.Load() {
		return errCut
	}
	term := w.lease.led.Load()
	if term != w.group.raft.CurrentTerm() {
		return errLateHandover
	}
	raise(&w.lease.given, term)
	named := *req
	named.Addr = binary.BigEndian.AppendUint64(nil, term)
	return w.NetworkTransport.TimeoutNow(id, target, &named, resp)
}

// name notes in which term the leader led that has told this member to stand for election.
func (l *lease) name(request *raft.TimeoutNowRequest) {
	l.named.Store(0)
	if len(request.Addr) == 8 {
		l.named.Store(binary.BigEndian.Uint64(request.Addr))
	}
}

// RequestVote implements raft.Transport. Votes are asked for in the name of a handover only in the term behind that of the leader that wanted it,
// or because an operator wants it. Otherwise this member's own vote is one that it may have promised not to give, and so it asks for no others.
func (w *wire) RequestVote(id raft.ServerID, target raft.ServerAddress, req *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if w.cut.Load() {
		return errCut
	}
	if req.LeadershipTransfer && req.Term != w.lease.named.Load()+1 {
		w.lease.standing.CompareAndSwap(anyTerm, req.Term)
		if w.lease.standing.Load() != req.Term {
			plain := *req
			plain.LeadershipTransfer = false
			req = &plain
		}
	}
	if !req.LeadershipTransfer && req.LastLogIndex > 1 && w.bound() {
		*resp = raft.RequestVoteResponse{RPCHeader: w.header(), Term: req.Term}
		return nil
	}
	return w.NetworkTransport.RequestVote(id, target, req, resp)
}

// outlast waits until the leases are over of the leader that a new one has replaced without its consent, and reports whether they are. The first
// leader of a group, who has but the first entry and his own, has replaced nobody.
func (g *Group) outlast(r *reign) bool {
	l := &g.wire.lease
	if l.standing.Swap(0) == r.term && voters(g.raft.GetConfiguration().Configuration()) > 1 && g.raft.LastIndex() > 2 {
		select {
		case <-time.After(g.cfg.Timers.Lease):
		case <-r.lost:
			return false
		case <-g.dying:
			return false
		}
	}
	raise(&l.led, r.term)
	return true
}

// raise makes an atomic number at least n.
func raise[T int64 | uint64, A interface {
	Load() T
	CompareAndSwap(old, new T) bool
}](number A, n T) {
	for old := number.Load(); old < n && !number.CompareAndSwap(old, n); old = number.Load() {
	}
}
