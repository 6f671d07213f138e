package raftstore

import (
	"testing"
	"time"
)

func TestSingleMemberServesAtOnceAndRestarts(t *testing.T) {
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
