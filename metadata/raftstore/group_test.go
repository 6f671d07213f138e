package raftstore

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func TestSingleMemberServesAtOnceAndRestarts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	began := time.Now()
	c.start("a")
	g := c.leader("a")
	t.Logf("ready after %v", time.Since(began))
	for range 10 {
		if _, err := g.Propose(ctx(t), set("x", 1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.ReadWait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	c.stop("m1")
	began = time.Now()
	c.host("m1")
	c.open("m1", "a", true, nil)
	g = c.leader("a")
	t.Logf("ready again after %v", time.Since(began))
	if err := g.ReadWait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := c.nodes["m1"].machines["a"].get("x"); got != "1" {
		t.Fatalf("x = %q after a restart, want 1", got)
	}
}

func TestGroupsFailOverIndependently(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a", "b")
	c.propose("a", set("x", 1))
	c.propose("b", set("y", 1))
	oldA, oldB := c.leader("a"), c.leader("b")
	// Stop the leader of a only; its host and the host's member of b go on.
	at := oldA.host.cfg.ID
	termB := oldB.Leadership().Term
	delete(c.nodes[at].groups, "a")
	began := time.Now()
	if err := oldA.Close(); err != nil {
		t.Fatal(err)
	}
	c.propose("a", set("x", 2))
	t.Logf("a writes again after %v", time.Since(began))
	if now := oldB.Leadership(); !now.Leader || now.Term != termB {
		t.Fatalf("leader of b changed with a: %+v", now)
	}
	c.propose("b", set("y", 2))
	c.open(at, "a", true, nil)
	eventually(t, "the restarted member catches up", func() bool { return c.nodes[at].machines["a"].get("x") == "2" })
	for _, m := range c.members {
		eventually(t, "all members apply b", func() bool { return c.nodes[m.ID].machines["b"].get("y") == "2" })
	}
}

// A snapshot that ends in the log was sent late; raft would delete the log behind it.
func TestSnapshotThatEndsInTheLogIsNotInstalled(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.start("a")
	g := c.leader("a")
	for range 5 {
		c.propose("a", set("x", 1))
	}
	last, err := g.journal.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	var e raft.Log
	if err := g.journal.GetLog(last-1, &e); err != nil {
		t.Fatal(err)
	}
	answer := make(chan raft.RPCResponse, 1)
	body := strings.NewReader("a snapshot")
	install := raft.InstallSnapshotRequest{Term: g.raft.CurrentTerm(), LastLogIndex: e.Index, LastLogTerm: e.Term}
	for name, change := range map[string]func(*raft.InstallSnapshotRequest){
		"of another term":           func(r *raft.InstallSnapshotRequest) { r.LastLogTerm++ },
		"behind the log":            func(r *raft.InstallSnapshotRequest) { r.LastLogIndex += 10 },
		"of a leader not heard yet": func(r *raft.InstallSnapshotRequest) { r.Term++ },
	} {
		other := install
		change(&other)
		if g.wire.hasSnapshot(raft.RPC{Command: &other, Reader: body, RespChan: answer}) {
			t.Fatalf("a snapshot %s is not there", name)
		}
	}
	if !g.wire.hasSnapshot(raft.RPC{Command: &install, Reader: body, RespChan: answer}) {
		t.Fatal("the snapshot was not recognized")
	}
	if a := <-answer; a.Error != nil || !a.Response.(*raft.InstallSnapshotResponse).Success || body.Len() > 0 {
		t.Fatalf("%+v, %d bytes are left", a, body.Len())
	}
}
