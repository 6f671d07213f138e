package raftstore

import (
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// watchful are timers with which raft's own end no test: whoever leads next has not waited for them. A leader keeps its place while the machine stands
// still for seconds: nobody else would take it.
var watchful = Timers{Heartbeat: 10 * time.Minute, Lease: calm.Lease, Commit: 10 * time.Millisecond}

// vanish makes a member look as if its process had ended: it says nothing, its connections end, and its address refuses others.
func (c *cluster) vanish(group, id string) {
	c.t.Helper()
	nowhere, err := c.ports.Take(1)
	if err != nil {
		c.t.Fatal(err)
	}
	for other, nd := range c.nodes {
		if other != id {
			nd.groups[group].members.set(Member{id, nowhere[0]})
		}
	}
	g := c.nodes[id].groups[group]
	g.wire.cut.Store(true)
	g.streams.Close()
}

func watchfulCluster(t *testing.T) *cluster {
	c := newCluster(t, 3)
	c.timers = watchful
	c.start("a")
	c.propose("a", set("x", 1))
	for _, nd := range c.nodes {
		g := nd.groups["a"]
		eventually(t, "all have it, and the addresses in front of it", func() bool { return nd.machines["a"].get("x") == "1" && g.Applied() == g.raft.LastIndex() })
	}
	return c
}

// A leader whose process has ended is replaced when promises to it are over, long before anybody's timer ends.
func TestALeaderThatIsGone(t *testing.T) {
	t.Parallel()
	c := watchfulCluster(t)
	old := c.leader("a").host.cfg.ID
	c.vanish("a", old)
	c.propose("a", set("x", 2), old)
}

// Who would stand first lacks an entry: the one that has it stands when it is asked, and need not wait for its turn. What the leader sent may still be
// before the first one when it is no longer cut off: then it lacks nothing, and that shows nothing.
func TestWhoHasMoreStands(t *testing.T) {
	t.Parallel()
	for range 5 {
		c := watchfulCluster(t)
		leader := c.leader("a")
		first, second := bystanders(c, leader)
		if second.turn(raft.ServerID(leader.host.cfg.ID)) == 0 {
			first, second = second, first
		}
		first.wire.cut.Store(true)
		c.propose("a", set("x", 2))
		eventually(t, "the other one has it", func() bool { return second.raft.LastIndex() == leader.raft.LastIndex() })
		c.vanish("a", leader.host.cfg.ID)
		first.wire.cut.Store(false)
		c.propose("a", set("y", 1), leader.host.cfg.ID)
		now := c.leader("a", leader.host.cfg.ID)
		if x := c.nodes[now.host.cfg.ID].machines["a"].get("x"); x != "2" {
			t.Fatalf("%s leads, and x is %s", now.host.cfg.ID, x)
		}
		if now == second {
			return
		}
	}
	t.Error("who would stand first leads each time")
}

// A follower whose promise is over votes although its raft still knows the leader, and says so when it is asked before.
func TestVotesRestOnPromisesAlone(t *testing.T) {
	t.Parallel()
	c, g, clock := leasing(t)
	voter, other := bystanders(c, g)
	eventually(t, "the leader is known, and what it has is here", func() bool {
		return voter.Leadership().LeaderID == g.host.cfg.ID && voter.raft.LastIndex() == g.raft.LastIndex()
	})
	g.wire.cut.Store(true)
	eventually(t, "a pre-vote", func() bool { // what is under way comes before
		clock.Add(int64(2 * g.cfg.Timers.Heartbeat))
		return askPreVote(t, other, voter, 1<<40)
	})
	if askPreVote(t, other, voter, 2) {
		t.Error("it says that it would vote for who lacks what it has")
	}
	eventually(t, "a vote", func() bool {
		clock.Add(int64(2 * g.cfg.Timers.Heartbeat))
		return askVote(t, other, voter, false)
	})
}

// askPreVote has one member ask another whether it would vote for it, with a log that ends at an index, in the term in
// which the other's ends.
func askPreVote(t *testing.T, from, of *Group, index uint64) bool {
	t.Helper()
	id := raft.ServerID(of.host.cfg.ID)
	address, err := from.members.ServerAddr(id)
	if err != nil {
		t.Fatal(err)
	}
	last, err := strconv.ParseUint(of.raft.Stats()["last_log_term"], 10, 64) // it may know of later terms, in which somebody stood
	if err != nil {
		t.Fatal(err)
	}
	response := new(raft.RequestPreVoteResponse)
	request := &raft.RequestPreVoteRequest{RPCHeader: from.wire.header(), Term: of.raft.CurrentTerm() + 1, LastLogIndex: index, LastLogTerm: last}
	if err := from.wire.RequestPreVote(id, address, request, response); err != nil {
		t.Fatal(err)
	}
	return response.Granted
}

// A candidate that comes a little before a promise ends has its vote then, and none if the leader is heard meanwhile, or if it would have to wait for long.
func TestACandidateThatComesEarlyIsKeptWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		left      time.Duration
		meanwhile func(w *wire, clock *atomic.Int64)
		granted   bool
	}{
		"the promise ends":    {time.Minute, func(_ *wire, clock *atomic.Int64) { clock.Add(int64(2 * time.Minute)) }, true},
		"the leader is heard": {time.Minute, func(w *wire, _ *atomic.Int64) { raise(&w.lease.promised, int64(w.lease.now())) }, false},
		"it is early":         {59 * time.Minute, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var clock atomic.Int64
			g := &Group{dying: make(chan struct{}), raft: new(raft.Raft), host: &Host{}, cfg: GroupConfig{Timers: Timers{Heartbeat: time.Hour, Lease: time.Hour}, clock: func() time.Duration { return time.Duration(clock.Load()) }}}
			g.streams = newStreams(g.host, "a", nil)
			w := newWire(g, raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: g.streams, MaxPool: 1}))
			g.wire = w
			defer w.Close()
			clock.Store(int64(time.Hour - c.left))
			answer := make(chan raft.RPCResponse, 1)
			go func() {
				select {
				case rpc := <-w.in:
					rpc.Respond(&raft.RequestVoteResponse{Granted: true}, nil)
				case <-w.done:
				}
			}()
			if !w.withholds(raft.RPC{Command: &raft.RequestVoteRequest{LastLogIndex: 7}, RespChan: answer}) {
				t.Fatal("it is answered at once")
			}
			if c.meanwhile != nil {
				select {
				case a := <-answer:
					t.Fatalf("it is answered before anything happens: %+v", a.Response)
				default:
				}
				c.meanwhile(w, &clock)
			}
			if r := (<-answer).Response.(*raft.RequestVoteResponse); r.Granted != c.granted {
				t.Errorf("granted: %t", r.Granted)
			}
		})
	}
}

// Who is heard is not gone, whatever its address says.
func TestWhoIsHeardIsNotGone(t *testing.T) {
	var clock atomic.Int64
	g := &Group{raft: new(raft.Raft), cfg: GroupConfig{Timers: Timers{Heartbeat: 3 * time.Second, Lease: time.Second}, clock: func() time.Duration { return time.Duration(clock.Load()) }}}
	w := newWire(g, nil)
	w.lease.gone.Store(7)
	w.listen(raft.RPC{Command: &raft.AppendEntriesRequest{Term: 6}})
	if w.lease.gone.Load() != 7 {
		t.Error("a request of a former term tells of this one's leader")
	}
	w.listen(raft.RPC{Command: &raft.AppendEntriesRequest{Term: 7}})
	if w.lease.gone.Load() != 0 {
		t.Error("it is taken for gone")
	}
}

// Who was called upon to stand leaves it to a candidate with as much of the log that comes meanwhile, whatever any wall clock says, and to none that came before.
func TestACandidateThatCameBeforeIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		comes time.Duration
		leads bool
	}{
		"before":    {-time.Second, true},
		"meanwhile": {time.Second, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var clock atomic.Int64
			cl := newCluster(t, 3)
			cl.timers = watchful
			cl.tune = func(cfg *GroupConfig) {
				cfg.clock = func() time.Duration { return bootTime() + time.Duration(clock.Load()) }
			}
			cl.start("a")
			cl.propose("a", set("x", 1))
			g := cl.leader("a")
			follower, other := bystanders(cl, g)
			eventually(t, "nothing is missing", func() bool {
				return follower.raft.LastIndex() == g.raft.LastIndex() && other.raft.LastIndex() == g.raft.LastIndex()
			})
			g.wire.cut.Store(true)
			term := follower.raft.CurrentTerm()
			eventually(t, "what is under way has come", func() bool {
				clock.Add(int64(2 * g.cfg.Timers.Heartbeat))
				return askPreVote(t, other, follower, 1<<40)
			})
			follower.wire.courted.Store(int64(follower.wire.lease.now() + c.comes))
			promised := follower.wire.lease.promised.Load()
			follower.succeed(term, promised, 0)
			if c.leads {
				eventually(t, "it stands", func() bool { return follower.raft.CurrentTerm() > term })
			} else if follower.raft.CurrentTerm() != term {
				t.Error("it stands")
			}
		})
	}
}
