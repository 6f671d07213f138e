package raftstore

import (
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/metadata"
)

// stuckMachines has the state machines of some members of a group come back no more, until the returned function is called.
func stuckMachines(c *cluster, ids ...string) (goOn func()) {
	gate := make(chan struct{})
	for _, id := range ids {
		c.nodes[id].machines["a"].gate.Store(&gate)
	}
	ended := false
	goOn = func() {
		if ended {
			return
		}
		ended = true
		for _, id := range ids {
			if m := c.nodes[id].machines["a"]; m != nil {
				m.gate.Store(nil)
			}
		}
		close(gate)
	}
	c.t.Cleanup(goOn) // before the members are stopped
	return goOn
}

// A leader whose log works, and whose state machine waits for a disk, would keep everybody waiting, since nobody misses it.
func TestLeaderWhoseStateMachineIsStuckHandsOver(t *testing.T) {
	c := newCluster(t, 3)
	c.configure = func(h *HostConfig) { h.SlowApply = 100 * time.Millisecond }
	c.start("a")
	c.propose("a", set("x", 1))
	began := time.Now()
	var g *Group
	var goOn func()
	lost := make(chan error, 1)
	eventually(t, "a leader whose state machine is stuck takes a command", func() bool {
		g = c.leader("a")
		goOn = stuckMachines(c, g.host.cfg.ID)
		g.ProposeAsync(set("y", 2), nil, func(_ any, err error) { lost <- err })
		select {
		case err := <-lost:
			if !errors.Is(err, metadata.ErrStandby) {
				lost <- err
				return true
			}
			goOn()
			return false
		case <-time.After(20 * time.Millisecond):
			return true
		}
	})
	id := g.host.cfg.ID
	c.propose("a", set("x", 3), id)
	select {
	case err := <-lost:
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("who waited hears %v", err)
		}
	case <-time.After(patience):
		t.Fatal("who waited for the command goes on waiting")
	}
	now := c.leader("a", id)
	if y := c.nodes[now.host.cfg.ID].machines["a"].get("y"); y != "2" {
		t.Errorf("what was committed is %q for the next leader", y)
	}
	for range 3 { // it still has a log and a vote
		c.propose("a", set("x", 4), id)
	}
	if g.Status().Failure != nil {
		t.Fatal(g.Status().Failure)
	}
	if k, err := now.askKnowledge(ctx(t), g.host.Address()); err != nil || k.Roomy {
		t.Errorf("it says that it would lead: %+v, %v", k, err)
	}
	if !g.Status().Stuck || now.Status().Stuck {
		t.Errorf("stuck is %v, and of who leads %v", g.Status().Stuck, now.Status().Stuck)
	}
	if st := g.Status(); st.StuckAt != g.fsm.applying.Load() || st.StuckSince.Before(began) || time.Since(st.StuckSince) < g.host.cfg.SlowApply {
		t.Errorf("it is said to be stuck at %d since %v; it is at %d, and was not at %v", st.StuckAt, st.StuckSince, g.fsm.applying.Load(), began)
	}
	if st := now.Status(); st.StuckAt != 0 || !st.StuckSince.IsZero() {
		t.Errorf("who leads is said to be stuck at %d since %v", st.StuckAt, st.StuckSince)
	}
	eventually(t, "it does not stand while another one leads", g.holdsBack)
	c.propose("a", set("x", 5), id)
	goOn()
	eventually(t, "it goes on where it was", func() bool {
		m := c.nodes[id].machines["a"]
		return m.get("x") == "5" && m.get("y") == "2" && !g.stuck.Load()
	})
}

// A reader may wait for a disk with the state machine locked. Nobody can look then, so nobody proposes what would show it.
func TestLeaderWhoseStateMachineAnswersNobodyHandsOver(t *testing.T) {
	c := newCluster(t, 3)
	c.configure = func(h *HostConfig) { h.SlowApply = 100 * time.Millisecond }
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	id := g.host.cfg.ID
	m := c.nodes[id].machines["a"]
	unlock := sync.OnceFunc(m.mu.Unlock)
	m.mu.Lock()
	t.Cleanup(unlock) // before the members are stopped
	c.leader("a", id)
	eventually(t, "it is stuck", func() bool { return g.Status().Stuck })
	if st := g.Status(); st.StuckSince.IsZero() || time.Since(st.StuckSince) < g.host.cfg.SlowApply {
		t.Errorf("it is stuck at %d since %v", st.StuckAt, st.StuckSince)
	}
	c.propose("a", set("x", 2), id)
	unlock()
	eventually(t, "it goes on where it was", func() bool { return m.get("x") == "2" && !g.Status().Stuck })
}

// Where an entry takes everybody as long, as a large one does, leadership goes round for nothing.
func TestALeaderThatIsNoSlowerThanOthersStays(t *testing.T) {
	c := newCluster(t, 3)
	c.timers = calm
	c.configure = func(h *HostConfig) { h.SlowApply = 500 * time.Millisecond }
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	goOn := stuckMachines(c, "m1", "m2", "m3")
	done := make(chan error, 1)
	g.ProposeAsync(set("x", 2), nil, func(_ any, err error) { done <- err })
	for _, m := range c.members {
		eventually(t, m.ID+" is stuck", func() bool { return c.nodes[m.ID].groups["a"].stuck.Load() })
	}
	select {
	case err := <-done:
		t.Fatalf("answered: %v", err)
	case <-time.After(200 * time.Millisecond): // some looks
	}
	goOn()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Leadership may go in another way while the state machine is stuck: what is under way has left raft's hands, and only the state machine would end the wait.
func TestNobodyWaitsForAStuckLeaderThatWasDeposed(t *testing.T) {
	c := newCluster(t, 3)
	c.timers = calm
	c.configure = func(h *HostConfig) { h.SlowApply = 2 * time.Second }
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	id := g.host.cfg.ID
	goOn := stuckMachines(c, id)
	lost := make(chan error, 1)
	g.ProposeAsync(set("y", 2), nil, func(_ any, err error) { lost <- err })
	eventually(t, "its state machine has the entry", func() bool { return g.fsm.applying.Load() != 0 })
	var other *Group
	for _, m := range c.members {
		if m.ID != id {
			other = c.nodes[m.ID].groups["a"]
		}
	}
	if err := other.Stand(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-lost:
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("who waited hears %v", err)
		}
	case <-time.After(patience):
		t.Fatal("who waited for the command goes on waiting")
	}
	c.propose("a", set("x", 3), id)
	goOn()
	eventually(t, "it goes on where it was", func() bool {
		m := c.nodes[id].machines["a"]
		return m.get("x") == "3" && m.get("y") == "2" && !g.stuck.Load()
	})
	eventually(t, "it leads again", func() bool {
		now := c.leader("a")
		return now == g || now.TransferLeadership(ctx(t), id) == nil
	})
	c.propose("a", set("x", 4))
	select {
	case <-g.reign.Load().abandoned:
		t.Error("a reign that goes on is abandoned")
	default:
	}
}

// Who hands over for another reason looks for a voter whose state machine works, and takes any where there is none.
func TestNobodyHandsOverToAStuckMember(t *testing.T) {
	const stands = "standing for election"
	for name, handOver := range map[string]func(c *cluster, g *Group, hang func(id string, on bool)){
		"asked to": func(_ *cluster, g *Group, _ func(string, bool)) {
			if err := g.TransferLeadership(ctx(t), ""); err != nil {
				t.Error(err)
			}
		},
		"stops": func(c *cluster, g *Group, _ func(string, bool)) { c.stop(g.host.cfg.ID) },
		"slow log": func(_ *cluster, g *Group, hang func(string, bool)) {
			hang(g.host.cfg.ID, true)
			g.ProposeAsync(set("x", 3), nil, func(any, error) {})
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3)
			c.timers = calm
			hang := hangable(c, time.Hour, time.Second)
			disks := c.configure
			logs := make(map[string]*counter)
			c.configure = func(h *HostConfig) {
				disks(h)
				h.SlowApply = 100 * time.Millisecond
				logs[h.ID] = &counter{seen: make(map[string]int)}
				h.Logger = slog.New(logs[h.ID])
			}
			c.start("a")
			c.propose("a", set("x", 1))
			g := c.leader("a")
			id := g.host.cfg.ID
			var others []*Group // the last one would be taken for its place in the list
			for _, s := range g.raft.GetConfiguration().Configuration().Servers {
				if string(s.ID) != id {
					others = append(others, c.nodes[string(s.ID)].groups["a"])
				}
			}
			stuck := others[1]
			stuckMachines(c, stuck.host.cfg.ID)
			c.propose("a", set("x", 2))
			eventually(t, "it is stuck, and has as much of the log as the other one", func() bool {
				if g != c.leader("a") {
					t.Fatal("leadership went by itself")
				}
				last := g.raft.LastIndex()
				return stuck.stuck.Load() && stuck.raft.LastIndex() == last && others[0].fsm.applied.Load() == last &&
					g.wire.peer("m1").match+g.wire.peer("m2").match+g.wire.peer("m3").match == 2*last
			})
			stood := logs[stuck.host.cfg.ID].count(stands)
			handOver(c, g, hang)
			if now := c.leader("a", id); now != others[0] {
				t.Errorf("%s leads", now.host.cfg.ID)
			}
			if n := logs[stuck.host.cfg.ID].count(stands) - stood; n != 0 {
				t.Errorf("the stuck member stood %d times", n)
			}
		})
	}
}

// A handover that fails is tried again at each look, and said now and then.
func TestAStuckLeaderSaysNowAndThenThatItHandsOver(t *testing.T) {
	const says, failed = "giving up leadership: the state machine does not come back with an entry", "the handover failed"
	c := newCluster(t, 3)
	c.timers = calm
	logs := make(map[string]*counter)
	c.configure = func(h *HostConfig) {
		h.SlowApply = 100 * time.Millisecond
		logs[h.ID] = &counter{seen: make(map[string]int)}
		h.Logger = slog.New(logs[h.ID])
	}
	c.start("a")
	c.propose("a", set("x", 1))
	id := "m1"
	if c.leader("a").host.cfg.ID == id {
		id = "m2"
	}
	g := c.nodes[id].groups["a"]
	stuckMachines(c, id)
	c.propose("a", set("x", 2))
	eventually(t, "a follower is stuck", g.stuck.Load)
	if err := g.Stand(); err != nil { // who is elected so hands over to nobody before others' promises are over
		t.Fatal(err)
	}
	eventually(t, "handovers fail", func() bool { return logs[id].count(failed) >= 5 })
	if n := logs[id].count(says); n != 1 {
		t.Errorf("said %d times", n)
	}
	c.propose("a", set("x", 3), id)
}

// commitCall is an intake of which only Commit is called.
type commitCall struct {
	Intake
	commit func()
}

func (c commitCall) Commit() error { c.commit(); return nil }

// A state machine that replaces its state by another member's may be silent for as long as a large one takes; one that is given an entry may not.
func TestWhoTakesOverAStateIsNotStuck(t *testing.T) {
	c := newCluster(t, 1)
	c.configure = func(h *HostConfig) { h.SlowApply = 100 * time.Millisecond }
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	m := c.nodes[g.host.cfg.ID].machines["a"]
	unlock := sync.OnceFunc(m.mu.Unlock)
	held, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	at := m.AppliedIndex()
	go func() {
		done <- g.commit(commitCall{commit: func() {
			m.mu.Lock()
			close(held)
			<-goOn
			unlock()
		}}, Reference{Index: at})
	}()
	<-held
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // ten times SlowApply
		if g.Status().Stuck {
			t.Error("it is called stuck")
			break
		}
	}
	close(goOn)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	unlock = sync.OnceFunc(m.mu.Unlock)
	m.mu.Lock()
	t.Cleanup(unlock)
	eventually(t, "it is stuck when it is silent for no reason", func() bool { return g.Status().Stuck })
	unlock()
}
