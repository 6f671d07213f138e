package namespace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gohops/hops/cmd/processes"
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
	// began is where its checkpoint was when it was started last.
	began uint64
	stop  func()
}

type peers struct {
	t           *testing.T
	credentials security.Credentials
	members     []raftstore.Member
	all         []*peer
	ports       processes.Ports // that nobody takes while a member is away
}

func newPeers(t *testing.T, n int) *peers {
	c := &peers{t: t, credentials: securitytest.Credentials(t)}
	t.Cleanup(func() { c.ports.Close() })
	addresses, err := c.ports.Take(n)
	if err != nil {
		t.Fatal(err)
	}
	for i, address := range addresses {
		p := &peer{id: fmt.Sprintf("m%d", i+1), dir: t.TempDir(), address: address}
		c.members = append(c.members, raftstore.Member{ID: p.id, Address: p.address})
		c.all = append(c.all, p)
	}
	t.Cleanup(func() {
		for _, p := range c.all {
			c.end(p)
		}
	})
	return c
}

// start starts a member.
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
	if p.store, err = badger.Open(filepath.Join(p.dir, "checkpoint"), badger.Options{Apart: Apart, Logger: quiet}); err != nil {
		c.t.Fatal(err)
	}
	p.ns = fresh(c.t, p.store, 0)
	p.began = p.ns.AppliedIndex()
	host, err := raftstore.NewHost(raftstore.HostConfig{
		ID: p.id, Listener: l, Dir: filepath.Join(p.dir, "raft"), Door: security.NewDoor(security.Config{}), Credentials: c.credentials,
		Role: authority.Namenode, Reserve: -1, Logger: quiet, WriteDeadline: time.Hour, OnFatal: func(err error) { c.t.Errorf("%s: %v", p.id, err) },
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
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for _, p := range c.all {
			if p.stop != nil && p.group.Leadership().Leader {
				return p
			}
		}
	}
	c.t.Fatal("no leader")
	return nil
}

// fill makes n files by batches, on whoever leads: on a busy machine that may be another one in the end, and what may have been lost with the
// former is done again.
func (c *peers) fill(from, n int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var todo [][]byte
	for i := from; i < from+n; i++ {
		data, err := command(super, create(fmt.Sprintf("/d%d/f%d-%s", i%50, i, strings.Repeat("x", 100)), "c")).MarshalVT()
		if err != nil {
			c.t.Fatal(err)
		}
		todo = append(todo, data)
	}
	for len(todo) > 0 {
		leader := c.leader()
		var all sync.WaitGroup
		failed := make([]error, len(todo))
		for i, data := range todo {
			all.Go(func() { _, failed[i] = leader.group.Propose(ctx, data) })
		}
		all.Wait()
		var again [][]byte
		for i, err := range failed {
			if err != nil {
				again = append(again, todo[i])
			}
		}
		if ctx.Err() != nil {
			c.t.Fatalf("%d of %d files could not be made: %v", len(again), n, errors.Join(failed...))
		}
		todo = again
	}
}

func (c *peers) agree() {
	c.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
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
	c.fill(0, 200)
	c.agree()
	away := c.all[0]
	if away == c.leader() {
		away = c.all[1]
	}
	c.end(away)
	for round := range 4 {
		c.fill(1000+round*1000, 500)
		for _, p := range c.all {
			if p != away {
				if err := p.group.Save(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	c.start(away)
	if away.began != 0 {
		t.Fatalf("it has a checkpoint at %d", away.began)
	}
	c.fill(10_000, 500)
	c.agree()
	if first := away.group.Status().First; first < 3 {
		t.Errorf("its log begins at %d: it did not pull", first)
	}
	checkSound(t, away.ns)

	for range 2 {
		c.fill(20_000, 100)
		if err := away.group.Save(); err != nil {
			t.Fatal(err)
		}
	}
	c.end(away)
	if err := os.WriteFile(filepath.Join(away.dir, "checkpoint", "data", "MANIFEST"), []byte("damage"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.fill(30_000, 100)
	c.start(away)
	c.agree()
	checkSound(t, away.ns)
	if _, err := os.Stat(filepath.Join(away.dir, "checkpoint", "data.damaged")); err != nil {
		t.Error(err)
	}
	c.fill(40_000, 1)
	c.agree()
}
