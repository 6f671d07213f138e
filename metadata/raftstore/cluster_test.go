package raftstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/cmd/processes"
	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/leaktest"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		runWriter(dir)
		return
	}
	os.Exit(leaktest.Run(m, leaktest.Raft()))
}

// fast are timers with which a failover takes a second, and a machine on which others work loses no leader: what a leader
// sends may be half a second late.
var fast = Timers{Heartbeat: 500 * time.Millisecond, Lease: 500 * time.Millisecond, Commit: 10 * time.Millisecond}

// calm are timers for tests that want one leader from beginning to end: it keeps its place while the machine stands still for
// seconds. A member that was away is found again within one.
var calm = Timers{Heartbeat: 5 * time.Second, Lease: 5 * time.Second, Commit: 10 * time.Millisecond}

// busyDisk is how long a write of the log may take: others use the disk, and none hangs but where a test says so.
const busyDisk = time.Hour

// patience is how long a test waits for what takes moments on an idle machine.
const patience = time.Minute

// cluster is a number of hosts on loopback with real disks, and groups on them.
type cluster struct {
	t           testing.TB
	credentials security.Credentials
	// configure may change a host's configuration before it is made.
	configure func(*HostConfig)
	// prepare may change a host before it runs.
	prepare func(*Host)
	// tune may change a group's.
	tune func(*GroupConfig)
	// timers are those of the groups; fast.
	timers  Timers
	members []Member
	nodes   map[string]*node
	// ports that nobody takes while a node is down.
	ports processes.Ports
}

type node struct {
	id, dir, addr string
	host          *Host
	stop          context.CancelFunc
	ended         chan error
	groups        map[string]*Group
	machines      map[string]*machine
	mu            sync.Mutex
	fatal         []error
}

// newCalmCluster is newCluster with calm timers.
func newCalmCluster(t testing.TB, n int) *cluster {
	c := newCluster(t, n)
	c.timers = calm
	return c
}

// newCluster reserves addresses for n members; start starts them.
func newCluster(t testing.TB, n int) *cluster {
	c := &cluster{t: t, credentials: securitytest.Credentials(t), timers: fast, nodes: make(map[string]*node)}
	t.Cleanup(func() { c.ports.Close() })
	for i := range n {
		c.add(fmt.Sprintf("m%d", i+1), true)
	}
	t.Cleanup(func() {
		for _, nd := range c.nodes {
			for _, g := range nd.groups {
				if c.timers.Heartbeat > patience { // raft gives a handover up that long after nobody takes over
					g.wire.cut.Store(true)
				}
			}
		}
		for id := range c.nodes {
			c.stop(id)
		}
	})
	return c
}

// add makes a node; listed ones are in the configuration of every member.
func (c *cluster) add(id string, listed bool) *node {
	c.t.Helper()
	addr, err := c.ports.Take(1)
	if err != nil {
		c.t.Fatal(err)
	}
	nd := &node{id: id, dir: c.t.TempDir(), addr: addr[0], groups: map[string]*Group{}, machines: map[string]*machine{}}
	c.nodes[id] = nd
	if listed {
		c.members = append(c.members, Member{ID: id, Address: nd.addr})
	}
	return nd
}

// host starts a node's host on its address.
func (c *cluster) host(id string) *node {
	c.t.Helper()
	nd := c.nodes[id]
	l, err := net.Listen("tcp", nd.addr)
	if err != nil {
		c.t.Fatal(err)
	}
	cfg := HostConfig{
		ID: id, Listener: l, Dir: nd.dir, Door: security.NewDoor(security.Config{}), Credentials: c.credentials, Role: authority.Namenode, Reserve: -1,
		Logger: slog.New(slog.DiscardHandler), WriteDeadline: busyDisk,
		OnFatal: func(err error) {
			nd.mu.Lock()
			nd.fatal = append(nd.fatal, err)
			nd.mu.Unlock()
		},
	}
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(c.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if c.configure != nil {
		c.configure(&cfg)
	}
	if nd.host, err = NewHost(cfg); err != nil {
		c.t.Fatal(err)
	}
	if c.prepare != nil {
		c.prepare(nd.host)
	}
	ctx, stop := context.WithCancel(context.Background())
	nd.stop, nd.ended = stop, make(chan error, 1)
	go func(h *Host) { nd.ended <- h.Run(ctx) }(nd.host)
	return nd
}

func (c *cluster) config(group string, bootstrap bool) GroupConfig {
	cfg := GroupConfig{Name: group, Members: c.members, Bootstrap: bootstrap, Timers: c.timers, SegmentBytes: 1 << 20}
	if c.tune != nil {
		c.tune(&cfg)
	}
	return cfg
}

// open opens a group on a running host over a machine, a new one if m is nil.
func (c *cluster) open(id, group string, bootstrap bool, m *machine) *Group {
	c.t.Helper()
	if m == nil {
		m = newMachine()
	}
	nd := c.nodes[id]
	g, err := nd.host.Open(c.config(group, bootstrap), m)
	if err != nil {
		c.t.Fatalf("open %s on %s: %v", group, id, err)
	}
	nd.groups[group], nd.machines[group] = g, m
	return g
}

// start starts all listed members with the groups, bootstrapped, and waits until all of them vote: a member that began empty
// does not before it has heard from a leader, and a test that takes that leader away could leave nobody who may be elected.
func (c *cluster) start(groups ...string) {
	c.t.Helper()
	for _, m := range c.members {
		c.host(m.ID)
		for _, g := range groups {
			c.open(m.ID, g, true, nil)
		}
	}
	if c.timers != fast && len(c.members) > 1 {
		for _, g := range groups {
			c.first(g)
		}
	}
	for _, m := range c.members {
		for _, g := range groups {
			eventually(c.t, m.ID+" votes in "+g, func() bool { return !c.nodes[m.ID].groups[g].Status().Joining })
		}
	}
}

// first waits for the first leader of a group, and until nobody stands against it: all are in its term. On a busy machine the members may stand all
// at once and vote each for itself, and their own timers would make the next try late.
func (c *cluster) first(group string) {
	c.t.Helper()
	tried := time.Now()
	eventually(c.t, "a first leader of "+group, func() bool {
		var leader *Group
		terms := map[uint64]bool{}
		for _, nd := range c.nodes {
			g := nd.groups[group]
			if g == nil {
				continue
			}
			switch g.raft.State() {
			case raft.Leader:
				leader = g
			case raft.Candidate:
				terms[0] = true
			}
			terms[g.raft.CurrentTerm()] = true
		}
		if leader != nil {
			return len(terms) == 1 && leader.Leadership().Leader
		}
		if time.Since(tried) > 2*time.Second {
			tried = time.Now()
			c.elect(group)
		}
		return false
	})
}

// elect makes a member that has the group and may vote stand for election at once. One that stands already, as all may with a vote each, would not begin anew: a
// later term ends that first. It or another one may still win in the term in which it does.
func (c *cluster) elect(group string) {
	c.t.Helper()
	var voter *Group
	eventually(c.t, "somebody may vote", func() bool {
		for _, m := range c.members {
			if g := c.nodes[m.ID].groups[group]; g.raft.LastIndex() > 0 && !g.joining.Load() {
				voter = g
			}
		}
		return voter != nil
	})
	before := voter.raft.CurrentTerm()
	if voter.raft.State() == raft.Candidate {
		later := &raft.RequestVoteRequest{RPCHeader: voter.wire.header(), Term: before + 1} // of nobody with a log
		select {
		case voter.wire.inject <- raft.RPC{Command: later, RespChan: make(chan raft.RPCResponse, 1)}:
		case <-voter.wire.done:
		}
	}
	voter.wire.electNow()
	eventually(c.t, "it stands, or somebody leads", func() bool {
		for _, nd := range c.nodes {
			if g := nd.groups[group]; g != nil && g.raft.State() == raft.Leader {
				return true
			}
		}
		return voter.raft.CurrentTerm() > before
	})
}

// join adds a node that is not listed, whoever leads.
func (c *cluster) join(group, id string) {
	c.t.Helper()
	eventually(c.t, id+" is added", func() bool {
		err := c.leader(group).AddMember(ctx(c.t), Member{id, c.nodes[id].addr})
		if err != nil && !errors.Is(err, metadata.ErrStandby) && !errors.Is(err, ErrUnknown) {
			c.t.Fatal(err)
		}
		return err == nil
	})
}

// stop stops a node.
func (c *cluster) stop(id string) {
	nd := c.nodes[id]
	if nd.stop == nil {
		return
	}
	nd.stop()
	err := <-nd.ended
	nd.mu.Lock()
	failed := len(nd.fatal) > 0
	nd.mu.Unlock()
	if err != nil && !failed {
		c.t.Errorf("%s ended with %v", id, err)
	}
	nd.stop = nil
	clear(nd.groups)
}

// leader waits for a ready leader of a group among the nodes that are not excluded. One whose term is over may not know it yet: of several that
// say they lead it is the one with the latest term.
func (c *cluster) leader(group string, except ...string) *Group {
	c.t.Helper()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		var leader *Group
		var term uint64
		for id, nd := range c.nodes {
			if g := nd.groups[group]; g != nil && !slices.Contains(except, id) {
				if l := g.Leadership(); l.Leader && l.Term >= term {
					leader, term = g, l.Term
				}
			}
		}
		if leader != nil {
			return leader
		}
		time.Sleep(5 * time.Millisecond)
	}
	for id, nd := range c.nodes {
		if g := nd.groups[group]; g != nil {
			c.t.Logf("%s: %+v", id, g.Status())
		}
	}
	c.t.Fatalf("no leader of %s", group)
	return nil
}

// handOver has a member lead in place of g's, or any other for "", and returns its group. It asks as often as it takes: raft gives up what takes longer than
// an election may.
func (c *cluster) handOver(g *Group, to string) (heir *Group) {
	c.t.Helper()
	before := uint64(0)
	if l := g.Leadership(); l.Leader {
		before = l.Term
	}
	eventually(c.t, "leadership is handed over", func() bool {
		heir = c.leader(g.name)
		if l := heir.Leadership(); heir != g && l.Term > before && (to == "" || heir.host.cfg.ID == to) {
			return true
		}
		if err := heir.TransferLeadership(ctx(c.t), to); err != nil {
			c.t.Log(err)
		}
		return false
	})
	return heir
}

// propose proposes on whoever leads until it is acknowledged. The command must be idempotent.
func (c *cluster) propose(group string, command []byte, except ...string) any {
	c.t.Helper()
	deadline, limit := time.Now().Add(patience), 5*time.Second
	if len(c.nodes) == 1 { // nobody else will take it, and once is enough
		limit = patience
	}
	for time.Now().Before(deadline) {
		g := c.leader(group, except...)
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		result, err := g.Propose(ctx, command)
		cancel()
		if err == nil {
			return result
		}
	}
	c.t.Fatalf("nobody took %q", command)
	return nil
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func ctx(t testing.TB) context.Context {
	c, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return c
}
