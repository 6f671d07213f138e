package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/gohops/hops/metadata"
)

// vaults is a cluster whose machines keep versions.
type vaults struct {
	*cluster
	disks  map[string]*disk
	vaults map[string]*vault
}

func newVaults(t *testing.T, n int) *vaults {
	c := &vaults{cluster: newCalmCluster(t, n), disks: map[string]*disk{}, vaults: map[string]*vault{}}
	c.tune = func(g *GroupConfig) { g.SnapshotBytes, g.SegmentBytes = 1<<30, 64<<10 }
	for _, m := range c.members {
		c.disks[m.ID] = newDisk()
	}
	return c
}

// begin starts a member on its disk; it may change the machine before.
func (c *vaults) begin(id string, change func(*vault)) *Group {
	c.t.Helper()
	c.host(id)
	g, err := c.join(id, change)
	if err != nil {
		c.t.Fatal(err)
	}
	return g
}

func (c *vaults) join(id string, change func(*vault)) (*Group, error) {
	v := newVault(c.disks[id])
	if change != nil {
		change(v)
	}
	nd := c.nodes[id]
	g, err := nd.host.Open(c.config("a", true), v)
	if err == nil {
		nd.groups["a"], nd.machines["a"], c.vaults[id] = g, v.machine, v
	}
	return g, err
}

// form starts all members and returns the leader.
func (c *vaults) form() *Group {
	c.t.Helper()
	for _, m := range c.members {
		c.begin(m.ID, nil)
	}
	if len(c.members) > 1 {
		c.first("a")
	}
	for _, m := range c.members {
		eventually(c.t, m.ID+" votes", func() bool { return !c.nodes[m.ID].groups["a"].Status().Joining })
	}
	return c.leader("a")
}

// write changes n registers and takes snapshots on the leader, so that its log no longer reaches back.
func (c *vaults) write(n int, value any, except ...string) {
	c.t.Helper()
	for i := range n {
		c.propose("a", set(fmt.Sprintf("k%03d", i), value), except...)
	}
}

func (c *vaults) save(g *Group) {
	c.t.Helper()
	if err := g.Save(); err != nil {
		c.t.Fatal(err)
	}
}

// follower is some member that does not lead.
func (c *vaults) follower(leader *Group) string {
	for _, m := range c.members {
		if m.ID != leader.host.cfg.ID {
			return m.ID
		}
	}
	return ""
}

// agrees waits until a member has what the leader has.
func (c *vaults) agrees(id string) {
	c.t.Helper()
	eventually(c.t, id+" has the leader's state", func() bool {
		l := c.leader("a").host.cfg.ID
		mine, theirs := c.vaults[id], c.vaults[l]
		mine.machine.mu.Lock()
		i, h := mine.index, hashOf(mine.index, mine.values)
		mine.machine.mu.Unlock()
		theirs.machine.mu.Lock()
		defer theirs.machine.mu.Unlock()
		return i == theirs.index && h == hashOf(theirs.index, theirs.values)
	})
}

// away takes a member away until the log that it lacks is gone from the others.
func (c *vaults) away(id string) {
	c.t.Helper()
	c.stop(id)
	for round := range 3 { // a head goes by whole segments
		c.write(20, fmt.Sprint(round, strings.Repeat("-", 4000)), id)
		for _, m := range c.members {
			if m.ID != id {
				c.agrees(m.ID)
				c.save(c.nodes[m.ID].groups["a"])
			}
		}
	}
	for _, m := range c.members {
		if m.ID != id && c.nodes[m.ID].groups["a"].Status().First <= 20 {
			c.t.Fatalf("the log of %s still begins at %d", m.ID, c.nodes[m.ID].groups["a"].Status().First)
		}
	}
}

// A snapshot is a file of a few hundred bytes whatever the state; a member that was away until the log was gone pulls the version while
// writing goes on, and has the leader's state.
func TestMemberThatWasAwayPullsTheStateWhileWritingGoesOn(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	leader := c.form()
	id := c.follower(leader)
	c.write(200, "x")
	c.away(id)
	files, err := filepath.Glob(filepath.Join(leader.dir.snapshots(), "*"))
	if err != nil || len(files) != keptSnapshots {
		t.Fatalf("kept %v, %v", files, err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Size() > 1024 {
			t.Errorf("%s has %d bytes, %v", f, info.Size(), err)
		}
	}
	var writing atomic.Bool
	writing.Store(true)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; writing.Load(); i++ {
			if _, err := leader.Propose(ctx(t), set("during", i)); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	c.begin(id, nil)
	v := c.vaults[id]
	eventually(t, "it has taken the version over", func() bool {
		v.machine.mu.Lock()
		defer v.machine.mu.Unlock()
		return v.restored == 1
	})
	writing.Store(false)
	<-done
	c.agrees(id)
	c.stop(id)
	c.begin(id, nil) // its snapshot refers to the version that it has pulled
	c.agrees(id)
	if c.vaults[id].restored != 0 {
		t.Error("it pulled again")
	}
}

// As TestInstalledSnapshotThatEndsInAnElectionIsCurrent, of a version.
func TestPulledVersionThatEndsInAnElectionIsCurrent(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	id := c.follower(c.form())
	c.away(id)
	s := endsInElection(c.cluster, func(id string) { c.begin(id, nil) })
	c.begin(id, nil)
	installed(c.cluster, id, s)
}

// A version that was pulled shows before raft's Restore has ended: who is told what it has seen of it is told of the version.
func TestWhatShowsOfAPulledVersionIsCounted(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	leader := c.form()
	id := c.follower(leader)
	c.write(20, "x")
	c.away(id)
	group, looked := make(chan *Group, 1), make(chan struct{})
	group <- c.begin(id, func(v *vault) {
		v.taken = sync.OnceFunc(func() {
			g := <-group
			if index := v.AppliedIndex(); g.Shown() < index {
				t.Errorf("the state is at %d, and entry %d shows", index, g.Shown())
			}
			close(looked)
		})
	})
	select {
	case <-looked:
	case <-time.After(patience):
		t.Fatal("it has pulled nothing")
	}
	c.agrees(id)
}

// A pull goes on where it was when the connection broke or the sender failed, and heartbeats are answered meanwhile: nobody stands for
// election.
func TestPullGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	leader := c.form()
	id := c.follower(leader)
	c.write(100, "x")
	c.away(id)
	term := leader.Status().Term
	var failures, twice atomic.Int64
	var read [200]atomic.Int64
	c.vaults[leader.host.cfg.ID].pulled = func(piece int) error {
		if piece%10 == 9 && read[piece].Add(1) == 1 {
			failures.Add(1)
			return errors.New("the sender fails")
		}
		if piece%10 != 9 && read[piece].Add(1) > 2 {
			twice.Add(1)
		}
		return nil
	}
	c.begin(id, nil)
	c.agrees(id)
	if failures.Load() < 5 || twice.Load() > 0 {
		t.Errorf("%d failures, %d pieces were sent again and again", failures.Load(), twice.Load())
	}
	if now := c.leader("a").Status().Term; now != term {
		t.Errorf("term %d became %d", term, now)
	}
}

// A sender that stands still is asked again, and who waits for it in vain is not in the way.
func TestPausedSenderIsAskedAgain(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	leader := c.form()
	id := c.follower(leader)
	c.write(40, "x")
	c.away(id)
	paused, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c.vaults[leader.host.cfg.ID].pulled = func(piece int) error {
		if piece == 20 {
			wait := false
			once.Do(func() { wait = true })
			if wait {
				close(paused)
				<-goOn
			}
		}
		return nil
	}
	defer close(goOn)
	c.prepare = func(h *Host) { h.pullPatience = 3 * time.Second }
	c.begin(id, nil)
	<-paused
	c.agrees(id)
}

// When leadership goes elsewhere while a member pulls, it pulls what the new leader has.
func TestPullGoesOnWithANewLeader(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	leader := c.form()
	id := c.follower(leader)
	c.write(40, "x")
	c.away(id)
	paused, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	c.vaults[leader.host.cfg.ID].pulled = func(piece int) error {
		if piece == 20 {
			once.Do(func() { close(paused) })
			<-goOn
		}
		return nil
	}
	defer close(goOn)
	c.begin(id, nil)
	<-paused
	c.handOver(leader, "")
	c.propose("a", set("k000", "after"))
	c.agrees(id)
	if got := c.vaults[id].get("k000"); got != "after" {
		t.Errorf("k000 is %q", got)
	}
}

// A sender that sends something else than it has promised changes nothing, and is not believed when it says so again.
func TestLyingSenderChangesNothing(t *testing.T) {
	t.Parallel()
	for name, lie := range map[string]func(piece []byte) []byte{
		"another value": func(p []byte) []byte { return bytes.ReplaceAll(p, []byte("k004 2"), []byte("k004 7")) },
		"out of order":  func(p []byte) []byte { return bytes.ReplaceAll(p, []byte("k004"), []byte("k000")) },
		"an early end": func(p []byte) []byte {
			if bytes.HasPrefix(p, []byte("k004")) {
				return []byte("end")
			}
			return p
		},
		"too large": func(p []byte) []byte { return append(p, make([]byte, MaxPiece)...) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newVaults(t, 3)
			leader := c.form()
			id := c.follower(leader)
			c.write(10, "x")
			c.agrees(id)
			c.away(id)
			c.vaults[leader.host.cfg.ID].told = lie
			g := c.begin(id, nil)
			before := c.disks[id].newest
			eventually(t, "it has refused the version", func() bool {
				g.pulls.mu.Lock()
				defer g.pulls.mu.Unlock()
				if g.pulls.current == nil {
					return false
				}
				select {
				case <-g.pulls.current.ended:
					return !g.pulls.current.intake.Complete()
				default:
					return false
				}
			})
			if c.disks[id].newest != before || c.vaults[id].restored != 0 {
				t.Error("the state has changed")
			}
			if g.Status().Failure != nil {
				t.Error(g.Status().Failure)
			}
		})
	}
}

// Somebody who begins to pull holds a version, and the log, and there are not many who may.
func TestVersionsAreHeldForAFew(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 1)
	g := c.form()
	c.write(10, "x")
	c.save(g)
	s := g.snapshots.all()[0]
	for n := range maxLoans + 2 {
		_, err := g.lend(fmt.Sprint("somebody", n), s)
		if (err == nil) != (n < maxLoans) {
			t.Fatalf("loan %d: %v", n, err)
		}
	}
	if floor := g.lending.floor(); floor != s.meta.Index {
		t.Errorf("the log may go up to %d", floor)
	}
}

// Somebody who begins to pull and does not go on holds a version, and the log, only so long.
func TestVersionIsNotHeldForSomebodyWhoDoesNotPull(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 1)
	c.prepare = func(h *Host) { h.pullPatience = 300 * time.Millisecond }
	g := c.form()
	c.write(10, "x")
	c.save(g)
	s := g.snapshots.all()[0]
	for n := range maxLoans {
		if _, err := g.lend(fmt.Sprint("somebody", n), s); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := g.streams.dial(ctx(t), pullMagic, raft.ServerAddress(c.nodes["m1"].addr), patience)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := writeText(conn, pullRequest{Member: "somebody0", Index: s.ref.Index, Hash: s.ref.Hash}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is held any more", func() bool { return c.vaults["m1"].opened() == 0 && g.lending.floor() == math.MaxUint64 })
	c.write(10, "y")
	c.save(g)
	if _, err := g.lend("m9", g.snapshots.all()[0]); err != nil {
		t.Errorf("nobody is served any more: %v", err)
	}
}

// A member that has lost its state, but not its log, pulls the state before it goes on, and waits for somebody who has it.
func TestLostStateIsPulledBeforeRaftStarts(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	leader := c.form()
	id := c.follower(leader)
	c.write(30, "x")
	c.agrees(id)
	for range 3 { // a head goes by whole segments
		c.write(20, strings.Repeat("y", 4000))
		c.agrees(id)
		c.save(c.nodes[id].groups["a"])
	}
	if c.nodes[id].groups["a"].Status().First <= 1 {
		t.Fatal("its log reaches back to the beginning")
	}
	c.stop(id)
	c.disks[id].lose()
	c.host(id)
	opened := make(chan error, 1)
	before := c.leader("a").snapshots.all()
	if len(before) != 0 {
		t.Fatal("the leader has a snapshot already")
	}
	go func() { // the leader takes one when it is asked
		_, err := c.join(id, nil)
		opened <- err
	}()
	if err := <-opened; err != nil {
		t.Fatal(err)
	}
	c.agrees(id)
	if c.vaults[id].restored != 1 || c.nodes[id].groups["a"].Status().Joining {
		t.Error("it did not pull, or has forgotten its vote")
	}

	// Nobody is there: it waits, and ends when it is told to.
	for _, m := range c.members {
		c.stop(m.ID)
	}
	c.disks[id].lose()
	c.host(id)
	go func() {
		_, err := c.join(id, nil)
		opened <- err
	}()
	h := c.nodes[id].host
	eventually(t, "it is being opened", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		_, begun := h.groups["a"]
		return begun
	})
	select {
	case err := <-opened:
		t.Fatalf("opened with %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	c.stop(id)
	if err := <-opened; !errors.Is(err, errClosed) {
		t.Fatal(err)
	}
}

// healable reports whether a group has a copy that its log goes back to.
func healable(g *Group) bool {
	first := g.Status().First
	return slices.ContainsFunc(g.snapshots.all(), func(s stored) bool { return s.copied() && s.meta.Index+1 >= first })
}

// A group of one keeps a copy and the log behind it: it goes on when its store is lost.
func TestGroupOfOneHealsFromItsCopy(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 1)
	c.tune = func(g *GroupConfig) { g.SnapshotBytes, g.SegmentBytes = 100, 64<<10 } // a copy is due at once
	g := c.form()
	for round := range 4 {
		c.write(10, round)
		c.save(g)
		if round == 0 {
			// Of this snapshot, or of one that was taken for its size meanwhile and behind which nothing is worth another copy.
			eventually(t, "a copy is made", func() bool { return healable(g) })
		}
	}
	copies := 0
	for _, s := range g.snapshots.all() {
		if s.copied() {
			copies++
		}
	}
	if copies != 1 && copies != 2 {
		t.Errorf("%d copies", copies)
	}
	c.write(10, "last")
	c.stop("m1")
	c.disks["m1"].lose()
	g = c.begin("m1", nil)
	c.leader("a")
	if err := g.ReadWait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := c.vaults["m1"].get("k009"); got != "last" {
		t.Errorf("k009 is %q", got)
	}
	c.save(g)
	eventually(t, "there is a copy again", func() bool { return healable(g) })
}

// Who stays alone has a copy before the last other one goes.
func TestGroupThatShrinksToOneMakesACopy(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 2)
	leader := c.form()
	c.write(10, "x")
	c.save(leader)
	if leader.snapshots.all()[0].copied() {
		t.Fatal("a group of two has a copy")
	}
	id := c.follower(leader)
	if err := leader.RemoveMember(ctx(t), id); err != nil {
		t.Fatal(err)
	}
	if list := leader.snapshots.all(); !list[0].copied() {
		t.Errorf("%+v", list)
	}
}

// Without a copy nothing of the log goes, so the log is enough.
func TestGroupOfOneWithoutACopyKeepsItsLog(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 1)
	g := c.form()
	for round := range 4 {
		c.write(10, round)
		c.save(g)
	}
	if first := g.Status().First; first != 1 || g.snapshots.all()[0].copied() {
		t.Fatalf("the log begins at %d", first)
	}
	c.stop("m1")
	c.disks["m1"].lose()
	g = c.begin("m1", nil)
	c.leader("a")
	if err := g.ReadWait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := c.vaults["m1"].get("k009"); got != "3" {
		t.Errorf("k009 is %q", got)
	}
}

// A backup of a running group is a copy, from which a group can be made.
func TestBackupOfVersions(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	leader := c.form()
	c.write(10, "x")
	b, f, err := leader.Copy()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for round := range 3 { // newer snapshots leave it
		c.write(10, round)
		c.save(leader)
	}
	if _, err := os.Stat(filepath.Join(leader.dir.path, b.Snapshot)); err != nil {
		t.Error(err)
	}
	fresh := newVaults(t, 1)
	nd := fresh.host("m1")
	if err := nd.host.Restore(fresh.config("a", false), b, f); err != nil {
		t.Fatal(err)
	}
	g, err := fresh.join("m1", nil)
	if err != nil {
		t.Fatal(err)
	}
	fresh.leader("a")
	if err := g.ReadWait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := fresh.vaults["m1"].get("k009"); got != "x" {
		t.Errorf("k009 is %q", got)
	}
}

// A leader's snapshot counts when the state machine has taken its version over, whenever the process ends.
func TestPulledSnapshotCutAnywhere(t *testing.T) {
	for name, at := range map[string]uint64{"before the version was taken over": 3, "behind it": 50} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s, err := openSnapshots(dir, 0, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			s.versioned = true
			sink, err := s.Create(1, 51, 2, raft.Configuration{}, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := sink.Write(Reference{Index: 50, Hash: 7}.encode()); err != nil {
				t.Fatal(err)
			}
			if err := sink.Close(); err != nil {
				t.Fatal(err)
			}
			if len(s.all()) != 0 {
				t.Error("it counts already")
			}
			again, err := openSnapshots(dir, at, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			list := again.all()
			if (len(list) == 1) != (at == 50) || at == 50 && (list[0].state != 50 || list[0].meta.Index != 51) {
				t.Errorf("%+v", list)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "*"+pulledSuffix)); len(left) != 0 {
				t.Error(left)
			}
		})
	}
}

// References are all or nothing.
func TestReferencesDetectEveryChange(t *testing.T) {
	b := Reference{1, 2, 3}.encode()
	if r, err := decodeReference(b); err != nil || r != (Reference{1, 2, 3}) {
		t.Fatal(r, err)
	}
	for i := range b {
		bad := bytes.Clone(b)
		bad[i] ^= 1
		if _, err := decodeReference(bad); !errors.Is(err, metadata.ErrCorrupt) {
			t.Errorf("byte %d: %v", i, err)
		}
		if _, err := decodeReference(b[:i]); !errors.Is(err, metadata.ErrCorrupt) {
			t.Errorf("%d bytes: %v", i, err)
		}
	}
}

// The copy of a backup is no way back when the log behind it has gone: who has lost its state pulls it.
func TestLostStateIsPulledBesideAnOldBackup(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	leader := c.form()
	id := c.follower(leader)
	c.write(10, "x")
	c.agrees(id)
	g := c.nodes[id].groups["a"]
	b, err := g.Backup()
	if err != nil {
		t.Fatal(err)
	}
	for range 4 { // a head goes by whole segments
		c.write(20, strings.Repeat("y", 4000))
		c.agrees(id)
		c.save(g)
	}
	if first := g.Status().First; first <= b.Index+1 {
		t.Fatalf("the log begins at %d, the backup is of %d", first, b.Index)
	}
	if list := g.snapshots.all(); len(list) != 3 || !list[2].copied() {
		t.Fatalf("%+v", list)
	}
	c.stop(id)
	c.disks[id].lose()
	c.begin(id, nil)
	c.agrees(id)
}

// Two of three have lost their state, and no majority is there before they have it again: what the third has is enough, because their
// logs go on from there.
func TestTwoLostStatesAreHealedByAThirdThatCannotLead(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	c.form()
	save := func(ids ...string) {
		for _, id := range ids {
			c.save(c.nodes[id].groups["a"])
		}
	}
	for round := range 4 {
		c.write(20, fmt.Sprint(round, strings.Repeat("y", 4000)))
		for _, m := range c.members {
			c.agrees(m.ID)
		}
		save("m1", "m2")
		if round == 2 {
			save("m3")
		}
	}
	if s := c.nodes["m1"].groups["a"].Status(); s.First <= 1 || s.Snapshot <= c.nodes["m3"].groups["a"].Status().Snapshot {
		t.Fatalf("%+v", s)
	}
	for _, m := range c.members {
		c.stop(m.ID)
	}
	c.disks["m1"].lose()
	c.disks["m2"].lose()
	c.begin("m3", nil)
	opened := make(chan error, 2)
	for _, id := range []string{"m1", "m2"} {
		c.host(id)
	}
	var mu sync.Mutex
	for _, id := range []string{"m1", "m2"} {
		go func() {
			v := newVault(c.disks[id])
			g, err := c.nodes[id].host.Open(c.config("a", true), v)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				c.nodes[id].groups["a"], c.nodes[id].machines["a"], c.vaults[id] = g, v.machine, v
			}
			opened <- err
		}()
	}
	for range 2 {
		select {
		case err := <-opened:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(patience):
			t.Fatal("they wait for a member that has the state")
		}
	}
	c.elect("a")
	c.propose("a", set("k000", "after"))
	for _, m := range c.members {
		c.agrees(m.ID)
	}
	if got := c.vaults["m1"].get("k019"); !strings.HasPrefix(got, "3y") {
		t.Errorf("k019 is %.10q", got)
	}
}

// Who stays alone makes a copy at once, also if there is one of a backup that the log does not go back to any more.
func TestGroupOfOneDoesNotRelyOnAnOldBackup(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 2)
	leader := c.form()
	id := c.follower(leader)
	c.write(10, "x")
	c.agrees(id)
	g := c.nodes[id].groups["a"]
	b, err := g.Backup()
	if err != nil {
		t.Fatal(err)
	}
	for range 4 { // a head goes by whole segments
		c.write(20, strings.Repeat("y", 4000))
		c.agrees(id)
		c.save(g)
	}
	if first := g.Status().First; first <= b.Index+1 {
		t.Fatalf("the log begins at %d, the backup is of %d", first, b.Index)
	}
	c.handOver(leader, id)
	eventually(t, "it leads", func() bool { return g.Status().Leader })
	// As when the leader has removed itself: nobody makes a copy before.
	if err := g.change(ctx(t), g.raft.RemoveServer(raft.ServerID(leader.host.cfg.ID), 0, 0)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is a copy that the log goes back to", func() bool { return healable(g) })
	c.stop(leader.host.cfg.ID)
	c.stop(id)
	c.disks[id].lose()
	g = c.begin(id, nil)
	eventually(t, "it leads again", func() bool { return g.Status().Leader })
	if err := g.ReadWait(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := c.vaults[id].get("k019"); !strings.HasPrefix(got, "y") {
		t.Errorf("k019 is %.10q", got)
	}
}

// A version that is here, or on its way, does not stay when no leader wants it to be installed any more.
func TestPulledVersionThatNobodyInstallsIsGivenUp(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 1)
	var clock atomic.Int64 // it has nothing of a wall's
	c.prepare = func(h *Host) { h.pullPatience = time.Hour }
	tune := c.tune
	c.tune = func(cfg *GroupConfig) {
		tune(cfg)
		cfg.clock = func() time.Duration { return time.Duration(clock.Load()) }
	}
	g := c.form()
	c.write(10, "x")
	intake, err := c.vaults["m1"].Receive(Reference{Index: 1000, Hash: hashOf(1000, nil)})
	if err != nil {
		t.Fatal(err)
	}
	if err := intake.Put([]byte("end")); err != nil || !intake.Complete() {
		t.Fatal(err)
	}
	whole := &pull{ref: Reference{Index: 1000}, intake: intake, cancel: func() {}, ended: make(chan struct{})}
	close(whole.ended)
	g.pulls.mu.Lock()
	g.pulls.current = whole
	g.pulls.mu.Unlock()
	clock.Store(int64(10 * time.Hour))
	if here, err := g.hasOrPulls(whole.ref, "m9", ""); err != nil || !here {
		t.Fatalf("it is here: %t, %v", here, err)
	}
	clock.Add(int64(time.Hour))
	if _, some := g.pulls.forsake(g.wire.lease.now() - g.host.pullPatience); some {
		t.Error("it is given up as soon as it may be")
	}
	clock.Add(1)
	eventually(t, "it is gone", func() bool { return c.vaults["m1"].opened() == 0 })
}

// Behind a version that has arrived the log stays as long as the member follows, however long that takes, and no longer.
func TestLogStaysForAMemberThatFollowsBehindAVersion(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 1)
	g := c.form()
	c.write(10, "x")
	c.save(g)
	s := g.snapshots.all()[0]
	if _, err := g.lend("m9", s); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a member that has come to the older of two snapshots needs the log no more
		c.write(20, "y")
		c.save(g)
	}
	g.lending.arrived("m9", *s.ref)
	if c.vaults["m1"].opened() != 0 {
		t.Error("the version is still pinned")
	}
	c.write(20, "y")
	c.save(g)
	follows := func(match uint64) {
		since := time.Now() // before the group itself can see it
		g.wire.accepted("m9", g.Status().Term, 0, match, 0)
		g.expire(since) // who does not go on is idle now
	}
	at := s.meta.Index
	for range 5 {
		at += 3
		follows(at)
		if floor := g.lending.floor(); floor != at {
			t.Fatalf("the member is at %d, the log may go up to %d", at, floor)
		}
	}
	if _, err := g.lend("m9", g.snapshots.all()[0]); err != nil { // it has lost everything
		t.Error(err)
	}
	g.lending.arrived("m9", *g.snapshots.all()[0].ref)
	if _, err := g.lend("m8", g.snapshots.all()[1]); err != nil {
		t.Fatal(err)
	}
	g.lending.arrived("m8", *g.snapshots.all()[1].ref)
	g.expire(time.Now().Add(-time.Hour))
	if floor := g.lending.floor(); floor != math.MaxUint64 {
		t.Errorf("both have followed, the log may go up to %d", floor)
	}
	for range 2 { // a group of one keeps the log behind its newest copy
		c.write(5, "z")
		if _, err := g.Backup(); err != nil {
			t.Fatal(err)
		}
	}
	lent := g.snapshots.all()[1]
	if _, err := g.lend("m9", lent); err != nil {
		t.Fatal(err)
	}
	g.expire(time.Now().Add(-time.Hour))
	if g.lending.floor() == math.MaxUint64 {
		t.Error("a version that is being pulled is not lent any more")
	}
	for round := range 4 { // files of log that stay for it alone
		c.write(20, fmt.Sprint(round, strings.Repeat("-", 4000)))
		if _, err := g.Backup(); err != nil {
			t.Fatal(err)
		}
	}
	if first, err := g.journal.FirstIndex(); err != nil || first > lent.meta.Index+1 {
		t.Fatalf("the log begins at entry %d, %v, and a version of entry %d is lent", first, err, lent.meta.Index)
	}
	g.host.space.reserve.Store(1 << 61) // the disk is nearly full
	g.expire(time.Now().Add(-time.Hour))
	if floor := g.lending.floor(); floor != math.MaxUint64 || c.vaults["m1"].opened() != 0 {
		t.Errorf("the disk is nearly full, and a slow member has the log from %d on", floor)
	}
	// No snapshot is taken now, with which the log would go otherwise.
	eventually(t, "the log that stayed for a slow member is gone", func() bool {
		first, err := g.journal.FirstIndex()
		return err == nil && first > lent.meta.Index+1
	})
}

// A group of one that is becoming one of several keeps its copy, and the log behind that, until its snapshots say that there are others: a
// member that starts knows it from those.
func TestCopyStaysUntilASnapshotKnowsOfOthers(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 2)
	g := c.form()
	of := func(index uint64, n int) stored {
		s := stored{id: fmt.Sprintf("%d-1-1", index), ref: &Reference{Index: index}, state: index}
		for i := range n {
			s.meta.Configuration.Servers = append(s.meta.Configuration.Servers, raft.Server{ID: raft.ServerID(fmt.Sprint(i))})
		}
		s.meta.Index = index
		return s
	}
	list := []stored{of(30, 1), of(20, 1), of(10, 1)}
	list[2].size = 1
	if floor, ok := g.floor(list); !ok || floor != 10 || !g.wantsCopy(list[0], list[2]) {
		t.Errorf("the log may go up to %d, %v", floor, ok)
	}
	list[0] = of(30, 2)
	if floor, ok := g.floor(list); !ok || floor != 20 || g.wantsCopy(list[0], list[2]) {
		t.Errorf("the log may go up to %d, %v", floor, ok)
	}
}

// Whose newest reference leads nowhere lends the one before it: two members may wait for it.
func TestOlderVersionIsLentWhereTheNewestIsGone(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 1)
	g := c.form()
	for range 2 {
		c.write(10, "x")
		c.save(g)
	}
	list := g.snapshots.all()
	g.snapshots.emptied(list[0].id)
	loan, answer := g.borrow(pullRequest{Member: "m9", Least: 1})
	if loan == nil || answer.Snapshot.Index != list[1].meta.Index {
		t.Fatalf("%+v", answer)
	}
	g.lending.mu.Lock()
	loan.users--
	g.lending.served--
	g.lending.mu.Unlock()
	g.lending.sending.Done()
	if loan, answer := g.borrow(pullRequest{Member: "m9", Least: list[1].meta.Index + 1}); loan != nil || answer.Refused == "" {
		t.Fatalf("%+v", answer)
	}
}

// A log that goes back to the first entry is enough, whoever has lost its state: nobody waits for others.
func TestAllStatesLostComeBackFromWholeLogs(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	c.form()
	c.write(10, "x")
	for _, m := range c.members {
		c.agrees(m.ID)
		c.save(c.nodes[m.ID].groups["a"])
	}
	for _, m := range c.members {
		c.stop(m.ID)
		c.disks[m.ID].lose()
	}
	for _, m := range c.members {
		c.begin(m.ID, nil)
	}
	c.elect("a")
	c.propose("a", set("k000", "after"))
	for _, m := range c.members {
		c.agrees(m.ID)
	}
	if got := c.vaults["m1"].get("k009"); got != "x" {
		t.Errorf("k009 is %q", got)
	}
}

// A request to install a version that comes once more, when it has been installed and the log has gone on behind it, changes nothing: its
// sender may have given it up while the version was being taken over, and have sent another.
func TestLateSnapshotTakesNothingBack(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	leader := c.form()
	id := c.follower(leader)
	c.away(id)
	c.begin(id, nil)
	c.agrees(id)
	g := c.nodes[id].groups["a"]
	c.write(5, "behind it")
	c.agrees(id)
	leader = c.leader("a")
	s := g.snapshots.all()[0]
	last, err := g.journal.LastIndex()
	if err != nil || last <= s.meta.Index {
		t.Fatalf("the log ends at %d, %v; the snapshot at %d", last, err, s.meta.Index)
	}
	install := &raft.InstallSnapshotRequest{
		RPCHeader: leader.wire.header(), SnapshotVersion: 1, Term: leader.Status().Term,
		LastLogIndex: s.meta.Index, LastLogTerm: s.meta.Term,
		Configuration: raft.EncodeConfiguration(s.meta.Configuration), ConfigurationIndex: s.meta.ConfigIndex, Size: referenceSize,
	}
	var answer raft.InstallSnapshotResponse
	to := raft.ServerAddress(g.host.cfg.Advertise)
	if err := leader.wire.NetworkTransport.InstallSnapshot(raft.ServerID(id), to, install, &answer, bytes.NewReader(s.ref.encode())); err != nil || !answer.Success {
		t.Fatalf("%+v, %v", answer, err)
	}
	waited := make(chan raft.RPCResponse, 1) // one that has waited for another to be installed
	g.wire.install(raft.RPC{Command: install, RespChan: waited}, install, bytes.NewReader(s.ref.encode()))
	if a := <-waited; a.Error != nil || !a.Response.(*raft.InstallSnapshotResponse).Success {
		t.Fatalf("%+v", a)
	}
	if now, err := g.journal.LastIndex(); err != nil || now < last {
		t.Errorf("the log ended at entry %d, and ends at %d now, %v", last, now, err)
	}
	if s := g.snapshots.all()[0]; s.hollow {
		t.Error("the version of its snapshot counts as lost")
	}
}

// A snapshot that a member makes does not end behind one that it installs meanwhile: raft would take the older one for its last, and refuse what follows the
// newer.
func TestSnapshotBesideAnInstalledOne(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	id := c.follower(c.form())
	c.write(5, "x")
	c.agrees(id)
	g, v := c.nodes[id].groups["a"], c.vaults[id]
	begun, goOn := make(chan struct{}), make(chan struct{})
	v.written = sync.OnceFunc(func() {
		close(begun)
		<-goOn
	})
	saved := make(chan error, 1)
	go func() { saved <- g.Save() }()
	<-begun
	g.wire.cut.Store(true)
	for round := range 3 { // the others' logs do not go back to what it has
		c.write(20, fmt.Sprint(round, strings.Repeat("-", 4000)), id)
		for _, m := range c.members {
			if m.ID != id {
				c.agrees(m.ID)
				c.save(c.nodes[m.ID].groups["a"])
			}
		}
	}
	g.wire.cut.Store(false)
	eventually(t, "the version is here", func() bool {
		g.pulls.mu.Lock()
		defer g.pulls.mu.Unlock()
		return g.pulls.current != nil && g.pulls.current.intake.Complete() || v.AppliedIndex() > 20
	})
	for end := time.Now().Add(3 * lendAgainMost); time.Now().Before(end) && v.AppliedIndex() <= 20; { // it waits
		time.Sleep(time.Millisecond)
	}
	close(goOn)
	if err := <-saved; err != nil {
		t.Fatal(err)
	}
	c.write(5, "behind both", id)
	c.agrees(id)
}

// A leader that has gone back in front of a member's log, because that could not store anything for a while, gets on; and the member takes
// nothing for committed that the leader has not seen.
func TestEntriesInFrontOfTheLogAreKnown(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 3)
	leader := c.form()
	id := c.follower(leader)
	c.away(id)
	c.begin(id, nil)
	c.agrees(id)
	c.write(5, "behind it")
	c.agrees(id)
	leader = c.leader("a")
	g := c.nodes[id].groups["a"]
	first, err := g.journal.FirstIndex()
	if err != nil || first < 10 {
		t.Fatalf("the log begins at %d, %v", first, err)
	}
	last, err := g.journal.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	term := leader.Status().Term
	for _, prev := range []uint64{first - 7, first - 1} {
		request := &raft.AppendEntriesRequest{RPCHeader: leader.wire.header(), Term: term, PrevLogEntry: prev, PrevLogTerm: 1, LeaderCommitIndex: 1 << 40}
		for i := range uint64(10) {
			e := raft.Log{Index: prev + 1 + i, Term: term, Type: raft.LogNoop}
			if e.Index >= first { // which the member compares
				if err := leader.journal.GetLog(e.Index, &e); err != nil {
					break
				}
			}
			request.Entries = append(request.Entries, &e)
		}
		var answer raft.AppendEntriesResponse
		if err := leader.wire.NetworkTransport.AppendEntries(raft.ServerID(id), raft.ServerAddress(g.host.cfg.Advertise), request, &answer); err != nil || !answer.Success {
			t.Errorf("behind entry %d: %+v, %v", prev, answer, err)
		}
		if now, err := g.journal.LastIndex(); err != nil || now < last {
			t.Errorf("behind entry %d: the log ended at %d, and does at %d, %v", prev, last, now, err)
		}
	}
	seen := &raft.AppendEntriesRequest{Term: term, PrevLogEntry: first, PrevLogTerm: term, Entries: []*raft.Log{{Index: first + 1}}, LeaderCommitIndex: last}
	g.wire.fit(raft.RPC{Command: seen})
	if seen.LeaderCommitIndex != first+1 || len(seen.Entries) != 1 {
		t.Errorf("entries up to %d make entry %d committed", first+1, seen.LeaderCommitIndex)
	}
}

// What is said of the snapshots that there are is said in their order: who is held up in between does not say in the end what was so before.
func TestNewestVersionsAreRetained(t *testing.T) {
	t.Parallel()
	c := newVaults(t, 1)
	var armed atomic.Bool
	late, goOn := make(chan struct{}), make(chan struct{})
	g := c.begin("m1", func(v *vault) {
		v.retaining = func() {
			if armed.CompareAndSwap(true, false) {
				close(late)
				<-goOn
			}
		}
	})
	for round := range 2 {
		c.write(5, round)
		c.save(g)
	}
	armed.Store(true)
	said := make(chan struct{})
	go func() {
		defer close(said)
		g.keep() // as when a loan ends
	}()
	<-late
	c.write(5, "newer")
	saved := make(chan error, 1)
	go func() { saved <- g.Save() }()
	select {
	case err := <-saved:
		saved <- err
	case <-time.After(100 * time.Millisecond): // it waits
	}
	close(goOn)
	<-said
	if err := <-saved; err != nil {
		t.Fatal(err)
	}
	list, d := g.snapshots.all(), c.disks["m1"]
	d.mu.Lock()
	defer d.mu.Unlock()
	if want := []uint64{list[0].ref.Index, list[1].ref.Index}; !slices.Equal(d.retained, want) {
		t.Errorf("versions %v are retained, there are snapshots of %v", d.retained, want)
	}
}
