package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
	"github.com/gohops/hops/metadata/raftstore/journal"
)

func TestCommandsKeepTheirOrderAndGetTheirResults(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	g := c.leader("a")
	const n = 5000
	results := make([]any, n)
	var wait sync.WaitGroup
	wait.Add(n)
	for i := range n {
		g.ProposeAsync(set("x", i+1), nil, func(result any, err error) {
			defer wait.Done()
			if err != nil {
				t.Errorf("command %d: %v", i, err)
			}
			results[i] = result
		})
	}
	wait.Wait()
	for i := 1; i < n; i++ { // each result is the value before the command
		if want := fmt.Sprint(i); results[i] != want {
			t.Fatalf("result %d is %v, want %s", i, results[i], want)
		}
	}
	s := g.Status()
	if entries := s.Applied; entries > n/4 {
		t.Errorf("%d commands took %d entries: they were not batched", n, entries)
	}
	for _, m := range c.members {
		eventually(t, "all members apply all", func() bool { return c.nodes[m.ID].machines["a"].get("x") == fmt.Sprint(n) })
	}
}

func TestLargeCommandsAndLimits(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.start("a")
	g := c.leader("a")
	big := set("big", string(make([]byte, 0)))
	big = append(big, make([]byte, 0)...)
	for len(big) < MaxCommand {
		big = append(big, 'x')
	}
	if _, err := g.Propose(ctx(t), big); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Propose(ctx(t), append(big, 'x')); !errors.Is(err, metadata.ErrInvalidArgument) {
		t.Fatalf("a command over the limit: %v", err)
	}
}

func TestFollowersRefuseAndNameTheLeader(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	g := c.leader("a")
	for id, nd := range c.nodes {
		f := nd.groups["a"]
		if f == g {
			continue
		}
		eventually(t, "the follower knows the leader", func() bool { return f.Leadership().LeaderID == g.host.cfg.ID })
		_, err := f.Propose(ctx(t), set("x", 1))
		for _, err := range []error{err, f.ReadWait(ctx(t))} {
			var nl *NotLeader
			if !errors.As(err, &nl) || !errors.Is(err, metadata.ErrStandby) || nl.LeaderAddress != c.nodes[g.host.cfg.ID].addr {
				t.Fatalf("%s answers %v", id, err)
			}
		}
	}
}

func TestIsolatedLeaderServesNothingAndItsCommandsAreUnknown(t *testing.T) {
	c := newCluster(t, 3)
	c.start("a")
	c.propose("a", set("x", 1))
	var old *Group
	eventually(t, "a leader that is cut off takes a command, of which nobody knows", func() bool {
		old = c.leader("a")
		old.wire.cut.Store(true)
		proposed, read := make(chan error, 1), make(chan error, 1)
		old.ProposeAsync(set("x", 2), nil, func(_ any, err error) { proposed <- err })
		old.Read(func(err error) { read <- err })
		err := <-proposed
		if !errors.Is(err, ErrUnknown) && !errors.Is(err, metadata.ErrStandby) {
			t.Fatalf("a command that went nowhere or somewhere: %v", err)
		}
		if err := <-read; !errors.Is(err, metadata.ErrStandby) {
			t.Fatalf("an isolated leader answered a read: %v", err)
		}
		if !errors.Is(err, ErrUnknown) { // it did not lead any more
			old.wire.cut.Store(false)
			return false
		}
		return true
	})
	id := old.host.cfg.ID
	c.propose("a", set("x", 3), id)
	eventually(t, "the old leader does not believe in itself", func() bool { return !old.Leadership().Leader })
	old.wire.cut.Store(false)
	eventually(t, "the old leader follows", func() bool { return c.nodes[id].machines["a"].get("x") == "3" })
}

// A process that was stopped finds acknowledgements in its sockets that are older than the read it checks.
func TestOldAcknowledgementsDoNotConfirmLeadership(t *testing.T) {
	w := newWire(&Group{}, nil)
	voters := raft.Configuration{Servers: []raft.Server{{ID: "a"}, {ID: "b"}, {ID: "c"}}}
	w.peers["b"] = peer{term: 5, round: 6}
	w.peers["c"] = peer{term: 4, round: 9}
	if w.confirmed("a", voters, 5, 7) {
		t.Fatal("a request of round 6 confirmed round 7")
	}
	w.peers["b"] = peer{term: 5, round: 7}
	if !w.confirmed("a", voters, 5, 7) {
		t.Fatal("two of three are a majority")
	}
	voters.Servers = append(voters.Servers, raft.Server{ID: "d"}, raft.Server{ID: "e", Suffrage: raft.Nonvoter})
	if w.confirmed("a", voters, 5, 7) {
		t.Fatal("two of four are no majority")
	}
}

func TestFreshLeaderHasAppliedEverythingBeforeItServes(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	for round := range 5 {
		want := fmt.Sprint(round)
		c.propose("a", set("x", want))
		old := c.leader("a")
		var wrong atomic.Int32
		for id, nd := range c.nodes {
			m, g := nd.machines["a"], nd.groups["a"]
			if g != old { // one that led before may not know yet that it does no more, and would be told so
				eventually(t, id+" to know that it does not lead", func() bool { return !g.Leadership().Leader })
			}
			g.Watch(func(l Leadership) {
				if l.Leader && m.get("x") < want {
					wrong.Add(1)
				}
			})
		}
		now := c.handOver(old, "")
		if err := now.ReadWait(ctx(t)); err != nil {
			t.Fatal(err)
		}
		if got := c.nodes[now.host.cfg.ID].machines["a"].get("x"); got != want || wrong.Load() > 0 {
			t.Fatalf("the new leader reads %q, want %q; %d told too early", got, want, wrong.Load())
		}
	}
}

// Followers know that they are up to date though nobody has proposed anything to the new leader.
func TestFollowersOfANewLeaderAreCurrent(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	c.propose("a", set("x", "1"))
	old := c.leader("a")
	c.handOver(old, "")
	for id, nd := range c.nodes {
		eventually(t, id+" to be current", nd.groups["a"].Current)
	}
}

func TestWatchSeesEveryChangeInOrder(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.start("a")
	g := c.leader("a")
	var mu sync.Mutex
	var seen []bool
	g.Watch(func(l Leadership) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, l.Leader)
	})
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) < 2 || !seen[0] || seen[len(seen)-1] {
		t.Fatalf("saw %v", seen)
	}
	if _, err := g.Propose(ctx(t), set("x", 1)); !errors.Is(err, metadata.ErrStandby) {
		t.Fatalf("a closed group took a command: %v", err)
	}
	if err := g.ReadWait(ctx(t)); !errors.Is(err, metadata.ErrStandby) {
		t.Fatalf("a closed group served a read: %v", err)
	}
}

func TestWithdrawnCommandsAreNotExecuted(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.start("a")
	eventually(t, "a command is withdrawn by a leader that has not stood still for so long that it leads no more", func() bool {
		g := c.leader("a")
		g.wire.cut.Store(true)
		defer g.wire.cut.Store(false)
		g.ProposeAsync(set("x", 1), nil, func(any, error) {}) // while it is under way, one more is not worth an entry
		eventually(t, "shipped", func() bool { return g.Status().Queued == 0 })
		short, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		_, err := g.Propose(short, set("y", 1))
		withdrawn := errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ErrUnknown)
		if !withdrawn && !errors.Is(err, metadata.ErrStandby) {
			t.Fatalf("a command that was still queued: %v", err)
		}
		return withdrawn
	})
	c.propose("a", set("x", 2))
	for _, nd := range c.nodes {
		if nd.machines["a"].get("y") != "" {
			t.Fatal("a withdrawn command was executed")
		}
	}
}

// hangingDisk is a disk on which writing segments of the log hangs on demand. It waits for no real one, so that one that is only
// busy does not make it slow.
type hangingDisk struct {
	journal.FileSystem
	// hang, if not nil, is closed when the disk goes on.
	hang atomic.Pointer[chan struct{}]
	// fail: storing a term or a vote fails.
	fail atomic.Bool
}

type hangingFile struct {
	journal.File
	disk    *hangingDisk
	segment bool
}

func (d *hangingDisk) Create(path string) (journal.File, error) {
	f, err := d.FileSystem.Create(path)
	return d.file(path, f, err)
}

func (d *hangingDisk) Open(path string) (journal.File, error) {
	f, err := d.FileSystem.Open(path)
	return d.file(path, f, err)
}

func (d *hangingDisk) file(path string, f journal.File, err error) (journal.File, error) {
	if err != nil {
		return nil, err
	}
	return &hangingFile{f, d, !strings.HasPrefix(filepath.Base(path), "state")}, nil
}

func (d *hangingDisk) SyncDir(string) error { return nil }

func (f *hangingFile) Sync() error {
	if hang := f.disk.hang.Load(); f.segment && hang != nil {
		<-*hang
	}
	if !f.segment && f.disk.fail.Load() {
		return syscall.EIO
	}
	return nil
}

// hangable gives the members of a cluster such disks: hang makes the appends of one hang, or go on.
func hangable(c *cluster, deadline, slow time.Duration) (hang func(id string, on bool)) {
	disks := make(map[string]*hangingDisk)
	c.configure = func(h *HostConfig) {
		h.WriteDeadline, h.SlowWrite = deadline, slow
		disk := &hangingDisk{}
		disks[h.ID] = disk
		h.LogDisk = disk
	}
	hang = func(id string, on bool) {
		var next *chan struct{}
		if on {
			gate := make(chan struct{})
			next = &gate
		}
		if before := disks[id].hang.Swap(next); before != nil {
			close(*before)
		}
	}
	c.t.Cleanup(func() { // before the members are stopped
		for id := range disks {
			hang(id, false)
		}
	})
	return hang
}

// hangLeader has the leader's disk hang under a command, of which nobody knows then, and returns it. Who led no more when the command came goes on, and the
// next one is taken.
func hangLeader(c *cluster, hang func(id string, on bool)) (g *Group) {
	c.t.Helper()
	eventually(c.t, "a leader whose disk hangs takes a command", func() bool {
		g = c.leader("a")
		id := g.host.cfg.ID
		hang(id, true)
		lost := make(chan error, 1)
		g.ProposeAsync(set("x", 2), nil, func(_ any, err error) { lost <- err })
		switch err := <-lost; {
		case errors.Is(err, ErrUnknown):
			return true
		case !errors.Is(err, metadata.ErrStandby):
			c.t.Fatalf("a command that the disk holds: %v", err)
		}
		hang(id, false)
		return false
	})
	return g
}

// raft panics when it cannot store its term, and would take the process and its other groups with it.
func TestMemberThatCannotStoreItsTermEndsAlone(t *testing.T) {
	c := newCluster(t, 3)
	disks := make(map[string]*hangingDisk)
	c.configure = func(h *HostConfig) {
		disks[h.ID] = &hangingDisk{}
		h.LogDisk = disks[h.ID]
	}
	c.start("a")
	c.propose("a", set("x", 1))
	leader := c.leader("a").host.cfg.ID
	bad := "m1"
	if bad == leader {
		bad = "m2"
	}
	disks[bad].fail.Store(true)
	g := c.nodes[bad].groups["a"]
	c.stop(leader) // an election follows
	eventually(t, "the member ends", func() bool { return g.Status().Failure != nil })
	if err := g.Close(); err != nil || !errors.Is(g.Status().Failure, syscall.EIO) {
		t.Fatalf("%v, %v", err, g.Status().Failure)
	}
}

// hashicorp/raft#503
func TestHungLogDiskOfTheLeaderEndsItAndTheOthersGoOn(t *testing.T) {
	c := newCluster(t, 3)
	hang := hangable(c, 5*time.Second, time.Second)
	c.start("a")
	c.propose("a", set("x", 1))
	began := time.Now()
	g := hangLeader(c, hang)
	id := g.host.cfg.ID
	c.propose("a", set("x", 3), id)
	t.Logf("writes again after %v", time.Since(began))
	nd := c.nodes[id]
	fatal := func() int {
		nd.mu.Lock()
		defer nd.mu.Unlock()
		return len(nd.fatal)
	}
	eventually(t, "the member with the hung disk ends", func() bool { return fatal() > 0 && g.Status().Failure != nil })
	if n := fatal(); n != 1 || g.Leadership().Leader {
		t.Fatalf("the member with the hung disk: %d fatal, %+v", n, g.Status())
	}
}

// Nobody could go on in its place.
func TestHungLogDiskOfTheOnlyMemberIsWaitedFor(t *testing.T) {
	c := newCluster(t, 1)
	hang := hangable(c, 50*time.Millisecond, 10*time.Millisecond)
	c.host("m1")
	hang("m1", true)
	opened := make(chan error, 1)
	go func() {
		g, err := c.nodes["m1"].host.Open(c.config("a", true), newMachine())
		c.nodes["m1"].groups["a"] = g
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Fatalf("a group is made while the disk hangs: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	hang("m1", false)
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	c.propose("a", set("x", 1))
	g := c.leader("a")
	hang("m1", true)
	done := make(chan error, 1)
	g.ProposeAsync(set("x", 2), nil, func(_ any, err error) { done <- err })
	select {
	case err := <-done:
		t.Fatalf("answered while the disk hangs: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	hang("m1", false)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	c.propose("a", set("x", 3))
	if g.Status().Failure != nil {
		t.Fatal(g.Status().Failure)
	}
}

// Nor in the place of one that the others have left.
func TestHungLogDiskOfTheLastMemberIsWaitedFor(t *testing.T) {
	c := newCluster(t, 2)
	hang := hangable(c, 5*time.Second, time.Second)
	said := &counter{seen: make(map[string]int)}
	configure := c.configure
	c.configure = func(h *HostConfig) {
		configure(h)
		h.Logger = slog.New(said)
	}
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	if g.patient("append", time.Hour) {
		t.Error("a member is waited for that another one could replace")
	}
	var id, other string
	eventually(t, "it is alone", func() bool {
		g = c.leader("a")
		id, other = "m1", "m2"
		if g.host.cfg.ID == other {
			id, other = other, id
		}
		return g.RemoveMember(ctx(t), other) == nil
	})
	c.stop(other)
	before := said.count(waits)
	hang(id, true)
	done := make(chan error, 1)
	g.ProposeAsync(set("x", 2), nil, func(_ any, err error) { done <- err })
	eventually(t, "the deadline has gone by", func() bool { return said.count(waits) > before || g.Status().Failure != nil })
	hang(id, false)
	if err := <-done; err != nil || g.Status().Failure != nil {
		t.Fatalf("%v, %v", err, g.Status().Failure)
	}
	c.propose("a", set("x", 3))
}

// waits is what a member says that waits for its disk.
const waits = "the log's disk does not answer; nothing is acknowledged until it does"

func TestFullDiskStopsWritesButNotReads(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	var free atomic.Int64
	free.Store(100 << 20)
	c.configure = func(h *HostConfig) { h.Reserve = 10 << 20 }
	c.prepare = func(h *Host) {
		h.space.lookup = func(string) (int64, int64, error) { return free.Load(), 1 << 30, nil }
	}
	nd := c.host("m1")
	c.open("m1", "a", true, nil)
	c.propose("a", set("x", 1))
	g := c.leader("a")
	free.Store(9 << 20)
	eventually(t, "writes stop", func() bool { // when the disk is looked at next
		_, err := g.Propose(ctx(t), set("x", 2))
		if err != nil && !errors.Is(err, metadata.ErrNoSpace) {
			t.Fatalf("got %v", err)
		}
		return err != nil
	})
	if err := g.ReadWait(ctx(t)); err != nil {
		t.Fatalf("reads stopped: %v", err)
	}
	free.Store(11 << 20)
	nd.host.space.check()
	c.propose("a", set("x", 3))
}

// held is a machine that restores nothing before it may.
type held struct {
	*machine
	may chan struct{}
}

func (h held) Restore(r io.Reader) error {
	<-h.may
	return h.machine.Restore(r)
}

func TestReplacedMemberCatchesUpBySnapshot(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.tune = func(g *GroupConfig) { g.SegmentBytes = 64 << 10 }
	c.start("a")
	for i := range 100 { // whole files of the log go
		c.propose("a", set(fmt.Sprint("k", i), fmt.Sprint(i, strings.Repeat("-", 2000))))
	}
	g := c.leader("a")
	gone := "m1"
	if g.host.cfg.ID == gone {
		gone = "m2"
	}
	c.stop(gone)
	for round := range 3 { // two snapshots, so that the log's head goes
		c.propose("a", set("x", round))
		if err := c.leader("a").raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
	}
	c.propose("a", set("x", "last"))
	if first := c.leader("a").Status().First; first == 1 {
		t.Fatal("the log was not truncated")
	}
	if err := os.RemoveAll(filepath.Join(c.nodes[gone].dir, "a")); err != nil {
		t.Fatal(err)
	}
	nd := c.host(gone)
	m, may := newMachine(), make(chan struct{})
	r, err := nd.host.Open(c.config("a", false), held{m, may})
	if err != nil {
		t.Fatal(err)
	}
	nd.groups["a"], nd.machines["a"] = r, m
	joins := r.Status().Joining
	close(may)
	if !joins {
		t.Fatal("an empty member would vote")
	}
	eventually(t, "the empty member has everything", func() bool { return m.get("x") == "last" && m.get("k99") != "" })
	if m.restored == 0 {
		t.Fatal("it was not a snapshot")
	}
	eventually(t, "it votes again", func() bool { return !r.Status().Joining })
	c.propose("a", set("x", "more")) // appends go on behind the snapshot
	eventually(t, "it follows", func() bool { return m.get("x") == "more" })
	c.stop(gone)
	c.host(gone)
	m = newMachine()
	r = c.open(gone, "a", false, m)
	eventually(t, "it comes back from its own disk", func() bool { return m.get("x") == "more" && m.get("k99") != "" })
	if r.Status().Joining {
		t.Fatal("it forgot that it had caught up")
	}
}

// endsInElection starts the leader anew, and takes a snapshot of who leads then, whose last entries are raft's and the leader's own: no command is among them.
// Nobody else still sends what a former leader would.
func endsInElection(c *cluster, begin func(id string)) (s stored) {
	c.t.Helper()
	id := c.leader("a").host.cfg.ID
	c.stop(id)
	begin(id)
	leader := c.leader("a")
	if err := leader.Save(); err != nil {
		c.t.Fatal(err)
	}
	if s = leader.snapshots.all()[0]; s.state >= s.meta.Index {
		c.t.Fatalf("the snapshot of entry %d ends in command %d", s.meta.Index, s.state)
	}
	return s
}

// installed waits until a member has installed a snapshot and knows that nothing is missing.
func installed(c *cluster, id string, s stored) {
	c.t.Helper()
	g := c.nodes[id].groups["a"]
	eventually(c.t, "the snapshot is installed, and nothing is missing behind it", func() bool { return g.Applied() >= s.meta.Index && g.Current() })
	if c.nodes[id].machines["a"].restored != 1 {
		c.t.Error("it was not the snapshot")
	}
	if last := g.raft.LastIndex(); last != s.meta.Index {
		c.t.Errorf("the log goes on to entry %d, the snapshot ends at %d", last, s.meta.Index) // then that tells nothing
	}
}

// What a snapshot ends with may be entries of raft alone, which the state machine never sees: who installs it has them, too.
func TestInstalledSnapshotThatEndsInAnElectionIsCurrent(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	c.tune = func(g *GroupConfig) { g.SegmentBytes = 64 << 10 }
	c.start("a")
	gone := "m1"
	if c.leader("a").host.cfg.ID == gone {
		gone = "m2"
	}
	c.stop(gone)
	for i := range 100 { // whole files of the log go
		c.propose("a", set(fmt.Sprint("k", i), fmt.Sprint(i, strings.Repeat("-", 2000))))
	}
	for _, m := range c.members {
		if m.ID == gone {
			continue
		}
		g := c.nodes[m.ID].groups["a"]
		for round := range keptSnapshots {
			c.propose("a", set("x", round))
			eventually(t, m.ID+" has it", func() bool { return g.Applied() == c.leader("a").raft.LastIndex() })
			if err := g.Save(); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := endsInElection(c, func(id string) {
		c.host(id)
		c.open(id, "a", false, nil)
	})
	if err := os.RemoveAll(filepath.Join(c.nodes[gone].dir, "a")); err != nil {
		t.Fatal(err)
	}
	c.host(gone)
	c.open(gone, "a", false, nil)
	installed(c, gone, s)
}

// An empty voter must not help to elect a leader that lacks what the voter acknowledged before it lost its disk.
func TestEmptyMemberDoesNotElectALeaderThatLacksCommittedEntries(t *testing.T) {
	t.Run("started without Bootstrap", func(t *testing.T) { emptyMemberDoesNotElect(t, false) })
	t.Run("Bootstrap left on", func(t *testing.T) { emptyMemberDoesNotElect(t, true) })
}

func emptyMemberDoesNotElect(t *testing.T, bootstrap bool) {
	c := newCluster(t, 3)
	c.start("a")
	c.propose("a", set("x", 0))
	leader := c.leader("a")
	ids := []string{}
	for _, m := range c.members {
		if m.ID != leader.host.cfg.ID {
			ids = append(ids, m.ID)
		}
	}
	behind, wiped := ids[0], ids[1]
	eventually(t, "all begin equal", func() bool { return c.nodes[behind].machines["a"].get("x") == "0" })
	c.stop(behind)
	c.propose("a", set("x", 1)) // on leader and wiped only
	c.stop(wiped)
	c.stop(leader.host.cfg.ID)
	os.RemoveAll(filepath.Join(c.nodes[wiped].dir, "a"))
	for _, id := range ids {
		c.host(id)
		c.open(id, "a", bootstrap, nil)
	}
	time.Sleep(4 * fast.Heartbeat)
	for _, id := range ids {
		if l := c.nodes[id].groups["a"].Leadership(); l.Leader {
			t.Fatalf("%s leads although nobody alive has the committed entry", id)
		}
	}
	c.host(leader.host.cfg.ID)
	c.open(leader.host.cfg.ID, "a", bootstrap, nil)
	for _, m := range c.members {
		eventually(t, "the entry is everywhere", func() bool { return c.nodes[m.ID].machines["a"].get("x") == "1" })
	}
}

// A member that is away may have the history that all others have lost.
func TestNoGroupIsMadeBeforeEveryMemberHasSaidThatItIsEmpty(t *testing.T) {
	c := newCluster(t, 3)
	c.start("a")
	c.propose("a", set("x", 1))
	for _, m := range c.members {
		eventually(t, "all have the entry", func() bool { return c.nodes[m.ID].machines["a"].get("x") == "1" })
	}
	for _, m := range c.members {
		c.stop(m.ID)
	}
	for _, id := range []string{"m1", "m2"} {
		os.RemoveAll(filepath.Join(c.nodes[id].dir, "a"))
		c.host(id)
		c.open(id, "a", true, nil)
	}
	time.Sleep(4 * fast.Heartbeat)
	for _, id := range []string{"m1", "m2"} {
		if s := c.nodes[id].groups["a"].Status(); s.Leader || s.Last > 0 {
			t.Fatalf("%s made a group although the third member was not heard: %+v", id, s)
		}
	}
	c.host("m3")
	c.open("m3", "a", true, nil)
	eventually(t, "m1 has heard of the history", func() bool {
		return !c.nodes["m1"].groups["a"].Leadership().Leader && c.nodes["m3"].groups["a"].Status().Last > 1
	})
	if got := c.nodes["m3"].machines["a"]; got.get("x") != "1" && c.nodes["m3"].groups["a"].Leadership().Leader {
		t.Fatal("the history is gone")
	}
}

// It does not wait for the silence of a leader that never was: that would take longer here than the test waits.
func TestOneBootstrappedMemberStartsAClusterOfEmptyOnes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.timers = Timers{Heartbeat: 2 * patience, Lease: 2 * patience, Commit: 10 * time.Millisecond}
	for i, m := range c.members {
		c.host(m.ID)
		c.open(m.ID, "a", i == 0, nil)
	}
	c.propose("a", set("x", 1))
	for _, m := range c.members {
		eventually(t, "all members vote", func() bool { return !c.nodes[m.ID].groups["a"].Status().Joining })
	}
}

func TestCorruptMemberRefusesAndIsReinstalled(t *testing.T) {
	c := newCluster(t, 3)
	c.start("a")
	for i := range 50 {
		c.propose("a", set("x", i))
	}
	g := c.leader("a")
	bad := "m1"
	if g.host.cfg.ID == bad {
		bad = "m2"
	}
	eventually(t, "all members have all", func() bool { return c.nodes[bad].machines["a"].get("x") == "49" })
	c.stop(bad)
	segments, _ := filepath.Glob(filepath.Join(c.nodes[bad].dir, "a", "log", "*.log"))
	raw, _ := os.ReadFile(segments[0])
	for i := range 64 {
		raw[5000+i] ^= 1
	}
	os.WriteFile(segments[0], raw, 0o600)
	nd := c.host(bad)
	_, err := nd.host.Open(c.config("a", false), newMachine())
	if !errors.Is(err, metadata.ErrCorrupt) {
		t.Fatalf("a member with a damaged log opened: %v", err)
	}
	t.Log(err)
	if err := nd.host.Reinstall(c.config("a", true)); err != nil {
		t.Fatal(err)
	}
	c.open(bad, "a", true, nil) // Bootstrap does not count for a reinstalled member
	eventually(t, "the member has everything again", func() bool { return nd.machines["a"].get("x") == "49" })
	c.propose("a", set("x", "on"))
	eventually(t, "the member follows", func() bool { return nd.machines["a"].get("x") == "on" })
}

// hashicorp/raft#697
func TestDivergedTailLongerThanTheSnapshotIsOverwritten(t *testing.T) {
	c := newCluster(t, 3)
	c.tune = func(g *GroupConfig) { g.SegmentBytes = 64 << 10; g.CacheBytes = 1 }
	c.start("a")
	var old *Group
	eventually(t, "a leader that is cut off has entries that nobody else gets", func() bool {
		c.propose("a", set("x", 0))
		old = c.leader("a")
		had := old.raft.LastIndex()
		old.wire.cut.Store(true)
		for i := range 200 {
			old.raft.Apply(encodeBatch([]*proposal{{command: set("x", fmt.Sprint("lost", i))}}), 0)
		}
		for old.raft.State() == raft.Leader && old.raft.LastIndex() < had+200 {
			time.Sleep(time.Millisecond)
		}
		if old.raft.LastIndex() >= had+200 {
			return true
		}
		old.wire.cut.Store(false) // it has stepped down meanwhile
		return false
	})
	id := old.host.cfg.ID
	for range 60 { // fills segments, whose deletion takes the entries away
		c.propose("a", set("x", strings.Repeat("-", 3000)), id)
	}
	for round := range 3 {
		c.propose("a", set("y", round), id)
		for other, nd := range c.nodes { // whoever leads in the end
			if other != id {
				eventually(t, "both others have it", func() bool { return nd.machines["a"].get("y") == fmt.Sprint(round) })
				if err := nd.groups["a"].raft.Snapshot().Error(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	tail := old.raft.LastIndex()
	now := c.leader("a", id).Status()
	if tail <= now.Snapshot || now.First <= 2 {
		t.Fatalf("tail ends at %d, snapshot at %d, log begins at %d: not the case to test", tail, now.Snapshot, now.First)
	}
	old.wire.cut.Store(false)
	m := c.nodes[id].machines["a"]
	eventually(t, "the old leader has the snapshot", func() bool { return m.get("y") == "2" })
	c.propose("a", set("x", "end"), id)
	eventually(t, "the old leader follows", func() bool { return m.get("x") == "end" })
	if n := m.restored; n != 1 {
		t.Fatalf("the snapshot was installed %d times", n)
	}
}

func TestMembersComeAndGo(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 1)
	c.start("a")
	c.propose("a", set("x", 1))
	written := c.leader("a").raft.LastIndex()
	for _, id := range []string{"n2", "n3"} {
		nd := c.add(id, false)
		c.host(id)
		c.open(id, "a", false, nil)
		c.join("a", id)
		if has := nd.groups["a"].raft.LastIndex(); has < written {
			t.Fatalf("%s has a vote and the log up to %d, want %d", id, has, written)
		}
		eventually(t, id+" has applied what it has", func() bool { return nd.machines["a"].get("x") == "1" })
	}
	g := c.leader("a")
	n3 := c.handOver(g, "n3")
	for _, m := range n3.Status().Members {
		if !m.Voter {
			t.Fatalf("%+v", m)
		}
	}
	if err := n3.RemoveMember(ctx(t), "m1"); err != nil {
		t.Fatal(err)
	}
	c.stop("m1")
	c.propose("a", set("x", 2))
	if n := len(c.leader("a").Status().Members); n != 2 {
		t.Fatalf("%d members, want 2", n)
	}
	unreachable, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if err := c.leader("a").AddMember(unreachable, Member{"dead", "127.0.0.1:1"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a dead member was added: %v", err)
	}
	c.propose("a", set("x", 3)) // a member without vote does not count
}

func TestSlowLogDiskOfTheLeaderCostsItTheLeadershipLongBeforeTheDeadline(t *testing.T) {
	c := newCluster(t, 3)
	hang := hangable(c, time.Hour, time.Second)
	c.start("a")
	c.propose("a", set("x", 1))
	g := hangLeader(c, hang)
	id := g.host.cfg.ID
	c.propose("a", set("x", 3), id)
	eventually(t, "it does not believe in itself", func() bool { return !g.Leadership().Leader })
	if _, err := g.Propose(ctx(t), set("x", 4)); !errors.Is(err, metadata.ErrStandby) {
		t.Fatalf("the member with the slow disk took a command: %v", err)
	}
	hang(id, false)
	eventually(t, "the old leader follows", func() bool { return c.nodes[id].machines["a"].get("x") == "3" })
	nd := c.nodes[id]
	nd.mu.Lock()
	defer nd.mu.Unlock()
	if len(nd.fatal) != 0 || g.Status().Failure != nil {
		t.Fatalf("a slow write ended the member: %v", nd.fatal)
	}
	eventually(t, "the old leader is heard again", func() bool { return !g.wire.silent.Load() })
}

// The others need not miss a leader whose disk is slow: it says who is to stand for election. Their timers here are longer
// than the test waits.
func TestLeaderWithASlowLogDiskHandsOverBesideIt(t *testing.T) {
	c := newCluster(t, 3)
	c.timers = Timers{Heartbeat: 2 * patience, Lease: 2 * patience, Commit: 10 * time.Millisecond}
	hang := hangable(c, time.Hour, time.Second) // no other one's disk is as slow
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	id := g.host.cfg.ID
	hang(id, true)
	g.ProposeAsync(set("x", 2), nil, func(any, error) {})
	c.propose("a", set("x", 3), id)
	hang(id, false)
	eventually(t, "the old leader follows", func() bool { return c.nodes[id].machines["a"].get("x") == "3" })
}

// counter is a slog.Handler that counts messages.
type counter struct {
	slog.Handler
	mu   sync.Mutex
	seen map[string]int
}

func (c *counter) Handle(_ context.Context, r slog.Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen[r.Message]++
	return nil
}
func (c *counter) Enabled(context.Context, slog.Level) bool { return true }
func (c *counter) WithAttrs([]slog.Attr) slog.Handler       { return c }
func (c *counter) count(message string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[message]
}

// raft doubles its pause after each failure, up to 10 s.
func TestAbsentMemberDoesNotMakeReplicationBackOff(t *testing.T) {
	t.Parallel()
	c := newCalmCluster(t, 3)
	logs := make(map[string]*counter)
	c.configure = func(h *HostConfig) {
		logs[h.ID] = &counter{seen: make(map[string]int)}
		h.Logger = slog.New(logs[h.ID])
	}
	c.start("a")
	c.propose("a", set("x", 1))
	g := c.leader("a")
	leader := g.host.cfg.ID
	gone := "m1"
	if leader == gone {
		gone = "m2"
	}
	c.stop(gone)
	eventually(t, "the leader misses the member", func() bool {
		c.propose("a", set("x", 2))
		return logs[leader].count("failed to heartbeat to") >= 6
	})
	if n := logs[leader].count("failed to appendEntries to"); n > 1 {
		t.Fatalf("raft has counted %d failures and pauses longer after each", n)
	}
	os.RemoveAll(filepath.Join(c.nodes[gone].dir, "a"))
	c.host(gone)
	c.open(gone, "a", false, nil)
	eventually(t, "the member has everything again", func() bool { return c.nodes[gone].machines["a"].get("x") == "2" })
}
