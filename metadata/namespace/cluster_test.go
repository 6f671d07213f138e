package namespace

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gohops/hops/internal/authority"
	"github.com/gohops/hops/internal/security"
	"github.com/gohops/hops/internal/security/securitytest"
	"github.com/gohops/hops/metadata/kv/badger"
	"github.com/gohops/hops/metadata/raftstore"
)

// peer is a member of a group of namespaces, with real disks.
type peer struct {
	id, dir, address string
	store            *badger.Store
	ns               *Namespace
	group            *raftstore.Group
	stop             func()
}

type peers struct {
	t           *testing.T
	credentials security.Credentials
	members     []raftstore.Member
	all         []*peer
}

func newPeers(t *testing.T, n int) *peers {
	c := &peers{t: t, credentials: securitytest.Credentials(t)}
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		p := &peer{id: fmt.Sprintf("m%d", i+1), dir: t.TempDir(), address: l.Addr().String()}
		c.members = append(c.members, raftstore.Member{ID: p.id, Address: p.address})
		c.all = append(c.all, p)
		l.Close()
	}
	t.Cleanup(func() {
		for _, p := range c.all {
			c.end(p)
		}
	})
	return c
}

// start starts a member. Others listen on its port only if somebody else was quicker.
func (c *peers) start(p *peer) {
	c.t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		quiet = slog.New(slog.NewTextHandler(c.t.Output(), nil))
	}
	l, err := net.Listen("tcp", p.address)
	if err != nil {
		c.t.Fatal(err)
	}
	if p.store, err = badger.Open(filepath.Join(p.dir, "checkpoint"), badger.Options{Logger: quiet}); err != nil {
		c.t.Fatal(err)
	}
	p.ns = fresh(c.t, p.store, 0)
	host, err := raftstore.NewHost(raftstore.HostConfig{
		ID: p.id, Listener: l, Dir: filepath.Join(p.dir, "raft"), Door: security.NewDoor(security.Config{}), Credentials: c.credentials,
		Role: authority.Namenode, Reserve: -1, Logger: quiet, OnFatal: func(err error) { c.t.Errorf("%s: %v", p.id, err) },
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- host.Run(ctx) }()
	p.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			c.t.Errorf("%s: %v", p.id, err)
		}
		if err := p.store.Close(); err != nil {
			c.t.Errorf("%s: %v", p.id, err)
		}
	}
	p.group, err = host.Open(raftstore.GroupConfig{
		Name: "namespace", Members: c.members, Bootstrap: true, SegmentBytes: 64 << 10,
		Timers: raftstore.Timers{Heartbeat: 2 * time.Second, Lease: 2 * time.Second, Commit: 10 * time.Millisecond},
	}, p.ns)
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *peers) end(p *peer) {
	if p.stop != nil {
		p.stop()
		p.stop = nil
	}
}

// leader waits for one.
func (c *peers) leader() *peer {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, p := range c.all {
			if p.stop != nil && p.group.Leadership().Leader {
				return p
			}
		}
	}
	c.t.Fatal("no leader")
	return nil
}

// fill makes n files by batches, on the leader.
func (c *peers) fill(leader *peer, from, n int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	last := make(chan error, n)
	for i := from; i < from+n; i++ {
		data, err := command(super, create(fmt.Sprintf("/d%d/f%d-%s", i%50, i, strings.Repeat("x", 100)), "c")).MarshalVT()
		if err != nil {
			c.t.Fatal(err)
		}
		go func() {
			_, err := leader.group.Propose(ctx, data)
			last <- err
		}()
	}
	for range n {
		if err := <-last; err != nil {
			c.t.Error(err)
		}
	}
}

func (c *peers) agree() {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		index, hash := c.all[0].ns.StateHash()
		same := true
		for _, p := range c.all[1:] {
			i, h := p.ns.StateHash()
			same = same && i == index && h == hash
		}
		if same {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatal("the members do not agree")
		}
	}
}

// One of three is away until the log is gone, comes back and pulls the namespace while writing goes on; later its store is damaged, and it pulls
// again before it goes on.
func TestMembersPullNamespaces(t *testing.T) {
	c := newPeers(t, 3)
	for _, p := range c.all {
		c.start(p)
	}
	leader := c.leader()
	c.fill(leader, 0, 200)
	c.agree()
	away := c.all[0]
	if away == leader {
		away = c.all[1]
	}
	c.end(away)
	for round := range 4 {
		c.fill(leader, 1000+round*1000, 500)
		for _, p := range c.all {
			if p != away {
				if err := p.group.Save(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	c.start(away)
	if at := away.ns.AppliedIndex(); at != 0 {
		t.Fatalf("it has a checkpoint at %d", at)
	}
	c.fill(leader, 10_000, 500)
	c.agree()
	if first := away.group.Status().First; first < 3 {
		t.Errorf("its log begins at %d: it did not pull", first)
	}
	checkSound(t, away.ns)

	for range 2 {
		c.fill(leader, 20_000, 100)
		if err := away.group.Save(); err != nil {
			t.Fatal(err)
		}
	}
	c.end(away)
	if err := os.WriteFile(filepath.Join(away.dir, "checkpoint", "data", "MANIFEST"), []byte("damage"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.fill(leader, 30_000, 100)
	c.start(away)
	c.agree()
	checkSound(t, away.ns)
	if _, err := os.Stat(filepath.Join(away.dir, "checkpoint", "data.damaged")); err != nil {
		t.Error(err)
	}
	c.fill(leader, 40_000, 1)
	c.agree()
}
