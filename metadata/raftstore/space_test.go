package raftstore

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// disks gives each member of a cluster a disk with so much free.
func disks(c *cluster, reserve int64) map[string]*atomic.Int64 {
	free := make(map[string]*atomic.Int64)
	for _, m := range c.members {
		free[m.ID] = new(atomic.Int64)
		free[m.ID].Store(100 << 20)
	}
	c.configure = func(h *HostConfig) { h.Reserve = reserve }
	c.prepare = func(h *Host) {
		f := free[h.ID()]
		h.space.lookup = func(string) (int64, int64, error) { return f.Load(), 1 << 30, nil }
	}
	return free
}

// A look that is noted late does not hide what a later one has found.
func TestTheNewestLookAtTheDiskCounts(t *testing.T) {
	s := newSpace("", 1<<10)
	first, goOn := make(chan struct{}), make(chan struct{})
	looks := 0
	s.lookup = func(string) (free, total int64, err error) {
		if looks++; looks == 1 {
			close(first)
			<-goOn
			return 100 << 20, 1 << 30, nil
		}
		return 0, 1 << 30, nil
	}
	looked := make(chan error, 2)
	go func() { looked <- s.check() }()
	<-first
	go func() { looked <- s.check() }()
	select {
	case err := <-looked:
		looked <- err
	case <-time.After(20 * time.Millisecond): // it waits
	}
	close(goOn)
	for range 2 {
		if err := <-looked; err != nil {
			t.Fatal(err)
		}
	}
	if s.admit() == nil {
		t.Error("the disk is full, and that is not known")
	}
}

func TestLeaderWithAFullDiskHandsOverToAMemberWithSpace(t *testing.T) {
	c := newCluster(t, 3)
	free := disks(c, 10<<20)
	c.start("a")
	c.propose("a", set("x", 1))
	full := c.leader("a").host.cfg.ID
	free[full].Store(9 << 20)
	eventually(t, "somebody else leads", func() bool {
		return c.leader("a").host.cfg.ID != full
	})
	c.propose("a", set("x", 2), full)
	eventually(t, "the member with the full disk follows", func() bool { return c.nodes[full].machines["a"].get("x") == "2" })
}

func TestWithAllDisksFullSomebodyLeadsForReads(t *testing.T) {
	c := newCluster(t, 3)
	free := disks(c, 10<<20)
	c.start("a")
	c.propose("a", set("x", 1))
	for _, m := range c.members {
		free[m.ID].Store(4 << 20) // less than half
		c.nodes[m.ID].host.space.check()
	}
	id := ""
	eventually(t, "reads go on, writes do not", func() bool { // whoever leads
		now := c.leader("a")
		id = now.host.cfg.ID
		_, err := now.Propose(ctx(t), set("x", 2))
		if err == nil {
			t.Fatal("a change was taken")
		}
		return errors.Is(err, metadata.ErrNoSpace) && now.ReadWait(ctx(t)) == nil
	})
	for _, m := range c.members { // whoever leads next finds nothing at all left
		free[m.ID].Store(0)
		c.nodes[m.ID].host.space.check()
	}
	c.stop(id)
	eventually(t, "another member answers reads", func() bool {
		now := c.leader("a", id)
		return now.ReadWait(ctx(t)) == nil
	})
	// As soon as one has space, it leads.
	leads := c.leader("a", id).host.cfg.ID
	for _, m := range c.members {
		if m.ID != id && m.ID != leads {
			free[m.ID].Store(100 << 20)
		}
	}
	c.propose("a", set("x", 3), id)
}

// bulky is a state machine whose snapshot is large, and which calls while at each MiB.
type bulky struct {
	*machine
	size  int
	while func(written int)
}

func (b *bulky) Freeze() (Snapshot, error) {
	s, err := b.machine.Freeze()
	return &bulkySnapshot{s, b}, err
}

type bulkySnapshot struct {
	Snapshot
	b *bulky
}

func (s *bulkySnapshot) WriteTo(w io.Writer) (int64, error) {
	piece := make([]byte, 1<<20)
	for n := 0; n < s.b.size; n += len(piece) {
		if s.b.while != nil {
			s.b.while(n)
		}
		if _, err := w.Write(piece); err != nil {
			return int64(n), err
		}
	}
	return int64(s.b.size), nil
}

func TestSnapshotGivesUpBeforeTheDiskIsFull(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	free := disks(c, 32<<20)["m1"]
	nd := c.host("m1")
	m := &bulky{machine: newMachine(), size: 64 << 20}
	const floor = 16 << 20
	var written atomic.Int64
	m.while = func(n int) {
		written.Store(int64(n))
		free.Store(40<<20 - int64(n)) // the disk fills as the snapshot is written
	}
	g, err := nd.host.Open(c.config("a", true), m)
	if err != nil {
		t.Fatal(err)
	}
	nd.groups["a"] = g
	c.propose("a", set("x", 1))
	err = g.raft.Snapshot().Error()
	if err == nil || !strings.Contains(err.Error(), "MiB free") {
		t.Fatalf("the snapshot ended with %v after %d MiB", err, written.Load()>>20)
	}
	if left := free.Load(); left < floor-askEvery-2<<20 {
		t.Fatalf("it gave up with %d MiB free", left>>20)
	}
	if tmp, _ := filepath.Glob(filepath.Join(nd.dir, "a", "snapshots", "*")); len(tmp) > 0 {
		t.Fatalf("left behind: %v", tmp)
	}
	free.Store(1 << 30)
	m.while = nil
	if err := g.raft.Snapshot().Error(); err != nil {
		t.Fatalf("with space again: %v", err)
	}
	// The next one takes as much: the namespace turns read-only while there is room for it.
	want := int64(64<<20)*5/4 + floor
	eventually(t, "the reserve is what the next snapshot takes", func() bool { return g.Status().ReserveBytes >= want })
	free.Store(want - 1<<20)
	eventually(t, "read-only", func() bool {
		_, err := g.Propose(ctx(t), set("x", 2))
		return errors.Is(err, metadata.ErrNoSpace)
	})
}

func TestSnapshotOfTheLeaderIsRefusedWithoutSpace(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	disks(c, 10<<20)["m1"].Store(50 << 20)
	nd := c.host("m1")
	c.open("m1", "a", true, nil)
	eventually(t, "the disk was looked at", func() bool { return nd.host.space.room(0) == nil })
	w := nd.groups["a"].wire
	answer := make(chan raft.RPCResponse, 1)
	body := strings.NewReader("snapshot")
	if w.refusesSnapshot(raft.RPC{Command: &raft.InstallSnapshotRequest{Size: 1 << 20}, Reader: body, RespChan: answer}) {
		t.Fatal("a small snapshot was refused")
	}
	if !w.refusesSnapshot(raft.RPC{Command: &raft.InstallSnapshotRequest{Size: 40 << 20}, Reader: body, RespChan: answer}) {
		t.Fatal("a snapshot larger than the disk was taken")
	}
	if a := <-answer; !errors.Is(a.Error, metadata.ErrNoSpace) {
		t.Fatalf("the leader hears %v", a.Error)
	}
	if body.Len() != 0 {
		t.Fatal("what the leader sends was not read")
	}
}

func TestHalfASnapshotIsRemovedBeforeAnythingIsOpened(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.start("a")
	c.propose("a", set("x", 1))
	nd := c.nodes["m1"]
	half := filepath.Join(nd.dir, "a", "snapshots", "1-1-1.snap.tmp")
	if err := os.WriteFile(half, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := nd.host.Clear("a"); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Fatalf("a running member's file was touched: %v", err)
	}
	h := nd.host
	c.stop("m1")
	if err := h.Clear("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(half); !errors.Is(err, os.ErrNotExist) {
		t.Fatal("it is still there")
	}
	if err := h.Clear("never seen"); err != nil {
		t.Fatal(err)
	}
}

func TestMemberWithAFullDiskDoesNotStandWhileOthersMay(t *testing.T) {
	c := newCluster(t, 3)
	free := disks(c, 10<<20)
	c.start("a")
	c.propose("a", set("x", 1))
	low := "m1"
	if c.leader("a").host.cfg.ID == low {
		low = "m2"
	}
	f := c.nodes[low].groups["a"]
	eventually(t, "it has a vote and space, and would stand", func() bool { return !f.holdsBack() })
	free[low].Store(1 << 20)
	c.nodes[low].host.space.check()
	eventually(t, "without space it holds back, as long as it hears the leader", f.holdsBack)
	for _, m := range c.members {
		if m.ID != low {
			c.stop(m.ID)
		}
	}
	eventually(t, "it stands when nobody else does", func() bool { return !f.holdsBack() })
}

// A snapshot in place of one that was damaged is taken when there is space for it again, not only when the log has grown.
func TestWantedSnapshotWaitsForSpace(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	free := disks(c, 10<<20)["m1"]
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	free.Store(1 << 20)
	g.snapshots.lost()
	eventually(t, "it is not begun", func() bool { return len(g.snapNow) == 0 && g.host.space.room(0) != nil })
	time.Sleep(10 * time.Millisecond) // what has taken the order looks at the disk
	free.Store(100 << 20)
	eventually(t, "it is taken", func() bool { return g.Status().Snapshot > 0 })
}
