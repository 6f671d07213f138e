package raftstore

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// TestHeartbeatsChangeNoTermBesideTheMainLoop: a heartbeat of a later term than the member's is for raft's main loop alone,
// which may be taking a still later one at that moment; and a term does not begin while a heartbeat of the former one is
// being handled.
func TestHeartbeatsChangeNoTermBesideTheMainLoop(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	c.propose("a", set("x", 1))
	leader := c.leader("a")
	var g *Group
	for _, m := range c.members {
		if m.ID != leader.host.cfg.ID {
			g = c.nodes[m.ID].groups["a"]
		}
	}
	eventually(t, "it follows", func() bool { return g.raft.CurrentTerm() == leader.raft.CurrentTerm() })
	send := func(term uint64) (beside bool) {
		answer := make(chan raft.RPCResponse, 1)
		command := &raft.AppendEntriesRequest{RPCHeader: leader.wire.header(), Term: term}
		g.wire.heartbeat(raft.RPC{Command: command, RespChan: answer}, func(rpc raft.RPC) {
			beside = true
			rpc.Respond(&raft.AppendEntriesResponse{Success: true}, nil)
		})
		select {
		case <-answer:
		case <-time.After(time.Minute):
			t.Fatal("no answer")
		}
		return beside
	}
	if g.raft.State() == raft.Follower && !send(g.raft.CurrentTerm()) && g.raft.State() == raft.Follower {
		t.Error("a heartbeat of the member's own term waits for the main loop")
	}
	if send(g.raft.CurrentTerm() + 1) {
		t.Error("a heartbeat sets a new term beside the main loop")
	}

	stored := ballots{&terms{now: 7}, g}
	g.wire.aside.RLock()
	if err := stored.SetUint64([]byte(keyTerm), 7); err != nil { // what a heartbeat does
		t.Error(err)
	}
	done := make(chan error, 1)
	go func() { done <- stored.SetUint64([]byte(keyTerm), 8) }()
	select {
	case <-done:
		t.Error("a new term begins while a heartbeat of the former one is handled")
	case <-time.After(10 * time.Millisecond):
	}
	g.wire.aside.RUnlock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// terms stores a term.
type terms struct {
	raft.StableStore
	now uint64
}

func (s *terms) GetUint64([]byte) (uint64, error)      { return s.now, nil }
func (s *terms) SetUint64(_ []byte, term uint64) error { s.now = term; return nil }
