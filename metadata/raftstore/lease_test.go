package raftstore

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// leasing is a cluster whose clock of leases can be put on, and which has a leader with a lease.
func leasing(t *testing.T) (c *cluster, leader *Group, clock *atomic.Int64) {
	t.Helper()
	c, clock = newCalmCluster(t, 3), new(atomic.Int64)
	c.tune = func(cfg *GroupConfig) {
		cfg.clock = func() time.Duration { return bootTime() + time.Duration(clock.Load()) }
	}
	c.start("a")
	c.propose("a", set("x", 1))
	leader = c.leader("a")
	eventually(t, "a lease", func() bool { return leader.Glance(func() {}) })
	return c, leader, clock
}

func TestALeaseAsksNobody(t *testing.T) {
	t.Parallel()
	c, g, _ := leasing(t)
	before, seen := g.wire.round.Load(), ""
	eventually(t, "a glance", func() bool { return g.Glance(func() { seen = c.nodes[g.host.cfg.ID].machines["a"].get("x") }) })
	if seen != "1" || g.wire.round.Load() != before {
		t.Fatalf("it saw %q, and asked %d times", seen, g.wire.round.Load()-before)
	}
	for id, nd := range c.nodes {
		if id != g.host.cfg.ID && nd.groups["a"].Glance(func() {}) {
			t.Fatalf("%s, which does not lead, reads under a lease", id)
		}
	}
}

// What is read before the lease ends, and looked at after it, is not answered: the process may have stood still in between.
func TestALeaseThatEndsMeanwhile(t *testing.T) {
	t.Parallel()
	_, g, clock := leasing(t)
	eventually(t, "a glance that begins and is not answered", func() bool {
		var had *leased
		if g.Glance(func() { had = g.wire.lease.until.Load(); clock.Add(int64(g.cfg.Timers.Heartbeat)) }) {
			if had == g.wire.lease.until.Load() {
				t.Fatal("what was seen before the lease's end was answered after it")
			}
			return false // it was made longer meanwhile
		}
		return had != nil
	})
	eventually(t, "another lease", func() bool { return g.Glance(func() {}) })
}

func TestWhoIsCutOffHasNoLease(t *testing.T) {
	t.Parallel()
	c, g, clock := leasing(t)
	for id, nd := range c.nodes {
		if id != g.host.cfg.ID {
			nd.groups["a"].wire.cut.Store(true)
		}
	}
	clock.Add(int64(g.cfg.Timers.Heartbeat)) // which is over for what was accepted before
	eventually(t, "requests under way have ended", func() bool { return !g.Glance(func() {}) })
	if g.Glance(func() {}) {
		t.Fatal("there is a lease that nobody has given")
	}
}

// Who is told to stand gets votes from members that know a leader: that one's leases are over, whether the other one stands or not.
func TestAHandoverEndsLeases(t *testing.T) {
	t.Parallel()
	c, g, _ := leasing(t)
	var to raft.Server
	for _, s := range g.raft.GetConfiguration().Configuration().Servers {
		if string(s.ID) != g.host.cfg.ID {
			to = s
		}
	}
	c.nodes[string(to.ID)].groups["a"].wire.cut.Store(true) // it does not hear of it
	g.wire.nominate(to)
	if g.reign.Load() != nil && g.Glance(func() {}) {
		t.Fatal("a lease after a handover was begun")
	}
}

// bystanders are the two members that do not lead.
func bystanders(c *cluster, leader *Group) (follower, third *Group) {
	for id, nd := range c.nodes {
		switch {
		case id == leader.host.cfg.ID:
		case follower == nil:
			follower = nd.groups["a"]
		default:
			third = nd.groups["a"]
		}
	}
	return follower, third
}

// askVote has one member ask another for its vote in the next term.
func askVote(t *testing.T, from, of *Group, handover bool) bool {
	t.Helper()
	address, err := from.members.ServerAddr(raft.ServerID(of.host.cfg.ID))
	if err != nil {
		t.Fatal(err)
	}
	term := of.raft.CurrentTerm()
	response := new(raft.RequestVoteResponse)
	request := &raft.RequestVoteRequest{
		RPCHeader: from.wire.header(), Term: term + 1, LastLogIndex: 1 << 40, LastLogTerm: term, LeadershipTransfer: handover,
	}
	if err := from.wire.RequestVote(raft.ServerID(of.host.cfg.ID), address, request, response); err != nil {
		t.Fatal(err)
	}
	return response.Granted
}

// What told a member to stand may reach it when another one leads by its leave: it is none, and no votes are asked for in its name.
func TestALateHandoverIsNone(t *testing.T) {
	t.Parallel()
	c, g, _ := leasing(t)
	other, _ := bystanders(c, g)
	term := g.raft.CurrentTerm()
	late := &raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, Addr: binary.BigEndian.AppendUint64(nil, term-1)}}
	address, err := g.members.ServerAddr(raft.ServerID(other.host.cfg.ID))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.wire.NetworkTransport.TimeoutNow(raft.ServerID(other.host.cfg.ID), address, late, new(raft.TimeoutNowResponse)); err == nil {
		t.Fatal("a member stands because a former leader wanted it")
	}
	if askVote(t, other, g, true) {
		t.Fatal("the leader votes for somebody whom the leader of a former term has named")
	}
	other.wire.lease.name(&raft.TimeoutNowRequest{RPCHeader: raft.RPCHeader{Addr: binary.BigEndian.AppendUint64(nil, term)}})
	if !askVote(t, other, g, true) {
		t.Fatal("the leader does not vote for whom it has named")
	}
}

// A leader that was replaced while it was about to hand over does not speak for the one after it.
func TestWhoLeadsNoMoreHandsNothingOver(t *testing.T) {
	t.Parallel()
	c, g, _ := leasing(t)
	heir, third := bystanders(c, g)
	c.handOver(g, heir.host.cfg.ID)
	eventually(t, "the old leader follows the new one", func() bool {
		return heir.reign.Load() != nil && g.raft.State() == raft.Follower && g.raft.CurrentTerm() == heir.raft.CurrentTerm()
	})
	id := raft.ServerID(third.host.cfg.ID)
	address, err := g.members.ServerAddr(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.wire.TimeoutNow(id, address, &raft.TimeoutNowRequest{RPCHeader: g.wire.header()}, new(raft.TimeoutNowResponse)); err == nil {
		t.Fatal("who does not lead any more had somebody stand in the name of the new leader")
	}
}

// raft may forget its leader sooner than that one's lease ends, for example when it stands. Neither others nor itself get this member's vote before.
func TestAMemberThatForgetsItsLeaderKeepsItsPromise(t *testing.T) {
	t.Parallel()
	c, clock, still := newCalmCluster(t, 3), new(atomic.Int64), new(atomic.Int64)
	c.tune = func(cfg *GroupConfig) {
		cfg.clock = func() time.Duration {
			if at := still.Load(); at != 0 {
				return time.Duration(at)
			}
			return bootTime() + time.Duration(clock.Load())
		}
	}
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	forgets, other := bystanders(c, g)
	eventually(t, "the leader is known", func() bool {
		return forgets.Leadership().LeaderID == g.host.cfg.ID && other.Leadership().LeaderID == g.host.cfg.ID
	})
	clock.Add(int64(2 * g.cfg.Timers.Heartbeat)) // they have not just started
	before := g.wire.peer(raft.ServerID(forgets.host.cfg.ID)).sent
	eventually(t, "it has accepted what the lease rests on", func() bool {
		return g.wire.peer(raft.ServerID(forgets.host.cfg.ID)).sent > before+g.cfg.Timers.Heartbeat
	})
	eventually(t, "nothing that was promised ends", func() bool {
		still.Store(int64(bootTime()) + clock.Load())
		if forgets.wire.bound() {
			return true
		}
		still.Store(0) // the machine stood still for seconds
		return false
	})
	g.wire.cut.Store(true)
	for _, f := range []*Group{forgets, other} {
		answer := make(chan raft.RPCResponse, 1)
		f.wire.inject <- raft.RPC{Command: &raft.TimeoutNowRequest{RPCHeader: f.wire.header()}, RespChan: answer}
		<-answer
		eventually(t, "raft knows no leader", func() bool { return f.Leadership().LeaderID == "" })
	}
	other.wire.lease.promised.Store(0) // it has promised nothing
	if askVote(t, other, forgets, false) {
		t.Fatal("it votes for another one")
	}
	if askVote(t, forgets, other, false) {
		t.Fatal("it asks for votes")
	}
	g.wire.cut.Store(false)
	still.Store(0)
	c.leader("a")
}

func TestRaise(t *testing.T) {
	var n atomic.Uint64
	raise(&n, 7)
	raise(&n, 5) // a handover of a former term whose goroutine comes late revives no lease
	if n.Load() != 7 {
		t.Fatal(n.Load())
	}
}

// A member that has started may have accepted what the leader's lease rests on: it votes for nobody as long as it would not have.
func TestAMemberThatStartsVotesLater(t *testing.T) {
	var clock atomic.Int64
	g := &Group{raft: new(raft.Raft), cfg: GroupConfig{Timers: Timers{Heartbeat: 2 * time.Second, Lease: time.Second}, clock: func() time.Duration { return time.Duration(clock.Load()) }}}
	clock.Store(int64(time.Hour))
	w := newWire(g, nil)
	if !w.bound() {
		t.Fatal("it votes at once")
	}
	clock.Add(int64(time.Second))
	if w.bound() {
		t.Fatal("it does not vote after a heartbeat's time")
	}
}

// A heartbeat may be accepted beside raft's main loop while that looks at a candidate: then it does not get the vote.
func TestAVoteBesideAHeartbeat(t *testing.T) {
	var clock atomic.Int64
	g := &Group{raft: new(raft.Raft), cfg: GroupConfig{Timers: Timers{Heartbeat: 2 * time.Second, Lease: time.Second}, clock: func() time.Duration { return time.Duration(clock.Load()) }}}
	w := newWire(g, nil)
	clock.Store(int64(time.Hour))
	for _, beside := range []bool{false, true} {
		answer := make(chan raft.RPCResponse, 1)
		go func() {
			rpc := <-w.in
			if beside {
				raise(&w.lease.promised, clock.Load())
			}
			rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
		}()
		w.passVote(raft.RPC{Command: &raft.RequestVoteRequest{LastLogIndex: 7}, RespChan: answer})
		if r := (<-answer).Response.(*raft.RequestVoteResponse); r.Granted == beside {
			t.Fatalf("a heartbeat came in beside: %t, and the vote was given: %t", beside, r.Granted)
		}
	}
}
