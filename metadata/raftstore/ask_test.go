package raftstore

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"maps"
	"net"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// asked sends one question on a connection and returns the answer's term.
func asked(t *testing.T, conn net.Conn, term, round uint64) (uint64, error) {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var b [questionBytes]byte
	binary.BigEndian.PutUint64(b[:], term)
	binary.BigEndian.PutUint64(b[8:], round)
	if _, err := conn.Write(b[:]); err != nil {
		return 0, err
	}
	if _, err := io.ReadFull(conn, b[:]); err != nil {
		return 0, err
	}
	if got := binary.BigEndian.Uint64(b[8:]); got != round {
		t.Fatalf("asked in round %d, answered in %d", round, got)
	}
	return binary.BigEndian.Uint64(b[:]), nil
}

func TestMemberStandsByItsTermUntilItVotesInALaterOne(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	c.propose("a", set("x", 1))
	leader := c.leader("a")
	term := leader.Leadership().Term
	var f *Group
	for _, nd := range c.nodes {
		if g := nd.groups["a"]; g != leader {
			f = g
		}
	}
	eventually(t, "the follower is in the leader's term", func() bool { return f.raft.CurrentTerm() == term })
	conn, err := leader.streams.dial(ctx(t), questionMagic, f.wire.LocalAddr(), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := func(what string, term, want uint64) {
		t.Helper()
		if got, err := asked(t, conn, term, 7); err != nil || got != want {
			t.Errorf("%s: answered %d, %v, want %d", what, got, err, want)
		}
	}
	ask("present term", term, term)
	ask("former term", term-1, 0)
	ask("later term", term+1, 0)
	voted := f.voted.Load()
	// raft stores the term of a vote, then the candidate, then answers: the first counts.
	if err := (ballots{f.journal, f}).SetUint64([]byte(keyVoteTerm), term+1); err != nil {
		t.Fatal(err)
	}
	ask("a vote is about to be given", term, 0)
	f.voted.Store(voted)
	eventually(t, "a member that may have forgotten a vote says no", func() bool {
		f.joining.Store(true) // until it takes the leader's next request
		got, err := asked(t, conn, term, 7)
		if err != nil {
			t.Fatal(err)
		}
		return got == 0
	})
	f.joining.Store(false)
	ask("present term again", term, term)
	f.wire.cut.Store(true)
	if _, err := asked(t, conn, term, 8); err == nil {
		t.Error("a member that is cut off answered")
	}
	f.wire.cut.Store(false)
}

func TestVotesOfFormerLivesCount(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	id, term := g.host.cfg.ID, g.Leadership().Term
	c.stop(id)
	c.host(id)
	if again := c.open(id, "a", false, nil); again.voted.Load() < term {
		t.Fatalf("the member voted for itself in term %d and now knows of a vote in %d", term, again.voted.Load())
	}
}

// lines returns the members that a leader has a line to.
func lines(g *Group) (connected []string) {
	reign := g.reign.Load()
	if reign == nil {
		return nil
	}
	q := &reign.asks
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, l := range q.lines {
		if l.conn != nil {
			connected = append(connected, string(l.id))
		}
	}
	return connected
}

func TestReadsPassAMemberThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	eventually(t, "both followers can be asked", func() bool {
		g = c.leader("a")
		return g.ReadWait(ctx(t)) == nil && len(lines(g)) == 2
	})
	first := lines(g)[0]
	silent := c.nodes[first].groups["a"]
	silent.wire.cut.Store(true)
	for range 50 {
		if err := g.ReadWait(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
	q := &g.reign.Load().asks
	eventually(t, "who does not answer is not asked first any more", func() bool {
		if err := g.ReadWait(ctx(t)); err != nil {
			t.Fatal(err)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		return string(q.lines[0].id) != first
	})
	silent.wire.cut.Store(false)
	eventually(t, "the silent one is asked again", func() bool {
		g = c.leader("a")
		return g.ReadWait(ctx(t)) == nil && len(lines(g)) == 2
	})
}

func TestMemberThatSaysNoIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	eventually(t, "both followers can be asked", func() bool {
		g = c.leader("a")
		return g.ReadWait(ctx(t)) == nil && len(lines(g)) == 2
	})
	first := lines(g)[0]
	f := c.nodes[first].groups["a"]
	paused := func() bool {
		q := &g.reign.Load().asks
		q.mu.Lock()
		defer q.mu.Unlock()
		for _, l := range q.lines {
			if string(l.id) == first {
				return time.Now().Before(l.pause) && l.conn != nil && l.asked == 0
			}
		}
		return false
	}
	eventually(t, "the one that says no is left alone", func() bool {
		f.joining.Store(true) // as a member that is being brought up to date
		return g.ReadWait(ctx(t)) == nil && paused()
	})
	for range 20 {
		if err := g.ReadWait(ctx(t)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnswerOfAnEarlierRoundDoesNotConfirm(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	g := c.leader("a")
	reign := g.reign.Load()
	here, there := net.Pipe()
	defer there.Close()
	l := &line{id: "m9", conn: here, asked: 5, gone: func() {}}
	ended := make(chan struct{})
	go func() {
		reign.asks.listen(l, here)
		close(ended)
	}()
	answer := func(term, round uint64) {
		var b [questionBytes]byte
		binary.BigEndian.PutUint64(b[:], term)
		binary.BigEndian.PutUint64(b[8:], round)
		if _, err := there.Write(b[:]); err != nil {
			t.Error(err)
		}
	}
	answer(0, 5) // it has voted since
	l2 := func() uint64 {
		reign.asks.mu.Lock()
		defer reign.asks.mu.Unlock()
		return l.asked
	}
	eventually(t, "the answer has come", func() bool { return l2() == 0 })
	if p := g.wire.peer("m9"); p.term != 0 {
		t.Fatalf("a no was taken for a yes: %+v", p)
	}
	reign.asks.mu.Lock()
	l.asked = 6
	reign.asks.mu.Unlock()
	answer(reign.term, 5)
	<-ended
	if p := g.wire.peer("m9"); p.round >= 6 || p.term != 0 {
		t.Fatalf("round 5 confirmed round 6: %+v", p)
	}
}

// A line that ends while its connection is made leaves no connection, and nobody who listens to one.
func TestALineThatEndsEarlyIsClosed(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	g := c.leader("a")
	other, _ := bystanders(c, g)
	q := &inquiry{group: g, reign: g.reign.Load()}
	ctx, gone := context.WithCancel(t.Context())
	l := &line{id: raft.ServerID(other.host.cfg.ID), gone: gone}
	connections := func() map[net.Conn]struct{} {
		g.streams.mu.Lock()
		defer g.streams.mu.Unlock()
		return maps.Clone(g.streams.open)
	}
	before := connections()
	ended := make(chan struct{})
	q.mu.Lock()
	go func() {
		defer close(ended)
		q.serve(ctx, l, raft.ServerAddress(c.nodes[other.host.cfg.ID].addr))
	}()
	eventually(t, "there is a connection", func() bool { // others may end meanwhile
		now := connections()
		maps.DeleteFunc(now, func(c net.Conn, _ struct{}) bool { _, had := before[c]; return had })
		return len(now) > 0
	})
	l.end()
	q.mu.Unlock()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("it is listened to")
	}
}

func TestOnlyPresentVotersAreAsked(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 1)
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	for _, id := range []string{"n2", "n3"} {
		c.add(id, false)
		c.host(id)
		c.open(id, "a", false, nil)
		c.join("a", id)
	}
	reads := func(want int) func() bool {
		return func() bool { return g.ReadWait(ctx(t)) == nil && len(lines(g)) == want }
	}
	eventually(t, "two can be asked", reads(2))
	if err := g.RemoveMember(ctx(t), "n2"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the one that is left can be asked", reads(1))
	if got := lines(g); len(got) == 1 && got[0] != "n3" {
		t.Errorf("asks %v, want n3", got)
	}
	g.wire.cut.Store(true)
	if err := g.ReadWait(ctx(t)); !errors.Is(err, metadata.ErrStandby) {
		t.Errorf("a leader that is cut off answered a read: %v", err)
	}
}
