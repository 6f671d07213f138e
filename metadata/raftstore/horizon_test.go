package raftstore

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// readWithin reads a register on a member; false: it does not answer.
func readWithin(g *Group, m *machine, age time.Duration, key string) (value string, ok bool) {
	done := make(chan bool, 1)
	g.ReadWithin(age, func(fresh func() bool, err error) {
		if err == nil {
			value = m.get(key)
		}
		done <- err == nil && fresh()
	})
	ok = <-done
	return value, ok
}

const longAge = 2 * time.Second // which no read takes, and after which calm leaders still have their leases

func TestAMemberThatStoodStillAnswersNothingFromBefore(t *testing.T) {
	t.Parallel()
	c, leader, clock := leasing(t)
	g, _ := bystanders(c, leader)
	eventually(t, "a read that stands still behind what it has seen", func() bool {
		result := make(chan bool, 2)
		g.ReadWithin(longAge, func(fresh func() bool, err error) {
			if err != nil {
				result <- false
				result <- false
				return
			}
			before := fresh()
			clock.Add(int64(longAge))
			result <- before
			result <- fresh()
		})
		before, after := <-result, <-result
		if after {
			t.Fatal("what was read before the process stood still is answered")
		}
		return before
	})
}

func TestAMemberThatHearsNobodyIsNotRead(t *testing.T) {
	t.Parallel()
	c, leader, clock := leasing(t)
	g, _ := bystanders(c, leader)
	m := c.nodes[g.host.cfg.ID].machines["a"]
	eventually(t, "a read", func() bool { _, ok := readWithin(g, m, longAge, "x"); return ok })
	g.wire.cut.Store(true)
	clock.Add(int64(longAge))
	c.propose("a", set("x", 2))
	if v, ok := readWithin(g, m, longAge, "x"); ok {
		t.Fatalf("a member that is cut off answers %q", v)
	}
	g.wire.cut.Store(false)
	eventually(t, "it answers again, what is newest", func() bool {
		v, ok := readWithin(g, m, longAge, "x")
		if ok && v != "2" {
			t.Fatalf("it answers %q", v)
		}
		return ok
	})
}

func TestAMemberThatIsBehindIsNotRead(t *testing.T) {
	t.Parallel()
	c, leader, clock := leasing(t)
	g, _ := bystanders(c, leader)
	m := c.nodes[g.host.cfg.ID].machines["a"]
	eventually(t, "a read", func() bool { _, ok := readWithin(g, m, longAge, "x"); return ok })
	m.mu.Lock() // it applies nothing
	c.propose("a", set("x", 2))
	clock.Add(int64(longAge))
	result := make(chan error, 1)
	g.ReadWithin(longAge, func(_ func() bool, err error) { result <- err })
	err := <-result
	m.mu.Unlock()
	if err == nil {
		t.Fatal("a member that has not applied what is acknowledged answers")
	}
	eventually(t, "it has caught up and answers", func() bool {
		v, ok := readWithin(g, m, longAge, "x")
		if ok && v != "2" {
			t.Fatalf("it answers %q", v)
		}
		return ok
	})
}

// An answer is as old as its question: it may have lain in a buffer while the process stood still.
func TestAnAnswerIsAsOldAsItsQuestion(t *testing.T) {
	t.Parallel()
	c, leader, clock := leasing(t)
	g, _ := bystanders(c, leader)
	eventually(t, "the leader is known", func() bool { return g.Leadership().LeaderID == leader.host.cfg.ID })
	near, far := net.Pipe()
	defer far.Close()
	g.horizons.conn, g.horizons.to = near, raft.ServerID(leader.host.cfg.ID)
	go func() {
		var b [questionBytes]byte
		if _, err := io.ReadFull(far, b[:]); err != nil {
			return
		}
		binary.BigEndian.PutUint64(b[:], leader.Applied())
		clock.Add(int64(longAge))
		_, _ = far.Write(b[:])
	}()
	if _, ok := readWithin(g, c.nodes[g.host.cfg.ID].machines["a"], longAge, "x"); ok {
		t.Fatal("a member believes that its state is as new as the answer's arrival")
	}
}

func TestWhoMayStandStillWithItsClockIsNotRead(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.tune = func(cfg *GroupConfig) { cfg.QuorumReads = true }
	c.start("a")
	c.propose("a", set("x", 1))
	g, _ := bystanders(c, c.leader("a"))
	if _, ok := readWithin(g, c.nodes[g.host.cfg.ID].machines["a"], time.Hour, "x"); ok {
		t.Fatal("a member answers by a clock that may stand still")
	}
}

func TestALeaderThatIsNoneTellsNothing(t *testing.T) {
	t.Parallel()
	c, leader, _ := leasing(t)
	g, _ := bystanders(c, leader)
	if index := g.acknowledged(ctx(t)); index != 0 {
		t.Fatalf("a follower says that %d is acknowledged", index)
	}
	if index := leader.acknowledged(ctx(t)); index == 0 {
		t.Fatal("the leader knows nothing")
	}
}

// numbers are a register that only grows, and when its values were acknowledged at the latest.
type numbers struct {
	mu    sync.Mutex
	times []time.Time // of 1, 2, …
}

func (n *numbers) acknowledged() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.times = append(n.times, time.Now())
}

// least is what a read has to show at least that contains all that was acknowledged before a time.
func (n *numbers) least(before time.Time) (value int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for value = len(n.times); value > 0 && !n.times[value-1].Before(before); value-- {
	}
	return value
}

func (n *numbers) count() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.times)
}

// Members are cut off, fall behind and die, and leaders change: no member answers from a state that is older than the reader allows, and none goes back.
func TestNoAnswerIsOlderThanAllowed(t *testing.T) {
	c := newCluster(t, 3)
	c.start("a")
	c.leader("a")
	var mu sync.RWMutex // guards c.nodes' contents against the one who kills
	pick := func(id string) (*Group, *machine) {
		mu.RLock()
		defer mu.RUnlock()
		return c.nodes[id].groups["a"], c.nodes[id].machines["a"]
	}
	var n numbers
	done := make(chan struct{})
	var workers sync.WaitGroup
	ended := func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	}
	workers.Go(func() { // the same number until it is acknowledged
		for member := 0; !ended(); {
			g, _ := pick(c.members[member%len(c.members)].ID)
			if g == nil {
				member++
				continue
			}
			if _, err := g.Propose(ctx(t), set("x", n.count()+1)); err != nil {
				member++
				time.Sleep(time.Millisecond)
				continue
			}
			n.acknowledged()
			time.Sleep(time.Millisecond)
		}
	})
	var answered, refused, followers atomic.Int64
	for reader := range 6 {
		workers.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(reader), 11))
			for !ended() {
				g, m := pick(c.members[rng.IntN(len(c.members))].ID)
				if g == nil {
					time.Sleep(time.Millisecond)
					continue
				}
				age := time.Duration(1+rng.IntN(300)) * time.Millisecond
				stands := time.Duration(0)
				if rng.IntN(10) == 0 { // a process that is stopped in between
					stands = time.Duration(rng.IntN(300)) * time.Millisecond
				}
				result := make(chan error, 1)
				g.ReadWithin(age, func(fresh func() bool, err error) {
					if err != nil {
						refused.Add(1)
						result <- nil
						return
					}
					text := m.get("x")
					time.Sleep(stands)
					checked := time.Now()
					if !fresh() {
						refused.Add(1)
						result <- nil
						return
					}
					answered.Add(1)
					if !g.Leadership().Leader {
						followers.Add(1)
					}
					value, _ := strconv.Atoi(text)
					if least := n.least(checked.Add(-age)); value < least {
						err = fmt.Errorf("%s answers %d where %d was acknowledged more than %v before", g.host.cfg.ID, value, least, age)
					}
					result <- err
				})
				if err := <-result; err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	more := func(numbers int) {
		for goal := n.count() + numbers; n.count() < goal; {
			before := n.count()
			eventually(t, "another number is acknowledged", func() bool { return n.count() > before })
		}
	}
	rounds := 8
	if testing.Short() {
		rounds = 4
	}
	for round := range rounds {
		more(100)
		leader := c.leader("a")
		follower, _ := bystanders(c, leader)
		id := leader.host.cfg.ID
		switch round % 4 {
		case 0: // the leader's network is cut, and heals
			leader.wire.cut.Store(true)
			c.leader("a", id)
			more(50)
			leader.wire.cut.Store(false)
		case 1: // a follower's
			follower.wire.cut.Store(true)
			more(100)
			follower.wire.cut.Store(false)
		case 2: // the leader's process dies
			mu.Lock()
			leader.wire.cut.Store(true) // no handover
			c.stop(id)
			mu.Unlock()
			c.leader("a", id)
			more(50)
			mu.Lock()
			c.host(id)
			c.open(id, "a", false, nil)
			mu.Unlock()
		case 3: // a follower falls behind
			m := c.nodes[follower.host.cfg.ID].machines["a"]
			m.mu.Lock()
			before := n.count()
			eventually(t, "numbers that it has not got, or it leads by now", func() bool {
				return n.count() > before+20 || follower.Leadership().Leader || follower.raft.State() != raft.Follower
			})
			m.mu.Unlock()
		}
	}
	more(100)
	close(done)
	workers.Wait()
	t.Logf("%d numbers; %d reads were answered, %d by members that did not lead, %d refused", n.count(), answered.Load(), followers.Load(), refused.Load())
	if followers.Load() < 100 || refused.Load() == 0 {
		t.Error("that shows nothing")
	}
}
